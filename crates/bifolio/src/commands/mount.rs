//! `bifolio mount`: serves an image through FUSE.

use std::path::PathBuf;

use clap::Args;

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::target::{ImageOptions, Target};

/// The arguments of `bifolio mount`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    image: ImageOptions,
    /// The image
    #[arg(value_parser = Target::parser())]
    target: Target,
    /// Where to mount it: an existing directory
    directory: PathBuf,
}

/// Mounts and serves until unmounted.
pub fn run(arguments: Arguments, _console: &mut Console) -> Result<()> {
    let Arguments { image, target, directory: _ } = arguments;
    let _volume = image.open(&target)?;
    Err(Failure::new(&target, "mount is not built yet"))
}
