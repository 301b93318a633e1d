//! `bifolio tar`, compared with GNU tar and with the sources of the archives.

mod crafted;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::support::listed::memory;
use crate::support::{Image, bifolio, json, run_ok, run_with_status, shell};
use testkit::command::{output, run};
use testkit::{LoopMount, Mke2fs, must, private_mounts};

const SOURCE: &str = "mkdir -p dir/sub closed deep/er/and/deeper; echo file > file; : > empty
    ln file dir/hard; ln file dir/sub/harder; ln -s ../file dir/symbolic; ln -s nowhere dangling
    mknod device b 7 300; mknod character c 1 3; mkfifo pipe; chmod 640 pipe
    printf head > sparse; truncate -s 3M sparse; printf middle | dd of=sparse bs=1 seek=2M conv=notrunc status=none
    truncate -s 70000 hole; for i in $(seq 60); do printf x | dd of=pieces bs=1 seek=${i}0000 conv=notrunc status=none; done
    seq 300000 > big; touch -d '1969-01-01 00:00:00.25' old; touch -d '2040-02-03 04:05:06.789' later
    name=$(printf 'long%.0s' $(seq 60)); mkdir -p $name/$name; echo long > $name/$name/$name
    ln -s $name/$name/$name/$name symlong; ln $name/$name/$name linklong
    chmod 4711 big; chmod 2775 dir; chmod 1777 dir/sub; chown 12:34 file; chown 70000:3000000000 big
    chown -h 5:6 dangling; setfattr -n user.text -v value file; setfattr -n user.binary -v 0x0a3d000a31 dir
    setfattr -n trusted.deep -v x closed; setfattr -n security.other -v 0x0a0a empty
    chmod 500 closed; touch -d '2001-02-03' dir/sub dir deep .";

/// The exit status of a command that a signal has ended.
const INTERRUPTED: i32 = 130;

/// Prints all facts that an archive preserves.
const FACTS: &str = "find . -mindepth 1 -path ./lost+found -prune \
        -o -type d -printf '%P %M %U %G %T@\\n' -o -printf '%P %M %U %G %l %s %n %T@\\n' | sort
    find . -path ./lost+found -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
    find . -path ./lost+found -prune -o \\( -type b -o -type c \\) -printf '%P ' -exec stat -c '%t %T' {} \\; | sort
    getfattr -R -P -h -d -m - -e hex . | awk -v RS= '{ gsub(\"\\n\", \" \"); print }' | sort";

fn empty_image(block_size: u32) -> Image {
    let image = Image::empty();
    let mut recipe = Mke2fs::new("ext4", block_size);
    recipe.size = (64 << 20).max(u64::from(block_size) * 4096);
    recipe.make(&image.path, None);
    image
}

#[test]
fn archives_of_all_formats_are_unpacked_completely() {
    private_mounts();
    let image = Image::by_kernel("mkdir source");
    let mount = LoopMount::new(&image.path, "ext4", "rw");
    let source = mount.path().join("source");
    shell(&source, SOURCE);
    let everything = shell(&source, FACTS);
    assert!(everything.contains("0x0a3d000a31") && everything.contains("long"), "{everything}");
    let forms = [
        ("pax", "--format=pax --xattrs --xattrs-include='*'"),
        ("sparse pax 1.0", "--format=pax --xattrs --xattrs-include='*' --sparse"),
        (
            "sparse pax 0.1",
            "--format=pax --xattrs --xattrs-include='*' --sparse --sparse-version=0.1",
        ),
        (
            "sparse pax 0.0",
            "--format=pax --xattrs --xattrs-include='*' --sparse --sparse-version=0.0",
        ),
        ("gnu", "--format=gnu"),
        ("sparse gnu", "--format=gnu --sparse"),
    ];
    for (form, options) in forms {
        let into = empty_image(4096);
        let archive = into.beside("archive.tar");
        shell(&source, &format!("tar {options} -cf {} .", archive.display()));
        // The result of GNU tar is the expected one, because only pax archives store fractions of
        // seconds.
        let unpacked = mount.path().join("unpacked");
        must(fs::create_dir(&unpacked), "a folder");
        shell(&unpacked, &format!("tar --xattrs --xattrs-include='*' -xpf {}", archive.display()));
        let expected = shell(&unpacked, FACTS);
        if form.contains("pax") {
            assert_eq!(expected, everything, "{form}: GNU tar");
        }
        shell(mount.path(), "rm -rf unpacked");
        run_ok(&["tar", &archive.display().to_string(), &into.at("/")]);
        into.check_by_e2fsck();
        let by_kernel = LoopMount::new(&into.path, "ext4", "ro");
        assert_eq!(shell(by_kernel.path(), FACTS), expected, "{form}");
        let blocks = |name: &str| shell(by_kernel.path(), &format!("stat -c %b {name}"));
        if form.contains("sparse") {
            assert_eq!((blocks("hole").trim(), blocks("sparse").trim()), ("0", "16"), "{form}");
        }
    }
}

