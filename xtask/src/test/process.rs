//! The process of a suite: its output, its time limit, and its end. Not here: the outcome of its
//! tests.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::outcome::Ending;
use super::suite::Suite;

/// The interval of the messages about a suite that still runs.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Runs a suite with `arguments` for its program to its end, with all its output in the file
/// `output`. Kills it after `time_max`. Prints a message every minute while it runs. Returns also
/// the processor time that it took, with all of its descendants that were waited for.
pub fn run(
    suite: &Suite,
    arguments: &[String],
    output: &Path,
    time_max: Duration,
) -> (Ending, Duration) {
    let mut child = match start(suite.command(arguments), output) {
        Ok(child) => child,
        Err(error) => return (Ending::NotStarted(error), Duration::ZERO),
    };
    let mut processor_time = Duration::ZERO;
    let ending = wait(suite, &mut child, output, time_max, &mut processor_time);
    (ending, processor_time)
}

/// Waits for the end of a suite.
fn wait(
    suite: &Suite,
    child: &mut Child,
    output: &Path,
    time_max: Duration,
    processor_time: &mut Duration,
) -> Ending {
    let begin = Instant::now();
    let mut next_report = REPORT_EVERY;
    loop {
        if has_ended(child) {
            *processor_time = processor_time_of(child);
            match child.wait() {
                Ok(status) => return Ending::Exited(status),
                Err(error) => return Ending::NotStarted(error),
            }
        }
        let time = begin.elapsed();
        if time >= time_max {
            kill(suite, child);
            return Ending::Killed(time_max);
        }
        if time >= next_report {
            let minutes = next_report.as_secs() / 60;
            println!("== still running after {minutes} min: {} ({})", suite.name, output.display());
            next_report += REPORT_EVERY;
        }
        // Short for short suites, of which there are many.
        std::thread::sleep((time / 20).clamp(Duration::from_millis(1), Duration::from_millis(200)));
    }
}

/// Returns whether a process has ended. It is not waited for, so that /proc still has it.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(Pid::from_child(child)), options);
    matches!(ended, Ok(Some(_)))
}

/// Returns the processor time of a process, and of its descendants that were waited for.
fn processor_time_of(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let ticks = ticks(&stat).unwrap_or(0);
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Parses a line of /proc/PID/stat: the sum of `utime`, `stime`, `cutime` and `cstime`, in ticks.
fn ticks(stat: &str) -> Option<u64> {
    // The name before may have spaces and parentheses. The field after it is the third.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut numbers = fields.split(' ').skip(11).take(4).map(str::parse::<u64>);
    numbers.try_fold(0, |sum, number| Some(sum + number.ok()?))
}

fn start(mut command: Command, output: &Path) -> std::io::Result<Child> {
    let file = File::create(output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    command.spawn()
}

/// Kills a suite and all of its descendants, such as guests and servers. A process group would also
/// contain them, but then Ctrl-C in a terminal would not reach them.
fn kill(suite: &Suite, child: &mut Child) {
    // Stopped processes start no others while the descendants are listed.
    let mut killed = vec![child.id()];
    signal(suite, "-STOP", &killed);
    loop {
        let descendants = descendants(child.id());
        let new: Vec<_> = descendants.into_iter().filter(|id| !killed.contains(id)).collect();
        if new.is_empty() {
            break;
        }
        signal(suite, "-STOP", &new);
        killed.extend(new);
    }
    signal(suite, "-KILL", &killed);
    let _: std::io::Result<ExitStatus> = child.wait();
}

/// Sends a signal to processes with the rights of the suite.
fn signal(suite: &Suite, name: &str, processes: &[u32]) {
    let words = suite.runner.iter().cloned().chain(["kill".to_owned(), name.to_owned()]);
    let words: Vec<_> = words.chain(processes.iter().map(u32::to_string)).collect();
    // A process may have ended already, which is an error of `kill`.
    let _ = Command::new(&words[0]).args(&words[1..]).stderr(Stdio::null()).status();
}

/// Returns the ids of all descendants of a process.
fn descendants(process: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<_> = ids.filter_map(|id| Some((id, parent(id)?))).collect();
    let mut found = vec![process];
    let mut next = 0;
    while let Some(&of) = found.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == of).map(|(id, _)| *id);
        found.extend(children);
        next += 1;
    }
    found.split_off(1)
}

/// Returns the parent of a process, if the process exists.
fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain anything. The state and the parent follow it.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_process_and_its_children() {
        let stat = "7 (a name) with) S 1 7 7 0 -1 4194304 100 200 0 0 11 22 33 44 20 0 1 0 5 6 7";
        assert_eq!(ticks(stat), Some(11 + 22 + 33 + 44));
        assert_eq!(ticks("7 (short) S 1"), Some(0));
        assert_eq!(ticks(""), None);
    }
}
