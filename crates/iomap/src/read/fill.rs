//! Reading into locked folios. A file's mapping says whether they are filled with zeroes, inline
//! data, data from the device, or data that is decoded. One bio reads all that is contiguous on the
//! device. Not here: which folios, and waiting for the bios.

use std::ptr::NonNull;
use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Location, Problem, Result};
use device::{Bio, BioOperation, Segment};
use pagecache::{FillPiece, LockedFolio, PAGE_SHIFT};
use smallvec::SmallVec;

use crate::mapping::transform::Transform;
use crate::mapping::{Iomap, IomapKind, LastMap, cluster_at, device_address};
use crate::read::cluster::{ClusterRead, encoding};
use crate::read::context::ReadContext;
use crate::read::failure::Failure;

/// The maximum number of bytes that are read at once to be verified.
const VERIFIED_BYTES_MAX: usize = 1 << 20;

/// Fills folios in the order of the file.
pub(crate) struct Fill<'c, 'a> {
    context: &'c ReadContext<'a>,
    /// The byte up to which mappings are useful.
    horizon: u64,
    failure: Option<Arc<Failure>>,
    /// Whether the caller will wait for the folios that are added. Then the device may read in the
    /// caller's thread.
    waited_for: bool,
    transform: Option<Arc<dyn Transform>>,
    /// Whether data is verified before it is uptodate
    /// ([`MapRead::verify`](crate::MapRead::verify)).
    is_verified: bool,
    map: LastMap,
    inline: Option<Vec<u8>>,
    /// The cluster that is being collected.
    cluster: Option<PendingCluster>,
    /// The clusters that the caller decodes.
    waited: Vec<Arc<ClusterRead>>,
    /// The bio that is being collected.
    pending: Option<PendingRead>,
    batch: Vec<Bio>,
}

/// A cluster to which pieces can be added.
struct PendingCluster {
    read: Arc<ClusterRead>,
    /// The generation before the format returned the cluster
    /// ([`MapRead::generation`](crate::MapRead::generation)).
    generation: u64,
}

/// A bio that is being collected: parts that are contiguous on the device.
struct PendingRead {
    address: DeviceOffset,
    length: u64,
    parts: SmallVec<[DevicePart; 4]>,
}

/// A part of a bio.
enum DevicePart {
    Piece(DevicePiece),
    Stored(StoredPart),
}

/// A part of a cluster's stored form.
struct StoredPart {
    read: Arc<ClusterRead>,
    index: usize,
    memory: Vec<u8>,
}

/// A piece that is read from the device.
struct DevicePiece {
    piece: FillPiece,
    /// The first byte in the file.
    at: FileOffset,
    /// The number of bytes that are read.
    read: usize,
    /// The number of those that belong to the file. The rest of the piece is zeroed.
    valid: usize,
}

impl<'c, 'a> Fill<'c, 'a> {
    /// Creates a fill of folios before page `end`, which the caller will wait for. `failure` has
    /// the error of a failed bio before its folios are unlocked.
    pub(crate) fn new(
        context: &'c ReadContext<'a>,
        end: u64,
        failure: Option<Arc<Failure>>,
    ) -> Self {
        Self {
            context,
            horizon: end << PAGE_SHIFT,
            failure,
            waited_for: true,
            transform: context.mapper.transform(),
            is_verified: context.mapper.is_verified(),
            map: LastMap::default(),
            inline: None,
            cluster: None,
            waited: Vec::new(),
            pending: None,
            batch: Vec::new(),
        }
    }

    /// Records that the caller will not wait for folios that are added from now on, apart from
    /// those with the rest of a cluster.
    pub(crate) fn start_readahead(&mut self) {
        if self.waited_for {
            self.finish_pending();
            self.waited_for = false;
        }
    }

    /// Adds the blocks of `folio` that are not uptodate, from its cursor to its byte `until`. After
    /// an error, the blocks before it stay added.
    pub(crate) fn add(&mut self, folio: &mut LockedFolio, until: usize) -> Result<()> {
        let block = self.context.mapping.block_size().len();
        while folio.cursor() < until {
            let left = folio.absent_len(until - folio.cursor());
            if left == 0 {
                folio.skip(block);
                continue;
            }
            self.add_piece(folio, left)?;
        }
        Ok(())
    }

