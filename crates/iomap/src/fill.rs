//! Fills locked folios from wherever the file's mapping says: zeroes, inline data, or the device,
//! with one request for each run of device bytes.
//! Not here: which folios, and waiting for the requests.

use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Location, Problem, Result};
use device::{Bio, BioOperation, Segment};
use pagecache::{FillPiece, LockedFolio, PAGE_SHIFT};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::mapping::{Iomap, IomapKind, LastMap};
use crate::read::ReadContext;
use crate::transform::Transform;

/// The first error of some requests.
#[derive(Debug, Default)]
pub(crate) struct Failure(Mutex<Option<Error>>);

impl Failure {
    pub(crate) fn take(&self) -> Option<Error> {
        self.0.lock().take()
    }
}

/// Fills folios, in the order of the file.
pub(crate) struct Fill<'c, 'a> {
    context: &'c ReadContext<'a>,
    /// The byte up to which mappings are worth knowing.
    horizon: u64,
    failure: Option<Arc<Failure>>,
    /// Whether somebody will wait for what is added, and so might as well do the reading.
    waited_for: bool,
    transform: Option<Arc<dyn Transform>>,
    map: LastMap,
    inline: Option<Vec<u8>>,
    run: Option<Run>,
    batch: Vec<Bio>,
}

/// Pieces that lie one after the other on the device.
struct Run {
    address: DeviceOffset,
    length: u64,
    pieces: SmallVec<[DevicePiece; 4]>,
}

/// A piece to be read from the device.
struct DevicePiece {
    piece: FillPiece,
    /// The first byte in the file.
    at: FileOffset,
    /// How many bytes are read.
    read: usize,
    /// How many of them belong to the file; the rest is zeroed.
    valid: usize,
}

impl<'c, 'a> Fill<'c, 'a> {
    /// Fills folios before page `end`, which the caller will wait for. `failure` learns of a failed
    /// request before its folios are unlocked.
    pub(crate) fn new(
        context: &'c ReadContext<'a>,
        end: u64,
        failure: Option<Arc<Failure>>,
    ) -> Self {
        let (map, inline, run, batch) = (LastMap::default(), None, None, Vec::new());
        let (horizon, waited_for) = (end << PAGE_SHIFT, true);
        let transform = context.mapper.transform();
        Self { context, horizon, failure, waited_for, transform, map, inline, run, batch }
    }

    /// Says that nobody will wait for what is added from now on.
    pub(crate) fn go_ahead(&mut self) {
        if self.waited_for {
            self.end_run();
            self.waited_for = false;
        }
    }

    /// Adds the blocks of `folio` from its cursor to its byte `until` that are not uptodate. When
    /// it fails, what was added so far stays added.
    pub(crate) fn add(&mut self, folio: &mut LockedFolio, until: usize) -> Result<()> {
        let block = self.context.mapping.block_size().len();
        while folio.cursor() < until {
            let left = folio.absent(until - folio.cursor());
            if left == 0 {
                folio.skip(block);
                continue;
            }
            self.add_piece(folio, left)?;
        }
        Ok(())
    }

    /// Adds the blocks at `folio`'s cursor that one mapping covers, at most `left` bytes.
    fn add_piece(&mut self, folio: &mut LockedFolio, left: usize) -> Result<()> {
        let options = self.context.options;
        let at = folio.folio().position() + folio.cursor() as u64;
        let size = self.context.size();
        if at >= size {
            folio.take(left, options.skip_folio_state).zero();
            return Ok(());
        }
        let map = self.map_at(at)?;
        // The piece that holds the end of the file goes on to the end of the folio.
        let mut length = if map.end() >= size || map.kind == IomapKind::Inline {
            left
        } else {
            usize::try_from(map.end() - at).unwrap_or(usize::MAX).min(left)
        };
        if !options.batch_pending_accounting {
            length = length.min(self.context.mapping.block_size().len());
        }
        match map.kind {
            IomapKind::Hole | IomapKind::Delalloc | IomapKind::Unwritten => {
                folio.take(length, options.skip_folio_state).zero();
            }
            IomapKind::Inline => self.add_inline(folio, at, length)?,
            IomapKind::Mapped => {
                let address = device_address(&map, at)?;
                let piece = folio.take(length, options.skip_folio_state);
                self.add_to_run(address, at, piece);
            }
        }
        Ok(())
    }

