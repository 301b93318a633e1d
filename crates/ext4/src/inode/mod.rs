//! An inode in memory: its record, and the map of its data.

pub(crate) mod flags;
pub(crate) mod inline;
mod load;
mod pending;
pub(crate) mod record;
pub(crate) mod symlink;
pub(crate) mod times;
mod verity;
pub(crate) mod write;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ::verity::Verifier;
use base::attributes::{Attributes, FileType};
use base::locks::{RankedMutex, RankedRwLock};
use base::{Error, FileBlock, FileOffset, InodeNumber, Location, Problem, Result};
use fs::{Around, Delayed, ExtentStatus, Piece, Span};
use fscrypt::Ciphers;
use iomap::{Iomap, IomapKind, MapFlags, MapRead, MetadataBuffer, Transform};

use crate::features::Feature;
use crate::indirect::pointer_blocks::PointerBlocks;
use crate::inode::pending::Pending;
use crate::inode::record::{InodeFlags, InodeRecord, RecordLock};
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::ranks;
use crate::volume::Volume;
use crate::{extent, indirect};

/// Maximum number of spans that one mapping joins.
const SPANS_JOINED_MAX: usize = 16;

/// A loaded inode of a volume.
pub struct Inode {
    volume: Arc<Volume>,
    number: InodeNumber,
    kind: FileType,
    /// Replaced as a whole when the inode changes (`inode/write.rs`).
    pub(crate) record: Arc<RecordLock>,
    /// The flags of the record. Every read needs them, and reads them without the record's lock.
    flags: AtomicU32,
    size: AtomicU64,
    /// The cached extents of the inode's map. A thread that changes the map on disk holds them
    /// exclusively.
    pub(crate) map: ExtentStatus,
    /// The blocks that have data in the cache and no block on the device.
    pub(crate) delayed: RankedMutex<Delayed>,
    /// The number of clusters reserved for delayed blocks and for the blocks of pointers that these
    /// need, readable without their lock.
    pub(crate) clusters_reserved: AtomicU64,
    /// Held by a thread that allocates delayed blocks, from its search until their allocation, and
    /// by a thread that removes delayed blocks. So removed blocks are not allocated afterwards. Has
    /// the blocks of pointers for which blocks are reserved.
    pub(crate) allocation_lock: RankedMutex<PointerBlocks>,
    /// The end of the blocks that may exist past the size on the disk, and that a recovery has to
    /// free. While it is past that size, the inode is an orphan (`orphans/write.rs`).
    pub(crate) mapped_past_size: AtomicU64,
    /// The number of open files that can write to the inode.
    pub(crate) writers: AtomicU32,
    /// Changes that will be written with the next change of the record.
    pub(crate) pending: Pending,
    /// The ciphers of an encrypted inode.
    pub(crate) ciphers: Ciphers,
    /// The verifier of a file with fs-verity, once it is loaded.
    verifier: OnceLock<Box<Verifier>>,
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({})", self.number)
    }
}

