//! Confinement of the server: its user, capabilities, system call filter and open files.

mod mounting;

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use mounting::{Fixture, Mount, NOBODY, as_user, bifolio, mount_entry};
use testkit::command::output;
use testkit::{
    Denied, LAYERS_REFUSED, add_group, deny, fakes_of_layers, private_mounts, refusals_of_layer,
    wait_until,
};

#[test]
fn the_server_is_confined_by_default() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let facts = |process: i32| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let fact = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        ["Uid:", "CapEff:", "CapPrm:", "NoNewPrivs:", "Seccomp:"].map(fact)
    };
    let mount = fixture.mount(&[]);
    assert_eq!(facts(mount.server()), ["65534", "0000000000000000", "0000000000000000", "1", "2"]);
    let namespace =
        |process: &str, kind| fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap();
    let server = mount.server().to_string();
    for kind in ["mnt", "net", "ipc", "uts"] {
        assert_ne!(namespace(&server, kind), namespace("self", kind));
    }
    // DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SYS_PTRACE and SYS_ADMIN.
    let kept =
        format!("{:016x}", [1, 2, 5, 19, 21].map(|number| 1_u64 << number).iter().sum::<u64>());
    assert_eq!(facts(mount.guard()), ["0", &kept, &kept, "1", "0"]);
    drop(mount);
    let mount = fixture.mount(&["--no-confine"]);
    assert_eq!(facts(mount.server())[0], "0");
    assert_eq!(facts(mount.server())[4], "0");
    assert!(mount.path().join("small").exists());
}

#[test]
fn the_server_cannot_read_the_callers_terminal() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let [_ours, theirs] = testkit::open_terminal();
    let mut command = bifolio("mount");
    command.arg("-f").arg(&fixture.image).arg(&fixture.directory);
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    drop(command);
    wait_until("the mount", || {
        assert_eq!(child.try_wait().unwrap(), None);
        fixture.directory.join("small").exists()
    });
    let mount = fixture.mounted();
    let process = PathBuf::from(format!("/proc/{}", mount.server()));
    let mut terminals = 0;
    for file in fs::read_dir(process.join("fd")).unwrap() {
        let file = file.unwrap();
        if fs::read_link(file.path()).unwrap().starts_with("/dev/pts") {
            let facts = fs::read_to_string(process.join("fdinfo").join(file.file_name())).unwrap();
            let flags = facts.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
            assert_eq!(flags & libc::O_ACCMODE, libc::O_WRONLY, "{:?}: {facts}", file.path());
            terminals += 1;
        }
    }
    assert_eq!(terminals, 1, "for messages");
    fixture.umount();
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_a_layer_nothing_is_mounted_unless_an_option_names_it() {
    private_mounts();
    let fixture = Fixture::with_tree();
    for case in LAYERS_REFUSED {
        let layer = case.split(' ').next().unwrap();
        let option = format!("--no-confine={layer}");
        let mount = |options: &[&str]| {
            let mut command = bifolio("mount");
            command.args(options).arg(&fixture.image).arg(&fixture.directory);
            deny(&mut command, &refusals_of_layer(case));
            output(&mut command)
        };
        let failed = mount(&[]);
        assert!(!failed.status.success(), "{case}");
        assert!(failed.text().contains(&option), "{case}: {}", failed.text());
        assert_eq!(mount_entry(&fixture.directory), None, "{case}");
        let other = if layer == "user" { "--no-confine=limits" } else { "--no-confine=user" };
        assert!(!mount(&[other]).status.success(), "{case}");
        // The kernel takes both filters only from processes that cannot get new privileges.
        let all = format!("{option},landlock,seccomp");
        let named = mount(&[if layer == "no-new-privs" { &all } else { &option }]);
        assert!(named.status.success(), "{case}: {}", named.text());
        let mounted = fixture.mounted();
        assert!(mounted.path().join("small").exists(), "{case}");
        drop(mounted);
    }
}

#[test]
fn a_layer_that_the_host_only_says_to_apply_is_missing() {
    private_mounts();
    let fixture = Fixture::with_tree();
    for (layer, fakes) in fakes_of_layers() {
        let mut command = bifolio("mount");
        command.arg(&fixture.image).arg(&fixture.directory);
        add_group(&mut command);
        deny(&mut command, &fakes);
        let failed = output(&mut command);
        assert!(!failed.status.success(), "{fakes:?}");
        let text = failed.text();
        assert!(text.contains(&format!("--no-confine={layer}")), "{fakes:?}: {text}");
        assert_eq!(mount_entry(&fixture.directory), None, "{fakes:?}");
    }
}

