//! Confinement of the commands: the process has no privileges and no access to files when it parses
//! an image.

mod order;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Image, bifolio, shell};
use testkit::command::output;
use testkit::{
    Denied, LAYERS_REFUSED, Limits, add_group, deny, fakes_of_layers, must, refusals_of_layer,
    wait_until,
};

/// All commands that only read images.
const READERS: [&[&str]; 13] = [
    &["info"],
    &["ls", "-lR"],
    &["tree"],
    &["stat"],
    &["getfattr", "-m", "-"],
    &["lsattr"],
    &["cat"],
    &["du", "-a"],
    &["df"],
    &["find"],
    &["fiemap"],
    &["check"],
    &["defrag", "-n"],
];

fn image() -> Image {
    Image::from_script(
        "ext4",
        4096,
        "mkdir dir; echo x > dir/file; echo secret > file; setfattr -n user.x -v y .",
    )
}

fn reader(command: &[&str], image: &Image) -> Command {
    let mut call = bifolio();
    let path = if command == ["cat"] || command == ["fiemap"] { "/file" } else { "/" };
    call.args(command).arg(image.at(path));
    call
}

/// Waits until the first thread of a command is in a system call.
fn wait_for_call(child: &Child, call: libc::c_long) {
    let path = format!("/proc/{}/syscall", child.id());
    let call = format!("{call} ");
    let is_there = || fs::read_to_string(&path).is_ok_and(|found| found.starts_with(&call));
    wait_until("the command is in the system call", is_there);
}

/// Returns a fact of the kernel about a command.
fn fact(child: &Child, name: &str) -> String {
    let status = must(fs::read_to_string(format!("/proc/{}/status", child.id())), "status");
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).unwrap_or_default().to_owned()
}

/// Checks that a command has no privileges, and a filter on system calls.
fn check_confined(child: &Child, command: &[&str]) {
    let names = ["Uid:", "CapEff:", "CapPrm:", "CapBnd:", "NoNewPrivs:", "Seccomp:"];
    let none = "0000000000000000";
    let facts = names.map(|name| fact(child, name));
    assert_eq!(facts, ["65534", none, none, none, "1", "2"], "{command:?}");
}

/// Returns the ends of a pipe that is full.
fn full_pipe() -> (File, OwnedFd) {
    let (pipe, end) = must(std::io::pipe(), "a pipe");
    let (pipe, end) = (OwnedFd::from(pipe), OwnedFd::from(end));
    let size = rustix::pipe::fcntl_getpipe_size(&end).unwrap();
    must(File::from(must(end.try_clone(), "pipe")).write_all(&vec![0; size]), "filling");
    (pipe.into(), end)
}

/// A command that waits in its first write to a full pipe.
struct Stopped {
    child: Child,
    /// The other end of the pipe.
    pipe: File,
}

impl Stopped {
    /// Starts a command, and waits until it writes.
    fn start(mut command: Command) -> Self {
        let (pipe, end) = full_pipe();
        let child = must(command.stdout(Stdio::from(end)).spawn(), "bifolio");
        wait_for_call(&child, libc::SYS_write);
        Self { child, pipe }
    }

    /// Starts a command whose first error waits in a full pipe.
    fn start_at_error(mut command: Command) -> Self {
        let (pipe, end) = full_pipe();
        let child = must(command.stderr(Stdio::from(end)).spawn(), "bifolio");
        wait_for_call(&child, libc::SYS_write);
        Self { child, pipe }
    }

    /// Returns what the other files of the process are.
    fn files(&self) -> Vec<String> {
        let folder = format!("/proc/{}/fd", self.child.id());
        let entries = must(fs::read_dir(&folder), &folder).map(|entry| must(entry, &folder).path());
        let named = entries.map(|path| must(fs::read_link(path), "a file").display().to_string());
        named.filter(|name| !name.contains("pipe:")).collect()
    }

    /// Lets the command end. Returns whether it has succeeded.
    fn end(mut self) -> bool {
        must(self.pipe.read_to_end(&mut Vec::new()), "reading");
        must(self.child.wait(), "waiting").success()
    }
}

