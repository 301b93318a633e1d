//! `bifolio put` and `cp` into an image, checked by copying the files out again, by e2fsck and by
//! the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::support::{Image, bifolio, facts, json, run_ok, run_with_status, shell};
use rustix::process::{Pid, Signal};
use testkit::command::output;
use testkit::{Denied, LoopMount, Mke2fs, deny, must, private_mounts, wait_until};

/// Creates a tree with files of all kinds.
const TREE: &str = "mkdir -p tree/d/e; cd tree; head -c 3000000 /dev/urandom > d/large
    truncate -s 20M sparse; printf x | dd of=sparse bs=1 seek=5M conv=notrunc 2>/dev/null
    : > empty; ln d/large hard; mkfifo fifo; mknod null c 1 3; ln fifo other; ln -s ../x d/link
    chmod 4755 d/large; chown 5:70000 d/large; chmod 2775 d/e; chown -h 9:9 d/link
    setfattr -n user.x -v y d; setfattr -n trusted.t -v u hard; setfacl -m u:5:r sparse
    setfacl -d -m u:7:rwx d/e; for i in $(seq 300); do echo $i > d/e/$i; done
    touch -d '2001-02-03 04:05:06.789' d/large d; touch -hd '2030-01-01' d/link";

/// Returns [`facts`] and times to the second, sizes, extended attributes and contents.
fn more_facts(folder: &Path) -> String {
    // Sorted, because the order of directories depends on the file system.
    let script = "find . -print0 | sort -z | xargs -0 getfattr -hd -m -
        find . -mindepth 1 -not -name lost+found -printf '%P %Ts ' \\( -type d -o -printf '%s' \\) \\
            -printf '\\n' | sort; find . -type f | sort | xargs -d '\\n' sha256sum";
    facts(folder) + &shell(folder, script)
}

fn import(format: &'static str, block_size: u32, options: &str) {
    let image = Image::empty();
    let folder = image.folder.path();
    shell(folder, TREE);
    let mut recipe = Mke2fs::new(format, block_size).with(options);
    recipe.size = (64 << 20).max(u64::from(block_size) * 4096);
    recipe.make(&image.path, None);
    let tree = image.beside("tree");
    let tree_contents = format!("{}/.", tree.display());
    run_ok(&["cp", "-a", &tree_contents, &image.at("/")]);
    // A copy over a copy changes nothing.
    run_ok(&["cp", "-a", &tree_contents, &image.at("/")]);
    image.check_by_e2fsck();
    let expected = more_facts(&tree);
    let out = image.beside("out");
    run_ok(&["cp", "-a", "--privileged", &image.at("/"), &out.display().to_string()]);
    shell(folder, "rmdir out/lost+found");
    assert!(more_facts(&out) == expected, "{format} {block_size}: see {}", out.display());
    let sparse = json(&["stat", "--json", &image.at("/sparse")]);
    assert!(sparse[0]["allocated"].as_u64().is_some_and(|bytes| bytes < 1 << 20), "{sparse}");
    if block_size <= 4096 {
        let mount = LoopMount::new(&image.path, format, "ro");
        let found = more_facts(mount.path()).replace("lost+found", "");
        for line in expected.lines() {
            assert!(found.contains(line), "{format} {block_size}, by the kernel: {line}");
        }
    }
}

#[test]
fn a_tree_copied_into_an_image_is_unchanged() {
    private_mounts();
    import("ext4", 1024, "");
    import("ext4", 4096, "-O ^has_journal");
    import("ext4", 65536, "");
    import("ext3", 1024, "");
}

