//! Random loads, stores, reads, writes, truncations and changes of ranges, compared with a model.
//! At the end, the volume is closed, judged, and opened again.

use base::FileOffset;
use iomap::{CacheOptions, FolioSlice};
use testkit::{Mke2fs, Random};
use vfs::{
    Fallocate, File, FileMap, MapAccess, MapAdvice, MapSync, Privileges, WriteAt, WriteSync,
};

use crate::{PAGE, Stage, bytes, load, map, read, store, write};

/// The maximum size of the file.
const SIZE_MAX: u64 = 3 << 20;
const STEPS: u32 = 400;

/// A file, its expected contents, and maps of it.
struct Subject {
    file: File,
    model: Vec<u8>,
    /// A map of the maximum size.
    whole: FileMap,
    part: Option<(u64, FileMap)>,
    /// Lent bytes, and a copy of them at that time.
    lent: Vec<(FolioSlice, Vec<u8>)>,
}

impl Subject {
    fn new(file: File) -> Self {
        let whole = map(&file, 0..SIZE_MAX + 1);
        Self { file, model: Vec::new(), whole, part: None, lent: Vec::new() }
    }

    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    fn check(&self, context: &str) {
        let differs = |found: &[u8], what: &str| {
            assert_eq!(found.len(), self.model.len(), "{what}: size, {context}");
            let at = self.model.iter().zip(found).position(|(wanted, found)| wanted != found);
            assert_eq!(at, None, "{what}: {context}");
        };
        differs(&read(&self.file, 0, self.model.len() + 1), "read");
        differs(&load(&self.whole, 0..self.model.len()), "loaded");
        let mut copied = vec![0xEE; self.model.len()];
        self.whole.read(0, &mut copied).unwrap();
        differs(&copied, "copied");
        // The rest of the last page is not compared: stores to it may still be there.
        for (slice, wanted) in &self.lent {
            assert!(**slice == wanted[..], "lent bytes have changed: {context}");
        }
    }

    /// Returns a map for bytes from `at` on, and their offset in it.
    fn map_for(&self, at: u64, random: &mut Random) -> (&FileMap, usize) {
        match &self.part {
            Some((start, map))
                if *start <= at && at < *start + map.len() as u64 / 2 && random.below(2) == 0 =>
            {
                (map, (at - start) as usize)
            }
            _ => (&self.whole, at as usize),
        }
    }

    fn store(&mut self, at: u64, length: u64, random: &mut Random) -> String {
        let length = length.min(30_000).min(self.size().saturating_sub(at)) as usize;
        if length == 0 {
            return "nothing".to_owned();
        }
        let fill = random.below(255) as u8 + 1;
        let data: Vec<u8> = (0..length).map(|at| fill.wrapping_add((at / 300) as u8)).collect();
        let (map, start) = self.map_for(at, random);
        let length = length.min(map.len() - start);
        if random.below(4) == 0 {
            map.write(start, &data[..length]).unwrap();
        } else {
            store(map, start, &data[..length]);
        }
        self.model[at as usize..at as usize + length].copy_from_slice(&data[..length]);
        // Past the end of the file, but in its last page.
        let end = self.size() as usize;
        let page_end = end.next_multiple_of(PAGE);
        if random.below(3) == 0 && end < page_end && at as usize + length == end {
            store(&self.whole, end, &vec![0xDD; page_end - end]);
        }
        format!("store {at}, {length} bytes")
    }

