//! Random changes of a volume, damaged or not.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{AttributeChange, DirCursor, FileType, XattrMode};
use base::{Error, FileOffset, FsBlock, InodeNumber, Result, WaitCallback};
use device::SharedDevice;
use iomap::CacheOptions;
use vfs::{
    AtomicWrite, Creation, Credentials, ErrorPolicy, Fallocate, File, Node, OpenMode, Privileges,
    RenameFlags, Volume, VolumeOptions, WriteAt, WriteSync,
};

use crate::Choose;

/// Number of changes of a whole run.
const CHANGES: usize = 150;
/// Maximum number of names that a test remembers.
const NAMES_MAX: usize = 600;
const BY: &Credentials = &Credentials::ROOT;
const KEEP: Privileges = Privileges::Keep;

/// A volume that is changed at random, and its known names.
#[derive(Debug)]
pub struct Changer<C> {
    volume: Volume,
    random: C,
    directories: Vec<Arc<Node>>,
    names: Vec<(Arc<Node>, Vec<u8>)>,
    open: Vec<File>,
    /// The number of successful changes.
    made: u64,
    /// The inodes that changes may have affected.
    touched: BTreeSet<InodeNumber>,
}

impl<C: Choose> Changer<C> {
    /// Opens the volume on `device` for writing. Returns `None` if it is refused.
    pub fn open(device: SharedDevice, mut random: C) -> Option<Self> {
        let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
        let options = VolumeOptions {
            cache,
            writable: true,
            errors: Some(ErrorPolicy::Continue),
            wait_callback: WaitCallback::new(|_| false),
            discard: Some(random.below(2) == 0),
            keys: Arc::new(crate::images::encryption::master_keys()),
            ..VolumeOptions::default()
        };
        let volume = Volume::open_device(device, &options).ok()?;
        let root = volume.root().ok()?;
        Some(Self {
            volume,
            random,
            directories: vec![root],
            names: Vec::new(),
            open: Vec::new(),
            made: 0,
            touched: BTreeSet::new(),
        })
    }

