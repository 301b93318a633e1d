//! `bifolio tar`, compared with GNU tar and with the sources of the archives.

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use support::listed::memory;
use support::{Image, bifolio, run_ok, run_with_status, shell};
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
        // The result of GNU tar is the expected one, because only pax archives store fractions of seconds.
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
    // Symbolic links in the image are not followed, and no file is created outside of the directory.
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
        head -c 5000 /dev/urandom > noise.tar; : > empty.tar; cp good.tar bad.tar
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
    says("none.tar", "No such file");
    says("short.tar", "cannot read the rest");
    says("bad.tar", "checksum");
    unpack("empty.tar", 0);
    says("cut.tar", "cannot read the rest");
    // Members before the truncation are unpacked, and the truncated member is not.
    assert_eq!(run_ok(&["ls", &image.at("/")]), "a\nlost+found\n");
    unpack("good.tar", 0);
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
    // In one archive, the attributes of a directory that was replaced are not given to another file.
    let again = empty_image(4096);
    run_ok(&["tar", &image.beside("all.tar").display().to_string(), &again.at("/")]);
    assert!(list(&again, "out").lines().any(|line| line == "empty f 644"));
    again.check_by_e2fsck();
    image.check_by_e2fsck();
}

/// Unpacks archives of `script`, which runs in a folder with files of all sorts of attributes, and checks that the kernel finds the
/// same attributes in the image and in that folder.
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
fn the_accounts_of_an_image_are_not_searched_for_each_name() {
    let image = empty_image(1024);
    // 250,000 users, and lists with 7000 names that are not among them, which took minutes.
    let mut users: String =
        (0..250_000).map(|user| format!("user{user}:x:{user}:1::/:\n")).collect();
    users.push_str("last:x:54321:1::/:\n");
    let mut list = "user::rwx\ngroup::r--\nmask::rwx\nother::---\nuser:last:r\n".to_owned();
    list.extend((0..3500).map(|name| format!("user:no{name}:r\ngroup:no{name}:r\n")));
    let mut archive = Vec::new();
    for name in ["etc/passwd", "etc/group"] {
        archive.extend(header(b'0', users.len() as u64, name));
        archive.extend(users.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    for name in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        archive.extend(extended(&[("SCHILY.acl.access", &list)]));
        archive.extend(header(b'0', 0, name));
    }
    archive.extend([0; 1024]);
    must(fs::write(image.beside("archive.tar"), &archive), "the archive");
    let limited = "ulimit -t 10; \"$BIFOLIO\" tar archive.tar image:/ 2> errors || echo $?";
    let script = format!("BIFOLIO={}; {limited}", env!("CARGO_BIN_EXE_bifolio"));
    assert_eq!(shell(image.folder.path(), &script), "");
    let stat = run_ok(&["stat", &image.at("/8")]);
    assert!(stat.contains("user:54321:r--"), "{stat}");
    image.check_by_e2fsck();
}

/// Returns a header of an archive with this type and size.
fn header(kind: u8, size: u64, name: &str) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    header.as_ustar_mut().expect("its form").name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// Returns an extended header with these records.
fn extended(records: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in records {
        let rest = format!(" {name}={value}\n");
        let mut length = rest.len();
        while length != rest.len() + length.to_string().len() {
            length = rest.len() + length.to_string().len();
        }
        text.extend(format!("{length}{rest}").into_bytes());
    }
    let mut extended = header(b'x', text.len() as u64, "extended");
    extended.extend(&text);
    extended.resize(extended.len().next_multiple_of(512), 0);
    extended
}

#[test]
fn a_signal_ends_an_archive_without_members() {
    let headers = extended(&[("comment", &"x".repeat(1 << 19))]);
    let label = header(b'V', 1 << 40, "label");
    for (start, part) in [(Vec::new(), headers), (label, vec![0; 1 << 19])] {
        let image = empty_image(1024);
        let mut call = bifolio();
        call.args(["tar", "-", &image.at("/")]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = must(call.spawn(), "tar");
        let mut input = child.stdin.take().expect("its input");
        must(input.write_all(&start), "the archive");
        let is_read_to_the_end = (0..256).all(|number| {
            if number == 16 {
                let process = rustix::process::Pid::from_child(&child);
                must(rustix::process::kill_process(process, rustix::process::Signal::INT), "kill");
            }
            input.write_all(&part).is_ok()
        });
        assert!(!is_read_to_the_end);
        drop(input);
        let result = must(child.wait_with_output(), "tar");
        assert_eq!(result.status.code(), Some(INTERRUPTED), "{:?}", result.stderr);
        image.check_by_e2fsck();
    }
}

#[test]
fn paths_that_are_too_long_are_refused() {
    let image = empty_image(1024);
    let long = "a/".repeat(500_000);
    let deep = "b/".repeat(300);
    let mut archive = extended(&[("path", &long)]);
    archive.extend(header(b'0', 0, "short"));
    archive.extend(extended(&[("linkpath", &long)]));
    archive.extend(header(b'1', 0, "hard"));
    archive.extend(extended(&[("path", &format!("{deep}file"))]));
    archive.extend(header(b'0', 0, "short"));
    archive.extend([0; 1024]);
    let path = image.beside("archive.tar").display().to_string();
    must(fs::write(&path, &archive), "the archive");
    let text = run_with_status(&["tar", &path, &image.at("/")], 1).text();
    for line in [
        "a/a/a...: was not unpacked: its path has 1000000 bytes, and 65536 are supported",
        "hard: was not unpacked: its path of the hard link's target has 1000000 bytes, and 65536",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.len() < 2000, "{}", text.len());
    run_ok(&["stat", &image.at(&format!("/{deep}file"))]);
    assert_eq!(run_ok(&["ls", &image.at("/")]), "b\nlost+found\n");
    image.check_by_e2fsck();
}

#[test]
fn the_links_on_the_way_to_a_member_are_limited() {
    let image =
        Image::from_script("ext4", 4096, "mkdir dir; ln -s . dir/link; ln -s loop dir/loop");
    let path = image.beside("archive.tar").display().to_string();
    let way = |links: usize| format!("dir/{}", "link/".repeat(links));
    let mut archive = Vec::new();
    for name in [format!("{}few", way(40)), format!("{}many", way(41)), "dir/loop/x".into()] {
        archive.extend(extended(&[("path", &name)]));
        archive.extend(header(b'0', 0, "short"));
    }
    archive.extend([0; 1024]);
    must(fs::write(&path, &archive), "the archive");
    let arguments = ["tar", "--keep-directory-symlink", &path, &image.at("/")];
    let text = run_with_status(&arguments, 1).text();
    assert!(text.contains("many: cannot unpack: too many levels of symbolic links"), "{text}");
    assert!(text.contains("dir/loop/x: cannot unpack: too many levels"), "{text}");
    assert_eq!(run_ok(&["ls", &image.at("/dir")]), "few\nlink\nloop\n");
    image.check_by_e2fsck();
}

#[test]
fn records_and_members_that_are_not_unpacked_are_named() {
    let image = empty_image(1024);
    let archive = image.beside("archive.tar").display().to_string();
    let unpack = || {
        let printed = output(bifolio().args(["tar", &archive, &image.at("/")]));
        (printed.text(), printed.status.code())
    };
    shell(
        image.folder.path(),
        "mkdir tree; cd tree; echo 1 > a; echo 2 > b; tar --format=pax --pax-option=MSWINDOWS.rawsd:=x,SCHILY.fflags:=nodump \
        --pax-option=LIBARCHIVE.xattr.user.bad:=*,LIBARCHIVE.creationtime:=981173045.5,SCHILY.dev:=5 -cf ../archive.tar a b",
    );
    let (text, status) = unpack();
    assert_eq!(status, Some(0), "{text}");
    for record in ["MSWINDOWS.rawsd", "SCHILY.fflags", "LIBARCHIVE.xattr.user.bad"] {
        let line = format!("warning: {record} of 2 files were not copied, the first is a: ");
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert_eq!(text.lines().count(), 3, "{text}");
    let stat = run_ok(&["stat", &image.at("/a")]);
    assert!(stat.contains("Birth: 2001-02-03 04:04:05.500000000"), "{stat}");
    // Directories of incremental archives, labels, parts of files, and unknown types.
    shell(
        image.folder.path(),
        "mkdir -p tree/dir; echo x > tree/dir/x; tar --format=gnu --listed-incremental=list --label=name -C tree -cf archive.tar dir",
    );
    let (text, status) = unpack();
    assert!(text.contains("warning: the label of the archive of 1 file was not copied"), "{text}");
    assert_eq!((text.lines().count(), status), (1, Some(0)), "{text}");
    assert_eq!(run_ok(&["cat", &image.at("/dir/x")]), "x\n");
    let original = must(fs::read(&archive), "the archive");
    for (letter, expected) in
        [(b'M', "another volume"), (b'E', "members of the type E are not supported")]
    {
        let mut changed = original.clone();
        let at = (0..changed.len() / 512).map(|record| record * 512);
        let header = at.rev().find(|&at| changed[at..].starts_with(b"dir/x")).expect("a header");
        let sum = changed[header + 148..header + 154].to_vec();
        let sum = must(u32::from_str_radix(&String::from_utf8_lossy(&sum), 8), "a checksum");
        let sum = sum - u32::from(changed[header + 156]) + u32::from(letter);
        changed[header + 156] = letter;
        changed[header + 148..header + 154].copy_from_slice(format!("{sum:06o}").as_bytes());
        must(fs::write(&archive, &changed), "an archive");
        let (text, status) = unpack();
        assert!(text.contains("dir/x: was not unpacked: ") && text.contains(expected), "{text}");
        assert_eq!(status, Some(1), "{text}");
    }
    image.check_by_e2fsck();
}

#[test]
fn whiteouts_of_layers_are_not_unpacked_as_files() {
    let image = empty_image(1024);
    shell(
        image.folder.path(),
        "mkdir -p tree/dir; cd tree; : > dir/.wh.gone; : > dir/.wh..wh..opq; echo x > dir/x; tar -cf ../archive.tar .",
    );
    let archive = image.beside("archive.tar").display().to_string();
    let text = run_with_status(&["tar", &archive, &image.at("/")], 1).text();
    assert!(text.contains("2 whiteouts were not unpacked, the first is ./dir/.wh."), "{text}");
    assert_eq!(run_ok(&["ls", "-a", &image.at("/dir")]), ".\n..\nx\n");
    run_ok(&["tar", "--keep-whiteouts", &archive, &image.at("/")]);
    assert_eq!(run_ok(&["ls", "-a", &image.at("/dir")]), ".\n..\n.wh..wh..opq\n.wh.gone\nx\n");
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
    // Without the option: the first member of each link, and the others counted. The rest is unpacked.
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

/// Adds a member to an archive.
fn add(archive: &mut Vec<u8>, kind: u8, name: &str, link: &str, data: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    must(header.set_path(name), name);
    if !link.is_empty() {
        must(header.set_link_name(link), link);
    }
    header.set_size(data.len() as u64);
    header.set_mode(0o640);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_000_000_000);
    header.set_cksum();
    archive.extend(header.as_bytes());
    archive.extend(data);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

/// Unpacks an archive. Returns what is printed, and the exit status.
fn unpack(image: &Image, archive: &[u8]) -> (String, Option<i32>) {
    let path = image.beside("members.tar");
    must(fs::write(&path, archive), "an archive");
    let printed = output(bifolio().args(["tar", &path.display().to_string(), &image.at("/")]));
    (printed.text(), printed.status.code())
}

#[test]
fn hard_links_with_data_are_files_with_it() {
    let image = empty_image(1024);
    let mut archive = Vec::new();
    add(&mut archive, b'0', "first", "", b"old and longer");
    add(&mut archive, b'1', "second", "first", b"new");
    add(&mut archive, b'1', "alone", "missing", &[b'x'; 700]);
    add(&mut archive, b'0', "empty", "", b"");
    add(&mut archive, b'1', "filled", "empty", b"data of the last name");
    // A size, and no data: the next header follows.
    add(&mut archive, b'1', "sized", "first", b"");
    let header = archive.len() - 512;
    archive[header + 124..header + 135].copy_from_slice(b"00000001000");
    let sum: u32 = (0..512)
        .map(|at| if (148..156).contains(&at) { 32 } else { u32::from(archive[header + at]) })
        .sum();
    archive[header + 148..header + 155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    add(&mut archive, b'0', "last", "", b"l");
    archive.resize(archive.len() + 1024, 0);
    let printed = unpack(&image, &archive);
    assert_eq!(printed, (String::new(), Some(0)));
    for (name, expected, links) in [
        ("first", "new", 3),
        ("second", "new", 3),
        ("sized", "new", 3),
        ("empty", "data of the last name", 2),
        ("last", "l", 1),
    ] {
        let path = image.at(&format!("/{name}"));
        assert_eq!(run_ok(&["cat", &path]), expected, "{name}");
        let stat = run_ok(&["stat", &path]);
        assert!(stat.contains(&format!("Links: {links}")), "{name}: {stat}");
        assert!(stat.contains("(0640/") && stat.contains("2001-09-09"), "{name}: {stat}");
    }
    assert_eq!(run_ok(&["cat", &image.at("/alone")]), "x".repeat(700));
    image.check_by_e2fsck();
}

#[test]
fn members_after_a_damaged_header_or_record_are_unpacked() {
    let image = empty_image(1024);
    let mut archive = Vec::new();
    add(&mut archive, b'0', "before", "", b"b");
    add(&mut archive, b'x', "record", "", b"16 path=renamed\n");
    let damaged = archive.len();
    add(&mut archive, b'0', "lost", "", b"l");
    add(&mut archive, b'x', "record", "", b"10 uid=-2\n10 gid=zz\n11 mtime=z\n");
    add(&mut archive, b'0', "after", "", b"a");
    archive.resize(archive.len() + 1024, 0);
    archive[damaged] = b'L';
    let (text, status) = unpack(&image, &archive);
    let line = format!(
        "the header at byte {damaged} has a wrong checksum; skipped to the next header, at byte 3072"
    );
    assert!(text.contains(&line), "{line}: {text}");
    assert_eq!(status, Some(1), "{text}");
    for record in ["uid", "gid", "mtime"] {
        let line =
            format!("{record} of 1 file was not copied, the first is after: the value is invalid");
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert_eq!(run_ok(&["ls", &image.at("/")]), "after\nbefore\nlost+found\n");
    let stat = run_ok(&["stat", &image.at("/after")]);
    assert!(stat.contains("2001-09-09"), "{stat}");
    image.check_by_e2fsck();
}

#[test]
fn directories_keep_their_attributes_if_a_later_member_or_a_signal_fails() {
    let image = empty_image(1024);
    let mut archive = Vec::new();
    add(&mut archive, b'5', "dir/", "", b"");
    add(&mut archive, b'0', "dir/file", "", b"f");
    add(&mut archive, b'5', "empty/", "", b"");
    add(&mut archive, b'0', "dir", "", b"a file");
    add(&mut archive, b'2', "dir", "target", b"");
    add(&mut archive, b'1', "dir", "dir/file", b"");
    add(&mut archive, b'1', "empty", "missing", b"");
    let (text, status) = unpack(&image, &[&archive[..], &[0; 1024]].concat());
    assert_eq!((text.lines().count(), status), (4, Some(1)), "{text}");
    let check = |image: &Image, name: &str| {
        let stat = run_ok(&["stat", &image.at(name)]);
        assert!(stat.contains("(0640/") && stat.contains("2001-09-09"), "{name}: {stat}");
    };
    check(&image, "/dir");
    check(&image, "/empty");
    image.check_by_e2fsck();
    // More data than pipes take, so that the directory was created before the signal.
    let again = empty_image(1024);
    archive.truncate(512);
    add(&mut archive, b'0', "dir/big", "", &[b'x'; 4 << 20]);
    archive.truncate(3 << 20);
    let mut tar = bifolio();
    tar.args(["tar", "-", &again.at("/")]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut tar = must(tar.spawn(), "bifolio tar");
    let mut input = tar.stdin.take().unwrap();
    must(input.write_all(&archive), "the archive");
    run(std::process::Command::new("kill").args(["-INT", &tar.id().to_string()]));
    drop(input);
    let ended = must(tar.wait(), "bifolio tar");
    assert_eq!(ended.code(), Some(130));
    check(&again, "/dir");
    again.check_by_e2fsck();
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
