//! The orphans of a volume that is open for writing: inodes whose deletion or truncation has begun,
//! or that have no name yet, so that a recovery can end what a crash cut off. They are kept in the
//! orphan file where the volume has one, else in a list that begins in the superblock.
//! Not here: deleting and truncating (`namespace`), reading orphans at recovery (`recovery`).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use base::checksum::crc32c;
use base::locks::{Rank, RankedMutex};
use base::{Error, FileBlock, FsBlock, InodeNumber, Place, Problem, Result};
use zerocopy::FromBytes;

use crate::features::Feature;
use crate::inode::Inode;
use crate::journal::Handle;
use crate::ondisk::orphan::RawOrphanTail;
use crate::recovery::ORPHAN_FILE_BYTES_MAX;
use crate::volume::Volume;

const FILE_STRUCTURE: &str = "orphan file block";
/// The blocks that [`Volume::add_orphan`] or [`Volume::remove_orphan`] change, at most: two inodes
/// and the superblock.
pub(crate) const ORPHAN_CREDITS: u32 = 3;

/// The orphans.
pub(crate) struct OrphanSet {
    inner: RankedMutex<Inner>,
}

struct Inner {
    /// Those in the list, the first one first: each holds the number of the next.
    list: Vec<Listed>,
    /// Those in the file.
    in_file: HashMap<InodeNumber, Slot>,
    file: Option<OrphanFile>,
}

/// An orphan in the list. It does not keep the inode, which keeps the volume, in memory.
struct Listed {
    number: InodeNumber,
    inode: Weak<Inode>,
}

impl Listed {
    fn new(inode: &Arc<Inode>) -> Self {
        Self { number: inode.number(), inode: Arc::downgrade(inode) }
    }

    /// The inode, which nobody else has if it is not in memory.
    fn inode(&self, volume: &Arc<Volume>) -> Result<Arc<Inode>> {
        let load = || volume.special_inode(self.number).map(Arc::new);
        self.inode.upgrade().map_or_else(load, Ok)
    }
}

/// A place in the orphan file.
#[derive(Clone, Copy)]
struct Slot {
    block: usize,
    index: usize,
}

struct OrphanFile {
    blocks: Vec<FsBlock>,
    seed: Option<u32>,
    /// Which places hold a number, block by block.
    taken: Vec<Vec<bool>>,
    /// The place to look at first.
    hint: Slot,
}

impl OrphanSet {
    /// The orphans of a volume; what the volume has of them already is to be added by
    /// [`adopt`](Self::adopt).
    pub(crate) fn open(volume: &Arc<Volume>) -> Result<Self> {
        let file = match volume.superblock().inodes.orphan_file {
            Some(number) if volume.superblock().has(Feature::OrphanFile) => {
                Some(OrphanFile::open(volume, number)?)
            }
            _ => None,
        };
        let inner = Inner { list: Vec::new(), in_file: HashMap::new(), file };
        Ok(Self { inner: RankedMutex::new(Rank::Orphans, inner) })
    }

    /// Takes in the orphans that the volume has, as it was opened: those of the list, in its order,
    /// and those of the file. Gives all of them. Where the list leads to what is no orphan, it ends,
    /// as it does for the kernel; then a check of the volume has to find the rest.
    pub(crate) fn adopt(&self, volume: &Arc<Volume>) -> Result<Vec<Arc<Inode>>> {
        let mut inner = self.inner.lock();
        let (mut next, mut all) = (volume.superblock().inodes.last_orphan, Vec::new());
        while let Some(number) = next {
            let inode = match load(volume, number, "orphan list") {
                Ok(inode) if inner.list.iter().all(|known| known.number != number) => inode,
                Err(error @ Error::Io(_)) => return Err(error),
                cut => {
                    tracing::warn!("the orphan list ends at inode {number}: {:?}", cut.err());
                    break;
                }
            };
            let following = inode.record().deleted;
            next = (following != 0).then_some(InodeNumber(following.into()));
            inner.list.push(Listed::new(&inode));
            all.push(inode);
        }
        let Inner { file, in_file, .. } = &mut *inner;
        if let Some(file) = file {
            for (slot, number) in file.read(volume)? {
                file.set_taken(slot, true);
                in_file.insert(number, slot);
                all.push(load(volume, number, FILE_STRUCTURE)?);
            }
        }
        Ok(all)
    }

    /// Whether there is no list; then the superblock must not name one.
    pub(crate) fn is_list_empty(&self) -> bool {
        self.inner.lock().list.is_empty()
    }

    /// Whether the volume's superblock may say that the orphan file is empty.
    pub(crate) fn is_file_empty(&self) -> bool {
        self.inner.lock().in_file.is_empty()
    }
}

fn load(volume: &Arc<Volume>, number: InodeNumber, structure: &'static str) -> Result<Arc<Inode>> {
    let geometry = volume.geometry();
    let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
    if !(min..=max).contains(&number.0) {
        let problem = Problem::Range { field: "inode", found: number.0, min, max };
        return Err(Error::corrupt(structure, Place::inode(number), problem));
    }
    let (group, index) = geometry.inode_position(number)?;
    if !volume.inode_bitmap(&volume.group(group)?)?.is_set(index) {
        let problem = Problem::Missing("mark in the inode bitmap");
        return Err(Error::corrupt(structure, Place::inode(number), problem));
    }
    volume.special_inode(number).map(Arc::new)
}