    /// The mapping at byte `at`, which reaches to a block's end.
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

    fn add_inline(&mut self, folio: &mut LockedFolio, at: u64, length: usize) -> Result<()> {
        let data = match self.inline.take() {
            Some(data) => data,
            None => self.context.mapper.inline_data()?,
        };
        let mut piece = folio.take(length, self.context.options.skip_folio_state);
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

    /// Adds a piece that is the file's from byte `at` on, and lies at `address` on the device.
    fn add_to_run(&mut self, address: DeviceOffset, at: u64, piece: FillPiece) {
        let size = self.context.size();
        let valid = usize::try_from(size - at).unwrap_or(usize::MAX).min(piece.len());
        // What lies past the file's last block is not read, and what lies past the file's end need
        // not be there: the device may end within the block.
        let block = self.context.mapping.block_size().len();
        let mut read = valid.next_multiple_of(block);
        let room = self.context.device.size().saturating_sub(address.0);
        if (valid as u64..read as u64).contains(&room) {
            read = room as usize;
        }
        let follows = |run: &Run| run.address.checked_add(run.length) == Some(address);
        if !self.run.as_ref().is_some_and(follows) {
            self.end_run();
            self.run = Some(Run { address, length: 0, pieces: SmallVec::new() });
        }
        if let Some(run) = &mut self.run {
            run.length += read as u64;
            run.pieces.push(DevicePiece { piece, at: FileOffset(at), read, valid });
        }
    }

    /// Makes a request of the run.
    fn end_run(&mut self) {
        let Some(mut run) = self.run.take() else { return };
        let segments: SmallVec<[Segment; 4]> = run
            .pieces
            .iter_mut()
            // SAFETY: the memory is the piece's until the piece is done, and the piece is not
            // touched until the request's end.
            .map(|part| unsafe { Segment::new(part.piece.as_ptr(), part.read) })
            .collect();
        let (pieces, failure) = (run.pieces, self.failure.clone());
        let transform = self.transform.clone();
        let bio = Bio::new(BioOperation::Read, run.address, segments, move |result| {
            let note = |error| {
                if let Some(failure) = &failure {
                    failure.0.lock().get_or_insert(error);
                }
            };
            match result {
                Ok(()) => {
                    for piece in pieces {
                        piece.finish(transform.as_deref()).unwrap_or_else(note);
                    }
                }
                // Dropping the pieces leaves them without data.
                Err(error) => note(error.into()),
            }
        });
        self.batch.push(if self.waited_for { bio.waited_for() } else { bio });
    }

    /// Starts reading.
    pub(crate) fn submit(mut self) {
        self.end_run();
        if !self.batch.is_empty() {
            // The submitter does what is waited for.
            if self.batch.iter().any(Bio::is_waited_for) {
                base::waiting::about_to_wait();
            }
            self.context.device.submit(self.batch);
        }
    }
}

impl DevicePiece {
    /// Ends the reading of the piece. If the transform fails, the piece stays without data.
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

/// Where byte `at` of the file lies on the device, by a mapping that contains it.
pub(crate) fn device_address(map: &Iomap, at: u64) -> Result<DeviceOffset> {
    let address = map.address.and_then(|address| address.checked_add(at - map.offset.0));
    address.ok_or_else(|| {
        let found = map.address.unwrap_or_default().0;
        Error::corrupt(
            "file mapping",
            Location::default(),
            Problem::Invalid { field: "address", found },
        )
    })
}
