//! Contents that the library does not read: their detection by magic numbers, and the next step for
//! each. Not here: containers of disk images (`container`).
//!
//! The magic numbers are those of libblkid and of the documentation of each format. Few bytes are
//! read, at fixed places.

use base::{DeviceOffset, Foreign};

use crate::BlockDevice;

const KIB: u64 = 1024;
/// The sizes of pages, at the end of the first of which swap space has its mark.
const PAGE_SIZES: [u64; 5] = [4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB];
const MOUNT: &str = "mount it with `mount -o loop,ro IMAGE DIRECTORY`";
const NO_DISK: &str = "it is no disk image";
const LUKS: &str = "open it with `cryptsetup open IMAGE NAME`, and read /dev/mapper/NAME";
const LVM: &str = "after `losetup -f --show IMAGE`, activate its volumes with `vgchange -ay`, and read those in /dev/mapper";
const RAID: &str = "after `losetup -f --show IMAGE` for each member, start it with `mdadm --assemble --scan`, and read /dev/mdN";
const EWF: &str = "mount it with `ewfmount IMAGE DIRECTORY`, and read DIRECTORY/ewf1";
const REISER: &str = "mount it with a kernel before Linux 6.13";

/// A magic number and the contents that have it.
struct Magic {
    /// The places and the bytes there, all of which must match.
    places: &'static [(u64, &'static [u8])],
    foreign: Foreign,
}

const fn magic(
    places: &'static [(u64, &'static [u8])],
    name: &'static str,
    next_step: &'static str,
) -> Magic {
    Magic { places, foreign: Foreign { name, next_step } }
}

