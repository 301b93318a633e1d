//! Commands that change an image, compared with coreutils on the same tree, and checked by e2fsck
//! and the kernel. Not here: copying into an image (`cli_import.rs`).

mod attributes;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Image, bifolio, facts, run_ok, run_ok_bytes, run_with_status, shell, sorted};
use rustix::process::{Pid, Signal};
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, must, private_mounts};

const SOURCE: &str = "mkdir -p dir/sub many big/deep/er empty; echo file > file; echo old > dir/old
    ln -s file link; chmod 666 dir/old; chmod 777 dir/sub; for i in 1 2 3 4; do echo $i > many/$i; done
    cd big; for i in $(seq 2500); do : > file-with-a-long-name-$i; done; cp -a file* deep/er";

/// Commands of bifolio and coreutils with the same effect. `@` is the root of the tree.
const COMMANDS: &[&str] = &[
    "mkdir @/new @/dir/inner",
    "mkdir -p @/new/a/b/c @/new/a @/new//x/",
    "mkdir -m u=rwx,go= @/private",
    "mkdir -m 2775 @/shared",
    "mkdir @/shared/handed-down",
    "mkdir -m 750 @/shared/exact",
    "ln @/file @/hard",
    "ln @/file @/dir",
    "ln @/link @/dir/link",
    "ln -s ../file @/dir/symbolic",
    "ln -s /a/long/target/that/does/not/fit/into/the/inode/itself/and/so/needs/a/block @/dir",
    "ln -sf other @/dir/symbolic",
    "ln -f @/file @/dir/old",
    "ln -sT text @/new/text",
    "chmod 4711 @/file",
    "chmod -R go-w,a+X @/dir",
    "chmod +t @/new",
    "chmod 755 @/shared",
    "chmod -w @/many/2",
    "chmod g=u,o= @/many/1",
    "chmod 700 @/link",
    "chmod 4711 @/file",
    "chown 12:34 @/dir/old",
    "chown -R :77 @/new",
    "chown -h 5 @/link",
    "chown 6:7 @/link",
    "mknod -m 640 @/dir/device b 7 300",
    "mknod @/dir/character c 0x1 03",
    "mknod @/new/pipe p",
    "touch @/new/created @/dir/old",
    "touch -c @/new/none",
    "truncate -s 5K @/new/created @/new/longer",
    "truncate -c -s 1 @/new/none",
    "mv @/dir/inner @/renamed",
    "mv @/many @/renamed",
    "mv @/renamed/many/2 @/renamed/many/3",
    "mv -T @/private @/empty",
    "mv @/dir/file @/dir/moved",
    "mv @/renamed/many/1 @/dir/symbolic @/new",
    "rm @/renamed/many/4 @/link",
    "rm -d @/shared/exact",
    "rm -f @/none",
    "rm -r @/big/deep",
    "rm -rf @/big @/none",
];

fn run_on_image(image: &Image, arguments: &str) -> String {
    let program = env!("CARGO_BIN_EXE_bifolio");
    let arguments = arguments.replace('@', &format!("{}:", image.path.display()));
    shell(image.folder.path(), &format!("{program} {arguments} 2>&1"))
}

fn check_commands(format: &'static str, block_size: u32, options: &str) {
    let image = Image::empty();
    let source = image.beside("source");
    must(fs::create_dir(&source), "source");
    shell(&source, SOURCE);
    let mut recipe = Mke2fs::new(format, block_size).with("-N 8192").with(options);
    recipe.size = (64 << 20).max(u64::from(block_size) * 4096);
    recipe.make(&image.path, Some(&source));
    for command in COMMANDS {
        shell(&source, &command.replace('@', "."));
        assert_eq!(run_on_image(&image, command), "", "{format} {block_size}: {command}");
    }
    image.check_by_e2fsck();
    let expected = facts(&source);
    let out = image.beside("out");
    run_ok(&["cp", "-a", "--privileged", &image.at("/"), &out.display().to_string()]);
    assert_eq!(facts(&out), expected, "{format} {block_size}");
    if block_size <= 4096 {
        let mount = LoopMount::new(&image.path, format, "ro");
        assert_eq!(facts(mount.path()), expected, "{format} {block_size}, by the kernel");
    }
}