#[test]
fn archives_are_read_from_pipes_and_replace_existing_files() {
    let image = empty_image(1024);
    let folder = image.folder.path();
    shell(
        folder,
        "mkdir -p tree/top/in; echo new > tree/top/in/file; echo 1 > tree/top/first; chmod 750 tree/top",
    );
    let at = image.at("/");
    shell(folder, "mkdir old; echo old > old/file; : > old/kept; ln -s / old/link");
    run_ok(&["mkdir", &image.at("/to")]);
    run_ok(&["cp", "-a", &image.beside("old").display().to_string(), &image.at("/to/in")]);
    let program = env!("CARGO_BIN_EXE_bifolio");
    shell(
        folder,
        &format!("tar -C tree -c top | {program} tar --strip-components 1 - {}", image.at("/to")),
    );
    assert_eq!(run_ok(&["cat", &image.at("/to/in/file"), &image.at("/to/first")]), "new\n1\n");
    assert_eq!(run_ok(&["ls", &image.at("/to/in")]), "file\nkept\nlink\n");
    // Symbolic links in the image are not followed, and no file is created outside of the
    // directory.
    shell(
        folder,
        "mkdir -p evil/link; echo x > evil/link/file; tar -C evil -cf evil.tar link/file",
    );
    let evil = image.beside("evil.tar").display().to_string();
    let refused = run_with_status(&["tar", &evil, &image.at("/to/in")], 1);
    assert!(refused.text().contains("link/file"), "{}", refused.text());
    shell(
        folder,
        "echo y > evil/other; tar -P -cf dots.tar -C evil/link ../link/file -C .. other; tar -P -cf absolute.tar $PWD/evil/link/file",
    );
    let dots = image.beside("dots.tar").display().to_string();
    let refused = run_with_status(&["tar", &dots, &at], 1);
    assert!(refused.text().contains("name contains .."), "{}", refused.text());
    assert_eq!(run_ok(&["cat", &image.at("/other")]), "y\n", "the rest is unpacked");
    run_ok(&["tar", &image.beside("absolute.tar").display().to_string(), &image.at("/to")]);
    let inside = format!("/to{}", image.beside("evil/link/file").display());
    assert_eq!(run_ok(&["cat", &image.at(&inside)]), "x\n");
    image.check_by_e2fsck();
}

