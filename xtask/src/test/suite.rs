//! Suites: the test programs that cargo builds, and the order in which they run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Suites that run alone: they measure time, or the memory or the processors of the machine, or
/// they call sync(2), which writes back data that other suites expect to be dirty.
const ALONE: &[&str] = &[
    "crates/bifolio/tests/mount_latency.rs",
    "crates/bifolio/tests/mount_sync.rs",
    "crates/bifolio/tests/mount_volume_ioctls.rs",
    "crates/iomap/tests/memory.rs",
    "crates/iomap/tests/uncached.rs",
];

/// An environment variable for suites that do not run alone: the allocator of glibc gets huge pages
/// for large vectors. Suites that copy whole images, state by state, spend half of their time with
/// faults of small pages otherwise.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// The script that checks models.
const MODELS: &str = "scripts/models";

/// Long suites, which begin first. A long suite that begins last would run alone for most of its
/// time.
const LONG: &[&str] = &[
    "crates/vfs/tests/crash/main.rs",
    "crates/ext4/tests/crash/main.rs",
    "crates/vfs/tests/ace/main.rs",
    "crates/bifolio/tests/guest_equality.rs",
    "crates/bifolio/tests/kernel_equality.rs",
    "crates/bifolio/tests/mounts/main.rs",
    "crates/bifolio/tests/mount_suites.rs",
    "crates/bifolio/tests/guest_turns.rs",
    "crates/testkit/tests/f2fs_images.rs",
    "crates/testkit/tests/f2fs_unclean.rs",
    "crates/testkit/tests/f2fs_turns.rs",
    "crates/ext4/tests/journal/main.rs",
    "crates/vfs/tests/f2fs_space/main.rs",
    "crates/testkit/tests/f2fs_made.rs",
    MODELS,
    "crates/bifolio/tests/cli/main.rs",
    "crates/ext4/tests/writing/main.rs",
    "crates/ext4/tests/reading/main.rs",
    "crates/ext4/tests/check.rs",
    "crates/vfs/tests/f2fs/main.rs",
    "crates/vfs/tests/volumes/main.rs",
    "crates/testkit/tests/f2fs_compressed.rs",
    "crates/testkit/tests/f2fs_cleaned.rs",
    "crates/testkit/tests/f2fs_encrypted.rs",
    "crates/bifolio/tests/mount_exercise/main.rs",
    "crates/vfs/tests/exercise/main.rs",
    "crates/bifolio/tests/hostile_images.rs",
    "crates/bifolio/tests/hostile_writing.rs",
    "crates/bifolio/tests/mount_model.rs",
    "crates/bifolio/tests/kernel_extremes.rs",
];

/// A test program.
pub struct Suite {
    /// The source file, relative to the top of the repository.
    pub name: String,
    /// The program.
    pub program: OsString,
    /// The first arguments of the program.
    pub arguments: Vec<String>,
    /// The working directory: the crate's folder.
    pub folder: PathBuf,
    /// Additional environment variables.
    pub variables: Vec<(&'static str, OsString)>,
    /// The words before a command that must have the rights of the suite, such as `sudo`. Often
    /// none.
    pub runner: Vec<String>,
}

impl Suite {
    /// Returns the suite of the tests in the documentation of the crates that `arguments` for cargo
    /// choose.
    pub fn documentation(root: &Path, arguments: &[String]) -> Self {
        let mut all = cargo_test(arguments, &["--doc", "--no-fail-fast"]);
        all.extend_from_slice(arguments);
        Self {
            runner: Vec::new(),
            name: "tests in documentation".to_owned(),
            program: env!("CARGO").into(),
            arguments: all,
            folder: root.to_owned(),
            variables: Vec::new(),
        }
    }

    /// Returns the suite of the model checks, which builds the crates again with flags of its own.
    pub fn models(root: &Path) -> Self {
        Self {
            runner: Vec::new(),
            name: MODELS.to_owned(),
            program: root.join(MODELS).into(),
            arguments: Vec::new(),
            folder: root.to_owned(),
            variables: Vec::new(),
        }
    }

    /// Returns whether no other suite may run at the same time.
    pub fn runs_alone(&self) -> bool {
        ALONE.contains(&&*self.name)
    }

    /// Returns the name of the file for the suite's output.
    pub fn output_name(&self) -> String {
        let name = self.name.strip_suffix(".rs").unwrap_or(&self.name);
        format!("{}.txt", name.replace(['/', ' '], "-"))
    }

    /// Returns the command that runs the suite, with `arguments` for the program.
    pub fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if !arguments.is_empty() && self.program == env!("CARGO") {
            command.arg("--");
        }
        command.args(arguments).current_dir(&self.folder).envs(self.variables.iter().cloned());
        if !self.runs_alone() {
            command.env(TUNABLES.0, TUNABLES.1);
        }
        command
    }
}

/// Moves the suites in [`LONG`] to the front, in this order. The others keep their order.
pub fn put_longest_first(suites: &mut [Suite]) {
    let index = |suite: &Suite| LONG.iter().position(|name| *name == suite.name);
    suites.sort_by_key(|suite| index(suite).unwrap_or(LONG.len()));
}

/// Returns whether `arguments` for cargo choose packages.
pub fn chooses_packages(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| {
        argument.starts_with("-p") || argument == "--package" || argument.starts_with("--package=")
    })
}

