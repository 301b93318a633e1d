//! Runs of other programs, which are bounded in time and killed with all their children.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::must;

/// The time after which a program is killed.
const TIME_MAX: Duration = Duration::from_secs(300);

/// The maximum time between two checks whether a program has ended.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The result of a program.
#[derive(Debug)]
pub struct Output {
    /// The exit status.
    pub status: ExitStatus,
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Returns both outputs as text, for messages.
    pub fn text(&self) -> String {
        let [out, err] = [&self.stdout, &self.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        format!("{out}{err}")
    }
}

/// A process that is killed, with its children, when this is dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = rustix::process::kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// Runs `command` to its end, in a process group of its own, without standard input.
pub fn output(command: &mut Command) -> Output {
    output_within(command, TIME_MAX)
}

/// Runs `command` like [`output`], but kills it and panics after `time_max`.
pub fn output_within(command: &mut Command, time_max: Duration) -> Output {
    output_watched(command, time_max, PAUSE_MAX, &mut |_| ())
}

/// Runs `command` like [`output_within`], and calls `watch` with its process repeatedly, with
/// pauses of at most `pause_max`.
pub fn output_watched(
    command: &mut Command,
    time_max: Duration,
    pause_max: Duration,
    watch: &mut dyn FnMut(Pid),
) -> Output {
    // Files need not be read while the program runs, unlike pipes.
    let [mut stdout, mut stderr] =
        [(), ()].map(|()| must(tempfile::tempfile(), "a temporary file"));
    let duplicate = |file: &File| Stdio::from(must(file.try_clone(), "a duplicate"));
    command.stdin(Stdio::null()).stdout(duplicate(&stdout)).stderr(duplicate(&stderr));
    let child = must(command.process_group(0).spawn(), format_args!("{command:?}"));
    let mut guard = Guard(child);
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    let status = loop {
        if let Some(status) = must(guard.0.try_wait(), "wait") {
            break status;
        }
        if start.elapsed() > time_max {
            drop(guard);
            let output = [&mut stdout, &mut stderr].map(contents);
            let text = String::from_utf8_lossy(&output.concat()).into_owned();
            panic!("{command:?} ran for more than {time_max:?}:\n{text}");
        }
        watch(Pid::from_child(&guard.0));
        std::thread::sleep(pause);
        pause = (pause * 2).min(pause_max);
    };
    Output { status, stdout: contents(&mut stdout), stderr: contents(&mut stderr) }
}

fn contents(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    must(file.rewind(), "rewind");
    must(file.read_to_end(&mut bytes), "read");
    bytes
}

/// Runs `command` and returns its standard output. Panics unless it succeeds.
#[track_caller]
pub fn run(command: &mut Command) -> Vec<u8> {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, output.text());
    output.stdout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_too_long_is_killed_with_its_children() {
        let start = Instant::now();
        let result = std::panic::catch_unwind(|| {
            output_within(
                Command::new("sh").args(["-c", "sleep 60 & wait"]),
                Duration::from_millis(50),
            )
        });
        assert!(result.is_err());
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn output_and_status_are_returned() {
        let output = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]));
        assert_eq!((output.stdout, output.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
        assert_eq!(output.status.code(), Some(3));
    }
}