#[test]
fn put_and_cp_understand_all_kinds_of_destinations() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir dir; echo old > file; chown 3:4 file; chmod 640 file",
    );
    let folder = image.folder.path();
    shell(folder, "echo new > new; chmod 711 new; mkdir tree; echo x > tree/x; mkfifo tree/pipe");
    let here = |name: &str| image.beside(name).display().to_string();
    run_ok(&["put", &here("new"), &image.at("/file")]);
    run_ok(&["put", &here("new"), &here("tree/x"), &image.at("/dir")]);
    run_ok(&["put", "-m", "u=rw,go=", "--owner", "8", &here("new"), &image.at("/private")]);
    shell(
        folder,
        &format!("seq 100000 | {} put - image:/numbers", bifolio().get_program().to_str().unwrap()),
    );
    assert_eq!(run_ok(&["cat", &image.at("/numbers")]).lines().count(), 100_000);
    run_ok(&["cp", "-r", &here("tree"), &image.at("/dir")]);
    run_ok(&["cp", "-r", &here("tree"), &image.at("/renamed")]);
    run_ok(&["cp", "-rT", &here("tree"), &image.at("/dir")]);
    for path in ["/dir/tree/x", "/renamed/x", "/dir/x"] {
        assert_eq!(run_ok(&["cat", &image.at(path)]), "x\n");
    }
    let left_out = run_with_status(&["cp", &here("tree"), &here("new"), &image.at("/dir")], 1);
    assert!(left_out.text().contains("`cp -r` and `cp -a` copy it"), "{}", left_out.text());
    let none = run_with_status(&["put", &here("none"), &here("new"), &image.at("/dir")], 1);
    assert!(none.text().contains("none: cannot copy: No such file"), "{}", none.text());
    run_with_status(&["put", "-", &image.at("/dir")], 2);
    let itself = run_with_status(&["cp", &here("image"), &image.at("/dir")], 1);
    assert!(itself.text().contains("is the destination image"), "{}", itself.text());
    image.check_by_e2fsck();
    run_ok(&["cp", "-a", &image.at("/"), &here("out")]);
    let facts = shell(&image.beside("out"), "find . -type f -printf '%P %m %U %G %s\\n'");
    for line in ["file 640 3 4 4", "dir/new 711 0 0 4", "private 600 8 0 4"] {
        assert!(facts.contains(line), "{line}: {facts}");
    }
    assert!(!facts.contains(".bifolio-"), "{facts}");
}

#[test]
fn write_errors_and_full_images_fail_the_command() {
    let image = Image::empty();
    Mke2fs::new("ext4", 4096).with("-O ^has_journal").make(&image.path, None);
    let folder = image.folder.path();
    shell(folder, "head -c 40000000 /dev/urandom > large; echo small > small");
    let script = format!(
        "trap '' XFSZ; ulimit -f 16384; status=0
        {} put large image:/ || status=$?; echo status $status",
        bifolio().get_program().to_str().unwrap()
    );
    let text = shell(folder, &format!("{{ {script}\n}} 2>&1"));
    assert!(text.contains("status 1\n") && !text.contains("panicked"), "{text}");

    let mut recipe = Mke2fs::new("ext4", 4096);
    recipe.size = 16 << 20;
    recipe.make(&image.path, None);
    let here = |name: &str| image.beside(name).display().to_string();
    let full = run_with_status(&["put", &here("large"), &here("small"), &image.at("/")], 1);
    assert!(full.text().contains("cannot write the copy: no space left"), "{}", full.text());
    image.check_by_e2fsck();
    let names = run_ok(&["find", &image.at("/"), "-type", "f"]);
    assert_eq!(names, "/small\n");
}

#[test]
fn files_that_do_not_fit_into_the_image_are_reported_once() {
    let image = Image::empty();
    let mut recipe = Mke2fs::new("ext4", 1024);
    recipe.size = 8 << 20;
    let folder = image.folder.path();
    shell(
        folder,
        "mkdir -p tree/sub; for i in $(seq 60); do head -c 300000 /dev/zero | tr '\\0' $((i % 10)) > tree/$i; \
         done; ln tree/60 tree/sub/link; tar -cf tree.tar -C tree .",
    );
    let here = |name: &str| image.beside(name).display().to_string();
    let files: Vec<String> = (1..=60).map(|number| here(&format!("tree/{number}"))).collect();
    let mut put: Vec<&str> =
        std::iter::once("put").chain(files.iter().map(String::as_str)).collect();
    let (root, tree, archive) = (image.at("/"), here("tree"), here("tree.tar"));
    put.push(&root);
    for arguments in [&["cp", "-a", &tree, &root][..], &["tar", &archive, &root], &put] {
        recipe.make(&image.path, None);
        let text = run_with_status(arguments, 1).text();
        let said: Vec<&str> = text.lines().filter(|line| line.starts_with("bifolio: ")).collect();
        assert_eq!(said.len(), 1, "{text}");
        assert!(text.contains(": is full: "), "{text}");
        let copied = run_ok(&["find", &image.at("/"), "-type", "f"]).lines().count();
        let names = if arguments[0] == "put" { 60 } else { 61 };
        let left_out = format!(" {} files and directories (", names - copied);
        assert!(copied > 0 && text.contains(&left_out), "{copied} copied: {text}");
        image.check_by_e2fsck();
    }
}

