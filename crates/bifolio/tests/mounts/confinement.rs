//! Confinement of the server: its user, capabilities, system call filter and open files.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mounting::{Fixture, LoopDevice, Mount, NOBODY, as_user, bifolio, mount_entry, run_as};
use testkit::command::output;
use testkit::{
    Denied, LAYERS_REFUSED, Limits, add_group, become_user, deny, fakes_of_layers, private_mounts,
    refusals_of_layer, wait_until,
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
        ["Uid:", "CapEff:", "CapPrm:", "CapBnd:", "NoNewPrivs:", "Seccomp:"].map(fact)
    };
    let none = "0000000000000000";
    let mount = fixture.mount(&[]);
    assert_eq!(facts(mount.server()), ["65534", none, none, none, "1", "2"]);
    let namespace =
        |process: &str, kind| fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap();
    let server = mount.server().to_string();
    for kind in ["mnt", "net", "ipc", "uts"] {
        assert_ne!(namespace(&server, kind), namespace("self", kind));
    }
    // DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SYS_PTRACE and SYS_ADMIN.
    let kept =
        format!("{:016x}", [1, 2, 5, 19, 21].map(|number| 1_u64 << number).iter().sum::<u64>());
    assert_eq!(facts(mount.guard()), ["0", &kept, &kept, none, "1", "0"]);
    drop(mount);
    let mount = fixture.mount(&["--no-confine"]);
    let [user, .., filter] = facts(mount.server());
    assert_eq!([user.as_str(), &filter], ["0", "0"]);
    assert_ne!(facts(mount.server())[3], none);
    assert!(mount.path().join("small").exists());
}

#[test]
fn resources_of_the_server_are_limited() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let log = fixture.image.with_file_name("log");
    fs::write(&log, [b'\n'; 1000]).unwrap();
    let log = log.display().to_string();
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let memory = memory.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10;
    // Twice the cache, and what the nodes and the formats may need.
    let memory = memory + (128 << 20) + (4 << 30);
    for (options, file_size) in [
        (&["-o", "rw"][..], None),
        // It may become writable.
        (&["-o", "ro"], None),
        // Messages go to an empty file.
        (&["-o", "ro,noload"], Some(64 << 20)),
        (&["-o", "ro,noload", "--log", &log], Some(1000 + (64 << 20))),
    ] {
        let mount = fixture.mount(&[options, &["--cache-size", "64M"]].concat());
        let found = Limits::of(mount.server());
        found.check(file_size);
        // What the program has mapped before.
        let mapped = found.address_space.unwrap() - memory;
        assert!((1 << 20..1 << 30).contains(&mapped), "{options:?}: {mapped}");
    }
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

