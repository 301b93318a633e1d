//! `bifolio umount`: takes mounts away and waits for their servers.

use std::path::PathBuf;

use clap::Args;

use crate::console::Console;
use crate::failure::{Failure, Result};

const AFTER_HELP: &str = "\
It waits for the server, which may have much to write, for 11 minutes at most; if that is still running \
then, not all may be on the image, and the exit status is 1.";

/// The arguments of `bifolio umount`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Where something is mounted
    #[arg(required = true)]
    directories: Vec<PathBuf>,
}

/// Unmounts each.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    for directory in &arguments.directories {
        let before_long = || {
            let directory = directory.display();
            console.warn(format_args!(
                "{directory}: unmounted; waiting for its server, which may have something to write"
            ));
        };
        if let Err(error) = fuse::umount(directory, before_long) {
            console.report(&Failure::new(&**directory, error.to_string()));
        }
    }
    Ok(())
}
