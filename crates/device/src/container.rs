//! Containers of disk images: their detection by content. Android sparse images are opened, the others are refused.
//! Not here: the format of sparse images (`sparse`), and the commands that convert containers (`base::Container`).

use std::sync::Arc;

use base::{Container, DeviceOffset, Error, Result, Unsupported};

use crate::partition::PartitionTable;
use crate::sparse::{self, SparseDevice};
use crate::{BlockDevice, SharedDevice};

/// The number of bytes that are read to detect a container.
const BEGINNING_BYTES: u64 = 512;
/// The size of the trailer of DMG images.
const TRAILER_BYTES: u64 = 512;

/// The containers that begin with a magic number: its offset, its bytes and the container.
const MAGIC: &[(usize, &[u8], Container)] = &[
    (0, b"QFI\xfb", Container::Qcow2),
    (0, b"KDMV", Container::Vmdk),
    (0, b"COWD", Container::Vmdk),
    (0, b"# Disk DescriptorFile", Container::Vmdk),
    (64, &[0x7f, 0x10, 0xda, 0xbe], Container::Vdi),
    (0, b"conectix", Container::Vhd),
    (0, b"vhdxfile", Container::Vhdx),
    (0, &[0x28, 0xb5, 0x2f, 0xfd], Container::Zstd),
    // The third byte is the only compression method, deflate.
    (0, &[0x1f, 0x8b, 0x08], Container::Gzip),
    (0, &[0x04, 0x22, 0x4d, 0x18], Container::Lz4),
    // The legacy format of lz4.
    (0, &[0x02, 0x21, 0x4c, 0x18], Container::Lz4),
    (0, &[0xfd, b'7', b'z', b'X', b'Z', 0], Container::Xz),
];

/// The beginning of bzip2 data is "BZh", the block size as a digit, and the magic number of a block.
const BZIP2: (&[u8], &[u8]) = (b"BZh", b"1AY&SY");
/// The beginning of the trailer of DMG images.
const DMG_TRAILER: &[u8] = b"koly";

/// Returns the device of the image in `device` if that is an Android sparse image, and otherwise `device` itself.
///
/// A sparse image with damage is not unpacked: any image may begin with the magic number by chance. [`refusal`] returns
/// its error if the image has no other contents.
///
/// Errors: `Unsupported` for a sparse image if it is to be written, or if it cannot be used as it is.
pub(crate) fn unpack(device: SharedDevice, read_only: bool) -> Result<SharedDevice> {
    // An image with an unreadable beginning may have a usable copy of its superblock.
    let Ok(beginning) = read_beginning(&*device) else { return Ok(device) };
    if !sparse::has_magic(&beginning) {
        return Ok(device);
    }
    match SparseDevice::open(Arc::clone(&device)) {
        Ok(_) if !read_only => {
            Err(Error::Unsupported(Unsupported::Container(Container::AndroidSparse)))
        }
        Ok(unpacked) if unpacked.begins_with_gap() => {
            Err(Error::Unsupported(Unsupported::Container(Container::AndroidSparsePiece)))
        }
        Ok(unpacked) => Ok(Arc::new(unpacked)),
        Err(error) => {
            tracing::info!(%error, "not an Android sparse image, although it begins like one");
            Ok(device)
        }
    }
}

/// Returns why a device without a known file system cannot be used as it is: the container of its image, or the damage
/// of an Android sparse image. Returns `None` for a device with a partition table or with unknown contents.
pub fn refusal(device: &dyn BlockDevice) -> Option<Error> {
    let beginning = read_beginning(device).ok()?;
    let error = if sparse::has_magic(&beginning) {
        let damage = SparseDevice::check(device).err();
        damage.unwrap_or(Error::Unsupported(Unsupported::Container(Container::AndroidSparse)))
    } else {
        let container = container_of(&beginning).or_else(|| container_by_trailer(device))?;
        Error::Unsupported(Unsupported::Container(container))
    };
    // The boot code of a partitioned disk may begin with any bytes.
    PartitionTable::read(device, None).is_err().then_some(error)
}

fn read_beginning(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    let mut bytes = vec![0; device.size().min(BEGINNING_BYTES) as usize];
    device.read_at(DeviceOffset(0), &mut bytes)?;
    Ok(bytes)
}

fn container_of(beginning: &[u8]) -> Option<Container> {
    let has = |offset: usize, magic: &[u8]| {
        beginning.get(offset..).is_some_and(|rest| rest.starts_with(magic))
    };
    if has(0, BZIP2.0) && has(BZIP2.0.len() + 1, BZIP2.1) {
        return Some(Container::Bzip2);
    }
    MAGIC.iter().find(|(offset, magic, _)| has(*offset, magic)).map(|(.., container)| *container)
}

fn container_by_trailer(device: &dyn BlockDevice) -> Option<Container> {
    let start = device.size().checked_sub(TRAILER_BYTES)?;
    let mut bytes = [0; DMG_TRAILER.len()];
    device.read_at(DeviceOffset(start), &mut bytes).ok()?;
    (bytes == DMG_TRAILER).then_some(Container::Dmg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn check(image: Vec<u8>, expected: Option<Container>) {
        let found = refusal(&MemoryDevice::new(image));
        let expected = expected.map(|one| Error::Unsupported(Unsupported::Container(one)));
        assert_eq!(found, expected);
    }

    #[test]
    fn containers_are_detected_at_any_length_that_has_their_magic() {
        for (offset, magic, container) in MAGIC {
            let mut image = vec![0; *offset];
            image.extend_from_slice(magic);
            check(image[..image.len() - 1].to_vec(), None);
            check(image.clone(), Some(*container));
            image.resize(10_000, 0);
            check(image, Some(*container));
        }
        check(b"BZh91AY&SY".to_vec(), Some(Container::Bzip2));
        check(b"BZh91AY&S".to_vec(), None);
        check(Vec::new(), None);
    }

    #[test]
    fn a_trailer_is_found_at_the_end_only() {
        let mut image = vec![0; 4096];
        image[4096 - 512..][..4].copy_from_slice(b"koly");
        check(image.clone(), Some(Container::Dmg));
        image.push(0);
        check(image, None);
    }

    #[test]
    fn a_partitioned_disk_is_no_container() {
        let mut image = vec![0; 1 << 20];
        image[..3].copy_from_slice(&[0x1f, 0x8b, 0x08]);
        check(image.clone(), Some(Container::Gzip));
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        // A partition of Linux, of 100 sectors from 8 on.
        image[446 + 4] = 0x83;
        image[446 + 8] = 8;
        image[446 + 12] = 100;
        check(image, None);
    }
}
