//! Model checks of per-block state, with reads of a folio whose blocks are filled one by one.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use base::sync::WaitQueue;

const BLOCK: usize = 4096;

/// A locked folio of two blocks with a state, and its memory, a number for each block.
struct World {
    frame: Frame,
    memory: [UnsafeCell<u64>; 2],
    bucket: WaitQueue,
}

// SAFETY: loom reports every racy access to the memory.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    /// Returns a folio whose two blocks are to be filled.
    fn new() -> Arc<Self> {
        let frame = Frame::default();
        frame.make_live(1, crate::frame::Span { index: 0, order: 1 });
        let memory = [(); 2].map(|()| UnsafeCell::new(0));
        let world = Arc::new(Self { frame, memory, bucket: WaitQueue::default() });
        FolioState::attach(&world.frame, 2 * BLOCK, 12).add_pending(2 * BLOCK as u32);
        world
    }

    fn state(&self) -> &FolioState {
        FolioState::of(&self.frame).expect("it was attached")
    }

    /// Fills a block, as the end of its I/O does.
    fn fill(&self, block: usize) {
        // SAFETY: the folio is locked, and the block is not uptodate.
        self.memory[block].with_mut(|memory| unsafe { *memory = 1 });
        self.state().set_uptodate(block * BLOCK..(block + 1) * BLOCK);
        if self.state().end_pending(BLOCK as u32) {
            self.frame.unlock(self.state().is_complete(), &self.bucket);
        }
    }

    /// Reads the blocks that are uptodate, and returns how many are.
    fn read(&self) -> usize {
        let mut found = 0;
        for block in 0..2 {
            if self.state().run(block * BLOCK, BLOCK, true) == BLOCK {
                self.check(block);
                found += 1;
            }
        }
        found
    }

    fn check(&self, block: usize) {
        // SAFETY: uptodate.
        self.memory[block].with(|memory| assert_eq!(unsafe { *memory }, 1));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        FolioState::detach(&self.frame);
    }
}

#[test]
fn readers_see_the_data_of_each_block_that_is_uptodate() {
    loom::model(|| {
        let world = World::new();
        let filler = thread::spawn({
            let world = Arc::clone(&world);
            move || world.fill(0)
        });
        world.read();
        filler.join().expect("no panic");
        assert_eq!(world.read(), 1);
    });
}

#[test]
fn the_last_of_several_fills_unlocks_an_uptodate_folio() {
    loom::model(|| {
        let world = World::new();
        let fillers = [0, 1].map(|block| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.fill(block))
        });
        if world.frame.is_uptodate() {
            (0..2).for_each(|block| world.check(block));
        }
        world.frame.wait_unlocked(&world.bucket);
        assert!(world.frame.is_uptodate());
        (0..2).for_each(|block| world.check(block));
        for filler in fillers {
            filler.join().expect("no panic");
        }
    });
}

#[test]
fn a_new_state_of_an_uptodate_folio_is_complete_for_every_reader() {
    loom::model(|| {
        let frame = Arc::new(Frame::default());
        frame.make_live(1, crate::frame::Span { index: 0, order: 1 });
        frame.set_uptodate();
        let writer = thread::spawn({
            let frame = Arc::clone(&frame);
            // The writer has the folio locked, and makes a part of it dirty.
            move || {
                FolioState::attach(&frame, 2 * BLOCK, 12).set_dirty(0..BLOCK);
            }
        });
        if let Some(state) = FolioState::of(&frame) {
            assert_eq!(state.run(0, 2 * BLOCK, true), 2 * BLOCK);
        }
        writer.join().expect("no panic");
        let state = FolioState::of(&frame).expect("it was attached");
        assert_eq!(state.dirty_run(0, 2 * BLOCK, true), BLOCK);
        FolioState::detach(&frame);
    });
}