    /// Adds the blocks from `folio`'s cursor on that one mapping covers, at most `left` bytes.
    fn add_piece(&mut self, folio: &mut LockedFolio, left: usize) -> Result<()> {
        let options = self.context.options;
        let at = folio.folio().position() + folio.cursor() as u64;
        let size = self.context.size();
        if at >= size {
            folio.take_piece(left, options.skip_folio_state).zero();
            return Ok(());
        }
        let map = self.map_at(at)?;
        // A piece with the end of the file includes the rest of the folio, except that of a
        // cluster.
        let includes_rest = map.end() >= size && map.kind != IomapKind::Encoded;
        let mut length = if includes_rest || map.kind == IomapKind::Inline {
            left
        } else {
            usize::try_from(map.end() - at).unwrap_or(usize::MAX).min(left)
        };
        if !options.batch_pending_accounting {
            length = length.min(self.context.mapping.block_size().len());
        }
        match map.kind {
            _ if self.is_verified => self.add_verified(folio, at, length),
            IomapKind::Hole | IomapKind::Delalloc | IomapKind::Unwritten => {
                folio.take_piece(length, options.skip_folio_state).zero();
            }
            IomapKind::Inline => self.add_inline(folio, at, length)?,
            IomapKind::Encoded => self.add_encoded(folio, at, length)?,
            IomapKind::Mapped => {
                let address = device_address(&map, at)?;
                let piece = folio.take_piece(length, options.skip_folio_state);
                self.add_to_pending(address, at, piece);
            }
        }
        Ok(())
    }

    /// Returns the mapping that contains byte `at`, and ends with a block. Errors: `Corrupt` if the
    /// format returns another one.
    fn map_at(&mut self, at: u64) -> Result<Iomap> {
        let (mapper, length) = (self.context.mapper, self.horizon.saturating_sub(at).max(1));
        let map = self.map.at(mapper, at, || mapper.map_read(FileOffset(at), length))?;
        let whole_blocks = map.end() % u64::from(self.context.mapping.block_size().bytes()) == 0;
        if !whole_blocks && map.end() < self.context.size() && map.kind != IomapKind::Inline {
            let problem = Problem::Invalid { field: "end of range", found: map.end() };
            return Err(Error::corrupt("file mapping", Location::default(), problem));
        }
        Ok(map)
    }

    /// Reads at most `length` bytes from `folio`'s cursor on, byte `at` of the file, and verifies
    /// them. Waits for the device. A block that cannot be read or verified is not uptodate, and the
    /// others are.
    fn add_verified(&mut self, folio: &mut LockedFolio, at: u64, length: usize) {
        let block = self.context.mapping.block_size().len();
        let skip_state = self.context.options.skip_folio_state;
        let mut data = vec![0; length.min(VERIFIED_BYTES_MAX)];
        let whole = crate::read::uncached::read(self.context, at, &mut data);
        if whole.is_ok() {
            let mut piece = folio.take_piece(data.len(), skip_state);
            piece.bytes_mut().copy_from_slice(&data);
            piece.finish();
            return;
        }
        for (number, bytes) in data.chunks_mut(block).enumerate() {
            let mut piece = folio.take_piece(bytes.len(), skip_state);
            match crate::read::uncached::read(self.context, at + (number * block) as u64, bytes) {
                Ok(()) => {
                    piece.bytes_mut().copy_from_slice(bytes);
                    piece.finish();
                }
                // The dropped piece is not uptodate.
                Err(error) => {
                    if let Some(failure) = &self.failure {
                        failure.note(error);
                    }
                }
            }
        }
    }

    fn add_inline(&mut self, folio: &mut LockedFolio, at: u64, length: usize) -> Result<()> {
        let data = match self.inline.take() {
            Some(data) => data,
            None => self.context.mapper.inline_data()?,
        };
        let mut piece = folio.take_piece(length, self.context.options.skip_folio_state);
        let start = usize::try_from(at).unwrap_or(usize::MAX).min(data.len());
        let size = usize::try_from(self.context.size()).unwrap_or(usize::MAX);
        let here = &data[start..data.len().min(size).max(start).min(start.saturating_add(length))];
        let (bytes, rest) = piece.bytes_mut().split_at_mut(here.len());
        bytes.copy_from_slice(here);
        rest.fill(0);
        piece.finish();
        self.inline = Some(data);
        Ok(())
    }

    /// Adds at most `length` bytes from `folio`'s cursor on, byte `at` of the file, in a cluster.
    fn add_encoded(&mut self, folio: &mut LockedFolio, at: u64, length: usize) -> Result<()> {
        let generation = self.context.mapper.generation();
        let contains = |pending: &&PendingCluster| {
            pending.generation == generation && pending.read.range().contains(&at)
        };
        let read = match self.cluster.as_ref().filter(contains) {
            Some(pending) => Arc::clone(&pending.read),
            None => {
                let read = self.start_cluster(at)?;
                self.cluster = Some(PendingCluster { read: Arc::clone(&read), generation });
                read
            }
        };
        let left = usize::try_from(read.range().end - at).unwrap_or(usize::MAX);
        let piece = folio.take_piece(length.min(left), self.context.options.skip_folio_state);
        read.add(at, piece, self.context.size());
        Ok(())
    }

