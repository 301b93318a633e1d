//! `bifolio sync`: a sync that works on all mounts, also if the kernel does not forward sync(2) to
//! the server.

use std::path::PathBuf;

use clap::Args;

use crate::console::Console;
use crate::console::failure::{Failure, Result};

const AFTER_HELP: &str = "\
The command returns when all data that was written before the call is durable. sync(1) guarantees this \
only for some mounts; see Durability in `bifolio help mount`.";

/// The arguments of `bifolio sync`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Mount points to sync
    #[arg(required = true)]
    directories: Vec<PathBuf>,
}

/// Syncs all mounts. Reports failures.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    for directory in &arguments.directories {
        if let Err(error) = fuse::sync(directory) {
            console.report(&Failure::new(&**directory, error.to_string()));
        }
    }
    Ok(())
}