#[test]
fn deep_trees_are_copied_with_few_open_files() {
    let image = Image::empty();
    Mke2fs::new("ext4", 1024).make(&image.path, None);
    let folder = image.folder.path();
    // The kernel's limit of paths is 4095 bytes.
    shell(
        folder,
        "p=d; i=0; while [ $i -lt 1999 ]; do p=$p/d; i=$((i + 1)); done; mkdir -p $p
        for n in 1 3 100 3000 3999; do echo $n > $(echo $p | cut -c-$n)/file; done",
    );
    let program = bifolio();
    let program = program.get_program().to_str().unwrap();
    shell(folder, &format!("prlimit --nofile=20 {program} cp -a d image:/"));
    image.check_by_e2fsck();
    shell(folder, &format!("{program} cp -a image:/d out; diff -r d out"));
    assert_eq!(run_ok(&["find", &image.at("/d"), "-type", "f"]).lines().count(), 5);
}

#[test]
fn symbolic_links_on_the_command_line_have_the_meaning_of_cp() {
    let image = Image::empty();
    Mke2fs::new("ext4", 4096).make(&image.path, None);
    let folder = image.folder.path();
    shell(folder, "mkdir tree; echo x > tree/file; ln -s tree link; ln -s tree/file alias");
    let here = |name: &str| image.beside(name).display().to_string();
    let at = |name: &str| image.at(name);
    run_ok(&["cp", "-a", &here("link"), &here("alias"), &at("/")]);
    run_ok(&["cp", "-a", &here("link/"), &at("/followed")]);
    run_ok(&["cp", "-a", &here("link/."), &at("/contents")]);
    run_ok(&["cp", &here("alias"), &at("/file")]);
    let found = run_ok(&["find", &at("/"), "-type", "l"]);
    assert_eq!(found.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["/alias", "/link"]));
    for name in ["/file", "/followed/file", "/contents/file"] {
        assert_eq!(run_ok(&["cat", &at(name)]), "x\n", "{name}");
    }
}

#[test]
fn a_file_that_was_just_copied_is_not_replaced() {
    let image = Image::empty();
    Mke2fs::new("ext4", 4096).make(&image.path, None);
    let folder = image.folder.path();
    // The number of the first copy of x would be free for the next file, and y would become a link
    // to that.
    shell(folder, "mkdir 1 2 3; echo x > 1/x; echo other > 2/x; echo w > 2/w; ln 1/x 3/y");
    let here = |name: &str| image.beside(name).display().to_string();
    let sources = ["1/x", "2/x", "2/w", "3/y"].map(here);
    let [x, other, w, y] = sources.each_ref().map(String::as_str);
    let result = run_with_status(&["cp", "-a", x, other, w, y, &image.at("/")], 1);
    let message = "2/x: has the name of a file that was just copied, and was not copied";
    assert!(result.text().contains(message), "{}", result.text());
    for (name, contents) in [("/x", "x\n"), ("/w", "w\n"), ("/y", "x\n")] {
        assert_eq!(run_ok(&["cat", &image.at(name)]), contents, "{name}");
    }
    let number = |name: &str| json(&["stat", "--json", &image.at(name)])[0]["inode"].clone();
    assert_eq!(number("/x"), number("/y"));
    // Files of an earlier copy are replaced.
    run_ok(&["cp", other, &image.at("/")]);
    assert_eq!(run_ok(&["cat", &image.at("/x")]), "other\n");
    image.check_by_e2fsck();
}

