//! The programs of f2fs-tools, in two versions.

use std::path::Path;
use std::process::Command;

/// A version of f2fs-tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tools {
    /// The installed version, 1.15 or later.
    Installed,
    /// Version 1.16, which a script has fetched. Its sload.f2fs does not compress.
    V1_16,
}

impl Tools {
    /// Returns the command that runs one of the programs mkfs.f2fs, fsck.f2fs and sload.f2fs.
    pub fn command(self, program: &str) -> Command {
        match self {
            Self::Installed => Command::new(program),
            Self::V1_16 => {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/f2fs-tools");
                let path = folder.join(program);
                assert!(path.exists(), "no {}: run scripts/fetch-f2fs-tools", path.display());
                Command::new(path)
            }
        }
    }
}