    /// Finds names below the root.
    fn find_names(&mut self) {
        let mut at = 0;
        while at < self.directories.len() && self.names.len() < NAMES_MAX {
            let directory = Arc::clone(&self.directories[at]);
            at += 1;
            let mut found = Vec::new();
            let _ = directory.read_dir(DirCursor(0), &mut |entry| {
                found.push(entry.name.to_vec());
                if found.len() < 200 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            for name in found.into_iter().filter(|name| ![&b"."[..], b".."].contains(&&name[..])) {
                if let Ok(node) = self.volume.lookup(&directory, &name) {
                    let is_known = self.directories.iter().any(|it| it.number() == node.number());
                    if node.kind() == FileType::Directory && !is_known {
                        self.directories.push(node);
                    }
                }
                self.names.push((Arc::clone(&directory), name));
            }
        }
    }

    fn new_name(&mut self) -> (Arc<Node>, Vec<u8>) {
        let directory = Arc::clone(self.random.pick(&self.directories).expect("the root"));
        let length = self.random.below(60) as usize;
        let name = format!("new-{}-{}", self.random.below(1000), "x".repeat(length)).into_bytes();
        self.names.push((Arc::clone(&directory), name.clone()));
        (directory, name)
    }

    fn some_node(&mut self) -> Result<Arc<Node>> {
        let (directory, name) = self.random.pick(&self.names).ok_or(Error::NotFound)?;
        let node = self.volume.lookup(directory, name)?;
        self.touched.insert(node.number());
        Ok(node)
    }

    /// Returns a known name, if there is any, whose inode a change of the name may affect.
    fn some_name(&mut self) -> Result<(Arc<Node>, Vec<u8>)> {
        let name = self.random.pick(&self.names).cloned().ok_or(Error::NotFound)?;
        self.touch(&name);
        Ok(name)
    }

    fn touch(&mut self, (directory, name): &(Arc<Node>, Vec<u8>)) {
        self.touched.extend(self.volume.lookup(directory, name).map(|node| node.number()));
    }

    fn some_file(&mut self) -> Result<File> {
        let append = self.random.below(4) == 0;
        self.some_node()?.open_for(OpenMode { write: true, append })
    }

    /// Returns a random offset, mostly within the file or near its end.
    fn some_offset(&mut self, file: &File) -> FileOffset {
        let size = file.node().attributes().size;
        let at = match self.random.below(4) {
            0 => 0,
            1 => size,
            2 => self.random.below(size.saturating_add(10_000).max(1)),
            _ => self.random.below(1 << 40),
        };
        FileOffset(at)
    }

    fn change(&mut self) -> Result<()> {
        let kind = self.random.below(32);
        match kind {
            0 | 1 => {
                let (directory, name) = self.new_name();
                let creation = Creation::of(FileType::Regular, 0o644);
                let node = self.volume.create_in(&directory, &name, &creation, BY)?;
                node.open_for(OpenMode { write: true, append: false })
                    .and_then(|file| file.write_at(&[1; 5000], 0).map(drop))
            }
            2 => {
                let (directory, name) = self.new_name();
                let creation = Creation::of(FileType::Directory, 0o755);
                let node = self.volume.create_in(&directory, &name, &creation, BY)?;
                self.directories.push(node);
                Ok(())
            }
            3 => {
                let (directory, name) = self.new_name();
                let target = vec![b't'; 1 + self.random.below(200) as usize];
                self.volume.create_in(&directory, &name, &Creation::symlink(&target), BY).map(drop)
            }
            4 => {
                let directory = Arc::clone(self.random.pick(&self.directories).expect("the root"));
                let creation = Creation::of(FileType::Regular, 0o600);
                let node = self.volume.create_unnamed(&directory, &creation, BY)?;
                self.open.push(node.open_for(OpenMode { write: true, append: false })?);
                Ok(())
            }
            5 => {
                let node = self.some_node()?;
                let (directory, name) = self.new_name();
                self.volume.link(&directory, &name, &node)
            }
            6 | 7 => {
                let (directory, name) = self.some_name()?;
                self.volume.unlink(&directory, &name, BY)
            }
            8 => {
                let (directory, name) = self.some_name()?;
                self.volume.rmdir(&directory, &name, BY)
            }
            9 | 10 => {
                let from = self.some_name()?;
                let to = match self.random.below(2) {
                    0 => self.new_name(),
                    _ => self.some_name()?,
                };
                // A new name may be one that exists.
                self.touch(&to);
                let flags =
                    RenameFlags { exchange: self.random.below(4) == 0, ..RenameFlags::default() };
                self.volume.rename_in((&from.0, &from.1), (&to.0, &to.1), flags, BY)
            }
            11..=13 => {
                let file = self.some_file()?;
                let (at, length) = (self.some_offset(&file), self.random.below(20_000) as usize);
                file.write_at(&vec![3; length], at.0)?;
                if self.random.below(3) == 0 {
                    self.open.push(file);
                }
                Ok(())
            }
            14 => {
                let file = self.some_file()?;
                let at = FileOffset(self.some_offset(&file).0 / 512 * 512);
                file.write_direct(WriteAt::Offset(at), &[4; 8192], KEEP, WriteSync::None).map(drop)
            }
            15 => {
                let file = self.some_file()?;
                let size = self.some_offset(&file).0;
                file.node().set_size(size, KEEP)
            }
            16 | 17 => {
                let file = self.some_file()?;
                let flags = [0, 1, 2 | 1, 8, 16, 17, 32, 64];
                let flags = *self.random.pick(&flags).expect("there are some");
                let mode = Fallocate::from_flags(flags).expect("they are known");
                let unit = file.allocation_unit();
                let start = self.some_offset(&file).0 / unit * unit;
                let length = (1 + self.random.below(20)) * unit;
                file.fallocate(mode, FileOffset(start)..FileOffset(start + length), KEEP)
            }
            18 | 19 => {
                let node = self.some_node()?;
                let names: [&[u8]; 3] = [b"user.small", b"user.large", b"trusted.new"];
                let name = *self.random.pick(&names).expect("there are some");
                let length = [5, 90, 900, 3000, 20_000][self.random.below(5) as usize];
                node.set_xattr(name, &vec![5; length], XattrMode::Either, KEEP)
            }
            20 => {
                let node = self.some_node()?;
                let names = node.list_xattrs()?;
                let name = self.random.pick(&names).ok_or(Error::NoAttribute)?;
                node.remove_xattr(name)
            }
            21 => {
                let permissions = Some(self.random.below(0o10000) as u16);
                let uid = Some(self.random.below(70_000) as u32);
                let change = AttributeChange { permissions, uid, ..AttributeChange::default() };
                self.some_node()?.set_attributes(&change, BY)
            }
            22 => match self.random.below(3) {
                0 => self.volume.sync(),
                1 => self.volume.trim(0..u64::MAX, 0).map(drop),
                _ => self.some_file()?.sync_all(),
            },
            23 => {
                self.random.take(&mut self.open);
                Ok(())
            }
            24 => {
                // Synchronous, no dump, compressed, not compressed, ignoring case.
                let flags = [0, 8, 0x40, 4, 4, 0x400, 0x4000_0000];
                let flags = *self.random.pick(&flags).expect("there are some");
                let node = self.some_node()?;
                node.set_flags(node.attributes().flags ^ flags, BY)
            }
            25 => {
                let node = self.some_node()?;
                match self.random.below(4) {
                    0 => {
                        let (algorithm, log) = (self.random.below(5), self.random.below(10));
                        node.set_compression(algorithm as u8, log as u8)
                    }
                    1 | 2 => node.release_saved_blocks().map(drop),
                    _ => node.reserve_saved_blocks().map(drop),
                }
            }
            26 => {
                let file = self.some_file()?;
                let is_pinned = self.random.below(3) > 0;
                file.node().set_pinned(is_pinned)?;
                let whole = FileOffset(0)..FileOffset(1 << 20);
                file.fallocate(Fallocate::Allocate { keep_size: false }, whole, KEEP)
            }
            27 => {
                let file = self.some_file()?;
                let kinds = [AtomicWrite::Update, AtomicWrite::Replace];
                file.atomic_start(*self.random.pick(&kinds).expect("there are some"))?;
                let at = self.some_offset(&file);
                file.write_at(&[6; 9000], at.0)?;
                match self.random.below(4) {
                    0 => file.atomic_abort(),
                    1 => {
                        self.open.push(file);
                        Ok(())
                    }
                    _ => file.atomic_commit(),
                }
            }
            28 => match self.random.below(4) {
                0 => self.volume.clean().map(drop),
                1 => self.volume.clean_some().map(drop),
                2 => {
                    let block = FsBlock(self.random.below(self.volume.statfs().blocks.max(1)));
                    self.volume.clean_range(block..=block, true).map(drop)
                }
                _ => {
                    let file = self.some_file()?;
                    let end = file.node().attributes().size / 4096 * 4096;
                    file.node().defragment_range(FileOffset(0)..FileOffset(end)).map(drop)
                }
            },
            29 | 30 => {
                // Whole clusters of a compressed file, and parts.
                let file = self.some_file()?;
                let at = self.some_offset(&file).0 & !0xFFFF;
                file.write_at(&vec![7; 1 << (12 + self.random.below(7))], at)?;
                match self.random.below(3) {
                    0 => file.sync_data(),
                    _ => Ok(()),
                }
            }
            _ => {
                let file = self.some_file()?;
                let at = self.some_offset(&file);
                file.read_at(&mut [0; 70_000], at.0).map(drop)
            }
        }
    }

    fn count(&mut self, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.made += 1,
            Err(error) => assert!(!error.to_string().is_empty() && error.errno() > 0),
        }
    }

    /// Makes random changes, removes all files, and closes the volume. Returns the number of
    /// successful changes.
    pub fn run(self) -> u64 {
        self.change_some(CHANGES).remove_all().close().0
    }

    /// Makes at most `changes` random changes, until the choices are spent.
    pub fn change_some(mut self, changes: usize) -> Self {
        self.find_names();
        for _ in 0..changes {
            if self.random.is_spent() {
                break;
            }
            let outcome = self.change();
            self.count(outcome);
        }
        self
    }

    /// Removes all known files.
    pub fn remove_all(mut self) -> Self {
        for (directory, name) in std::mem::take(&mut self.names).into_iter().rev() {
            let found = self.volume.lookup(&directory, &name);
            self.touched.extend(found.iter().map(|node| node.number()));
            let removed = match found {
                Ok(node) if node.kind() == FileType::Directory => {
                    self.volume.rmdir(&directory, &name, BY)
                }
                Ok(_) => self.volume.unlink(&directory, &name, BY),
                Err(error) => Err(error),
            };
            self.count(removed);
        }
        self
    }

    /// Returns the inodes that changes may have affected.
    pub fn touched(&self) -> &BTreeSet<InodeNumber> {
        &self.touched
    }

    /// Closes the volume. Returns the number of successful changes, and the first error of the last
    /// sync and of closing.
    pub fn close(mut self) -> (u64, Result<()>) {
        self.open.clear();
        self.directories.clear();
        self.names.clear();
        let synced = self.volume.sync();
        let closed = self.volume.close();
        (self.made, synced.and(closed))
    }
}
