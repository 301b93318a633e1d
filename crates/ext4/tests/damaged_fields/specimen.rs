//! The images to be damaged, where their structures are, and their checksums.

use std::process::Command;

use base::checksum::crc32c;

use super::common::{Image, Scratch};
use super::fields::Structure;

/// The block size of the images.
const BLOCK: usize = 1024;
const SUPERBLOCK: usize = 1024;
const EXTENTS_FLAG: u32 = 0x8_0000;
const FIRST_DESCRIPTOR: usize = 2 * BLOCK;
const RO_METADATA_CSUM: u32 = 0x400;
const INCOMPAT_64BIT: u32 = 0x80;

/// The names in the images, of each type of inode.
const FILES: &[&str] =
    &["/", "/plain", "/holes", "/fast", "/slow", "/device", "/fifo", "/many", "/many/d", "/small"];

/// An image that e2fsck finds clean.
pub struct Specimen {
    pub image: Image,
    pub bytes: Vec<u8>,
    pub places: Vec<Place>,
}

/// A structure in an image.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub structure: Structure,
    /// Its name, for messages.
    pub name: &'static str,
    pub at: usize,
    /// The inode that has it, or 0.
    inode: u32,
}

pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn set_half(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

impl Specimen {
    /// Makes an image with `mke2fs` and `debugfs`, which create inodes in the same order each time.
    pub fn make(options: &'static str) -> Self {
        let fixed = "-b 1024 -N 160 -U 6e6ab4b3-8a3c-4a6a-9d5a-2b1f3f5f6c11 \
                     -E hash_seed=1b1e8a3c-0a6a-4d5a-8b1f-3f5f6c116e6a";
        let all = format!("{options} {fixed}");
        let image = Image::make(3, &all.split_whitespace().collect::<Vec<_>>());
        fill(&image);
        // Hashes the directory and counts usage. A second run must find nothing.
        let fixed = Command::new("e2fsck").arg("-fyD").arg(&image.path).output().unwrap();
        assert!(fixed.status.code().unwrap() <= 1, "{fixed:?}");
        image.check_by_e2fsck();
        let bytes = image.bytes();
        let places = places(&image, &bytes);
        Self { image, bytes, places }
    }
}

fn fill(image: &Image) {
    let scratch = Scratch::new();
    let data = |name: &str, length: usize| {
        let bytes: Vec<u8> = (0..length).map(|n| (n / 7) as u8).collect();
        scratch.write(name, &bytes).display().to_string()
    };
    let (plain, small, empty) = (data("plain", 9000), data("small", 40), data("empty", 0));
    let holes = scratch.path("holes");
    let file = std::fs::File::create(&holes).unwrap();
    for n in 0..7_u64 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[9; 1024], n * 8192).unwrap();
    }
    let value = data("value", 500);
    let mut requests = format!(
        "write {plain} plain\nwrite {small} small\nwrite {} holes\nsymlink fast plain\n\
         symlink slow {}\nmknod device c 5 1\nmknod fifo p\nmkdir many\nmkdir many/d\n\
         ea_set plain user.a one\nea_set -f {value} plain user.b\n",
        holes.display(),
        "t".repeat(100),
    );
    for n in 0..60 {
        requests += &format!("write {empty} many/a-name-of-some-length-{n}\n");
    }
    image.debugfs_write(&requests);
}

fn inode_number(image: &Image, path: &str) -> u32 {
    let text = image.debugfs(&format!("stat {path}"));
    let number = text.split("Inode: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{path}: {text}"))
}

fn blocks(image: &Image, path: &str) -> Vec<usize> {
    let text = image.debugfs(&format!("blocks {path}"));
    text.split_whitespace().filter_map(|block| block.parse().ok()).collect()
}

fn inode_offset(bytes: &[u8], inode: u32) -> usize {
    let per_group = word(bytes, SUPERBLOCK + 0x28);
    assert!(inode <= per_group, "one group");
    let table = word(bytes, FIRST_DESCRIPTOR + 8) as usize;
    table * BLOCK + (inode as usize - 1) * usize::from(half(bytes, SUPERBLOCK + 0x58))
}

