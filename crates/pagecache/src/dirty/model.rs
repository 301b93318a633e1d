//! Model checks of the sets of dirty folios and of folios under writeback: flags, sets and references agree (R6).

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;
use crate::frame::Place;

const INDEX: u64 = 0;
const NUMBER: u32 = 0;
const BYTES: u64 = 4096;

/// A folio of one page, its memory, the sets of its mapping, and the slot of the tree for it.
struct World {
    frame: Frame,
    memory: UnsafeCell<u64>,
    sets: Mutex<DirtyFolios>,
    slot: Mutex<bool>,
    bucket: Bucket,
}

// SAFETY: the memory is what is being checked: loom sees every access to it that races.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    /// Returns a clean folio that only the tree refers to.
    fn new() -> Arc<Self> {
        let world = Self {
            frame: Frame::default(),
            memory: UnsafeCell::new(0),
            sets: Mutex::default(),
            slot: Mutex::new(true),
            bucket: Bucket::default(),
        };
        world.frame.make_live(1, Place { index: INDEX, order: 0 });
        world.frame.unlock(true, &world.bucket);
        assert_eq!(world.frame.put(), Put::Held);
        Arc::new(world)
    }

    fn sets(&self) -> loom::sync::MutexGuard<'_, DirtyFolios> {
        self.sets.lock().expect("no panic")
    }

    /// Locks the folio. The caller holds a reference.
    fn lock(&self) {
        while !self.frame.try_lock() {
            self.frame.wait_unlocked(&self.bucket);
        }
    }

    fn unlock(&self) {
        self.frame.unlock(false, &self.bucket);
    }

    fn put(&self) {
        assert_eq!(self.frame.put(), Put::Held, "the tree, or a set, has it");
    }

    /// Writes to the folio, if it is still there. Returns whether it is.
    fn write(&self) -> bool {
        match self.frame.try_get(1, INDEX) {
            Ok(()) => {}
            Err(_) => return false,
        }
        self.lock();
        self.frame.wait_writeback(&self.bucket);
        // SAFETY: locked, and not under writeback.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
        if !self.frame.is_dirty() {
            self.sets().add(&self.frame, INDEX, NUMBER, BYTES);
        }
        self.unlock();
        self.put();
        true
    }

    /// Writes the folio back, if it is dirty.
    fn write_back(&self) {
        {
            let sets = self.sets();
            if sets.dirty.0.is_empty() {
                return;
            }
            // The set has a reference, as long as it is locked.
            self.frame.get_again();
        }
        self.lock();
        if self.frame.is_dirty() {
            self.frame.wait_writeback(&self.bucket);
            self.sets().start_writeback(&self.frame, INDEX, NUMBER, BYTES);
            self.unlock();
            // SAFETY: under writeback: no thread writes to it.
            self.memory.with(|memory| assert!(unsafe { *memory } > 0));
            self.sets().end_writeback(&self.frame, INDEX, &self.bucket);
            self.put();
        } else {
            self.unlock();
        }
        self.put();
    }

    /// Makes the folio clean without writing it, as a truncation does.
    fn forget(&self) {
        if self.frame.try_get(1, INDEX).is_err() {
            return;
        }
        self.lock();
        self.frame.wait_writeback(&self.bucket);
        if self.frame.is_dirty() {
            self.sets().subtract(&self.frame, INDEX, BYTES, false);
            self.put();
        }
        self.unlock();
        self.put();
    }

    /// Evicts the folio if it has no references, as reclaim does. It must be clean then.
    fn evict(&self) {
        let mut slot = self.slot.lock().expect("no panic");
        if *slot && self.frame.is_evictable() && self.frame.claim() {
            *slot = false;
            assert!(!self.frame.is_dirty() && !self.frame.is_under_writeback(), "data is lost");
        }
    }

    /// Checks that flags and sets agree, after all threads have ended.
    fn check(&self, dirty: bool) {
        let sets = self.sets();
        assert_eq!(
            (sets.dirty.0.len(), sets.bytes),
            (usize::from(dirty), u64::from(dirty) * BYTES)
        );
        assert!(sets.writeback.0.is_empty());
        assert_eq!((self.frame.is_dirty(), self.frame.is_under_writeback()), (dirty, false));
    }
}

fn check(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(run);
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || run(&world))
}

#[test]
fn a_folio_written_to_during_its_writeback_is_dirty_afterwards_or_written_with_it() {
    check(|| {
        let world = World::new();
        assert!(world.write());
        let flusher = spawn(&world, World::write_back);
        assert!(world.write(), "a dirty folio stays");
        flusher.join().expect("no panic");
        let dirty = world.frame.is_dirty();
        world.check(dirty);
        world.write_back();
        world.check(false);
    });
}

#[test]
fn a_dirty_folio_is_not_evicted_before_it_was_written() {
    check(|| {
        let world = World::new();
        assert!(world.write());
        let flusher = spawn(&world, World::write_back);
        world.evict();
        flusher.join().expect("no panic");
        world.check(false);
    });
}

#[test]
fn of_two_that_write_back_one_writes_and_both_give_their_references_back() {
    check(|| {
        let world = World::new();
        assert!(world.write());
        let other = spawn(&world, World::write_back);
        world.write_back();
        other.join().expect("no panic");
        world.check(false);
        world.evict();
        assert!(!*world.slot.lock().expect("no panic"), "a reference is left");
    });
}

#[test]
fn a_truncation_and_a_writeback_do_not_both_take_a_folio_out_of_its_set() {
    check(|| {
        let world = World::new();
        assert!(world.write());
        let flusher = spawn(&world, World::write_back);
        world.forget();
        flusher.join().expect("no panic");
        world.check(false);
        world.evict();
        assert!(!*world.slot.lock().expect("no panic"), "a reference is left");
    });
}
