//! Bugs as a journaling file system may have them, planted from outside: between the volume and the
//! recorded device, or between a file's data and its map. The judge must see each.

use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, FileOffset, Result};
use device::{Bio, BioOperation, BlockDevice, SharedDevice};
use ext4::Inode;
use iomap::{FinishedRange, Iomap, IomapKind, MapRead, MapWrite};
use parking_lot::Mutex;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// A flush that is left out after the last write was one of this kind.
    NoFlushAfter(Written),
    /// A transaction's commit block is durable before the blocks that it completes.
    CommitFirst,
    /// Blocks that were metadata, and are free, are not revoked.
    NoRevokes,
    /// A transaction is said to be durable when the one before it is, so that the space that it frees
    /// is used again too early (J3).
    EarlyReuse,
    /// Blocks are marked written, and the size grows, when they get their places.
    EarlyConversion,
    /// The size grows, over unwritten blocks, when data gets its place.
    EarlySize,
    /// Blocks are marked written before what goes to them around the cache is on the device.
    EarlyDirectConversion,
    /// The size grows when blocks are allocated for what will go to them around the cache.
    EarlyDirectSize,
}

/// What was written, as the first bytes of a journal's blocks tell.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Written {
    /// The blocks of a transaction but for the last.
    Body,
    Commit,
    /// The journal's superblock.
    LogState,
    /// Anything else: what a checkpoint puts in place, or data.
    #[default]
    Other,
}

const MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();
const DESCRIPTOR: u8 = 1;
const COMMIT: u8 = 2;
const REVOKE: u8 = 5;
const REVOKE_HEADER_BYTES: u8 = 16;

fn is_control_block(bytes: &[u8], kind: u8) -> bool {
    bytes.starts_with(&MAGIC) && bytes.get(7) == Some(&kind)
}

impl Written {
    fn of(bytes: &[u8]) -> Self {
        if is_control_block(bytes, DESCRIPTOR) || is_control_block(bytes, REVOKE) {
            Self::Body
        } else if is_control_block(bytes, COMMIT) {
            Self::Commit
        } else if bytes.starts_with(&MAGIC) {
            Self::LogState
        } else {
            Self::Other
        }
    }
}

impl Bug {
    /// `device` for a volume that has the bug.
    pub fn device(self, device: SharedDevice) -> SharedDevice {
        match self {
            Self::NoFlushAfter(_) | Self::CommitFirst | Self::NoRevokes | Self::EarlyReuse => {
                let state = Mutex::new(State::default());
                Arc::new(BuggyDevice { inner: device, bug: self, state })
            }
            Self::None
            | Self::EarlyConversion
            | Self::EarlySize
            | Self::EarlyDirectConversion
            | Self::EarlyDirectSize => device,
        }
    }

    /// The map of a file that has the bug.
    pub fn mapper(self, inode: &Arc<Inode>) -> Arc<BuggyMapper> {
        Arc::new(BuggyMapper { inode: Arc::clone(inode), bug: self })
    }
}

/// Passes on what a volume with a bug in its journal would have done.
#[derive(Debug)]
struct BuggyDevice {
    inner: SharedDevice,
    bug: Bug,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Written,
    /// Blocks of a transaction that wait: for its commit block, or with that for the next one.
    waiting: Vec<(DeviceOffset, Vec<u8>)>,
}

impl BuggyDevice {
    fn write_waiting(&self, state: &mut State) -> Result<()> {
        let mut waiting = std::mem::take(&mut state.waiting).into_iter();
        waiting.try_for_each(|(offset, bytes)| self.inner.write_at(offset, &bytes))
    }