#[test]
fn a_replaced_file_keeps_its_attributes_and_access_control_list() {
    let image = Image::empty();
    Mke2fs::new("ext4", 4096).make(&image.path, None);
    shell(
        image.folder.path(),
        "echo new > new; mkdir tree; echo old > tree/file; chown 7:8 tree/file; chmod 640 tree/file
        setfattr -n user.x -v y tree/file; setfattr -n security.selinux -v label tree/file
        setfacl -m u:5:rw tree/file; touch tree/capable; setcap cap_chown+ep tree/capable",
    );
    let [new, tree] = ["new", "tree"].map(|name| image.beside(name).display().to_string());
    run_ok(&["cp", "-a", &tree, &image.at("/")]);
    let before = run_ok(&["stat", "--json", &image.at("/tree/file")]);
    for name in ["file", "capable"] {
        run_ok(&["put", &new, &image.at(&format!("/tree/{name}"))]);
    }
    let out = image.beside("out").display().to_string();
    run_ok(&["cp", "-a", "--privileged", &image.at("/tree"), &out]);
    let found = shell(
        image.folder.path(),
        "getfacl -ncp out/file; getfattr -d -m - out/file; stat -c %u:%g:%a out/*; cat out/*",
    );
    for fact in ["user:5:rw-", "group::r--", "selinux=\"label\"", "user.x=\"y\"", "7:8:660"] {
        assert!(found.contains(fact), "{fact}: {found}\n{before}");
    }
    assert!(found.ends_with("new\nnew\n"), "{found}");
    assert_eq!(shell(image.folder.path(), "getcap out/capable"), "");
    image.check_by_e2fsck();
}

#[test]
fn an_interrupted_stream_does_not_replace_a_file_and_other_signals_have_no_effect() {
    let image = Image::from_script("ext4", 4096, "echo old > file");
    for ending in [Signal::INT, Signal::QUIT, Signal::XCPU] {
        let mut call = bifolio();
        call.args(["put", "-", &image.at("/file")]).stdin(Stdio::piped());
        let mut child = must(call.spawn(), "bifolio");
        let mut input = child.stdin.take().expect("a pipe");
        must(input.write_all(b"partial\n"), "the input");
        // It has read the data, and waits for more.
        let waits = |call: &str| call.starts_with(&format!("{} ", libc::SYS_ppoll));
        let current = format!("/proc/{}/syscall", child.id());
        wait_until("a wait", || fs::read_to_string(&current).is_ok_and(|call| waits(&call)));
        let process = Pid::from_child(&child);
        for ignored in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::PROF, Signal::XFSZ] {
            must(rustix::process::kill_process(process, ignored), "the signal");
        }
        must(rustix::process::kill_process(process, ending), "the signal");
        assert_eq!(must(child.wait(), "waiting").code(), Some(130), "{ending:?}");
        drop(input);
        assert_eq!(run_ok(&["cat", &image.at("/file")]), "old\n");
        assert!(!run_ok(&["ls", &image.at("/")]).contains("partial"));
    }
    image.check_by_e2fsck();
}

#[test]
fn owners_are_set_on_copies_with_all_attributes() {
    let image = Image::from_script("ext4", 4096, ":");
    shell(
        image.folder.path(),
        "mkdir tree; echo x > tree/file; ln -s x tree/link; chown -Rh 5:6 tree",
    );
    let tree = image.beside("tree").display().to_string();
    run_ok(&["cp", "-a", "--owner", "0", &tree, &image.at("/")]);
    for path in ["/tree", "/tree/file", "/tree/link"] {
        let found = json(&["stat", "--json", &image.at(path)]);
        assert_eq!((found[0]["uid"].as_u64(), found[0]["gid"].as_u64()), (Some(0), Some(6)));
    }
}