    fn step(&mut self, random: &mut Random) -> String {
        let unit = self.file.allocation_unit();
        let size = self.size();
        // Mostly within the file.
        let reach = if random.below(3) == 0 { SIZE_MAX } else { size.max(1) };
        let at = random.below(reach);
        let length_max = [1 << 20, 30_000, 5000, 5000][random.below(4) as usize];
        let length = 1 + random.below(length_max);
        let end = (at + length).min(SIZE_MAX);
        let clear = |model: &mut Vec<u8>| {
            let range = at.min(size) as usize..end.min(size) as usize;
            model[range].fill(0);
        };
        let fallocate = |file: &File, mode, from, to| {
            file.fallocate(mode, bytes(from..to), Privileges::Keep).unwrap();
        };
        match random.below(22) {
            0..=6 => return self.store(at, length, random),
            7 | 8 if at < size => {
                let (map, start) = self.map_for(at, random);
                let length = (end.min(size) - at).min((map.len() - start) as u64) as usize;
                let wanted = &self.model[at as usize..at as usize + length];
                assert!(load(map, start..start + length) == *wanted, "load {at}..{end}");
                return format!("load {at}..{end}");
            }
            9 => {
                let fill = random.below(255) as u8 + 1;
                write(&self.file, at, &vec![fill; (end - at) as usize]);
                self.model.resize(size.max(end) as usize, 0);
                self.model[at as usize..end as usize].fill(fill);
                return format!("write {at}..{end}");
            }
            20 => {
                let (at, end) = (at / 512 * 512, end.next_multiple_of(512).min(SIZE_MAX));
                let fill = random.below(255) as u8 + 1;
                let data = vec![fill; (end - at) as usize];
                let place = WriteAt::Offset(FileOffset(at));
                self.file.write_direct(place, &data, Privileges::Keep, WriteSync::None).unwrap();
                self.model.resize(size.max(end) as usize, 0);
                self.model[at as usize..end as usize].fill(fill);
                return format!("write directly {at}..{end}");
            }
            21 if at < size => {
                let at = at / 512 * 512;
                let mut found = vec![0xEE; length.next_multiple_of(512) as usize];
                let read = self.file.read_direct(FileOffset(at), &mut found).unwrap();
                assert!(found[..read] == self.model[at as usize..at as usize + read], "{at}");
                return format!("read directly {at}, {read} bytes");
            }
            10 => {
                self.file.node().set_size(end, Privileges::Keep).unwrap();
                self.model.resize(end as usize, 0);
                return format!("truncate {end}");
            }
            11 => {
                fallocate(&self.file, Fallocate::PunchHole, at, end);
                clear(&mut self.model);
                return format!("punch {at}..{end}");
            }
            12 => {
                fallocate(&self.file, Fallocate::ZeroRange { keep_size: true }, at, end);
                clear(&mut self.model);
                return format!("zero {at}..{end}");
            }
            13 => {
                let (at, end) = (at / unit * unit, end.next_multiple_of(unit));
                if end < size {
                    fallocate(&self.file, Fallocate::CollapseRange, at, end);
                    self.model.drain(at as usize..end as usize);
                    return format!("collapse {at}..{end}");
                }
            }
            14 => {
                let (at, end) = (at / unit * unit, end.next_multiple_of(unit));
                if at < size && size + (end - at) <= SIZE_MAX {
                    fallocate(&self.file, Fallocate::InsertRange, at, end);
                    let zeroes = vec![0; (end - at) as usize];
                    self.model.splice(at as usize..at as usize, zeroes);
                    return format!("insert {at}..{end}");
                }
            }
            15 => {
                let how = if random.below(2) == 0 { MapSync::Sync } else { MapSync::Async };
                self.whole.sync(0..self.whole.len(), how).unwrap();
                return format!("msync {how:?}");
            }
            16 => {
                if at < size {
                    let slice = self.file.lend(FileOffset(at), length as usize).unwrap();
                    let wanted = self.model[at as usize..][..slice.len()].to_vec();
                    assert!(*slice == wanted[..], "lend {at}");
                    if self.lent.len() > 3 {
                        self.lent.clear();
                    }
                    self.lent.push((slice, wanted));
                    return format!("lend {at}");
                }
            }
            17 => {
                let advice = [MapAdvice::WillNeed, MapAdvice::DontNeed, MapAdvice::Random];
                let advice = advice[random.below(3) as usize];
                self.whole.advise(at as usize..end as usize, advice).unwrap();
                return format!("advise {at}..{end} {advice:?}");
            }
            18 => {
                if end <= size {
                    let access = [MapAccess::Read, MapAccess::ReadWrite][random.below(2) as usize];
                    self.whole.prepare(at as usize..end as usize, access).unwrap();
                    return format!("prepare {at}..{end} {access:?}");
                }
            }
            _ => {
                let start = at / PAGE as u64 * PAGE as u64;
                self.part = None;
                self.part = Some((start, map(&self.file, start..end.max(start + 1))));
                return format!("map {start}..{end}");
            }
        }
        "nothing".to_owned()
    }
}

fn run(block_bytes: u32, arguments: &str, seed: u64, folio_order_max: u8) {
    let mke2fs = Mke2fs { size: 96 << 20, ..Mke2fs::new("ext4", block_bytes) };
    let cache = CacheOptions { bytes_max: 4 << 20, folio_order_max };
    let mut stage = Stage::with(&mke2fs.with(arguments), cache);
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ seed);
    let mut subject = Subject::new(stage.make("file"));
    let mut done = Vec::new();
    for step in 0..STEPS {
        done.push(subject.step(&mut random));
        if step % 4 == 0 {
            let last = &done[done.len().saturating_sub(12)..];
            subject.check(&format!("seed {seed}, step {step}, last {last:#?}"));
        }
    }
    subject.file.sync_all().unwrap();
    let model = subject.model.clone();
    drop(subject);
    stage.close();
    stage.open();
    let file = stage.file("file");
    assert!(read(&file, 0, model.len() + 1) == model, "read again, seed {seed}");
    let memory = file.map(bytes(0..SIZE_MAX), MapAccess::Read).unwrap();
    assert!(load(&memory, 0..model.len()) == model, "loaded again, seed {seed}");
    drop((memory, file));
    stage.close();
}

#[test]
fn small_blocks_agree_with_the_model() {
    run(1024, "", 1, 9);
    run(1024, "", 2, 0);
}

#[test]
fn pages_agree_with_the_model() {
    run(4096, "", 3, 9);
    run(4096, "", 4, 0);
}

#[test]
fn blocks_of_several_pages_agree_with_the_model() {
    run(16_384, "", 5, 9);
    run(65_536, "", 6, 9);
    run(65_536, "", 7, 0);
}

#[test]
fn clusters_and_inline_data_agree_with_the_model() {
    run(4096, "-O bigalloc,^resize_inode -C 16384", 8, 9);
    run(4096, "-O inline_data", 9, 9);
}
