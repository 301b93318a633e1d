//! `bifolio man`.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::cli::Cli;
use crate::console::Console;
use crate::failure::{Failure, Result};

/// The arguments of `bifolio man`.
#[derive(Args)]
pub struct Arguments {
    /// Directory for the pages: bifolio.1, bifolio-ls.1 and so on
    directory: PathBuf,
}

/// Writes a page for `bifolio` and one for each subcommand.
pub fn run(arguments: Arguments, _console: &mut Console) -> Result<()> {
    let directory = arguments.directory.as_path();
    clap_mangen::generate_to(Cli::command(), directory)
        .map_err(|error| Failure::host(directory, "cannot write the manual pages", &error))
}
