//! Model checks of the invariants of frames, with all interleavings of a few threads and all values
//! that the memory orders permit a load to return.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;

use super::*;

const PAGE: u64 = 5;

/// One frame, its memory, whether it is free, and whether it is in the tree.
struct World {
    frame: Frame,
    memory: UnsafeCell<u64>,
    free: Mutex<bool>,
    slot: Mutex<bool>,
    bucket: WaitQueue,
}

// SAFETY: loom reports every racy access to the memory.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            frame: Frame::default(),
            memory: UnsafeCell::new(0),
            free: Mutex::new(true),
            slot: Mutex::new(false),
            bucket: WaitQueue::default(),
        })
    }

    fn lock_slot(&self) -> MutexGuard<'_, bool> {
        self.slot.lock().expect("no panic")
    }

    /// Inserts a folio of `owner`, if the frame is free, which stays locked and referenced. Returns
    /// whether it was free.
    fn insert(&self, owner: u64) -> bool {
        if !std::mem::take(&mut *self.free.lock().expect("no panic")) {
            return false;
        }
        let mut slot = self.lock_slot();
        self.frame.make_live(owner, Span { index: PAGE, order: 0 });
        *slot = true;
        true
    }

    /// Fills the folio with its owner's number, unlocks it and drops the reference.
    fn fill(&self, owner: u64) {
        // SAFETY: the folio is locked, and not uptodate.
        self.memory.with_mut(|memory| unsafe { *memory = owner });
        self.frame.unlock(true, &self.bucket);
        self.finish_put(self.frame.put());
    }

    /// Does what `put` requires after a reference was dropped.
    fn finish_put(&self, put: Put) {
        match put {
            Put::Held => {}
            Put::Last => {
                let mut free = self.free.lock().expect("no panic");
                assert!(!std::mem::replace(&mut *free, true), "freed twice");
            }
            Put::Behind => {
                let mut slot = self.lock_slot();
                if *slot && self.frame.claim_behind() {
                    *slot = false;
                    drop(slot);
                    self.finish_put(Put::Last);
                }
            }
        }
    }

    /// Reads the folio of owner 1, and then calls `after`. Returns whether there was an uptodate
    /// folio.
    fn read_and(&self, after: impl Fn(&Frame)) -> bool {
        match self.frame.try_get(1, PAGE) {
            Ok(()) => {
                let uptodate = self.frame.is_uptodate();
                if uptodate {
                    // SAFETY: uptodate, and referenced.
                    self.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                    after(&self.frame);
                }
                self.finish_put(self.frame.put());
                uptodate
            }
            Err(put) => {
                self.finish_put(put);
                false
            }
        }
    }

    /// Reads the folio of `owner`. Returns whether there was an uptodate one.
    fn read(&self, owner: u64) -> bool {
        match self.frame.try_get(owner, PAGE) {
            Ok(()) => {
                let uptodate = self.frame.is_uptodate();
                if uptodate {
                    // SAFETY: uptodate, and referenced.
                    self.memory.with(|memory| assert_eq!(unsafe { *memory }, owner));
                }
                self.finish_put(self.frame.put());
                uptodate
            }
            Err(put) => {
                self.finish_put(put);
                false
            }
        }
    }

    /// Evicts the folio, as reclaim does.
    fn evict(&self) {
        let mut slot = self.lock_slot();
        if *slot && self.frame.is_evictable() && self.frame.claim() {
            *slot = false;
            drop(slot);
            self.finish_put(Put::Last);
        }
    }

    /// Removes the folio from the tree, as a truncation does, or the drop of a mapping.
    fn truncate(&self) {
        let mut slot = self.lock_slot();
        if std::mem::take(&mut *slot) {
            self.finish_put(self.frame.uncache());
        }
    }

    fn is_free(&self) -> bool {
        *self.free.lock().expect("no panic")
    }
}

