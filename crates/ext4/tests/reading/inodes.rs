//! Tests of inodes: their attributes, judged by the running kernel, and the reads that they need.

use crate::common;
use std::process::Command;
use std::sync::Arc;

use crate::common::counting_device::Counter;
use crate::common::{Image, inode_of, open_device, run};
use base::attributes::{DeviceNumber, FileType, Timestamp};
use base::{DeviceOffset, Error, InodeNumber};
use device::{MemoryDevice, SharedDevice};
use ext4::InodeFlags;
use testkit::{LoopMount, private_mounts};

/// Returns attributes in the form of `stat -c`.
fn described(attributes: &base::attributes::Attributes) -> String {
    let mode = attributes.kind.mode_bits() | u32::from(attributes.permissions);
    // `stat` writes the fraction before 1970 as a distance towards zero.
    let time = |time: Timestamp| match time {
        Timestamp { seconds, nanoseconds } if seconds < 0 && nanoseconds > 0 => {
            let sign = if seconds == -1 { "-" } else { "" };
            format!("{sign}{}.{:09}", seconds + 1, 1_000_000_000 - nanoseconds)
        }
        Timestamp { seconds, nanoseconds } => format!("{seconds}.{nanoseconds:09}"),
    };
    format!(
        "{mode:x} {} {} {} {} {} {} {} {} {:x} {:x}",
        attributes.uid,
        attributes.gid,
        attributes.size,
        attributes.blocks,
        attributes.links,
        time(attributes.accessed),
        time(attributes.modified),
        time(attributes.changed),
        attributes.device.major,
        attributes.device.minor,
    )
}

/// Checks that files in the root of the image have the same attributes for the kernel.
fn check_against_kernel(image: &Image, format: &str, names: &[&str]) {
    let volume = image.open();
    let mount = LoopMount::new(&image.path, format, "ro");
    for name in names {
        let ours = volume.inode(inode_of(image, name)).unwrap().attributes();
        let theirs = run(Command::new("stat")
            .args(["-c", "%f %u %g %s %b %h %.9X %.9Y %.9Z %t %T"])
            .arg(mount.path().join(name)));
        assert_eq!(described(&ours), theirs.trim(), "{name}");
        let birth = run(Command::new("stat").args(["-c", "%W"]).arg(mount.path().join(name)));
        if let Some(created) = ours.created {
            // `stat` does not support times of birth before 1970.
            let seconds = if created.seconds < 0 { 0 } else { created.seconds };
            assert_eq!(seconds.to_string(), birth.trim(), "{name}");
        }
    }
}

#[test]
fn adjacent_inodes_are_read_together() {
    // With and without a count of the inodes that were never used.
    for features in ["", "-O ^uninit_bg,^metadata_csum"] {
        let image =
            Image::filled(16, &format!("-t ext4 -b 4096 -I 256 -N 2048 {features}"), |top| {
                (0..480).for_each(|name| std::fs::write(top.join(format!("{name}")), "").unwrap());
            });
        let device = Counter::before(image.bytes());
        let volume = open_device(device.clone()).unwrap();
        let before = device.requests();
        for number in 13..480 {
            volume.inode(InodeNumber(number)).unwrap();
        }
        let reads = device.requests() - before;
        assert!(reads <= 4, "{reads} requests for {} blocks", 480 * 256 / 4096);
    }
}

/// Files with times, owners and sizes at the limits of their fields.
const STRANGE: &str = "\
set_inode_field /owners uid 4294901760
set_inode_field /owners gid 70000
set_inode_field /owners mode 0107777
set_inode_field /old atime @0x80000000
set_inode_field /old mtime @0xffffffff
set_inode_field /old ctime 0
set_inode_field /late atime_extra 1
set_inode_field /late mtime_extra 0xee6b27fe
set_inode_field /late ctime_extra 3
set_inode_field /late crtime_extra 2
set_inode_field /late mtime 0x7fffffff
set_inode_field /large size 0x3fffffff123
";

