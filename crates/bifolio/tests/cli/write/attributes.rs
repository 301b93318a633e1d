//! Attributes and owners, which setfattr, getfattr, chattr, lsattr, touch and chown change and
//! show.

use super::*;

/// Commands of bifolio and of the host with the same effect on sizes, times, flags and extended
/// attributes.
const ATTRIBUTE_COMMANDS: &[&str] = &[
    "truncate -s 10000 @/a @/b",
    "truncate -s +1K @/a",
    "truncate -s -5K @/b",
    "truncate -s '<7K' @/a",
    "truncate -s %4K @/b",
    "truncate -s /3K @/a",
    "truncate -r @/a @/c",
    "truncate -r @/a -s +5 @/d",
    "touch -d '2001-02-03 04:05:06.789 UTC' @/a @/dir",
    "touch -a -t 200203040506.07 @/a",
    "touch -m -d 1969-12-31T23:59:58.75Z @/b",
    "touch -r @/a @/c",
    "touch -h -d 2003-04-05 @/link",
    "touch -d 2004-05-06T07:08:09+02:00 @/d @/b @/link",
    "setfattr -n user.text -v 'a b' @/a @/dir",
    "setfattr -n user.text -v '\"q\\\\012\"' @/b",
    "setfattr -n user.hex -v 0x000aff @/link",
    "setfattr -n trusted.base -v 0sAAEC/w== @/a",
    "setfattr -h -n security.selinux -v label @/link",
    "setfattr -n user.gone @/dir",
    "setfattr -x user.gone @/dir",
    "setfattr -n system.posix_acl_access -v 0x0200000001000600ffffffff02000700e803000004000400ffffffff10000700ffffffff20000000ffffffff @/a",
    "chattr +dA @/a",
    "chattr -d @/a",
    "chattr +S @/a",
    "chattr -R +A @/dir",
    "chattr +d @/b",
];

#[test]
fn attributes_are_changed_and_shown_as_by_the_tools_of_the_host() {
    const FACTS: &str =
        "chattr -i a; stat -c '%n %s %a %Y %y' a b c d link dir dir/file; stat -c '%n %X' a c link
        getfattr -R -h -d -m - . | sort; getfacl -cn a; lsattr -d a b dir dir/file";
    private_mounts();
    let make = "echo a > a; : > b; : > c; echo d > d; ln -s b link; mkdir dir; echo x > dir/file";
    let image = Image::from_script("ext4", 4096, make);
    let theirs = Image::from_script("ext4", 4096, make);
    let mount = LoopMount::new(&theirs.path, "ext4", "rw");
    for command in ATTRIBUTE_COMMANDS {
        assert_eq!(run_on_image(&image, command), "", "{command}");
        shell(mount.path(), &command.replace('@', "."));
    }
    run_on_image(&image, "chattr +i @/a");
    let refused = run_with_status(&["touch", &image.at("/a"), &image.at("/b")], 1).text();
    assert!(refused.contains("/a: cannot change times: ") && !refused.contains("/b"), "{refused}");
    shell(mount.path(), "touch b -d '2004-05-06T07:08:09+02:00'; chattr +i a");
    run_on_image(&image, "touch -d 2004-05-06T07:08:09+02:00 @/b");
    image.check_by_e2fsck();
    // What getfattr and lsattr print is what the host's print.
    let names = "a b dir dir/file";
    for (ours, theirs) in [
        ("getfattr -d -m - @/a @/b", "getfattr -d -m - a b"),
        ("getfattr -d -e hex @/a", "getfattr -d -e hex a"),
        ("getfattr -h -n security.selinux @/link", "getfattr -h -n security.selinux link"),
        ("getfattr -m '^trusted' @/a", "getfattr -m '^trusted' a"),
        ("getfattr --only-values -n user.text @/a", "getfattr --only-values -n user.text a"),
    ] {
        assert_eq!(run_on_image(&image, ours), shell(mount.path(), theirs), "{ours}");
    }
    let flags = run_on_image(&image, "lsattr -d @/a @/b @/dir @/dir/file");
    assert_eq!(flags.replace(" /", " "), shell(mount.path(), &format!("lsattr -d {names}")));
    // A dump restores the attributes.
    let dump = image.beside("dump").display().to_string();
    must(fs::write(&dump, run_on_image(&image, "getfattr -R -h -d -m - @/")), "a dump");
    let copy = Image::from_script("ext4", 4096, make);
    run_ok(&["setfattr", "-h", "--restore", &dump, &copy.at("/")]);
    assert_eq!(
        run_on_image(&copy, "getfattr -R -h -d -m - @/"),
        must(fs::read_to_string(&dump), "the dump")
    );
    let by_kernel = LoopMount::new(&image.path, "ext4", "rw");
    assert_eq!(shell(by_kernel.path(), FACTS), shell(mount.path(), FACTS));
}

