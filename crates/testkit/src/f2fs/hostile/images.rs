//! Valid f2fs images to be damaged, made without a guest: with small and large blocks, all features
//! that need no keys, orphans, and a chain of synced nodes.

use std::sync::Arc;
use std::time::Duration;

use base::attributes::{FileType, XattrMode};
use base::{BlockSize, FileOffset};
use device::MemoryDevice;
use vfs::{Creation, Credentials, Fallocate, Node, OpenMode, Privileges, Volume, VolumeOptions};

use super::{STRUCTURES, Specimen};
use crate::f2fs::make::{Contents, MakeOptions, make};
use crate::hostile::{Damage, Damageable};
use crate::{Choose, Random, must};

const BY: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };

/// Extra attributes, projects, checksums of inodes and superblocks, flexible inline attributes,
/// creation times, lost+found.
const ATTRIBUTES: u32 = 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x800;
/// The same, case folding, and compression.
const FEATURES: u32 = ATTRIBUTES | 0x1000 | 0x2000;
/// Compression without checksums of inodes.
pub const UNCHECKED: u32 = 0x8 | 0x2000;
/// The flag of compressed inodes, and of directories that ignore case.
const COMPRESSED: u32 = 4;
const CASEFOLDED: u32 = 0x4000_0000;

/// An image: its name, the logarithm of its block size, its features, and its end.
type Image = (&'static str, u32, u32, End);

/// The images that are written.
const IMAGES: &[Image] = &[
    ("plain", 12, 0, End::Close),
    ("features", 12, FEATURES, End::Close),
    ("unchecked", 12, UNCHECKED, End::Cut),
    ("cut", 12, FEATURES, End::Cut),
    ("large blocks", 14, FEATURES, End::Cut),
];

/// As [`IMAGES`], for Linux that has neither case folding nor compression, nor blocks that are
/// larger than a page.
const READ_IMAGES: &[Image] = &[
    ("plain", 12, 0, End::Close),
    ("attributes", 12, ATTRIBUTES, End::Close),
    ("plain cut", 12, 0, End::Cut),
    ("attributes cut", 12, ATTRIBUTES, End::Cut),
];

/// How much an image has of what makes it slow to read.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    /// The number of names in the large directory, and of their inodes.
    names: usize,
    inodes: usize,
    /// The number of files that are synced after the last checkpoint.
    synced: usize,
    /// Whether there is a file that ends with the last address of a node.
    has_border: bool,
}

const WRITTEN: Amounts = Amounts { names: 400, inodes: 400, synced: 20, has_border: false };
/// Few inodes, so that faults find each of them. Linux compares the checksum of an inode for each
/// address that it looks at, and looks at all of an empty file.
const READ: Amounts = Amounts { names: 150, inodes: 5, synced: 5, has_border: true };

/// Returns the images with their names.
pub fn images() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    IMAGES.iter().map(|image| (image.0, make_image(*image, WRITTEN)))
}

/// Returns the number of images.
pub const fn writing_images() -> usize {
    IMAGES.len()
}

/// Returns an image whose fields are damaged, by its number.
pub fn writing_image(number: usize) -> Valid {
    Valid::make(IMAGES[number], WRITTEN)
}

/// Returns the images that user-mode Linux reads.
pub fn read_images() -> impl Iterator<Item = Valid> {
    READ_IMAGES.iter().map(|image| Valid::make(*image, READ))
}

/// A valid image, and its structures.
#[derive(Debug)]
pub struct Valid {
    name: &'static str,
    bytes: Vec<u8>,
    specimen: Specimen,
}

impl Valid {
    fn make(image: Image, amounts: Amounts) -> Self {
        let bytes = make_image(image, amounts);
        Self { name: image.0, specimen: Specimen::of(&bytes), bytes }
    }
}

impl Damageable for Valid {
    fn name(&self) -> &str {
        self.name
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn damage<C: Choose>(&self, image: &mut [u8], choose: &mut C) -> Damage {
        let number = choose.below(STRUCTURES.len() as u64 + 8) as usize;
        match STRUCTURES.get(number).filter(|structure| self.specimen.has(**structure)) {
            Some(structure) => {
                let damage = self.specimen.damage(image, *structure, choose);
                Damage { description: damage.description, changed: damage.changed }
            }
            None => {
                let (description, changed) = if number % 2 == 0 {
                    self.specimen.damage_features(image, choose)
                } else {
                    self.specimen.damage_bits(image, choose)
                };
                Damage { description, changed: vec![changed] }
            }
        }
    }
}

/// How the filling of an image ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Close,
    /// The state between two checkpoints, with open files without names, and synced files.
    Cut,
}

