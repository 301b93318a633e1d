//! `bifolio umount`.

use std::path::PathBuf;

use clap::Args;

use crate::console::Console;
use crate::failure::{Failure, Result};

const AFTER_HELP: &str = "\
The command waits up to 11 minutes for the server of the mount, which may have much data to write. If the \
server is still running then, some data may not be written to the image yet, and the exit status is 1.";

/// The arguments of `bifolio umount`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Mount points to unmount
    #[arg(required = true)]
    directories: Vec<PathBuf>,
}

/// Unmounts all mounts, and waits for their servers.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    for directory in &arguments.directories {
        let warn_before_wait = || {
            let text = "unmounted; waiting for the server to write the remaining data";
            console.warn(Failure::new(&**directory, text));
        };
        if let Err(error) = fuse::umount(directory, warn_before_wait) {
            console.report(&Failure::new(&**directory, error.to_string()));
        }
    }
    Ok(())
}