#[test]
fn commands_have_the_effect_of_coreutils() {
    private_mounts();
    check_commands("ext4", 1024, "");
    check_commands("ext4", 4096, "-O ^has_journal,inline_data");
    check_commands("ext4", 65536, "");
    check_commands("ext3", 1024, "");
    check_commands("ext2", 4096, "");
}

#[test]
fn failures_are_reported_and_the_other_targets_are_changed() {
    let image = Image::from_script("ext4", 1024, "mkdir -p dir/sub; echo x > file; ln -s dir link");
    let other = Image::from_script("ext4", 1024, "echo y > file");
    let at = |path: &str| image.at(path);
    let fails = |arguments: &[&str], status: i32, expected: &str| {
        let result = run_with_status(arguments, status);
        let text = String::from_utf8_lossy(&result.stderr).into_owned();
        assert!(text.contains(expected), "{arguments:?}: {text}");
    };
    let of_file = format!("{}: cannot create directory: file exists", at("/file"));
    fails(&["mkdir", &at("/file"), &at("/made")], 1, &of_file);
    fails(&["mkdir", "-p", &at("/file/x")], 1, "file exists");
    fails(&["mkdir", &at("/no/dir")], 1, "no such file or directory");
    fails(&["mv", &at("/file"), &at("/file")], 1, "is the same file");
    fails(&["rm", &at("/dir"), &at("/made/no"), &at("/file")], 1, "is a directory; use -r");
    fails(&["rm", "-d", &at("/dir")], 1, "cannot remove: directory not empty");
    fails(&["rm", "-rf", &at("/")], 2, "the root directory of an image cannot be removed");
    fails(&["rm", "-rf", &at("/dir/..")], 2, "does not end in the name of a file or directory");
    fails(&["mv", &at("/dir"), &at("/dir/sub")], 1, "cannot be moved into itself");
    fails(&["mv", &at("/dir"), &at("/dir/sub/..")], 1, "cannot move");
    fails(&["mv", "-nT", &at("/link"), &at("/dir")], 1, "file exists");
    fails(&["mv", &at("/dir"), &other.at("/file")], 2, "not in the same image");
    fails(&["mv", &at("/dir"), &at("/made"), &at("/none")], 1, "does not exist; several sources");
    fails(&["mv", "-T", &at("/dir"), &at("/made"), &at("/dir")], 2, "only to a single source");
    fails(&["ln", &other.at("/file"), &at("/new")], 2, "not in the same image");
    fails(&["ln", &at("/dir"), &at("/new")], 1, "cannot have hard links; use -s");
    fails(&["ln", "-s", "text", &at("/link/sub"), &at("/none/x")], 1, "several sources");
    fails(&["ln", "-sT", "text", &at("/link")], 1, "file exists");
    fails(&["chmod", "9", &at("/dir")], 2, "expected a mode");
    fails(&["chown", "1:2:3", &at("/dir")], 2, "a name of the image");
    fails(&["mkdir", "--no-recovery", &at("/x")], 2, "which must be recovered first");
    fails(&["ls", &at("file")], 1, "write a path in an image as IMAGE:/PATH");
    fails(&["ls", "--key", "/none/key", &at("/")], 1, "/none/key: cannot open the key file");
    image.check_by_e2fsck();
    assert_eq!(run_ok(&["find", &at("/"), "-name", "[dfmxn]*"]), "/dir\n/made\n");
}

#[test]
fn an_image_in_use_is_not_changed() {
    private_mounts();
    let image = Image::from_script("ext4", 4096, "echo x > file");
    let mount = LoopMount::new(&image.path, "ext4", "rw");
    let directory = must(tempfile::tempdir(), "a directory");
    let [name, on] = [&*image.path, directory.path()].map(|path| path.to_str().unwrap());
    for arguments in [&["mkdir", &image.at("/dir")][..], &["mount", "-o", "rw", name, on]] {
        let text = run_with_status(arguments, 1).text();
        assert!(text.contains("is in use by the loop device /dev/loop"), "{text}");
    }
    mount.unmount();

    let before = must(fs::read(&image.path), "the image");
    let reader = must(fs::File::open(&image.path), "the image");
    must(rustix::fs::flock(&reader, rustix::fs::FlockOperation::LockShared), "lock");
    for arguments in [&["mkdir", &image.at("/dir")][..], &["rm", &image.at("/file")]] {
        let result = run_with_status(arguments, 1);
        let expected = format!("(process {})", std::process::id());
        assert!(result.text().contains(&expected), "{}", result.text());
    }
    drop(reader);
    assert!(must(fs::read(&image.path), "the image") == before, "the image changed");
    run_ok(&["mkdir", &image.at("/dir")]);
    image.check_by_e2fsck();
}