/// Returns an image without files.
pub fn empty(shift: u32, features: u32) -> Vec<u8> {
    let block_size = BlockSize::from_shift(shift).expect("a block size");
    let bytes = (32 * 512) << shift;
    let compact_summaries = shift == 12;
    let options =
        MakeOptions { features, compact_summaries, ..MakeOptions::new(block_size, bytes) };
    let mut image = vec![0; bytes as usize];
    for write in must(make(&options), "an image") {
        if let Contents::Bytes(bytes) = write.contents {
            image[write.at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
    image
}

fn make_image((_, shift, features, end): Image, amounts: Amounts) -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(empty(shift, features)));
    let mut options = VolumeOptions::default();
    // What is written in the background depends on time: the same seed damages the same structures
    // of the same image.
    options.writable(true).cache_bytes_max(16 << 20).commit_interval(Duration::from_secs(86_400));
    options.f2fs.cleans_in_background = false;
    let volume = must(Volume::open_device(device.clone(), &options), "an empty image");
    let filler = Filler { volume: &volume, block: 1 << shift, features, amounts };
    filler.fill();
    let open: Vec<_> = (0..20).map(|_| filler.unnamed()).collect();
    must(volume.sync(), "the volume");
    if end == End::Cut {
        filler.sync_files();
        return device.snapshot();
    }
    drop(open);
    must(volume.close(), "the volume");
    drop(volume);
    must(Arc::into_inner(device).ok_or("the device is in use"), "the device").snapshot()
}

struct Filler<'v> {
    volume: &'v Volume,
    block: u64,
    features: u32,
    amounts: Amounts,
}

