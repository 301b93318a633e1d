//! Checks of the repository that no compiler makes: `cargo xtask tidy` and `cargo xtask layers`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command line tool")]

mod layers;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

/// The top of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a folder of the repository")
}

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let complaints = match task.as_str() {
        "tidy" => tidy::complaints(root()),
        "layers" => layers::complaints(root()),
        _ => vec!["usage: cargo xtask {tidy|layers}".to_owned()],
    };
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
