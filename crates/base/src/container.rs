//! Containers of disk images, and the commands that convert them to raw images. Not here: their
//! detection.

use std::fmt;

/// A format that contains a disk image in another form than its plain bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Container {
    /// An Android sparse image, where it cannot be used as it is: for writing.
    AndroidSparse,
    /// An Android sparse image with more chunks, or smaller blocks, than supported.
    AndroidSparseFragmented,
    /// One of several Android sparse images that are one disk image together.
    AndroidSparsePiece,
    /// A disk image of QEMU.
    Qcow2,
    /// A disk image of VMware.
    Vmdk,
    /// A disk image of VirtualBox.
    Vdi,
    /// A dynamic disk image of Virtual PC.
    Vhd,
    /// A disk image of Hyper-V.
    Vhdx,
    /// A disk image of macOS.
    Dmg,
    /// Data compressed with zstd.
    Zstd,
    /// Data compressed with gzip.
    Gzip,
    /// Data compressed with lz4.
    Lz4,
    /// Data compressed with xz.
    Xz,
    /// Data compressed with bzip2.
    Bzip2,
}

impl Container {
    /// Returns a description that follows "the image is".
    pub fn description(self) -> &'static str {
        match self {
            Self::AndroidSparse => "an Android sparse image, which can only be read",
            Self::AndroidSparseFragmented => {
                "an Android sparse image of too many or too small pieces"
            }
            Self::AndroidSparsePiece => {
                "an Android sparse image without a beginning, as the parts of a split one are"
            }
            Self::Qcow2 => "in the format qcow2",
            Self::Vmdk => "in the format VMDK",
            Self::Vdi => "in the format VDI",
            Self::Vhd => "in the format VHD",
            Self::Vhdx => "in the format VHDX",
            Self::Dmg => "in the format DMG",
            Self::Zstd => "compressed with zstd",
            Self::Gzip => "compressed with gzip",
            Self::Lz4 => "compressed with lz4",
            Self::Xz => "compressed with xz",
            Self::Bzip2 => "compressed with bzip2",
        }
    }

    /// Returns the shell command that converts the image `IN` to the raw image `OUT`.
    pub fn command(self) -> &'static str {
        match self {
            Self::AndroidSparse | Self::AndroidSparseFragmented => "simg2img IN OUT",
            Self::AndroidSparsePiece => "simg2img IN1 IN2 ... OUT",
            Self::Qcow2 | Self::Vmdk | Self::Vdi | Self::Vhd | Self::Vhdx => {
                "qemu-img convert -O raw IN OUT"
            }
            Self::Dmg => "dmg2img IN OUT",
            Self::Zstd => "zstd -d IN -o OUT",
            Self::Gzip => "gzip -dc IN > OUT",
            Self::Lz4 => "lz4 -d IN OUT",
            Self::Xz => "xz -dc IN > OUT",
            Self::Bzip2 => "bzip2 -dc IN > OUT",
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (description, command) = (self.description(), self.command());
        write!(f, "the image is {description}; `{command}` converts it to a raw image")
    }
}