fn strange(options: &str) -> Image {
    let image = Image::filled(32, options, |folder| {
        for name in ["owners", "old", "late", "large"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        for node in ["char c 5 1", "block b 300 70000", "pipe p"] {
            let mut arguments = node.split(' ');
            let path = folder.join(arguments.next().unwrap());
            run(Command::new("mknod").arg(path).args(arguments));
        }
    });
    image.debugfs_write(STRANGE);
    image
}

#[test]
fn attributes_equal_those_of_the_kernel() {
    private_mounts();
    let names = ["owners", "old", "late", "char", "block", "pipe", "."];
    for (format, options) in [
        ("ext4", "-t ext4 -O ^metadata_csum"),
        ("ext4", "-t ext4 -I 128"),
        ("ext4", "-t ext4 -I 1024 -O project,quota"),
        ("ext2", "-t ext2 -b 1024"),
        ("ext2", "-t ext2 -I 128"),
    ] {
        check_against_kernel(&strange(options), format, &names);
    }
    check_against_kernel(&strange("-t ext4"), "ext4", &["large"]);
}

#[test]
fn block_counts_of_huge_files_have_two_units() {
    private_mounts();
    let image = strange("-t ext4 -O ^metadata_csum");
    image.debugfs_write(
        "set_inode_field /old blocks_hi 1\nset_inode_field /late blocks 5\n\
         set_inode_field /late flags 0xc0000\n",
    );
    check_against_kernel(&image, "ext4", &["old", "late"]);
    assert_eq!(image.open().inode(inode_of(&image, "late")).unwrap().attributes().blocks, 40);
}

#[test]
fn device_numbers_have_two_encodings() {
    let image = strange("-t ext4");
    let volume = image.open();
    let device = |name| {
        let attributes = volume.inode(inode_of(&image, name)).unwrap().attributes();
        (attributes.kind, attributes.device)
    };
    let number = |major, minor| DeviceNumber { major, minor };
    assert_eq!(device("char"), (FileType::CharacterDevice, number(5, 1)));
    assert_eq!(device("block"), (FileType::BlockDevice, number(300, 70_000)));
    assert_eq!(device("pipe"), (FileType::Fifo, number(0, 0)));
}

#[test]
fn project_ids_are_returned_if_the_volume_has_them() {
    let image = strange("-t ext4 -O project,quota");
    image.debugfs_write("set_inode_field /old projid 123456\n");
    let volume = image.open();
    let inode = volume.inode(inode_of(&image, "old")).unwrap();
    assert_eq!(inode.attributes().project, Some(123_456));
    let plain = strange("-t ext4");
    let inode = plain.open().inode(inode_of(&plain, "old")).unwrap();
    assert_eq!(inode.attributes().project, None);
}

#[test]
fn lookups_of_inodes_without_names_fail() {
    let image = strange("-t ext4 -O quota,orphan_file");
    let old = inode_of(&image, "old");
    image.debugfs_write("rm /old\n");
    let volume = image.open();
    assert_eq!(volume.inode(old).unwrap_err(), Error::NotFound);
    // This inode was never used.
    assert_eq!(volume.inode(InodeNumber(2000)).unwrap_err(), Error::NotFound);
    for number in [0, 1, 7, 8, u64::from(volume.geometry().inode_count) + 1, u64::MAX] {
        let error = volume.inode(InodeNumber(number)).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{number}: {error}");
    }
    let named = volume.superblock().inodes;
    for number in [named.journal, named.user_quota, named.group_quota, named.orphan_file] {
        let inode = volume.special_inode(number.unwrap()).unwrap();
        assert!(inode.has(InodeFlags::EXTENTS) && inode.size() > 0);
    }
}

#[test]
fn a_changed_byte_in_an_inode_is_an_error() {
    for options in ["-t ext4", "-t ext4 -I 128", "-t ext4 -O metadata_csum_seed -I 512"] {
        let image = strange(options);
        let number = inode_of(&image, "old");
        let text = image.debugfs(&format!("imap <{number}>"));
        // "located at block 100, offset 0x0b00"
        let block = common::number_after(&text, "at block").unwrap();
        let hex = text.split("offset 0x").nth(1).unwrap().trim();
        let device: SharedDevice = Arc::new(MemoryDevice::new(image.bytes()));
        let open = || common::open_device(Arc::clone(&device)).unwrap();
        open().inode(number).unwrap();
        let geometry = open().geometry().clone();
        let start = (block << geometry.block_size.shift()) + u64::from_str_radix(hex, 16).unwrap();
        for at in (start..start + u64::from(geometry.inode_size)).map(DeviceOffset) {
            let mut byte = [0];
            device.read_at(at, &mut byte).unwrap();
            device.write_at(at, &[byte[0] ^ 0x20]).unwrap();
            let error = open().inode(number).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)), "{options} byte {at}: {error}");
            device.write_at(at, &byte).unwrap();
        }
    }
}