/// The contents with magic numbers, those with the longest ones first where others may have the
/// same bytes.
const MAGICS: &[Magic] = &[
    magic(&[(0, b"XFSB")], "an XFS file system", MOUNT),
    magic(&[(64 * KIB + 64, b"_BHRfS_M")], "a Btrfs file system", MOUNT),
    magic(&[(KIB, b"\xe2\xe1\xf5\xe0")], "an EROFS file system", MOUNT),
    magic(&[(0, b"hsqs")], "a SquashFS file system", "extract it with `unsquashfs IMAGE`"),
    magic(&[(0, b"sqsh")], "a SquashFS file system", "extract it with `unsquashfs IMAGE`"),
    magic(&[(3, b"NTFS    ")], "an NTFS file system", MOUNT),
    magic(&[(3, b"EXFAT   ")], "an exFAT file system", MOUNT),
    magic(&[(3, b"ReFS\0\0\0\0")], "a ReFS file system", "use Windows to read it"),
    magic(
        &[(3, b"-FVE-FS-")],
        "a BitLocker volume",
        "open it with `cryptsetup open --type bitlk IMAGE NAME`, and read /dev/mapper/NAME",
    ),
    magic(&[(0, b"LUKS\xba\xbe\x00\x01")], "a LUKS1 encrypted volume", LUKS),
    magic(&[(0, b"LUKS\xba\xbe\x00\x02")], "a LUKS2 encrypted volume", LUKS),
    magic(&[(16 * KIB, b"SKUL\xba\xbe")], "a LUKS2 encrypted volume", LUKS),
    magic(&[(512, b"LABELONE"), (512 + 24, b"LVM2 001")], "an LVM2 physical volume", LVM),
    magic(&[(0, b"LABELONE"), (24, b"LVM2 001")], "an LVM2 physical volume", LVM),
    magic(&[(1024, b"LABELONE"), (1024 + 24, b"LVM2 001")], "an LVM2 physical volume", LVM),
    magic(&[(1536, b"LABELONE"), (1536 + 24, b"LVM2 001")], "an LVM2 physical volume", LVM),
    magic(&[(0, b"\xfc\x4e\x2b\xa9\x01\0\0\0")], "a member of a Linux RAID (md 1.1)", RAID),
    magic(&[(4 * KIB, b"\xfc\x4e\x2b\xa9\x01\0\0\0")], "a member of a Linux RAID (md 1.2)", RAID),
    magic(
        &[(4 * KIB, b"gDla")],
        "Android dynamic partitions (super.img)",
        "unpack them with `lpunpack IMAGE DIRECTORY`, and read each file",
    ),
    magic(
        &[(8 * KIB, b"gDla")],
        "Android dynamic partitions (super.img)",
        "unpack them with `lpunpack IMAGE DIRECTORY`, and read each file",
    ),
    magic(
        &[(0, b"ANDROID!")],
        "an Android boot image",
        "unpack it with `unpack_bootimg --boot_img IMAGE`",
    ),
    magic(
        &[(0, b"VNDRBOOT")],
        "an Android vendor boot image",
        "unpack it with `unpack_bootimg --boot_img IMAGE`",
    ),
    magic(
        &[(0, b"AVB0")],
        "an Android verified-boot image (vbmeta)",
        "`avbtool info_image --image IMAGE` shows it; it has no files",
    ),
    magic(&[(0, b"EVF\x09\x0d\x0a\xff\0")], "an EnCase image (E01)", EWF),
    magic(&[(0, b"EVF2\x0d\x0a\x81\0")], "an EnCase image (E01)", EWF),
    magic(&[(0, b"LVF\x09\x0d\x0a\xff\0")], "an EnCase image (E01)", EWF),
    magic(
        &[(0, b"AFF10\x0d\x0a\0")],
        "an AFF image",
        "mount it with `affuse IMAGE DIRECTORY`, and read the file in DIRECTORY",
    ),
    magic(
        &[(0, b"partclone-image")],
        "a partclone image",
        "restore it with `partclone.restore -s IMAGE -o OUT`, and read OUT",
    ),
    magic(&[(0, b"\x45\x3d\xcd\x28")], "a cramfs file system", MOUNT),
    magic(&[(0, b"\x28\xcd\x3d\x45")], "a cramfs file system", MOUNT),
    magic(&[(512, b"\x45\x3d\xcd\x28")], "a cramfs file system", MOUNT),
    magic(&[(0, b"-rom1fs-")], "a romfs file system", MOUNT),
    magic(&[(32 * KIB, b"JFS1")], "a JFS file system", MOUNT),
    magic(&[(64 * KIB + 52, b"ReIsErFs")], "a ReiserFS file system", REISER),
    magic(&[(64 * KIB + 52, b"ReIsEr2Fs")], "a ReiserFS file system", REISER),
    magic(&[(64 * KIB + 52, b"ReIsEr3Fs")], "a ReiserFS file system", REISER),
    magic(&[(8 * KIB + 52, b"ReIsErFs")], "a ReiserFS file system", REISER),
    magic(&[(64 * KIB, b"ReIsEr4")], "a ReiserFS file system", REISER),
    magic(&[(32, b"NXSB")], "an APFS container", "mount it with `apfs-fuse IMAGE DIRECTORY`"),
    magic(&[(KIB, b"H+\0\x04")], "an HFS+ file system", MOUNT),
    magic(&[(KIB, b"HX\0\x05")], "an HFS+ file system", MOUNT),
    magic(
        &[(4 * KIB + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")],
        "a bcachefs file system",
        MOUNT,
    ),
    magic(
        &[(4 * KIB + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")],
        "a bcache device",
        "register it with `bcache-super-show` and bcache-tools, and read /dev/bcacheN",
    ),
    magic(
        &[(64 * KIB + 1372, b"\x19\x01\x54\x19")],
        "a UFS file system",
        "mount it with `mount -t ufs -o loop,ro,ufstype=ufs2 IMAGE DIRECTORY`",
    ),
    magic(
        &[(8 * KIB + 1372, b"\x54\x19\x01\0")],
        "a UFS file system",
        "mount it with `mount -t ufs -o loop,ro,ufstype=44bsd IMAGE DIRECTORY`",
    ),
    magic(&[(8 * KIB, b"OCFSV2")], "an OCFS2 file system", MOUNT),
    magic(&[(4 * KIB, b"OCFSV2")], "an OCFS2 file system", MOUNT),
    magic(&[(2 * KIB, b"OCFSV2")], "an OCFS2 file system", MOUNT),
    magic(&[(KIB, b"BD"), (KIB + 14, b"\0\x03")], "an HFS file system", MOUNT),
    magic(&[(KIB, b"OCFSV2")], "an OCFS2 file system", MOUNT),
    magic(&[(64 * KIB, b"\x01\x16\x19\x70")], "a GFS2 file system", MOUNT),
    magic(
        &[(1024 * KIB, b"\x0d\xd0\x01\xc0")],
        "a VMFS file system",
        "mount it with `vmfs-fuse IMAGE DIRECTORY`",
    ),
    magic(
        &[(512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh")],
        "a Stratis pool",
        "start it with `stratis pool start`",
    ),
    magic(&[(0, b"dmvdo001")], "a VDO volume", "start it with LVM or `vdo start`"),
    magic(
        &[(0, b"verity\0\0")],
        "a hash tree of dm-verity",
        "open it together with its data: `veritysetup open DATA NAME IMAGE ROOT_HASH`",
    ),
    magic(
        &[(0, b"integrt\0")],
        "a dm-integrity volume",
        "open it with `integritysetup open IMAGE NAME`, and read /dev/mapper/NAME",
    ),
    magic(
        &[(0, b"UBI#\x01")],
        "UBI volumes",
        "extract them with ubireader, or attach them with nandsim and ubiattach",
    ),
    magic(&[(0, b"\x31\x18\x10\x06")], "a UBIFS file system", "extract it with ubireader"),
    magic(
        &[(0, b"PK\x03\x04")],
        "a ZIP archive",
        "unpack it with `unzip IMAGE`, and read the image in it",
    ),
    magic(
        &[(0, b"7z\xbc\xaf\x27\x1c")],
        "a 7z archive",
        "unpack it with `7z x IMAGE`, and read the image in it",
    ),
    magic(
        &[(0, b"Rar!\x1a\x07")],
        "a RAR archive",
        "unpack it with `unrar x IMAGE`, and read the image in it",
    ),
    magic(
        &[(257, b"ustar")],
        "a tar archive",
        "unpack it into an image with `bifolio tar ARCHIVE IMAGE:/`",
    ),
    magic(&[(0, b"070701")], "a cpio archive", "unpack it with `cpio -id < IMAGE`"),
    magic(&[(0, b"070702")], "a cpio archive", "unpack it with `cpio -id < IMAGE`"),
    magic(&[(0, b"MSWIM\0\0\0")], "a WIM archive", "extract it with `wimapply IMAGE DIRECTORY`"),
    magic(&[(0, b"!<arch>\n")], "a Debian package or another ar archive", NO_DISK),
    magic(&[(0, b"\xed\xab\xee\xdb")], "an RPM package", NO_DISK),
    magic(&[(0, b"\x7fELF")], "an ELF program", NO_DISK),
    magic(
        &[(0, b"\xd0\x0d\xfe\xed")],
        "a flattened device tree or FIT image",
        "extract its parts with `dumpimage`",
    ),
    magic(&[(0, b"\x27\x05\x19\x56")], "a U-Boot image", "extract its data with `dumpimage`"),
    magic(&[(KIB, b"\x02\0\0\0\0\0\x34\x34")], "a NILFS2 file system", MOUNT),
];

/// The file systems of discs, the first 32 KiB of which are free. So images for discs and USB
/// sticks have a partition table there, one of whose partitions is the disc.
const DISCS: &[Magic] = &[
    magic(&[(DISC_START + 1, b"CD001")], "an ISO 9660 file system", MOUNT),
    magic(&[(DISC_START + 1, b"BEA01")], "a UDF file system", MOUNT),
    magic(&[(DISC_START + 2 * KIB + 1, b"NSR02")], "a UDF file system", MOUNT),
    magic(&[(DISC_START + 2 * KIB + 1, b"NSR03")], "a UDF file system", MOUNT),
];
/// The start of the descriptors of a disc.
const DISC_START: u64 = 32 * KIB;
/// The end of the bytes in which the partition of a disc begins: it may begin at the descriptors.
const DISC_PARTITION_END: u64 = DISC_START + KIB;

const FAT: Foreign = Foreign {
    name: "a FAT file system",
    next_step: "mount it with `mount -o loop,ro IMAGE DIRECTORY`, or copy files with mtools (`mcopy -i IMAGE ::/FILE .`)",
};
const MINIX: Foreign = Foreign { name: "a Minix file system", next_step: MOUNT };
const ZFS: Foreign = Foreign {
    name: "a member of a ZFS pool",
    next_step: "import it with `zpool import -d DIRECTORY -o readonly=on POOL`",
};
const SWAP: Foreign = Foreign { name: "swap space", next_step: "it has no files" };
/// Something that a device is a member of, and that has its metadata at the end of the device.
struct Membership {
    name: &'static str,
    /// The next step before it is read.
    reading: &'static str,
    /// The next step before it is written.
    writing: &'static str,
}

const RAID_0_90: Membership =
    Membership { name: "a member of a Linux RAID (md 0.90)", reading: RAID, writing: RAID_WRITE };
const RAID_1_0: Membership =
    Membership { name: "a member of a Linux RAID (md 1.0)", reading: RAID, writing: RAID_WRITE };
const RAID_WRITE: &str = "after `losetup -f --show IMAGE` for each member, start it with `mdadm --assemble --scan`, and write \
     /dev/mdN; if it is no member any more, remove the superblock with `wipefs -a -t linux_raid_member IMAGE`";
const RAID_IMSM: Membership = Membership {
    name: "a member of an Intel Matrix RAID",
    reading: RAID,
    writing: "start it with `mdadm --assemble --scan`, and write /dev/mdN; if it is no member any more, remove the metadata with \
              `wipefs -a -t isw_raid_member IMAGE`",
};
const RAID_DDF: Membership = Membership {
    name: "a member of a DDF RAID",
    reading: RAID,
    writing: "start it with `mdadm --assemble --scan`, and write /dev/mdN; if it is no member any more, remove the metadata with \
              `wipefs -a -t ddf_raid_member IMAGE`",
};
const DRBD: Membership = Membership {
    name: "a backing device of DRBD",
    reading: "start its resource with `drbdadm up RESOURCE`, and read /dev/drbdN",
    writing: "start its resource with `drbdadm up RESOURCE`, and write /dev/drbdN; if it belongs to none any more, remove the \
              metadata with `wipefs -a -t drbd IMAGE`",
};

/// Returns the contents of `device`, if they are known and have no partition table.
pub fn identify(device: &dyn BlockDevice) -> Option<Foreign> {
    let probe = Probe { device };
    let by_magic = MAGICS.iter().chain(DISCS).find(|magic| probe.has_all(magic));
    by_magic
        .map(|magic| magic.foreign)
        .or_else(|| probe.is_fat().then_some(FAT))
        .or_else(|| probe.is_swap().then_some(SWAP))
        .or_else(|| {
            let (_, Membership { name, reading, .. }) = probe.membership()?;
            Some(Foreign { name, next_step: reading })
        })
        .or_else(|| probe.is_zfs().then_some(ZFS))
        .or_else(|| probe.is_minix().then_some(MINIX))
}

/// Returns what `device` is a member of, if the metadata are behind `end`, where a file system
/// ends. Metadata in the file system itself are left from an earlier use.
pub fn identify_member(device: &dyn BlockDevice, end: u64) -> Option<Foreign> {
    let (at, Membership { name, writing, .. }) = Probe { device }.membership()?;
    (at >= end).then_some(Foreign { name, next_step: writing })
}

/// Returns whether the last bytes of `device`, behind `end`, are the footer of Android Verified
/// Boot. Source: libavb, which takes the footer from the last 64 bytes of a partition.
pub fn has_verified_boot(device: &dyn BlockDevice, end: u64) -> bool {
    const FOOTER_BYTES: u64 = 64;
    let at = device.size().checked_sub(FOOTER_BYTES).filter(|&at| at >= end);
    at.is_some_and(|at| Probe { device }.has(at, b"AVBf"))
}

/// The file system of a disc.
pub struct Disc {
    /// The file system.
    pub foreign: Foreign,
    /// The number of bytes in which the partition of the disc begins, if the device has a partition
    /// table.
    pub bytes: u64,
}

/// Returns the file system of a disc on `device`, whether or not there is a partition table in
/// front of it.
pub fn identify_disc(device: &dyn BlockDevice) -> Option<Disc> {
    let probe = Probe { device };
    let disc = DISCS.iter().find(|magic| probe.has_all(magic))?;
    Some(Disc { foreign: disc.foreign, bytes: DISC_PARTITION_END })
}

struct Probe<'a> {
    device: &'a dyn BlockDevice,
}

impl Probe<'_> {
    /// Returns the bytes at `offset`, unless the device ends before or cannot be read.
    fn bytes<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let end = offset.checked_add(N as u64)?;
        if end > self.device.size() {
            return None;
        }
        self.device.read_at(DeviceOffset(offset), &mut bytes).ok()?;
        Some(bytes)
    }

    fn has_all(&self, magic: &Magic) -> bool {
        magic.places.iter().all(|(at, bytes)| self.has(*at, bytes))
    }

    fn has(&self, offset: u64, expected: &[u8]) -> bool {
        let mut bytes = vec![0; expected.len()];
        let end = offset + expected.len() as u64;
        end <= self.device.size()
            && self.device.read_at(DeviceOffset(offset), &mut bytes).is_ok()
            && bytes == expected
    }

    /// Returns whether the first sector describes a FAT file system: its fields have possible
    /// values. It need not have a name of the format.
    fn is_fat(&self) -> bool {
        let Some(sector) = self.bytes::<512>(0) else { return false };
        let short = |at: usize| u16::from_le_bytes([sector[at], sector[at + 1]]);
        let has_sectors = short(19) != 0 || short(32) != 0 || short(34) != 0;
        let has_table = short(22) != 0 || short(36) != 0 || short(38) != 0;
        matches!(sector[0], 0xe9 | 0xeb)
            && matches!(short(11), 512 | 1024 | 2048 | 4096)
            && sector[13].is_power_of_two()
            && short(14) != 0
            && matches!(sector[16], 1..=4)
            && matches!(sector[21], 0xf0 | 0xf8..)
            && has_sectors
            && has_table
    }

    fn is_swap(&self) -> bool {
        let at = PAGE_SIZES.map(|size| size - 10);
        at.into_iter().any(|at| self.has(at, b"SWAPSPACE2") || self.has(at, b"SWAP-SPACE"))
    }

    /// Returns the position of metadata near the end, and what the device is a member of by them.
    fn membership(&self) -> Option<(u64, &'static Membership)> {
        self.linux_raid().or_else(|| self.drbd()).or_else(|| self.firmware_raid())
    }

    fn linux_raid(&self) -> Option<(u64, &'static Membership)> {
        const MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
        let size = self.device.size();
        // Rounded down to 64 KiB, the last 64 KiB.
        let old = (size & !0xffff).checked_sub(0x1_0000);
        // 8 KiB before the end, rounded down to 4 KiB.
        let new = (size & !511).checked_sub(8 * KIB).map(|at| at & !0xfff);
        // On hosts of the other byte order, too, and followed by the version, 0.90.
        let is_old = |at: u64| {
            self.has(at, b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0")
                || self.has(at, b"\xa9\x2b\x4e\xfc\0\0\0\0\0\0\0\x5a")
        };
        if let Some(at) = old.filter(|&at| is_old(at)) {
            return Some((at, &RAID_0_90));
        }
        let at = new.filter(|&at| self.has(at, MAGIC) && self.has(at + 4, b"\x01\0\0\0"))?;
        Some((at, &RAID_1_0))
    }

    /// Looks for internal metadata of DRBD 8 and 9, in the last whole 4 KiB.
    fn drbd(&self) -> Option<(u64, &'static Membership)> {
        /// The position of the magic number, which is in big-endian order, in both versions.
        const MAGIC_AT: u64 = 60;
        // Of 8.0 on, of 8.4 in use, and of 9.
        const MAGICS: [u32; 3] = [0x8374_026b, 0x8374_026c, 0x8374_026d];
        let at = (self.device.size() & !0xfff).checked_sub(4 * KIB)?;
        let magic = u32::from_be_bytes(self.bytes(at + MAGIC_AT)?);
        MAGICS.contains(&magic).then_some((at, &DRBD))
    }

    /// Looks for the anchors of RAIDs that firmware starts.
    fn firmware_raid(&self) -> Option<(u64, &'static Membership)> {
        let sectors = self.device.size() / 512;
        let at = |from_end: u64| sectors.checked_sub(from_end).map(|sector| sector * 512);
        if let Some(at) = at(2).filter(|&at| self.has(at, b"Intel Raid ISM Cfg Sig. ")) {
            return Some((at, &RAID_IMSM));
        }
        let ddf = [at(1), at(257)].into_iter().flatten();
        let mut ddf = ddf.filter(|&at| self.has(at, b"\xde\x11\xde\x11"));
        ddf.next().map(|at| (at, &RAID_DDF))
    }

    /// Returns whether the first label of a member of a pool has an uberblock.
    fn is_zfs(&self) -> bool {
        const UBERBLOCKS: usize = 128 * KIB as usize;
        const MAGIC: u64 = 0x00ba_b10c;
        if self.device.size() < 2 * UBERBLOCKS as u64 {
            return false;
        }
        let mut bytes = vec![0; UBERBLOCKS];
        let read = self.device.read_at(DeviceOffset(UBERBLOCKS as u64), &mut bytes);
        let is_magic = |block: &[u8]| {
            block.starts_with(&MAGIC.to_le_bytes()) || block.starts_with(&MAGIC.to_be_bytes())
        };
        read.is_ok() && bytes.chunks(KIB as usize).any(is_magic)
    }

    fn is_minix(&self) -> bool {
        let Some(block) = self.bytes::<32>(KIB) else { return false };
        let short = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let is_old = matches!(short(16), 0x137f | 0x138f | 0x2468 | 0x2478);
        let is_new = short(24) == 0x4d5a && matches!(short(28), 1024 | 2048 | 4096);
        // The number of inodes, and the size of zones as a multiple of that of blocks, which is
        // always 1.
        (is_old && short(0) != 0 && short(10) == 0) || is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn check(image: Vec<u8>, expected: Option<&str>) {
        let found = identify(&MemoryDevice::new(image));
        assert_eq!(found.map(|foreign| foreign.name), expected);
    }

    #[test]
    fn contents_are_identified_at_any_length_that_has_all_of_their_magic() {
        for Magic { places, foreign } in MAGICS.iter().chain(DISCS) {
            let mut image = Vec::new();
            for (at, bytes) in *places {
                image.resize(*at as usize, 0);
                image.extend_from_slice(bytes);
            }
            check(image[..image.len() - 1].to_vec(), None);
            check(image.clone(), Some(foreign.name));
            image.resize(2 << 20, 0);
            check(image, Some(foreign.name));
        }
    }

    #[test]
    fn zeroes_and_text_are_nothing_known() {
        for length in [0, 1, 511, 512, 1056, 1 << 20] {
            check(vec![0; length], None);
            check(vec![b'a'; length], None);
        }
    }

    #[test]
    fn an_uberblock_in_any_slot_is_found() {
        let mut image = vec![0; 256 * KIB as usize];
        image[200 * KIB as usize..][..4].copy_from_slice(&[0x0c, 0xb1, 0xba, 0]);
        check(image, Some("a member of a ZFS pool"));
    }
}
