//! Tests of `waiting.rs`, in a separate file since tests of other crates include `waiting.rs`.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::waiting::{Waiter, wait_for_wakes, wait_until};

#[test]
fn a_waiting_thread_is_distinguished_from_a_computing_one() {
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
        let waits = waiter.begins_to_wait();
        both.wait();
        assert!(waits);
    });
    assert!(waiter.has_ended());
}

#[test]
fn work_that_ends_without_waiting_does_not_come_to_wait() {
    let waiter = Waiter::default();
    waiter.run(|| ());
    assert!(!waiter.begins_to_wait());
}

#[test]
fn wakes_of_a_sleeping_thread_are_counted() {
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
