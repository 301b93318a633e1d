//! A binary buddy allocator of frames, whose free lists are linked through the frame descriptors.
//! Not here: locking (the pool does it), and the use of the frames.

use crate::frame::Frame;
use crate::options::ORDER_MAX;
use base::sync::Ordering;

const ORDERS: usize = ORDER_MAX as usize + 1;
/// The end of a list.
const NONE: u32 = u32::MAX;
/// Flag beside a free block's order in its descriptor: the block's memory is all zeroes.
const BLANK: u32 = 1 << 8;

/// A block of 2^`order` adjacent frames.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Block {
    /// The first frame.
    pub(crate) start: u32,
    pub(crate) order: u8,
    /// Whether the memory is known to be all zeroes. A caller that needs zeroes then need not write
    /// them.
    pub(crate) blank: bool,
}

/// Returns the order of the free block that begins with `frame`, if there is one. A hint without
/// the pool's lock.
pub(crate) fn free_order(frame: &Frame) -> Option<u8> {
    (frame.free.load(Ordering::Relaxed) as u8).checked_sub(1)
}

/// The free frames. A free block of order `n` has 2^n frames and begins at a multiple of 2^n. Two
/// buddies are never both free: freeing the second one merges them.
#[derive(Debug)]
pub(crate) struct Buddy {
    heads: [u32; ORDERS],
    frames: u32,
    /// The first frame that was never used. Frames from here on are in no list, and neither they
    /// nor their descriptors take up memory yet.
    fresh: u32,
}

impl Buddy {
    /// Returns an allocator in which all `frames` are free.
    pub(crate) fn new(frames: &[Frame]) -> Self {
        let frames = u32::try_from(frames.len()).expect("the arena's size is bounded");
        Self { heads: [NONE; ORDERS], frames, fresh: 0 }
    }

    /// Allocates a block of `order`. Returns `None` if there is none.
    pub(crate) fn allocate(&mut self, frames: &[Frame], order: u8) -> Option<Block> {
        let mut at = loop {
            match (order..=ORDER_MAX).find(|&at| self.heads[usize::from(at)] != NONE) {
                Some(at) => break at,
                None => self.add_fresh(frames)?,
            }
        };
        let start = self.heads[usize::from(at)];
        let blank = self.unlink(frames, start, at);
        while at > order {
            at -= 1;
            self.link(frames, Block { start: start + (1 << at), order: at, blank });
        }
        Some(Block { start, order, blank })
    }

    /// Adds the next frames that were never used to a free list, as one block that is as large as
    /// possible. Returns `None` if all frames were used.
    fn add_fresh(&mut self, frames: &[Frame]) -> Option<()> {
        let order = (self.frames - self.fresh).checked_ilog2()?.min(ORDER_MAX.into()) as u8;
        self.link(frames, Block { start: self.fresh, order, blank: true });
        self.fresh += 1 << order;
        Some(())
    }

    /// Frees a block, and merges it with its free buddies.
    pub(crate) fn free(&mut self, frames: &[Frame], mut block: Block) {
        let Block { start, order, .. } = block;
        debug_assert!(start % (1 << order) == 0 && start + (1 << order) <= self.frames);
        while block.order < ORDER_MAX {
            let buddy = block.start ^ 1 << block.order;
            if buddy + (1 << block.order) > self.frames
                || free_order(&frames[buddy as usize]) != Some(block.order)
            {
                break;
            }
            block.blank &= self.unlink(frames, buddy, block.order);
            block.start &= buddy;
            block.order += 1;
        }
        self.link(frames, block);
    }

    /// Returns whether a block of `order` can be allocated.
    pub(crate) fn has(&self, order: u8) -> bool {
        self.heads[usize::from(order)..].iter().any(|&head| head != NONE)
            || self.frames - self.fresh >= 1 << order
    }

