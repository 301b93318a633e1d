//! Directories that repeat a block: small images with millions of names. The memory of the commands
//! that list them is bounded.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;

use crate::support::listed::{list, memory};
use crate::support::{Image, bifolio};
use bifolio::{Creation, Credentials, FileType, VolumeOptions};
use testkit::Mke2fs;

const BLOCK: usize = 4096;
/// The number of blocks of the volume, and so the maximum of a directory.
const BLOCKS: u64 = 5 << 10;
/// The number of extents in a block of the extent tree.
const EXTENTS_MAX: usize = 340;
/// The number of entries in a block, of 12 bytes each. The last one has the rest of the block.
const ENTRIES: usize = 341;
const INODE_BYTES: u64 = 256;
/// The memory that `ls` may take, in bytes. Entries and lines of the whole directory have more than
/// 500 MiB.
const LS_MEMORY_MAX: u64 = 300 << 20;
/// The memory that `tree` may take, in bytes. The entries of the whole directory have more than 200
/// MiB.
const TREE_MEMORY_MAX: u64 = 160 << 20;

/// The blocks of a directory's structures: its first one, the one that it repeats, and its extent
/// tree.
const STRUCTURES: u64 = 20;
/// The depth of directories that repeat subdirectories.
const LEVELS: u64 = 3;

/// Creates an image whose directory "d0" repeats a block with names of one file, or with `levels`
/// above 1, of the directory "d1", which is the next of so many such directories. Returns the
/// number of names in each.
fn repeating_image(levels: u64) -> (Image, usize) {
    let image = Image::empty();
    let options =
        "-N 64 -I 256 -O ^metadata_csum,^64bit,^dir_index,^has_journal,^resize_inode,^flex_bg";
    let recipe = Mke2fs::new("ext4", BLOCK as u32).with(options);
    Mke2fs { size: BLOCKS * BLOCK as u64, ..recipe }.make(&image.path, None);
    let volume = VolumeOptions::new().writable(true).open(&image.path).unwrap();
    let root = volume.root().unwrap();
    let create = |name: &[u8], kind| {
        let creation = Creation::of(kind, 0o755);
        volume.create_in(&root, name, &creation, &Credentials::ROOT).unwrap().number().0
    };
    let directories: Vec<u64> = (0..levels)
        .map(|level| create(format!("d{level}").as_bytes(), FileType::Directory))
        .collect();
    let file = create(b"f", FileType::Regular);
    volume.close().unwrap();
    let device = File::options().read(true).write(true).open(&image.path).unwrap();
    for (level, directory) in (0..).zip(&directories) {
        // The blocks at the end of the volume are free.
        let at = BLOCKS - 200 + level as u64 * STRUCTURES;
        let (inode, kind) = directories.get(level + 1).map_or((file, 1), |next| (*next, 2));
        repeat(&device, *directory, at, inode, kind);
    }
    (image, ENTRIES * (BLOCKS as usize - 2))
}

/// Makes a directory one that repeats a block with names of `inode`. Its structures are at the
/// block `at` and after it.
fn repeat(device: &File, directory: u64, at: u64, inode: u64, kind: u8) {
    let write = |block: u64, bytes: &[u8]| {
        device.write_all_at(bytes, block * BLOCK as u64).unwrap();
    };
    let [first, repeated, index, leaves] = [at, at + 1, at + 2, at + 3];
    let mut dots = entry(directory, 12, 2, b".");
    dots.extend(entry(2, BLOCK - 12, 2, b".."));
    write(first, &dots);
    let last = BLOCK - (ENTRIES - 1) * 12;
    let names = (0..ENTRIES).map(|at| {
        let bytes = if at + 1 < ENTRIES { 12 } else { last };
        entry(inode, bytes, kind, format!("{at:04x}").as_bytes())
    });
    write(repeated, &names.collect::<Vec<_>>().concat());

    let extents: Vec<[u8; 12]> = (0..BLOCKS as u32 - 1)
        .map(|block| {
            let physical = if block == 0 { first } else { repeated };
            extent(block, 1, physical as u32)
        })
        .collect();
    let mut indexes = Vec::new();
    for (at, leaf) in (0..).zip(extents.chunks(EXTENTS_MAX)) {
        write(leaves + u64::from(at), &node(0, EXTENTS_MAX, leaf));
        indexes.push(index_entry(at * EXTENTS_MAX as u32, leaves as u32 + at));
    }
    write(index, &node(1, EXTENTS_MAX, &indexes));

    // The descriptor of the only group is in the second block.
    let mut table = [0; 4];
    device.read_exact_at(&mut table, BLOCK as u64 + 8).unwrap();
    let at = u64::from(u32::from_le_bytes(table)) * BLOCK as u64 + (directory - 1) * INODE_BYTES;
    let size = (BLOCKS - 1) * BLOCK as u64;
    device.write_all_at(&(size as u32).to_le_bytes(), at + 4).unwrap();
    device.write_all_at(&node(2, 4, &[index_entry(0, index as u32)]), at + 40).unwrap();
}