/// Files with names that dumps escape, or that a reader of dumps could take for something else.
const STRANGE_NAMES: &str = r"for name in ' lead' 'trail ' $'new\nline' 'a=b' 'back\slash' $'latin\xe9' $'esc\033[2J' '\101' '-dash' \
    '# file: a' 'über' '...' '..x' '\+12'; do echo x > ./$name; mkdir -p sub/$name; ln -s ../$name sub/$name/link; done";
const STRANGE_ATTRIBUTES: &str = r"i=0; find . -mindepth 1 -path ./lost+found -prune -o -print0 | sort -z | while IFS= read -r -d '' path; do
    i=$((i+1)); test -L $path || setfattr -n user.number -v $i $path; setfattr -h -n trusted.number -v $i $path
    test -L $path || setfattr -n $'user.a=b\\c\nd\xe9\\101 e' -v $'\\101\n\q$i\xff' $path; done";

#[test]
fn dumps_restore_the_attributes_of_files_with_strange_names() {
    private_mounts();
    let make = format!("IFS=; {STRANGE_NAMES}");
    let [ours, theirs, copy] = [(); 3].map(|()| Image::by_kernel(&make));
    for image in [&ours, &theirs] {
        let mount = LoopMount::new(&image.path, "ext4", "rw");
        shell(mount.path(), &format!("IFS=; {STRANGE_ATTRIBUTES}"));
    }
    for options in ["-R -d -m -", "-R -h -d -m - -e hex", "-R -h -d -m - -e text"] {
        let dump = ours.beside("dump").display().to_string();
        let option_list: Vec<&str> = options.split(' ').collect();
        let root = ours.at("/");
        let arguments = [&["getfattr"], &option_list[..], &[&root]].concat();
        must(fs::write(&dump, run_ok_bytes(&arguments)), "a dump");
        let restore = ["setfattr", "--restore", &dump];
        let link = if options.contains("-h") { &["-h"][..] } else { &[] };
        run_ok(&[&restore[..], link, &[&*copy.at("/")]].concat());
        // The kernel finds the same attributes, and the host's setfattr takes the same dump.
        const FACTS: &str =
            "getfattr -R -h -d -m - -e hex . | awk -v RS= '{ gsub(\"\\n\", \" \"); print }' | sort";
        let facts = |image: &Image, mode: &str, change: &str| {
            let mount = LoopMount::new(&image.path, "ext4", mode);
            shell(mount.path(), &format!("{change}\n{FACTS}"))
        };
        let by_setfattr = format!("setfattr {} --restore={dump}", link.concat());
        let expected = facts(&theirs, "rw", "");
        assert!(expected.matches("# file: ").count() >= 42, "{expected}");
        if options.contains("-h") {
            assert_eq!(facts(&copy, "ro", ""), expected, "{options}");
        }
        let again = Image::by_kernel(&make);
        assert_eq!(facts(&again, "rw", &by_setfattr), facts(&copy, "ro", ""), "{options}");
    }
    copy.check_by_e2fsck();
}

