//! Access times on mounts, compared with the kernel's ext4: the accesses that change them, when they are
//! written, and the options that the mount table shows.

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use mounting::other_ways::{Mapped, open_direct, read_direct};
use mounting::{Location, NOBODY, mount_entry};
use rustix::fs::OFlags;
use rustix::process::Signal;
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts};

/// Longer than the host's tick, so that accesses have times of their own.
const TICKS: Duration = Duration::from_millis(25);

const HOUR: u64 = 60 * 60;

/// An image with a file that was changed 30 hours ago and read 25 hours ago, and one that was read an hour
/// ago.
fn make(place: &Location, image: &Path) {
    let source = place.folder.path().join(image.file_stem().unwrap());
    fs::create_dir(&source).unwrap();
    for name in ["yesterday", "today", "never"] {
        fs::write(source.join(name), [1; 10_000]).unwrap();
    }
    Mke2fs { size: 32 << 20, ..Mke2fs::new("ext4", 4096) }.make(image, Some(&source));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let mut commands = String::new();
    for (name, read) in [("yesterday", 25), ("today", 1), ("never", 60)] {
        let (read, changed) = (now - read * HOUR, now - 30 * HOUR);
        for (field, time) in [("atime", read), ("mtime", changed), ("ctime", changed)] {
            commands += &format!("set_inode_field /{name} {field} @{time}\n");
            commands += &format!("set_inode_field /{name} {field}_extra 0\n");
        }
    }
    commands += "set_inode_field /never flags 0x80080\n";
    let script = place.folder.path().join("script");
    fs::write(&script, commands).unwrap();
    run(Command::new("debugfs").arg("-w").arg("-f").arg(script).arg(image));
}

/// Reads a whole file by open flags.
fn read(path: &Path, flags: OFlags) {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits() as i32);
    options.open(path).unwrap().read_to_end(&mut Vec::new()).unwrap();
}

type Accesses<'a> = Vec<(&'static str, &'a Path, Box<dyn Fn() + 'a>)>;

/// Whether each of many accesses has changed the access time of what was accessed.
fn observe(mount: &Path) -> Vec<String> {
    let path = |name: &str| mount.join(name);
    let (file, empty, folder, link) = (path("file"), path("empty"), path("folder"), path("link"));
    let (yesterday, today, never) = (path("yesterday"), path("today"), path("never"));
    fs::write(&file, [2; 10_000]).unwrap();
    fs::write(&empty, "").unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("entry"), "").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    let none = OFlags::empty();
    let list = |flags| {
        let folder = rustix::fs::open(&folder, OFlags::RDONLY | flags, rustix::fs::Mode::empty());
        assert!(rustix::fs::Dir::read_from(folder.unwrap()).unwrap().count() >= 3);
    };
    let accesses: Accesses<'_> = vec![
        ("only opened", &file, Box::new(|| drop(File::open(&file).unwrap()))),
        ("read unnoted", &file, Box::new(|| read(&file, OFlags::NOATIME))),
        ("read", &file, Box::new(|| read(&file, none))),
        ("read again", &file, Box::new(|| read(&file, none))),
        (
            "written",
            &file,
            Box::new(|| {
                let file = OpenOptions::new().write(true).open(&file).unwrap();
                file.write_all_at(b"more", 0).unwrap();
            }),
        ),
        ("read once written", &file, Box::new(|| read(&file, none))),
        ("read from the cache", &file, Box::new(|| read(&file, none))),
        (
            "written through the cache",
            &file,
            Box::new(|| {
                let file = OpenOptions::new().read(true).write(true).open(&file).unwrap();
                file.write_all_at(&[3; 8192], 0).unwrap();
            }),
        ),
        ("read from the cache once written", &file, Box::new(|| read(&file, none))),
        (
            "read directly",
            &file,
            Box::new(|| {
                read_direct(&open_direct(&file), 0, 4096).unwrap();
            }),
        ),
        (
            "mapped",
            &file,
            Box::new(|| {
                File::options().append(true).open(&file).unwrap().set_len(20_000).unwrap();
                std::thread::sleep(TICKS);
                let file = OpenOptions::new().read(true).write(true).open(&file).unwrap();
                assert_eq!(Mapped::new(&file, 20_000).load(15_000, 5), [0; 5]);
            }),
        ),
        ("an empty file read", &empty, Box::new(|| read(&empty, none))),
        ("read an hour ago", &today, Box::new(|| read(&today, none))),
        ("read a day ago", &yesterday, Box::new(|| read(&yesterday, none))),
        ("read a day ago, and now again", &yesterday, Box::new(|| read(&yesterday, none))),
        ("chattr +A", &never, Box::new(|| read(&never, none))),
        ("listed unnoted", &folder, Box::new(|| list(OFlags::NOATIME))),
        (
            "listed",
            &folder,
            Box::new(|| {
                // But for strictatime, the server does not hear of a listing that the kernel has.
                fs::write(folder.join("one more"), "").unwrap();
                std::thread::sleep(TICKS);
                list(none);
            }),
        ),
        ("listed again", &folder, Box::new(|| list(none))),
        (
            "listed once changed",
            &folder,
            Box::new(|| {
                fs::write(folder.join("another"), "").unwrap();
                std::thread::sleep(TICKS);
                list(none);
            }),
        ),
        ("a link read", &link, Box::new(|| drop(fs::read_link(&link).unwrap()))),
        ("only looked at", &file, Box::new(|| assert!(file.exists()))),
    ];
    let time = |path: &Path| {
        let found = fs::symlink_metadata(path).unwrap();
        (found.atime(), found.atime_nsec())
    };
    let mut observed = Vec::new();
    for (what, path, access) in accesses {
        std::thread::sleep(TICKS);
        let before = time(path);
        access();
        observed
            .push(format!("{what}: {}", if time(path) == before { "stays" } else { "changes" }));
    }
    observed
}

