//! Access times on mounts, compared with the kernel's ext4: the accesses that change them, the time
//! when they are written, and the options in the mount table.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::mounting::direct_and_mapped::{Mapped, open_direct, read_direct};
use crate::mounting::{FORMATS, Fixture, NOBODY, mount_entry};
use rustix::fs::OFlags;
use rustix::process::Signal;
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts};

/// Longer than a tick of the host, so that accesses have different times.
const TICKS: Duration = Duration::from_millis(25);

const HOUR: u64 = 60 * 60;

/// Creates an image with files that were changed 30 hours ago, and read at different times.
fn make(fixture: &Fixture, image: &Path) {
    let source = fixture.folder.path().join(image.file_stem().unwrap());
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
    let script = fixture.folder.path().join("script");
    fs::write(&script, commands).unwrap();
    run(Command::new("debugfs").arg("-w").arg("-f").arg(script).arg(image));
}

/// Reads a whole file that is opened with `flags`.
fn read(path: &Path, flags: OFlags) {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits() as i32);
    options.open(path).unwrap().read_to_end(&mut Vec::new()).unwrap();
}

type Accesses<'a> = Vec<(&'static str, &'a Path, Box<dyn Fn() + 'a>)>;

/// Performs different accesses. Returns whether each of them changed the access time.
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
                // The change makes the kernel drop its cached listing. Without strictatime, the
                // server does not learn of listings from the cache.
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
        ("stat", &file, Box::new(|| assert!(file.exists()))),
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

/// Returns the access times of the entries of the root directory.
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
        let fixture = Fixture::new();
        let kernels_image = fixture.folder.path().join("kernels.img");
        make(&fixture, &kernels_image);
        make(&fixture, &fixture.image);
        let kernels = LoopMount::new(&kernels_image, "ext4", &format!("rw,atime,{options}"));
        let expected = observe(kernels.path());
        kernels.unmount();
        let mount = fixture.mount(&["-o", &format!("rw,{options}")]);
        assert_eq!(observe(mount.path()), expected, "{options}");
        let seen = access_times(mount.path());
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
        let kernels = LoopMount::new(&fixture.image, "ext4", "ro");
        assert_eq!(access_times(kernels.path()), seen, "{options}: what was shown is stored");
    }
}

#[test]
fn synced_access_times_survive_a_killed_server() {
    private_mounts();
    for format in FORMATS {
        for options in ["rw", "rw,lazytime"] {
            let fixture = Fixture::with_volume(format);
            let mount = fixture.mount(&["-o", "rw"]);
            let path = mount.path().join("yesterday");
            fs::write(&path, [1; 10_000]).unwrap();
            let yesterday = SystemTime::now() - Duration::from_secs(25 * HOUR);
            let times = FileTimes::new().set_accessed(yesterday).set_modified(yesterday);
            File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
            fixture.umount();
            mount.assert_gone();

            let mount = fixture.mount(&["-o", options]);
            let atime = || fs::metadata(&path).unwrap().accessed().unwrap();
            let before = atime();
            read(&path, OFlags::empty());
            let seen = atime();
            assert!(seen > before);
            File::open(&path).unwrap().sync_all().unwrap();
            mount.signal_server(Signal::KILL);
            mount.unmount_dead();
            let mount = fixture.mount(&["-o", "rw,noatime"]);
            assert_eq!(atime(), seen, "{format:?}, {options}");
            fixture.umount();
            mount.assert_gone();
            fixture.check();
        }
    }
}

#[test]
fn the_mount_table_shows_access_time_options() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let shown = |options: &str| {
        let mount = fixture.mount(&["-o", options]);
        let entry = mount_entry(mount.path()).unwrap();
        let fields: Vec<_> = entry.split(' ').collect();
        let all = format!("{},{}", fields[5], fields[fields.len() - 1]);
        fixture.umount();
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
    fixture.allow_nobody();
    let mount = fixture.mount_as(NOBODY, &["-o", "ro,noatime"]);
    assert!(mount_entry(mount.path()).unwrap().contains("noatime"));
    fixture.umount_as(NOBODY);
    mount.assert_gone();
}

#[test]
fn reads_of_a_read_only_mount_do_not_change_the_image() {
    private_mounts();
    let fixture = Fixture::new();
    make(&fixture, &fixture.image);
    let before = fs::read(&fixture.image).unwrap();
    for options in ["ro", "ro,strictatime"] {
        let mount = fixture.mount(&["-o", options]);
        read(&mount.path().join("yesterday"), OFlags::empty());
        assert!(fs::read_dir(mount.path()).unwrap().count() >= 3);
        fixture.umount();
        mount.assert_gone();
        assert!(fs::read(&fixture.image).unwrap() == before, "{options}");
    }
    let mount = fixture.mount(&["-o", "rw,noatime"]);
    let seen = access_times(mount.path());
    read(&mount.path().join("yesterday"), OFlags::empty());
    assert_eq!(access_times(mount.path()), seen);
}

#[test]
fn the_modification_time_is_not_before_the_birth_time() {
    private_mounts();
    for options in ["rw,nowriteback", "rw,writeback"] {
        let fixture = Fixture::with_tree();
        let check = |mount: &Path| {
            for number in 0..100 {
                let found = fs::metadata(mount.join(format!("file {number}"))).unwrap();
                let (born, modified) = (found.created().unwrap(), found.modified().unwrap());
                assert!(born <= modified, "{options}: {born:?}, then {modified:?}");
            }
        };
        let mount = fixture.mount(&["-o", options]);
        for number in 0..100 {
            fs::write(mount.path().join(format!("file {number}")), "data").unwrap();
        }
        check(mount.path());
        fixture.umount();
        mount.assert_gone();
        let mount = fixture.mount(&["-o", options]);
        check(mount.path());
        fixture.umount();
        mount.assert_gone();
    }
}
