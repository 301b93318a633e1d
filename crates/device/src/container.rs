//! Images without a known file system: containers of disk images, and other contents, by which the
//! image is refused. Android sparse images are opened. Not here: the format of sparse images
//! (`sparse`), the commands that convert containers (`base::Container`), and contents that are not
//! disk images (`foreign`).

use std::sync::Arc;

use base::{Blank, Container, DeviceOffset, Error, Foreign, Result, Unsupported};

use crate::foreign;
use crate::partition::PartitionTable;
use crate::sparse::{self, SparseDevice};
use crate::{BlockDevice, Origin, SharedDevice};

/// The number of bytes that are read to detect a container.
const BEGINNING_BYTES: u64 = 512;
/// A device with fewer bytes has no volume of any format.
const VOLUME_BYTES_MIN: u64 = 2048;
/// The number of bytes at the beginning of a device that are searched for anything but zeroes and
/// random bytes.
const SAMPLE_BYTES: u64 = 1 << 20;
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

/// The beginning of bzip2 data is "BZh", the block size as a digit, and the magic number of a
/// block.
const BZIP2: (&[u8], &[u8]) = (b"BZh", b"1AY&SY");
/// The beginning of the trailer of DMG images.
const DMG_TRAILER: &[u8] = b"koly";

/// Returns the device of the image in `device` if that is an Android sparse image, and otherwise
/// `device` itself.
///
/// A sparse image with damage is not unpacked: any image may begin with the magic number by chance.
/// [`refusal`] returns its error if the image has no other contents.
///
/// Errors: `Unsupported` for a sparse image if it is to be written, or if it cannot be used as it
/// is.
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

/// Returns why a device without a known file system cannot be used as it is: the container of its
/// image, the damage of an Android sparse image, or other contents. Returns `None` for a device
/// with partitions or with unknown contents.
pub fn refusal(device: &dyn BlockDevice) -> Option<Error> {
    let beginning = read_beginning(device).ok()?;
    let container = || container_of(&beginning).or_else(|| container_by_trailer(device));
    let foreign = |foreign| Error::Unsupported(Unsupported::Foreign(foreign));
    let error = if sparse::has_magic(&beginning) {
        let damage = SparseDevice::check(device).err();
        damage.unwrap_or(Error::Unsupported(Unsupported::Container(Container::AndroidSparse)))
    } else if let Some(container) = container() {
        Error::Unsupported(Unsupported::Container(container))
    } else {
        foreign(foreign::identify(device)?)
    };
    // The boot code of a partitioned disk may begin with any bytes, and there may be remnants in
    // front of its first partition.
    match PartitionTable::read(device, None) {
        Ok(table) if !table.partitions.is_empty() => {
            let disc = foreign::identify_disc(device)?;
            table.has_partition_in(disc.bytes).then(|| foreign(disc.foreign))
        }
        _ => Some(error),
    }
}

/// Returns what a device with a file system that ends at `end` is a member of, such as a RAID. The
/// device of which it is a part may be the member, too.
pub fn member(device: &dyn BlockDevice, end: u64) -> Option<Foreign> {
    foreign::identify_member(device, end).or_else(|| {
        let Origin { device, start, .. } = device.origin()?;
        member(device, end.saturating_add(start))
    })
}

/// Returns whether a device with a file system that ends at `end` has the footer of Android
/// Verified Boot behind it.
pub fn has_verified_boot(device: &dyn BlockDevice, end: u64) -> bool {
    foreign::has_verified_boot(device, end)
}

/// Returns what is known of a device without a known file system, of which [`refusal`] knows
/// nothing: that it has partitions, the damage to its partition table, or nothing.
pub fn unknown(device: &dyn BlockDevice) -> Error {
    match PartitionTable::read(device, None) {
        Ok(table) if !table.partitions.is_empty() => {
            return Error::Unsupported(Unsupported::Partitioned {
                table: table.kind.name(),
                existing: table.numbers(),
            });
        }
        Ok(PartitionTable { damage: Some(damage), .. }) => return damage,
        Err(damage @ Error::Corrupt(_)) => return damage,
        _ => {}
    }
    Error::Unsupported(match blank(device) {
        Some(blank) => Unsupported::Blank(blank),
        None => Unsupported::Format,
    })
}

/// Returns whether the device begins with nothing but zeroes or random bytes, or is too small.
fn blank(device: &dyn BlockDevice) -> Option<Blank> {
    let size = device.size();
    if size < VOLUME_BYTES_MIN {
        return Some(Blank::Small { bytes: size });
    }
    let mut bytes = vec![0; size.min(SAMPLE_BYTES) as usize];
    device.read_at(DeviceOffset(0), &mut bytes).ok()?;
    let zeroes = bytes.iter().take_while(|byte| **byte == 0).count();
    if zeroes == bytes.len() {
        let rest = DeviceOffset(zeroes as u64);
        let is_all = device.next_data(rest).is_none();
        return Some(Blank::Zeroes { bytes: rest.0, is_all });
    }
    is_random(&bytes).then_some(Blank::Random)
}

/// Returns whether all values of bytes are about equally frequent, by a chi-squared test that
/// random bytes pass nearly always.
fn is_random(bytes: &[u8]) -> bool {
    /// The number of values is 256. The mean of the statistic is 255 for random bytes, and its
    /// standard deviation 23.
    const STATISTIC_MAX: f64 = 255.0 + 8.0 * 23.0;
    let mut counts = [0_u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let expected = bytes.len() as f64 / 256.0;
    let squares = counts.iter().map(|count| (f64::from(*count) - expected).powi(2));
    bytes.len() >= 4096 && squares.sum::<f64>() / expected < STATISTIC_MAX
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
    fn a_disc_with_a_partition_table_is_a_disc_unless_its_partitions_are_behind_it() {
        let mut image = vec![0; 4 << 20];
        image[32 * 1024 + 1..][..5].copy_from_slice(b"CD001");
        image[510..512].copy_from_slice(&[0x55, 0xaa]);
        image[446 + 4] = 0x83;
        image[446 + 12] = 100;
        for (first_sector, is_disc) in [(0, true), (64, true), (66, false), (2048, false)] {
            image[446 + 8..446 + 10].copy_from_slice(&u16::to_le_bytes(first_sector));
            let found = refusal(&MemoryDevice::new(image.clone()));
            let found = found.map(|error| error.to_string().contains("an ISO 9660 file system"));
            assert_eq!(found, is_disc.then_some(true), "{first_sector}");
        }
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
