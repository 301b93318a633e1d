//! Files with maps that point at the volume's own metadata: every kind of map and every kind of
//! metadata, on volumes with many options. No metadata may be read or written through such a map,
//! and each call must fail as on the running kernel's mount of the same image.

use crate::common;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::WRITE;
use ::fs::Piece;
use base::{FileBlock, FileOffset, FsBlock, GroupNumber, InodeNumber, Result};
use device::{OpenDevice, SharedDevice};
use ext4::OpenOptions as Ext4Options;
use iomap::{CacheOptions, PageCache};
use tempfile::TempDir;
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, must};
use vfs::{Credentials, Follow, Node, Privileges, Volume, VolumeOptions, WriteAt, WriteSync};

/// A kind of volume.
struct Kind {
    format: &'static str,
    block_size: u32,
    arguments: &'static str,
    /// Whether the running kernel mounts it.
    has_kernel: bool,
}

const fn kind(format: &'static str, block_size: u32, arguments: &'static str) -> Kind {
    Kind { format, block_size, arguments, has_kernel: block_size <= 4096 }
}

const KINDS: &[Kind] = &[
    kind("ext2", 1024, "-g 2048"),
    kind("ext3", 4096, "-g 1024 -J size=4"),
    kind("ext4", 1024, "-g 2048 -O ^metadata_csum,^flex_bg -J size=1"),
    kind("ext4", 4096, "-g 1024 -O ^metadata_csum,mmp,uninit_bg -J size=4"),
    kind("ext4", 1024, "-g 1024 -O ^metadata_csum,meta_bg,^resize_inode,^flex_bg -J size=1"),
    kind("ext4", 2048, "-g 1024 -O ^metadata_csum,sparse_super2 -J size=2"),
    kind("ext4", 1024, "-O ^metadata_csum,bigalloc -C 4096 -J size=1"),
    kind("ext4", 4096, "-g 1024 -O metadata_csum,64bit -J size=4"),
    kind("ext4", 65_536, "-O ^metadata_csum,^has_journal"),
];

/// The pointer of an inode that is changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pointer {
    /// The only extent, or the first direct pointer.
    Data,
    /// The first index entry of the root, or the pointer to the indirect block.
    Node,
    /// The first entry of a leaf, or the first pointer of the indirect block.
    InNode,
    /// The reference to the block of attributes.
    Attributes,
    /// As `Data`, but of a directory.
    Directory,
    /// As `Data`, but of a symbolic link.
    Symlink,
}

const POINTERS: [Pointer; 6] = [
    Pointer::Data,
    Pointer::Node,
    Pointer::InNode,
    Pointer::Attributes,
    Pointer::Directory,
    Pointer::Symlink,
];

/// Blocks with metadata, by the name of the structure.
type Targets = BTreeMap<&'static str, u64>;

fn open_ext4(image: &Path) -> std::sync::Arc<ext4::Volume> {
    let options = OpenDevice { read_only: true, ..OpenDevice::default() };
    let device: SharedDevice = device::open(image, options).unwrap();
    let cache = PageCache::new(CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() });
    ext4::Volume::open(device, &cache.unwrap(), &Ext4Options::default()).unwrap()
}

fn targets(volume: &std::sync::Arc<ext4::Volume>) -> Targets {
    let geometry = volume.geometry();
    let mut targets = Targets::new();
    let copy = (1..geometry.group_count).rev().find(|&g| geometry.has_superblock(GroupNumber(g)));
    let superblock = geometry.superblock_block().0;
    // A pointer to block 0 means a hole.
    if superblock > 0 {
        targets.insert("superblock", superblock);
    }
    if let Some(copy) = copy {
        targets.insert("superblock-copy", geometry.group_start(GroupNumber(copy)).0);
    }
    targets.insert("descriptors", geometry.descriptor_block(0).0);
    let last_descriptors = geometry.descriptor_blocks() - 1;
    targets.insert("last-descriptors", geometry.descriptor_block(last_descriptors).0);
    if geometry.reserved_descriptor_blocks > 0 {
        let reserved = u64::from(geometry.reserved_descriptor_blocks);
        let first = superblock + 1 + u64::from(geometry.descriptor_blocks());
        targets.insert("reserved-descriptors", first);
        targets.insert("reserved-to-the-last", first + reserved - 1);
    }
    let last = volume.group(GroupNumber(geometry.group_count - 1)).unwrap();
    let first = volume.group(GroupNumber(0)).unwrap();
    targets.insert("block-bitmap", last.block_bitmap.0);
    targets.insert("inode-bitmap", first.inode_bitmap.0);
    targets.insert("inode-table", first.inode_table.0);
    targets.insert(
        "inode-table-end",
        last.inode_table.0 + u64::from(geometry.inode_table_blocks()) - 1,
    );
    if let Some(journal) = volume.superblock().inodes.journal {
        let journal = volume.special_inode(journal).unwrap();
        let Piece::Run(run) = journal.piece_at(FileBlock(5), FileBlock(6)).unwrap() else {
            panic!("a journal with holes")
        };
        targets.insert("journal", run.block.0 + 5 - run.start.0);
    }
    if geometry.features.has(ext4::Feature::Mmp) {
        targets.insert("multiple-mount-protection", volume.superblock().raw().mmp_block.get());
    }
    targets
}