#[test]
fn commands_that_read_are_confined_when_they_print() {
    let image = image();
    let secret = must(File::open("/etc/hostname"), "a file of the host");
    // Inherited by the commands.
    must(rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()), "inherited");
    assert!(shell(image.folder.path(), "ls -l /proc/self/fd").contains("hostname"));
    for command in READERS {
        let stopped = Stopped::start(reader(command, &image));
        check_confined(&stopped.child, command);
        let files = stopped.files();
        assert!(!files.iter().any(|name| name.contains("hostname")), "{command:?}: {files:?}");
        assert!(stopped.end(), "{command:?}");
    }
    let mut call = bifolio();
    call.args(["ls", "--cache-size", "64M", &image.at("/")]);
    let stopped = Stopped::start(call);
    let limits = Limits::of(stopped.child.id());
    // Standard output may be a file, which may get any size.
    limits.check(None);
    // Twice the cache, and what the command may need, beside what it has mapped before.
    let mapped = limits.address_space.unwrap_or(u64::MAX) - (128 << 20) - (8 << 30);
    assert!((1 << 20..1 << 30).contains(&mapped), "{mapped}");
    assert!(stopped.end());
    let mut call = bifolio();
    call.args(["ls", "--no-confine", &image.at("/")]);
    let stopped = Stopped::start(call);
    assert_eq!(["Uid:", "Seccomp:"].map(|name| fact(&stopped.child, name)), ["0", "0"]);
    assert!(stopped.end());
}

#[test]
fn commands_close_inherited_files_of_any_number_where_proc_lists_none() {
    let image = image();
    // The largest number that the host allows, and a limit that is lowered after that.
    let script = "ulimit -Sn hard; last=$(($(ulimit -n) - 1)); eval \"exec 9</etc/hostname $last</etc/hostname\"
        ls -l /proc/self/fd/$last >/dev/null || exit; ulimit -n 256
        exec unshare --mount sh -c 'mount -t tmpfs none /proc; exec \"$@\"' sh \"$@\"";
    // Also before Linux 5.9.
    let old = [Denied { call: libc::SYS_close_range, first_argument: None, errno: libc::ENOSYS }];
    for denied in [&[][..], &old] {
        let mut call = Command::new("bash");
        call.args(["-c", script, "bash", env!("CARGO_BIN_EXE_bifolio"), "ls", &image.at("/")]);
        deny(&mut call, denied);
        let stopped = Stopped::start(call);
        let files = stopped.files();
        assert!(!files.iter().any(|name| name.contains("hostname")), "{files:?}");
        assert!(stopped.end());
    }
}

