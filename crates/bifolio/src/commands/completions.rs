//! `bifolio completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::console::Console;
use crate::console::failure::Result;

/// The arguments of `bifolio completions`.
#[derive(Args)]
pub struct Arguments {
    /// Shell to generate the script for
    shell: Shell,
}

/// Writes the completion script to standard output.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "bifolio", &mut script);
    console.write(&script)
}