fn places(image: &Image, bytes: &[u8]) -> Vec<Place> {
    let mut places = Vec::new();
    let mut add = |structure, name, at, inode| places.push(Place { structure, name, at, inode });
    add(Structure::Superblock, "", SUPERBLOCK, 0);
    add(Structure::Descriptor, "", FIRST_DESCRIPTOR, 0);
    add(Structure::Bitmap, "blocks", word(bytes, FIRST_DESCRIPTOR) as usize * BLOCK, 0);
    add(Structure::Bitmap, "inodes", word(bytes, FIRST_DESCRIPTOR + 4) as usize * BLOCK, 0);
    for path in FILES {
        let inode = inode_number(image, path);
        let at = inode_offset(bytes, inode);
        add(Structure::Inode, path, at, inode);
        let has_extents = word(bytes, at + 0x20) & EXTENTS_FLAG != 0;
        if has_extents {
            add(Structure::Extents, path, at + 0x28, 0);
            if half(bytes, at + 0x28 + 6) == 1 {
                let leaf = word(bytes, at + 0x28 + 16) as usize;
                add(Structure::Extents, "leaf", leaf * BLOCK, inode);
            }
        }
        let attributes = word(bytes, at + 0x68) as usize;
        if attributes != 0 {
            add(Structure::Attributes, path, attributes * BLOCK, inode);
        }
    }
    let is_inline = |path: &str| {
        word(bytes, inode_offset(bytes, inode_number(image, path)) + 0x20) & 0x1000_0000 != 0
    };
    let first_block = |path: &str| blocks(image, path)[0] * BLOCK;
    let root = first_block("/");
    for (name, at) in
        [("dot", 0), ("dot-dot", 12), ("lost+found", 24), ("plain", 44), ("small", 60)]
    {
        add(Structure::Entry, name, root + at, 2);
    }
    let many = blocks(image, "/many");
    let number = inode_number(image, "/many");
    add(Structure::Index, "/many", many[0] * BLOCK, 0);
    add(Structure::Entry, "in a leaf", many[1] * BLOCK, number);
    if !is_inline("/many/d") {
        add(
            Structure::Entry,
            "dot of /many/d",
            first_block("/many/d"),
            inode_number(image, "/many/d"),
        );
    }
    for (structure, name, offset) in [
        (Structure::JournalSuperblock, "journal", 0xE0),
        (Structure::QuotaFile, "user quota", 0x240),
        (Structure::QuotaFile, "group quota", 0x244),
        (Structure::OrphanFile, "orphan file", 0x280),
    ] {
        let inode = word(bytes, SUPERBLOCK + offset);
        if inode != 0 {
            let path = format!("<{inode}>");
            add(structure, name, first_block(&path), 0);
            add(Structure::Inode, name, inode_offset(bytes, inode), inode);
        }
    }
    add(Structure::Inode, "resize inode", inode_offset(bytes, 7), 7);
    let mmp = word(bytes, SUPERBLOCK + 0x168) as usize;
    if mmp != 0 {
        add(Structure::Mmp, "", mmp * BLOCK, 0);
    }
    places
}

/// Sets the checksum of a structure to that of its contents, on a volume that has checksums of metadata. Those of indexes,
/// bitmaps and orphan files stay wrong. `sound` is the image before the damage.
pub fn mend(bytes: &mut [u8], sound: &[u8], place: &Place) {
    if word(sound, SUPERBLOCK + 0x64) & RO_METADATA_CSUM == 0 {
        return;
    }
    let seed = crc32c(!0, &sound[SUPERBLOCK + 0x68..][..16]);
    let of_inode = || {
        let generation = word(sound, inode_offset(sound, place.inode) + 0x64);
        crc32c(crc32c(seed, &place.inode.to_le_bytes()), &generation.to_le_bytes())
    };
    let at = place.at;
    match place.structure {
        Structure::Superblock => {
            let sum = crc32c(!0, &bytes[at..at + 1020]);
            set_word(bytes, at + 1020, sum);
        }
        Structure::Descriptor => {
            let is_large = word(sound, SUPERBLOCK + 0x60) & INCOMPAT_64BIT != 0;
            let length = if is_large { 64 } else { 32 };
            let mut copy = bytes[at..at + length].to_vec();
            copy[0x1E..0x20].fill(0);
            let sum = crc32c(crc32c(seed, &0_u32.to_le_bytes()), &copy);
            set_half(bytes, at + 0x1E, sum);
        }
        Structure::Inode => mend_inode(bytes, seed, place.inode, at),
        Structure::Extents if place.inode == 0 => {
            // In an inode.
            let table = inode_offset(sound, 1);
            let size = usize::from(half(sound, SUPERBLOCK + 0x58));
            let index = (at - table) / size;
            mend_inode(bytes, seed, index as u32 + 1, table + index * size);
        }
        Structure::Extents => {
            let end = 12 + 12 * usize::from(half(sound, at + 4));
            let sum = crc32c(of_inode(), &bytes[at..at + end]);
            set_word(bytes, at + end, sum);
        }
        Structure::Entry => {
            let block = at / BLOCK * BLOCK;
            let sum = crc32c(of_inode(), &bytes[block..block + BLOCK - 12]);
            set_word(bytes, block + BLOCK - 4, sum);
        }
        Structure::Attributes => {
            let number = (at / BLOCK) as u64;
            let mut copy = bytes[at..at + BLOCK].to_vec();
            copy[0x10..0x14].fill(0);
            let sum = crc32c(crc32c(seed, &number.to_le_bytes()), &copy);
            set_word(bytes, at + 0x10, sum);
        }
        Structure::Mmp => {
            let sum = crc32c(seed, &bytes[at..at + 1020]);
            set_word(bytes, at + 1020, sum);
        }
        _ => {}
    }
}

fn mend_inode(bytes: &mut [u8], seed: u32, inode: u32, at: usize) {
    let size = usize::from(half(bytes, SUPERBLOCK + 0x58));
    let mut copy = bytes[at..at + size].to_vec();
    copy[0x7C..0x7E].fill(0);
    copy[0x82..0x84].fill(0);
    let generation = word(bytes, at + 0x64);
    let seed = crc32c(crc32c(seed, &inode.to_le_bytes()), &generation.to_le_bytes());
    let sum = crc32c(seed, &copy);
    set_half(bytes, at + 0x7C, sum);
    set_half(bytes, at + 0x82, sum >> 16);
}
