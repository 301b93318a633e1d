//! Archives that no archiver writes: endless ones, too long paths, records and members that are not
//! unpacked, and damage.

use super::*;

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
        "mkdir -p tree/dir; cd tree; : > dir/.wh.gone; : > dir/.wh..wh..opq; echo x > dir/x; tar -cf ../archive.tar .
        mkdir -p .wh.d/.wh.e/in; echo y > .wh.d/y; ln .wh.d/y .wh.d/.wh.e/in/z; tar -cf ../below.tar .wh.d/y
        tar --sort=name -cf ../mixed.tar .wh.d dir/x",
    );
    let archive = image.beside("archive.tar").display().to_string();
    for (name, options, expected) in [
        ("below.tar", &[][..], "1 member below whiteouts was not unpacked, the first is .wh.d/y"),
        ("below.tar", &["--strip-components=1"], "1 member below whiteouts was not unpacked"),
        (
            "mixed.tar",
            &[],
            "2 whiteouts and 3 members below whiteouts were not unpacked, the first is .wh.d/",
        ),
    ] {
        let below = image.beside(name).display().to_string();
        let text = run_with_status(&[&["tar", &below, &image.at("/")], options].concat(), 1).text();
        assert!(text.contains(expected), "{text}");
        let files = if name == "mixed.tar" { "dir\nlost+found\n" } else { "lost+found\n" };
        assert_eq!(run_ok(&["ls", "-a", &image.at("/")]), format!(".\n..\n{files}"));
    }
    let text = run_with_status(&["tar", &archive, &image.at("/")], 1).text();
    assert!(text.contains("2 whiteouts were not unpacked, the first is ./dir/.wh."), "{text}");
    assert_eq!(run_ok(&["ls", "-a", &image.at("/dir")]), ".\n..\nx\n");
    run_ok(&["tar", "--keep-whiteouts", &archive, &image.at("/")]);
    assert_eq!(run_ok(&["ls", "-a", &image.at("/dir")]), ".\n..\n.wh..wh..opq\n.wh.gone\nx\n");
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
    add(&mut archive, b'0', "sparse", "", b"old and longer");
    archive.extend(extended(&[
        ("GNU.sparse.size", "14"),
        ("GNU.sparse.numblocks", "1"),
        ("GNU.sparse.map", "10,2"),
    ]));
    add(&mut archive, b'1', "holes", "sparse", b"NN");
    add(&mut archive, b'0', "last", "", b"l");
    archive.resize(archive.len() + 1024, 0);
    let printed = unpack(&image, &archive);
    assert_eq!(printed, (String::new(), Some(0)));
    for (name, expected, links) in [
        ("first", "new", 3),
        ("second", "new", 3),
        ("sized", "new", 3),
        ("empty", "data of the last name", 2),
        ("sparse", "\0\0\0\0\0\0\0\0\0\0NN\0\0", 2),
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

/// Returns a header of a member with metadata, and no data.
fn with_metadata(kind: u8, name: &str, owner: u64, mode: u32, time: u64) -> Vec<u8> {
    let mut archive = Vec::new();
    add(&mut archive, kind, name, if kind == b'0' { "" } else { "file" }, b"");
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes().copy_from_slice(&archive);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_mode(mode);
    header.set_mtime(time);
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[test]
fn what_a_hard_link_has_of_its_own_is_counted_or_set_with_its_data() {
    let list = "user::rw-,user:7:rw-,group::r--,mask::rw-,other::---";
    let own = [
        ("SCHILY.xattr.user.same", "1"),
        ("SCHILY.xattr.user.only", "2"),
        ("RHT.security.selinux", "label_t"),
        ("SCHILY.acl.access", list),
        ("atime", "5"),
    ];
    let mut start = extended(&[("SCHILY.xattr.user.same", "1")]);
    start.extend(with_metadata(b'0', "file", 7, 0o640, 1_000_000_000));
    // The same as the file.
    start.extend(extended(&[("SCHILY.xattr.user.same", "1"), ("atime", "5")]));
    start.extend(with_metadata(b'1', "same", 7, 0o640, 1_000_000_000));
    start.extend(extended(&[("SCHILY.acl.access", "user::rw-,group::r--,other::---")]));
    start.extend(with_metadata(b'1', "minimal", 7, 0o640, 1_000_000_000));
    let image = empty_image(1024);
    let printed = unpack(&image, &[&start[..], &[0; 1024]].concat());
    assert_eq!(printed, (String::new(), Some(0)));

    let mut archive = start.clone();
    archive.extend(extended(&own));
    archive.extend(with_metadata(b'1', "other", 8, 0o4640, 1_000_000_001));
    archive.resize(archive.len() + 1024, 0);
    let image = empty_image(1024);
    let (text, status) = unpack(&image, &archive);
    for what in [
        "the attribute user.only",
        "the attribute security.selinux",
        "the attribute system.posix_acl_access",
        "the owner",
        "the group",
        "the mode",
        "the modification time",
    ] {
        let line = format!(
            "{what} of 1 file was not copied, the first is other: the hard link has another value"
        );
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert_eq!((text.lines().count(), status), (7, Some(0)), "{text}");
    let kept = run_ok(&["stat", &image.at("/file")]);
    assert!(kept.contains("(0640/") && kept.contains("Links: 4"), "{kept}");

    // With data, the link is the last member of its file, as for bsdtar.
    let mut archive = start;
    archive.extend(extended(&own));
    let mut link = Vec::new();
    add(&mut link, b'1', "other", "file", b"data");
    archive.extend(link);
    archive.resize(archive.len() + 1024, 0);
    let image = empty_image(1024);
    assert_eq!(unpack(&image, &archive), (String::new(), Some(0)));
    let set = run_ok(&["stat", &image.at("/file")]);
    for entry in ["(0660/", "user:7:rw-", "1970-01-01 00:00:05"] {
        assert!(set.contains(entry), "{entry}: {set}");
    }
    let attributes = run_ok(&["getfattr", "-d", "-m", "-", &image.at("/file")]);
    for line in ["user.same=\"1\"", "user.only=\"2\"", "security.selinux=\"label_t\""] {
        assert!(attributes.contains(line), "{line}: {attributes}");
    }
    image.check_by_e2fsck();
}

#[test]
fn a_file_without_its_unknown_list_gives_a_group_no_more_rights() {
    let mut archive = Vec::new();
    for (name, list) in [
        ("group", "user::rw-,user:7:rw-,group::r--,mask:x:rw-,other::---"),
        ("none", "owner@:rw-::allow"),
    ] {
        archive.extend(extended(&[("SCHILY.acl.access", list)]));
        archive.extend(with_metadata(b'0', name, 7, 0o660, 1_000_000_000));
    }
    archive.resize(archive.len() + 1024, 0);
    let image = empty_image(1024);
    let (text, status) = unpack(&image, &archive);
    let line = "the access control list of 2 files were not copied, the first is group: ";
    assert!(text.contains(line), "{text}");
    assert_eq!(status, Some(0));
    for (name, mode) in [("group", "(0640/"), ("none", "(0600/")] {
        let stat = run_ok(&["stat", &image.at(&format!("/{name}"))]);
        assert!(stat.contains(mode), "{name}: {stat}");
    }
}

#[test]
fn attributes_that_no_file_system_of_linux_takes_are_counted() {
    let longest = format!("user.{}", "n".repeat(250));
    let mut archive = extended(&[
        (&format!("SCHILY.xattr.{longest}"), "1"),
        (&format!("SCHILY.xattr.{longest}n"), "2"),
        ("SCHILY.xattr.security.capability", "x"),
    ]);
    add(&mut archive, b'0', "file", "", b"data");
    archive.resize(archive.len() + 1024, 0);
    let image = empty_image(1024);
    let (text, status) = unpack(&image, &archive);
    for line in [
        format!("the attribute {longest}n of 1 file was not copied, the first is file: "),
        "the attribute security.capability of 1 file was not copied, the first is file: ".into(),
    ] {
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert_eq!((text.lines().count(), status), (2, Some(0)), "{text}");
    let names = run_ok(&["getfattr", "-m", "-", &image.at("/file")]);
    assert_eq!(names, format!("# file: file\n{longest}\n\n"));
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
fn one_bad_member_does_not_lose_the_others() {
    let image = empty_image(1024);
    let mut archive = Vec::new();
    let mut number = 0;
    let mut with = |headers: &[(u8, &[u8])], kind: u8, data: &[u8]| {
        for (kind, text) in headers {
            add(&mut archive, *kind, "header", "", text);
        }
        add(&mut archive, kind, &format!("m{number:02}"), "", data);
        number += 1;
    };
    // Malformed records lose themselves: NUL, garbage, a leading blank, no equals sign, and in a
    // global header.
    with(&[(b'x', b"9 uid=77\n\0\0\0")], b'0', b"data");
    with(&[(b'x', b"9 uid=77\ngarbage")], b'0', b"data");
    with(&[(b'x', b" 10 path=q\n")], b'0', b"data");
    with(&[(b'x', b"7 uid7\n9 uid=77\n")], b'0', b"data");
    with(&[(b'g', b"99 uid=77\n")], b'0', b"data");
    // These lose their members.
    with(&[(b'x', b"24 GNU.sparse.offset=-1\n9 uid=77\n")], b'0', b"data");
    with(&[(b'x', b"27 GNU.sparse.numbytes=100\n")], b'0', b"data");
    with(&[(b'x', b"20 GNU.sparse.map=x\n23 GNU.sparse.size=100\n")], b'0', b"data");
    with(&[(b'x', b"22 GNU.sparse.major=9\n22 GNU.sparse.minor=0\n")], b'0', b"data");
    with(&[(b'x', b"11 size=4x\n")], b'0', b"data");
    with(&[(b'x', b"21 SCHILY.devmajor=x\n")], b'3', b"");
    with(&[(b'S', b"data")], b'0', b"data");
    with(&[(b'x', &vec![b'x'; (1 << 20) + 1])], b'0', b"data");
    with(&[(b'L', &vec![b'x'; (1 << 20) + 1])], b'0', b"data");
    with(&[(b'K', b"")], b'0', b"data");
    // A header with an invalid field, and one without a size.
    for at in [100, 124] {
        let start = archive.len();
        add(&mut archive, b'0', "field", "", b"data");
        archive[start + at..start + at + 7].copy_from_slice(b"+000644");
        archive[start + 148..start + 156].fill(b' ');
        let sum: u32 = archive[start..start + 512].iter().map(|&byte| u32::from(byte)).sum();
        archive[start + 148..start + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    add(&mut archive, b'0', "last", "", b"data");
    archive.resize(archive.len() + 1024, 0);
    let (text, status) = unpack(&image, &archive);
    assert_eq!(status, Some(1), "{text}");
    let names = run_ok(&["ls", &image.at("/")]);
    let expected = "last\nlost+found\nm00\nm01\nm02\nm03\nm04\nm11\nm14\n";
    assert_eq!(names, expected, "{text}");
    let line =
        "an extended record of 4 files were not copied, the first is m01: it has no valid length";
    assert!(text.contains(line), "{text}");
    for lost in ["m05", "m06", "m07", "m08", "m09", "m10", "header", "m12", "m13", "field"] {
        assert!(text.contains(&format!("{lost}: was not unpacked: ")), "{lost}: {text}");
    }
    for (name, owner) in [("m00", 77), ("m01", 77), ("m02", 7), ("m03", 77), ("last", 7)] {
        let path = image.at(&format!("/{name}"));
        assert_eq!(run_ok(&["cat", &path]), "data", "{name}");
        assert_eq!(json(&["stat", "--json", &path])[0]["uid"], owner, "{name}");
    }
    image.check_by_e2fsck();
}

#[test]
fn names_that_differ_in_case_do_not_replace_each_other() {
    let image = Image::empty();
    testkit::f2fs::Kind::named("casefold").make(&image.path, 128);
    run_ok(&["mkdir", &image.at("/d")]);
    run_ok(&["chattr", "+F", &image.at("/d")]);
    let mut archive = Vec::new();
    for (name, data) in [("d/A", "1"), ("d/a", "2"), ("d/B", "3"), ("d/B", "4"), ("e", "5")] {
        add(&mut archive, b'0', name, "", data.as_bytes());
    }
    add(&mut archive, b'1', "d/b", "e", b"");
    add(&mut archive, b'0', "d/Sub/x", "", b"6");
    add(&mut archive, b'0', "d/sub/x", "", b"7");
    add(&mut archive, b'5', "d/Dir/", "", b"");
    add(&mut archive, b'5', "d/dir/", "", b"");
    add(&mut archive, b'0', "d/DIR", "", b"8");
    add(&mut archive, b'5', "d/a/", "", b"");
    archive.resize(archive.len() + 1024, 0);
    let (text, status) = unpack(&image, &archive);
    let message = "has the name of a file that was just copied, and was not copied";
    for name in ["d/a", "d/b", "d/sub/x", "d/DIR", "d/a/"] {
        assert!(text.contains(&format!("{name}: {message}")), "{name}: {text}");
    }
    assert_eq!((text.lines().count(), status), (5, Some(1)), "{text}");
    for (name, data) in [("d/A", "1"), ("d/B", "4"), ("e", "5"), ("d/Sub/x", "6")] {
        assert_eq!(run_ok(&["cat", &image.at(&format!("/{name}"))]), data, "{name}");
    }
    // Files that were there before are replaced.
    let mut archive = Vec::new();
    add(&mut archive, b'0', "d/a", "", b"9");
    archive.resize(archive.len() + 1024, 0);
    assert_eq!(unpack(&image, &archive), (String::new(), Some(0)));
    assert_eq!(run_ok(&["cat", &image.at("/d/A")]), "9");
    testkit::f2fs::check_by_fsck(&image.path);
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
