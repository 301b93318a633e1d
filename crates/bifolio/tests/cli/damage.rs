//! Damaged volumes, and journals that need recovery: what commands show of them, and what they
//! advise.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::support::{Image, bifolio, json, run_ok, run_with_status};
use testkit::command::{output, run};

const SMALL: &str = "mkdir dir; echo hello > dir/file; ln -s file dir/link; echo > top";

#[test]
fn a_dirty_external_journal_is_replayed() {
    testkit::private_mounts();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, bytes) in [("journal", 8 << 20), ("image", 32 << 20)] {
        std::fs::File::create(path(name)).unwrap().set_len(bytes).unwrap();
    }
    let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
        testkit::command::run(Command::new(program).args(arguments))
    };
    let text = std::ffi::OsStr::new;
    run("mke2fs", &[text("-qF"), text("-O"), text("journal_dev"), path("journal").as_os_str()]);
    let attached = run("losetup", &[text("-f"), text("--show"), path("journal").as_os_str()]);
    let journal = String::from_utf8(attached).unwrap().trim().to_owned();
    let device = format!("device={journal}");
    run(
        "mke2fs",
        &[
            text("-qF"),
            text("-t"),
            text("ext4"),
            text("-J"),
            text(&device),
            path("image").as_os_str(),
        ],
    );
    let mount = testkit::LoopMount::new(&path("image"), "ext4", "commit=1");
    for index in 0..50 {
        std::fs::write(mount.path().join(format!("file {index}")), format!("{index}")).unwrap();
    }
    run("xfs_io", &[text("-x"), text("-c"), text("shutdown -f"), mount.path().as_os_str()]);
    // The state after the crash, before the kernel unmounts.
    std::fs::copy(path("image"), path("cut")).unwrap();
    std::fs::copy(path("journal"), path("cut journal")).unwrap();
    mount.unmount();
    run("losetup", &[text("-d"), text(&journal)]);

    let read = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bifolio"));
        command.arg("ls").args(arguments).arg(path("cut")).output().unwrap()
    };
    let refused = read(&[]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--journal"), "{refused:?}");
    let found = read(&["--journal", path("cut journal").to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&found.stdout).contains("file 49"), "{found:?}");
}

#[test]
fn a_volume_with_a_damaged_superblock_is_read_through_a_backup_with_a_warning() {
    let image = Image::from_script("ext4", 1024, SMALL);
    let name = image.path.display().to_string();
    let file = fs::File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&[0; 1024], 1024).unwrap();
    let listed = |arguments: &[&str]| {
        let listed = output(bifolio().arg("ls").args(arguments).arg(&name));
        assert_eq!(String::from_utf8_lossy(&listed.stdout), "dir\nlost+found\ntop\n");
        assert!(listed.status.success());
        String::from_utf8_lossy(&listed.stderr).into_owned()
    };
    let said = listed(&[]);
    let expected =
        format!("bifolio: warning: {name}: the superblock in use is the copy in block 8193 ");
    assert!(said.starts_with(&expected) && said.lines().count() == 1, "{said}");
    let info = json(&["info", "--json", &name]);
    let superblock = info[0]["details"]["superblock"].as_str().unwrap();
    assert!(superblock.contains("copy in block 8193 (group 1)"), "{superblock}");
    let refused = run_with_status(&["mkdir", &image.at("/new")], 1).text();
    assert!(refused.contains("`e2fsck -b 8193 -B 1024` repairs it"), "{refused}");
    let found = run_with_status(&["check", &name], 4).text();
    assert!(found.contains("corrupt superblock"), "{found}");

    assert!(listed(&["--superblock", "24577"]).contains("copy in block 24577 (group 3)"));
    listed(&["--superblock", "24577", "--block-size", "1K"]);
    run_with_status(&["ls", "--superblock", "24577", "--block-size", "4K", &name], 1);
    run_with_status(&["mkdir", "--superblock", "24577", &image.at("/new")], 1);
    run_with_status(&["ls", "--block-size", "4K", &name], 2);
    // The superblock of a copy is the source's.
    let other = Image::from_script("ext4", 4096, "");
    let location = ["--superblock", "24577", "--block-size", "1K"];
    let from = image.at("/top");
    let copy = |to: &str, status| {
        let call = [&["cp"], &location[..], &[&from, to]].concat();
        run_with_status(&call, status).text()
    };
    assert!(copy(&other.at("/copy"), 0).contains("copy in block 24577"));
    run_ok(&["stat", &other.at("/copy")]);
    other.check_by_e2fsck();
    copy(&image.at("/x"), 1);

    // Without its first megabyte and its last one.
    file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    file.set_len(file.metadata().unwrap().len() - (1 << 20)).unwrap();
    let said =
        |arguments: &[&str]| run_with_status(&[&["ls"], arguments, &[&name]].concat(), 1).text();
    let advice = said(&[]);
    assert!(advice.contains("--superblock 8193 --block-size 1024"), "{advice}");
    for location in [&["--superblock", "8193"][..], &["--superblock", "8193", "--block-size", "1K"]]
    {
        let advice = said(location);
        assert!(advice.contains("use --incomplete to read what it has"), "{advice}");
        let lost = said(&[location, &["--incomplete"]].concat());
        assert!(lost.contains("corrupt root directory at inode 2"), "{lost}");
        assert!(lost.contains("name inodes by their numbers, as IMAGE:<N>"), "{lost}");
    }

    let noise = image.beside("noise");
    fs::write(&noise, vec![0x11; 16 << 20]).unwrap();
    let refused = run_with_status(&["ls", noise.to_str().unwrap()], 1).text();
    assert!(refused.contains("no known file system found"), "{refused}");
}