    /// Whether the write was done here, in another way.
    fn replace(&self, bio: &Bio, bytes: &[u8]) -> Result<bool> {
        let mut state = self.state.lock();
        let written = Written::of(bytes);
        // The rest of a transaction that goes round the end of the log is not looked at.
        state.last = written;
        match (self.bug, written) {
            (Bug::CommitFirst, Written::Body) => {
                state.waiting.push((bio.offset(), bytes.to_vec()));
                Ok(true)
            }
            (Bug::EarlyReuse, Written::Body | Written::Commit) => {
                let next = written == Written::Body;
                if next && state.waiting.iter().any(|it| is_control_block(&it.1, COMMIT)) {
                    self.write_waiting(&mut state)?;
                }
                state.waiting.push((bio.offset(), bytes.to_vec()));
                Ok(true)
            }
            (Bug::EarlyReuse, Written::LogState) => self.write_waiting(&mut state).map(|()| false),
            (Bug::CommitFirst, Written::Commit) => {
                self.inner.write_at(bio.offset(), bytes)?;
                self.inner.flush()?;
                self.write_waiting(&mut state).map(|()| true)
            }
            (Bug::NoRevokes, Written::Body) if is_control_block(bytes, REVOKE) => {
                let mut bytes = bytes.to_vec();
                bytes[12..16].copy_from_slice(&[0, 0, 0, REVOKE_HEADER_BYTES]);
                self.inner.write_at(bio.offset(), &bytes)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl BlockDevice for BuggyDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        for bio in batch {
            let done = match bio.operation() {
                BioOperation::Read => Ok(false),
                BioOperation::Write => {
                    let bytes: Vec<u8> =
                        bio.segments().iter().flat_map(|one| one.bytes()).copied().collect();
                    self.replace(&bio, &bytes)
                }
            };
            match done.unwrap() {
                true => bio.end(Ok(())),
                false => self.inner.submit(vec![bio]),
            }
        }
    }

    fn flush(&self) -> Result<()> {
        match self.bug == Bug::NoFlushAfter(self.state.lock().last) {
            true => Ok(()),
            false => self.inner.flush(),
        }
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.write_zeroes(offset, length)
    }
}

/// A file's map that is told of the end of I/O when that begins, if it has such a bug.
#[derive(Debug)]
pub struct BuggyMapper {
    inode: Arc<Inode>,
    bug: Bug,
}

impl MapRead for BuggyMapper {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.inode.map_read(at, length)
    }

    fn map_known(&self, at: FileOffset) -> Option<Iomap> {
        self.inode.map_known(at)
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        MapRead::inline_data(&*self.inode)
    }

    fn sequence(&self) -> u64 {
        self.inode.sequence()
    }
}

impl MapWrite for BuggyMapper {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.inode.map_write(at, length)
    }

    fn end_write(&self, unused: Range<FileOffset>) {
        self.inode.end_write(unused);
    }

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let map = self.inode.map_writeback(at, length)?;
        let ended = FinishedRange { offset: map.offset, length: map.length, kind: map.kind };
        match self.bug {
            Bug::EarlyConversion if map.kind == IomapKind::Unwritten => {
                self.inode.end_io(&[ended], FileOffset(ended.end()))?;
            }
            Bug::EarlySize => self.inode.end_io(&[], FileOffset(at.0 + length))?,
            _ => return Ok(map),
        }
        // As somebody else's commit might, that comes before the data is on the device.
        self.inode.volume().sync()?;
        self.inode.map_read(at, length)
    }

    fn allocate(&self, range: Range<FileOffset>) -> Result<bool> {
        let end = range.end;
        let can = self.inode.allocate(range)?;
        if can && self.bug == Bug::EarlyDirectSize {
            self.inode.end_io(&[], end)?;
            self.inode.volume().sync()?;
        }
        Ok(can)
    }

    fn split_extents(&self, range: Range<FileOffset>) -> Result<()> {
        // Past the size on the disk it would show without any data.
        if self.bug == Bug::EarlyDirectConversion && range.end.0 <= self.inode.size() {
            let length = range.end.0 - range.start.0;
            let ended = FinishedRange { offset: range.start, length, kind: IomapKind::Unwritten };
            self.inode.end_io(&[ended], FileOffset(0))?;
            return self.inode.volume().sync();
        }
        self.inode.split_extents(range)
    }

    fn may_split_at_end(&self) -> bool {
        self.bug != Bug::EarlyDirectConversion && self.inode.may_split_at_end()
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        self.inode.end_io(finished, size)
    }

    fn panicked(&self, operation: &'static str) {
        self.inode.panicked(operation);
    }
}