/// An image that QEMU has open.
struct Qemu(std::process::Child);

impl Qemu {
    fn open(image: &Path, options: &[&str]) -> Self {
        let mut program = Command::new("qemu-io");
        program.args(options).args(["-f", "raw"]).arg(image);
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = must(program.spawn(), "qemu-io");
        // The prompt. The image is open then.
        let prompt = child.stdout.as_mut().expect("a pipe");
        must(std::io::Read::read_exact(prompt, &mut [0]), "the prompt");
        Self(child)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn an_image_that_another_program_has_locked_is_read_and_not_changed() {
    use rustix::fs::{FlockOperation, fcntl_lock};
    let image = Image::from_script("ext4", 4096, "echo x > file");
    let before = must(fs::read(&image.path), "the image");
    let new = image.at("/new");
    // A program that reads with QEMU's lock against others that write is respected, too.
    let check = |process: u32, warning: bool, what: &str| {
        let process = format!("(process {process})");
        for arguments in [&["mkdir", &new][..], &["rm", &image.at("/file")]] {
            let refused = run_with_status(arguments, 1).text();
            assert!(refused.contains("is in use by") && refused.contains(&process), "{refused}");
        }
        let read = run_with_status(&["cat", &image.at("/file")], 0);
        assert_eq!(read.stdout, b"x\n");
        let said = String::from_utf8_lossy(&read.stderr).into_owned();
        assert_eq!(said.contains("has it open for writing"), warning, "{what}: {said}");
        assert!(!warning || said.contains(&process), "{what}: {said}");
    };
    let qemu = Qemu::open(&image.path, &[]);
    check(qemu.0.id(), true, "a writer of QEMU");
    drop(qemu);

    // POSIX locks of all bytes.
    let file = must(fs::File::options().read(true).write(true).open(&image.path), "the image");
    let own = std::process::id();
    must(fcntl_lock(&file, FlockOperation::NonBlockingLockShared), "lock");
    check(own, false, "a shared lock");
    must(fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive), "lock");
    check(own, true, "an exclusive lock");
    drop(file);

    assert!(must(fs::read(&image.path), "the image") == before, "the image changed");
    // A reader that shares the image with writers.
    let qemu = Qemu::open(&image.path, &["-r"]);
    run_ok(&["mkdir", &new]);
    drop(qemu);
    image.check_by_e2fsck();
}

#[test]
fn a_command_fails_if_its_changes_cannot_be_made_durable() {
    let image = Image::from_script("ext4", 4096, "echo x > file");
    // Only the first 100 KiB can be written: the image can be opened, but the journal cannot be
    // written.
    let script = format!(
        "trap '' XFSZ; ulimit -f 100; status=0
        {} mkdir image:/dir || status=$?; echo status $status",
        bifolio().get_program().to_str().unwrap()
    );
    let text = shell(image.folder.path(), &format!("{{ {script}\n}} 2>&1"));
    assert!(text.contains("status 1\n"), "{text}");
    assert!(text.contains("cannot write all changes, and some may be lost"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn a_full_image_is_reported_and_stays_consistent() {
    let image = Image::empty();
    let mut recipe = Mke2fs::new("ext4", 1024).with("-N 32");
    recipe.size = 8 << 20;
    recipe.make(&image.path, None);
    let targets: Vec<_> = (0..40).map(|number| image.at(&format!("/d{number}"))).collect();
    let mut arguments = vec!["mkdir"];
    arguments.extend(targets.iter().map(String::as_str));
    let result = run_with_status(&arguments, 1);
    let text = result.text();
    assert!(text.contains("cannot create directory: no free inodes left"), "{text}");
    image.check_by_e2fsck();
    let made = run_ok(&["find", &image.at("/"), "-name", "d*"]).lines().count();
    assert_eq!(made + text.lines().filter(|line| line.contains("no free inodes")).count(), 40);
}

#[test]
fn new_files_have_the_requested_owner() {
    let image = Image::from_script("ext4", 1024, "mkdir -m 2777 shared; chgrp 99 shared");
    run_ok(&["mkdir", "--owner", "5", "--group", "6", &image.at("/a"), &image.at("/shared/b")]);
    run_ok(&["ln", "-s", "--owner", "7", "x", &image.at("/c")]);
    run_ok(&["mkdir", &image.at("/d")]);
    let out = image.beside("out").display().to_string();
    run_ok(&["cp", "-a", "--privileged", &image.at("/"), &out]);
    let owners = shell(Path::new(&out), "stat -c '%U:%u:%G:%g' a shared/b c d | cut -d: -f2,4");
    assert_eq!(owners, "5:6\n5:99\n7:0\n0:0\n");
    image.check_by_e2fsck();
}

/// Prefix that runs a program as an ordinary user.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

#[test]
fn an_ordinary_user_can_change_a_writable_image() {
    private_mounts();
    let image = Image::from_script("ext4", 4096, "mkdir dir; echo old > file; chmod 600 file");
    let folder = image.folder.path();
    shell(
        folder,
        "chmod 755 .; cp image theirs; chown 65534:65534 image; chmod 644 theirs; cp theirs secret
        mkdir -p tree/d; echo x > tree/x; echo y > tree/d/y; ln tree/x tree/hard; ln -s x tree/link
        chmod 4755 tree/x; chown 5:70000 tree/d/y tree/d; chown -h 9:9 tree/link
        chmod 600 secret; mknod tree/null c 1 3; setfattr -n user.x -v y tree/d",
    );
    let program = format!("{AS_NOBODY} {}", bifolio().get_program().to_str().unwrap());
    let run = |arguments: &str| {
        shell(folder, &format!("{program} {arguments} 2>&1 && echo -n done || echo -n status $?"))
    };
    for command in [
        "cp -a tree/. image:/",
        "mkdir -m 700 image:/dir/private",
        "put tree/x image:/dir/private",
        "chown 12:34 image:/file",
        "chmod 4711 image:/file",
        "mv image:/file image:/dir/moved",
        "ln image:/dir/moved image:/again",
        "rm -r image:/d/y",
    ] {
        assert_eq!(run(command), "done", "{command}");
    }
    image.check_by_e2fsck();
    for refused in ["mkdir theirs:/new", "mkdir secret:/new", "rm theirs:/file"] {
        let text = run(refused);
        assert!(text.contains("ermission denied") && text.ends_with("status 1"), "{text}");
    }
    shell(folder, "cmp theirs secret");

    // Files have the owners of the originals, and other files belong to root, not to the user.
    shell(
        folder,
        "cd tree; rm d/y; mkdir dir dir/private lost+found; cp x dir/private
        echo old > again; chown 12:34 again; ln again dir/moved
        chmod 4711 again; chmod 700 dir/private lost+found; chmod 755 dir/private/x",
    );
    let mount = LoopMount::new(&image.path, "ext4", "ro");
    assert_eq!(facts(mount.path()), facts(&image.beside("tree")));
}

#[test]
fn only_the_chosen_partition_is_written() {
    let image = Image::from_script("ext4", 4096, "mkdir dir; echo old > file");
    let folder = image.folder.path();
    let script = r#"head -c 90M /dev/urandom > disk
        printf 'label: gpt\nsize=10M\nsize=64M\n' | sfdisk -q --wipe=never disk
        start=$(sfdisk -d disk | sed -n 's/^disk2 : start= *\([0-9]*\),.*/\1/p')
        dd if=image of=disk bs=512 seek=$start conv=notrunc 2>/dev/null
        cp disk before; echo $((start * 512))"#;
    let start: u64 = must(shell(folder, script).trim().parse(), "the place of the partition");
    let disk = |path: &str| format!("{}:{path}", image.beside("disk").display());
    run_ok(&["mkdir", "--partition", "2", &disk("/by-number")]);
    run_ok(&["mv", "--partition", "2", &disk("/file"), &disk("/dir/moved")]);
    shell(folder, "echo new > new");
    let new = image.beside("new").display().to_string();
    run_ok(&["put", "--offset", &start.to_string(), &new, &disk("/by-offset")]);
    let refused = run_with_status(&["mkdir", &disk("/nowhere")], 1);
    assert!(refused.text().contains("--partition"), "{}", refused.text());
    run_with_status(&["mkdir", "--partition", "1", &disk("/nowhere")], 1);

    let [before, after] = ["before", "disk"].map(|name| fs::read(image.beside(name)).unwrap());
    let (start, end) = (start as usize, start as usize + (64 << 20));
    assert!(before[..start] == after[..start], "data before the partition changed");
    assert!(before[end..] == after[end..], "data after the partition changed");
    must(fs::write(&image.path, &after[start..end]), "the partition");
    image.check_by_e2fsck();
    let names = run_ok(&["find", &image.at("/"), "-not", "-name", "lost+found"]);
    assert_eq!(sorted(&names), ["/", "/by-number", "/by-offset", "/dir", "/dir/moved"]);
    assert_eq!(run_ok(&["cat", &image.at("/by-offset")]), "new\n");
}

#[test]
fn an_image_with_an_external_journal_is_written() {
    let image = Image::empty();
    let folder = image.folder.path();
    // mke2fs requires a block device for the journal.
    let script = "truncate -s 8M journal; truncate -s 64M image
        mke2fs -qF -O journal_dev journal; device=$(losetup -f --show journal)
        mke2fs -qF -t ext4 -J device=$device image; losetup -d $device";
    shell(folder, script);
    let journal = image.beside("journal").display().to_string();
    let refused = run_with_status(&["mkdir", &image.at("/dir")], 1);
    assert!(refused.text().contains("--journal"), "{}", refused.text());
    let before = must(fs::read(&journal), "the journal");
    run_ok(&["mkdir", "--journal", &journal, &image.at("/dir"), &image.at("/dir/sub")]);
    run_ok(&["mv", "--journal", &journal, &image.at("/dir/sub"), &image.at("/moved")]);
    assert!(must(fs::read(&journal), "the journal") != before, "nothing was logged");
    shell(folder, "e2fsck -fn -j journal image > e2fsck.log 2>&1 || { cat e2fsck.log; exit 1; }");
    let names = run_ok(&["find", "--journal", &journal, &image.at("/"), "-name", "[dm]*"]);
    assert_eq!(sorted(&names), ["/dir", "/moved"]);
    // The journal of another volume is refused.
    shell(folder, "mke2fs -qF -O journal_dev -b 4096 -U random other 8M");
    let other = image.beside("other").display().to_string();
    run_with_status(&["mkdir", "--journal", &other, &image.at("/new")], 1);
}

#[test]
fn rm_does_not_follow_a_second_name_of_a_directory() {
    let script = "mkdir -p kept/inner tree/sub; echo kept > kept/file; echo x > tree/sub/file";
    let image = Image::from_script("ext4", 1024, script);
    shell(image.folder.path(), "debugfs -w -R 'link kept tree/second' image >/dev/null 2>&1");
    for path in ["/tree", "/tree/second"] {
        let text = run_with_status(&["rm", "-r", &image.at(path)], 1).text();
        assert!(text.contains("/tree/second: cannot remove: corrupt directory"), "{text}");
        assert_eq!(run_ok(&["cat", &image.at("/kept/file")]), "kept\n");
        assert_eq!(run_ok(&["find", &image.at("/kept"), "-type", "d"]), "/kept\n/kept/inner\n");
    }
    // The rest of the tree is removed.
    assert_eq!(run_ok(&["ls", &image.at("/tree")]), "second\n");
}

#[test]
fn mv_exchanges_two_names() {
    let image = Image::from_script(
        "ext4",
        1024,
        "mkdir -p one/sub two; echo file > file; echo in > two/in; ln -s file link",
    );
    let at = |path: &str| image.at(path);
    let exchange = |from: &str, to: &str| run_ok(&["mv", "--exchange", "-T", &at(from), &at(to)]);
    exchange("/one/sub", "/file");
    exchange("/link", "/two/in");
    image.check_by_e2fsck();
    assert_eq!(run_ok(&["cat", &at("/one/sub")]), "file\n");
    assert_eq!(run_ok(&["cat", &at("/link")]), "in\n");
    let moved = run_ok(&["find", &at("/"), "-type", "d", "-not", "-name", "lost+found"]);
    assert_eq!(sorted(&moved), ["/", "/file", "/one", "/two"]);
    exchange("/one", "/two");
    assert_eq!(run_ok(&["cat", &at("/two/sub")]), "file\n");
    for (from, to, why) in [
        ("/one", "/none", "no such file"),
        ("/none", "/one", "no such file"),
        ("/two", "/two/sub", "cannot move"),
    ] {
        let failed = run_with_status(&["mv", "--exchange", "-T", &at(from), &at(to)], 1);
        assert!(failed.text().contains(why), "{}", failed.text());
    }
    run_with_status(&["mv", "--exchange", "-n", &at("/one"), &at("/two")], 2);
    image.check_by_e2fsck();
}

#[test]
fn a_wait_for_another_host_is_reported_and_a_signal_ends_it() {
    let image = Image::empty();
    // Without checksums, so that the test can change the sequence number of the MMP block.
    Mke2fs::new("ext4", 4096).with("-O mmp,^metadata_csum").make(&image.path, None);
    let header = run(Command::new("dumpe2fs").arg("-h").arg(&image.path));
    let header = String::from_utf8(header).unwrap();
    let block = header.lines().find_map(|line| line.strip_prefix("MMP block number:")).unwrap();
    let at = block.trim().parse::<u64>().unwrap() * 4096 + 4;
    let file = fs::OpenOptions::new().read(true).write(true).open(&image.path).unwrap();
    let left = 77_u32.to_le_bytes();
    file.write_all_at(&left, at).unwrap();
    let directory = image.folder.path().join("directory");
    fs::create_dir(&directory).unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let mut make = bifolio();
        make.arg("mkdir").arg(format!("{}:/new", image.path.display()));
        let mut mount = bifolio();
        mount.args(["mount", "-f", "-o", "rw"]).arg(&image.path).arg(&directory);
        for mut command in [make, mount] {
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
            let first = said.next().unwrap().unwrap();
            assert!(first.contains("waiting for 22 s"), "{first}");
            rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
            let next = said.next().unwrap().unwrap();
            assert!(next.starts_with("bifolio: interrupted"), "{next}");
            assert_eq!(child.wait().unwrap().code(), Some(130));
            // The command has not claimed the volume.
            let mut found = [0; 4];
            file.read_exact_at(&mut found, at).unwrap();
            assert_eq!(found, left);
        }
    }
}

#[test]
fn removed_files_leave_holes_in_the_image_with_discard() {
    const BYTES: u64 = 3 << 20;
    for (options, discards) in [(&["-r"][..], false), (&["-r", "--discard"], true)] {
        let script = format!("mkdir d; head -c {BYTES} /dev/zero | tr '\\0' x > d/file");
        let image = Image::from_script("ext4", 4096, &script);
        let allocated = || fs::metadata(&image.path).unwrap().blocks() * 512;
        let before = allocated();
        let path = image.at("/d");
        run_ok(&[&["rm"], options, &[&path]].concat());
        let freed = before.saturating_sub(allocated());
        assert_eq!(freed >= BYTES / 10 * 9, discards, "{options:?}: {freed}");
        image.check_by_e2fsck();
    }
}

#[test]
fn fallocate_has_the_effect_of_util_linux() {
    private_mounts();
    let image = Image::from_script("ext4", 4096, "seq 20000 > file");
    let kernels = Image::from_script("ext4", 4096, "seq 20000 > file");
    let steps = [
        ("new", "-l 100K"),
        ("new", "-n -o 1M -l 64K"),
        ("file", "-p -o 5000 -l 30000"),
        ("file", "-z -o 40001 -l 20000"),
        ("file", "-c -o 8K -l 16K"),
        ("file", "-i -o 4K -l 32K"),
        ("file", "-o 200K -l 10"),
    ];
    for (name, options) in steps {
        assert_eq!(run_on_image(&image, &format!("fallocate {options} @/{name}")), "", "{options}");
        let mount = LoopMount::new(&kernels.path, "ext4", "");
        shell(mount.path(), &format!("fallocate {options} {name}"));
        let theirs = fs::read(mount.path().join(name)).unwrap();
        mount.unmount();
        let ours = run_ok_bytes(&["cat", &image.at(&format!("/{name}"))]);
        assert!(ours == theirs, "{name}: {options}");
    }
    image.check_by_e2fsck();
    let [file, none] = [image.at("/file"), image.at("/none")];
    for (arguments, status) in [
        (&["-l", "0", &file][..], 2),
        (&["-p", "-z", "-l", "1", &file], 2),
        (&["-c", "-o", "1", "-l", "4096", &file], 1),
        (&["-c", "-l", "1G", &file], 1),
        (&["-i", "-o", "1G", "-l", "4K", &file], 1),
        (&["-p", "-l", "1", &none], 1),
        (&["-l", "1T", &file], 1),
    ] {
        run_with_status(&[&["fallocate"], arguments].concat(), status);
    }
    // The file that a link leads to is created, and removed again, but not the link.
    run_on_image(&image, "ln -s missing @/link");
    let link = image.at("/link");
    let refused = run_with_status(&["fallocate", "-l", "1T", &link], 1).text();
    assert!(refused.contains("no space left") || refused.contains("too large"), "{refused}");
    assert!(run_ok(&["ls", "-l", &link]).contains("link -> missing"));
    run_with_status(&["stat", &image.at("/missing")], 1);
    image.check_by_e2fsck();
    let old = Image::from_script("ext3", 1024, "seq 20000 > file");
    let refused = run_with_status(&["fallocate", "-l", "1M", &old.at("/file")], 1);
    assert!(refused.text().contains("block maps"), "{}", refused.text());
    assert_eq!(run_on_image(&old, "fallocate -p -l 5000 @/file"), "");
    old.check_by_e2fsck();
}

#[test]
fn a_file_that_gets_no_space_is_not_left() {
    let image = Image::from_script("ext4", 4096, "echo old > old");
    let [new, old] = [image.at("/new"), image.at("/old")];
    for (length, text) in [("1T", "no space"), ("16000000T", "too large")] {
        let refused = run_with_status(&["fallocate", "-l", length, &new, &old], 1).text();
        assert_eq!(refused.matches(text).count(), 2, "{refused}");
    }
    run_with_status(&["fallocate", "-l", "0", &new], 2);
    assert_eq!(run_ok(&["ls", &image.at("/")]), "lost+found\nold\n");
    run_ok(&["fallocate", "-l", "1M", &new]);
    assert_eq!(run_ok(&["ls", &image.at("/")]), "lost+found\nnew\nold\n");
    image.check_by_e2fsck();
}

#[test]
fn a_volume_that_is_marked_with_errors_is_named() {
    let image = Image::from_script("ext4", 4096, "echo x > file");
    shell(image.folder.path(), "debugfs -w -R 'ssv state 3' image 2> log");
    let warning = "is marked as a volume with errors; `e2fsck -f` repairs it";
    let f2fs = Image::empty();
    must(must(fs::File::create(&f2fs.path), "an image").set_len(64 << 20), "its size");
    run(Command::new("mkfs.f2fs").args(["-q", "-t", "0"]).arg(&f2fs.path));
    for (image, is_marked) in [(&image, true), (&f2fs, false)] {
        let whole = image.path.display().to_string();
        for arguments in
            [&["check", &whole][..], &["mkdir", &image.at("/dir")], &["touch", &image.at("/dir")]]
        {
            let text = run_with_status(arguments, 0).text();
            assert_eq!(text.matches(warning).count(), usize::from(is_marked), "{text}");
        }
    }
    shell(image.folder.path(), "e2fsck -fy image > log || test $? = 1");
    assert_eq!(run_with_status(&["touch", &image.at("/file")], 0).text(), "");
}