fn name(pointer: Pointer, target: &str) -> String {
    format!("{pointer:?}-{target}").to_lowercase()
}

/// Creates a file for each pointer and each of the targets `names`.
fn fill(source: &Path, block_size: u32, names: &[&'static str]) {
    for target in names {
        for pointer in POINTERS {
            let path = source.join(name(pointer, target));
            match pointer {
                Pointer::Directory => {
                    fs::create_dir(&path).unwrap();
                    fs::write(path.join("inside"), "").unwrap();
                }
                Pointer::Symlink => {
                    std::os::unix::fs::symlink("x/".repeat(150), &path).unwrap();
                }
                Pointer::Node | Pointer::InNode => {
                    let file = fs::File::create(&path).unwrap();
                    // Six extents, or more blocks than there are direct pointers.
                    for index in 0..8 {
                        let at = index * 8 * u64::from(block_size);
                        file.write_all_at(&vec![7; block_size as usize], at).unwrap();
                    }
                }
                Pointer::Data => fs::write(&path, vec![7; block_size as usize]).unwrap(),
                Pointer::Attributes => {
                    fs::write(&path, "x").unwrap();
                    let value = "v".repeat(400);
                    run(Command::new("setfattr").args(["-n", "user.a", "-v", &value]).arg(&path));
                }
            }
        }
    }
}

/// Returns the offset of an inode's record in the image.
fn inode_offset(volume: &ext4::Volume, number: InodeNumber) -> u64 {
    let geometry = volume.geometry();
    let (group, index) = geometry.inode_position(number).unwrap();
    let table = volume.group(group).unwrap().inode_table;
    let start = geometry.block_size.device_offset(table).unwrap();
    start.0 + u64::from(index * geometry.inode_size)
}

fn patch(image: &Path, at: u64, block: u64) {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&(block as u32).to_le_bytes(), at).unwrap();
}

/// Changes the pointer of a file to `block`.
fn point(
    image: &Path,
    volume: &std::sync::Arc<ext4::Volume>,
    path: &str,
    pointer: Pointer,
    block: u64,
) {
    let number = number_of(image, path);
    let inode = volume.special_inode(number).unwrap();
    let has_extents = inode.has(ext4::InodeFlags::EXTENTS);
    let (at, field) = match (pointer, has_extents) {
        (Pointer::Attributes, _) => (104, "file_acl"),
        (Pointer::Data | Pointer::Directory | Pointer::Symlink, true) => (40 + 20, "block[5]"),
        (Pointer::Node, true) => (40 + 16, "block[4]"),
        (Pointer::Data | Pointer::Directory | Pointer::Symlink, false) => (40, "block[0]"),
        (Pointer::Node, false) => (40 + 48, "block[IND]"),
        (Pointer::InNode, _) => {
            let mut area = [0; 4];
            let root = if has_extents { 16 } else { 48 };
            area.copy_from_slice(&inode.record().block_area[root..root + 4]);
            let node = FsBlock(u32::from_le_bytes(area).into());
            let start = volume.geometry().block_size.device_offset(node).unwrap().0;
            return patch(image, start + if has_extents { 20 } else { 0 }, block);
        }
    };
    if volume.geometry().metadata_seed().is_none() {
        return patch(image, inode_offset(volume, number) + at, block);
    }
    // debugfs also updates the checksum.
    let command = format!("set_inode_field /{path} {field} {block}");
    run(Command::new("debugfs").args(["-w", "-R", &command]).arg(image));
}

fn number_of(image: &Path, path: &str) -> InodeNumber {
    let text = run(Command::new("debugfs").args(["-R", &format!("stat /{path}")]).arg(image));
    let text = String::from_utf8_lossy(&text).into_owned();
    let number = text.split_once("Inode: ").and_then(|(_, rest)| rest.split_whitespace().next());
    InodeNumber(must(number.unwrap_or_default().parse(), text))
}

/// An image with a file for each pointer and target.
struct Subject {
    _folder: TempDir,
    image: std::path::PathBuf,
    targets: Targets,
    /// The pointer and the target of each file.
    files: Vec<(String, Pointer)>,
}

