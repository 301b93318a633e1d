//! `bifolio umount`: takes mounts away and waits for their servers.

use std::path::PathBuf;

use clap::Args;

use crate::console::Console;
use crate::failure::{Failure, Result};

/// The arguments of `bifolio umount`.
#[derive(Args)]
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
                "{directory}: waiting until all that was written is on the image"
            ));
        };
        if let Err(error) = fuse::umount(directory, before_long) {
            console.report(&Failure::new(&**directory, error.to_string()));
        }
    }
    Ok(())
}