#[test]
fn invalid_and_truncated_archives_are_refused_with_a_reason() {
    let image = empty_image(1024);
    let folder = image.folder.path();
    shell(
        folder,
        "mkdir tree; seq 99999 > tree/numbers; echo 1 > tree/a; tar -C tree -cf good.tar a numbers",
    );
    shell(
        folder,
        "gzip -k good.tar; head -c 100000 good.tar > cut.tar; head -c 700 good.tar > short.tar
        head -c 5000 /dev/urandom > noise.tar; echo PK > tiny.tar; : > empty.tar; cp good.tar bad.tar
        printf 9 | dd of=bad.tar bs=1 seek=1030 conv=notrunc status=none",
    );
    let unpack = |name: &str, status| {
        let archive = image.beside(name).display().to_string();
        run_with_status(&["tar", &archive, &image.at("/")], status).text()
    };
    let says = |name: &str, what: &str| {
        let text = unpack(name, 1);
        assert!(text.contains(what) && text.contains(name), "{name}: {text}");
    };
    says("good.tar.gz", "is compressed (gzip)");
    says("noise.tar", "not a tar archive");
    says("tiny.tar", "not a tar archive");
    says("none.tar", "No such file");
    says("short.tar", "cannot read the rest");
    says("bad.tar", "checksum");
    says("empty.tar", "cannot read: it is empty, and no tar archive");
    let pipe = format!("false | {} tar - {}", env!("CARGO_BIN_EXE_bifolio"), image.at("/"));
    let piped = output(std::process::Command::new("sh").arg("-c").arg(pipe));
    assert_eq!(piped.status.code(), Some(1), "{}", piped.text());
    assert!(piped.text().contains("standard input: cannot read: it is empty"), "{}", piped.text());
    says("cut.tar", "cannot read the rest");
    // Members before the truncation are unpacked, and the truncated member is not.
    assert_eq!(run_ok(&["ls", &image.at("/")]), "a\nlost+found\n");
    assert_eq!(unpack("good.tar", 0), "");
    shell(folder, "head -c 1024 good.tar > member.tar; head -c 1024 /dev/zero > members.tar");
    assert!(unpack("member.tar", 0).contains("ends at byte 1024 without"));
    assert_eq!(unpack("members.tar", 0), "", "an archive without members");
    assert_eq!(run_ok(&["cat", &image.at("/numbers")]), shell(folder, "cat tree/numbers"));
    let file = run_with_status(
        &["tar", &image.beside("good.tar").display().to_string(), &image.at("/a")],
        1,
    );
    assert!(file.text().contains("ot a directory"), "{}", file.text());
    image.check_by_e2fsck();
}

#[test]
fn the_last_of_two_members_for_a_directory_is_used() {
    let image = empty_image(1024);
    let script =
        "mkdir d; echo x > d/file; chmod 700 d; touch -d '2001-01-01' d; tar -cf ../twice.tar d
        chmod 751 d; chown 5:6 d; touch -d '2002-02-02' d; tar --no-recursion -rf ../twice.tar d";
    let source = image.beside("source");
    must(fs::create_dir(&source), "source");
    shell(&source, script);
    run_ok(&["tar", &image.beside("twice.tar").display().to_string(), &image.at("/")]);
    let stat = shell(image.folder.path(), "debugfs -R 'stat /d' image 2> debugfs.log");
    assert!(stat.contains("Mode:  0751"), "{stat}");
    assert!(stat.contains("User:     5   Group:     6"), "{stat}");
    assert!(stat.contains("2002"), "{stat}");
    image.check_by_e2fsck();
}

