//! External test suites on writable mounts: pjdfstest, compared with the kernel's ext4, and fsx.
//! `scripts/fetch-suites` builds them.
#![allow(clippy::print_stdout, reason = "prints the commands")]

mod mounting;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mounting::{Fixture, bifolio};
use testkit::command::{Output, output_within, run};
use testkit::{Format, LoopMount, private_mounts, soak_factor};

/// Time limit of a run of a suite, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(900);

/// Returns a call of a program that `scripts/fetch-suites` built.
fn suite(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/suites/bin").join(name);
    assert!(path.exists(), "no {}: run scripts/fetch-suites", path.display());
    Command::new(path)
}

/// Mounts a tmpfs in the mount namespace of the thread.
fn mount_tmpfs(on: &Path) {
    fs::create_dir(on).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "none"]).arg(on));
}

/// Result of a test of pjdfstest.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

/// Number of tests of pjdfstest.
const PJDFSTEST_TESTS: usize = 398;
/// Tests that pjdfstest skips on mounts of bifolio, and the reasons.
const SKIPPED: [(&str, &str); 1] =
    // The C library derives the limit from the type of the file system.
    [("link::link_count_max", "Cannot get value for LINK_MAX: filesystem limit is unknown")];
/// Pattern of tests that remount read-only, which fails while other tests have open files.
const REMOUNTING: &str = "erofs";

/// Runs all of pjdfstest below `directory`.
fn pjdfstest(directory: &Path, folder: &Path) -> BTreeMap<String, Verdict> {
    let mut verdicts = BTreeMap::new();
    for (remounts, pattern) in [(false, ""), (true, REMOUNTING)] {
        let output = pjdfstest_with(remounts, pattern, directory, folder);
        let some = parse_verdicts(&output.text());
        assert!(!some.is_empty(), "{}", output.text());
        verdicts.extend(some);
    }
    verdicts
}

fn pjdfstest_with(remounts: bool, pattern: &str, directory: &Path, folder: &Path) -> Output {
    // pjdfstest creates paths of the maximum length. This fails for one in 127 lengths of the
    // directory.
    let directory = directory.join(if is_length_supported(directory) { "" } else { "directory" });
    fs::create_dir_all(&directory).unwrap();
    // These users exist on every Debian.
    let configuration = format!(
        "[features]
        posix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}
        [settings]\nnaptime = 0.02\nallow_remount = {remounts}
        [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
    );
    let file = folder.join("pjdfstest.toml");
    fs::write(&file, configuration).unwrap();
    // pjdfstest remounts with mount(8), which starts a helper for FUSE that cannot remount.
    let programs = folder.join("programs");
    fs::create_dir_all(&programs).unwrap();
    let mount = programs.join("mount");
    fs::write(&mount, "#!/bin/sh\nPATH=${PATH#*:} exec mount --internal-only \"$@\"\n").unwrap();
    fs::set_permissions(&mount, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = suite("pjdfstest");
    command.env("PATH", path).env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    command.arg("-c").arg(&file).arg("-s").arg(folder.join("secondary"));
    command.arg("-p").arg(&directory).arg(pattern);
    output_within(&mut command, TIME_MAX)
}

/// Returns whether pjdfstest can create paths of the maximum length below `directory`. It uses
/// subdirectories with names of 22 bytes.
fn is_length_supported(directory: &Path) -> bool {
    let length = directory.as_os_str().len() + 22;
    (4095 - length) % 127 != 0
}

/// Parses lines with a name and a verdict, each followed by indented lines with the reason.
fn parse_verdicts(text: &str) -> BTreeMap<String, Verdict> {
    let mut verdicts = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let (false, [name, verdict]) = (line.starts_with(char::is_whitespace), &words[..]) {
            let verdict = match *verdict {
                "ok" => Verdict::Passed,
                "skipped" => Verdict::Skipped(String::new()),
                "FAILED" => Verdict::Failed(String::new()),
                _ => continue,
            };
            last = (*name).to_owned();
            verdicts.insert(last.clone(), verdict);
        } else if let Some(Verdict::Failed(why) | Verdict::Skipped(why)) = verdicts.get_mut(&last) {
            if !why.is_empty() {
                why.push('\n');
            }
            why.push_str(line.trim());
        }
    }
    verdicts
}

/// Mounts a new image for writing, with access for all users.
fn with_mount(format: Format, arguments: &[&str], work: impl FnOnce(&Path)) -> Fixture {
    let fixture = Fixture::new();
    let megabytes = match format {
        Format::Ext4(block_size) => small_image(block_size),
        Format::F2fs | Format::LargeF2fs => 256,
    };
    format.make(&fixture.image, megabytes);
    let all = [&["-o", "rw,allow_other,suid,dev"], arguments].concat();
    let mount = fixture.mount(&all);
    work(mount.path());
    fixture.umount();
    mount.assert_gone();
    drop(mount);
    format.check(&fixture.image);
    fixture
}

/// Returns the size of a small image of ext4 in MiB.
fn small_image(block_size: u32) -> u64 {
    128.max(u64::from(block_size) / 128)
}

#[test]
fn pjdfstest_passes_where_it_passes_on_the_kernels_ext4() {
    private_mounts();
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    mount_tmpfs(&scratch.path().join("secondary"));

    let image = scratch.path().join("kernels.img");
    Format::Ext4(4096).make(&image, small_image(4096));
    let kernels = LoopMount::new(&image, "ext4", "rw");
    let by_kernel = pjdfstest(kernels.path(), scratch.path());
    kernels.unmount();
    assert_eq!(by_kernel.len(), PJDFSTEST_TESTS);
    let count = |verdict: &Verdict| by_kernel.values().filter(|other| *other == verdict).count();
    println!("of {PJDFSTEST_TESTS} tests, {} pass on the kernel's", count(&Verdict::Passed));

    let formats = [1024, 4096, 65536].map(Format::Ext4).into_iter().chain([Format::F2fs]);
    for format in formats {
        with_mount(format, &[], |mount| {
            let ours = pjdfstest(mount, scratch.path());
            compare(&ours, &by_kernel, format);
        });
    }
}