/// The access times of what is in the root.
fn access_times(mount: &Path) -> Vec<(String, i64, i64)> {
    let mut found: Vec<_> = fs::read_dir(mount)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let found = fs::symlink_metadata(entry.path()).unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, found.atime(), found.atime_nsec())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn accesses_change_the_access_time_as_with_the_kernel() {
    private_mounts();
    for options in ["relatime", "strictatime", "noatime", "strictatime,nodiratime", "lazytime"] {
        let place = Location::new();
        let kernels_image = place.folder.path().join("kernels.img");
        make(&place, &kernels_image);
        make(&place, &place.image);
        let kernels = LoopMount::new(&kernels_image, "ext4", &format!("rw,atime,{options}"));
        let expected = observe(kernels.path());
        kernels.unmount();
        let mount = place.mount(&["-o", &format!("rw,{options}")]);
        assert_eq!(observe(mount.path()), expected, "{options}");
        let seen = access_times(mount.path());
        place.umount();
        mount.assert_gone();
        check_by_e2fsck(&place.image);
        let kernels = LoopMount::new(&place.image, "ext4", "ro");
        assert_eq!(access_times(kernels.path()), seen, "{options}: what was shown is stored");
    }
}

#[test]
fn access_times_that_were_synced_outlive_a_server_that_is_killed() {
    private_mounts();
    for options in ["rw", "rw,lazytime"] {
        let place = Location::new();
        make(&place, &place.image);
        let mount = place.mount(&["-o", options]);
        let path = mount.path().join("yesterday");
        let atime = || fs::metadata(&path).unwrap().accessed().unwrap();
        let before = atime();
        read(&path, OFlags::empty());
        let seen = atime();
        assert!(seen > before);
        File::open(&path).unwrap().sync_all().unwrap();
        mount.signal_server(Signal::KILL);
        mount.assert_gone();
        let mount = place.mount(&["-o", "rw,noatime"]);
        assert_eq!(atime(), seen, "{options}");
        place.umount();
        mount.assert_gone();
    }
}

#[test]
fn mounts_show_how_they_keep_access_times() {
    private_mounts();
    let place = Location::with_tree();
    let shown = |options: &str| {
        let mount = place.mount(&["-o", options]);
        let entry = mount_entry(mount.path()).unwrap();
        let fields: Vec<_> = entry.split(' ').collect();
        let all = format!("{},{}", fields[5], fields[fields.len() - 1]);
        place.umount();
        mount.assert_gone();
        let known = ["relatime", "noatime", "nodiratime", "lazytime"];
        all.split(',').filter(|option| known.contains(option)).collect::<Vec<_>>().join(" ")
    };
    for (options, expected) in [
        ("rw", "relatime"),
        ("ro", "relatime"),
        ("rw,noatime", "noatime"),
        ("rw,strictatime", ""),
        ("rw,relatime,nodiratime", "nodiratime relatime"),
        ("rw,lazytime", "relatime lazytime"),
    ] {
        let mut found: Vec<_> = shown(options).split(' ').map(str::to_owned).collect();
        let mut expected: Vec<_> = expected.split(' ').map(str::to_owned).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{options}");
    }
    place.give_to_nobody();
    let mount = place.mount_as(NOBODY, &["-o", "ro,noatime"]);
    assert!(mount_entry(mount.path()).unwrap().contains("noatime"));
    place.umount_as(NOBODY);
    mount.assert_gone();
}

#[test]
fn reading_what_is_mounted_read_only_changes_nothing() {
    private_mounts();
    let place = Location::new();
    make(&place, &place.image);
    let before = fs::read(&place.image).unwrap();
    for options in ["ro", "ro,strictatime"] {
        let mount = place.mount(&["-o", options]);
        read(&mount.path().join("yesterday"), OFlags::empty());
        assert!(fs::read_dir(mount.path()).unwrap().count() >= 3);
        place.umount();
        mount.assert_gone();
        assert!(fs::read(&place.image).unwrap() == before, "{options}");
    }
    let mount = place.mount(&["-o", "rw,noatime"]);
    let seen = access_times(mount.path());
    read(&mount.path().join("yesterday"), OFlags::empty());
    assert_eq!(access_times(mount.path()), seen);
}

#[test]
fn files_are_not_older_than_their_contents() {
    private_mounts();
    for options in ["rw,nowriteback", "rw,writeback"] {
        let place = Location::with_tree();
        let check = |mount: &Path| {
            for number in 0..100 {
                let found = fs::metadata(mount.join(format!("file {number}"))).unwrap();
                let (born, modified) = (found.created().unwrap(), found.modified().unwrap());
                assert!(born <= modified, "{options}: {born:?}, then {modified:?}");
            }
        };
        let mount = place.mount(&["-o", options]);
        for number in 0..100 {
            fs::write(mount.path().join(format!("file {number}")), "data").unwrap();
        }
        check(mount.path());
        place.umount();
        mount.assert_gone();
        let mount = place.mount(&["-o", options]);
        check(mount.path());
        place.umount();
        mount.assert_gone();
    }
}