#[test]
fn a_path_that_ends_in_a_slash_is_no_name_of_a_file() {
    let image = Image::from_script("ext4", 4096, ":");
    shell(image.folder.path(), "echo x > file; mkdir tree");
    let [file, tree] = ["file", "tree"].map(|name| image.beside(name).display().to_string());
    for command in ["put", "cp"] {
        run_with_status(&[command, &file, &image.at("/missing/")], 1);
    }
    run_ok(&["cp", "-r", &tree, &image.at("/missing/")]);
    assert_eq!(run_ok(&["ls", &image.at("/")]), "lost+found\nmissing\n");
}

#[test]
fn attributes_that_cannot_be_read_are_counted_and_the_files_are_copied() {
    let image = Image::empty();
    Mke2fs::new("ext4", 4096).make(&image.path, None);
    shell(
        image.folder.path(),
        "mkdir tree; cd tree; echo a > a; echo b > b; ln -s a link; setfattr -n user.k -v 1 a; setfattr -n user.k -v 1 b
        setfattr -n user.k -v 1 .; setfattr -h -n trusted.k -v 1 link; setfacl -m u:5:r a",
    );
    let tree = image.beside("tree").display().to_string();
    for (number, (calls, errno, lost)) in [
        (
            &[libc::SYS_fgetxattr, libc::SYS_lgetxattr][..],
            libc::EOPNOTSUPP,
            "the attribute user.k of 3 files",
        ),
        (&[libc::SYS_fgetxattr], libc::EPERM, "the attribute system.posix_acl_access of 1 file"),
        (&[libc::SYS_fgetxattr], libc::ENODATA, "the attribute user.k of 3 files"),
        (&[libc::SYS_lgetxattr], libc::EACCES, "the attribute trusted.k of 1 file"),
        (
            &[libc::SYS_flistxattr, libc::SYS_llistxattr],
            libc::E2BIG,
            "the list of extended attributes of 4 files",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let to = image.at(&format!("/{number}"));
        let mut call = bifolio();
        // The filter of the command itself would end it at calls that it does not expect to be
        // refused.
        call.args(["cp", "-a", &tree, &to]);
        let refusals: Vec<_> =
            calls.iter().map(|&call| Denied { call, first_argument: None, errno }).collect();
        deny(&mut call, &refusals);
        let printed = output(&mut call);
        let text = printed.text();
        assert!(text.contains(&format!("warning: {lost} w")), "{lost}: {text}");
        assert_eq!(printed.status.code(), Some(0), "{text}");
        let at = |name: &str| format!("{to}/{name}");
        assert_eq!(run_ok(&["cat", &at("a"), &at("b"), &at("link")]), "a\nb\na\n");
    }
    image.check_by_e2fsck();
}

#[test]
fn directories_do_not_replace_links_to_directories() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir -p usr/lib usr/more; ln -s usr/lib lib; ln -s ../more usr/lib/more; echo l > usr/lib/libc
        mkdir -p dest outside; ln -s ../outside dest/lib",
    );
    shell(
        image.folder.path(),
        "mkdir -p k/lib/more; echo m > k/lib/m; echo n > k/lib/more/n; echo o > k/o",
    );
    let tree = image.beside("k/.").display().to_string();
    for option in ["-a", "-r"] {
        let text = run_with_status(&["cp", option, &tree, &image.at("/")], 1).text();
        let expected = "k/./lib: was not copied: lib is a symbolic link to a directory in the image; use --keep-directory-symlink";
        assert!(text.contains(expected), "{text}");
        assert_eq!(run_ok(&["cat", &image.at("/o"), &image.at("/lib/libc")]), "o\nl\n");
        let text = run_with_status(
            &["cp", option, "--keep-directory-symlink", &tree, &image.at("/dest")],
            1,
        )
        .text();
        assert!(text.contains("leads out of the destination"), "{text}");
    }
    run_ok(&["cp", "-a", "--keep-directory-symlink", &tree, &image.at("/")]);
    assert_eq!(run_ok(&["cat", &image.at("/usr/lib/m"), &image.at("/usr/more/n")]), "m\nn\n");
    assert_eq!(run_ok(&["ls", &image.at("/outside")]), "");
    assert!(run_ok(&["stat", &image.at("/lib")]).contains("symbolic link"));
    image.check_by_e2fsck();
}

