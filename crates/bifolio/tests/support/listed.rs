//! Output of commands, and the memory that they take.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use super::bifolio;

/// The output of a command.
#[derive(Debug, Default)]
pub struct Listed {
    /// The number of lines.
    pub lines: usize,
    /// The length of the longest line.
    pub longest: usize,
    /// The maximum memory in use, in bytes.
    pub memory: u64,
    /// The processor time.
    pub time: Duration,
    /// Standard error.
    pub errors: String,
}

/// Runs a command that must succeed on a target, with a small cache.
#[track_caller]
pub fn list(target: &str, arguments: &[&str]) -> Listed {
    let mut command = bifolio();
    command.args(arguments).args(["--cache-size", "8M"]).arg(target);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
    let mut listed = Listed::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).unwrap() > 0 {
        listed.lines += 1;
        listed.longest = listed.longest.max(line.len());
        line.clear();
        if listed.lines % 256 == 0 {
            listed.memory = memory(child.id()).unwrap_or(listed.memory);
            listed.time = processor_time(child.id()).unwrap_or(listed.time);
        }
    }
    child.stderr.take().unwrap().read_to_string(&mut listed.errors).unwrap();
    assert!(child.wait().unwrap().success(), "{arguments:?}: {}", listed.errors);
    assert!(listed.memory > 0, "{arguments:?}: the memory was never seen");
    listed
}

/// Returns the maximum memory of a process until now, in bytes. `None` if it has ended.
pub fn memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Returns the processor time of a process until now. `None` if it has ended.
fn processor_time(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // After the name, which may contain spaces; in ticks of 10 ms in the program and in the kernel.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks()? + ticks()?) * 10))
}
