//! Tests of changed directories, judged by e2fsck, debugfs and the running kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, FileBlock, InodeNumber, Result};
use device::MemoryDevice;
use testkit::{LoopMount, Random, must, private_mounts};

use crate::common::{Image, open_device_for_writing, open_for_writing, run};
use crate::inode::Inode;
use crate::volume::Volume;

/// A volume that is open for writing, with the file "target" and the empty directory "many".
struct Subject {
    image: Image,
    volume: Arc<Volume>,
    target: Inode,
    many: Inode,
    names: BTreeSet<Vec<u8>>,
    random: Random,
}

impl Subject {
    fn new(megabytes: u64, options: &str) -> Self {
        Self::with(megabytes, options, |_| {})
    }

    /// Creates a volume in an image that `prepare` changes first.
    fn with(megabytes: u64, options: &str, prepare: impl FnOnce(&Image)) -> Self {
        let image = Image::filled(megabytes, options, |folder| {
            std::fs::write(folder.join("target"), b"contents").unwrap();
            std::fs::create_dir(folder.join("many")).unwrap();
        });
        prepare(&image);
        let volume = open_for_writing(&image);
        let root = volume.inode(crate::ROOT_INODE).unwrap();
        let of = |name| volume.inode(root.lookup(name).unwrap()).unwrap();
        let (target, many) = (of(b"target"), of(b"many"));
        Self { image, volume, target, many, names: BTreeSet::new(), random: Random(1) }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random.below(below as u64) as usize
    }

    fn try_insert(&mut self, name: &[u8]) -> Result<()> {
        let target = self.target.number();
        self.volume.change(self.many.credits_for_insert(), |handle| {
            self.many.dir_insert(handle, name, target, FileType::Regular)
        })?;
        assert!(self.names.insert(name.to_vec()), "{name:?} existed");
        Ok(())
    }

    /// Tries to add a name, and returns the error. Checks that nothing was changed.
    fn insert_refused(&self, name: &[u8]) -> Error {
        let target = self.target.number();
        let done = self.volume.change(self.many.credits_for_insert(), |handle| {
            let done = self.many.dir_insert(handle, name, target, FileType::Regular);
            assert!(!handle.has_changes(), "{name:?}");
            done
        });
        done.expect_err("the name must be refused")
    }

    fn insert(&mut self, name: &[u8]) {
        must(self.try_insert(name), String::from_utf8_lossy(name));
    }

    fn remove(&mut self, name: &[u8]) {
        let removed = self.volume.change(1, |handle| self.many.dir_remove(handle, name));
        assert_eq!(removed.unwrap(), self.target.number());
        assert!(self.names.remove(name));
    }

    fn remove_any(&mut self) {
        if self.names.is_empty() {
            return;
        }
        let pivot = format!("{}", self.random(100_000)).into_bytes();
        let name = self.names.range(pivot..).next().or(self.names.first()).unwrap().clone();
        self.remove(&name);
    }

    /// Adds `count` names of different lengths up to `length_max`, and removes one for every three.
    fn fill(&mut self, count: usize, length_max: usize) {
        for number in 0..count {
            let length = self.random(length_max);
            let name = format!("{number}{}", "é".repeat(length / 2)).into_bytes();
            self.insert(&name[..name.len().min(255)]);
            if number % 3 == 0 {
                self.remove_any();
            }
        }
    }