/// Mounts as `user`, or as root, on hosts that refuse one layer each. Only without that layer, the
/// mount succeeds.
fn check_each_layer(user: Option<u32>) {
    private_mounts();
    let fixture = Fixture::with_tree();
    if user.is_some() {
        fixture.allow_nobody();
    }
    // An ordinary user does not become another one.
    let cases = LAYERS_REFUSED.into_iter().filter(|case| user.is_none() || *case != "user");
    for case in cases {
        let layer = case.split(' ').next().unwrap();
        let option = format!("--no-confine={layer}");
        let mount = |options: &[&str]| {
            let mut command = bifolio("mount");
            command.args(options).arg(&fixture.image).arg(&fixture.directory).current_dir("/");
            deny(&mut command, &refusals_of_layer(case));
            if let Some(user) = user {
                become_user(&mut command, user);
            }
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
        match user {
            // Only this user may access the mount.
            Some(user) => run_as(user, user, || {
                assert!(mounted.path().join("small").exists(), "{case}");
            }),
            None => assert!(mounted.path().join("small").exists(), "{case}"),
        }
        drop(mounted);
    }
}

#[test]
fn without_a_layer_nothing_is_mounted_unless_an_option_names_it() {
    check_each_layer(None);
}

#[test]
fn without_a_layer_an_ordinary_user_mounts_nothing_unless_an_option_names_it() {
    check_each_layer(Some(NOBODY));
}

#[test]
fn a_guard_with_privileges_that_it_does_not_need_mounts_nothing() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let prctl = |option: i32, errno| {
        let first_argument = Some(option as u32);
        Denied { call: libc::SYS_prctl, first_argument, errno }
    };
    let capset = Denied { call: libc::SYS_capset, first_argument: None, errno: 0 };
    // A call that is refused, or has no effect; the layer of the guard, and the layers without
    // which there is a mount. The server needs the last call for nothing else: with its user, it
    // loses the capabilities.
    for (denied, layer, others) in [
        (prctl(libc::PR_CAPBSET_DROP, libc::EPERM), "capabilities", "user,capabilities"),
        (prctl(libc::PR_CAPBSET_DROP, 0), "capabilities", "user,capabilities"),
        (prctl(libc::PR_SET_NO_NEW_PRIVS, 0), "no-new-privs", "no-new-privs,landlock,seccomp"),
        (prctl(libc::PR_SET_DUMPABLE, 0), "no-new-privs", "no-new-privs,user,landlock,seccomp"),
        (capset, "capabilities", "capabilities"),
    ] {
        let mount = |options: &[&str]| {
            let mut command = bifolio("mount");
            command.args(options).arg(&fixture.image).arg(&fixture.directory);
            deny(&mut command, &[denied]);
            output(&mut command)
        };
        let failed = mount(&[]);
        assert!(!failed.status.success(), "{denied:?}");
        let text = failed.text();
        assert!(text.contains("cannot confine the guard of the mount; "), "{denied:?}: {text}");
        assert!(text.contains(&format!("--no-confine={layer}")), "{denied:?}: {text}");
        assert_eq!(mount_entry(&fixture.directory), None, "{denied:?}");
        let named = mount(&[&format!("--no-confine={others}")]);
        assert!(named.status.success(), "{denied:?}: {}", named.text());
        drop(fixture.mounted());
    }
}

#[test]
fn a_guard_with_fewer_privileges_than_it_needs_mounts() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let [dac_override, dac_read_search, kill, sys_ptrace, sys_admin] =
        [1, 2, 5, 19, 21].map(|number| 1_u64 << number);
    let mounting = dac_override | dac_read_search | sys_admin;
    // What a container takes from root, what the guard keeps, and what the server misses.
    for (taken, kept, missing) in [
        ("-kill,-sys_ptrace,-chown", mounting, ""),
        ("-setpcap", mounting | kill | sys_ptrace, "without CAP_SETPCAP"),
    ] {
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={taken}")).arg("--inh-caps=-all");
        command.args([env!("CARGO_BIN_EXE_bifolio"), "mount"]);
        let mounted = output(command.arg(&fixture.image).arg(&fixture.directory));
        let text = mounted.text();
        assert!(mounted.status.success() && text.contains(missing), "{taken}: {text}");
        assert_eq!(text.lines().count(), usize::from(!missing.is_empty()), "{taken}: {text}");
        let mount = fixture.mounted();
        let status = fs::read_to_string(format!("/proc/{}/status", mount.guard())).unwrap();
        for fact in [format!("CapPrm:\t{kept:016x}\n"), "NoNewPrivs:\t1\n".to_owned()] {
            assert!(status.contains(&fact), "{taken}, {fact}: {status}");
        }
    }
}

/// The warning of a server that has no right to a part of its confinement.
const NO_RIGHT: &str =
    "warning: the process that reads the image has no right to a part of its confinement; ";