fn compare(
    ours: &BTreeMap<String, Verdict>,
    by_kernel: &BTreeMap<String, Verdict>,
    format: Format,
) {
    assert!(ours.keys().eq(by_kernel.keys()));
    let mut skipped = Vec::new();
    let mut failed = Vec::new();
    for (name, verdict) in ours {
        match verdict {
            Verdict::Passed => {}
            Verdict::Skipped(why) => skipped.push((name.as_str(), why.as_str())),
            Verdict::Failed(why) if by_kernel[name] == Verdict::Passed => failed.push((name, why)),
            Verdict::Failed(why) => println!("{name} fails on both: {why}"),
        }
    }
    assert!(failed.is_empty(), "{format:?}: {failed:#?}");
    assert_eq!(skipped, SKIPPED, "{format:?}");
}

/// Number of operations of fsx. `make fsx` multiplies it by eight.
const FSX_OPERATIONS: u64 = 25_000;
const FSX_SEED: u64 = 20_260_301;

struct Fsx {
    format: Format,
    operations: u64,
    file_size_max: u64,
    /// Whether msync follows each write to a mapping.
    syncs_maps: bool,
    arguments: &'static [&'static str],
}

impl Default for Fsx {
    fn default() -> Self {
        Self {
            format: Format::Ext4(4096),
            operations: FSX_OPERATIONS,
            file_size_max: 1 << 20,
            syncs_maps: true,
            arguments: &[],
        }
    }
}

impl Fsx {
    /// Runs fsx on a mount, and reads its file in several ways. The expected contents are those
    /// after the same operations on a tmpfs.
    fn check(&self) {
        private_mounts();
        let scratch = tempfile::tempdir().unwrap();
        let plain = scratch.path().join("plain");
        mount_tmpfs(&plain);
        let expected = self.run_on(&plain, scratch.path());

        let fixture = with_mount(self.format, self.arguments, |mount| {
            assert!(self.run_on(mount, scratch.path()) == expected, "read through the mount");
        });
        let file = format!("{}:/file", fixture.image.display());
        assert!(run(bifolio("cat").arg(&file)) == expected, "read without the mount");
        if matches!(self.format, Format::Ext4(..=4096)) {
            let kernels = LoopMount::new(&fixture.image, "ext4", "ro");
            assert!(fs::read(kernels.path().join("file")).unwrap() == expected, "by the kernel");
        }
    }

    /// Runs fsx. Returns the contents of its file.
    fn run_on(&self, directory: &Path, scratch: &Path) -> Vec<u8> {
        let configuration = scratch.join("fsx.toml");
        let (size, no_sync) = (self.file_size_max, !self.syncs_maps);
        let text = format!(
            "flen = {size}\nnomsyncafterwrite = {no_sync}\n[opsize]\nmax = 65536\n[weights]
            read = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\ntruncate = 4\nsendfile = 4
            copy_file_range = 4\npunch_hole = 4\nposix_fallocate = 2\nposix_fadvise = 3\nclose_open = 2
            invalidate = 1\nfsync = 0.5\nfdatasync = 0.5\n"
        );
        fs::write(&configuration, text).unwrap();
        let operations = self.operations * soak_factor();
        let file: PathBuf = directory.join("file");
        let mut command = suite("fsx");
        command.args(["-S", &FSX_SEED.to_string(), "-N", &operations.to_string(), "-f"]);
        // Its other files are not on the mount.
        command.arg(&configuration).arg("-P").arg(scratch).arg(&file);
        println!("{command:?}");
        let output = output_within(&mut command, TIME_MAX * soak_factor() as u32);
        assert!(output.status.success(), "{}", output.text());
        fs::read(&file).unwrap()
    }
}

#[test]
fn fsx_with_blocks_of_1_kib() {
    Fsx { format: Format::Ext4(1024), ..Fsx::default() }.check();
}

#[test]
fn fsx_with_blocks_of_4_kib_and_mappings_without_msync() {
    Fsx { format: Format::Ext4(4096), syncs_maps: false, ..Fsx::default() }.check();
}

#[test]
fn fsx_with_blocks_of_64_kib() {
    Fsx { format: Format::Ext4(65536), ..Fsx::default() }.check();
}

#[test]
fn fsx_on_f2fs() {
    let operations = FSX_OPERATIONS * 3 / 5;
    Fsx { format: Format::F2fs, operations, syncs_maps: false, ..Fsx::default() }.check();
}

#[test]
fn fsx_on_f2fs_with_blocks_of_16_kib() {
    let operations = FSX_OPERATIONS * 2 / 5;
    Fsx { format: Format::LargeF2fs, operations, syncs_maps: false, ..Fsx::default() }.check();
}

#[test]
fn fsx_on_f2fs_with_a_file_larger_than_the_cache() {
    let arguments = &["--cache-size", "2M"];
    Fsx { format: Format::F2fs, file_size_max: 8 << 20, arguments, ..Fsx::default() }.check();
}

#[test]
fn fsx_on_a_file_larger_than_the_cache() {
    Fsx {
        file_size_max: 8 << 20,
        syncs_maps: false,
        arguments: &["--cache-size", "2M"],
        ..Fsx::default()
    }
    .check();
}