    fn link(&mut self, frames: &[Frame], Block { start, order, blank }: Block) {
        let frame = &frames[start as usize];
        let head = &mut self.heads[usize::from(order)];
        let free = (u32::from(order) + 1) | if blank { BLANK } else { 0 };
        frame.free.store(free, Ordering::Relaxed);
        frame.previous.store(NONE, Ordering::Relaxed);
        frame.next.store(*head, Ordering::Relaxed);
        if *head != NONE {
            frames[*head as usize].previous.store(start, Ordering::Relaxed);
        }
        *head = start;
    }

    /// Removes a block from its free list. Returns whether it is blank.
    fn unlink(&mut self, frames: &[Frame], start: u32, order: u8) -> bool {
        let frame = &frames[start as usize];
        let free = frame.free.load(Ordering::Relaxed);
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
        free & BLANK != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(count: usize) -> Vec<Frame> {
        (0..count).map(|_| Frame::default()).collect()
    }

    /// Returns the free blocks as (start, order), sorted.
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
    fn any_number_of_frames_is_divided_into_aligned_blocks() {
        let frames = frames(1024 + 16 + 4 + 1);
        let mut buddy = Buddy::new(&frames);
        while buddy.add_fresh(&frames).is_some() {}
        assert_eq!(free(&buddy, &frames), [(0, 9), (512, 9), (1024, 4), (1040, 2), (1044, 0)]);
    }

    #[test]
    fn blocks_split_and_merge_back() {
        let frames = frames(512);
        let mut buddy = Buddy::new(&frames);
        let blocks: Vec<Block> =
            (0..512).map(|_| buddy.allocate(&frames, 0).expect("free")).collect();
        assert!((0..).zip(&blocks).all(|(start, block)| block.start == start && block.blank));
        assert_eq!(buddy.allocate(&frames, 0), None);
        for block in blocks.iter().rev().step_by(2).chain(blocks.iter().step_by(2)) {
            buddy.free(&frames, *block);
        }
        assert_eq!(free(&buddy, &frames), [(0, 9)]);
    }

    #[test]
    fn a_merged_block_is_blank_only_if_both_parts_are() {
        let frames = frames(512);
        let mut buddy = Buddy::new(&frames);
        let used = buddy.allocate(&frames, 3).expect("free");
        let unused = buddy.allocate(&frames, 3).expect("free");
        assert!(used.blank && unused.blank);
        buddy.free(&frames, unused);
        buddy.free(&frames, Block { blank: false, ..used });
        // By now, all blocks are merged into one.
        let all = buddy.allocate(&frames, 9).expect("free");
        assert!(!all.blank);
        buddy.free(&frames, Block { blank: true, ..all });
        assert!(buddy.allocate(&frames, 0).expect("free").blank);
        assert!(buddy.allocate(&frames, 8).expect("free").blank);
    }

    #[test]
    fn random_use_never_allocates_a_frame_twice_and_merges_all_blocks_in_the_end() {
        let count = 1024 + 37;
        let frames = frames(count);
        let mut buddy = Buddy::new(&frames);
        while buddy.add_fresh(&frames).is_some() {}
        let all = free(&buddy, &frames);
        buddy = Buddy::new(&frames);
        frames.iter().for_each(|frame| frame.free.store(0, Ordering::Relaxed));
        let mut used = vec![false; count];
        let mut held: Vec<Block> = Vec::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let order = (random >> 40) as u8 % (ORDER_MAX + 1);
            if random >> 33 & 1 == 0 {
                let has_block = buddy.has(order);
                let allocated = buddy.allocate(&frames, order);
                assert_eq!(allocated.is_some(), has_block);
                let Some(block) = allocated else { continue };
                let start = block.start;
                assert_eq!((start % (1 << order), block.order), (0, order));
                for frame in start..start + (1 << order) {
                    assert!(!std::mem::replace(&mut used[frame as usize], true), "frame {frame}");
                }
                held.push(block);
            } else if !held.is_empty() {
                let block = held.swap_remove((random >> 20) as usize % held.len());
                let start = block.start as usize;
                used[start..start + (1 << block.order)].fill(false);
                buddy.free(&frames, block);
            }
        }
        for block in held {
            buddy.free(&frames, block);
        }
        while buddy.add_fresh(&frames).is_some() {}
        assert_eq!(free(&buddy, &frames), all);
    }
}
