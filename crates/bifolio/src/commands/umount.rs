//! `bifolio umount`.

use std::path::{Path, PathBuf};

use clap::Args;
use fuse::UmountNotice;

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::text::escape;

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
        umount(directory, console);
    }
    Ok(())
}

/// Unmounts the mount on `directory`, and waits for its server. Reports failures.
pub fn umount(directory: &Path, console: &mut Console) {
    let notify = |notice| {
        console.warn(Failure::new(
            directory,
            match notice {
                UmountNotice::Waiting => {
                    "unmounted; waiting for the server to write the remaining data"
                }
                UmountNotice::Died => {
                    "unmounted; its server had died, and data that was not synced may be lost"
                }
            },
        ));
    };
    if let Err(error) = fuse::umount(directory, notify) {
        // A part of it may be from the server, which reads the image.
        let text = error.to_string();
        let lines: Vec<_> = text.lines().map(|line| escape(line.as_bytes())).collect();
        console.report(&Failure::new(directory, lines.join("\n")));
    }
}
