//! Helpers for the tests of the command line.
#![allow(dead_code, reason = "each test program uses some of it")]

pub mod listed;

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use testkit::command::{Output, output, run};
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, must};

/// Returns a call of `bifolio`.
pub fn bifolio() -> Command {
    Command::new(env!("CARGO_BIN_EXE_bifolio"))
}

/// Runs a call that must succeed without output on standard error. Returns standard output as text.
#[track_caller]
pub fn run_ok(arguments: &[&str]) -> String {
    String::from_utf8_lossy(&run_ok_bytes(arguments)).into_owned()
}

/// Runs a call that must succeed without output on standard error. Returns standard output.
#[track_caller]
pub fn run_ok_bytes(arguments: &[&str]) -> Vec<u8> {
    let result = output(bifolio().args(arguments));
    assert!(result.status.success(), "{arguments:?}: {}\n{}", result.status, result.text());
    assert_eq!(String::from_utf8_lossy(&result.stderr), "", "{arguments:?}");
    result.stdout
}

/// Runs a call that must end with the exit status `status`.
#[track_caller]
pub fn run_with_status(arguments: &[&str], status: i32) -> Output {
    let result = output(bifolio().args(arguments));
    assert_eq!(result.status.code(), Some(status), "{arguments:?}:\n{}", result.text());
    result
}

/// Runs a call that must succeed. Returns the JSON that it prints.
#[track_caller]
pub fn json(arguments: &[&str]) -> serde_json::Value {
    must(serde_json::from_slice(&run_ok_bytes(arguments)), format_args!("{arguments:?}"))
}

/// An image in its own folder.
pub struct Image {
    /// A temporary folder, for use by the test.
    pub folder: TempDir,
    /// The image.
    pub path: PathBuf,
}

impl Image {
    /// Creates an image with mke2fs from the files that `script` creates in `folder/source`.
    pub fn from_script(format: &'static str, block_size: u32, script: &str) -> Self {
        let image = Self::empty();
        let source = image.folder.path().join("source");
        must(std::fs::create_dir(&source), source.display());
        shell(&source, script);
        let mut recipe = Mke2fs::new(format, block_size);
        recipe.size = (64 << 20).max(u64::from(block_size) * 4096);
        recipe.make(&image.path, Some(&source));
        image
    }

    /// Creates a folder without an image.
    pub fn empty() -> Self {
        let folder = must(TempDir::new(), "a temporary folder");
        let path = folder.path().join("image");
        Self { folder, path }
    }

    /// Creates an ext4 image and runs a script on a mount of the running kernel.
    pub fn by_kernel(script: &str) -> Self {
        let image = Self::empty();
        let mut recipe = Mke2fs::new("ext4", 4096);
        recipe.size = 128 << 20;
        recipe.make(&image.path, None);
        let mount = LoopMount::new(&image.path, "ext4", "rw");
        shell(mount.path(), script);
        mount.unmount();
        image
    }

    /// Checks the image with e2fsck.
    #[track_caller]
    pub fn check_by_e2fsck(&self) {
        check_by_e2fsck(&self.path);
    }

    /// Returns `IMAGE:path`.
    pub fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.path.display())
    }

    /// Returns a path in the folder of the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Runs a script in a folder. The script must succeed. Returns standard output.
#[track_caller]
pub fn shell(folder: &Path, script: &str) -> String {
    let script = format!("set -e\nexport LC_ALL=C TZ=UTC\numask 022\n{script}");
    let output = run(Command::new("bash").arg("-c").arg(script).current_dir(folder));
    String::from_utf8_lossy(&output).into_owned()
}

/// Returns the sorted lines of a text.
pub fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Returns names, types, permissions, owners, link counts and link targets of all files below
/// `folder`.
pub fn facts(folder: &Path) -> String {
    shell(
        folder,
        "find . -mindepth 1 -path ./lost+found -prune -o -mindepth 1 -printf '%P %M %U %G %l' \
            \\( -type d -printf '\\n' -o -printf ' %n\\n' \\) | sort",
    )
}
