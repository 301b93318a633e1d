//! Writeback of whole clusters: data that is stored in another form, or replaces data that is. Not
//! here: data that is written block by block (`mod.rs`), and reads of clusters (`read/cluster.rs`).
//!
//! A file with clusters has folios that contain whole ones
//! ([`MapRead::cluster_bytes`](crate::MapRead::cluster_bytes)). A cluster that the device has in
//! another form is uptodate as a whole before a part of it becomes dirty (`write/mod.rs`,
//! `mmap.rs`), and is written as a whole. So its form on the device changes at once, at the end of
//! I/O. Other clusters are encoded if all of their blocks are dirty.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use base::{Error, FileOffset, Location, Problem, Result};
use device::{Bio, BioOperation, Segment};
use pagecache::DirtyRanges;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::mapping::{ClusterPlacement, ClusterWrite, FinishedRange, IomapKind, Token, map_at};
use crate::writeback::end_io::EndedWrite;
use crate::writeback::end_io::Pieces;
use crate::writeback::{BATCH_MAX, Collector, Started, unmapped};

/// A cluster with dirty blocks, in a folio under writeback.
struct DirtyCluster {
    /// Its bytes in the file, up to the end of the file's last block.
    range: Range<u64>,
    /// Whether the file has all of its bytes.
    is_whole: bool,
    /// Whether the device has it in another form.
    was_encoded: bool,
}

/// The write of one cluster, in one bio for each run of blocks.
struct Write {
    /// The stored form, which the bios read.
    stored: Box<[u8]>,
    state: Mutex<WriteState>,
}

struct WriteState {
    /// The number of bios that have not ended.
    left: usize,
    result: Result<()>,
    /// The end of the whole write.
    ended: Option<EndedWrite>,
}

