//! A tree that resembles a program's source, the same in each run, as an archive.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use testkit::command::run;

/// The number of files in the tree.
pub const FILES: u32 = 1000;
const FILES_IN_DIRECTORY: u32 = 13;
const DIRECTORIES_IN_DIRECTORY: u32 = 6;

/// The archive.
pub struct Archive {
    folder: TempDir,
}

impl Archive {
    /// Creates the tree and its archive, on tmpfs.
    pub fn make() -> Self {
        let folder = TempDir::new_in("/dev/shm").expect("a folder on tmpfs");
        let tree = folder.path().join("tree");
        for number in 0..FILES {
            let directory = directory(&tree, number / FILES_IN_DIRECTORY);
            std::fs::create_dir_all(&directory).expect("a directory");
            let contents = contents(number);
            std::fs::write(directory.join(format!("module_{number}.c")), contents).expect("a file");
        }
        let archive = Self { folder };
        let mut tar = Command::new("tar");
        run(tar.arg("-cf").arg(archive.path()).arg("-C").arg(archive.folder.path()).arg("tree"));
        std::fs::remove_dir_all(tree).expect("a removed tree");
        archive
    }

    /// Returns the path of the archive.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("tree.tar")
    }
}

/// Returns the directory of this number. Some directories contain others.
fn directory(tree: &Path, number: u32) -> PathBuf {
    match number.checked_sub(1) {
        None => tree.to_path_buf(),
        Some(before) => {
            directory(tree, before / DIRECTORIES_IN_DIRECTORY).join(format!("part_{number}"))
        }
    }
}

/// Returns the contents of a file. Half of the files have up to 4 KiB, a quarter up to 8 KiB, and
/// so on; the average is 12 KiB.
fn contents(number: u32) -> Vec<u8> {
    let random = number.wrapping_add(1).wrapping_mul(2_654_435_761);
    let doublings = (random >> 8).trailing_ones().min(5);
    let length = 300 + (random >> 16) % (4096 << doublings);
    (0..length).map(|at| b' ' + (at.wrapping_mul(random) >> 25) as u8 % 95).collect()
}