/// Returns whether `arguments` for cargo choose the whole workspace.
pub fn chooses_workspace(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--workspace" || argument == "--all")
}

/// Returns the first arguments of all calls of `cargo test`. The whole workspace is tested unless
/// `given`, the arguments of the command line for cargo, choose packages.
fn cargo_test(given: &[String], arguments: &[&str]) -> Vec<String> {
    let mut all = vec!["test", "--locked"];
    if !chooses_packages(given) && !chooses_workspace(given) {
        all.push("--workspace");
    }
    all.extend(arguments);
    all.into_iter().map(str::to_owned).collect()
}

/// Builds the test programs that `arguments` choose, with cargo.
pub fn build(root: &Path, arguments: &[String]) -> Result<Vec<Suite>, String> {
    let output = Command::new(env!("CARGO"))
        .args(cargo_test(arguments, &["--no-run", "--message-format=json-render-diagnostics"]))
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the tests were not built: {}", output.status));
    }
    let runner = runner(std::env::vars_os());
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(messages.filter_map(|message| suite(root, &message, &runner)).collect())
}

/// Returns the words of cargo's runner in `environment` (`CARGO_TARGET_…_RUNNER`), a command that
/// runs programs.
fn runner(environment: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let is_runner = |name: &str| name.starts_with("CARGO_TARGET_") && name.ends_with("_RUNNER");
    let mut values = environment
        .filter(|(name, _)| name.to_str().is_some_and(is_runner))
        .map(|(_, value)| value);
    let runner = values.next().unwrap_or_default();
    runner.to_string_lossy().split_whitespace().map(str::to_owned).collect()
}

/// Returns the suite of a message of cargo, if the message is about a test program.
fn suite(root: &Path, message: &Value, runner: &[String]) -> Option<Suite> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = message["executable"].as_str()?;
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let mut words = runner.iter().cloned().chain([executable.to_owned()]);
    Some(Suite {
        name: source.strip_prefix(root).unwrap_or(source).display().to_string(),
        program: words.next()?.into(),
        arguments: words.collect(),
        folder: folder.to_owned(),
        variables: vec![("CARGO_MANIFEST_DIR", folder.into())],
        runner: runner.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(test: bool) -> Value {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/repository/crates/vfs/Cargo.toml",
            "target": { "name": "crash", "src_path": "/repository/crates/vfs/tests/crash/main.rs" },
            "profile": { "test": test },
            "executable": "/repository/target/debug/deps/crash-0123",
        })
    }

    #[test]
    fn a_test_program_runs_in_its_crates_folder() {
        let suite = suite(Path::new("/repository"), &message(true), &[]).unwrap();
        assert_eq!(suite.name, "crates/vfs/tests/crash/main.rs");
        let command = suite.command(&["name".to_owned()]);
        assert_eq!(command.get_program(), "/repository/target/debug/deps/crash-0123");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["name"]);
        assert_eq!(command.get_current_dir(), Some(Path::new("/repository/crates/vfs")));
    }

    #[test]
    fn other_programs_are_not_suites() {
        let root = Path::new("/repository");
        assert!(suite(root, &message(false), &[]).is_none());
        assert!(suite(root, &serde_json::json!({ "reason": "build-finished" }), &[]).is_none());
    }

    #[test]
    fn a_runner_runs_the_program() {
        let variables = [("PATH", "/bin"), ("CARGO_TARGET_X_RUNNER", "sudo --preserve-env --")];
        let runner = runner(variables.iter().map(|(name, value)| (name.into(), value.into())));
        let suite = suite(Path::new("/repository"), &message(true), &runner).unwrap();
        assert_eq!(suite.program, "sudo");
        assert_eq!(
            suite.arguments,
            ["--preserve-env", "--", "/repository/target/debug/deps/crash-0123"]
        );
    }

    #[test]
    fn packages_of_the_command_line_replace_the_workspace() {
        let arguments = |line: &str| {
            let given: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            cargo_test(&given, &["--doc"])
        };
        assert_eq!(arguments(""), ["test", "--locked", "--workspace", "--doc"]);
        assert_eq!(arguments("--workspace"), ["test", "--locked", "--doc"]);
        for line in ["-p xtask", "-pxtask", "--package xtask", "--package=xtask"] {
            assert_eq!(arguments(line), ["test", "--locked", "--doc"], "{line}");
        }
    }

    #[test]
    fn outputs_are_named_after_their_suites() {
        let suite = |name: &str| Suite {
            name: name.to_owned(),
            ..Suite::documentation(crate::root(), &[])
        };
        let name = suite("crates/vfs/tests/crash/main.rs").output_name();
        assert_eq!(name, "crates-vfs-tests-crash-main.txt");
        assert_eq!(suite("tests in documentation").output_name(), "tests-in-documentation.txt");
    }

    #[test]
    fn long_suites_begin_first_and_all_listed_suites_exist() {
        let root = crate::root();
        for name in ALONE.iter().chain(LONG) {
            assert!(root.join(name).exists(), "{name}");
        }
        let mut suites: Vec<_> = ["a", LONG[1], "b", LONG[0]]
            .map(|name| Suite { name: name.to_owned(), ..Suite::documentation(root, &[]) })
            .into();
        put_longest_first(&mut suites);
        let names: Vec<_> = suites.iter().map(|suite| &*suite.name).collect();
        assert_eq!(names, [LONG[0], LONG[1], "a", "b"]);
    }
}