impl Volume {
    /// Makes an inode an orphan, unless it is one.
    pub(crate) fn add_orphan(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let mut inner = self.writer()?.orphans.inner.lock();
        if inner.position(inode.number()).is_some() {
            return Ok(());
        }
        if let Some(slot) = inner.file.as_mut().and_then(OrphanFile::find_room) {
            let file = inner.file.as_mut().expect("it has room");
            file.set(handle, slot, inode.number())?;
            file.set_taken(slot, true);
            inner.in_file.insert(inode.number(), slot);
            return Ok(());
        }
        let next = inner.list.first().map_or(0, |first| first.number.0 as u32);
        inode.update(handle, |record| record.deleted = next)?;
        // Inode numbers have 32 bits.
        let number = inode.number().0 as u32;
        self.edit_superblock(handle, |raw| raw.last_orphan = number.into())?;
        inner.list.insert(0, Listed::new(inode));
        Ok(())
    }

    /// Makes an inode an orphan no more, if it is one.
    pub(crate) fn remove_orphan(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mut inner = self.writer()?.orphans.inner.lock();
        match inner.position(inode.number()) {
            None => Ok(()),
            Some(Position::File(slot)) => {
                let file = inner.file.as_mut().expect("it holds an orphan");
                file.set(handle, slot, InodeNumber(0))?;
                file.set_taken(slot, false);
                inner.in_file.remove(&inode.number());
                Ok(())
            }
            Some(Position::List(index)) => {
                let next = inner.list.get(index + 1).map_or(0, |next| next.number.0 as u32);
                match index.checked_sub(1).and_then(|before| inner.list.get(before)) {
                    Some(before) => {
                        let before = before.inode(inode.volume())?;
                        before.update(handle, |record| record.deleted = next)?;
                    }
                    None => self.edit_superblock(handle, |raw| raw.last_orphan = next.into())?,
                }
                inner.list.remove(index);
                inode.update(handle, |record| record.deleted = 0)
            }
        }
    }
}

enum Position {
    List(usize),
    File(Slot),
}

impl Inner {
    fn position(&self, number: InodeNumber) -> Option<Position> {
        if let Some(slot) = self.in_file.get(&number) {
            return Some(Position::File(*slot));
        }
        let index = self.list.iter().position(|listed| listed.number == number)?;
        Some(Position::List(index))
    }
}

impl OrphanFile {
    fn open(volume: &Arc<Volume>, number: InodeNumber) -> Result<Self> {
        let inode = volume.special_inode(number)?;
        let (found, max) = (inode.size(), ORPHAN_FILE_BYTES_MAX);
        if found > max {
            let problem = Problem::Range { field: "size", found, min: 0, max };
            return Err(Error::corrupt("orphan file", Place::inode(number), problem));
        }
        let block_size = volume.geometry().block_size;
        let per_block = (block_size.len() - size_of::<RawOrphanTail>()) / size_of::<u32>();
        let mut blocks = Vec::new();
        for at in (0..block_size.blocks_for(inode.size())).map(FileBlock) {
            let Some(buffer) = inode.read_block(at, FILE_STRUCTURE)? else {
                let place = Place::inode(number).at_file_block(at);
                return Err(Error::corrupt(FILE_STRUCTURE, place, Problem::Missing("block")));
            };
            blocks.push(buffer.block());
        }
        let taken = vec![vec![false; per_block]; blocks.len()];
        let seed = inode.record().checksum_seed;
        Ok(Self { blocks, seed, taken, hint: Slot { block: 0, index: 0 } })
    }

    /// The numbers in the file.
    fn read(&self, volume: &Volume) -> Result<Vec<(Slot, InodeNumber)>> {
        let mut found = Vec::new();
        for (block, &at) in self.blocks.iter().enumerate() {
            let buffer = volume.read_metadata(at, FILE_STRUCTURE, Place::block(at))?;
            for (index, number) in buffer.chunks_exact(4).take(self.taken[block].len()).enumerate()
            {
                let number = number.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
                if number != 0 {
                    found.push((Slot { block, index }, InodeNumber(number)));
                }
            }
        }
        Ok(found)
    }

    /// A place that holds nothing.
    fn find_room(&mut self) -> Option<Slot> {
        let count = self.blocks.len();
        for block in (self.hint.block..count).chain(0..self.hint.block) {
            if let Some(index) = self.taken[block].iter().position(|taken| !taken) {
                self.hint = Slot { block, index };
                return Some(self.hint);
            }
        }
        None
    }

    fn set_taken(&mut self, slot: Slot, taken: bool) {
        self.taken[slot.block][slot.index] = taken;
    }

    /// Writes a number, or zero, into a place.
    fn set(&self, handle: &mut Handle<'_>, slot: Slot, number: InodeNumber) -> Result<()> {
        let block = self.blocks[slot.block];
        let seed = self.seed.map(|seed| crc32c(seed, &block.0.to_le_bytes()));
        handle.edit(block, FILE_STRUCTURE, Place::block(block), |bytes| {
            let at = slot.index * size_of::<u32>();
            bytes[at..at + 4].copy_from_slice(&(number.0 as u32).to_le_bytes());
            if let (Some(seed), Ok((numbers, tail))) = (seed, RawOrphanTail::mut_from_suffix(bytes))
            {
                tail.checksum = crc32c(seed, numbers).into();
            }
        })
    }
}
