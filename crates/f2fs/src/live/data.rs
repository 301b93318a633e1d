//! The map of a file's data, for reading and writing. Data is written out of place, but that of
//! pinned files in place.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{FileBlock, FileOffset, FsBlock, Result};
use iomap::{
    Cluster, ClusterPlacement, ClusterWrite, Encoding, FinishedRange, Iomap, IomapKind, MapRead,
    MapWrite, Placement, Token, Transform, WritePolicy,
};

use super::LiveInode;
use crate::inode::map::BlockState;
use crate::temperature::Temperature;
use crate::write::{Demand, Placed};

impl LiveInode {
    /// Returns the temperature of data that is written. That of atomic writes is hot.
    pub(super) fn temperature(&self) -> Temperature {
        if self.has_atomic_write() { Temperature::Hot } else { self.current().record().temperature }
    }

    fn placement(&self, (token, range): (u64, Range<FsBlock>)) -> Placement {
        let geometry = self.volume.geometry();
        Placement {
            length: (range.end.0 - range.start.0) << geometry.block_size.shift(),
            address: geometry.device_offset(range.start),
            token: Token(token),
        }
    }

    /// Returns the ranges of `blocks` that need new blocks which are not reserved: holes, and with
    /// an atomic write, all blocks to which it has not written.
    fn unreserved(&self, blocks: &Range<FileBlock>) -> Result<Vec<Range<FileBlock>>> {
        let (mut at, mut found) = (blocks.start, Vec::new());
        while at < blocks.end {
            // First this: the end of a write stores addresses before blocks are no longer delayed.
            let around = self.delayed.lock().around(at);
            let mut end = around.range.end.min(blocks.end);
            if !around.is_delayed {
                let is_missing;
                if let Some((is_pending, until)) = self.pending_until(at, end) {
                    (is_missing, end) = (!is_pending, until);
                } else {
                    let piece = self.found(self.current().piece_at(at, end))?;
                    (is_missing, end) = (piece.state == BlockState::Hole, piece.end.min(end));
                }
                if is_missing {
                    found.push(at..end);
                }
            }
            at = end;
        }
        Ok(found)
    }

    /// Reserves the blocks that data in the cache needs. Adds the nodes for their addresses, so
    /// that the end of I/O adds none.
    fn reserve(&self, blocks: &Range<FileBlock>) -> Result<()> {
        let count =
            |holes: &[Range<FileBlock>]| holes.iter().map(|hole| hole.end.0 - hole.start.0).sum();
        // The end of another write may have stored addresses since the caller looked.
        let mut holes = Vec::new();
        // Most writes find all nodes. They change none, which takes half the time.
        let is_reserved = self.volume.writer()?.reserve(self.volume.core(), || {
            holes = self.unreserved(blocks)?;
            let has_nodes = self.found(self.current().has_nodes(blocks))?;
            Ok(has_nodes.then(|| count(&holes)))
        })?;
        if !is_reserved {
            let added = Demand::Adds(self.nodes_of(blocks.end.0 - blocks.start.0));
            holes = self.change(added, &[], |editor, reserved| {
                let holes = self.unreserved(blocks)?;
                for hole in &holes {
                    editor.add_nodes(self.number, hole.clone())?;
                }
                reserved.add(count(&holes));
                Ok(holes)
            })?;
        }
        let mut delayed = self.delayed.lock();
        holes.iter().for_each(|hole| delayed.insert(hole, 0, |_| false));
        drop(delayed);
        self.map_changed();
        Ok(())
    }
}

