//! Test runner that runs several test programs at a time: `cargo xtask test`. Not here: the
//! installation of programs that the tests need (`scripts/test`).
//!
//! `cargo test` runs one program after the other, and many of them wait for guests, mounts and
//! timers most of the time.

mod outcome;
mod process;
mod suite;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outcome::{Counts, Outcome};
use suite::Suite;

/// The number of slow suites in the summary.
const SLOWEST: usize = 12;

/// The default time after which a suite is killed. The slowest one takes a few minutes.
const TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// The command line.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    /// The number of suites that run at a time.
    at_a_time: usize,
    /// The time after which a suite is killed.
    time_max: Duration,
    /// The arguments for cargo.
    cargo: Vec<String>,
    /// The arguments for the test programs.
    programs: Vec<String>,
}

impl Arguments {
    /// Parses `[--at-a-time N] [--minutes-max N] [FOR CARGO]... [-- [FOR PROGRAMS]...]`.
    fn parse(given: Vec<String>) -> Result<Self, String> {
        let mut given = given.into_iter().peekable();
        let mut at_a_time = default_at_a_time();
        let mut time_max = TIME_MAX;
        loop {
            if given.next_if(|argument| argument == "--at-a-time").is_some() {
                at_a_time = parse_number("--at-a-time", given.next())?;
            } else if given.next_if(|argument| argument == "--minutes-max").is_some() {
                let minutes = parse_number("--minutes-max", given.next())?;
                time_max = Duration::from_secs(60 * minutes as u64);
            } else {
                break;
            }
        }
        let mut cargo: Vec<_> = given.collect();
        let separator = cargo.iter().position(|argument| argument == "--");
        let mut programs = separator.map_or(Vec::new(), |at| cargo.split_off(at));
        programs.drain(..programs.len().min(1));
        if suite::chooses_packages(&cargo) && suite::chooses_workspace(&cargo) {
            return Err("--package has no effect with --workspace: use one of them".to_owned());
        }
        Ok(Self { at_a_time, time_max, cargo, programs })
    }

    /// Returns whether the arguments choose targets. Then cargo does not run the tests in
    /// documentation.
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

/// Parses the value of an option: a number above 0.
fn parse_number(option: &str, value: Option<String>) -> Result<usize, String> {
    let number = value.and_then(|text| text.parse().ok()).filter(|&number| number > 0);
    number.ok_or_else(|| format!("{option} needs a number above 0"))
}

/// Returns the number of processors plus one, since suites wait a part of their time.
fn default_at_a_time() -> usize {
    std::thread::available_parallelism().map_or(2, |processors| processors.get()) + 1
}

/// Builds and runs the tests, and returns a line for each failure.
pub fn complaints(root: &Path, given: Vec<String>) -> Vec<String> {
    let is_everything = given.is_empty();
    let arguments = match Arguments::parse(given) {
        Ok(arguments) => arguments,
        Err(complaint) => return vec![complaint],
    };
    let begin = Instant::now();
    let mut suites = match suite::build(root, &arguments.cargo) {
        Ok(suites) => suites,
        Err(complaint) => return vec![complaint],
    };
    // Cargo refuses to test the documentation of packages without a library.
    let has_library = suites.iter().any(|suite| suite.name.ends_with("src/lib.rs"));
    if has_library && !arguments.chooses_targets() {
        suites.push(Suite::documentation(root, &arguments.cargo));
    }
    if is_everything {
        suites.push(Suite::models(root));
    }
    suite::put_longest_first(&mut suites);
    eprintln!("== {} suites built in {:.0} s", suites.len(), begin.elapsed().as_secs_f64());
    let (alone, others): (Vec<_>, Vec<_>) = suites.into_iter().partition(Suite::runs_alone);
    let outputs = root.join("target/test-output");
    // Outputs of earlier runs would be confusing.
    let _ = std::fs::remove_dir_all(&outputs);
    if let Err(error) = std::fs::create_dir_all(&outputs) {
        return vec![format!("{}: {error}", outputs.display())];
    }
    let total = alone.len() + others.len();
    let run = Run::new(outputs, arguments.programs, arguments.time_max, total);
    run.all(&others, arguments.at_a_time);
    run.all(&alone, 1);
    run.conclude(begin.elapsed())
}

/// A run of suites.
struct Run {
    /// The folder for the outputs of the suites.
    outputs: PathBuf,
    /// The arguments of each program.
    programs: Vec<String>,
    /// The time after which a suite is killed.
    time_max: Duration,
    /// The number of suites.
    total: usize,
    /// The number of suites that have begun.
    begun: AtomicUsize,
    /// The outcomes of suites that have ended.
    outcomes: Mutex<Vec<Outcome>>,
}

impl Run {
    fn new(outputs: PathBuf, programs: Vec<String>, time_max: Duration, total: usize) -> Self {
        let begun = AtomicUsize::new(0);
        Self { outputs, programs, time_max, total, begun, outcomes: Mutex::default() }
    }

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

