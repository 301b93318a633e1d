//! What the tests of the command line share.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use testkit::command::{Output, output, run};
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, must};

/// A call of the command.
pub fn bifolio() -> Command {
    Command::new(env!("CARGO_BIN_EXE_bifolio"))
}

/// Standard output, as text, of a call that must succeed and say nothing on standard error.
#[track_caller]
pub fn good(arguments: &[&str]) -> String {
    String::from_utf8_lossy(&good_bytes(arguments)).into_owned()
}

/// Standard output of a call that must succeed and say nothing on standard error.
#[track_caller]
pub fn good_bytes(arguments: &[&str]) -> Vec<u8> {
    let result = output(bifolio().args(arguments));
    assert!(result.status.success(), "{arguments:?}: {}\n{}", result.status, result.text());
    assert_eq!(String::from_utf8_lossy(&result.stderr), "", "{arguments:?}");
    result.stdout
}

/// A call that must end with `status`.
#[track_caller]
pub fn ends_with(arguments: &[&str], status: i32) -> Output {
    let result = output(bifolio().args(arguments));
    assert_eq!(result.status.code(), Some(status), "{arguments:?}:\n{}", result.text());
    result
}

/// The JSON that a call writes.
#[track_caller]
pub fn json(arguments: &[&str]) -> serde_json::Value {
    must(serde_json::from_slice(&good_bytes(arguments)), format_args!("{arguments:?}"))
}

/// An image in a folder of its own, filled by a shell script.
pub struct Image {
    /// Where the test may put things.
    pub folder: TempDir,
    /// The image.
    pub path: PathBuf,
}

impl Image {
    /// An image made by mke2fs from what `script` makes in an empty folder, which stays at
    /// `folder/source`.
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

    /// A folder for an image that is not there yet.
    pub fn empty() -> Self {
        let folder = must(TempDir::new(), "a temporary folder");
        let path = folder.path().join("image");
        Self { folder, path }
    }

    /// An ext4 image that the running kernel fills by a script.
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

    /// `IMAGE:path`.
    pub fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.path.display())
    }

    /// A path beside the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Runs a script in a folder; it must succeed.
#[track_caller]
pub fn shell(folder: &Path, script: &str) -> String {
    let script = format!("set -e\nexport LC_ALL=C TZ=UTC\numask 022\n{script}");
    let output = run(Command::new("bash").arg("-c").arg(script).current_dir(folder));
    String::from_utf8_lossy(&output).into_owned()
}

/// The lines of a text, sorted.
pub fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Returns names, types, permissions, owners, links and targets of all that is below `folder`.
pub fn facts(folder: &Path) -> String {
    shell(
        folder,
        "find . -mindepth 1 -path ./lost+found -prune -o -mindepth 1 -printf '%P %M %U %G %l' \
            \\( -type d -printf '\\n' -o -printf ' %n\\n' \\) | sort",
    )
}
