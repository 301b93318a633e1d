//! `bifolio gc`.

use std::os::unix::ffi::OsStrExt;

use base::Error;
use clap::Args;
use serde::Serialize;
use vfs::Cleaning;

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::json;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::change_targets;

const AFTER_HELP: &str = "\
f2fs writes data and metadata to free segments of 2 MiB. Over time, the free space is scattered over segments \
that also have blocks in use. This command moves these blocks together, until no further segment can be made \
free. The contents of files do not change. The image must not be mounted. \
A first signal takes effect after the current image; a second one ends the command at once, like a crash.";

/// The arguments of `bifolio gc`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Discard the freed segments; an image file becomes sparse
    #[arg(long)]
    discard: bool,
    /// f2fs images to clean
    #[arg(required = true, value_name = "IMAGE", value_parser = Target::image_parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Cleans all targets.
pub fn run(mut arguments: Arguments, console: &mut Console) -> Result<()> {
    arguments.image.discard = arguments.discard;
    let mut cleaned = Vec::new();
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, _| {
        let volume = writing.get(target)?;
        let image = target.image.as_path();
        let done = volume.clean().map_err(|error| match error {
            Error::Unsupported(_) if volume.info().format != "f2fs" => {
                Failure::new(image, "is not an f2fs image")
                    .advise("`bifolio defrag` defragments the files of ext4 images")
            }
            error => Failure::action(image, "cannot clean", &error),
        })?;
        cleaned.push((image.as_os_str().as_bytes().to_vec(), done));
        Ok(())
    })?;
    if arguments.json {
        let mut array = json::Array::begin(console)?;
        for (image, done) in &cleaned {
            array.push(console, &JsonCleaning::new(image, done))?;
        }
        return array.end(console);
    }
    for (image, done) in cleaned {
        console.print_name(&image)?;
        let Cleaning { free_before, free_after, blocks, .. } = done;
        console.print(format_args!(
            ": {free_before} free segments before, {free_after} after; {blocks} blocks moved\n"
        ))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct JsonCleaning<'a> {
    #[serde(flatten)]
    image: json::Bytes<'a>,
    free_segments_before: u64,
    free_segments_after: u64,
    sections_cleaned: u64,
    blocks_moved: u64,
}

impl<'a> JsonCleaning<'a> {
    fn new(image: &'a [u8], done: &Cleaning) -> Self {
        Self {
            image: json::bytes(json::IMAGE, image),
            free_segments_before: done.free_before,
            free_segments_after: done.free_after,
            sections_cleaned: done.sections,
            blocks_moved: done.blocks,
        }
    }
}