    /// Runs a suite to its end, and then prints its output. A suite that takes too long is killed.
    fn one(&self, suite: &Suite) {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.total;
        println!("== {number} of {total} begins: {}", suite.name);
        let output = self.outputs.join(suite.output_name());
        let begin = Instant::now();
        let ending = process::run(suite, &self.programs, &output, self.time_max);
        let time = begin.elapsed();
        let text = std::fs::read(&output).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let outcome = Outcome::new(suite.name.clone(), ending, &text, time);
        let mut outcomes = self.outcomes.lock().expect("no thread panics while it prints");
        outcomes.push(outcome);
        let outcome = &outcomes[outcomes.len() - 1];
        let done = outcomes.len();
        println!("== {done} of {total} ended: {outcome}\n{}\n", text.trim_end());
    }

    /// Prints the summary, and returns a line for each failure.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn arguments_before_the_separator_are_for_cargo() {
        let line = "--at-a-time 5 --minutes-max 7 --release --test crash -- fsx --nocapture";
        let arguments = parse(line).unwrap();
        assert_eq!(arguments.at_a_time, 5);
        assert_eq!(arguments.time_max, Duration::from_secs(7 * 60));
        assert_eq!(arguments.cargo, ["--release", "--test", "crash"]);
        assert_eq!(arguments.programs, ["fsx", "--nocapture"]);
        assert!(arguments.chooses_targets());
    }

    #[test]
    fn without_arguments_all_targets_are_tested() {
        let arguments = parse("").unwrap();
        assert!(arguments.at_a_time > 1);
        assert!(arguments.cargo.is_empty() && arguments.programs.is_empty());
        assert!(!arguments.chooses_targets());
        assert!(!parse("--package bifolio-base").unwrap().chooses_targets());
        assert!(parse("--package bifolio-base --lib").unwrap().chooses_targets());
        assert!(parse("--test=crash").unwrap().chooses_targets());
    }

    #[test]
    fn options_without_a_number_above_0_are_refused() {
        for option in ["--at-a-time", "--minutes-max"] {
            for value in ["", "0", "many"] {
                assert!(parse(&format!("{option} {value}")).is_err(), "{option} {value}");
            }
        }
    }

    #[test]
    fn a_package_with_the_workspace_is_refused() {
        for line in ["--workspace -p xtask", "--package=xtask --all", "--package xtask --workspace"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in ["--workspace", "-p xtask", "-p xtask -- --workspace"] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }

    fn shell(name: &str, script: &str) -> Suite {
        Suite {
            name: name.to_owned(),
            program: "sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            folder: std::env::temp_dir(),
            variables: Vec::new(),
            runner: Vec::new(),
        }
    }

    /// Runs scripts as suites, two at a time, and returns the complaints.
    fn complaints_of(suites: &[Suite], time_max: Duration) -> Vec<String> {
        let name = format!("bifolio-xtask-test-{}-{}", std::process::id(), suites[0].name);
        let outputs = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&outputs).unwrap();
        let run = Run::new(outputs.clone(), Vec::new(), time_max, suites.len());
        run.all(suites, 2);
        let complaints = run.conclude(Duration::ZERO);
        for suite in suites {
            assert!(outputs.join(suite.output_name()).exists(), "{}", suite.name);
        }
        std::fs::remove_dir_all(&outputs).unwrap();
        complaints
    }

    const OK: &str = "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'";

    #[test]
    fn two_suites_run_at_a_time() {
        // Each suite waits for the other one, for 20 s.
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
        let suites = [meet("left", "right"), meet("right", "left")];
        let complaints = complaints_of(&suites, TIME_MAX);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(complaints, Vec::<String>::new());
    }

    #[test]
    fn failures_are_listed_with_their_suites() {
        let suites = [
            shell("good", OK),
            shell(
                "bad",
                "printf 'test one ... ok\\ntest two ... FAILED\\ntest result: FAILED. 1 passed; 1 failed; 0 ignored;\\n'; exit 101",
            ),
            shell("killed", &format!("{OK}; kill -9 $$")),
            shell("silent", "true"),
            Suite { program: "/no/such/program".into(), ..shell("missing", "") },
        ];
        let mut complaints = complaints_of(&suites, TIME_MAX);
        complaints.sort();
        let begins =
            ["failed: bad: two", "failed: killed: ", "failed: missing: ", "failed: silent: "];
        assert_eq!(complaints.len(), begins.len(), "{complaints:?}");
        for (complaint, begin) in complaints.iter().zip(begins) {
            assert!(complaint.starts_with(begin), "{complaint}");
        }
    }

    #[test]
    fn a_suite_that_hangs_is_killed_with_its_children_and_fails() {
        // The child would write the file after the suite.
        let mark = std::env::temp_dir().join(format!("bifolio-xtask-child-{}", std::process::id()));
        let script = format!("{OK}; sh -c 'echo $$ > {}; exec sleep 3600' & wait", mark.display());
        let suites = [shell("hangs", &script), shell("good", OK)];
        let complaints = complaints_of(&suites, Duration::from_secs(2));
        let child = std::fs::read_to_string(&mark).unwrap();
        std::fs::remove_file(&mark).unwrap();
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].starts_with("failed: hangs: killed after "), "{complaints:?}");
        // A killed child dies a moment later, and may be a zombie until its new parent waits for
        // it.
        let is_over = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let begun = std::time::Instant::now();
        while !is_over() {
            assert!(begun.elapsed() < Duration::from_secs(10), "the child runs on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
