//! The read of one cluster of encoded data: its parts from the device, and the blocks of folios
//! that it fills. Not here: the choice of the folios (`fill.rs`), and the threads that decode
//! (`decode.rs`).

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::{Error, FileOffset, Result};
use pagecache::FillPiece;
use parking_lot::{Condvar, Mutex};
use smallvec::{SmallVec, smallvec};

use crate::mapping::{CLUSTER_BYTES_MAX, Cluster, IomapKind, cluster_at, map_at};
use crate::read::context::ReadContext;
use crate::read::decode::Encoding;
use crate::read::failure::Failure;

/// The read of a cluster. Its pieces are filled, or dropped after an error, when all parts are read
/// and decoded.
pub(crate) struct ClusterRead {
    /// The bytes of the file.
    range: Range<u64>,
    encoding: Encoding,
    decoded_by: DecodedBy,
    /// Gets an error before the pieces are dropped.
    failure: Option<Arc<Failure>>,
    state: Mutex<State>,
    /// Notified when the last part was read.
    ended: Condvar,
}

/// The thread that decodes a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DecodedBy {
    /// The thread that submits the read, and waits for it.
    Submitter,
    /// One of the pool.
    Pool,
    /// The thread that ends the last bio, since the pool has no threads.
    Device,
}

struct State {
    /// The stored form, by part. Empty until a part is read.
    parts: SmallVec<[Vec<u8>; 1]>,
    /// The number of parts that are not read yet.
    unread: usize,
    result: Result<()>,
    pieces: Vec<ClusterPiece>,
}

/// Some blocks of a folio that the cluster fills.
struct ClusterPiece {
    piece: FillPiece,
    /// The first byte within the cluster.
    start: usize,
    /// The number of bytes that belong to the file. The rest of the piece is zeroed.
    valid: usize,
}

impl ClusterRead {
    /// Creates the read of `cluster`, without pieces. `waited_for` says that the submitter will
    /// call [`wait_and_decode`](Self::wait_and_decode).
    pub(crate) fn new(
        cluster: &Cluster,
        encoding: Encoding,
        waited_for: bool,
        failure: Option<Arc<Failure>>,
    ) -> Arc<Self> {
        let decoded_by = match waited_for {
            true => DecodedBy::Submitter,
            false if encoding.pool.start() => DecodedBy::Pool,
            false => DecodedBy::Device,
        };
        let parts: SmallVec<[Vec<u8>; 1]> = smallvec![Vec::new(); cluster.stored.len()];
        let unread = parts.len();
        let state = State { parts, unread, result: Ok(()), pieces: Vec::new() };
        let (state, ended) = (Mutex::new(state), Condvar::new());
        Arc::new(Self { range: cluster.range(), encoding, decoded_by, failure, state, ended })
    }

    /// Returns whether the submitter decodes the cluster.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.decoded_by == DecodedBy::Submitter
    }

    /// Returns the bytes of the file.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Adds a piece of the cluster, from byte `at` of the file on, before the read is submitted.
    /// The file ends at `size`.
    pub(crate) fn add(&self, at: u64, piece: FillPiece, size: u64) {
        debug_assert!(self.range.start <= at && at + piece.len() as u64 <= self.range.end);
        let valid = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
        let (start, valid) = ((at - self.range.start) as usize, valid.min(piece.len()));
        self.state.lock().pieces.push(ClusterPiece { piece, start, valid });
    }

    /// Records the end of the read of part `index`, whose bytes are in `memory`.
    pub(crate) fn end_part(self: Arc<Self>, index: usize, memory: Vec<u8>, result: Result<()>) {
        let mut state = self.state.lock();
        state.parts[index] = memory;
        state.unread -= 1;
        state.result = std::mem::replace(&mut state.result, Ok(())).and(result);
        if state.unread > 0 {
            return;
        }
        drop(state);
        match self.decoded_by {
            DecodedBy::Submitter => drop(self.ended.notify_one()),
            DecodedBy::Pool => {
                let pool = Arc::clone(&self.encoding.pool);
                pool.push(self);
            }
            DecodedBy::Device => self.decode(),
        }
    }

    /// Waits until all parts are read, and decodes them.
    pub(crate) fn wait_and_decode(&self) {
        let mut state = self.state.lock();
        self.ended.wait_while(&mut state, |state| state.unread > 0);
        drop(state);
        self.decode();
    }

    /// Decodes the cluster, whose parts are read, and fills its pieces.
    pub(crate) fn decode(&self) {
        let mut state = self.state.lock();
        let mut pieces = std::mem::take(&mut state.pieces);
        let parts = std::mem::take(&mut state.parts);
        let result = std::mem::replace(&mut state.result, Ok(()));
        drop(state);
        match result.and_then(|()| self.fill(joined(parts), &mut pieces)) {
            Ok(()) => pieces.into_iter().for_each(|piece| piece.piece.finish()),
            Err(error) => {
                if let Some(failure) = &self.failure {
                    failure.note(error);
                }
                // Now the dropped pieces are not uptodate.
            }
        }
    }

    /// Writes the data to the pieces.
    fn fill(&self, mut stored: Vec<u8>, pieces: &mut [ClusterPiece]) -> Result<()> {
        let length = (self.range.end - self.range.start) as usize;
        let at = FileOffset(self.range.start);
        match pieces {
            [whole] if whole.piece.len() == length => {
                decode(&self.encoding, at, &mut stored, whole.piece.bytes_mut())?;
            }
            _ => {
                let mut data = vec![0; length];
                decode(&self.encoding, at, &mut stored, &mut data)?;
                for ClusterPiece { piece, start, .. } in &mut *pieces {
                    let end = *start + piece.len();
                    piece.bytes_mut().copy_from_slice(&data[*start..end]);
                }
            }
        }
        for ClusterPiece { piece, valid, .. } in pieces {
            piece.bytes_mut()[*valid..].fill(0);
        }
        Ok(())
    }
}

