//! Trees of small files, archives of them, and images with space for them.

use std::fs::{File, create_dir};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use testkit::Mke2fs;

/// The size of each file in bytes.
pub const FILE_BYTES: usize = 1000;
/// The number of files in a directory, if there are many directories.
const FILES_PER_DIRECTORY: u64 = 100;

/// The distribution of files over directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// All files in one directory.
    One,
    /// A hundred files in each directory.
    Many,
    /// Empty directories instead of files, on two levels.
    Directories,
}

/// A tree on tmpfs.
pub struct Tree {
    folder: TempDir,
}

impl Tree {
    /// Creates a tree of `count` files.
    pub fn make(count: u64, shape: Shape) -> Self {
        let tree = Self { folder: TempDir::new_in("/dev/shm").expect("a folder on tmpfs") };
        create_dir(tree.path()).expect("a directory");
        let mut directory = tree.path();
        for number in 0..count {
            if shape != Shape::One && number % FILES_PER_DIRECTORY == 0 {
                directory = tree.path().join(format!("d{}", number / FILES_PER_DIRECTORY));
                create_dir(&directory).expect("a directory");
            }
            let path = directory.join(format!("file-{number}"));
            match shape {
                Shape::Directories => create_dir(path).expect("a directory"),
                _ => {
                    let mut file = File::create_new(path).expect("a new file");
                    file.write_all(&[7; FILE_BYTES]).expect("room on tmpfs");
                }
            }
        }
        tree
    }

    /// Returns the top of the tree.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    /// Creates an archive of the tree, in the same folder.
    pub fn archive(&self) -> PathBuf {
        let path = self.folder.path().join("tree.tar");
        let mut command = Command::new("tar");
        command.arg("-cf").arg(&path).arg("-C").arg(self.folder.path()).arg("tree");
        succeed(&mut command);
        path
    }
}

/// A sparse image on tmpfs.
pub struct SparseImage {
    folder: TempDir,
}

impl SparseImage {
    /// Creates an empty ext4 image with space for `files` files of one block, and for `more_bytes`
    /// more bytes.
    pub fn make(files: u64, more_bytes: u64) -> Self {
        let image = Self { folder: TempDir::new_in("/dev/shm").expect("a folder on tmpfs") };
        let inodes = files + files / 8 + 1000;
        let mut options = Mke2fs::new("ext4", 4096)
            .with("-E lazy_itable_init=0,lazy_journal_init=0 -J size=64")
            .with(&format!("-N {inodes}"));
        options.size = (256 << 20) + inodes * 8192 + more_bytes;
        options.make(&image.path(), None);
        image
    }

    /// Returns the path of the image.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Returns a path in the image, as an argument of the command.
    pub fn target(&self, path: &str) -> String {
        format!("{}:{path}", self.path().display())
    }

    /// Returns the path of a folder for files that are copied out of the image.
    pub fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }
}

/// Syncs the file system at `path`, so that the next measurement does not include its dirty data.
pub fn sync_file_system(path: &Path) {
    rustix::fs::syncfs(File::open(path).expect("a file")).expect("a sync");
}

/// Runs a command without input, and discards its output. Panics if it fails.
pub fn succeed(command: &mut Command) {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("a program");
    assert!(status.success(), "{command:?}: {status}");
}