#[test]
fn paths_of_a_dump_stay_below_the_directory_that_is_named() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir -p top/dir other top/in; echo x > top/dir/file; echo x > other/file; ln -s ../other top/out
        ln -s /other top/absolute; ln -s ../../other/file top/dir/leaf; ln -s ../dir top/in/side; ln -s side/file top/in/leaf
        ln -s loop top/loop",
    );
    let dump = image.beside("dump").display().to_string();
    let restore = |paths: &[&str], status| {
        let text: Vec<String> =
            paths.iter().map(|path| format!("# file: {path}\nuser.x=\"{path}\"\n")).collect();
        must(fs::write(&dump, text.join("\n")), "a dump");
        run_with_status(&["setfattr", "--restore", &dump, &image.at("/top")], status).text()
    };
    let value =
        |path: &str| run_ok(&["getfattr", "--only-values", "-m", "user.x", &image.at(path)]);
    let refused =
        ["../other/file", "dir/../../other/file", "out/file", "absolute/file", "dir/leaf"];
    let text = restore(&refused, 1);
    assert_eq!(text.lines().count(), refused.len(), "{text}");
    assert_eq!(text.matches("the path in the dump contains ..").count(), 2, "{text}");
    assert_eq!(text.matches("leads out of the directory").count(), 3, "{text}");
    for (path, why) in
        [(" dir/file", "no such file"), ("dir/file/x", "not a directory"), ("loop", "too many")]
    {
        let text = restore(&[path], 1);
        assert!(text.contains(why), "{text}");
    }
    assert_eq!(value("/other/file") + &value("/other") + &value("/top/dir/file"), "");
    for path in ["dir/file", "/dir//./file", "in/side/file", "in/leaf"] {
        assert_eq!(restore(&[path], 0), "");
        assert_eq!(value("/top/dir/file"), path);
    }
    assert_eq!(restore(&["."], 0), "");
    assert_eq!(value("/top"), ".");
    image.check_by_e2fsck();
}

#[test]
fn attributes_of_f2fs_are_changed() {
    let image = Image::empty();
    must(must(fs::File::create(&image.path), "an image").set_len(64 << 20), "its size");
    run(Command::new("mkfs.f2fs").args(["-q", "-t", "0"]).arg(&image.path));
    run_ok(&["touch", &image.at("/a")]);
    for command in [
        "setfattr -n user.x -v y @/a",
        "chattr +A @/a",
        "truncate -s 3M @/a",
        "mknod @/n c 1 3",
        "touch -d 1970-01-01T00:00:05Z @/a",
    ] {
        assert_eq!(run_on_image(&image, command), "", "{command}");
    }
    assert_eq!(run_on_image(&image, "getfattr -d @/a"), "# file: a\nuser.x=\"y\"\n\n");
    let stat = run_ok(&["stat", &image.at("/a"), &image.at("/n")]);
    for fact in ["Size: 3145728", "1970-01-01 00:00:05", "no_access_time", "Device type: 1,3"] {
        assert!(stat.contains(fact), "{fact}: {stat}");
    }
    run(Command::new("fsck.f2fs").arg("--dry-run").arg(&image.path));
}

#[test]
fn attributes_that_no_file_system_of_linux_takes_are_refused() {
    let longest = format!("user.{}", "n".repeat(250));
    let longer = format!("{longest}n");
    let refused = [
        (longer.as_str(), "x", "the name has more than 255 bytes"),
        ("security.capability", "0x01000002", "no set of capabilities"),
        ("security.capability", "", "no set of capabilities"),
    ];
    for f2fs in [false, true] {
        let image = Image::empty();
        let script = match f2fs {
            true => "truncate -s 64M image; mkfs.f2fs -q -t 0 image",
            false => "truncate -s 16M image; mke2fs -q -t ext4 image",
        };
        shell(image.folder.path(), &format!("{script}; touch file"));
        run_ok(&["touch", &image.at("/a")]);
        run_ok(&["setfattr", "-n", &longest, "-v", "x", &image.at("/a")]);
        for (name, value, reason) in refused {
            let text =
                run_with_status(&["setfattr", "-n", name, "-v", value, &image.at("/a")], 1).text();
            assert!(text.contains(reason), "{name}: {text}");
            if !value.is_empty() {
                let host = format!("! setfattr -n {name} -v {value} file 2>&1");
                assert_ne!(shell(image.folder.path(), &host), "", "{name}");
            }
        }
        assert_eq!(run_ok(&["getfattr", &image.at("/a")]), format!("# file: a\n{longest}\n\n"));
    }
}