#[test]
fn members_of_the_same_directories_share_the_memory_of_global_attributes() {
    let image = empty_image(1024);
    let folder = image.folder.path();
    // 2 MB with 4,000 members, each of which has 60 kB of attributes.
    let script = "mkdir a b; for i in $(seq 2000); do echo a; echo b; done > list
        value=$(head -c 60000 /dev/zero | tr '\\0' v)
        tar --format=pax --no-recursion --pax-option=SCHILY.xattr.user.x=$value,delete=?time \
            -cf same.tar -T list";
    shell(folder, script);
    let archive = must(fs::read(image.beside("same.tar")), "the archive");
    let mut call = bifolio();
    call.args(["tar", "-", &image.at("/")]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = must(call.spawn(), "tar");
    let mut input = child.stdin.take().expect("its input");
    must(input.write_all(&archive), "the archive");
    // All but the bytes in the pipe is read.
    let memory = memory(child.id()).expect("its memory");
    drop(input);
    let result = must(child.wait_with_output(), "tar");
    // The attributes do not fit into the image. Each directory is reported once.
    let errors = String::from_utf8_lossy(&result.stderr);
    assert!(errors.contains("the attribute user.x of 2 files were not copied"), "{errors}");
    assert!(memory < 48 << 20, "{} MiB", memory >> 20);
    image.check_by_e2fsck();
}

#[test]
fn warnings_and_errors_escape_the_names_of_members() {
    let image = empty_image(1024);
    let archive = image.beside("archive.tar").display().to_string();
    let archived = |name: &str, options: &str| {
        let script = format!(
            "mkdir tree; cd tree; touch $'{name}'; tar -P --format=pax {options} -cf ../archive.tar $'{name}'; rm -r ../tree"
        );
        shell(image.folder.path(), &script);
    };
    archived(r"a\033[2J\nb", r"--pax-option=$'SUN.a\033[2Jb':=x");
    let warned = output(bifolio().args(["tar", &archive, &image.at("/")]));
    let text = String::from_utf8_lossy(&warned.stderr).into_owned();
    let expected = r"SUN.a\033[2Jb of 1 file was not copied, the first is a\033[2J\nb: ";
    assert!(text.contains(expected), "{text:?}");
    assert!(text.trim_end().chars().all(|char| !char.is_control()), "{text:?}");
    assert!(warned.status.success(), "{text:?}");
    archived(r"a\033[2J\nb", "--transform='s,^,../,'");
    let refused = run_with_status(&["tar", &archive, &image.at("/")], 1).text();
    assert!(refused.contains(r"../a\033[2J\nb: was not unpacked"), "{refused:?}");
    assert!(!refused.contains('\u{1b}'), "{refused:?}");
}

#[test]
fn damaged_archives_leave_a_consistent_image() {
    let image = empty_image(1024);
    let folder = image.folder.path();
    shell(folder, "mkdir tree; cd tree; echo 1 > a; ln a b; ln -s a c; truncate -s 90000 d; echo x >> d; setfattr -n user.a -v 1 a
        tar --format=pax --sparse --xattrs -cf ../all.tar .");
    let valid = must(fs::read(image.beside("all.tar")), "the archive");
    let changed = image.beside("changed.tar");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..60 {
        let mut bytes = valid.clone();
        for _ in 0..=round % 4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 24) as u8;
            // So that most changes get past the checksum of their header.
            let header = at / 512 * 512;
            let sum: u32 = bytes[header..header + 512]
                .iter()
                .enumerate()
                .map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { u32::from(byte) })
                .sum();
            bytes[header + 148..header + 155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        }
        must(fs::write(&changed, &bytes), "an archive");
        let result =
            output(bifolio().args(["tar", &changed.display().to_string(), &image.at("/")]));
        assert!(matches!(result.status.code(), Some(0 | 1)), "{round}: {}", result.text());
    }
    image.check_by_e2fsck();
    run(bifolio().args(["check", &image.at("/")]));
}

#[test]
fn members_replace_files_of_other_kinds_as_in_layers() {
    let image = empty_image(4096);
    shell(
        image.folder.path(),
        "mkdir one two; cd one; mkdir x; ln -s nowhere link; echo f > file; mkdir -m 700 empty other full; : > full/f
        cd ../two; mkdir link file full; rmdir full; echo l > link/f; echo d > file/f; echo e > empty
        ln -s x other; echo refused > full; cd ..; tar -C one -cf one.tar .; tar -C two -cf two.tar .
        mkdir three; cd three; mkdir -m 755 empty; tar -cf ../three.tar ./empty
        cd ..; tar -C one -cf all.tar .; tar -C two --exclude=./full -rf all.tar .",
    );
    for archive in ["one.tar", "two.tar"] {
        let path = image.beside(archive).display().to_string();
        let status = i32::from(archive == "two.tar");
        let printed = run_with_status(&["tar", &path, &image.at("/")], status).text();
        assert_eq!(printed.contains("full"), status == 1, "{printed}");
    }
    let list = |image: &Image, name: &str| {
        let out = image.beside(name).display().to_string();
        run_ok(&["cp", "-a", &image.at("/"), &out]);
        shell(Path::new(&out), "find . -mindepth 1 -printf '%P %y %m\\n'")
    };
    let printed = list(&image, "out");
    let mut found: Vec<&str> = printed.lines().collect();
    found.sort_unstable();
    let expected = ["empty f 644", "file d 755", "file/f f 644", "full d 700", "full/f f 644"];
    for line in expected.into_iter().chain(["link d 755", "link/f f 644", "other l 777", "x d 755"])
    {
        assert!(found.contains(&line), "{line}: {printed}");
    }
    // In one archive, the attributes of a directory that was replaced are not given to another
    // file.
    let again = empty_image(4096);
    run_ok(&["tar", &image.beside("all.tar").display().to_string(), &again.at("/")]);
    assert!(list(&again, "out").lines().any(|line| line == "empty f 644"));
    again.check_by_e2fsck();
    image.check_by_e2fsck();
}