#[test]
fn the_variable_leaves_out_no_layers_of_a_mount() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mut command = bifolio("mount");
    command.env("BIFOLIO_NO_CONFINE", "all").arg(&fixture.image).arg(&fixture.directory);
    let mounted = output(&mut command);
    assert!(mounted.status.success(), "{}", mounted.text());
    assert!(mounted.text().contains("BIFOLIO_NO_CONFINE is ignored"), "{}", mounted.text());
    let mount = fixture.mounted();
    let status = fs::read_to_string(format!("/proc/{}/status", mount.server())).unwrap();
    for fact in ["Uid:\t65534", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(fact), "{fact}: {status}");
    }
}

#[test]
fn the_server_warns_of_an_old_landlock() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let log = fixture.image.with_file_name("log");
    let mut command = Command::new("strace");
    // The first call asks for the version: here, that of Linux 5.13.
    let injected = "inject=landlock_create_ruleset:retval=1:when=1";
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=landlock_create_ruleset", "-e"]);
    command.arg(injected).arg(env!("CARGO_BIN_EXE_bifolio")).arg("mount").arg("--log").arg(&log);
    // strace ends with the server.
    let mut child = command.arg(&fixture.image).arg(&fixture.directory).spawn().unwrap();
    wait_until("the mount", || {
        assert_eq!(child.try_wait().unwrap(), None);
        fixture.directory.join("small").exists()
    });
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains("warning: the kernel's Landlock does not control"), "{logged}");
    fixture.umount();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_confined_server_parses_the_journal() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let folder = fixture.image.parent().unwrap();
    let script = "truncate -s 8M journal; truncate -s 64M journaled; mke2fs -qF -O journal_dev journal
        device=$(losetup -f --show journal); mke2fs -qF -t ext4 -J device=$device journaled; losetup -d $device
        img2simg journal sparse";
    let made = output(Command::new("bash").args(["-ec", script]).current_dir(folder));
    assert!(made.status.success(), "{}", made.text());
    let mount = |options: &str, case: Option<&str>| {
        let mut command = bifolio("mount");
        command.args(["-o", options, "--journal"]).arg(folder.join("sparse"));
        command.arg(folder.join("journaled")).arg(&fixture.directory);
        if let Some(case) = case {
            deny(&mut command, &refusals_of_layer(case));
        }
        output(&mut command)
    };
    let mounted = mount("ro", None);
    assert!(mounted.status.success(), "{}", mounted.text());
    assert!(fixture.mounted().path().join("lost+found").exists());
    // It can only be read, which is known when it is parsed.
    let text = "sparse: the image is an Android sparse image, which can only be read";
    let refused = mount("rw", None).text();
    assert!(refused.contains(text), "{refused}");
    for case in LAYERS_REFUSED {
        let refused = mount("rw", Some(case)).text();
        assert!(refused.contains("--no-confine=") && !refused.contains(text), "{case}: {refused}");
    }
}

#[test]
fn an_ordinary_users_server_is_confined_too() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.allow_nobody();
    let mut command = as_user(NOBODY, env!("CARGO_BIN_EXE_bifolio"));
    command.arg("mount").arg(&fixture.image).arg(&fixture.directory);
    let mount = output(&mut command);
    assert!(mount.status.success(), "{}", mount.text());
    let mounted = fixture.mounted();
    let status = fs::read_to_string(format!("/proc/{}/status", mounted.server())).unwrap();
    for fact in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(fact), "{fact}: {status}");
    }
    // Other processes of the user cannot read its memory: its files in /proc belong to root.
    let owner = fs::metadata(format!("/proc/{}/mem", mounted.server())).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 0);
}

#[test]
fn server_and_guard_have_nothing_of_their_callers() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let secret = fs::File::open("/etc/shadow").unwrap();
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
    let mut command = bifolio("mount");
    // The C library keeps a copy of this variable.
    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    command.env("SECRET", "a word").arg(&fixture.image).arg(&fixture.directory);
    let mount = output(&mut command);
    assert!(mount.status.success(), "{}", mount.text());
    let mounted = fixture.mounted();
    for process in [mounted.server(), mounted.guard()] {
        for file in fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
            let link = fs::read_link(file.unwrap().path()).unwrap();
            assert_ne!(link, PathBuf::from("/etc/shadow"), "{}", secret.as_raw_fd());
        }
    }
    let environment = fs::read(format!("/proc/{}/environ", mounted.server())).unwrap();
    assert!(environment.iter().all(|byte| *byte == 0));
}

/// A disk with the fixture's image in its second partition.
struct Disk {
    fixture: Fixture,
    path: PathBuf,
    /// The bytes before and after the partition.
    outside: [Vec<u8>; 2],
    start: usize,
}

const PARTITION_BYTES: usize = 64 << 20;