#[test]
fn files_of_a_volume_whose_root_directory_is_damaged_are_named_by_their_numbers() {
    let image = Image::from_script("ext4", 4096, "echo kept > kept");
    let name = image.path.display().to_string();
    let number = json(&["stat", "--json", &image.at("/kept")])[0]["inode"].as_u64().unwrap();
    let valid = fs::read(&image.path).unwrap();
    let advice = "name inodes by their numbers, as IMAGE:<N>";
    let debugfs = |request: &str| {
        run(Command::new("debugfs").args(["-w", "-R", request]).arg(&image.path));
    };
    let damages: [&dyn Fn(); 3] = [
        &|| debugfs("set_inode_field <2> block[0] 0"),
        &|| debugfs("set_inode_field <2> checksum 0x12345678"),
        &|| debugfs("clri <2>"),
    ];
    for (damage, work) in damages.into_iter().enumerate() {
        fs::write(&image.path, &valid).unwrap();
        work();
        for options in [&[][..], &["--incomplete"]] {
            let at = image.at("/kept");
            let said = run_with_status(&[&["cat"], options, &[&at]].concat(), 1).text();
            assert!(said.contains(advice), "{damage}: {said}");
            let said = run_with_status(&[&["ls"], options, &[&name]].concat(), 1).text();
            assert!(said.contains(advice), "{damage}: {said}");
            let named = format!("{name}:<{number}>");
            assert_eq!(run_ok(&[&["cat"], options, &[&named]].concat()), "kept\n");
        }
    }
}

#[test]
fn changes_that_a_damaged_journal_has_lost_are_missing_with_a_warning() {
    const BLOCK: usize = 4096;
    /// The header of the commit block of the transaction 1.
    const COMMIT: [u8; 12] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2, 0, 0, 0, 1];
    let image = Image::from_script("ext4", BLOCK as u32, "printf %04096d 0 > kept");
    let name = image.path.display().to_string();
    for number in ["1", "2"] {
        let contents = number.repeat(BLOCK);
        fs::write(image.beside(number), contents).unwrap();
    }
    let mapped = Command::new("debugfs").args(["-R", "bmap kept 0"]).arg(&image.path).output();
    let block = String::from_utf8(mapped.unwrap().stdout).unwrap();
    let write = |number: &str| format!("jw -b {} {}", block.trim(), image.beside(number).display());
    let requests = ["jo -c -v 3", &write("1"), &write("2"), "jc", "feature needs_recovery"];
    fs::write(image.beside("requests"), requests.join("\n")).unwrap();
    run(Command::new("debugfs").arg("-wf").arg(image.beside("requests")).arg(&image.path));
    assert_eq!(run_ok(&["cat", &image.at("/kept")]), "2".repeat(BLOCK));

    let bytes = fs::read(&image.path).unwrap();
    let commit = bytes.chunks(BLOCK).position(|block| block.starts_with(&COMMIT)).unwrap();
    let file = fs::File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&[0xFF; 4], (commit * BLOCK + 16) as u64).unwrap();
    let warning = format!("bifolio: warning: {name}: the journal is damaged (");
    for command in ["ls", "info", "stat"] {
        let said = run_with_status(&[command, &name], 0).text();
        assert_eq!(said.contains(&warning), command != "info", "{command}: {said}");
        assert!(command != "info" || said.contains("Recovery damage: "), "{said}");
    }
    let read = run_with_status(&["cat", &image.at("/kept")], 0).text();
    assert!(read.contains(&warning) && read.starts_with(&"0".repeat(BLOCK)), "{read:.200}");
    let found = run_with_status(&["check", &name], 4).text();
    assert!(found.contains("corrupt journal commit block"), "{found}");
    run_with_status(&["mkdir", &image.at("/new")], 1);
}
