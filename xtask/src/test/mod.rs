//! Test runner that runs several test programs at a time: `cargo xtask test`. Not here: what the tests need
//! (`scripts/test` installs it).
//!
//! `cargo test` runs one program after the other, and many of them wait for guests, mounts and timers most of the
//! time.

mod outcome;
mod suite;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outcome::{Counts, Outcome};
use suite::Suite;

/// How many of the slowest suites the summary names.
const SLOWEST: usize = 12;

/// Parts of the command line: how many suites run at a time, the arguments for cargo, and those for the test programs.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    at_a_time: usize,
    cargo: Vec<String>,
    programs: Vec<String>,
}

impl Arguments {
    /// Parses `[--at-a-time N] [CARGO'S]... [-- [PROGRAMS']...]`.
    fn parse(given: Vec<String>) -> Result<Self, String> {
        let mut given = given.into_iter().peekable();
        let mut at_a_time = default_at_a_time();
        if given.next_if(|argument| argument == "--at-a-time").is_some() {
            let number =
                given.next().and_then(|text| text.parse().ok()).filter(|&number| number > 0);
            at_a_time = number.ok_or("--at-a-time needs a number above 0")?;
        }
        let mut cargo: Vec<_> = given.collect();
        let separator = cargo.iter().position(|argument| argument == "--");
        let mut programs = separator.map_or(Vec::new(), |at| cargo.split_off(at));
        programs.drain(..programs.len().min(1));
        Ok(Self { at_a_time, cargo, programs })
    }

    /// Whether cargo builds chosen targets only, which leaves the tests in documentation out.
    fn chooses_targets(&self) -> bool {
        const CHOICES: [&str; 9] =
            ["lib", "bin", "bins", "test", "tests", "example", "examples", "bench", "all-targets"];
        let chooses = |argument: &String| {
            let name =
                argument.strip_prefix("--").map(|name| name.split('=').next().unwrap_or(name));
            name.is_some_and(|name| CHOICES.contains(&name))
        };
        self.cargo.iter().any(chooses)
    }
}

/// Returns one more than there are processors: suites that wait leave theirs to others.
fn default_at_a_time() -> usize {
    std::thread::available_parallelism().map_or(2, |processors| processors.get()) + 1
}

/// Builds and runs the tests, and returns what failed.
pub fn complaints(root: &Path, given: Vec<String>) -> Vec<String> {
    let arguments = match Arguments::parse(given) {
        Ok(arguments) => arguments,
        Err(complaint) => return vec![complaint],
    };
    let begin = Instant::now();
    let mut suites = match suite::build(root, &arguments.cargo) {
        Ok(suites) => suites,
        Err(complaint) => return vec![complaint],
    };
    if !arguments.chooses_targets() {
        suites.push(Suite::documentation(root, &arguments.cargo));
    }
    suite::put_longest_first(&mut suites);
    eprintln!("== {} suites built in {:.0} s", suites.len(), begin.elapsed().as_secs_f64());
    let (alone, beside): (Vec<_>, Vec<_>) = suites.into_iter().partition(Suite::runs_alone);
    let outputs = root.join("target/test-output");
    if let Err(error) = std::fs::create_dir_all(&outputs) {
        return vec![format!("{}: {error}", outputs.display())];
    }
    let run = Run {
        outputs,
        programs: arguments.programs,
        total: alone.len() + beside.len(),
        ..Run::default()
    };
    run.all(&beside, arguments.at_a_time);
    run.all(&alone, 1);
    run.conclude(begin.elapsed())
}

/// A run of suites.
#[derive(Default)]
struct Run {
    /// The folder for what each suite writes.
    outputs: PathBuf,
    /// Arguments of each program.
    programs: Vec<String>,
    /// Suites of the whole run.
    total: usize,
    /// Suites that have begun.
    begun: AtomicUsize,
    /// Suites that have ended.
    outcomes: Mutex<Vec<Outcome>>,
}

