//! Empty volumes of each format, and judges of them, for tests that are the same for all formats.
//! Not here: the kinds of images with more features ([`Kind`](crate::Kind), [`f2fs::Kind`]).

use std::path::Path;
use std::process::Command;

use base::BlockSize;
use vfs::VolumeOptions;

use crate::f2fs::make::{MakeOptions, make_file};
use crate::host::command::output;
use crate::{Mke2fs, check_by_e2fsck, f2fs, must};

/// A format of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// With blocks of so many bytes.
    Ext4(u32),
    /// With blocks of 4 KiB, and everything that a mkfs.f2fs enables for Android.
    F2fs,
    /// With blocks of 16 KiB, which mkfs.f2fs does not make.
    LargeF2fs,
}

impl Format {
    /// Creates an empty volume, as a sparse file of `megabytes`.
    pub fn make(self, image: &Path, megabytes: u64) {
        match self {
            Self::Ext4(block_size) => {
                Mke2fs { size: megabytes << 20, ..Mke2fs::new("ext4", block_size) }
                    .make(image, None);
            }
            Self::F2fs => f2fs::Kind::named("attributes").make(image, megabytes),
            Self::LargeF2fs => {
                let block_size = BlockSize::from_shift(14).expect("a power of two");
                make_file(image, &MakeOptions::new(block_size, megabytes << 20));
            }
        }
    }

    /// Checks a volume that was closed by the format's own program, and the library for f2fs. No
    /// program reads f2fs with blocks of 16 KiB.
    #[track_caller]
    pub fn check(self, image: &Path) {
        match self {
            Self::Ext4(_) => check_by_e2fsck(image),
            Self::F2fs => f2fs::check_by_both(image),
            Self::LargeF2fs => f2fs::check_by_library(image),
        }
    }

    /// Recovers a volume that was not closed: by e2fsck, or for f2fs by the library, which also
    /// checks the last checkpoint. Checks the result.
    #[track_caller]
    pub fn recover(self, image: &Path) {
        match self {
            Self::Ext4(_) => {
                let repaired = output(Command::new("e2fsck").arg("-fy").arg(image));
                let is_consistent = repaired.status.code().is_some_and(|code| code <= 1);
                assert!(is_consistent, "{}", repaired.text());
            }
            Self::F2fs | Self::LargeF2fs => {
                f2fs::check_by_library(image);
                let volume = VolumeOptions { writable: true, ..VolumeOptions::default() };
                let volume = must(volume.open(image), image.display());
                must(volume.close(), image.display());
            }
        }
        self.check(image);
    }
}