    /// Checks lookups and listings while the volume is open, then e2fsck and the kernel's listing
    /// after it is closed.
    fn check(self) -> Image {
        let listing = list(&self.many, 100);
        let dots = [b".".to_vec(), b"..".to_vec()];
        let mut expected = self.names.clone();
        expected.extend(dots);
        assert!(listing.keys().eq(expected.iter()), "the listing has other names");
        for name in &self.names {
            assert_eq!(self.many.lookup(name), Ok(self.target.number()));
        }
        let links = 1 + self.names.len() as u16;
        self.volume
            .change(1, |handle| self.target.update(handle, |record| record.links = links))
            .unwrap();
        self.volume.close().unwrap();
        let Self { image, names, volume, target, many, .. } = self;
        drop((volume, target, many));
        image.check_by_e2fsck();
        let volume = image.open();
        let root = volume.inode(crate::ROOT_INODE).unwrap();
        let many = volume.inode(root.lookup(b"many").unwrap()).unwrap();
        assert!(
            list(&many, 1000).keys().eq(expected.iter()),
            "the listing of the read-only volume has other names"
        );
        if volume.geometry().block_size.bytes() <= 4096 {
            let mount = LoopMount::new(&image.path, "ext4", "ro");
            let mut seen = BTreeSet::new();
            for entry in std::fs::read_dir(mount.path().join("many")).unwrap() {
                use std::os::unix::ffi::OsStringExt;
                seen.insert(entry.unwrap().file_name().into_vec());
            }
            assert!(seen == names, "the kernel lists other names");
            for name in names.iter().step_by(7) {
                use std::os::unix::ffi::OsStrExt;
                let path = mount.path().join("many").join(std::ffi::OsStr::from_bytes(name));
                assert!(path.symlink_metadata().is_ok(), "the kernel finds no {name:?}");
            }
        }
        image
    }
}

fn list(directory: &Inode, count_max: usize) -> BTreeMap<Vec<u8>, u64> {
    let mut listing = Listing::default();
    while listing.list_more(directory, count_max) {}
    listing.names
}

/// A listing in progress.
#[derive(Default)]
struct Listing {
    cursor: DirCursor,
    names: BTreeMap<Vec<u8>, u64>,
}