/// Unpacks archives of `script`, which runs in a folder with files of all sorts of attributes, and
/// checks that the kernel finds the same attributes in the image and in that folder.
#[track_caller]
fn check_attributes(script: &str) {
    const ATTRIBUTES: &str = "stat -c '%n %A' etc etc/* dir file link; getfattr -h -d -m - -e hex etc etc/* dir file link
        getfacl -np etc etc/* dir file";
    let sources = Image::by_kernel(
        "mkdir source; cd source; mkdir -p etc dir; echo 'ann:x:54321:5::/:' > etc/passwd
        echo 'staff:x:54322:' > etc/group; echo x > file; ln -s file link
        setfattr -n user.plain -v value file; setfattr -n user.a%b -v 0x0a3d000aff file
        setfattr -n user.empty dir; setfattr -n security.selinux -v label_t file
        setfattr -h -n security.selinux -v link_t link
        setfacl -m u:54321:rwx,g:54322:r,u:1:- file; setfacl -d -m u:54321:rx,g:54322:x dir",
    );
    let mount = LoopMount::new(&sources.path, "ext4", "rw");
    let source = mount.path().join("source");
    let image = empty_image(1024);
    let archive = image.beside("archive.tar").display().to_string();
    shell(&source, &format!("ARCHIVE={archive}; {script}"));
    let unpacked = output(bifolio().args(["tar", &archive, &image.at("/")]));
    assert_eq!((unpacked.text().as_str(), unpacked.status.code()), ("", Some(0)), "{script}");
    image.check_by_e2fsck();
    let by_kernel = LoopMount::new(&image.path, "ext4", "ro");
    let [expected, found] =
        [source.as_path(), by_kernel.path()].map(|folder| shell(folder, ATTRIBUTES));
    assert_eq!(found, expected, "{script}");
}

#[test]
fn labels_lists_and_attributes_of_all_archivers_are_unpacked() {
    private_mounts();
    check_attributes(
        "tar --acls --selinux --xattrs --xattrs-include='*' --numeric-owner -cf $ARCHIVE etc dir file link",
    );
    check_attributes("tar --xattrs --xattrs-include='*' -cf $ARCHIVE etc dir file link");
    check_attributes("bsdtar --format pax --acls --xattrs -cf $ARCHIVE etc dir file link");
    check_attributes(
        "setfattr -n 'user.\u{fc}ml %41' -v x file; setfattr -n user.%C3%BCml -v x file; setfattr -n user.\u{fc}ml -v x file
        bsdtar --format pax --acls --xattrs -cf $ARCHIVE etc dir file link",
    );
    check_attributes(
        "setfattr -n user.a=%3D -v x file; bsdtar --format pax --options xattrheader=LIBARCHIVE --acls --xattrs -cf $ARCHIVE etc dir file link",
    );
}

#[test]
fn names_in_lists_are_those_of_the_image_and_others_are_named() {
    let image = empty_image(1024);
    let archive = image.beside("archive.tar").display().to_string();
    shell(
        image.folder.path(),
        "mkdir -p tree/etc; cd tree; echo 'daemon:x:54321:5::/:' > etc/passwd; echo 'staff:x:54322:' > etc/group
        : > file; chmod 640 file; setfacl -m u:daemon:rwx,u:games:r,g:staff:wx file
        tar --acls -cf ../archive.tar etc file",
    );
    let printed = output(bifolio().args(["tar", &archive, &image.at("/")]));
    let text = printed.text();
    let expected = "the entry for the user games in the access control list of 1 file was not copied, the first is file";
    let is_named = text.contains(expected) && printed.status.success();
    assert!(is_named, "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let stat = run_ok(&["stat", &image.at("/file")]);
    for entry in ["user:54321:rwx", "group:54322:-wx", "group::r--", "mask::rwx", "0670"] {
        assert!(stat.contains(entry), "{entry}: {stat}");
    }
}

#[test]
fn escaped_names_in_lists_are_those_of_users_and_are_escaped_once_in_messages() {
    let image = empty_image(1024);
    // Users of the host, whom GNU tar names.
    shell(
        image.folder.path(),
        r"mkdir -p tree/etc; cp /etc/passwd users
        printf 'DOM\100x:x:54321:5::/:\na#b:x:54322:5::/:\na b:x:54323:5::/:\nno\\b:x:54324:5::/:\n' | tee -a users > tree/etc/passwd
        sed -i '/^no/d' tree/etc/passwd; cd tree; : > file; setfacl -m u:54321:rwx,u:54322:rw,u:54323:r,u:54324:r file
        unshare -m --propagation private sh -ec 'mount --bind ../users /etc/passwd; tar --acls -cf ../archive.tar etc file'",
    );
    let archive = image.beside("archive.tar").display().to_string();
    let (text, status) = {
        let printed = output(bifolio().args(["tar", &archive, &image.at("/")]));
        (printed.text(), printed.status.code())
    };
    let expected =
        r"the entry for the user no\\b in the access control list of 1 file was not copied";
    assert!(text.contains(expected), "{text}");
    // GNU tar takes the number sign for the start of a comment.
    assert!(text.contains("the entry user:a in the access control list of 1 file"), "{text}");
    assert_eq!((text.lines().count(), status), (2, Some(0)), "{text}");
    let stat = run_ok(&["stat", &image.at("/file")]);
    for entry in ["user:54321:rwx", "user:54323:r--", "mask::rwx"] {
        assert!(stat.contains(entry), "{entry}: {stat}");
    }
}

#[test]
fn directories_do_not_replace_links_to_directories() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir -p usr/lib usr/share outside; ln -s usr/lib lib; ln -s /usr/share share; echo l > usr/lib/libc
        chmod 711 usr/lib; mkdir -p sub/in/real; ln -s /outside sub/in/abs; ln -s ../../outside sub/in/rel
        ln -s /real sub/in/chroot; ln -s loop sub/in/loop",
    );
    let kept = ["lib", "share", "sub/in/abs", "sub/in/rel", "sub/in/chroot"]
        .map(|name| image.at(&format!("/{name}")));
    shell(
        image.folder.path(),
        "mkdir -p k/lib/modules k/share k/other n/abs n/rel n/chroot n/loop; for i in m n; do echo $i > k/lib/modules/$i; done
        echo s > k/share/s; echo o > k/other/o; ln k/lib/modules/m k/other/hard; for i in n/*; do echo $i > $i/file; done
        tar -cf k.tar -C k lib share other; tar -cf n.tar -C n .",
    );
    let [archive, inner] = ["k.tar", "n.tar"].map(|name| image.beside(name).display().to_string());
    let are_links = || {
        for link in &kept {
            assert!(run_ok(&["stat", link]).contains("symbolic link"), "{link}");
        }
        assert_eq!(run_ok(&["ls", &image.at("/outside")]), "");
    };
    // Without the option: the first member of each link, and the others counted. The rest is
    // unpacked.
    let text = run_with_status(&["tar", &archive, &image.at("/")], 1).text();
    for line in [
        "lib/: was not copied: lib is a symbolic link to a directory in the image; use --keep-directory-symlink",
        "share/: was not copied: share is a symbolic link to a directory in the image",
        "lib: 4 more members below this symbolic link were not unpacked",
        "share: 1 more member below this symbolic link was not unpacked",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    are_links();
    assert_eq!(run_ok(&["ls", &image.at("/other")]), "o\n");
    assert_eq!(run_ok(&["ls", &image.at("/lib/")]), "libc\n");
    // With it, also hard links are followed. The directory keeps its attributes.
    run_ok(&["tar", "--keep-directory-symlink", &archive, &image.at("/")]);
    are_links();
    assert_eq!(
        run_ok(&["cat", &image.at("/usr/lib/modules/m"), &image.at("/usr/share/s")]),
        "m\ns\n"
    );
    assert_eq!(run_ok(&["cat", &image.at("/other/hard"), &image.at("/lib/libc")]), "m\nl\n");
    assert!(run_ok(&["stat", &image.at("/usr/lib")]).contains("(0711/"));
    // Links lead nowhere else than in a chroot to the destination.
    let text =
        run_with_status(&["tar", "--keep-directory-symlink", &inner, &image.at("/sub/in")], 1)
            .text();
    are_links();
    for name in ["abs", "rel"] {
        assert!(
            text.contains(&format!(
                "./{name}/file: was not copied: a symbolic link in the image leads out"
            )),
            "{text}"
        );
    }
    assert_eq!(
        run_ok(&["cat", &image.at("/sub/in/real/file"), &image.at("/sub/in/loop/file")]),
        "n/chroot\nn/loop\n"
    );
    image.check_by_e2fsck();
}

#[test]
fn attributes_that_do_not_fit_are_counted_and_their_files_kept() {
    let image = empty_image(4096);
    let archive = image.beside("archive.tar").display().to_string();
    let value = "v".repeat(5000);
    shell(
        image.folder.path(),
        &format!(
            "mkdir tree; echo x > tree/file; mkfs.f2fs -q -f $(truncate -s 64M f2fs; echo f2fs) > /dev/null
            tar --format=pax --pax-option=SCHILY.xattr.user.big:={value} -C tree -cf archive.tar file"
        ),
    );
    let f2fs = image.beside("f2fs").display().to_string();
    let large = empty_image(65536);
    run_ok(&["tar", &archive, &large.at("/")]);
    let line = "the attribute user.big of 1 file was not copied, the first is ";
    let check = |arguments: &[&str], copy: &str| {
        let printed = output(bifolio().args(arguments));
        let text = printed.text();
        assert!(text.contains(line) && printed.status.success(), "{arguments:?}: {text}");
        assert_eq!(run_ok(&["cat", copy]), "x\n", "{arguments:?}");
        run_ok(&["rm", copy]);
    };
    for destination in [&image.at("/"), &format!("{f2fs}:/")] {
        let copy = format!("{destination}file");
        check(&["tar", &archive, destination], &copy);
        check(&["cp", "-a", &large.at("/file"), destination], &copy);
    }
    image.check_by_e2fsck();
    // A volume that is full still fails.
    shell(image.folder.path(), "mke2fs -q -t ext4 -b 1024 -I 128 -O ^has_journal -m 0 full 1M");
    let full = image.beside("full").display().to_string();
    for shift in (0..10).rev().chain([0, 0]) {
        let (bytes, path) = (format!("{}K", 1 << shift), format!("{full}:/of-{shift}"));
        output(bifolio().args(["fallocate", "-l", &bytes, &path]));
    }
    shell(
        image.folder.path(),
        &format!(
            ": > tree/file; tar --format=pax --pax-option=SCHILY.xattr.user.a:={} -C tree -cf archive.tar file",
            &value[..500]
        ),
    );
    let printed = run_with_status(&["tar", &archive, &format!("{full}:/")], 1);
    assert!(printed.text().contains("no space left on the volume"), "{}", printed.text());
}

#[test]
fn a_lack_of_inodes_is_named() {
    let image = Image::from_script("ext4", 1024, "for i in $(seq 40); do : > f$i; done");
    let folder = image.folder.path();
    shell(folder, "mke2fs -q -t ext4 -N 32 few 8M; tar -C source -cf many.tar .");
    let few = format!("{}:/", image.beside("few").display());
    let [source, archive] =
        ["source/.", "many.tar"].map(|name| image.beside(name).display().to_string());
    for arguments in [["cp", "-r", &source], ["tar", &archive, ""], ["cp", "-r", &image.at("/.")]] {
        let arguments = arguments.into_iter().filter(|argument| !argument.is_empty());
        let printed = output(bifolio().args(arguments.chain([&*few])));
        let text = printed.text();
        assert!(text.contains("has used all of its inodes") && !text.contains("is full"), "{text}");
        assert_eq!(printed.status.code(), Some(1), "{text}");
    }
}
