//! Tests of what a volume has, sound or damaged, and of volumes that cannot be written.

#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod checksums;
mod counts;
mod creator_os;
mod damaged_files;
mod hostile;
mod info;
mod inodes;
mod panics;
mod shipped_images;
mod superblock_copies;
mod torn_superblock;
mod unwritable;
mod verity;
mod volumes;
