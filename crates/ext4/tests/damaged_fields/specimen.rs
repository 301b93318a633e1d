//! The images to be damaged, and where their structures are.

use std::process::Command;

use testkit::hostile::fields::Structure;
use testkit::hostile::{Place, Shape};

use super::common::{Image, Scratch};

/// The block size of the images.
const BLOCK: usize = 1024;
const SUPERBLOCK: usize = 1024;
const EXTENTS_FLAG: u32 = 0x8_0000;
const FIRST_DESCRIPTOR: usize = 2 * BLOCK;

/// The names in the images, of each type of inode.
const FILES: &[&str] =
    &["/", "/plain", "/holes", "/fast", "/slow", "/device", "/fifo", "/many", "/many/d", "/small"];

/// An image that e2fsck finds clean.
pub struct Specimen {
    pub image: Image,
    pub bytes: Vec<u8>,
    pub places: Vec<Place>,
    pub shape: Shape,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
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
        let shape = Shape::of(&bytes);
        Self { image, bytes, places, shape }
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
    add(Structure::Index, "/many", many[0] * BLOCK, number);
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
            add(structure, name, first_block(&path), inode);
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