/// Checks `run` with at most three preemptions. More would take hours, and no races are known that
/// need more.
fn check(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// Returns a world with an uptodate folio of owner 1.
fn with_folio() -> Arc<World> {
    let world = World::new();
    assert!(world.insert(1));
    world.fill(1);
    world
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || run(&world))
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn readers_see_their_own_folio_or_none_while_the_frame_changes_its_owner() {
    check(|| {
        let world = with_folio();
        let threads = [
            spawn(&world, |world| {
                world.read(1);
            }),
            spawn(&world, |world| {
                world.read(2);
            }),
        ];
        world.evict();
        if world.insert(2) {
            world.fill(2);
        }
        join(threads);
    });
}

#[test]
fn a_folio_that_leaves_the_cache_is_freed_once_by_its_last_holder() {
    check(|| {
        let world = with_folio();
        let threads = [
            spawn(&world, |world| {
                world.read(1);
            }),
            spawn(&world, |world| {
                world.read(1);
            }),
        ];
        world.truncate();
        join(threads);
        assert!(world.is_free());
    });
}

#[test]
fn holders_of_a_frames_former_folio_do_not_free_its_next_one() {
    check(|| {
        let world = with_folio();
        let threads = [
            spawn(&world, |world| {
                world.read(1);
            }),
            spawn(&world, World::truncate),
        ];
        if world.insert(2) {
            world.fill(2);
            assert!(world.read(2), "no other thread removes it");
            world.truncate();
            join(threads);
            assert!(world.is_free());
        } else {
            join(threads);
        }
    });
}

#[test]
fn reclaim_and_truncation_do_not_both_free_a_folio() {
    check(|| {
        let world = with_folio();
        let threads = [
            spawn(&world, World::evict),
            spawn(&world, |world| {
                world.read(1);
            }),
        ];
        world.truncate();
        join(threads);
        assert!(world.is_free());
    });
}

#[test]
fn waiters_wake_and_find_the_data() {
    check(|| {
        let world = World::new();
        assert!(world.insert(1));
        let wait = |world: &World| {
            if world.frame.try_get(1, PAGE) == Ok(()) {
                world.frame.wait_unlocked(&world.bucket);
                assert!(world.frame.is_uptodate());
                // SAFETY: uptodate, and referenced.
                world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                world.finish_put(world.frame.put());
            }
        };
        let threads = [spawn(&world, wait), spawn(&world, wait)];
        world.fill(1);
        join(threads);
    });
}

#[test]
fn only_one_thread_gets_the_lock_and_only_one_the_readahead_mark() {
    check(|| {
        let world = with_folio();
        world.frame.set_readahead();
        let taken = Arc::new(Mutex::new((0, 0)));
        let threads = [0, 1].map(|_| {
            let taken = Arc::clone(&taken);
            spawn(&world, move |world| {
                let (mark, lock) = (world.frame.take_readahead(), world.frame.try_lock());
                let mut taken = taken.lock().expect("no panic");
                taken.0 += u32::from(mark);
                taken.1 += u32::from(lock);
            })
        });
        join(threads);
        assert_eq!(*taken.lock().expect("no panic"), (1, 1));
    });
}

#[test]
fn a_writer_does_not_change_data_that_a_device_reads() {
    check(|| {
        let world = with_folio();
        assert!(world.frame.try_get(1, PAGE).is_ok() && world.frame.try_lock());
        world.frame.get_again();
        world.frame.set_dirty(true);
        world.frame.start_writeback();
        world.frame.unlock(false, &world.bucket);
        let device = spawn(&world, |world| {
            // SAFETY: under writeback.
            world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
            world.frame.end_writeback(&world.bucket);
            world.finish_put(world.frame.put());
        });
        let other = spawn(&world, |world| {
            world.frame.wait_unlocked(&world.bucket);
            world.frame.wait_writeback(&world.bucket);
        });
        assert!(world.frame.try_lock());
        world.frame.wait_writeback(&world.bucket);
        // SAFETY: locked, not under writeback, and no thread reads.
        world.memory.with_mut(|memory| unsafe { *memory = 2 });
        world.frame.unlock(false, &world.bucket);
        join([device, other]);
        world.finish_put(world.frame.put());
    });
}

#[test]
fn a_borrowers_reads_precede_the_writes_of_a_writer_that_finds_the_folio_not_lent() {
    check(|| {
        let world = with_folio();
        assert!(world.frame.try_get(1, PAGE).is_ok());
        world.frame.lend();
        let reader = spawn(&world, |world| {
            // SAFETY: lent.
            world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
            world.frame.end_lending();
            world.finish_put(world.frame.put());
        });
        if !world.frame.is_lent() {
            // SAFETY: not lent, and no other thread reads.
            world.memory.with_mut(|memory| unsafe { *memory = 2 });
        }
        join([reader]);
    });
}

/// Returns a world with a dropbehind folio that is still locked and referenced.
fn with_folio_behind() -> Arc<World> {
    let world = World::new();
    assert!(world.insert(1));
    world.frame.set_dropbehind();
    world
}

#[test]
fn a_done_folio_is_freed_once_with_its_last_reference() {
    check(|| {
        let world = with_folio_behind();
        world.fill(1);
        assert!(!world.is_free(), "no thread is done with it");
        let threads = [
            spawn(&world, |world| {
                world.read_and(Frame::set_done);
            }),
            // Reads, but is not an uncached read.
            spawn(&world, |world| {
                world.read_and(|_| ());
            }),
        ];
        world.read_and(Frame::set_done);
        join(threads);
        assert!(world.is_free() && !*world.lock_slot());
    });
}

#[test]
fn a_kept_folio_stays_unless_it_was_evicted_before() {
    check(|| {
        let world = with_folio_behind();
        world.fill(1);
        let kept = Arc::new(Mutex::new(false));
        let reader = spawn(&world, {
            let kept = Arc::clone(&kept);
            move |world| *kept.lock().expect("no panic") = world.read_and(Frame::keep)
        });
        let other = spawn(&world, |world| {
            world.read_and(|_| ());
        });
        world.read_and(Frame::set_done);
        join([reader, other]);
        let kept = *kept.lock().expect("no panic");
        assert_eq!((world.is_free(), *world.lock_slot()), (!kept, kept));
        assert!(!kept || !world.frame.is_dropbehind());
    });
}

#[test]
fn a_folio_that_is_done_before_it_is_filled_is_freed_afterwards() {
    check(|| {
        let world = with_folio_behind();
        world.frame.set_done();
        let waiter = spawn(&world, |world| {
            if world.frame.try_get(1, PAGE) == Ok(()) {
                world.frame.wait_unlocked(&world.bucket);
                // SAFETY: unlocked as uptodate, and referenced.
                world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                world.finish_put(world.frame.put());
            } else {
                panic!("the folio is gone before it was filled");
            }
        });
        // Keeps the folio until the waiter has found it.
        world.frame.get_again();
        world.fill(1);
        join([waiter]);
        world.finish_put(world.frame.put());
        assert!(world.is_free());
    });
}

#[test]
fn a_done_folio_under_writeback_is_freed_after_its_writeback_and_the_last_waiter() {
    check(|| {
        let world = with_folio_behind();
        world.frame.set_done();
        // The reference of the dirty set, which the writeback takes over.
        world.frame.get_again();
        world.frame.set_dirty(true);
        world.frame.start_writeback();
        world.fill(1);
        let device = spawn(&world, |world| {
            // SAFETY: under writeback.
            world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
            world.frame.end_writeback(&world.bucket);
            world.finish_put(world.frame.put());
        });
        let waiter = spawn(&world, |world| match world.frame.try_get(1, PAGE) {
            Ok(()) => {
                world.frame.wait_writeback(&world.bucket);
                world.finish_put(world.frame.put());
            }
            Err(put) => world.finish_put(put),
        });
        join([device, waiter]);
        assert!(world.is_free() && !*world.lock_slot());
    });
}

#[test]
fn reclaim_truncation_and_the_last_reader_free_a_folio_once() {
    check(|| {
        let world = with_folio_behind();
        world.fill(1);
        let threads = [
            spawn(&world, World::evict),
            spawn(&world, |world| {
                world.read_and(Frame::set_done);
            }),
        ];
        world.truncate();
        join(threads);
        assert!(world.is_free());
    });
}