    /// Starts the read of the cluster that contains byte `at`.
    fn start_cluster(&mut self, at: u64) -> Result<Arc<ClusterRead>> {
        let block = self.context.mapping.block_size().bytes().into();
        let cluster = cluster_at(self.context.mapper, FileOffset(at), block)?;
        let encoding = encoding(self.context)?;
        let failure = self.failure.clone();
        let read = ClusterRead::new(&cluster, encoding, self.waited_for, failure);
        if read.is_waited_for() {
            self.waited.push(Arc::clone(&read));
        }
        for (index, run) in cluster.stored.iter().enumerate() {
            let memory = vec![0; run.length as usize];
            let part = StoredPart { read: Arc::clone(&read), index, memory };
            self.add_part(run.address, run.length, DevicePart::Stored(part));
        }
        Ok(read)
    }

    /// Adds a piece with the file's data from byte `at` on, which is at `address` on the device.
    fn add_to_pending(&mut self, address: DeviceOffset, at: u64, piece: FillPiece) {
        let size = self.context.size();
        let valid = usize::try_from(size - at).unwrap_or(usize::MAX).min(piece.len());
        // Bytes after the file's last block are not read. Bytes after the file's end may not exist:
        // the device may end within the block. A transform needs whole blocks.
        let block = self.context.mapping.block_size().len();
        let mut read = valid.next_multiple_of(block);
        let room = self.context.device.size().saturating_sub(address.0);
        if self.transform.is_none() && (valid as u64..read as u64).contains(&room) {
            read = room as usize;
        }
        let piece = DevicePiece { piece, at: FileOffset(at), read, valid };
        self.add_part(address, read as u64, DevicePart::Piece(piece));
    }

    /// Adds a part of `length` bytes at `address` on the device.
    fn add_part(&mut self, address: DeviceOffset, length: u64, part: DevicePart) {
        let can_continue =
            |pending: &PendingRead| pending.address.checked_add(pending.length) == Some(address);
        if !self.pending.as_ref().is_some_and(can_continue) {
            self.finish_pending();
        }
        let pending = self.pending.get_or_insert_with(|| PendingRead {
            address,
            length: 0,
            parts: SmallVec::new(),
        });
        pending.length += length;
        pending.parts.push(part);
    }

    /// Adds the pending bio to the batch.
    fn finish_pending(&mut self) {
        let Some(mut pending) = self.pending.take() else { return };
        let segments: SmallVec<[Segment; 4]> =
            pending.parts.iter_mut().map(DevicePart::segment).collect();
        let parts = pending.parts;
        let failure = self.failure.clone();
        let transform = self.transform.clone();
        let bio = Bio::new(BioOperation::Read, pending.address, segments, move |result| {
            let result = result.map_err(Error::from);
            if let (Err(error), Some(failure)) = (&result, &failure) {
                failure.note(error.clone());
            }
            for part in parts {
                let finished = part.finish(&result, transform.as_deref());
                if let (Err(error), Some(failure)) = (finished, &failure) {
                    failure.note(error);
                }
            }
        });
        self.batch.push(if self.waited_for { bio.waited_for() } else { bio });
    }

    /// Submits all bios, and decodes the clusters that the caller waits for.
    pub(crate) fn submit(mut self) {
        self.finish_pending();
        if !self.batch.is_empty() {
            // The caller's thread may read what the caller waits for.
            if self.batch.iter().any(Bio::is_waited_for) {
                base::waiting::about_to_wait();
            }
            self.context.device.submit(self.batch);
        }
        for read in self.waited {
            read.wait_and_decode();
        }
    }
}

impl DevicePart {
    /// Returns the memory to read into. It is not accessed through the part before the end of the
    /// bio.
    fn segment(&mut self) -> Segment {
        match self {
            // SAFETY: the memory is the piece's until the piece is dropped, and the piece is not
            // accessed before the end of the bio.
            Self::Piece(part) => unsafe { Segment::new(part.piece.as_ptr(), part.read) },
            Self::Stored(part) => {
                let memory = part.memory.as_mut_slice();
                // SAFETY: the memory is the vector's, wherever that is moved to. The bio's
                // completion function owns the vector, and does not access it before the end of the
                // bio.
                unsafe { Segment::new(NonNull::from(&mut *memory).cast(), memory.len()) }
            }
        }
    }

    /// Ends the part after the read.
    fn finish(self, result: &Result<()>, transform: Option<&dyn Transform>) -> Result<()> {
        match self {
            Self::Piece(piece) if result.is_ok() => piece.finish(transform),
            // A dropped piece is not uptodate. Its error is recorded before.
            Self::Piece(_) => Ok(()),
            Self::Stored(StoredPart { read, index, memory }) => {
                read.end_part(index, memory, result.clone());
                Ok(())
            }
        }
    }
}

impl DevicePiece {
    /// Makes the piece uptodate after the read. If the transform fails, the piece is not uptodate.
    fn finish(mut self, transform: Option<&dyn Transform>) -> Result<()> {
        if let Some(transform) = transform {
            transform.load(self.at, &mut self.piece.bytes_mut()[..self.read])?;
        }
        let valid = self.valid;
        if valid < self.piece.len() {
            self.piece.bytes_mut()[valid..].fill(0);
        }
        self.piece.finish();
        Ok(())
    }
}
