//! Tests of listings and lookups in directories of all kinds, made by mke2fs, e2fsck and the
//! kernel. The output of debugfs is expected.

use crate::common;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::process::Command;

use crate::common::counting_device::Counter;
use crate::common::{Image, Scratch, run};
use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem};
use ext4::dir::hash::{HashAlgorithm, NameHash, NameHasher};
use ext4::{Inode, OpenOptions, ROOT_INODE, Volume};
use iomap::{CacheOptions, PageCache};
use proptest::strategy::{Strategy, ValueTree};
use testkit::{LoopMount, private_mounts};

/// A directory's names, with inode and type.
type Listing = BTreeMap<Vec<u8>, (u64, Option<FileType>)>;

/// Lists a directory, and begins a new call after every `step` entries.
fn list(directory: &Inode, step: usize) -> Listing {
    let (mut listing, mut cursor) = (Listing::new(), DirCursor(0));
    loop {
        let mut count = 0;
        directory
            .read_dir(cursor, &mut |entry| {
                let known = listing.insert(entry.name.to_vec(), (entry.inode.0, entry.kind));
                assert_eq!(known, None, "listed twice");
                assert!(entry.next.0 > cursor.0, "cursors ascend");
                cursor = entry.next;
                count += 1;
                if count == step { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        if count < step {
            return listing;
        }
    }
}

/// Returns the listing of `debugfs -R "ls -p"`. Names must have no slash, which separates its
/// fields.
fn list_by_debugfs(image: &Image, directory: InodeNumber, has_types: bool) -> Listing {
    let mut listing = Listing::new();
    for line in image.debugfs(&format!("ls -p <{directory}>")).lines() {
        let fields: Vec<&str> = line.split('/').collect();
        let [_, inode, mode, _, _, name, ..] = fields[..] else { continue };
        // An unused entry, such as one that hides an index block.
        if inode == "0" {
            continue;
        }
        let mode = u32::from_str_radix(mode, 8).unwrap();
        let kind = FileType::from_mode(mode).filter(|_| has_types);
        listing.insert(name.as_bytes().to_vec(), (inode.parse().unwrap(), kind));
    }
    listing
}

/// Checks that listings with any step equal debugfs's, and that all names are found.
fn check(image: &Image, directory: InodeNumber, entries_min: usize) {
    let volume = image.open();
    let has_types = volume.superblock().has(ext4::Feature::Filetype);
    let theirs = list_by_debugfs(image, directory, has_types);
    assert!(theirs.len() >= entries_min, "{} entries", theirs.len());
    let inode = volume.inode(directory).unwrap();
    for step in [1, 7, usize::MAX] {
        let ours = list(&inode, step);
        let differs = ours.iter().find(|(name, value)| theirs.get(*name) != Some(*value));
        assert_eq!(differs, None, "step {step}");
        assert_eq!(ours.len(), theirs.len(), "step {step}");
    }
    for (name, (number, _)) in &theirs {
        assert_eq!(inode.lookup(name).unwrap().0, *number);
        let mut absent = name.clone();
        *absent.last_mut().unwrap() = b'~';
        assert_eq!(inode.lookup(&absent), Err(Error::NotFound));
    }
    assert_eq!(inode.lookup(&[b'x'; 255]), Err(Error::NotFound));
    assert_eq!(inode.lookup(&[b'x'; 256]), Err(Error::NameTooLong));
    assert_eq!(inode.lookup(b""), Err(Error::NotFound));
}

/// Creates a tree with `count` empty files in the folder "many". Half of the names contain UTF-8.
fn tree_of_many(scratch: &Scratch, count: u32, padding: usize) -> std::path::PathBuf {
    let root = scratch.path("tree");
    let many = root.join("many");
    std::fs::create_dir_all(&many).unwrap();
    for number in 0..count {
        let accent = if number % 2 == 0 { "" } else { "é" };
        std::fs::write(many.join(format!("{number}{accent}{}", "-".repeat(padding))), b"").unwrap();
    }
    root
}

/// Creates an image of such a tree, in which e2fsck has indexed the folder.
fn hashed_image(
    megabytes: u64,
    options: &[&str],
    tune: &[&str],
    (count, padding): (u32, usize),
) -> (Image, InodeNumber) {
    let scratch = Scratch::new();
    let tree = tree_of_many(&scratch, count, padding);
    let mut all = options.to_vec();
    all.extend(["-d", tree.to_str().unwrap()]);
    let image = Image::make(megabytes, &all);
    if !tune.is_empty() {
        run(Command::new("tune2fs").args(tune).arg(&image.path));
    }
    rebuild_index(&image);
    let number = image.open().inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
    (image, number)
}

/// Lets e2fsck build the index again, after a change of the superblock.
fn rebuild_index(image: &Image) {
    let checked = Command::new("e2fsck").args(["-fyD"]).arg(&image.path).output().unwrap();
    assert!(checked.status.code().unwrap() <= 1, "{checked:?}");
}

/// Returns the maximum number of device reads that the lookup of one of these names takes.
fn reads_at_most(image: &Image, directory: InodeNumber, names: &[Vec<u8>]) -> u64 {
    let device = Counter::before(image.bytes());
    let cache = PageCache::new(CacheOptions::default()).unwrap();
    let volume = Volume::open(device.clone(), &cache, &OpenOptions::default()).unwrap();
    let inode = volume.inode(directory).unwrap();
    let count = |name: &Vec<u8>| {
        let before = device.requests();
        inode.lookup(name).unwrap();
        device.requests() - before
    };
    names.iter().map(count).max().unwrap()
}

#[test]
fn every_hash_version_finds_all_names_by_the_index() {
    for algorithm in ["legacy", "half_md4", "tea"] {
        let options = ["-t", "ext4", "-b", "1024", "-N", "4000"];
        let tune = ["-E", &format!("hash_alg={algorithm}")];
        let (image, many) = hashed_image(16, &options, &tune, (3000, 40));
        // Signed names, then unsigned ones.
        for flags in [1, 2] {
            image.debugfs_write(&format!("set_super_value flags {flags}\n"));
            rebuild_index(&image);
            let dump = image.debugfs(&format!("htree_dump <{many}>"));
            assert!(dump.contains("Indirect levels: 1"), "{}", &dump[..500]);
            check(&image, many, 3000);
            let names = (0..40).map(|n| match n % 2 {
                0 => format!("{n}{}", "-".repeat(40)),
                _ => format!("{n}é{}", "-".repeat(40)),
            });
            let names: Vec<_> = names.map(String::into_bytes).collect();
            // The root, a node and a leaf, and the directory's map.
            assert!(reads_at_most(&image, many, &names) <= 5);
        }
    }
}

#[test]
fn names_of_equal_hash_are_found_in_the_next_leaf() {
    // Three entries fill a leaf, so that some of the pairs below are split between two leaves.
    let hasher =
        NameHasher { algorithm: HashAlgorithm::HalfMd4, is_unsigned: false, seed: [1, 0, 0, 0] };
    let name = |n: u32| format!("{n:0>255}").into_bytes();
    let mut seen = HashMap::new();
    let pairs: Vec<[u32; 2]> = (0..400_000)
        .filter_map(|n| seen.insert(hasher.hash(&name(n)).major, n).map(|other| [other, n]))
        .collect();
    assert!(pairs.len() > 10, "{}", pairs.len());
    let scratch = Scratch::new();
    let tree = tree_of_many(&scratch, 0, 0);
    for number in pairs.iter().flatten().copied().chain(1_000_000..1_000_300) {
        let name = name(number);
        let path = tree.join("many").join(std::str::from_utf8(&name).unwrap());
        std::fs::write(path, b"").unwrap();
    }
    let seed = "01000000-0000-0000-0000-000000000000";
    let options = ["-t", "ext4", "-b", "1024", "-N", "1000", "-E", &format!("hash_seed={seed}")];
    let image = Image::make(16, &[&options[..], &["-d", tree.to_str().unwrap()]].concat());
    rebuild_index(&image);
    let many = image.open().inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
    let continued = image
        .debugfs(&format!("htree_dump <{many}>"))
        .lines()
        .filter_map(|line| line.strip_prefix("Entry #")?.split_once("Hash 0x"))
        .filter(|(_, hash)| {
            let digits = hash.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
            u32::from_str_radix(digits, 16).unwrap() & 1 == 1
        })
        .count();
    assert!(continued > 0, "no pair is split between two leaves");
    check(&image, many, 300 + 2 * pairs.len());
}

#[test]
fn three_levels_of_index_are_searched() {
    let options = ["-t", "ext4", "-b", "1024", "-N", "1000", "-O", "large_dir,^has_journal"];
    let image = Image::make(128, &options);
    private_mounts();
    let mount = LoopMount::new(&image.path, "ext4", "user_xattr");
    let many = mount.path().join("many");
    std::fs::create_dir(&many).unwrap();
    // A file may have at most 65000 names.
    for n in 0..70_000 {
        let name = |n: u32| many.join(format!("{n:0>250}"));
        match n {
            0 | 50_000 => std::fs::write(name(n), b"").unwrap(),
            _ => std::fs::hard_link(name(n / 50_000 * 50_000), name(n)).unwrap(),
        }
    }
    mount.unmount();
    let volume = image.open();
    let many = volume.inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
    let dump = image.debugfs(&format!("htree_dump <{many}>"));
    assert!(dump.contains("Indirect levels: 2"), "{}", &dump[..500]);
    let directory = volume.inode(many).unwrap();
    assert_eq!(list(&directory, 1000).len(), 70_002);
    for n in 0..70_000 {
        directory.lookup(format!("{n:0>250}").as_bytes()).unwrap();
        assert_eq!(directory.lookup(format!("{n:0>249}").as_bytes()), Err(Error::NotFound));
    }
    let names: Vec<_> = (0..20).map(|n| format!("{n:0>250}").into_bytes()).collect();
    assert!(reads_at_most(&image, many, &names) <= 10);
}

#[test]
fn linear_directories_of_every_block_size_are_read() {
    let scratch = Scratch::new();
    let tree = tree_of_many(&scratch, 1500, 60);
    let check = |bytes: &str, features: &str| {
        let options = ["-t", "ext4", "-b", bytes, "-N", "2000", "-O", features];
        let image = Image::make(16, &[&options[..], &["-d", tree.to_str().unwrap()]].concat());
        let many = image.open().inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
        check(&image, many, 1500);
        check(&image, ROOT_INODE, 3);
    };
    for bytes in ["1024", "2048", "4096", "8192", "16384", "32768", "65536"] {
        check(bytes, "metadata_csum,^has_journal");
    }
    check("1024", "^metadata_csum,^has_journal");
    check("65536", "^metadata_csum,^has_journal");
    check("1024", "^filetype,^dir_index,^has_journal");
}

#[test]
fn hashed_directories_of_large_blocks_are_read() {
    for bytes in ["4096", "65536"] {
        let options = ["-t", "ext4", "-b", bytes, "-N", "5000"];
        let (image, many) = hashed_image(64, &options, &[], (4000, 40));
        assert!(image.debugfs(&format!("htree_dump <{many}>")).contains("Hash Version"));
        check(&image, many, 4000);
    }
}

#[test]
fn inline_directories_are_read_in_both_parts() {
    for count in [0, 1, 3, 5, 8, 40] {
        let scratch = Scratch::new();
        let tree = tree_of_many(&scratch, count, 3);
        let tree = tree.to_str().unwrap();
        let options = ["-t", "ext4", "-O", "inline_data", "-I", "512", "-d", tree];
        let image = Image::make(16, &options);
        let many = image.open().inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
        check(&image, many, count as usize + 2);
    }
}

#[test]
fn an_inconsistent_index_is_not_used_but_a_wrong_checksum_is_an_error() {
    let options = ["-t", "ext4", "-b", "1024", "-N", "2000", "-O", "^metadata_csum"];
    let (image, many) = hashed_image(16, &options, &[], (1000, 20));
    let intact = image.bytes();
    // The hash version; the levels; a count with slots that were never used, whose leaf is the
    // root; the count.
    for (offset, pattern) in [(28, 9), (30, 7), (34, 100), (34, 255)] {
        let command = format!("zap_block -f <{many}> -o {offset} -l 1 -p {pattern} 0\n");
        image.debugfs_write(&command);
        check(&image, many, 1000);
        std::fs::write(&image.path, &intact).unwrap();
    }
    let (image, many) = hashed_image(16, &options[..6], &[], (1000, 20));
    image.debugfs_write(&format!("zap_block -f <{many}> -o 34 -l 1 -p 2 0\n"));
    let volume = image.open();
    let inode = volume.inode(many).unwrap();
    assert!(matches!(inode.lookup(b"0--------------------"), Err(Error::Corrupt(_))));
    // Listing does not use the index, but verifies the block as one of the directory.
    let listed = inode.read_dir(DirCursor(0), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(listed, Err(Error::Corrupt(_))));
}

#[test]
fn holes_of_any_size_are_skipped() {
    let options = ["-t", "ext4", "-b", "1024", "-N", "2000", "-O", "large_dir,^metadata_csum"];
    let scratch = Scratch::new();
    let tree = tree_of_many(&scratch, 1000, 20);
    let image = Image::make(16, &[&options[..], &["-d", tree.to_str().unwrap()]].concat());
    let many = image.open().inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
    image.debugfs_write(&format!("punch <{many}> 3 5\nsif <{many}> size {}\n", 1_u64 << 41));
    let volume = image.open();
    let inode = volume.inode(many).unwrap();
    assert_eq!(inode.attributes().size, 1 << 41);
    let listing = list(&inode, 10);
    assert!((800..1000).contains(&listing.len()), "{}", listing.len());
    assert_eq!(inode.lookup(b"no such name"), Err(Error::NotFound));
    for (name, (number, _)) in listing {
        assert_eq!(inode.lookup(&name).unwrap().0, number);
    }
}

#[test]
fn a_directory_entry_for_the_directory_itself_or_an_invalid_inode_is_corrupt() {
    let scratch = Scratch::new();
    let tree = tree_of_many(&scratch, 3, 0);
    let options = ["-t", "ext4", "-O", "^metadata_csum", "-d", tree.to_str().unwrap()];
    let image = Image::make(16, &options);
    let many = image.open().inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
    image.debugfs_write(&format!("cd many\nln <{many}> self\n"));
    let volume = image.open();
    let inode = volume.inode(many).unwrap();
    assert!(matches!(inode.lookup(b"self"), Err(Error::Corrupt(_))));
    assert_eq!(inode.lookup(b"."), Ok(many));
    // The third entry of its only block.
    let block: u64 = image.debugfs(&format!("blocks <{many}>")).trim().parse().unwrap();
    let mut bytes = image.bytes();
    bytes[block as usize * 4096 + 24..][..4].copy_from_slice(&99_999_999_u32.to_le_bytes());
    let volume = common::open(bytes).unwrap();
    let listed =
        volume.inode(many).unwrap().read_dir(DirCursor(0), &mut |_| ControlFlow::Continue(()));
    assert!(matches!(listed, Err(Error::Corrupt(_))), "{listed:?}");
}

#[test]
fn directories_without_their_encryption_context_are_corrupt_and_casefolded_ones_are_read() {
    let options = ["-t", "ext4", "-b", "1024", "-N", "2000", "-O", "casefold,encrypt"];
    let (image, many) = hashed_image(16, &options, &[], (1000, 20));
    image.debugfs_write(&format!("sif <{many}> flags 0x40081000\n"));
    check(&image, many, 1000);
    image.debugfs_write(&format!("sif <{many}> flags 0x81800\n"));
    let volume = image.open();
    let inode = volume.inode(many).unwrap();
    let problem = Problem::Missing("encryption context");
    let corrupt = Error::corrupt("encrypted inode", Location::inode(many), problem);
    assert_eq!(inode.lookup(b"0"), Err(corrupt.clone()));
    assert_eq!(inode.read_dir(DirCursor(0), &mut |_| panic!("no names")), Err(corrupt));
}

#[test]
fn lookups_in_a_file_that_is_not_a_directory_fail() {
    let scratch = Scratch::new();
    let tree = tree_of_many(&scratch, 1, 0);
    let image = Image::make(16, &["-t", "ext4", "-d", tree.to_str().unwrap()]);
    let volume = image.open();
    let many = volume.inode(ROOT_INODE).unwrap().lookup(b"many").unwrap();
    let file = volume.inode(many).unwrap().lookup(b"0").unwrap();
    let file = volume.inode(file).unwrap();
    assert_eq!(file.lookup(b"x"), Err(Error::NotDirectory));
    assert_eq!(file.read_dir(DirCursor(0), &mut |_| panic!("no names")), Err(Error::NotDirectory));
}

#[test]
fn name_hashes_equal_those_of_debugfs() {
    let image = Image::make(1, &["-t", "ext2"]);
    let seeds = ["00000000-0000-0000-0000-000000000000", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"];
    let words = [[0; 4], [0x3C2D_1E0F, 0x7869_5A4B, 0xB4A5_9687, 0xF0E1_D2C3]];
    let strategy = "[!#-&(-.0-~\u{80}-\u{24F}]{1,80}";
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let names: Vec<String> = (0..100)
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .filter(|name| !name.starts_with('-'))
        .collect();
    for (version, algorithm) in
        [(0, HashAlgorithm::Legacy), (1, HashAlgorithm::HalfMd4), (2, HashAlgorithm::Tea)]
    {
        for is_unsigned in [false, true] {
            for (seed, uuid) in words.into_iter().zip(seeds) {
                let version = if is_unsigned { version + 3 } else { version };
                let commands: String = names
                    .iter()
                    .map(|name| format!("dx_hash -h {version} -s {uuid} \"{name}\"\n"))
                    .collect();
                let script = image.scratch.write("hashes", commands.as_bytes());
                let text = run(Command::new("debugfs").arg("-f").arg(script).arg(&image.path));
                let theirs: Vec<&str> =
                    text.lines().filter(|line| line.starts_with("Hash of ")).collect();
                assert_eq!(theirs.len(), names.len());
                for (name, line) in names.iter().zip(theirs) {
                    let NameHash { major, minor } =
                        NameHasher { algorithm, is_unsigned, seed }.hash(name.as_bytes());
                    let ours = format!("Hash of {name} is {major:#x} (minor {minor:#x})");
                    assert_eq!(ours, line);
                }
            }
        }
    }
}