impl Subject {
    fn new(kind: &Kind) -> Self {
        let folder = TempDir::new().unwrap();
        let [source, image] = ["source", "image"].map(|name| folder.path().join(name));
        fs::create_dir(&source).unwrap();
        let mut make = Mke2fs::new(kind.format, kind.block_size);
        make.size = if kind.block_size > 4096 { 64 << 20 } else { 24 << 20 };
        make.arguments = format!("{} -N 1024", kind.arguments);
        make.make(&image, None);
        let names: Vec<&str> = targets(&open_ext4(&image)).into_keys().collect();
        fill(&source, kind.block_size, &names);
        make.make(&image, Some(&source));
        let volume = open_ext4(&image);
        // The metadata has the same blocks as without the files.
        let targets = targets(&volume);
        let mut files = Vec::new();
        for (target, block) in &targets {
            for pointer in POINTERS {
                if pointer == Pointer::InNode && volume.geometry().metadata_seed().is_some() {
                    continue;
                }
                let name = name(pointer, target);
                point(&image, &volume, &name, pointer, *block);
                files.push((name, pointer));
            }
        }
        Self { _folder: folder, image, targets, files }
    }

    /// Returns the metadata at which files point, without the superblock itself, which records
    /// errors and times.
    fn metadata(&self, image: &Path) -> BTreeMap<&'static str, Vec<u8>> {
        let volume = open_ext4(image);
        let block_size = volume.geometry().block_size;
        let file = fs::File::open(image).unwrap();
        let read = |block: u64| {
            let mut bytes = vec![0; block_size.len()];
            let at = block_size.device_offset(FsBlock(block)).unwrap().0;
            file.read_exact_at(&mut bytes, at).unwrap();
            if at <= 1024 && 1024 < at + bytes.len() as u64 {
                let superblock = 1024 - at as usize;
                bytes[superblock..superblock + 1024].fill(0);
            }
            bytes
        };
        // A mount updates the block of multiple-mount protection.
        let targets = self.targets.iter().filter(|(name, _)| !name.starts_with("multiple"));
        targets.map(|(name, block)| (*name, read(*block))).collect()
    }
}

/// The results of the calls on a file: error numbers, or 0.
#[derive(PartialEq, Eq, Debug, Default)]
struct Outcome {
    stat: i32,
    read: i32,
    write: i32,
    truncate: i32,
}