impl Run {
    /// Runs `suites`, `at_a_time` of them at a time, in their order.
    fn all(&self, suites: &[Suite], at_a_time: usize) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..at_a_time.min(suites.len()) {
                scope.spawn(|| {
                    while let Some(suite) = suites.get(next.fetch_add(1, Ordering::Relaxed)) {
                        self.one(suite);
                    }
                });
            }
        });
    }

    /// Runs a suite to its end, and then prints what it wrote.
    fn one(&self, suite: &Suite) {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let output = self.outputs.join(format!("{number}.txt"));
        let begin = Instant::now();
        let status = run_into(suite.command(&self.programs), &output);
        let time = begin.elapsed();
        let text = std::fs::read(&output).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let _ = std::fs::remove_file(&output);
        let outcome = Outcome::new(suite.name.clone(), status, &text, time);
        let mut outcomes = self.outcomes.lock().expect("no thread panics while it prints");
        outcomes.push(outcome);
        let outcome = &outcomes[outcomes.len() - 1];
        let (done, total) = (outcomes.len(), self.total);
        println!("== {done} of {total}: {outcome}\n{}\n", text.trim_end());
    }

    /// Prints the sums, and returns what failed.
    fn conclude(self, time: Duration) -> Vec<String> {
        let mut outcomes = self.outcomes.into_inner().expect("no thread panics while it prints");
        outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.time));
        println!("== the slowest suites:");
        for outcome in outcomes.iter().take(SLOWEST) {
            println!("   {outcome}");
        }
        let mut sum = Counts::default();
        for outcome in &outcomes {
            sum += outcome.counts;
        }
        let Counts { passed, failed, ignored } = sum;
        let suites = outcomes.len();
        println!(
            "== {passed} tests passed, {failed} failed, {ignored} ignored, in {suites} suites and {:.0} s",
            time.as_secs_f64(),
        );
        outcomes.iter().flat_map(Outcome::complaints).collect()
    }
}

/// Runs a command to its end, with everything that it writes going to `output`.
fn run_into(mut command: Command, output: &Path) -> std::io::Result<ExitStatus> {
    let file = File::create(output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    command.status()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn arguments_are_cargos_up_to_the_separator() {
        let arguments = parse("--at-a-time 5 --release --test crash -- fsx --nocapture").unwrap();
        assert_eq!(arguments.at_a_time, 5);
        assert_eq!(arguments.cargo, ["--release", "--test", "crash"]);
        assert_eq!(arguments.programs, ["fsx", "--nocapture"]);
        assert!(arguments.chooses_targets());
    }

    #[test]
    fn without_arguments_everything_is_tested() {
        let arguments = parse("").unwrap();
        assert!(arguments.at_a_time > 1);
        assert!(arguments.cargo.is_empty() && arguments.programs.is_empty());
        assert!(!arguments.chooses_targets());
        assert!(!parse("--package bifolio-base").unwrap().chooses_targets());
        assert!(parse("--package bifolio-base --lib").unwrap().chooses_targets());
        assert!(parse("--test=crash").unwrap().chooses_targets());
    }

    #[test]
    fn no_suites_at_a_time_are_refused() {
        for line in ["--at-a-time", "--at-a-time 0", "--at-a-time many"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    fn shell(name: &str, script: &str) -> Suite {
        Suite {
            name: name.to_owned(),
            program: "sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            folder: std::env::temp_dir(),
            variables: Vec::new(),
        }
    }

    /// Runs scripts as suites, two at a time, and returns the complaints.
    fn complaints_of(suites: &[Suite]) -> Vec<String> {
        let name = format!("bifolio-xtask-test-{}-{}", std::process::id(), suites[0].name);
        let outputs = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&outputs).unwrap();
        let run = Run { outputs: outputs.clone(), total: suites.len(), ..Run::default() };
        run.all(suites, 2);
        let complaints = run.conclude(Duration::ZERO);
        std::fs::remove_dir(&outputs).unwrap();
        complaints
    }

    const OK: &str = "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'";

    #[test]
    fn two_suites_run_at_a_time() {
        // Each waits for the other, for 20 s.
        let folder =
            std::env::temp_dir().join(format!("bifolio-xtask-meeting-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let meet = |own: &str, other: &str| {
            let path = folder.display();
            let script = format!(
                "touch {path}/{own}; for i in $(seq 200); do [ ! -e {path}/{other} ] || {{ {OK}; exit; }}; sleep 0.1; done; exit 1"
            );
            shell(own, &script)
        };
        let complaints = complaints_of(&[meet("left", "right"), meet("right", "left")]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(complaints, Vec::<String>::new());
    }

    #[test]
    fn what_failed_is_named_with_its_suite() {
        let complaints = complaints_of(&[
            shell("good", OK),
            shell(
                "bad",
                "printf 'test one ... ok\\ntest two ... FAILED\\ntest result: FAILED. 1 passed; 1 failed; 0 ignored;\\n'; exit 101",
            ),
            shell("killed", &format!("{OK}; kill -9 $$")),
            shell("silent", "true"),
            Suite { program: "/no/such/program".into(), ..shell("missing", "") },
        ]);
        let mut complaints = complaints;
        complaints.sort();
        let begins =
            ["failed: bad: two", "failed: killed: ", "failed: missing: ", "failed: silent: "];
        assert_eq!(complaints.len(), begins.len(), "{complaints:?}");
        for (complaint, begin) in complaints.iter().zip(begins) {
            assert!(complaint.starts_with(begin), "{complaint}");
        }
    }
}
