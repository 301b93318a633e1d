//! The fallocate family on ext4 volumes: random operations beside a model, judged by e2fsck.

mod common;

use std::ops::Range;

use base::{Error, FileOffset};
use common::{bytes, close, file, make, open};
use testkit::{Mke2fs, Random};
use vfs::{Fallocate, File, Privileges};

/// The largest file.
const SIZE_MAX: u64 = 4 << 20;

/// A file, and the bytes that it should have.
struct Subject {
    name: &'static str,
    file: File,
    model: Vec<u8>,
}

impl Subject {
    fn check(&self, context: &str) {
        let mut found = vec![0xEE; self.model.len() + 1];
        let length = self.file.read_at(FileOffset(0), &mut found).unwrap();
        assert_eq!(length, self.model.len(), "{}: size, {context}", self.name);
        let differs = self.model.iter().zip(&found).position(|(wanted, found)| wanted != found);
        assert_eq!(differs, None, "{}: {context}", self.name);
        // What is a hole reads as zeroes.
        let mut at = 0;
        while at < length as u64 {
            let data = match self.file.seek_data(FileOffset(at)) {
                Err(Error::NoSuchOffset) => length as u64,
                data => data.unwrap().0,
            };
            let hole = &self.model[at as usize..data as usize];
            assert!(hole.iter().all(|&byte| byte == 0), "{}: no hole, {context}", self.name);
            at = data;
            if at < length as u64 {
                at = self.file.seek_hole(FileOffset(at)).unwrap().0;
            }
        }
    }

    fn grow(&mut self, size: u64) {
        self.model.resize(self.model.len().max(size as usize), 0);
    }

    fn step(&mut self, random: &mut Random) -> String {
        let unit = self.file.allocation_unit();
        let size = self.model.len() as u64;
        let at = random.below(SIZE_MAX);
        let length_max = [1 << 20, 30_000, 30_000, 5000][random.below(4) as usize];
        let length = 1 + random.below(length_max);
        let end = (at + length).min(SIZE_MAX);
        let keep_size = random.below(2) == 0;
        let fallocate =
            |mode, range: Range<u64>| self.file.fallocate(mode, bytes(range), Privileges::Keep);
        match random.below(12) {
            0..=3 => {
                let fill = random.below(255) as u8 + 1;
                let data: Vec<u8> =
                    (at..end).map(|at| fill.wrapping_add((at / 512) as u8)).collect();
                self.file.write_at(FileOffset(at), &data, Privileges::Keep).unwrap();
                self.grow(end);
                self.model[at as usize..end as usize].copy_from_slice(&data);
                format!("write {at}..{end}")
            }
            4 => {
                let size = random.below(SIZE_MAX);
                self.file.node().set_size(size, Privileges::Keep).unwrap();
                self.model.resize(size as usize, 0);
                format!("truncate {size}")
            }
            5 => {
                fallocate(Fallocate::Allocate { keep_size }, at..end).unwrap();
                if !keep_size {
                    self.grow(end);
                }
                format!("allocate {at}..{end} {keep_size}")
            }
            6 | 7 => {
                fallocate(Fallocate::PunchHole, at..end).unwrap();
                let range = at.min(size) as usize..end.min(size) as usize;
                self.model[range].fill(0);
                format!("punch {at}..{end}")
            }
            8 => {
                fallocate(Fallocate::ZeroRange { keep_size }, at..end).unwrap();
                if !keep_size {
                    self.grow(end);
                }
                let size = self.model.len() as u64;
                self.model[at.min(size) as usize..end.min(size) as usize].fill(0);
                format!("zero {at}..{end} {keep_size}")
            }
            9 => {
                let (at, end) = (at / unit * unit, end.next_multiple_of(unit));
                let collapsed = fallocate(Fallocate::CollapseRange, at..end);
                if end < size {
                    collapsed.unwrap();
                    self.model.drain(at as usize..end as usize);
                } else {
                    assert!(matches!(collapsed, Err(Error::InvalidArgument(_))), "{collapsed:?}");
                }
                format!("collapse {at}..{end}")
            }
            10 => {
                let (at, end) = (at / unit * unit, end.next_multiple_of(unit));
                if size + (end - at) > SIZE_MAX {
                    return "nothing".to_owned();
                }
                let inserted = fallocate(Fallocate::InsertRange, at..end);
                if at < size {
                    inserted.unwrap();
                    let hole = std::iter::repeat_n(0, (end - at) as usize);
                    self.model.splice(at as usize..at as usize, hole);
                } else {
                    assert!(matches!(inserted, Err(Error::InvalidArgument(_))), "{inserted:?}");
                }
                format!("insert {at}..{end}")
            }
            _ => {
                self.file.sync(keep_size).unwrap();
                "sync".to_owned()
            }
        }
    }
}

#[test]
fn random_operations_leave_the_bytes_that_they_should() {
    for (block_size, arguments) in [
        (1024, ""),
        (4096, ""),
        (65_536, ""),
        (4096, "-O bigalloc,^resize_inode -C 16384"),
        (1024, "-O ^has_journal"),
        (4096, "-O inline_data"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let kind = Mke2fs { size: 96 << 20, ..Mke2fs::new("ext4", block_size) };
        kind.with(arguments).make(&image, None);
        let names = ["a", "b"];
        let mut volume = open(&image);
        names.iter().for_each(|name| drop(make(&volume, name)));
        let mut models = [Vec::new(), Vec::new()];
        let mut random = Random(0x2545_F491_4F6C_DD1D ^ u64::from(block_size));
        for round in 0..8 {
            let [a, b] = models;
            let mut subjects = [(names[0], a), (names[1], b)].map(|(name, model)| Subject {
                name,
                file: file(&volume, name),
                model,
            });
            for subject in &subjects {
                subject.check("read again");
            }
            for step in 0..60 {
                let subject = &mut subjects[random.below(2) as usize];
                let done = subject.step(&mut random);
                subject.check(&format!("{block_size} {arguments}: {round}/{step}: {done}"));
            }
            models = subjects.map(|subject| subject.model);
            close(volume, &image);
            volume = open(&image);
        }
        close(volume, &image);
    }
}