#[test]
fn a_server_without_the_right_to_a_layer_has_all_others() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.share_device();
    let folder = fixture.image.parent().unwrap();
    let program = env!("CARGO_BIN_EXE_bifolio");
    let nobody = "65534";
    // What the process misses, the warning, and the user and group of the server.
    let cases: &[(&[&str], Option<&str>, [&str; 2])] = &[
        (
            &["setpriv", "--bounding-set=-setpcap"],
            Some("capabilities: without CAP_SETPCAP"),
            [nobody; 2],
        ),
        (&["setpriv", "--bounding-set=-setuid"], Some("user: without CAP_SETUID"), ["0", nobody]),
        (&["setpriv", "--bounding-set=-setgid"], Some("user: without CAP_SETGID"), [nobody, "0"]),
        (&["setpriv", "--bounding-set=-sys_chroot"], None, [nobody; 2]),
        (
            &["unshare", "-Urm"],
            Some("user: the user namespace has no user nobody (65534)"),
            ["0"; 2],
        ),
    ];
    for (wrapper, warning, ids) in cases {
        for options in ["ro", "rw"] {
            let case = format!("{wrapper:?}, {options}");
            // The mount of a user namespace is seen in it only.
            let script = r#""$0" mount -o "$1" "$2" "$3" && ls "$3"
                for process in $(pgrep -P $$ bifolio; pgrep -f "^$0 mount -o $1 $2"); do
                    grep -q "Seccomp:.2" /proc/$process/status 2>/dev/null && cat /proc/$process/status
                done; test $1 = ro || touch "$3/touched"; "$0" umount "$3""#;
            let mut command = Command::new(wrapper[0]);
            command.args(&wrapper[1..]);
            if wrapper[0] == "setpriv" {
                command.arg("--inh-caps=-all");
            }
            command.args(["bash", "-c", script, program, options]);
            let done = output(command.arg(&fixture.image).arg(&fixture.directory));
            let text = done.text();
            assert!(done.status.success() && text.contains("small"), "{case}: {text}");
            let warned = text.lines().filter(|line| line.contains("warning")).collect::<Vec<_>>();
            match warning {
                Some(warning) => {
                    let expected = format!("{NO_RIGHT}{warning}");
                    let is_one = warned.len() == 1 && warned[0].contains(&expected);
                    assert!(is_one, "{case}: {warned:?}");
                }
                None => assert!(warned.is_empty(), "{case}: {warned:?}"),
            }
            let none = "0000000000000000";
            for (fact, value) in
                [("Uid:", ids[0]), ("Gid:", ids[1]), ("CapPrm:", none), ("NoNewPrivs:", "1")]
            {
                let found = text.lines().find_map(|line| line.strip_prefix(fact));
                let found = found.and_then(|words| words.split_whitespace().next());
                assert_eq!(found, Some(value), "{case}, {fact} {text}");
            }
        }
    }
    testkit::check_by_e2fsck(&folder.join(fixture.image.file_name().unwrap()));
}

#[test]
fn a_filter_that_refuses_landlock_is_told_from_a_kernel_without_it() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let helper = fixture.image.with_file_name("mount.bifolio");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bifolio"), &helper).unwrap();
    let mount = |errno, options: &str| {
        let mut command = Command::new(&helper);
        command.arg(&fixture.image).arg(&fixture.directory).args(["-o", options]);
        let call = libc::SYS_landlock_create_ruleset;
        deny(&mut command, &[Denied { call, first_argument: None, errno }]);
        output(&mut command)
    };
    for (errno, reason) in [
        (libc::EPERM, "a filter on system calls, such as a container's, refuses its calls (EPERM)"),
        (
            libc::ENOSYS,
            "a filter on system calls, such as a container's, refuses its calls (ENOSYS)",
        ),
        (libc::EOPNOTSUPP, "`landlock` is missing in `lsm=` (EOPNOTSUPP)"),
    ] {
        let failed = mount(errno, "ro");
        let text = failed.text();
        assert!(!failed.status.success() && text.contains(reason), "{errno}: {text}");
        assert!(text.contains("take the option no_confine=LAYER"), "{errno}: {text}");
        assert_eq!(mount_entry(&fixture.directory), None, "{errno}");
        let mounted = mount(errno, "ro,no_confine=landlock");
        assert!(mounted.status.success(), "{errno}: {}", mounted.text());
        let mount = fixture.mounted();
        let status = fs::read_to_string(format!("/proc/{}/status", mount.server())).unwrap();
        assert!(status.contains("Uid:\t65534") && status.contains("Seccomp:\t2"), "{status}");
    }
}