impl Collector<'_> {
    /// Adds those clusters of a folio that are written as a whole. Returns the other dirty ranges.
    pub(crate) fn add_clusters(&mut self, started: &Started) -> DirtyRanges {
        let Some(cluster) = self.file.mapper.cluster_bytes() else { return started.dirty.clone() };
        let mut rest = DirtyRanges::new();
        let mut done = 0;
        for part in &started.dirty {
            let mut at = part.start.max(done);
            while at < part.end {
                // Folios begin with a cluster, or are smaller than one.
                let start = at / cluster as usize * cluster as usize;
                let end = start + cluster as usize;
                if self.add_cluster(started, start..end) {
                    done = end;
                } else {
                    push(&mut rest, at..end.min(part.end));
                }
                at = end;
            }
        }
        rest
    }

    /// Adds the cluster with the bytes `within` of a folio if it is written as a whole. Returns
    /// false if it is not.
    fn add_cluster(&mut self, started: &Started, within: Range<usize>) -> bool {
        if within.end > started.folio.folio().len() {
            return false;
        }
        let whole = match self.dirty_cluster(started, &within) {
            Ok(Some(whole)) => whole,
            Ok(None) => return false,
            Err(error) => {
                self.fail_cluster(started, within, None, error);
                return true;
            }
        };
        let length = (whole.range.end - whole.range.start) as usize;
        let within = within.start..within.start + length;
        match self.submit_cluster(started, &within, &whole) {
            Ok(is_added) => is_added,
            Err(error) => {
                let token = self.adding.take().and_then(|range| range.token);
                self.fail_cluster(started, within, token, error);
                true
            }
        }
    }

    /// Returns the cluster with the bytes `within` of a folio if it is written as a whole.
    fn dirty_cluster(
        &self,
        started: &Started,
        within: &Range<usize>,
    ) -> Result<Option<DirtyCluster>> {
        let block = u64::from(self.file.mapping.block_size().bytes());
        let start = started.position + within.start as u64;
        let end = started.position + within.end as u64;
        let end_of_file = started.size.next_multiple_of(block);
        let map = map_at(self.file.read_context().mapper, FileOffset(start), end - start)?;
        let cluster = DirtyCluster {
            range: start..end.min(end_of_file),
            is_whole: end <= end_of_file,
            was_encoded: map.kind == IomapKind::Encoded,
        };
        if !cluster.was_encoded {
            let is_dirty = started
                .dirty
                .iter()
                .any(|part| part.start <= within.start && within.end <= part.end);
            return Ok((is_dirty && cluster.is_whole).then_some(cluster));
        }
        let folio = started.folio.folio();
        let length = (cluster.range.end - start) as usize;
        if folio.uptodate_run(within.start, length, true) < length {
            let problem = Problem::Invalid { field: "blocks that are not read at", found: start };
            return Err(Error::corrupt("cached cluster", Location::default(), problem));
        }
        Ok(Some(cluster))
    }

    /// Encodes a cluster, and adds its bios to the batch. Returns false if it is written block by
    /// block.
    fn submit_cluster(
        &mut self,
        started: &Started,
        within: &Range<usize>,
        cluster: &DirtyCluster,
    ) -> Result<bool> {
        let mapper = &*self.file.mapper;
        let at = FileOffset(cluster.range.start);
        // SAFETY: the folio is under writeback. Until that ends, it stays in memory and is not
        // written to.
        let data = unsafe {
            std::slice::from_raw_parts(started.folio.memory(within).as_ptr(), within.len())
        };
        let encoded = if cluster.is_whole { mapper.encode(at, data)? } else { None };
        let is_encoded = encoded.is_some();
        let stored = match encoded {
            Some(stored) => stored,
            None if !cluster.was_encoded => return Ok(false),
            None => {
                let mut stored = data.to_vec();
                if let Some(transform) = mapper.transform() {
                    transform.store(at, data, &mut stored)?;
                }
                stored
            }
        };
        let write = ClusterWrite {
            range: at..FileOffset(cluster.range.end),
            stored_length: stored.len() as u64,
            is_encoded,
        };
        let placement = match mapper.place_cluster(&write, false) {
            Err(Error::NoSpace) => {
                // The old blocks of writes that are not submitted yet become free with these.
                self.submit_all();
                self.file.mapper.place_cluster(&write, true)
            }
            placed => placed,
        };
        let ClusterPlacement { runs, token } = placement?;
        let range = FinishedRange { token: Some(token), ..unmapped(cluster.range.clone()) };
        self.adding = Some(range);
        let placed = runs.iter().map(|run| run.length).sum::<u64>();
        assert_eq!(placed, stored.len() as u64, "the blocks of a cluster");
        self.begun.remove(cluster.range.clone());
        self.adding = None;
        let ended = EndedWrite {
            file: Arc::clone(self.file),
            pieces: Pieces::from_iter([(Arc::clone(&started.folio), within.clone())]),
            ranges: smallvec![range],
            reached: cluster.range.end.min(started.size),
            result: Ok(()),
        };
        let state = WriteState { left: runs.len(), result: Ok(()), ended: Some(ended) };
        let write = Arc::new(Write { stored: stored.into_boxed_slice(), state: Mutex::new(state) });
        let mut start = 0;
        for run in runs {
            let end = start + run.length as usize;
            let memory = NonNull::from(&write.stored[start..end]).cast();
            // SAFETY: the completion of the bio keeps the memory, and nothing writes to it.
            let segment = unsafe { Segment::new(memory, end - start) };
            let segments: SmallVec<[Segment; 1]> = smallvec![segment];
            let (write, waiter) = (Arc::clone(&write), self.waiter);
            self.batch.push(Bio::new(BioOperation::Write, run.address, segments, move |result| {
                let is_waiter = waiter.is_some_and(|waiter| waiter == thread::current().id());
                write.end_run(result.map_err(Error::from), !is_waiter);
            }));
            start = end;
        }
        if self.batch.len() >= BATCH_MAX {
            self.submit();
        }
        Ok(true)
    }

    /// Ends the write of the dirty blocks of a cluster, which was not submitted, with `error`.
    fn fail_cluster(
        &mut self,
        started: &Started,
        within: Range<usize>,
        token: Option<Token>,
        error: Error,
    ) {
        let position = started.position;
        let bytes = position + within.start as u64..position + within.end as u64;
        for part in &started.dirty {
            let start = bytes.start.max(position + part.start as u64);
            let end = bytes.end.min(position + part.end as u64);
            if start < end && token.is_none() {
                self.file.cancel_delalloc(start..end);
            }
        }
        self.begun.remove(bytes.clone());
        let range = FinishedRange { token, ..unmapped(bytes) };
        let pieces = Pieces::from_iter([(Arc::clone(&started.folio), within)]);
        self.fail(std::iter::once(range), pieces, error);
    }
}

impl Write {
    /// Records the end of one bio. The last one ends the write.
    fn end_run(&self, result: Result<()>, wake: bool) {
        let mut state = self.state.lock();
        state.left -= 1;
        state.result = std::mem::replace(&mut state.result, Ok(())).and(result);
        if state.left > 0 {
            return;
        }
        let result = std::mem::replace(&mut state.result, Ok(()));
        let Some(ended) = state.ended.take() else { return };
        drop(state);
        let end_io = Arc::clone(&ended.file.end_io);
        end_io.push(EndedWrite { result, ..ended }, wake);
    }
}

/// Adds `range` to ranges in order.
fn push(ranges: &mut DirtyRanges, range: Range<usize>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