impl fmt::Debug for ClusterRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterRead({:?}, by {:?})", self.range, self.decoded_by)
    }
}

/// Returns the parts as one.
fn joined(mut parts: SmallVec<[Vec<u8>; 1]>) -> Vec<u8> {
    if parts.len() == 1 { parts.remove(0) } else { parts.concat() }
}

/// Decodes `stored` to `data`. Errors: `Panicked` if the decoder panics, since damaged data may be
/// what it did not expect.
fn decode(encoding: &Encoding, at: FileOffset, stored: &mut [u8], data: &mut [u8]) -> Result<()> {
    catch_unwind(AssertUnwindSafe(|| encoding.decode.decode(at, stored, data)))
        .unwrap_or(Err(Error::Panicked("the decoding of a cluster")))
}

/// Reads the cluster that contains byte `at` of the file, without the cache. Returns its bytes from
/// `at` on.
pub(crate) fn read_cluster(context: &ReadContext<'_>, at: u64) -> Result<Vec<u8>> {
    let block = u64::from(context.mapping.block_size().bytes());
    let cluster = cluster_at(context.mapper, FileOffset(at), block)?;
    let encoding = encoding(context)?;
    let mut stored = vec![0; cluster.stored_len() as usize];
    let mut rest = &mut stored[..];
    for run in &cluster.stored {
        let (part, after) = rest.split_at_mut(run.length as usize);
        context.device.read_at(run.address, part)?;
        rest = after;
    }
    let mut data = vec![0; cluster.length as usize];
    decode(&encoding, cluster.offset, &mut stored, &mut data)?;
    drop(data.drain(..(at - cluster.offset.0) as usize));
    Ok(data)
}

/// Returns the encoding of the file, which has a cluster.
pub(crate) fn encoding(context: &ReadContext<'_>) -> Result<Encoding> {
    context.mapper.encoding().ok_or(Error::WrongType("a file without encoded data"))
}

/// Returns the clusters at the first and at the last byte of `range`, as far as it is in the file.
/// This is a hint: without a folio's lock, it may be stale.
pub(crate) fn clusters_at_ends(
    context: &ReadContext<'_>,
    range: Range<u64>,
) -> [Option<Range<u64>>; 2] {
    let end = range.end.min(context.size());
    if range.start >= end || context.mapper.encoding().is_none() {
        return [None, None];
    }
    let block = u64::from(context.mapping.block_size().bytes());
    [range.start, end - 1].map(|at| {
        // A reader that needs the range gets the error.
        let map = map_at(context.mapper, FileOffset(at), 1).ok()?;
        let is_cluster = map.kind == IomapKind::Encoded
            && map.length <= CLUSTER_BYTES_MAX
            && map.offset.0 % block == 0
            && map.length % block == 0;
        is_cluster.then(|| map.offset.0..map.end())
    })
}
