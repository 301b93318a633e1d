//! Model checks of the invariants above: the interleavings of a few threads, and every value
//! that the memory orders let a load give.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;

use super::*;

const PAGE: u64 = 5;

/// One frame, its memory, the pool that has it or not, and the slot of a tree for it.
struct World {
    frame: Frame,
    memory: UnsafeCell<u64>,
    free: Mutex<bool>,
    slot: Mutex<bool>,
    bucket: Bucket,
}

// SAFETY: the memory is what is being checked: loom sees every access to it that races.
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
            bucket: Bucket::default(),
        })
    }

    fn lock_slot(&self) -> MutexGuard<'_, bool> {
        self.slot.lock().expect("no panic")
    }

    /// Makes a folio of `owner`, if the frame is free, and leaves it locked and referred to.
    fn insert(&self, owner: u64) -> bool {
        if !std::mem::take(&mut *self.free.lock().expect("no panic")) {
            return false;
        }
        let mut slot = self.lock_slot();
        self.frame.make_live(owner, Place { index: PAGE, order: 0 });
        *slot = true;
        true
    }

    /// Fills the folio with its owner's number, unlocks it and gives the reference up.
    fn fill(&self, owner: u64) {
        // SAFETY: the folio is locked, and not uptodate.
        self.memory.with_mut(|memory| unsafe { *memory = owner });
        self.frame.unlock(true, &self.bucket);
        self.give(self.frame.put());
    }

    fn give(&self, put: Put) {
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
                    self.give(Put::Last);
                }
            }
        }
    }

    /// A read that leaves nothing behind, or one that keeps what it finds; whether there was
    /// anything to read.
    fn read_and(&self, after: impl Fn(&Frame)) -> bool {
        match self.frame.try_get(1, PAGE) {
            Ok(()) => {
                let uptodate = self.frame.is_uptodate();
                if uptodate {
                    // SAFETY: uptodate, and referred to.
                    self.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                    after(&self.frame);
                }
                self.give(self.frame.put());
                uptodate
            }
            Err(put) => {
                self.give(put);
                false
            }
        }
    }

    /// A cached read; whether there was anything to read.
    fn read(&self, owner: u64) -> bool {
        match self.frame.try_get(owner, PAGE) {
            Ok(()) => {
                let uptodate = self.frame.is_uptodate();
                if uptodate {
                    // SAFETY: uptodate, and referred to.
                    self.memory.with(|memory| assert_eq!(unsafe { *memory }, owner));
                }
                self.give(self.frame.put());
                uptodate
            }
            Err(put) => {
                self.give(put);
                false
            }
        }
    }

    /// Reclaim.
    fn evict(&self) {
        let mut slot = self.lock_slot();
        if *slot && self.frame.is_evictable() && self.frame.claim() {
            *slot = false;
            drop(slot);
            self.give(Put::Last);
        }
    }

    /// The end of a mapping, or of a part of it.
    fn truncate(&self) {
        let mut slot = self.lock_slot();
        if std::mem::take(&mut *slot) {
            self.give(self.frame.uncache());
        }
    }

    fn is_free(&self) -> bool {
        *self.free.lock().expect("no panic")
    }
}

/// Checks `run` with at most three preemptions: more take hours, and races that need them are
/// not known.
fn check(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

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
fn readers_see_their_own_folio_or_none_while_the_frame_changes_hands() {
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
fn late_holders_of_one_life_do_not_end_the_next() {
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
            assert!(world.read(2), "nobody else takes it away");
            world.truncate();
            join(threads);
            assert!(world.is_free());
        } else {
            join(threads);
        }
    });
}

#[test]
fn reclaim_and_truncation_do_not_both_free() {
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
                // SAFETY: uptodate, and referred to.
                world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                world.give(world.frame.put());
            }
        };
        let threads = [spawn(&world, wait), spawn(&world, wait)];
        world.fill(1);
        join(threads);
    });
}

