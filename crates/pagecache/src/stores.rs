//! The choice between stores around the processor's caches and through them. Not here: the stores.
//!
//! Which of them copy faster depends on the processor, on its memory and on what else it does. So
//! the first copies of each [`PERIOD`] try both, one after the other, and the others use those that
//! were faster.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The bytes for which each kind of stores is tried.
const TRIAL: u64 = 64 << 20;
/// The bytes at the beginning of a trial that are not measured: the processor's caches can take
/// them, and still have to write what the copies before have left.
const UNMEASURED: u64 = TRIAL / 2;
/// The bytes from the beginning of one trial of both kinds to that of the next.
const PERIOD: u64 = 2 << 30;

/// The stores of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stores {
    /// They bypass the caches.
    Around,
    /// They read lines to the caches, and change them there.
    Through,
}

/// What the copies of a process have shown.
pub(crate) struct Choice {
    /// All bytes of copies that have begun.
    copied: AtomicU64,
    /// Whether stores through the caches were faster.
    through: AtomicBool,
    /// The speeds of measured copies, around the caches and through them.
    trials: Mutex<[Vec<u64>; 2]>,
}

impl Choice {
    pub(crate) const fn new() -> Self {
        Self {
            copied: AtomicU64::new(0),
            through: AtomicBool::new(false),
            trials: Mutex::new([const { Vec::new() }; 2]),
        }
    }

    /// Copies `length` bytes by `copy`, which is told what stores to use. Measures it in a trial.
    pub(crate) fn measured(&self, length: usize, copy: impl FnOnce(Stores)) {
        let length = length as u64;
        let at = self.copied.fetch_add(length, Ordering::Relaxed) % PERIOD;
        let stores = match at / TRIAL {
            0 => Stores::Around,
            1 => Stores::Through,
            _ => return copy(self.faster()),
        };
        if at % TRIAL < UNMEASURED {
            return copy(stores);
        }
        let begin = Instant::now();
        copy(stores);
        self.note(stores, length, begin.elapsed());
        if at + length >= 2 * TRIAL {
            self.choose();
        }
    }

    fn faster(&self) -> Stores {
        match self.through.load(Ordering::Relaxed) {
            true => Stores::Through,
            false => Stores::Around,
        }
    }

    /// Records the speed of a copy.
    fn note(&self, stores: Stores, length: u64, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let mut trials = self.trials.lock();
        trials[stores as usize].push((length << 10) / nanoseconds);
    }

    /// Ends the trial of both kinds.
    fn choose(&self) {
        let trials = std::mem::take(&mut *self.trials.lock());
        if let [Some(around), Some(through)] = trials.map(speed) {
            self.through.store(through > around, Ordering::Relaxed);
        }
    }
}

/// Returns the speed that a quarter of the copies exceeds: others had to wait for new memory of the
/// process, or for other threads. `None` without copies.
fn speed(mut copies: Vec<u64>) -> Option<u64> {
    let at = copies.len() * 3 / 4;
    (!copies.is_empty()).then(|| *copies.select_nth_unstable(at).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a copy.
    const LENGTH: u64 = 1 << 20;

    /// Notes the copies of a trial, which take `around` and `through`, and chooses.
    fn try_both(choice: &Choice, around: &[u64], through: &[u64]) -> Stores {
        for (stores, times) in [(Stores::Around, around), (Stores::Through, through)] {
            for time in times {
                choice.note(stores, LENGTH, Duration::from_micros(*time));
            }
        }
        choice.choose();
        choice.faster()
    }

    #[test]
    fn the_faster_stores_are_chosen_anew_after_each_trial() {
        let choice = Choice::new();
        assert_eq!(choice.faster(), Stores::Around);
        assert_eq!(try_both(&choice, &[200; 8], &[130; 8]), Stores::Through);
        assert_eq!(try_both(&choice, &[60; 8], &[120; 8]), Stores::Around);
    }

    #[test]
    fn copies_that_were_interrupted_do_not_decide() {
        let choice = Choice::new();
        let interrupted = [130, 4000, 130, 9000, 130, 300, 300, 300];
        assert_eq!(try_both(&choice, &[200; 8], &interrupted), Stores::Through);
    }

    #[test]
    fn without_copies_of_both_kinds_the_choice_stays() {
        let choice = Choice::new();
        assert_eq!(try_both(&choice, &[200; 8], &[130; 8]), Stores::Through);
        assert_eq!(try_both(&choice, &[1; 8], &[]), Stores::Through);
        assert_eq!(try_both(&choice, &[], &[]), Stores::Through);
    }

    #[test]
    fn each_period_begins_with_a_trial_of_both_kinds() {
        let choice = Choice::new();
        let mut used = Vec::new();
        for _ in 0..(PERIOD + TRIAL) / LENGTH {
            choice.measured(LENGTH as usize, |stores| used.push(stores));
        }
        let trial = (TRIAL / LENGTH) as usize;
        let period = (PERIOD / LENGTH) as usize;
        let all_are = |range: &[Stores], stores| range.iter().all(|used| *used == stores);
        assert!(all_are(&used[..trial], Stores::Around));
        assert!(all_are(&used[trial..2 * trial], Stores::Through));
        assert!(used[2 * trial..period].windows(2).all(|pair| pair[0] == pair[1]));
        assert!(all_are(&used[period..], Stores::Around));
        assert!(choice.trials.lock()[1].is_empty(), "the trial has ended");
    }
}