#[test]
fn commands_that_write_to_images_only_are_confined() {
    let image = image();
    let mut call = bifolio();
    call.args(["defrag", &image.at("/")]);
    let stopped = Stopped::start(call);
    check_confined(&stopped.child, &["defrag"]);
    assert!(stopped.end());
    // The others print nothing unless they fail. Each gets a target that it cannot change first,
    // and then one that it can.
    let at = |path: &str| image.at(path);
    let none = at("/none");
    for call in [
        &["mkdir", &at("/dir"), &at("/new")][..],
        &["ln", &none, &at("/dir/file"), &at("/new")],
        &["rm", "-r", &none, &at("/new")],
        &["chmod", "600", &none, &at("/file")],
        &["chown", "1", &none, &at("/file")],
        &["chattr", "+A", &none, &at("/file")],
        &["setfattr", "-n", "user.x", &none, &at("/file")],
        &["touch", &at("/none/x"), &at("/file")],
        &["truncate", "-s", "5", &at("/dir"), &at("/file")],
        &["mknod", &none.replace("none", "none/x"), "p"],
        &["fallocate", "-l", "1M", &at("/dir"), &at("/file")],
        &["mv", &none, &at("/file"), &at("/dir")],
        &["gc", &at("/")],
    ] {
        let mut command = bifolio();
        command.args(call);
        let stopped = Stopped::start_at_error(command);
        check_confined(&stopped.child, call);
        assert!(!stopped.end(), "{call:?}");
    }
    let moved = output(bifolio().args(["stat", &at("/dir/file")])).text();
    assert!(moved.contains("1048576"), "{moved}");
    // Its standard input is the archive.
    let mut call = bifolio();
    call.args(["tar", "-", &image.at("/dir")]).stdin(Stdio::piped());
    let mut child = must(call.spawn(), "bifolio");
    wait_for_call(&child, libc::SYS_read);
    let archive = must(Command::new("tar").args(["-cC", "/etc", "hostname"]).output(), "tar");
    let mut input = child.stdin.take().expect("a pipe");
    must(input.write_all(&archive.stdout[..600]), "the start of the archive");
    // Until it has read that, and has opened the image.
    wait_until("the command is confined", || fact(&child, "Seccomp:") == "2");
    wait_for_call(&child, libc::SYS_read);
    check_confined(&child, &["tar"]);
    must(input.write_all(&archive.stdout[600..]), "the rest of the archive");
    drop(input);
    assert!(must(child.wait(), "waiting").success());
    let copy = output(bifolio().args(["cat", &image.at("/dir/hostname")]));
    assert_eq!(copy.text(), must(fs::read_to_string("/etc/hostname"), "the file"));
    image.check_by_e2fsck();
}

#[test]
fn commands_cannot_read_the_callers_terminal() {
    let image = Image::from_script("ext4", 4096, "head -c 100000 /dev/urandom | base64 > file");
    let [_ours, theirs] = testkit::open_terminal();
    let mut call = bifolio();
    call.arg("cat").arg(image.at("/file"));
    let copy = || Stdio::from(must(theirs.try_clone(), "the terminal"));
    call.stdin(copy()).stdout(copy()).stderr(copy());
    let mut child = must(call.spawn(), "bifolio");
    drop(call);
    // The terminal is full.
    wait_for_call(&child, libc::SYS_write);
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let facts = |stream: &str| {
        let link = must(fs::read_link(process.join("fd").join(stream)), "a stream");
        let facts = must(fs::read_to_string(process.join("fdinfo").join(stream)), "its facts");
        let flags = facts.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
        let flags = must(i32::from_str_radix(flags.trim(), 8), "flags");
        (link.starts_with("/dev/pts"), flags & libc::O_ACCMODE)
    };
    assert_eq!(facts("0"), (false, libc::O_RDONLY));
    assert_eq!([facts("1"), facts("2")], [(true, libc::O_WRONLY); 2]);
    must(child.kill(), "killing");
    must(child.wait(), "waiting");
}

#[test]
fn put_is_confined_with_its_sources_open() {
    let image = image();
    let folder = image.folder.path();
    shell(folder, "head -c 3000000 /dev/urandom > first; echo second > second; chmod 600 first");
    let here = |name: &str| image.beside(name).display().to_string();
    let mut call = bifolio();
    call.args(["put", &here("first"), &here("none"), &here("image"), &image.at("/dir")]);
    let printed = output(&mut call).text();
    assert!(printed.contains("none: cannot copy: No such file"), "{printed}");
    assert!(printed.contains("image: is the destination image"), "{printed}");
    shell(folder, "mkdir host; mkfifo host/pipe");
    let special = [here("host"), here("host/pipe"), "/dev/null".to_owned()];
    for (source, text) in special.iter().zip(["is a directory", "a special file", "a special"]) {
        let mut call = bifolio();
        let printed = output(call.args(["put", source, &image.at("/dir")])).text();
        assert!(printed.contains(text), "{source}: {printed}");
    }
    let mut call = bifolio();
    call.args(["put", "-", &image.at("/stream")]).stdin(Stdio::piped());
    let mut child = must(call.spawn(), "bifolio");
    wait_for_call(&child, libc::SYS_ppoll);
    check_confined(&child, &["put"]);
    let mut input = child.stdin.take().expect("a pipe");
    must(input.write_all(b"streamed\n"), "the input");
    drop(input);
    assert!(must(child.wait(), "waiting").success());
    let mut read = bifolio();
    read.args(["cat", &image.at("/stream"), &image.at("/dir/first")]);
    let copied = output(&mut read).stdout;
    assert!(copied.starts_with(b"streamed\n"));
    assert!(copied[9..] == must(fs::read(image.beside("first")), "first"), "the copy differs");
    image.check_by_e2fsck();
}