impl Inode {
    pub(crate) fn new(volume: Arc<Volume>, record: InodeRecord) -> Self {
        let latest = volume.writer.as_ref().map(|writer| writer.journal.latest());
        let pending = Pending::new(latest, record.time_room());
        Self {
            volume,
            number: record.number,
            kind: record.kind,
            flags: AtomicU32::new(record.flags.0),
            size: AtomicU64::new(record.size),
            record: Arc::new(RankedRwLock::new(ranks::INODE_RECORD, Arc::new(record))),
            map: ExtentStatus::new(ranks::EXTENT_MAP),
            delayed: RankedMutex::new(ranks::DELAYED, Delayed::default()),
            clusters_reserved: AtomicU64::new(0),
            allocation_lock: RankedMutex::new(ranks::ALLOCATION, PointerBlocks::default()),
            writers: AtomicU32::new(0),
            mapped_past_size: AtomicU64::new(0),
            pending,
            ciphers: Ciphers::default(),
            verifier: OnceLock::new(),
        }
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the current record.
    pub fn record(&self) -> Arc<InodeRecord> {
        Arc::clone(&self.record.read())
    }

    /// Publishes `record` as the current record; `now` is its lock's content.
    pub(crate) fn publish(&self, now: &mut Arc<InodeRecord>, record: InodeRecord) {
        self.flags.store(record.flags.0, Ordering::Release);
        self.size.store(record.size, Ordering::Release);
        *now = Arc::new(record);
    }

    /// Returns the type, which never changes.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// Returns the size in bytes, as the inode on disk has it.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Returns the inode number.
    pub fn number(&self) -> InodeNumber {
        self.number
    }

    /// Returns the attributes that stat(2) reports. Reserved space counts as allocated, since
    /// programs do not read a file without blocks.
    pub fn attributes(&self) -> Attributes {
        // Read before the record: at any time, a cluster is counted in the reservation, or in the
        // record.
        let reserved = self.clusters_reserved.load(Ordering::Acquire);
        let mut attributes = self.record.read().attributes();
        self.pending.show(&mut attributes);
        let geometry = self.volume.geometry();
        let units = reserved << (geometry.cluster_shift + geometry.block_size.shift() - 9);
        attributes.blocks = attributes.blocks.saturating_add(units);
        if self.kind == FileType::Symlink && self.has_encrypted_names() {
            // As in the kernel, the size is that of the target that is shown. A damaged link keeps
            // its own size.
            let target = self.read_link();
            attributes.size = target.map_or(attributes.size, |target| target.len() as u64);
        }
        attributes
    }

    /// Returns whether the inode has all of `flags`.
    pub fn has(&self, flags: InodeFlags) -> bool {
        InodeFlags(self.flags.load(Ordering::Acquire)).contains(flags)
    }

    /// Checks that the data of this file can be read. Errors: `Unsupported` for encrypted files
    /// without the key; `Corrupt` if the encryption context is damaged.
    pub fn check_readable(&self) -> Result<()> {
        if self.has_encrypted_contents() { self.contents_cipher().map(|_| ()) } else { Ok(()) }
    }

    /// Returns whether the block area has a map of data. It has none in devices, fifos, sockets and
    /// short symbolic links.
    pub fn has_map(&self) -> bool {
        match self.kind {
            FileType::Regular | FileType::Directory => true,
            FileType::Symlink => !self.is_fast_symlink(),
            _ => false,
        }
    }

    /// Returns the run or hole at file block `at`, joined with its neighbours if they continue it,
    /// up to `wanted_end`.
    pub fn piece_at(&self, at: FileBlock, wanted_end: FileBlock) -> Result<Piece> {
        let mut span = self.span(at)?;
        let mut piece = span.piece_at(at);
        for _ in 0..SPANS_JOINED_MAX {
            let end = piece.end();
            if end != span.end || end >= wanted_end || end >= self.map_end() {
                break;
            }
            span = self.span(end)?;
            match piece.joined(&span.piece_at(end)) {
                Some(joined) => piece = joined,
                None => break,
            }
        }
        Ok(piece)
    }

    /// Reads block `at` of a directory, or of another file with metadata; returns `None` in a hole.
    pub fn read_block(
        &self,
        at: FileBlock,
        structure: &'static str,
    ) -> Result<Option<MetadataBuffer>> {
        let Piece::Run(run) = self.piece_at(at, at)? else { return Ok(None) };
        if run.unwritten {
            return Ok(None);
        }
        let block = base::FsBlock(run.block.0 + (at.0 - run.start.0));
        let location = Location::inode(self.number()).at_file_block(at).at_block(block);
        self.volume.read_metadata(block, structure, location).map(Some)
    }

    /// Returns the end of the file blocks that the inode's kind of map can map.
    pub(crate) fn map_end(&self) -> FileBlock {
        if self.has(InodeFlags::EXTENTS) {
            FileBlock(FILE_BLOCKS_MAX)
        } else {
            indirect::end_of_map(self.volume.geometry())
        }
    }

    /// Returns the largest size that the data can have, in bytes.
    pub fn size_max(&self) -> u64 {
        let block_size = self.volume.geometry().block_size;
        self.map_end().0.saturating_mul(block_size.bytes().into()).min(i64::MAX as u64)
    }

    /// Verifies all block numbers in the record: the root of the map, and the attribute block.
    /// Linux does this when it reads an inode.
    pub(crate) fn check_block_references(&self) -> Result<()> {
        let (volume, record) = (self.volume(), self.record());
        let validity = volume.block_validity(self.number());
        let location = Location::inode(self.number());
        if let Some(block) = record.attribute_block {
            validity.check("extended attribute block reference", location, block, 1)?;
        }
        if !self.has_map() || self.has(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        if self.has(InodeFlags::EXTENTS) {
            extent::verify_root(&record, validity)
        } else {
            indirect::verify_root(&record, validity)
        }
    }

    /// Returns a number that changes when a mapping that was returned before may be stale.
    pub fn map_sequence(&self) -> u64 {
        self.map.generation()
    }

    fn span(&self, at: FileBlock) -> Result<Arc<Span>> {
        self.map.lookup(at, || self.load_span(at))
    }

    /// Reads the map on disk around `at`. The caller holds the map.
    pub(crate) fn load_span(&self, at: FileBlock) -> Result<Span> {
        if !self.has_map() {
            return Err(Error::WrongType("files of this type have no data blocks"));
        }
        let end = self.map_end();
        if at >= end {
            let problem =
                Problem::Range { field: "file block", found: at.0, min: 0, max: end.0 - 1 };
            return Err(Error::corrupt("file size", Location::inode(self.number()), problem));
        }
        if self.has(InodeFlags::EXTENTS) {
            extent::load_span(&self.volume, &self.record(), at)
        } else {
            indirect::load_span(&self.volume, &self.record(), at)
        }
    }

    /// Returns the range at byte `at` of a file with inline data: that data, or the hole behind it,
    /// up to the end of a block as in other files.
    fn map_inline(&self, at: FileOffset) -> Result<Iomap> {
        let inline = inline::data(self)?.len() as u64;
        let (start, end, kind) = if at.0 < inline {
            (0, inline, IomapKind::Inline)
        } else {
            let block = u64::from(self.volume.geometry().block_size.bytes());
            let end = self.size().max(at.0.saturating_add(1)).div_ceil(block).saturating_mul(block);
            (inline, end, IomapKind::Hole)
        };
        Ok(Iomap {
            offset: FileOffset(start),
            length: end - start,
            kind,
            address: None,
            flags: MapFlags { last: true, ..MapFlags::default() },
        })
    }

    /// Returns whether no blocks follow `end`, as far as that is known without reading.
    fn is_last(&self, end: FileBlock) -> bool {
        if end >= self.map_end() {
            return true;
        }
        let span = match self.map.cached(end) {
            Some(span) => span,
            None => return false,
        };
        span.end >= self.map_end() && !span.has_run_from(end)
    }
}

impl MapRead for Inode {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.check_readable()?;
        if self.has(InodeFlags::INLINE_DATA) {
            return self.map_inline(at);
        }
        self.map_blocks(at, length).inspect_err(|error| self.volume.apply_error_policy(error))
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        inline::data(self)
    }

    fn transform(&self) -> Option<Arc<dyn Transform>> {
        // Without the key, no data is mapped.
        let cipher = self.has_encrypted_contents().then(|| self.contents_cipher().ok())??;
        Some(Arc::clone(cipher) as Arc<dyn Transform>)
    }

    fn is_verified(&self) -> bool {
        self.has(InodeFlags::VERITY)
    }

    fn verify(&self, at: FileOffset, data: &[u8]) -> Result<()> {
        self.verify_data(at, data)
    }

    fn map_known(&self, at: FileOffset) -> Option<Iomap> {
        if self.has(InodeFlags::INLINE_DATA) {
            return None;
        }
        let at = self.volume.geometry().block_size.file_block(at);
        let delayed = self.delayed.lock().around(at);
        let piece = self.map.cached(at)?.piece_at(at);
        Some(self.iomap_of(piece, &delayed))
    }

    fn generation(&self) -> u64 {
        self.map.generation()
    }
}

impl Inode {
    fn map_blocks(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let geometry = self.volume.geometry();
        let block_size = geometry.block_size;
        let wanted_end = FileBlock(block_size.blocks_for(at.0.saturating_add(length)));
        let at = block_size.file_block(at);
        // Delayed blocks are looked up before the map: a block that is allocated in between is seen
        // in the map.
        let delayed = self.delayed.lock().around(at);
        let piece = self.piece_at(at, wanted_end)?;
        Ok(self.iomap_of(piece, &delayed))
    }