impl Disk {
    fn new() -> Self {
        let fixture = Fixture::with_tree();
        let path = fixture.image.with_file_name("disk");
        let script = r#"head -c 90M /dev/urandom > disk
            printf 'label: gpt\nsize=10M\nsize=64M\n' | sfdisk -q --wipe=never disk
            start=$(sfdisk -d disk | sed -n 's/^disk2 : start= *\([0-9]*\),.*/\1/p')
            dd if=volume.img of=disk bs=512 seek=$start conv=notrunc 2>/dev/null
            echo $((start * 512))"#;
        let folder = path.parent().unwrap();
        let made = output(Command::new("bash").args(["-ec", script]).current_dir(folder));
        assert!(made.status.success(), "{}", made.text());
        let start = String::from_utf8(made.stdout).unwrap().trim().parse().unwrap();
        let disk = fs::read(&path).unwrap();
        let outside = [disk[..start].to_vec(), disk[start + PARTITION_BYTES..].to_vec()];
        Self { fixture, path, outside, start }
    }

    /// Mounts a part of `image` for writing.
    fn mount(&self, image: &Path, part: [&str; 2]) -> Mount<'_> {
        let mut command = bifolio("mount");
        command.args(["-o", "rw"]).args(part).arg(image).arg(&self.fixture.directory);
        let mounted = output(&mut command);
        assert!(mounted.status.success(), "{}", mounted.text());
        self.fixture.mounted()
    }

    /// Checks that nothing but the partition has changed.
    fn check(&self) {
        let disk = fs::read(&self.path).unwrap();
        assert!(disk[..self.start] == self.outside[0], "data before the partition has changed");
        let after = &disk[self.start + PARTITION_BYTES..];
        assert!(after == self.outside[1], "data after the partition has changed");
    }

    fn command(&self, arguments: &[&str], path: &str) -> testkit::command::Output {
        let mut command = bifolio(arguments[0]);
        let image = format!("{}:{path}", self.path.display());
        output(command.args(&arguments[1..]).args(["--partition", "2"]).arg(image))
    }
}

/// Returns the disk and the loop devices that a process has open.
fn open_files(process: i32) -> Vec<PathBuf> {
    let folder = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = folder.map(|file| fs::read_link(file.unwrap().path()).unwrap());
    let is_disk =
        |link: &PathBuf| link.ends_with("disk") || link.to_string_lossy().starts_with("/dev/loop");
    links.filter(is_disk).collect()
}

#[test]
fn roots_server_of_a_partition_has_nothing_else_of_the_disk() {
    private_mounts();
    let disk = Disk::new();
    let start = disk.start.to_string();
    for part in [["--partition", "2"], ["--offset", &start]] {
        let mount = disk.mount(&disk.path, part);
        let files = open_files(mount.server());
        assert_eq!(files.len(), 1, "{files:?}");
        assert!(files[0].starts_with("/dev"), "{files:?}");
        let folder = Path::new("/sys/block").join(files[0].file_name().unwrap());
        let fact = |name: &str| fs::read_to_string(folder.join(name)).unwrap().trim().to_owned();
        assert_eq!(fact("loop/offset"), start);
        if part[0] == "--partition" {
            assert_eq!(fact("size"), (PARTITION_BYTES / 512).to_string());
        }
        fs::write(mount.path().join(part[0]), part[0]).unwrap();
        // The guard keeps the lock of the whole image.
        let refused = disk.command(&["ls"], "/").text();
        assert!(refused.contains("in use") || refused.contains("busy"), "{refused}");
        drop(mount);
        assert_eq!(disk.command(&["cat"], &format!("/{}", part[0])).text(), part[0]);
        wait_until("the loop device is detached", || !folder.join("loop").exists());
    }
    disk.check();
}

#[test]
fn without_an_answer_about_the_partition_nothing_is_mounted() {
    private_mounts();
    let disk = Disk::new();
    let mount = |number: &str, denied: &[Denied]| {
        let mut command = bifolio("mount");
        command.args(["-o", "rw", "--partition", number]);
        command.arg(&disk.path).arg(&disk.fixture.directory);
        deny(&mut command, denied);
        let failed = output(&mut command);
        assert!(!failed.status.success(), "{}", failed.text());
        assert_eq!(mount_entry(&disk.fixture.directory), None);
        failed.text()
    };
    // The process that reads the partition table cannot be started, or is not confined.
    let fork = Denied { call: libc::SYS_clone, first_argument: None, errno: libc::EAGAIN };
    let text = mount("2", &[fork]);
    assert!(text.contains("cannot find the part of the image to mount: cannot fork"), "{text}");
    let text = mount("2", &refusals_of_layer("limits"));
    assert!(text.contains("--no-confine=limits"), "{text}");
    // It ends with the error that it has found, which is reported once.
    let text = mount("9", &[]);
    assert!(text.contains("no partition 9: the") && text.lines().count() == 1, "{text}");
    disk.check();
}