fn number<T>(result: Result<T>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

fn code<T>(result: std::io::Result<T>) -> i32 {
    result.map_or_else(|error| error.raw_os_error().unwrap(), |_| 0)
}

/// Returns an offset that is not in the first blocks of a file, if it has more.
fn far_in(size: u64) -> u64 {
    // Files with many blocks have a size of 57 blocks.
    if size % 57 == 0 { size / 57 * 16 } else { 0 }
}

/// Reads a file through this library, in the way that uses the pointer.
fn read_ours(node: &std::sync::Arc<Node>, pointer: Pointer) -> i32 {
    let at = far_in(node.attributes().size);
    match pointer {
        Pointer::Directory => number(node.lookup(b"inside")),
        Pointer::Symlink => number(node.read_link()),
        Pointer::Attributes => number(node.get_xattr(b"user.a")),
        _ => number(node.open().and_then(|file| file.read_at(&mut [0; 100], at))),
    }
}

fn call_library(volume: &Volume, name: &str, pointer: Pointer) -> Outcome {
    let node = volume.resolve(format!("/{name}").as_bytes(), Follow::No);
    let mut outcome =
        Outcome { stat: number(node.as_ref().map_err(Clone::clone)), ..Outcome::default() };
    let Ok(node) = node else { return outcome };
    outcome.read = read_ours(&node, pointer);
    if matches!(pointer, Pointer::Data | Pointer::Node | Pointer::InNode) {
        let file = node.open_for(WRITE).unwrap();
        let at = FileOffset(far_in(node.attributes().size));
        let written = file.write_at(&[0xEE; 100], at.0);
        outcome.write = number(written.and_then(|_| file.sync_all()));
        let (at, data) = (WriteAt::Offset(at), [0xEE; 65_536]);
        let direct = file.write_direct(at, &data, Privileges::Keep, WriteSync::None);
        assert_ne!(number(direct), 0, "{name}: a direct write");
        outcome.truncate = number(node.set_size(0, Privileges::Keep));
    }
    outcome
}

fn call_kernel(top: &Path, name: &str, pointer: Pointer) -> Outcome {
    let path = top.join(name);
    let mut outcome = Outcome { stat: code(path.symlink_metadata()), ..Outcome::default() };
    if outcome.stat != 0 {
        return outcome;
    }
    outcome.read = match pointer {
        Pointer::Directory => code(path.join("inside").symlink_metadata()),
        Pointer::Symlink => code(path.read_link()),
        Pointer::Attributes => panic!("the kernel checks this pointer when it reads the inode"),
        // The kernel returns EIO for a page that could not be read, whatever the cause.
        _ => match code(fs::read(&path)) {
            EIO => EUCLEAN,
            code => code,
        },
    };
    if matches!(pointer, Pointer::Data | Pointer::Node | Pointer::InNode) {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let at = far_in(path.metadata().unwrap().len());
        let written = file.write_all_at(&[0xEE; 100], at).and_then(|()| file.sync_all());
        outcome.write = code(written);
        outcome.truncate = code(file.set_len(0));
    }
    outcome
}

const EUCLEAN: i32 = 117;
const EIO: i32 = 5;

/// Checks that reads through such maps fail on a read-only volume, too.
fn check_reading(subject: &Subject, what: &str) {
    let options = OpenDevice { read_only: true, ..OpenDevice::default() };
    let device = device::open(&subject.image, options).unwrap();
    let volume = Volume::open_device(device, &VolumeOptions::default()).unwrap();
    for (name, pointer) in &subject.files {
        let node = volume.resolve(format!("/{name}").as_bytes(), Follow::No);
        let node = node.map_err(|error| error.errno());
        let outcome = node.map_or_else(|error| error, |node| read_ours(&node, *pointer));
        assert_eq!(outcome, EUCLEAN, "{what}: {name}");
    }
}

fn writable(image: &Path) -> Volume {
    let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let options = VolumeOptions { writable: true, cache, ..VolumeOptions::default() };
    must(Volume::open_device(common::device(image), &options), image.display())
}

fn check(kind: &Kind) {
    let what = format!("{} {} {}", kind.format, kind.block_size, kind.arguments);
    let subject = Subject::new(kind);
    check_reading(&subject, &what);
    let [ours, theirs] = ["ours", "theirs"].map(|name| subject.image.with_extension(name));
    fs::copy(&subject.image, &ours).unwrap();
    fs::copy(&subject.image, &theirs).unwrap();
    let before = subject.metadata(&ours);

    let volume = writable(&ours);
    let outcomes =
        subject.files.iter().map(|(name, pointer)| call_library(&volume, name, *pointer));
    let outcomes: Vec<Outcome> = outcomes.collect();
    for ((name, _), outcome) in subject.files.iter().zip(&outcomes) {
        let all = [outcome.stat, outcome.read, outcome.write, outcome.truncate];
        assert!(
            all.contains(&EUCLEAN) && all.iter().all(|e| [0, EUCLEAN].contains(e)),
            "{what}: {name}: {outcome:?}"
        );
    }
    let info = volume.info();
    assert!(info.details.iter().any(|(name, _)| *name == "errors_found"), "{info:?}");
    // Names can be removed. Blocks that cannot be freed stay allocated.
    let root = volume.root().unwrap();
    for (name, _) in &subject.files {
        let _ = volume.unlink(&root, name.as_bytes(), &Credentials::ROOT);
    }
    let _ = volume.sync();
    let _ = volume.close();
    drop((root, volume));
    for (target, bytes) in subject.metadata(&ours) {
        assert!(
            !bytes.windows(100).any(|part| part == [0xEE; 100]),
            "{what}: {target} was overwritten"
        );
        // Changes are logged, and deleted inodes change the inode table and the bitmaps.
        let may_change = ["journal", "inode", "block-bitmap", "descriptors", "last-descriptors"];
        let is_same = bytes == before[target];
        assert!(
            is_same || may_change.iter().any(|name| target.starts_with(name)),
            "{what}: {target}"
        );
    }

    if !kind.has_kernel {
        return;
    }
    // The kernel's ext4 also mounts volumes without a journal.
    let mount = LoopMount::new(&theirs, "ext4", "rw,errors=continue");
    for ((name, pointer), ours) in subject.files.iter().zip(&outcomes) {
        // Linux does not check a pointer to an indirect block. It checks the pointers in such a
        // block only when it reads the block from the device. Linux has been seen to write into a
        // bitmap because of that.
        let is_in_map = matches!(pointer, Pointer::Node | Pointer::InNode);
        // Linux does not protect the block of multiple-mount protection. If group 0 begins before
        // the superblock, it does not protect the last block reserved for descriptors.
        let is_unchecked_by_linux = name.contains("protection")
            || name.ends_with("to-the-last") && kind.arguments.contains("bigalloc");
        if is_in_map && kind.format != "ext4" || is_unchecked_by_linux {
            continue;
        }
        assert_eq!(*ours, call_kernel(mount.path(), name, *pointer), "{what}: {name}");
    }
    mount.unmount();
}

#[test]
fn metadata_is_not_read_or_written_through_maps_of_files() {
    testkit::private_mounts();
    KINDS.iter().for_each(check);
}
