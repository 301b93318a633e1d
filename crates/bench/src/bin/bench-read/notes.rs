//! Comparison of the rows with the aims of the read path.

use std::fmt;

use bench::GIB;

use crate::case::{Case, Content, State};
use crate::memory::Memory;
use crate::table::{KERNEL, MEMORY, ORDER_0, OURS};

/// The aim for one thread, in calls of 4 KiB per second.
const CALLS_4K: f64 = 5e6;
/// The aim for longer calls, as a fraction of memcpy's speed.
const SHARE_OF_MEMORY: f64 = 0.9;

/// The rows that miss an aim.
#[derive(Default)]
pub struct Notes {
    missed: Vec<String>,
}

impl Notes {
    /// Adds the aims that `case` misses.
    pub fn judge(&mut self, case: &Case, medians: &[f64]) {
        let ours = medians[OURS];
        let mut want = |name: &str, aim: f64| {
            if ours < aim {
                let (row, ours, aim) = (case.row_name(), ours / GIB, aim / GIB);
                self.missed.push(format!("{row}: {ours:.2} GiB/s, {name}: {aim:.2}"));
            }
        };
        want("the kernel", medians[KERNEL]);
        match (case.state, case.content, case.length >> 10) {
            (State::Cached, _, 4) if case.threads == 1 => want("5 M calls/s", CALLS_4K * 4096.0),
            (State::Cached, _, 4) => {}
            (State::Cached, _, _) => want("0.9 of memcpy", SHARE_OF_MEMORY * medians[MEMORY]),
            (State::Full, Content::Hole, 64) => want("order 0 plus 60%", 1.6 * medians[ORDER_0]),
            (State::Full, Content::Hole, 1024) => want("order 0 plus 67%", 1.67 * medians[ORDER_0]),
            _ => {}
        }
    }

    /// Adds lines about rows that miss an aim.
    pub fn add(&mut self, missed: Vec<String>) {
        self.missed.extend(missed);
    }

    /// Adds the memory of the process, if it exceeds the limit.
    pub fn add_memory(&mut self, memory: &Memory) {
        if !memory.is_bounded() {
            self.missed.push(memory.to_string());
        }
    }
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.missed.is_empty() {
            return write!(f, "all aims were reached");
        }
        write!(f, "missed aims (explained in crates/bench/README.md):")?;
        self.missed.iter().try_for_each(|row| write!(f, "\n  {row}"))
    }
}