#[test]
fn put_opens_more_files_than_the_limit_of_a_confined_process() {
    let image = Image::from_script("ext4", 4096, "mkdir dir");
    let folder = image.folder.path();
    shell(folder, "mkdir many; cd many; seq 5000 | split -l 1 -a 4 -");
    let program = bifolio().get_program().to_string_lossy().into_owned();
    shell(folder, &format!("ulimit -Sn 256; cd many; '{program}' put * ../image:/dir"));
    let names = output(bifolio().args(["ls", &image.at("/dir")])).text();
    assert_eq!(names.lines().count(), 5000);
    image.check_by_e2fsck();
}

/// Checks a command that copies trees as root: it keeps its user, and the capabilities `kept`. A
/// copy out has `root` as its root directory.
fn check_copying(stopped: &Stopped, kept: u64, root: &Path) {
    let child = &stopped.child;
    let names = ["Uid:", "CapEff:", "CapPrm:", "CapBnd:", "NoNewPrivs:", "Seccomp:"];
    let (kept, none) = (format!("{kept:016x}"), "0".repeat(16));
    assert_eq!(names.map(|name| fact(child, name)), ["0", &kept, &kept, &none, "1", "2"]);
    // A mount of its own has no path.
    let identity = |path: &Path| {
        let metadata = must(fs::metadata(path), "the root directory");
        (metadata.dev(), metadata.ino())
    };
    assert_eq!(identity(Path::new(&format!("/proc/{}/root", child.id()))), identity(root));
    if root != Path::new("/") {
        check_directories(child);
    }
}

/// Checks that all directories which a copy out of an image has open are in one mount, which has no
/// path. From one in a mount of the host, ".." would lead past the root directory.
fn check_directories(child: &Child) {
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let mut mounts = BTreeSet::new();
    for entry in must(fs::read_dir(process.join("fd")), "the descriptors") {
        let entry = must(entry, "a descriptor");
        if fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir()) {
            let facts = process.join("fdinfo").join(entry.file_name());
            let facts = must(fs::read_to_string(facts), "the descriptor's facts");
            let mount = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"));
            mounts.insert(mount.expect("the mount's number").trim().to_owned());
        }
    }
    let of_host = must(fs::read_to_string(process.join("mountinfo")), "the mounts");
    let has_path =
        |mount: &String| of_host.lines().any(|line| line.starts_with(&format!("{mount} ")));
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    assert!(!mounts.iter().any(has_path), "{mounts:?}:\n{of_host}");
}

/// Returns the set of capabilities with these numbers.
fn set(capabilities: &[u32]) -> u64 {
    capabilities.iter().map(|number| 1 << number).sum()
}

/// Numbers of capabilities in Linux.
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const SYS_ADMIN: u32 = 21;
const MKNOD: u32 = 27;
const SETFCAP: u32 = 31;