#[test]
fn owners_are_names_of_the_image() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir etc; echo 'ann:x:1001:5::/:' > etc/passwd; echo 'staff:x:50:' > etc/group; echo x > file",
    );
    let text = image.beside("text").display().to_string();
    must(fs::write(&text, "text"), "a file");
    run_ok(&["chown", "ann:staff", &image.at("/file")]);
    run_ok(&["put", "--owner", "ann", &text, &image.at("/put")]);
    run_ok(&["cp", "-a", "--owner", "ann", "--group", "staff", &text, &image.at("/copy")]);
    run_ok(&["mkdir", "--group", "staff", &image.at("/dir")]);
    run_ok(&["chown", ":root", &image.at("/put")]);
    let listed = run_ok(&["find", &image.at("/"), "-user", "ann"]);
    assert_eq!(sorted(&listed), ["/copy", "/file", "/put"]);
    let listed = run_ok(&["find", &image.at("/"), "-group", "50"]);
    assert_eq!(sorted(&listed), ["/copy", "/dir", "/file"]);
    assert_eq!(run_ok(&["find", &image.at("/"), "-group", "staff", "-type", "d"]), "/dir\n");
    run_ok(&["chown", "0:0", &image.at("/file")]);
    run_ok(&["chown", "ann:", &image.at("/file")]);
    assert_eq!(run_ok(&["find", &image.at("/"), "-user", "1001", "-group", "5"]), "/file\n");
    for call in [
        &["chown", "bob", &image.at("/file")][..],
        &["chown", "bob:", &image.at("/file")],
        &["put", "--owner", "bob", &text, &image.at("/x")],
    ] {
        let text = run_with_status(call, 1).text();
        let expected = "bob: is no user of the image, by its /etc/passwd; give the number; that of this host's user is $(id -u bob)";
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn links_and_special_files_are_changed_as_by_linux() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir dir; echo x > file; ln -s file link; ln -s dir/made relative; ln -s /dir/also absolute; ln -s loop loop
        mkfifo fifo; ln -s missing/file nowhere",
    );
    let refused = |arguments: &[&str], expected: &str| {
        let text = run_with_status(arguments, 1).text();
        assert!(text.contains(expected), "{arguments:?}: {text}");
    };
    refused(&["chattr", "+i", &image.at("/link")], "is a symbolic link, which has no flags");
    let flags = run_ok(&["lsattr", &image.at("/file")]);
    assert!(!flags.split(' ').next().unwrap().contains('i'), "{flags}");
    let only = "only files and directories can have user attributes";
    refused(&["setfattr", "-h", "-n", "user.x", &image.at("/link")], only);
    refused(&["setfattr", "-n", "user.x", &image.at("/fifo")], only);
    run_ok(&["setfattr", "-h", "-n", "security.x", &image.at("/link")]);
    run_ok(&["setfattr", "-n", "user.x", &image.at("/link")]);
    run_ok(&["touch", "-c", &image.at("/relative")]);
    run_ok(&["touch", &image.at("/relative")]);
    run_ok(&["truncate", "-s", "5", &image.at("/absolute")]);
    assert_eq!(run_ok(&["ls", &image.at("/dir")]), "also\nmade\n");
    refused(&["touch", &image.at("/loop")], "too many levels of symbolic links");
    refused(&["touch", &image.at("/nowhere")], "no such file or directory");
    let root = run_ok(&["stat", &format!("{}:<0x2>", image.path.display())]);
    assert!(root.contains("Inode: 2 "), "{root}");
    image.check_by_e2fsck();
}
