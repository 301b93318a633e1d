//! A tree of many small files, the same in each run, as an archive and as a git repository, on
//! tmpfs.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use testkit::command::run;

/// The number of files in the tree.
pub const FILES: u32 = 5000;
const FILES_IN_DIRECTORY: u32 = 100;

/// The archive and the repository.
pub struct Source {
    folder: TempDir,
}

impl Source {
    /// Creates the archive and the repository.
    pub fn make() -> Self {
        let folder = TempDir::new_in("/dev/shm").expect("a folder on tmpfs");
        let source = Self { folder };
        let top = source.folder.path();
        let tree = top.join("tree");
        for number in 0..FILES {
            let directory = tree.join(format!("part_{}", number / FILES_IN_DIRECTORY));
            std::fs::create_dir_all(&directory).expect("a directory");
            std::fs::write(directory.join(format!("file_{number}")), contents(number))
                .expect("a file");
        }
        run(Command::new("tar").arg("-cf").arg(source.archive()).arg("-C").arg(top).arg("tree"));
        for arguments in [
            &["init", "-q"][..],
            &["add", "."],
            &[
                "-c",
                "user.name=bench",
                "-c",
                "user.email=bench@localhost",
                "commit",
                "-q",
                "-m",
                "all",
            ],
        ] {
            run(git(&tree).args(arguments));
        }
        std::fs::rename(tree.join(".git"), source.repository()).expect("a moved repository");
        std::fs::remove_dir_all(tree).expect("a removed tree");
        source
    }

    /// Returns the path of the archive. It contains the directory `tree`.
    pub fn archive(&self) -> PathBuf {
        self.folder.path().join("tree.tar")
    }

    /// Returns the path of the repository.
    pub fn repository(&self) -> PathBuf {
        self.folder.path().join("tree.git")
    }
}

/// Returns a git command in a directory, without the configuration of the user or the host.
pub fn git(directory: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    git
}

/// Returns 300 to 4,300 bytes that resemble text.
fn contents(number: u32) -> Vec<u8> {
    let random = number.wrapping_add(1).wrapping_mul(2_654_435_761);
    let length = 300 + (random >> 16) % 4000;
    (0..length).map(|at| b' ' + (at.wrapping_mul(random) >> 25) as u8 % 95).collect()
}
