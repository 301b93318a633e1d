//! Which frames are free: a binary buddy allocator whose lists run through the frame descriptors.
//! Not here: locking (the pool's), and what the frames are used for.

use crate::frame::Frame;
use crate::options::ORDER_MAX;
use crate::sync::Ordering;

const ORDERS: usize = ORDER_MAX as usize + 1;
/// The end of a list.
const NONE: u32 = u32::MAX;

/// The free frames. A free block of order `n` has 2^n frames and begins at a multiple of 2^n; two
/// buddies are never both free, since they would have been merged.
#[derive(Debug)]
pub(crate) struct Buddy {
    heads: [u32; ORDERS],
    frames: u32,
    /// Frames from here on were never used, and are in no list: neither they nor their descriptors
    /// take up memory yet.
    fresh: u32,
}

impl Buddy {
    /// With every one of `frames` free.
    pub(crate) fn new(frames: &[Frame]) -> Self {
        let frames = u32::try_from(frames.len()).expect("the arena's size is bounded");
        Self { heads: [NONE; ORDERS], frames, fresh: 0 }
    }

    /// Takes a block of `order`.
    pub(crate) fn take(&mut self, frames: &[Frame], order: u8) -> Option<u32> {
        let mut at = loop {
            match (order..=ORDER_MAX).find(|&at| self.heads[usize::from(at)] != NONE) {
                Some(at) => break at,
                None => self.add_fresh(frames)?,
            }
        };
        let start = self.heads[usize::from(at)];
        self.unlink(frames, start, at);
        while at > order {
            at -= 1;
            self.link(frames, start + (1 << at), at);
        }
        Some(start)
    }

    /// Puts the next frames that were never used into a list: as many as the largest block.
    fn add_fresh(&mut self, frames: &[Frame]) -> Option<()> {
        let order = (self.frames - self.fresh).checked_ilog2()?.min(ORDER_MAX.into()) as u8;
        self.link(frames, self.fresh, order);
        self.fresh += 1 << order;
        Some(())
    }

    /// Takes back a block of `order`.
    pub(crate) fn give(&mut self, frames: &[Frame], mut start: u32, mut order: u8) {
        debug_assert!(start % (1 << order) == 0 && start + (1 << order) <= self.frames);
        while order < ORDER_MAX {
            let buddy = start ^ 1 << order;
            if buddy + (1 << order) > self.frames
                || frames[buddy as usize].free.load(Ordering::Relaxed) != u32::from(order) + 1
            {
                break;
            }
            self.unlink(frames, buddy, order);
            start &= buddy;
            order += 1;
        }
        self.link(frames, start, order);
    }

    /// Whether there is a block of `order`.
    pub(crate) fn has(&self, order: u8) -> bool {
        self.heads[usize::from(order)..].iter().any(|&head| head != NONE)
            || self.frames - self.fresh >= 1 << order
    }

    fn link(&mut self, frames: &[Frame], start: u32, order: u8) {
        let frame = &frames[start as usize];
        let head = &mut self.heads[usize::from(order)];
        frame.free.store(u32::from(order) + 1, Ordering::Relaxed);
        frame.previous.store(NONE, Ordering::Relaxed);
        frame.next.store(*head, Ordering::Relaxed);
        if *head != NONE {
            frames[*head as usize].previous.store(start, Ordering::Relaxed);
        }
        *head = start;
    }

    fn unlink(&mut self, frames: &[Frame], start: u32, order: u8) {
        let frame = &frames[start as usize];
        frame.free.store(0, Ordering::Relaxed);
        let previous = frame.previous.load(Ordering::Relaxed);
        let next = frame.next.load(Ordering::Relaxed);
        if previous == NONE {
            self.heads[usize::from(order)] = next;
        } else {
            frames[previous as usize].next.store(next, Ordering::Relaxed);
        }
        if next != NONE {
            frames[next as usize].previous.store(previous, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(count: usize) -> Vec<Frame> {
        (0..count).map(|_| Frame::default()).collect()
    }

    /// The free blocks as (start, order), in order.
    fn free(buddy: &Buddy, frames: &[Frame]) -> Vec<(u32, u8)> {
        let mut blocks = Vec::new();
        for order in 0..=ORDER_MAX {
            let mut at = buddy.heads[usize::from(order)];
            while at != NONE {
                blocks.push((at, order));
                at = frames[at as usize].next.load(Ordering::Relaxed);
            }
        }
        blocks.sort_unstable();
        blocks
    }

    #[test]
    fn an_odd_number_of_frames_is_all_free_in_aligned_blocks() {
        let frames = frames(1024 + 16 + 4 + 1);
        let mut buddy = Buddy::new(&frames);
        while buddy.add_fresh(&frames).is_some() {}
        assert_eq!(free(&buddy, &frames), [(0, 9), (512, 9), (1024, 4), (1040, 2), (1044, 0)]);
    }

    #[test]
    fn blocks_split_and_merge_back() {
        let frames = frames(512);
        let mut buddy = Buddy::new(&frames);
        let taken: Vec<u32> = (0..512).map(|_| buddy.take(&frames, 0).expect("free")).collect();
        assert_eq!(taken, (0..512).collect::<Vec<_>>());
        assert_eq!(buddy.take(&frames, 0), None);
        for start in taken.iter().rev().step_by(2).chain(taken.iter().step_by(2)) {
            buddy.give(&frames, *start, 0);
        }
        assert_eq!(free(&buddy, &frames), [(0, 9)]);
    }

    #[test]
    fn random_use_never_hands_out_a_frame_twice_and_merges_in_the_end() {
        let count = 1024 + 37;
        let frames = frames(count);
        let mut buddy = Buddy::new(&frames);
        while buddy.add_fresh(&frames).is_some() {}
        let all = free(&buddy, &frames);
        buddy = Buddy::new(&frames);
        frames.iter().for_each(|frame| frame.free.store(0, Ordering::Relaxed));
        let mut used = vec![false; count];
        let mut held: Vec<(u32, u8)> = Vec::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let order = (random >> 40) as u8 % (ORDER_MAX + 1);
            if random >> 33 & 1 == 0 {
                let had = buddy.has(order);
                let taken = buddy.take(&frames, order);
                assert_eq!(taken.is_some(), had);
                let Some(start) = taken else { continue };
                assert_eq!(start % (1 << order), 0);
                for frame in start..start + (1 << order) {
                    assert!(!std::mem::replace(&mut used[frame as usize], true), "frame {frame}");
                }
                held.push((start, order));
            } else if !held.is_empty() {
                let (start, order) = held.swap_remove((random >> 20) as usize % held.len());
                used[start as usize..start as usize + (1 << order)].fill(false);
                buddy.give(&frames, start, order);
            }
        }
        for (start, order) in held {
            buddy.give(&frames, start, order);
        }
        while buddy.add_fresh(&frames).is_some() {}
        assert_eq!(free(&buddy, &frames), all);
    }
}