/// All facts that copies from image to image preserve.
const ALL_FACTS: &str = "cd tree; find . -printf '%P %M %U %G %l %s %n %T@\\n' | sort; stat -c '%n %b %t %T' sparse null
    find . -type f -print0 | sort -z | xargs -0 sha256sum; getfattr -R -h -d -m - -e hex . | sort; getfacl -np file dir";

#[test]
fn trees_are_copied_from_image_to_image_with_all_attributes() {
    private_mounts();
    let from = Image::by_kernel(
        "mkdir tree; cd tree; mkdir -m 750 dir dir/in; echo x > file; ln file dir/hard; ln -s ../file dir/in/link
        mknod null c 1 3; mkfifo pipe; seq 300000 > dir/in/large; truncate -s 3M sparse
        printf x | dd of=sparse bs=1 seek=1M conv=notrunc status=none; chown 70000:80000 dir/in/large; chown -h 5:6 dir/in/link
        chmod 6755 dir/in/large; setfattr -n user.x -v y file; setfattr -n security.selinux -v l dir
        setfacl -m u:5:rw file; setfacl -d -m g:7:rx dir; touch -d '1969-12-31 23:00:00.5' file dir/in dir .",
    );
    let expected = {
        let mount = LoopMount::new(&from.path, "ext4", "ro");
        shell(mount.path(), ALL_FACTS)
    };
    let between = Image::empty();
    must(must(fs::File::create(&between.path), "an image").set_len(128 << 20), "its size");
    shell(between.folder.path(), "mkfs.f2fs -q -t 0 image");
    let to = Image::empty();
    Mke2fs::new("ext4", 4096).make(&to.path, None);
    for (source, destination) in [
        (from.at("/tree"), between.at("/")),
        (between.at("/tree/."), between.at("/copy")),
        (between.at("/copy"), to.at("/tree")),
    ] {
        let printed = output(bifolio().args(["cp", "-a", &source, &destination]));
        assert_eq!((printed.text().as_str(), printed.status.code()), ("", Some(0)), "{source}");
    }
    to.check_by_e2fsck();
    shell(between.folder.path(), "fsck.f2fs --dry-run image");
    let mount = LoopMount::new(&to.path, "ext4", "ro");
    assert_eq!(shell(mount.path(), ALL_FACTS), expected);
}

#[test]
fn times_out_of_range_and_damaged_attributes_are_named() {
    let image = Image::from_script(
        "ext4",
        1024,
        "echo a > a; setfattr -n user.big -v $(head -c 800 /dev/zero | tr '\\0' v) a; echo b > b",
    );
    // 32 bits of seconds in inodes of 128 bytes.
    let script = "truncate -s 8M old; mke2fs -q -t ext4 -I 128 old 2>/dev/null; echo late > late; touch -d 2100-01-01 late
        block=$(debugfs -R 'stat /a' image 2>/dev/null | sed -n 's/.*File ACL: \\([0-9]*\\).*/\\1/p')
        printf '\\377\\377\\377' | dd of=image bs=1 seek=$((block * 1024)) conv=notrunc status=none; mkdir out";
    shell(image.folder.path(), script);
    let [old, late, out] =
        ["old", "late", "out"].map(|name| image.beside(name).display().to_string());
    let warned = |arguments: &[&str], expected: &str, status: i32| {
        let printed = output(bifolio().args(arguments));
        let text = printed.text();
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert_eq!(printed.status.code(), Some(status), "{arguments:?}: {text}");
    };
    warned(&["cp", "-a", &late, &format!("{old}:/")], "a time of 1 file was not copied", 0);
    // The file itself is copied, in all directions, and can be replaced.
    let damaged = "corrupt extended attribute block";
    warned(&["cp", "-a", &image.at("/a"), &format!("{old}:/")], damaged, 0);
    warned(&["cp", "-a", &image.at("/a"), &out], damaged, 1);
    // A listing shows all but whether there is an access control list.
    for arguments in [&["ls", "-l", &image.at("/a")][..], &["find", &image.at("/a"), "-ls"]] {
        warned(arguments, "-rw-r--r--? ", 1);
    }
    warned(&["put", &late, &image.at("/a")], damaged, 0);
    assert_eq!(run_ok(&["cat", &format!("{old}:/a")]), "a\n");
    assert_eq!(must(fs::read_to_string(image.beside("out/a")), "the copy"), "a\n");
    assert_eq!(run_ok(&["cat", &image.at("/a")]), "late\n");
}

