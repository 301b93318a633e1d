//! Confinement of the commands: the process has no privileges and no access to files when it parses an image.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use support::{Image, bifolio, shell};
use testkit::command::output;
use testkit::{LAYERS_REFUSED, deny, must, refusals_of_layer, wait_until};

/// All commands that only read images.
const READERS: [&[&str]; 11] = [
    &["info"],
    &["ls", "-lR"],
    &["tree"],
    &["stat"],
    &["cat"],
    &["du", "-a"],
    &["df"],
    &["find"],
    &["fiemap"],
    &["check"],
    &["defrag", "-n"],
];

fn image() -> Image {
    Image::from_script("ext4", 4096, "mkdir dir; echo x > dir/file; echo secret > file")
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

/// Checks that a command has no privileges, and a filter of system calls.
fn check_confined(child: &Child, command: &[&str]) {
    let names = ["Uid:", "CapEff:", "CapPrm:", "CapBnd:", "NoNewPrivs:", "Seccomp:"];
    let none = "0000000000000000";
    let facts = names.map(|name| fact(child, name));
    assert_eq!(facts, ["65534", none, none, none, "1", "2"], "{command:?}");
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
        let (pipe, end) = must(std::io::pipe(), "a pipe");
        let (pipe, end) = (OwnedFd::from(pipe), OwnedFd::from(end));
        let size = rustix::pipe::fcntl_getpipe_size(&end).unwrap();
        must(File::from(must(end.try_clone(), "pipe")).write_all(&vec![0; size]), "filling");
        let child = must(command.stdout(Stdio::from(end)).spawn(), "bifolio");
        wait_for_call(&child, libc::SYS_write);
        Self { child, pipe: pipe.into() }
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
    call.args(["ls", "--no-confine", &image.at("/")]);
    let stopped = Stopped::start(call);
    assert_eq!(["Uid:", "Seccomp:"].map(|name| fact(&stopped.child, name)), ["0", "0"]);
    assert!(stopped.end());
}

#[test]
fn commands_that_write_to_images_only_are_confined() {
    let image = image();
    let mut call = bifolio();
    call.args(["defrag", &image.at("/")]);
    let stopped = Stopped::start(call);
    check_confined(&stopped.child, &["defrag"]);
    assert!(stopped.end());
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
    wait_for_call(&child, libc::SYS_read);
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

#[test]
fn commands_with_host_files_do_not_parse_an_image_without_a_layer() {
    let image = image();
    let folder = image.folder.path();
    // A container is found when an image is parsed.
    shell(folder, "qemu-img convert -O qcow2 image container; echo text > text");
    let container = format!("{}:/new", image.beside("container").display());
    let here = |name: &str| image.beside(name).display().to_string();
    let calls: &[&[&str]] = &[&["put", &here("text"), &container]];
    for call in calls {
        for case in LAYERS_REFUSED {
            let layer = case.split(' ').next().unwrap_or_default();
            let run = |options: &[&str]| {
                let mut command = bifolio();
                command.args(*call).args(options);
                deny(&mut command, &refusals_of_layer(case));
                output(&mut command).text()
            };
            let failed = run(&[]);
            assert!(
                failed.contains(&format!("--no-confine={layer}")),
                "{call:?}, {case}: {failed}"
            );
            assert!(!failed.contains("qcow2"), "{call:?}, {case}: {failed}");
            // The kernel takes both filters only from processes that cannot get new privileges.
            let named = run(&[&format!("--no-confine={layer},landlock,seccomp")]);
            assert!(named.contains("in the format qcow2"), "{call:?}, {case}: {named}");
        }
    }
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
        assert_eq!(output(&mut command).text(), "secret\n", "{case}");
    }
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
    run("unshare --mount sh -c 'mount -t tmpfs none /proc; exec \"$@\"' sh");
    let folder = image.folder.path();
    shell(folder, "chmod 755 .; chmod 644 image");
    must(fs::copy(program, folder.join("bifolio")), "the program");
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups ./bifolio cat image:/file";
    assert_eq!(shell(folder, user), "secret\n");
}