#[test]
fn a_layer_that_the_host_only_says_to_apply_is_missing() {
    private_mounts();
    let fixture = Fixture::with_tree();
    for (layer, fakes) in fakes_of_layers() {
        let mut command = bifolio("mount");
        // Otherwise the guard, which has no layer of this name, would fail.
        command.args((layer == "user").then_some("--no-confine=capabilities"));
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
    command.arg("mount").arg(&fixture.image).arg(&fixture.directory).env("SECRET", "a word");
    let mount = output(&mut command);
    assert!(mount.status.success(), "{}", mount.text());
    let mounted = fixture.mounted();
    check_environment(&mounted);
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
    check_environment(&mounted);
}

/// Checks that nothing is left of the environment with which the processes of a mount were started.
fn check_environment(mount: &Mount<'_>) {
    for process in [mount.server(), mount.guard()] {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
        // Nothing is printed of it, since it may contain secrets.
        assert!(environment.iter().all(|byte| *byte == 0));
    }
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

/// Returns whether a process could write to more bytes of the disk than the partition: through the
/// disk itself, or a loop device of that size.
fn holds_whole_disk(process: i32) -> bool {
    let folder = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    folder.map(|file| file.unwrap().file_name()).any(|number| {
        let number = number.to_string_lossy();
        let link = fs::read_link(format!("/proc/{process}/fd/{number}")).unwrap();
        let facts = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).unwrap();
        let flags = facts.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        let name = link.file_name().unwrap_or_default();
        let offset = fs::read_to_string(Path::new("/sys/block").join(name).join("loop/offset"));
        let is_disk = link.ends_with("disk") || offset.is_ok_and(|offset| offset == "0\n");
        is_disk && flags & libc::O_ACCMODE != libc::O_RDONLY
    })
}

#[test]
fn a_mount_of_a_partition_whose_server_could_change_the_whole_disk_warns() {
    const WARNING: &str = "disk: cannot restrict the server to the part of the image: it has the \
        whole image open";
    private_mounts();
    let disk = Disk::new();
    let fixture = &disk.fixture;
    fixture.allow_nobody();
    std::os::unix::fs::chown(&disk.path, Some(NOBODY), None).unwrap();
    let start = disk.start.to_string();
    let check = |user: Option<u32>, image: &Path, arguments: &[&str], warning: Option<&str>| {
        let program = env!("CARGO_BIN_EXE_bifolio");
        let mut command = user.map_or_else(|| Command::new(program), |user| as_user(user, program));
        command.arg("mount").args(arguments).arg(image).arg(&fixture.directory);
        let mounted = output(&mut command);
        let (case, text) = (format!("{user:?}, {arguments:?}"), mounted.text());
        assert!(mounted.status.success(), "{case}: {text}");
        let mount = fixture.mounted();
        match warning {
            Some(warning) => assert!(text.contains(warning), "{case}: {text}"),
            None => assert!(!text.contains("whole image"), "{case}: {text}"),
        }
        assert_eq!(holds_whole_disk(mount.server()), warning.is_some(), "{case}");
    };
    let part = ["--partition", "2"];
    let offset = ["--offset", start.as_str()];
    for part in [part, offset] {
        let with = |options| [&["-o", options], &part[..]].concat();
        check(None, &disk.path, &with("rw"), None);
        check(None, &disk.path, &with("rw,noloop"), Some(WARNING));
        check(None, &disk.path, &with("ro,noloop"), None);
        check(Some(NOBODY), &disk.path, &with("rw"), Some(WARNING));
        check(Some(NOBODY), &disk.path, &with("ro"), None);
    }
    // The whole image is the part.
    for user in [None, Some(NOBODY)] {
        std::os::unix::fs::chown(&fixture.image, Some(NOBODY), None).unwrap();
        check(user, &fixture.image, &["-o", "rw,noloop", "--offset", "0"], None);
        check(user, &fixture.image, &["-o", "rw,noloop"], None);
    }
    // A device whose partitions the host does not know.
    let device = LoopDevice::new(&disk.path);
    let warning = WARNING.replacen("disk", &device.path().display().to_string(), 1);
    for part in [part, offset] {
        let arguments = [&["-o", "rw"], &part[..]].concat();
        check(None, device.path(), &arguments, Some(&warning));
    }
    drop(device);
    // An Android sparse image, which can only be read.
    let folder = disk.path.parent().unwrap();
    testkit::command::run(Command::new("img2simg").args(["disk", "sparse"]).current_dir(folder));
    for user in [None, Some(NOBODY)] {
        check(user, &folder.join("sparse"), &["-o", "ro", "--partition", "2"], None);
    }
    // A host without loop devices.
    let hide = ["--bind", "/dev/null", "/dev/loop-control"];
    testkit::command::run(Command::new("mount").args(hide));
    check(None, &disk.path, &["-o", "rw", "--partition", "2"], Some(WARNING));
    disk.check();
}
