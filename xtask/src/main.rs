//! Repository checks that no compiler does, and the test runner: `cargo xtask {tidy|layers|test}`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a command line tool")]

mod circles;
mod docs;
mod floors;
mod layers;
mod modules;
mod test;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask {tidy|layers}
       cargo xtask test [--at-a-time N] [--minutes-max N] [ARGUMENTS OF cargo test] [-- ARGUMENTS OF THE TESTS]";

/// Returns the top folder of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a folder of the repository")
}

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let complaints = match task.as_str() {
        "tidy" => tidy::complaints(root()),
        "layers" => {
            [layers::complaints(root()), circles::complaints(root()), floors::complaints(root())]
                .concat()
        }
        "test" => test::complaints(root(), std::env::args().skip(2).collect()),
        _ => vec![USAGE.to_owned()],
    };
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
