//! Claimed clusters of one group: runs of them, which are few in most groups of a large volume, or
//! one bit for each.

use std::ops::Range;

const WORD_BITS: u32 = u64::BITS;
/// The maximum number of runs. A run takes 8 bytes, and the bits of a usual group 4 KiB.
const RUNS_MAX: usize = 64;

pub(super) enum GroupClaims {
    /// Runs in ascending order, with gaps between them.
    Runs(Vec<Range<u32>>),
    Words(Box<[u64]>),
}

impl Default for GroupClaims {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl GroupClaims {
    /// Claims clusters, which are not empty, of a group of `length` clusters. If some of them were
    /// claimed already, returns the first of these, and their number.
    pub(super) fn claim(&mut self, clusters: Range<u32>, length: u32) -> Option<(u32, u32)> {
        match self {
            Self::Runs(runs) => {
                let shared = add_run(runs, clusters);
                if runs.len() > RUNS_MAX {
                    let mut words = vec![0; length.div_ceil(WORD_BITS) as usize];
                    self.copy_to(&mut words);
                    *self = Self::Words(words.into());
                }
                shared
            }
            Self::Words(words) => add_bits(words, clusters),
        }
    }

    /// Sets the bits of the claimed clusters in `words`.
    pub(super) fn copy_to(&self, words: &mut [u64]) {
        match self {
            Self::Runs(runs) => {
                for run in runs {
                    add_bits(words, run.clone());
                }
            }
            Self::Words(own) => own.iter().zip(words).for_each(|(own, word)| *word |= own),
        }
    }

    /// Returns the number of claimed clusters.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Runs(runs) => runs.iter().map(|run| u64::from(run.end - run.start)).sum(),
            Self::Words(words) => words.iter().map(|word| u64::from(word.count_ones())).sum(),
        }
    }
}

/// Adds a run, joined with those that it touches. Returns the first cluster that it shares with
/// them, and the number of shared clusters.
fn add_run(runs: &mut Vec<Range<u32>>, new: Range<u32>) -> Option<(u32, u32)> {
    let first = runs.partition_point(|run| run.end < new.start);
    let mut joined = new.clone();
    let mut end = first;
    let mut shared = None;
    while let Some(run) = runs.get(end).filter(|run| run.start <= new.end) {
        let (from, to) = (run.start.max(new.start), run.end.min(new.end));
        if from < to {
            let (start, count) = shared.unwrap_or((from, 0));
            shared = Some((start, count + (to - from)));
        }
        joined = joined.start.min(run.start)..joined.end.max(run.end);
        end += 1;
    }
    runs.splice(first..end, [joined]);
    shared
}

/// Sets bits. Returns the first of them that was set already, and the number of these.
fn add_bits(words: &mut [u64], bits: Range<u32>) -> Option<(u32, u32)> {
    let mut shared = None;
    for index in bits.start / WORD_BITS..bits.end.div_ceil(WORD_BITS) {
        let Some(word) = words.get_mut(index as usize) else { break };
        let low = bits.start.saturating_sub(index * WORD_BITS);
        let high = (bits.end - index * WORD_BITS).min(WORD_BITS);
        let mask = (u64::MAX >> (WORD_BITS - (high - low))) << low;
        let before = *word & mask;
        *word |= mask;
        if before != 0 {
            let (start, count) = shared.unwrap_or((index * WORD_BITS + before.trailing_zeros(), 0));
            shared = Some((start, count + before.count_ones()));
        }
    }
    shared
}