#[test]
fn copies_within_and_between_images_keep_to_their_options() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir -p dir/sub into usr/lib k/lib; ln -s usr/lib lib; echo a > dir/a; echo m > k/lib/m; chmod 600 dir/a; ln dir/a hard",
    );
    let other = Image::from_script("ext4", 1024, "echo b > b; chown 7:8 b; ln -s b link");
    let at = |path: &str| image.at(path);
    let fails = |arguments: &[&str], status: i32, expected: &str| {
        let text = run_with_status(arguments, status).text();
        assert!(text.contains(expected), "{arguments:?}: {text}");
    };
    // Single files, with the permissions, through a link.
    run_ok(&["cp", &other.at("/link"), &at("/dir/a"), &at("/into")]);
    assert_eq!(run_ok(&["cat", &at("/into/link"), &at("/into/a")]), "b\na\n");
    assert!(run_ok(&["stat", &at("/into/a")]).contains("0600/"));
    assert!(run_ok(&["stat", &at("/into/link")]).contains("Uid: 0 "));
    run_ok(&["cp", "--owner", "5", &other.at("/b"), &at("/new")]);
    assert!(run_ok(&["stat", &at("/new")]).contains("Uid: 5 "));
    // Into itself, over itself, and of a directory without -r.
    fails(&["cp", "-r", &at("/dir"), &at("/dir/sub")], 1, "was not copied into itself");
    assert_eq!(run_ok(&["ls", &at("/dir/sub/dir")]), "a\n");
    fails(&["cp", &at("/dir/a"), &at("/hard")], 1, "is the same file");
    fails(&["cp", &at("/dir"), &at("/into")], 1, "is a directory");
    fails(&["cp", &at("/none"), &at("/into")], 1, "/none: no such file");
    // Links to directories, and sources of both sorts.
    fails(&["cp", "-a", &at("/k/."), &at("/")], 1, "use --keep-directory-symlink");
    run_ok(&["cp", "-a", "--keep-directory-symlink", &at("/k/."), &at("/")]);
    assert_eq!(run_ok(&["cat", &at("/usr/lib/m")]), "m\n");
    let host = image.beside("image").display().to_string();
    fails(&["cp", &host, &other.at("/b"), &at("/into")], 2, "with two commands");
    image.check_by_e2fsck();
    // From a partition to a whole image, and to a partition.
    let folder = image.folder.path();
    shell(
        folder,
        &format!(
            "truncate -s 80M disk; printf 'start=2048\\n' | sfdisk -q disk; dd if={} of=disk bs=1M seek=1 conv=notrunc status=none",
            other.path.display()
        ),
    );
    let disk = |path: &str| format!("{}:{path}", image.beside("disk").display());
    run_ok(&["cp", "-a", "--source-partition", "1", &disk("/b"), &at("/from-disk")]);
    assert!(run_ok(&["stat", &at("/from-disk")]).contains("Uid: 7 "));
    run_ok(&["cp", "--partition", "1", "--source-offset", "0", &at("/dir/a"), &disk("/a")]);
    assert_eq!(run_ok(&["cat", "--partition", "1", &disk("/a")]), "a\n");
}

