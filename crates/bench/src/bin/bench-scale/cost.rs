//! Costs of work, in elapsed time and in processor time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The unit of the kernel's processor time of ended child processes, in seconds.
const CHILDREN_TICK: f64 = 0.01;

/// A cost, in seconds for each unit of work.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The elapsed time.
    pub wall: f64,
    /// The processor time of this program, its threads, and its child processes.
    pub cpu: f64,
}

/// The rows of a series at one size, each with the lowest cost of all rounds.
#[derive(Default, Debug)]
pub struct Costs(pub Vec<(String, Cost)>);

impl Costs {
    /// Measures `work`, which consists of `units` units, and records the cost of one unit for
    /// `row`.
    pub fn measure<R>(&mut self, row: &str, units: u64, work: impl FnOnce() -> R) -> R {
        let (begin, cpu_before) = (Instant::now(), cpu_seconds());
        let result = work();
        let wall = begin.elapsed().as_secs_f64() / units as f64;
        let cpu = (cpu_seconds() - cpu_before) / units as f64;
        match self.0.iter_mut().find(|(name, _)| name == row) {
            Some((_, cost)) => {
                *cost = Cost { wall: cost.wall.min(wall), cpu: cost.cpu.min(cpu) };
            }
            None => self.0.push((row.to_owned(), Cost { wall, cpu })),
        }
        result
    }
}

fn cpu_seconds() -> f64 {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own = Duration::new(own.tv_sec as u64, own.tv_nsec as u32).as_secs_f64();
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    // The program's name, in parentheses, may contain spaces. The other fields do not.
    let fields = stat.rsplit_once(')').expect("a name").1;
    let ticks = fields.split_whitespace().skip(13).take(2);
    let ticks: f64 = ticks.map(|field| field.parse::<f64>().expect("a number")).sum();
    own + ticks * CHILDREN_TICK
}
