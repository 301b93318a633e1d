//! Tests of `waiting.rs`, in a file of their own since tests of other crates include that one.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::waiting::{Waiter, wait_for_wakes, wait_until};

#[test]
fn a_thread_that_waits_is_told_from_one_that_computes() {
    let waiter = Waiter::default();
    let (computes, both) = (AtomicBool::new(true), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            waiter.run(|| {
                while computes.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                both.wait();
            });
        });
        wait_until("the thread begins", || waiter.thread.get().is_some());
        for _ in 0..50 {
            assert!(!waiter.is_asleep());
        }
        computes.store(false, Ordering::Relaxed);
        let it_waits = waiter.comes_to_wait();
        both.wait();
        assert!(it_waits);
    });
    assert!(waiter.has_ended());
}

#[test]
fn work_that_ends_without_waiting_is_told() {
    let waiter = Waiter::default();
    waiter.run(|| ());
    assert!(!waiter.comes_to_wait());
}

#[test]
fn rounds_of_a_thread_that_sleeps_are_counted() {
    let (rounds, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sleeper = std::thread::Builder::new().name("sleeper".to_owned());
        let rounds_of_sleeper = || {
            while !over.load(Ordering::Relaxed) {
                rounds.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        };
        sleeper.spawn_scoped(scope, rounds_of_sleeper).expect("a thread");
        wait_until("the first round", || rounds.load(Ordering::Relaxed) > 0);
        let before = rounds.load(Ordering::Relaxed);
        wait_for_wakes("sleep", 3);
        over.store(true, Ordering::Relaxed);
        assert!(rounds.load(Ordering::Relaxed) >= before + 2);
    });
}
