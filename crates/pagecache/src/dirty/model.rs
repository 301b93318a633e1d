//! Model checks of the dirty set and the writeback set: flags, sets and references agree (R6).

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;
use crate::frame::Span;

const INDEX: u64 = 0;
const NUMBER: u32 = 0;
const BYTES: u64 = 4096;

/// A folio of one page, its memory, the sets of its mapping, and the slot of the tree for it.
struct World {
    frame: Frame,
    memory: UnsafeCell<u64>,
    sets: Mutex<DirtyFolios>,
    slot: Mutex<bool>,
    bucket: WaitQueue,
}

// SAFETY: loom reports every racy access to the memory.
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
            bucket: WaitQueue::default(),
        };
        world.frame.make_live(1, Span { index: INDEX, order: 0 });
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
        assert_eq!(self.frame.put(), Put::Held, "the tree or a set holds a reference");
    }

    /// Writes to the folio, if it is still cached. Returns whether it is.
    fn write(&self) -> bool {
        if self.frame.try_get(1, INDEX).is_err() {
            return false;
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
            // The set holds a reference while it is locked.
            self.frame.get_again();
        }
        self.lock();
        if self.frame.is_dirty() {
            self.frame.wait_writeback(&self.bucket);
            self.sets().start_writeback(&self.frame, INDEX, NUMBER, BYTES);
            self.unlock();
            // SAFETY: under writeback, so no thread writes to it.
            self.memory.with(|memory| assert!(unsafe { *memory } > 0));
            self.sets().end_writeback(&self.frame, INDEX, &self.bucket);
            self.put();
        } else {
            self.unlock();
        }
        self.put();
    }

    /// Makes the folio clean without writing it back, as a truncation does.
    fn truncate(&self) {
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

    /// Evicts the folio if it has no references, as reclaim does. Checks that it is clean then.
    fn evict(&self) {
        let mut slot = self.slot.lock().expect("no panic");
        if *slot && self.frame.is_evictable() && self.frame.claim() {
            *slot = false;
            assert!(!self.frame.is_dirty() && !self.frame.is_under_writeback(), "data is lost");
        }
    }

    /// Checks that flags and sets agree. All other threads have ended.
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
fn a_write_during_writeback_makes_the_folio_dirty_again_or_is_part_of_the_writeback() {
    check(|| {
        let world = World::new();
        assert!(world.write());
        let flusher = spawn(&world, World::write_back);
        assert!(world.write(), "a dirty folio stays cached");
        flusher.join().expect("no panic");
        let dirty = world.frame.is_dirty();
        world.check(dirty);
        world.write_back();
        world.check(false);
    });
}

#[test]
fn a_dirty_folio_is_not_evicted_before_its_writeback() {
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
fn one_of_two_flushers_writes_back_and_both_drop_their_references() {
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
fn truncation_and_writeback_do_not_both_remove_a_folio_from_its_set() {
    check(|| {
        let world = World::new();
        assert!(world.write());
        let flusher = spawn(&world, World::write_back);
        world.truncate();
        flusher.join().expect("no panic");
        world.check(false);
        world.evict();
        assert!(!*world.slot.lock().expect("no panic"), "a reference is left");
    });
}