    /// Returns the mapping of `piece`, which was looked up after `delayed`.
    fn iomap_of(&self, mut piece: Piece, delayed: &Around) -> Iomap {
        let geometry = self.volume.geometry();
        let block_size = geometry.block_size;
        if let Piece::Hole { start, end } = piece {
            piece = Piece::Hole {
                start: start.max(delayed.range.start),
                end: end.min(delayed.range.end),
            };
        }
        let (kind, block) = match piece {
            Piece::Hole { .. } if delayed.is_delayed => (IomapKind::Delalloc, None),
            Piece::Hole { .. } => (IomapKind::Hole, None),
            Piece::Run(run) if run.unwritten => (IomapKind::Unwritten, Some(run.block)),
            Piece::Run(run) => (IomapKind::Mapped, Some(run.block)),
        };
        // No shift overflows: file blocks have 32 bits, and block sizes have shifts up to 16. Runs
        // lie in the volume.
        let bytes = |blocks: u64| blocks << block_size.shift();
        Iomap {
            offset: FileOffset(bytes(piece.start().0)),
            length: bytes(piece.end().0 - piece.start().0),
            kind,
            address: block.and_then(|block| block_size.device_offset(block)),
            flags: MapFlags {
                shared: geometry.features.has(Feature::SharedBlocks),
                encoded: self.has(InodeFlags::ENCRYPTED),
                last: self.is_last(piece.end()),
            },
        }
    }
}
