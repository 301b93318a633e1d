//! The programs of f2fs-tools, in two versions.

use std::path::Path;
use std::process::Command;

use crate::command::output;

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

/// Checks that fsck.f2fs, in both versions, finds no errors in `image`, which it does not change.
#[track_caller]
pub fn check_by_fsck(image: &Path) {
    for tools in [Tools::Installed, Tools::V1_16] {
        let output = output(tools.command("fsck.f2fs").arg("--dry-run").arg(image));
        let text = output.text();
        let is_clean =
            output.status.success() && !text.contains("[Fail]") && !text.contains("[ASSERT]");
        assert!(is_clean, "{tools:?}, {}: {}\n{text}", image.display(), output.status);
    }
}