impl Listing {
    /// Lists up to `count_max` more names. Returns false at the end.
    fn list_more(&mut self, directory: &Inode, count_max: usize) -> bool {
        let mut count = 0;
        let listed = directory.read_dir(self.cursor, &mut |entry| {
            let known = self.names.insert(entry.name.to_vec(), entry.inode.0);
            assert_eq!(known, None, "{:?} is listed twice", String::from_utf8_lossy(entry.name));
            assert!(entry.next.0 > self.cursor.0, "cursors ascend");
            self.cursor = entry.next;
            count += 1;
            if count == count_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        listed.unwrap();
        count == count_max
    }
}

const KINDS: &[&str] = &[
    "-t ext4 -b 1024",
    "-t ext4 -b 1024 -O ^metadata_csum,^dir_index",
    "-t ext4 -b 4096",
    "-t ext4 -b 4096 -O ^metadata_csum",
    "-t ext4 -b 4096 -O ^dir_index",
    "-t ext4 -b 65536",
    "-t ext4 -b 65536 -O ^metadata_csum",
    "-t ext4 -b 1024 -I 256 -O inline_data",
    "-t ext4 -b 4096 -I 1024 -O inline_data,^metadata_csum",
];

#[test]
fn e2fsck_and_the_kernel_see_the_names_that_were_added_and_not_removed() {
    private_mounts();
    for options in KINDS {
        for (count, length_max) in [(3, 10), (40, 30), (1500, 60)] {
            let mut subject = Subject::new(32, options);
            subject.fill(count, length_max);
            subject.check();
        }
    }
}

#[test]
fn an_index_grows_as_deep_as_the_volume_allows() {
    private_mounts();
    let long = |number: usize| format!("{number:07}{}", "x".repeat(240)).into_bytes();
    let mut subject = Subject::new(128, "-t ext4 -b 1024 -O large_dir");
    (0..28_000).for_each(|number| subject.insert(&long(number)));
    let image = subject.check();
    let dump = image.debugfs("htree_dump /many");
    assert!(dump.contains("Indirect levels: 2"), "{}", &dump[..500]);

    let mut subject = Subject::new(64, "-t ext4 -b 1024");
    let full = (0..60_000).find(|&number| subject.try_insert(&long(number)) == Err(Error::NoSpace));
    let full = full.expect("two index levels must become full");
    assert!(full > 10_000, "full after {full}");
    // Other names still have room, and the refused name can be tried again.
    assert_eq!(subject.try_insert(&long(full)), Err(Error::NoSpace));
    assert_eq!(subject.many.lookup(&long(full)), Err(Error::NotFound));
    (0..100).for_each(|number| subject.remove(&long(number)));
    subject.check();
}

/// Returns names with equal legacy hashes, for signed characters and without a seed.
fn names_of_one_hash(count: usize, padding: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    const TARGET: u32 = 0x1234_5678;
    let step = |(current, previous): (u32, u32), byte: u8| {
        let mixed = current ^ u32::from(byte).wrapping_mul(FACTOR);
        let next: u32 = previous.wrapping_add(mixed);
        (if next >> 31 == 1 { next.wrapping_sub(0x7FFF_FFFF) } else { next }, current)
    };
    let start = [b'p']
        .repeat(padding)
        .iter()
        .fold((0x12A3_FE2D, 0x37AB_E8F9), |state, &byte| step(state, byte));
    // The factor is odd, so each low byte of a product comes from exactly one byte.
    let inverse = (0..=u8::MAX).find(|&byte| (FACTOR as u8).wrapping_mul(byte) == 1).unwrap();
    let mut names = Vec::new();
    for number in 0_u32.. {
        let digits: [u8; 7] = std::array::from_fn(|at| b'a' + (number >> (4 * at) & 15) as u8);
        let (current, previous) = digits.iter().fold(start, |state, &byte| step(state, byte));
        // A last byte leads to the target hash, if there is such a byte.
        for sum in [TARGET, TARGET.wrapping_add(0x7FFF_FFFF)] {
            let product = sum.wrapping_sub(previous) ^ current;
            let byte = (product as u8).wrapping_mul(inverse);
            if byte.is_ascii_graphic()
                && byte != b'/'
                && step((current, previous), byte).0 == TARGET
            {
                names.push([&[b'p'].repeat(padding)[..], &digits, &[byte]].concat());
            }
        }
        if names.len() >= count {
            break;
        }
    }
    names
}

#[test]
fn names_of_equal_hash_can_fill_more_than_a_leaf() {
    private_mounts();
    let alike = names_of_one_hash(14, 230);
    for order in [1, 5, 9] {
        let mut subject = Subject::with(32, "-t ext4 -b 1024", |image| {
            run(Command::new("tune2fs").args(["-E", "hash_alg=legacy"]).arg(&image.path));
            image.debugfs_write("ssv hash_seed clear\nssv flags 1");
        });
        let mut listing = Listing::default();
        for index in 0..alike.len() {
            subject.insert(&alike[index * order % alike.len()]);
            (0..4).for_each(|other| subject.insert(format!("{index} {other}").as_bytes()));
            if index == 4 {
                assert!(listing.list_more(&subject.many, 3));
            }
            if index > 4 {
                listing.list_more(&subject.many, 1);
            }
        }
        while listing.list_more(&subject.many, 2) {}
        for index in 0..5 {
            assert!(listing.names.contains_key(&alike[index * order % alike.len()]));
        }
        for index in (0..alike.len()).step_by(3) {
            subject.remove(&alike[index]);
        }
        let image = subject.check();
        let dump = image.debugfs("htree_dump /many");
        assert!(dump.contains("Hash Version: 0"), "{dump}");
        let hash = format!("0x{:08x}", 0x1234_5678_u32 << 1 | 1);
        assert!(dump.contains(&hash[2..]), "no leaf continues the hash: {dump}");
    }
}

#[test]
fn our_directories_can_be_changed_by_the_kernel_and_the_kernels_by_us() {
    private_mounts();
    for options in KINDS.iter().filter(|options| !options.contains("65536")) {
        let mut subject = Subject::with(64, options, |image| {
            let mount = LoopMount::new(&image.path, "ext4", "");
            for number in 0..900 {
                let name = format!("kernel {number} {}", "-".repeat(number % 70));
                let many = mount.path().join("many");
                std::fs::hard_link(mount.path().join("target"), many.join(name)).unwrap();
            }
        });
        let mut listing = list(&subject.many, 10);
        listing.retain(|name, _| name.starts_with(b"kernel"));
        assert_eq!(listing.len(), 900);
        subject.names = listing.into_keys().collect();
        subject.fill(900, 90);
        let (mut names, image) = (subject.names.clone(), subject.check());
        {
            let mount = LoopMount::new(&image.path, "ext4", "");
            for number in 0..900 {
                let many = mount.path().join("many");
                let name = format!("again {number} {}", "-".repeat(number % 110));
                std::fs::hard_link(mount.path().join("target"), many.join(&name)).unwrap();
                names.insert(name.into_bytes());
                if number % 2 == 0 {
                    let name = names.iter().nth(number % names.len()).unwrap().clone();
                    use std::os::unix::ffi::OsStrExt;
                    std::fs::remove_file(many.join(std::ffi::OsStr::from_bytes(&name))).unwrap();
                    names.remove(&name);
                }
            }
        }
        image.check_by_e2fsck();
    }
}

#[test]
fn existing_and_invalid_names_are_refused_before_anything_changes() {
    for options in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O inline_data"] {
        for count in [1, 30, 1000] {
            let mut subject = Subject::new(32, options);
            (0..count).for_each(|number| subject.insert(format!("name {number}").as_bytes()));
            for (name, error) in [
                (&b"name 0"[..], Error::Exists),
                (b".", Error::Exists),
                (b"..", Error::Exists),
                (&[b'x'; 256], Error::NameTooLong),
            ] {
                assert_eq!(subject.insert_refused(name), error);
            }
            for name in [&b""[..], b"a/b", b"a\0"] {
                assert!(matches!(subject.insert_refused(name), Error::InvalidArgument(_)));
            }
            let many = &subject.many;
            let missing = subject.volume.change(1, |handle| {
                let done = many.dir_remove(handle, b"none");
                assert!(!handle.has_changes(), "{options}, {count}");
                done
            });
            assert_eq!(missing, Err(Error::NotFound));
        }
    }
}

#[test]
fn entries_that_stay_are_listed_once_during_other_changes() {
    for options in KINDS {
        for stay in [2, 20, 300] {
            let mut subject = Subject::new(32, options);
            let staying: Vec<Vec<u8>> =
                (0..stay).map(|number| format!("stays {number}").into_bytes()).collect();
            staying.iter().for_each(|name| subject.insert(name));
            let mut listing = Listing::default();
            let mut number = 0;
            while listing.list_more(&subject.many, 1 + stay / 20) {
                for _ in 0..40 {
                    number += 1;
                    if number > 1500 {
                        break;
                    }
                    let name = format!("comes {number} {}", "-".repeat(number % 50));
                    subject.insert(name.as_bytes());
                    if number % 2 == 0 {
                        subject.remove(name.as_bytes());
                    }
                }
            }
            for name in &staying {
                assert!(listing.names.contains_key(name), "{}", String::from_utf8_lossy(name));
            }
        }
    }
}

#[test]
fn entries_and_parents_are_replaced_and_empty_directories_are_recognized() {
    for options in KINDS {
        for count in [1, 40, 800] {
            let mut subject = Subject::new(32, options);
            assert_eq!(subject.many.dir_is_empty(), Ok(true));
            (0..count).for_each(|number| subject.insert(format!("name {number}").as_bytes()));
            assert_eq!(subject.many.dir_is_empty(), Ok(false));
            let (many, target) = (&subject.many, subject.target.number());
            let lost = subject.volume.inode(crate::ROOT_INODE).unwrap().lookup(b"lost+found");
            let lost = lost.unwrap();
            let before = subject.volume.change(2, |handle| {
                many.dir_set_parent(handle, lost)?;
                many.dir_set_entry(handle, b"name 0", lost, FileType::Directory)
            });
            assert_eq!(before, Ok(target));
            assert_eq!(many.lookup(b".."), Ok(lost));
            assert_eq!(many.lookup(b"name 0"), Ok(lost));
            let mut kinds = Vec::new();
            many.read_dir(DirCursor(0), &mut |entry| {
                if entry.name == b"name 0" {
                    kinds.push((entry.inode, entry.kind));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(kinds, [(lost, Some(FileType::Directory))]);
            subject
                .volume
                .change(2, |handle| {
                    many.dir_set_parent(handle, crate::ROOT_INODE)?;
                    many.dir_set_entry(handle, b"name 0", target, FileType::Regular)
                })
                .unwrap();
            for number in 0..count {
                assert_eq!(subject.many.dir_is_empty(), Ok(false));
                subject.remove(format!("name {number}").as_bytes());
            }
            assert_eq!(subject.many.dir_is_empty(), Ok(true));
            subject.volume.close().unwrap();
            subject.image.check_by_e2fsck();
        }
    }
}

#[test]
fn new_directories_have_dots() {
    for options in KINDS {
        let subject = Subject::new(32, options);
        let (many, root) = (&subject.many, InodeNumber(2));
        // An inode like a new one: an empty attribute area, and no data.
        let credits = many.credits_for_unmap() + many.credits_for_map(1) + 2;
        let was_inline = many.has(crate::InodeFlags::INLINE_DATA);
        subject
            .volume
            .change(credits, |handle| {
                if !was_inline {
                    many.unmap(handle, FileBlock(0)..FileBlock(1))?;
                }
                many.update(handle, |record| {
                    record.flags.0 &= !crate::InodeFlags::INLINE_DATA.0;
                    record.flags.0 |= crate::InodeFlags::EXTENTS.0;
                    record.attribute_area.fill(0);
                    record.size = 0;
                    record.block_area = crate::map_write::empty_root();
                })?;
                many.dir_init(handle, root)
            })
            .unwrap();
        let is_inline = many.has(crate::InodeFlags::INLINE_DATA);
        assert_eq!(is_inline, options.contains("inline_data"), "{options}");
        subject.check();
    }
}

#[test]
fn damaged_directories_are_changed_or_refused_but_never_panic() {
    let mut random = Random(2);
    let mut next = move |below: usize| random.below(below as u64) as usize;
    for options in ["-b 1024", "-b 4096 -O inline_data"] {
        let options = format!("-t ext4 {options} -O ^metadata_csum,^has_journal");
        for count in [2, 900] {
            let mut subject = Subject::new(8, &options);
            (0..count).for_each(|number| subject.insert(format!("name {number}").as_bytes()));
            let (many, target) = (subject.many.number(), subject.target.number());
            let blocks: Vec<usize> = (0..subject.many.size() >> 10)
                .filter_map(|at| {
                    let offset = base::FileOffset(at << 10);
                    let map = iomap::MapRead::map_read(&subject.many, offset, 1).unwrap();
                    map.address.map(|address| (address.0 + offset.0 - map.offset.0) as usize)
                })
                .collect();
            let (table, at, _) = subject.volume.inode_location(many).unwrap();
            let block_size = subject.volume.geometry().block_size;
            let inode = block_size.device_offset(table).unwrap().0 as usize + at;
            subject.volume.close().unwrap();
            let sound = subject.image.bytes();
            for _ in 0..150 {
                let mut bytes = sound.clone();
                for _ in 0..1 + next(4) {
                    let (start, length) = match blocks.len() {
                        0 => (inode + 40, 216),
                        _ if next(8) == 0 => (inode + 40, 60),
                        // Most fields lie at the start.
                        blocks_count => (blocks[next(blocks_count)], 8 << next(8)),
                    };
                    bytes[start + next(length)] = [0, 1, 12, 0xFF, next(256) as u8][next(5)];
                }
                let _ = use_damaged(bytes, many, target);
            }
        }
    }
}

/// Does a few operations of each kind in a directory, and ignores errors.
fn use_damaged(bytes: Vec<u8>, many: InodeNumber, target: InodeNumber) -> Result<()> {
    let volume = open_device_for_writing(Arc::new(MemoryDevice::new(bytes)))?;
    let many = volume.inode(many)?;
    for number in 0..60 {
        let (new, old) = (format!("new {number}"), format!("name {}", number * 7));
        let _ = many.read_dir(DirCursor(0), &mut |_| ControlFlow::Continue(()));
        let _ = volume.change(many.credits_for_insert(), |handle| {
            many.dir_insert(handle, new.repeat(1 + number % 9).as_bytes(), target, FileType::Fifo)
        });
        let _ = volume.change(2, |handle| many.dir_remove(handle, old.as_bytes()));
    }
    let _ = volume.change(2, |handle| many.dir_set_parent(handle, target));
    let _ = many.dir_is_empty();
    Ok(())
}