impl Filler<'_> {
    fn create(&self, directory: &Arc<Node>, name: &str, creation: &Creation<'_>) -> Arc<Node> {
        must(self.volume.create_in(directory, name.as_bytes(), creation, BY), name)
    }

    fn file(&self, directory: &Arc<Node>, name: &str, at: u64, data: &[u8]) -> Arc<Node> {
        let node = self.create(directory, name, &Creation::of(FileType::Regular, 0o644));
        let file = must(node.open_for(WRITE), name);
        must(file.write_all_at(data, at), name);
        must(file.sync_data(), name);
        node
    }

    fn directory(&self, parent: &Arc<Node>, name: &str) -> Arc<Node> {
        self.create(parent, name, &Creation::of(FileType::Directory, 0o755))
    }

    fn fill(&self) {
        let root = must(self.volume.root(), "the root");
        self.files(&self.directory(&root, "files"));
        let small = self.directory(&root, "small");
        for number in 0..20 {
            self.file(&small, &format!("{number}"), 0, &vec![b's'; 200 * number]);
        }
        let large = self.directory(&root, "large");
        let Amounts { names, inodes, .. } = self.amounts;
        let mut files = Vec::new();
        for number in 0..names {
            let name = format!("{number} with a name that takes several slots");
            match files.get(number % inodes) {
                Some(file) => must(self.volume.link(&large, name.as_bytes(), file), &name),
                None => {
                    files.push(self.create(&large, &name, &Creation::of(FileType::Regular, 0o600)));
                }
            }
        }
        let others = self.directory(&root, "others");
        for (number, length) in [10, 2000, 4000].into_iter().enumerate() {
            let target = vec![b't'; length];
            self.create(&others, &format!("link{number}"), &Creation::symlink(&target));
        }
        for kind in [FileType::Fifo, FileType::CharacterDevice] {
            self.create(&others, &format!("{kind:?}"), &Creation::of(kind, 0o600));
        }
        if self.features & FEATURES == FEATURES {
            let folded = self.directory(&root, "folded");
            must(folded.set_flags(folded.attributes().flags | CASEFOLDED, BY), "case folding");
            for name in ["Name", "GROSS", "Größe", "other"] {
                self.create(&folded, name, &Creation::of(FileType::Regular, 0o600));
            }
        }
        if self.features & UNCHECKED == UNCHECKED {
            self.compressed_files(&self.directory(&root, "compressed"));
        }
    }

    fn files(&self, directory: &Arc<Node>) {
        let block = self.block;
        let data = vec![b'd'; 3 * block as usize];
        // In the inode, in direct nodes, and below indirect and double indirect nodes.
        let node = self.file(directory, "sparse", 0, &data);
        let file = must(node.open_for(WRITE), "a file");
        let per_node = block / 4;
        for at in [900, 2 * per_node, 5 * per_node, 3 * per_node * per_node] {
            must(file.write_all_at(&data, at * block), "a file");
        }
        let node = self.file(directory, "dense", 0, &vec![b'e'; 1100 * block as usize]);
        let names = [(&b"user.small"[..], 20), (b"user.large", 2500)];
        for (name, length) in names {
            let value = vec![b'v'; length];
            must(node.set_xattr(name, &value, XattrMode::Either, Privileges::Keep), "a value");
        }
        if self.amounts.has_border {
            let node = self.create(directory, "border", &Creation::of(FileType::Regular, 0o644));
            let file = must(node.open_for(WRITE), "a file");
            // The file ends with the last address of its first direct node, and the end of a file
            // is always read.
            let in_inode = if self.features & 8 == 0 { 873 } else { 864 };
            let end = in_inode + 1018;
            for number in end - 50..end {
                let data = vec![number as u8; block as usize];
                must(file.write_all_at(&data, number * block), "a file");
            }
        }
        let node = self.create(directory, "reserved", &Creation::of(FileType::Regular, 0o644));
        let file = must(node.open_for(WRITE), "a file");
        let whole = FileOffset(0)..FileOffset(40 * block);
        must(
            file.fallocate(Fallocate::from_flags(0).expect("a mode"), whole, Privileges::Keep),
            "",
        );
        let node = self.create(directory, "pinned", &Creation::of(FileType::Regular, 0o644));
        must(node.set_pinned(true), "a pinned file");
        let file = must(node.open_for(WRITE), "a file");
        let part = FileOffset(0)..FileOffset(100 * block);
        must(file.fallocate(Fallocate::from_flags(0).expect("a mode"), part, Privileges::Keep), "");
    }

    fn compressed_files(&self, directory: &Arc<Node>) {
        let block = self.block;
        must(directory.set_flags(directory.attributes().flags | COMPRESSED, BY), "compression");
        // lz4 and zstd, with clusters of 4 and 16 blocks.
        for (number, (algorithm, log)) in [(1, 2), (2, 4), (1, 4), (2, 2)].into_iter().enumerate() {
            let name = format!("file{number}");
            let node = self.create(directory, &name, &Creation::of(FileType::Regular, 0o644));
            must(node.set_compression(algorithm, log), &name);
            let file = must(node.open_for(WRITE), &name);
            must(file.write_all_at(&vec![b'c'; 70 * block as usize + 100], 0), &name);
            // A cluster that does not compress, and one behind a hole, in another node.
            let mut random = Random(number as u64);
            let noise: Vec<u8> = (0..16 * block).map(|_| random.draw() as u8).collect();
            must(file.write_all_at(&noise, 96 * block), &name);
            must(file.write_all_at(&vec![b'z'; 32 * block as usize], 1600 * block), &name);
            must(file.sync_all(), &name);
            if number == 3 {
                must(node.release_saved_blocks(), &name);
            }
        }
    }

    /// Returns an open file without a name.
    fn unnamed(&self) -> vfs::File {
        let root = must(self.volume.root(), "the root");
        let creation = Creation::of(FileType::Regular, 0o600);
        let node = must(self.volume.create_unnamed(&root, &creation, BY), "a file");
        let file = must(node.open_for(WRITE), "a file");
        must(file.write_all_at(&vec![b'u'; 3 * self.block as usize], 0), "a file");
        file
    }

    /// Changes files, and syncs them without a checkpoint.
    fn sync_files(&self) {
        let root = must(self.volume.root(), "the root");
        let directory = must(self.volume.lookup(&root, b"small"), "a directory");
        for number in 0..self.amounts.synced {
            let data = vec![b'n'; self.block as usize * (1 + number % 5)];
            let node = self.file(&directory, &format!("new{number}"), 0, &data);
            must(node.set_xattr(b"user.new", b"value", XattrMode::Either, Privileges::Keep), "");
            let file = must(node.open_for(WRITE), "a file");
            must(file.write_all_at(&data, 950 * self.block), "a file");
            must(file.sync_all(), "a file");
        }
    }
}