#[test]
fn two_file_systems_of_one_disk_are_not_copied_between() {
    let image = Image::from_script("ext4", 4096, "echo file > file");
    shell(
        image.folder.path(),
        "truncate -s 160M disk; printf 'start=2048,size=131072\nstart=150000\n' | sfdisk -q disk
        for sector in 2048 150000; do dd if=image of=disk bs=512 seek=$sector conv=notrunc status=none; done
        ln disk hard; ln -s disk symbolic; cp disk before",
    );
    let at = |name: &str, path: &str| format!("{}:{path}", image.beside(name).display());
    let refused = |arguments: &[&str], source: &str| {
        let text =
            run_with_status(&[&["cp"], arguments, &[source, &at("disk", "/copy")]].concat(), 1)
                .text();
        assert!(text.contains("has bytes of the destination's image"), "{source}: {text}");
        shell(image.folder.path(), "cmp disk before");
    };
    let between = ["--source-partition", "1", "--partition", "2"];
    for name in ["disk", "hard", "symbolic"] {
        refused(&between, &at(name, "/file"));
    }
    // The same partition by its offset.
    refused(&["--source-offset", "1048576", "--partition", "1"], &at("disk", "/file"));
    // Loop devices: the destination's partition, the other one, and the whole disk.
    let attach = |arguments: &str| {
        let name = shell(image.folder.path(), &format!("losetup -f --show {arguments} disk"));
        name.trim().to_owned()
    };
    let loops = [
        attach("-o 76800000"),
        attach("-o 76800000"),
        attach("-o 1048576 --sizelimit 67108864"),
        attach(""),
    ];
    let [two, two_again, one, whole] = &loops;
    let copies = std::panic::catch_unwind(|| {
        let file = |device: &str| format!("{device}:/file");
        let copy = |arguments: &[&str], source: &str, destination: &str, status| {
            let destination = format!("{destination}:/copy");
            let all = [&["cp"], arguments, &[source, &destination]].concat();
            let text = run_with_status(&all, status).text();
            assert_eq!(text.contains("has bytes of"), status == 1, "{all:?}: {text}");
        };
        copy(&[], &file(two_again), two, 1);
        copy(&["--source-partition", "2"], &file(whole), two, 1);
        copy(&["--source-offset", "76800000"], &file(whole), two, 1);
        copy(&["--source-partition", "2"], &at("disk", "/file"), two, 1);
        shell(image.folder.path(), "cmp disk before");
        copy(&[], &file(one), two, 0);
        copy(&["--source-offset", "0", "--offset", "76800000"], &file(one), whole, 0);
        copy(&[], &file(two), two, 0);
    });
    for device in &loops {
        shell(image.folder.path(), &format!("losetup -d {device}"));
    }
    copies.unwrap();
    // Within one file system, by all its names.
    for name in ["disk", "hard", "symbolic"] {
        let [source, copy] = [at(name, "/file"), at("disk", &format!("/{name}"))];
        run_ok(&["cp", "--partition", "1", &source, &copy]);
    }
}

#[test]
fn an_incomplete_image_is_copied_to_a_complete_one() {
    let cut = Image::from_script("ext4", 4096, "echo x > file");
    let good = Image::from_script("ext4", 4096, "");
    let bytes = must(fs::metadata(&cut.path), "the image").len();
    let file = must(fs::OpenOptions::new().write(true).open(&cut.path), "the image");
    must(file.set_len(bytes - (1 << 20)), "a shorter image");
    let copy = ["cp", "-a", "--incomplete", &cut.at("/file"), &good.at("/")];
    let said = run_with_status(&copy, 0).text();
    let warning = format!("bifolio: warning: {}: the image is incomplete: ", cut.path.display());
    assert!(said.starts_with(&warning) && said.lines().count() == 1, "{said}");
    assert_eq!(run_ok(&["cat", &good.at("/file")]), "x\n");
    run_ok(&[
        "cp",
        "-a",
        "--no-recovery",
        &good.at("/file"),
        &cut.beside("out").display().to_string(),
    ]);
    // The destination must be complete.
    let refused = ["cp", "-a", "--incomplete", &good.at("/file"), &cut.at("/copy")];
    assert_eq!(output(bifolio().args(refused)).status.code(), Some(1));
    let same = ["cp", "-a", "--incomplete", &good.at("/file"), &good.at("/copy")];
    assert_eq!(output(bifolio().args(same)).status.code(), Some(2));
    good.check_by_e2fsck();
}