/// The options and operands of a copy, the capabilities that it keeps, and its root directory.
type CopyCase<'a> = (&'a [&'a str], &'a [&'a str], &'a [u32], &'a Path);

#[test]
fn copies_of_trees_keep_only_what_their_options_need() {
    let image =
        Image::from_script("ext4", 4096, "mkdir dir; echo x > dir/file; mknod dir/null c 1 3");
    let folder = must(image.folder.path().canonicalize(), "the folder");
    shell(&folder, "mkdir tree out; echo y > tree/file");
    let here = |name: &str| folder.join(name).display().to_string();
    // The image contains a directory that is copied without -r, or none, which is reported.
    let cases: [CopyCase<'_>; 6] = [
        (
            &["-r"],
            &[&here("tree"), &here("none"), &image.at("/")],
            &[DAC_READ_SEARCH],
            Path::new("/"),
        ),
        (
            &["-a"],
            &[&here("tree"), &here("none"), &image.at("/")],
            &[DAC_READ_SEARCH, SYS_ADMIN],
            Path::new("/"),
        ),
        (&[], &[&image.at("/dir"), &here("out")], &[DAC_OVERRIDE, FOWNER], &folder.join("out")),
        (
            &["-r", "--privileged"],
            &[&image.at("/none"), &image.at("/dir"), &here("out")],
            &[DAC_OVERRIDE, FOWNER, MKNOD],
            &folder.join("out"),
        ),
        (
            &["-a"],
            &[&image.at("/none"), &image.at("/dir"), &here("new")],
            &[CHOWN, DAC_OVERRIDE, FOWNER],
            &folder.join("new"),
        ),
        (
            &["-a", "--privileged"],
            &[&image.at("/none"), &image.at("/dir"), &here("out")],
            &[CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SYS_ADMIN, MKNOD, SETFCAP],
            &folder.join("out"),
        ),
    ];
    must(fs::create_dir(folder.join("new")), "a folder");
    for (options, operands, kept, root) in cases {
        let mut call = bifolio();
        call.arg("cp").args(options).args(operands);
        let stopped = Stopped::start_at_error(call);
        check_copying(&stopped, set(kept), root);
        assert!(!stopped.end(), "{options:?}");
    }
    assert_eq!(shell(&folder, "cat out/dir/file new/dir/file"), "x\nx\n");
    // A new directory for the contents of another one is the whole tree. The device file is
    // reported at the end.
    let mut call = bifolio();
    call.args(["cp", "-r", &image.at("/dir/."), &here("fresh")]);
    let stopped = Stopped::start_at_error(call);
    check_copying(&stopped, set(&[DAC_OVERRIDE, FOWNER]), &folder.join("fresh"));
    assert!(stopped.end());
    assert_eq!(shell(&folder, "cat fresh/file; stat -c %a fresh"), "x\n755\n");
    // Single files are open before, as those of `put`.
    let mut call = bifolio();
    call.args(["cp", &here("tree/file"), &here("none"), &image.at("/")]);
    let stopped = Stopped::start_at_error(call);
    check_confined(&stopped.child, &["cp"]);
    assert!(!stopped.end());
    assert_eq!(output(bifolio().args(["cat", &image.at("/file")])).text(), "y\n");
    image.check_by_e2fsck();
}

#[test]
fn root_without_the_right_to_search_copies_private_files_of_others() {
    let image = Image::from_script("ext4", 4096, "mkdir dir");
    let folder = image.folder.path();
    shell(folder, "mkdir -m 700 tree; echo x > tree/file; chmod 600 tree/file");
    shell(folder, "chown -R 1000:1000 tree; chmod 755 .");
    let program = env!("CARGO_BIN_EXE_bifolio");
    for option in ["-r", "-a"] {
        let script = format!(
            "setpriv --bounding-set=-dac_read_search --inh-caps=-all {program} cp {option} tree image:/{option}; \
             {program} cat image:/{option}/file"
        );
        assert_eq!(shell(folder, &script), "x\n", "{option}");
    }
}

#[test]
fn copies_run_as_an_ordinary_user_and_to_the_root_directory() {
    let image =
        Image::from_script("ext4", 4096, "mkdir dir; echo x > dir/file; ln dir/file dir/other");
    let program = env!("CARGO_BIN_EXE_bifolio");
    let folder = image.folder.path();
    must(fs::copy(program, folder.join("bifolio")), "the program");
    shell(folder, "chmod 755 .; chmod 666 image; mkdir out; chown 65534:65534 out");
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups ./bifolio";
    let script = format!(
        "{user} cp -a image:/dir out; {user} cp -r out/dir image:/again; cat out/dir/other"
    );
    assert_eq!(shell(folder, &script), "x\n");
    // A host whose root directory is the destination, or the source.
    let script =
        "mkdir host host/dev host/proc; mknod -m 666 host/dev/null c 1 3; cp bifolio image host
        for library in $(ldd bifolio | grep -o '/[^ ]*'); do install -D $library host$library; done
        chroot host /bifolio cp -a image:/dir / && chroot host /bifolio cp -a /dir image:/third
        ./bifolio cat host/image:/third/file; cat host/dir/file";
    assert_eq!(shell(folder, script), "x\nx\n");
}

#[test]
fn without_a_layer_nothing_is_read_unless_an_option_names_it() {
    let image = image();
    for case in LAYERS_REFUSED {
        let layer = case.split(' ').next().unwrap_or_default();
        let run = |options: &[&str]| {
            let mut command = bifolio();
            command.arg("cat").args(options).arg(image.at("/file"));
            deny(&mut command, &refusals_of_layer(case));
            output(&mut command)
        };
        let failed = run(&[]);
        assert_eq!(failed.status.code(), Some(1), "{case}: {}", failed.text());
        assert!(failed.text().contains(&format!("--no-confine={layer}")), "{case}");
        assert!(!failed.text().contains("secret"), "{case}: {}", failed.text());
        // The kernel takes both filters only from processes that cannot get new privileges.
        let all = format!("--no-confine={layer},landlock,seccomp");
        let one = format!("--no-confine={layer}");
        let named = run(&[if layer == "no-new-privs" { &all } else { &one }]);
        assert_eq!(named.text(), "secret\n", "{case}");
        let mut command = bifolio();
        command.arg("cat").arg(image.at("/file")).env("BIFOLIO_NO_CONFINE", "all");
        deny(&mut command, &refusals_of_layer(case));
        assert_eq!(output(&mut command).stdout, b"secret\n", "{case}");
    }
}

#[test]
fn a_layer_that_the_host_only_says_to_apply_is_missing() {
    let image = image();
    let check = |mut command: Command, layer: &str, fakes: &[Denied]| {
        command.arg("cat").arg(image.at("/file"));
        add_group(&mut command);
        deny(&mut command, fakes);
        let failed = output(&mut command).text();
        assert!(failed.contains(&format!("--no-confine={layer}")), "{fakes:?}: {failed}");
        assert!(!failed.contains("secret"), "{fakes:?}: {failed}");
    };
    for (layer, fakes) in fakes_of_layers() {
        check(bifolio(), layer, &fakes);
        // The numbers of processes outside of the namespace are 0 in it.
        let mut in_namespace = Command::new("unshare");
        in_namespace.args(["--pid", "--fork", env!("CARGO_BIN_EXE_bifolio")]);
        check(in_namespace, layer, &fakes);
    }
    // Copies out of an image stay root.
    for (layer, call) in [("chroot", libc::SYS_chroot), ("capabilities", libc::SYS_capset)] {
        let out = image.beside(layer);
        let mut command = bifolio();
        command.args(["cp", "-a", &image.at("/"), &out.display().to_string()]);
        deny(&mut command, &[Denied { call, first_argument: None, errno: 0 }]);
        let failed = output(&mut command).text();
        assert!(failed.contains(&format!("--no-confine={layer}")), "{layer}: {failed}");
        assert!(!out.join("file").exists(), "{layer}: {failed}");
    }
}

#[test]
fn commands_without_the_right_to_a_layer_work_and_say_so_once() {
    let image = image();
    let folder = image.folder.path();
    shell(folder, "mkdir tree; echo text > tree/one; tar -cf archive -C tree one");
    let commands = r#"set -e; b=$0
        $b ls image:/; $b cat image:/file; $b check image; $b put tree/one image:/put
        $b tar archive image:/dir; $b cp -a tree image:/in; $b cp -a image:/dir out
        cat out/one; rm -r out; $b rm -r image:/put image:/dir/one image:/in"#;
    // What the process misses, and the reason in the warnings of the seven commands and of rm: of
    // those without trees, of copies into an image, and of copies out of it.
    let (user, set) = ("user: ", "CAP_SETPCAP");
    let cases: &[(&[&str], [Option<&str>; 3])] = &[
        (&["setpriv", "--bounding-set=-all"], [Some("CAP_SETUID"), Some(set), Some(set)]),
        (&["setpriv", "--bounding-set=-setpcap"], [Some(set); 3]),
        (&["setpriv", "--bounding-set=-setuid"], [Some("user: without CAP_SETUID"), None, None]),
        (&["setpriv", "--bounding-set=-setgid"], [Some("user: without CAP_SETGID"), None, None]),
        (&["setpriv", "--bounding-set=-sys_chroot"], [None, None, Some("CAP_SYS_CHROOT")]),
        (&["setpriv", "--bounding-set=-sys_admin"], [None, None, Some("CAP_SYS_ADMIN")]),
        (
            &["setpriv", "--bounding-set=-all,+setpcap,+setuid,+setgid"],
            [None, None, Some("CAP_SYS_CHROOT")],
        ),
        (&["unshare", "-Urm"], [Some(user), None, None]),
        (&["setpriv", "--bounding-set=+all"], [None; 3]),
    ];
    for (wrapper, reasons) in cases {
        let mut call = Command::new(wrapper[0]);
        call.args(&wrapper[1..]);
        if wrapper[0] == "setpriv" {
            call.arg("--inh-caps=-all");
        }
        call.args(["bash", "-c", commands, env!("CARGO_BIN_EXE_bifolio")]);
        let ran = output(call.current_dir(folder));
        let (printed, errors) = (ran.stdout, String::from_utf8_lossy(&ran.stderr).into_owned());
        let case = format!("{wrapper:?}: {errors}");
        assert!(ran.status.success(), "{case}");
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert!(printed.contains("secret\n") && printed.ends_with("text\n"), "{case}{printed}");
        let warned: Vec<_> =
            errors.lines().filter(|line| line.contains("no right to a part of its conf")).collect();
        let [plain, read, create] = reasons;
        let expected = [plain, plain, plain, plain, plain, read, create, plain];
        let expected: Vec<_> = expected.into_iter().flatten().collect();
        assert_eq!(warned.len(), expected.len(), "{case}");
        for (warning, reason) in warned.iter().zip(expected) {
            assert!(warning.contains(reason), "{reason}: {case}");
        }
        assert_eq!(errors.lines().count(), warned.len(), "{case}");
    }
    image.check_by_e2fsck();
}

#[test]
fn layers_that_the_variable_leaves_out_are_named() {
    let image = image();
    let run = |value: &str, options: &[&str]| {
        let mut command = bifolio();
        command.arg("cat").args(options).arg(image.at("/file")).env("BIFOLIO_NO_CONFINE", value);
        output(&mut command)
    };
    for (value, named) in [
        ("limits", "limits"),
        ("user,seccomp", "user, seccomp"),
        ("all", "no-new-privs, user, landlock, chroot, capabilities, limits, seccomp"),
    ] {
        let ran = run(value, &[]);
        assert_eq!(ran.stdout, b"secret\n", "{value}");
        let warning = String::from_utf8_lossy(&ran.stderr).into_owned();
        let text = format!(
            "bifolio: warning: BIFOLIO_NO_CONFINE leaves out layers of the confinement: {named}\n"
        );
        assert_eq!(warning, text, "{value}");
    }
    // The option is the one of this call, and the empty variable is none.
    assert_eq!(run("all", &["--no-confine=limits"]).text(), "secret\n");
    assert_eq!(run("", &[]).text(), "secret\n");
    let refused = run("nothing", &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.text().contains("BIFOLIO_NO_CONFINE: expected"), "{}", refused.text());
}

#[test]
fn commands_warn_of_an_old_landlock_if_no_filter_makes_up_for_it() {
    let image = image();
    let run = |options: &[&str]| {
        let mut command = Command::new("strace");
        // The first call asks for the version: here, that of Linux 5.13.
        let injected = "inject=landlock_create_ruleset:retval=1:when=1";
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=landlock_create_ruleset", "-e"]);
        command.arg(injected).arg(env!("CARGO_BIN_EXE_bifolio")).arg("cat").args(options);
        let ran = output(command.arg(image.at("/file")));
        assert_eq!(ran.stdout, b"secret\n", "{}", ran.text());
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    assert_eq!(run(&[]), "");
    let warning = run(&["--no-confine=seccomp"]);
    assert_eq!(warning.lines().count(), 1, "{warning}");
    assert!(warning.contains("warning: the kernel's Landlock does not control"), "{warning}");
    assert!(warning.contains("no filter on system calls to deny the others"), "{warning}");
}

#[test]
fn commands_run_where_proc_or_other_users_are_missing() {
    let image = image();
    let program = env!("CARGO_BIN_EXE_bifolio");
    let run = |wrapper: &str| {
        let script = format!("{wrapper} {program} cat image:/file");
        assert_eq!(shell(image.folder.path(), &script), "secret\n", "{wrapper}");
    };
    // Root of a namespace with one user, an ordinary user, and a host whose /proc is empty.
    run("unshare --user --map-root-user");
    // Only this root stays what it is, and only in commands for which it would become another user.
    let copy = image.beside("copied").display().to_string();
    for (wrapper, arguments, warns) in [
        ("--user --map-root-user", &["cat", &image.at("/file")][..], true),
        ("--user --map-root-user", &["cat", "--no-confine=user", &image.at("/file")], false),
        ("--user --map-root-user", &["cp", "-r", &image.at("/dir"), &copy], false),
        ("--user --map-user=1000", &["cat", &image.at("/file")], false),
        ("--mount", &["cat", &image.at("/file")], false),
    ] {
        let mut command = Command::new("unshare");
        let ran = output(command.args(wrapper.split(' ')).arg(program).args(arguments));
        let text = ran.text();
        assert_eq!(
            text.contains("no user nobody (65534)"),
            warns,
            "{wrapper} {arguments:?}: {text}"
        );
    }
    run("unshare --mount sh -c 'mount -t tmpfs none /proc; exec \"$@\"' sh");
    let folder = image.folder.path();
    let no_proc = "unshare --mount sh -c 'mount -t tmpfs none /proc; exec \"$@\"' sh";
    for wrapper in ["unshare --user --map-root-user", no_proc] {
        let copy = format!("{wrapper} {program} cp -a");
        let script = format!(
            "{copy} image:/dir out; {copy} out image:/again; cat out/file; rm -r out
            {program} rm -r image:/again"
        );
        assert_eq!(shell(folder, &script), "x\n", "{wrapper}");
    }
    shell(folder, "chmod 755 .; chmod 644 image");
    must(fs::copy(program, folder.join("bifolio")), "the program");
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups ./bifolio cat image:/file";
    assert_eq!(shell(folder, user), "secret\n");
}

#[test]
fn commands_run_in_namespaces_with_few_files_and_without_standard_streams() {
    let image = image();
    let folder = image.folder.path();
    let program = env!("CARGO_BIN_EXE_bifolio");
    for wrapper in
        ["unshare --pid --fork --mount-proc", "unshare --net --uts --ipc", "prlimit --nofile=16"]
    {
        let script = format!(
            "{wrapper} {program} cat image:/file; {wrapper} {program} cp -a image:/dir out
            {wrapper} {program} cp -a out image:/again; cat out/file; rm -r out
            {wrapper} {program} rm -r image:/again"
        );
        assert_eq!(shell(folder, &script), "secret\nx\n", "{wrapper}");
    }
    // What is opened first does not become a standard stream.
    let script = format!(
        "{program} check image <&- >&- 2>&-; {program} cp -a image:/dir out <&- >&- 2>&-
        {program} cp -a out image:/again <&- >&- 2>&-; cat out/file; {program} cat image:/again/file"
    );
    assert_eq!(shell(folder, &script), "x\nx\n");
}