#[test]
fn one_of_several_gets_the_lock_and_the_readahead_mark() {
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
fn a_writer_changes_nothing_that_a_device_reads() {
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
            world.give(world.frame.put());
        });
        let other = spawn(&world, |world| {
            world.frame.wait_unlocked(&world.bucket);
            world.frame.wait_writeback(&world.bucket);
        });
        assert!(world.frame.try_lock());
        world.frame.wait_writeback(&world.bucket);
        // SAFETY: locked, not under writeback, and nobody reads.
        world.memory.with_mut(|memory| unsafe { *memory = 2 });
        world.frame.unlock(false, &world.bucket);
        join([device, other]);
        world.give(world.frame.put());
    });
}

#[test]
fn a_writer_that_finds_a_folio_no_longer_lent_sees_the_reading_over() {
    check(|| {
        let world = with_folio();
        assert!(world.frame.try_get(1, PAGE).is_ok());
        world.frame.lend();
        let reader = spawn(&world, |world| {
            // SAFETY: lent.
            world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
            world.frame.take_back();
            world.give(world.frame.put());
        });
        if !world.frame.is_lent() {
            // SAFETY: not lent, and nobody else reads.
            world.memory.with_mut(|memory| unsafe { *memory = 2 });
        }
        join([reader]);
    });
}

/// A folio that an uncached read made, still locked and referred to.
fn with_folio_behind() -> Arc<World> {
    let world = World::new();
    assert!(world.insert(1));
    world.frame.set_dropbehind();
    world
}

#[test]
fn what_several_are_done_with_goes_once_and_with_the_last_of_them() {
    check(|| {
        let world = with_folio_behind();
        world.fill(1);
        assert!(!world.is_free(), "nobody is done with it");
        let threads = [
            spawn(&world, |world| {
                world.read_and(Frame::set_done);
            }),
            // Looks, and leaves it to others.
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
fn what_somebody_keeps_stays_unless_it_went_before() {
    check(|| {
        let world = with_folio_behind();
        world.fill(1);
        let kept = Arc::new(Mutex::new(false));
        let theirs = Arc::clone(&kept);
        let reader = spawn(&world, move |world| {
            *theirs.lock().expect("no panic") = world.read_and(Frame::keep);
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
fn what_is_done_with_before_it_is_filled_goes_after() {
    check(|| {
        let world = with_folio_behind();
        world.frame.set_done();
        let waiter = spawn(&world, |world| {
            if world.frame.try_get(1, PAGE) == Ok(()) {
                world.frame.wait_unlocked(&world.bucket);
                // SAFETY: unlocked as uptodate, and referred to.
                world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                world.give(world.frame.put());
            } else {
                panic!("nobody has filled it");
            }
        });
        // The waiter has to come first, so this holds a reference for it.
        world.frame.get_again();
        world.fill(1);
        join([waiter]);
        world.give(world.frame.put());
        assert!(world.is_free());
    });
}

#[test]
fn what_a_device_writes_goes_when_it_has_and_nobody_waits_for_it_any_more() {
    check(|| {
        let world = with_folio_behind();
        world.frame.set_done();
        // The set of dirty folios' reference, which becomes that of the writeback.
        world.frame.get_again();
        world.frame.set_dirty(true);
        world.frame.start_writeback();
        world.fill(1);
        let device = spawn(&world, |world| {
            // SAFETY: under writeback.
            world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
            world.frame.end_writeback(&world.bucket);
            world.give(world.frame.put());
        });
        let waiter = spawn(&world, |world| match world.frame.try_get(1, PAGE) {
            Ok(()) => {
                world.frame.wait_writeback(&world.bucket);
                world.give(world.frame.put());
            }
            Err(put) => world.give(put),
        });
        join([device, waiter]);
        assert!(world.is_free() && !*world.lock_slot());
    });
}

#[test]
fn reclaim_truncation_and_the_last_reader_do_not_free_twice() {
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
