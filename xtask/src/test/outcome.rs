//! The outcome of a suite, read from its output and its exit status.

use std::fmt;
use std::io;
use std::ops::AddAssign;
use std::process::ExitStatus;
use std::time::Duration;

/// The end of a suite's process.
pub enum Ending {
    /// It has exited, or a signal has ended it.
    Exited(ExitStatus),
    /// It was killed since it took longer than this.
    Killed(Duration),
    /// It could not be started.
    NotStarted(io::Error),
}

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// The outcome of a suite.
pub struct Outcome {
    /// The suite's name.
    pub suite: String,
    /// The numbers of its tests.
    pub counts: Counts,
    /// The time that it took.
    pub time: Duration,
    /// The processor time that it took.
    pub processor_time: Duration,
    /// The names of failed tests.
    failures: Vec<String>,
    /// A failure of the suite other than those of its tests.
    problem: Option<String>,
}

impl Outcome {
    /// Parses the output of a suite.
    pub fn new(
        suite: String,
        (ending, processor_time): (Ending, Duration),
        text: &str,
        time: Duration,
    ) -> Self {
        let results: Vec<_> = text.lines().filter_map(counts).collect();
        let mut counts = Counts::default();
        for &result in &results {
            counts += result;
        }
        let failures: Vec<_> = text.lines().filter_map(failure).map(str::to_owned).collect();
        let problem = match ending {
            Ending::NotStarted(error) => Some(format!("it did not start: {error}")),
            Ending::Killed(time) => {
                Some(format!("killed after {:.0} min", time.as_secs_f64() / 60.0))
            }
            Ending::Exited(status) => exit_problem(status, &results, counts, &failures),
        };
        Self { suite, counts, time, processor_time, failures, problem }
    }

    /// Returns a line for each failure of the suite.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        let all = self.failures.iter().chain(&self.problem);
        all.map(|failure| format!("failed: {}: {failure}", self.suite))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { passed, failed, .. } = self.counts;
        let failed = match self.complaints().next() {
            Some(_) => format!(", {failed} FAILED"),
            None => String::new(),
        };
        let [time, processor_time] =
            [self.time, self.processor_time].map(|time| time.as_secs_f64());
        write!(
            f,
            "{}: {passed} passed{failed}, {time:.1} s, {processor_time:.1} s of processor time",
            self.suite
        )
    }
}

/// Returns the problem of a suite that has exited, if there is one beside its failed tests.
fn exit_problem(
    status: ExitStatus,
    results: &[Counts],
    counts: Counts,
    failures: &[String],
) -> Option<String> {
    if !status.success() && counts.failed == 0 {
        return Some(format!("{status}"));
    }
    if results.is_empty() {
        return Some("its output has no test result".to_owned());
    }
    if status.success() && counts.failed > 0 {
        return Some("tests failed, but it exited with success".to_owned());
    }
    if counts.failed > 0 && failures.is_empty() {
        return Some(format!("{status}"));
    }
    None
}

/// Parses a line such as `test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; …`.
fn counts(line: &str) -> Option<Counts> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(kind)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse() else { continue };
        match kind {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" => counts.ignored = number,
            _ => (),
        }
    }
    Some(counts)
}

/// Returns the test of a line such as `test name ... FAILED`.
fn failure(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    rest.trim_end().starts_with("FAILED").then(|| name.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_both_harnesses_are_parsed() {
        for line in [
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.53s",
            "test result: FAILED. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out",
        ] {
            assert_eq!(counts(line), Some(Counts { passed: 12, failed: 0, ignored: 3 }), "{line}");
        }
        assert_eq!(counts("test result of mine: 3 passed"), None);
        assert_eq!(counts("running 3 tests"), None);
    }

    #[test]
    fn names_of_failed_tests_are_parsed() {
        assert_eq!(failure("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failure("test a::b - should panic ... FAILED"), Some("a::b - should panic"));
        assert_eq!(failure("test padded        ... FAILED"), Some("padded"));
        assert_eq!(failure("test a::b ... ok"), None);
        assert_eq!(failure("failures:"), None);
    }
}