impl MapRead for LiveInode {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let block_size = self.volume.geometry().block_size;
        // In this order: the end of a write stores addresses before blocks are no longer delayed.
        let around = self.delayed.lock().around(block_size.file_block(at));
        let mut map = self.found(self.map_with_pending(at, length))?;
        if map.kind != IomapKind::Hole || self.current().record().inline_area.is_some() {
            return Ok(map);
        }
        let bytes = |block: FileBlock| block.0.saturating_mul(block_size.bytes().into());
        let start = bytes(around.range.start).max(map.offset.0);
        let end = bytes(around.range.end).min(map.end());
        map.flags.last &= end == map.end();
        (map.offset, map.length) = (FileOffset(start), end - start);
        if around.is_delayed {
            map.kind = IomapKind::Delalloc;
        }
        Ok(map)
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        self.found(self.current().inline_data())
    }

    fn transform(&self) -> Option<Arc<dyn Transform>> {
        self.current().transform()
    }

    fn is_verified(&self) -> bool {
        self.current().is_verified()
    }

    fn verify(&self, at: FileOffset, data: &[u8]) -> Result<()> {
        self.current().verify(at, data)
    }

    fn encoding(&self) -> Option<Encoding> {
        self.current().encoding()
    }

    fn cluster_bytes(&self) -> Option<u64> {
        self.current().cluster_bytes()
    }

    fn cluster(&self, at: FileOffset) -> Result<Cluster> {
        self.found(self.current().cluster(at))
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

impl MapWrite for LiveInode {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.check_changeable()?;
        self.convert_inline()?;
        let end = FileOffset(at.0.saturating_add(length));
        let blocks = self.blocks_of(&(at..end));
        self.decompress_end(end.0)?;
        if self.cluster_bytes().is_none() {
            self.decompress(&blocks)?;
        }
        if self.is_pinned() {
            self.check_overwrites(&blocks)?;
            return self.map_in_place(at, length);
        }
        if !self.unreserved(&blocks)?.is_empty() {
            self.reserve(&blocks)?;
        }
        self.map_read(at, length)
    }

    fn end_write(&self, unused: Range<FileOffset>) {
        let blocks = self.blocks_of(&unused);
        let dropped = self.delayed.lock().remove(&blocks, 0);
        if let Ok(writer) = self.volume.writer() {
            writer.unreserve(dropped);
        }
        self.map_changed();
    }

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        // Only blocks with addresses become dirty in files that are written in place.
        self.map_in_place(at, length)
    }

    fn policy(&self, _range: Range<FileOffset>) -> WritePolicy {
        if self.is_pinned() { WritePolicy::InPlace } else { WritePolicy::OutOfPlace }
    }

    fn check_in_place(&self, range: Range<FileOffset>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            at = FileOffset(self.map_in_place(at, range.end.0 - at.0)?.end());
        }
        Ok(())
    }

    fn place(&self, dirty: Range<FileOffset>) -> Result<Placement> {
        let blocks = self.blocks_of(&dirty);
        let temperature = self.temperature();
        if let Some(placed) = self.place_over(&blocks, temperature)? {
            return Ok(self.placement(placed));
        }
        let (count, place) = (blocks.end.0 - blocks.start.0, (self.number, blocks.start));
        let writer = self.volume.writer()?;
        let placed = writer.place(self.volume.core(), place, count, temperature)?;
        Ok(self.placement(placed))
    }

    fn place_after_waiting(&self, dirty: Range<FileOffset>) -> Result<Placement> {
        let blocks = self.blocks_of(&dirty);
        let (count, place) = (blocks.end.0 - blocks.start.0, (self.number, blocks.start));
        let writer = self.volume.writer()?;
        let placed =
            writer.place_after_waiting(self.volume.core(), place, count, self.temperature())?;
        Ok(self.placement(placed))
    }

    fn encode(&self, at: FileOffset, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.current().encode_cluster(at, data)
    }

    fn place_cluster(&self, cluster: &ClusterWrite, may_wait: bool) -> Result<ClusterPlacement> {
        self.place_whole(cluster, may_wait)
    }

    fn unplace(&self, failed: &[FinishedRange]) {
        let Ok(writer) = self.volume.writer() else { return };
        for token in failed.iter().filter_map(|range| range.token) {
            match self.take_cluster(token) {
                Some(placed) => placed.unplace(&self.volume),
                None => writer.unplace(self.volume.core(), token.0),
            }
        }
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        let tokens = finished.iter().filter_map(|range| range.token);
        let has_new_blocks = self.volume.writer()?.end_overwrites(tokens.map(|token| token.0));
        if !has_new_blocks && size.0 <= self.current().attributes().size {
            return Ok(());
        }
        let is_atomic = self.has_atomic_write();
        let tokens = finished.iter().filter_map(|range| range.token);
        let clusters: Vec<_> = tokens.filter_map(|token| self.take_cluster(token)).collect();
        // The nodes were added when the data came into the cache.
        let ended = self.change(Demand::Few, &[], |editor, reserved| {
            let (mut ended, mut placed) = (Vec::new(), Vec::<Placed>::new());
            let mut replaced = Vec::new();
            for cluster in &clusters {
                let (blocks, old) = self.put_cluster(editor, reserved, cluster)?;
                replaced.push((blocks.clone(), old));
                ended.push(blocks);
            }
            for token in finished.iter().filter_map(|range| range.token) {
                let Some(next) = reserved.take_placement(token.0) else { continue };
                if !placed.last_mut().is_some_and(|last| last.extend(&next)) {
                    placed.push(next);
                }
            }
            for placed in placed {
                let blocks = placed.at..FileBlock(placed.at.0 + placed.len());
                if !self.make_pending(&placed, reserved) {
                    let old = editor.set_addresses(self.number, placed.at, placed.range)?;
                    reserved.remove(old.holes);
                    replaced.push((blocks.clone(), old.blocks));
                }
                ended.push(blocks);
            }
            // Direct reads may be in flight, and fills beside a direct write. First the generation,
            // then the look at them.
            self.map_changed();
            for (blocks, old) in &replaced {
                reserved.hold(self.volume.core(), (self.number, blocks), old);
            }
            if !is_atomic {
                self.update(editor, |raw| raw.size.set(raw.size.get().max(size.0)))?;
            }
            Ok(ended)
        });
        let ended = ended.inspect_err(|_| {
            clusters.iter().for_each(|cluster| cluster.unplace(&self.volume));
            self.unplace(finished);
        })?;
        self.volume.writer()?.note_ended();
        let mut delayed = self.delayed.lock();
        let before = delayed.reserved();
        for blocks in &ended {
            delayed.remove_allocated(blocks, 0);
        }
        let used = before - delayed.reserved();
        drop(delayed);
        if is_atomic {
            self.keep_reserved(used);
        }
        self.map_changed();
        Ok(())
    }

    fn panicked(&self, operation: &'static str) {
        if let Ok(writer) = self.volume.writer() {
            writer.health().fail(base::Error::Panicked(operation));
        }
    }
}
