//! The process of a suite: its output, its time limit, and its end. Not here: the outcome of its tests.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::outcome::Ending;
use super::suite::Suite;

/// The interval of the messages about a suite that still runs.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Runs a suite with `arguments` for its program to its end, with all its output in the file `output`. Kills it after
/// `time_max`. Prints a message every minute while it runs.
pub fn run(suite: &Suite, arguments: &[String], output: &Path, time_max: Duration) -> Ending {
    let mut child = match start(suite.command(arguments), output) {
        Ok(child) => child,
        Err(error) => return Ending::NotStarted(error),
    };
    let begin = Instant::now();
    let mut next_report = REPORT_EVERY;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ending::Exited(status),
            Ok(None) => {}
            Err(error) => {
                kill(suite, &mut child);
                return Ending::NotStarted(error);
            }
        }
        let time = begin.elapsed();
        if time >= time_max {
            kill(suite, &mut child);
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

fn start(mut command: Command, output: &Path) -> std::io::Result<Child> {
    let file = File::create(output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    command.spawn()
}

/// Kills a suite and all of its descendants, such as guests and servers. A process group would also contain them, but
/// then Ctrl-C in a terminal would not reach them.
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
