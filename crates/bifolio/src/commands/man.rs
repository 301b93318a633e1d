//! `bifolio man`.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};

use crate::cli::Cli;
use crate::console::Console;
use crate::console::failure::{Failure, Result};

/// The arguments of `bifolio man`.
#[derive(Args)]
pub struct Arguments {
    /// Directory for the pages: bifolio.1, bifolio-ls.1 and so on
    directory: PathBuf,
}

/// Writes a page for `bifolio` and one for each subcommand.
pub fn run(arguments: Arguments, _console: &mut Console) -> Result<()> {
    let directory = arguments.directory.as_path();
    write_pages(directory)
        .map_err(|error| Failure::host(directory, "cannot write the manual pages", &error))
}

/// Writes the pages to a new folder, and moves them to `directory`. Files of their names are
/// replaced: in a directory that others can write to, they may be links.
fn write_pages(directory: &Path) -> io::Result<()> {
    let folder = directory.join(format!(".bifolio-man-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let written = clap_mangen::generate_to(Cli::command(), &folder).and_then(|()| {
        for page in fs::read_dir(&folder)? {
            let page = page?;
            fs::rename(page.path(), directory.join(page.file_name()))?;
        }
        Ok(())
    });
    written.and(fs::remove_dir_all(&folder))
}