/// A directory entry of `bytes` bytes.
fn entry(inode: u64, bytes: usize, kind: u8, name: &[u8]) -> Vec<u8> {
    let mut entry = (inode as u32).to_le_bytes().to_vec();
    entry.extend((bytes as u16).to_le_bytes());
    entry.extend([name.len() as u8, kind]);
    entry.extend(name);
    entry.resize(bytes, 0);
    entry
}

/// A node of an extent tree.
fn node(depth: u16, entries_max: usize, entries: &[[u8; 12]]) -> Vec<u8> {
    let header = [0xf30a, entries.len() as u16, entries_max as u16, depth, 0, 0];
    let mut node: Vec<u8> = header.iter().flat_map(|field| field.to_le_bytes()).collect();
    node.extend(entries.concat());
    node
}

fn extent(first: u32, blocks: u16, physical: u32) -> [u8; 12] {
    let mut extent = index_entry(first, 0);
    extent[4..6].copy_from_slice(&blocks.to_le_bytes());
    extent[8..].copy_from_slice(&physical.to_le_bytes());
    extent
}

fn index_entry(first: u32, block: u32) -> [u8; 12] {
    let mut entry = [0; 12];
    entry[..4].copy_from_slice(&first.to_le_bytes());
    entry[4..8].copy_from_slice(&block.to_le_bytes());
    entry
}

#[test]
fn listings_of_a_directory_that_repeats_a_block_take_bounded_memory() {
    let (image, names) = repeating_image(1);
    assert!(fs::metadata(&image.path).unwrap().blocks() * 512 < 2 << 20, "the image is small");
    for (arguments, lines, memory_max) in [
        (&["ls"][..], names, LS_MEMORY_MAX),
        // A title.
        (&["ls", "-R"], names + 1, LS_MEMORY_MAX),
        // The directory, and the counts after an empty line.
        (&["tree"], names + 3, TREE_MEMORY_MAX),
    ] {
        let listed = list(&image.at("/d0"), arguments);
        println!("{arguments:?}: {} MiB", listed.memory >> 20);
        assert_eq!(listed.lines, lines, "{arguments:?}");
        assert!(listed.memory < memory_max, "{arguments:?}: {listed:?}");
        let warning = "/d0: there are too many entries to sort them together";
        assert_eq!(listed.errors.matches(warning).count(), 1, "{arguments:?}: {listed:?}");
    }
}

#[test]
fn listings_of_nested_directories_that_repeat_subdirectories_take_bounded_memory() {
    let (image, names) = repeating_image(LEVELS);
    for (arguments, levels) in [
        // Each directory is listed before the next one.
        (&["ls", "-R"][..], LEVELS as usize),
        // The innermost directory is listed first, while the others are in memory.
        (&["tree"], 1),
    ] {
        // After that, there is an error for each further name of a directory.
        let memory = list_in_part(&image.at("/d0"), arguments, names * levels);
        println!("{arguments:?} of nested directories: {} MiB", memory >> 20);
        assert!(memory < LS_MEMORY_MAX, "{arguments:?}: {memory}");
    }
}

#[test]
fn a_copy_of_a_directory_that_repeats_a_block_warns_early() {
    let (image, names) = repeating_image(1);
    // Each file counts for 1 KiB, and up to 100 times the bytes of the image are no reason for a
    // warning.
    let most = fs::metadata(&image.path).unwrap().blocks() as usize * 512 * 100 / 1024;
    assert!(most < names / 4, "{most} of {names}");
    let mut command = bifolio();
    command.args(["cp", "-r", &image.at("/d0")]).arg(image.beside("copy"));
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // There is an error for each further file with a name that was copied already.
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut errors = 0;
    let warning =
        "image: the copy has more files than the image has room for; --max-files limits them";
    let mut lines = lines.inspect(|_| errors += 1);
    assert!(lines.any(|line| line.contains(warning)), "no warning after {names} names");
    drop(lines);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!((most - ENTRIES - 2..most + 2).contains(&errors), "{errors}, {most}");
}

/// Runs a command, and ends it when it has printed `lines` lines. Returns its maximum memory in
/// use, in bytes.
fn list_in_part(target: &str, arguments: &[&str], lines: usize) -> u64 {
    let mut command = bifolio();
    command.args(arguments).args(["--cache-size", "8M"]).arg(target);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut printed = 0;
    while printed < lines {
        let read = output.read(&mut buffer).unwrap();
        assert!(read > 0, "{arguments:?} has ended after {printed} lines");
        printed += buffer[..read].iter().filter(|byte| **byte == b'\n').count();
    }
    let memory = memory(child.id()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    memory
}
