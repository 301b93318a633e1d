//! `bifolio touch`.

use base::Error;
use base::attributes::{AttributeChange, Timestamp};
use clap::Args;
use vfs::{Credentials, Follow, Volume};

use crate::cli::date;
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};

const AFTER_HELP: &str = "\
Missing files are created and belong to root. By default, both times become the current time. Times are in UTC.";

/// The arguments of `bifolio touch`.
#[derive(Args)]
#[command(after_help = AFTER_HELP, disable_help_flag = true)]
pub struct Arguments {
    /// Change only the access time
    #[arg(short = 'a')]
    accessed: bool,
    /// Change only the modification time
    #[arg(short = 'm')]
    modified: bool,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Change symbolic links instead of their targets; implies -c
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Use this time: a date such as "2024-05-06 07:08:09.5", or @SECONDS since 1970
    #[arg(short, long, value_name = "TIME", group = "time", value_parser = date::parse)]
    date: Option<Timestamp>,
    /// Use this time: [[CC]YY]MMDDhhmm[.ss]
    #[arg(short = 't', value_name = "STAMP", group = "time")]
    stamp: Option<String>,
    /// Use the times of this file in the same image
    #[arg(short, long, value_name = "IMAGE:/PATH", group = "time", value_parser = Target::parser())]
    reference: Option<Target>,
    /// Files to change
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Changes the times of all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let now = vfs::now();
    let stamp = arguments.stamp.as_ref().map(|stamp| date::parse_stamp(stamp, date::year_of(now)));
    let stamp = stamp.transpose().map_err(|error| Failure::new("-t", error).usage())?;
    let time = arguments.date.or(stamp);
    for target in &arguments.targets {
        arguments.reference.as_ref().map_or(Ok(()), |file| file.require_same_image(target))?;
    }
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, _| {
        touch(&arguments, time.unwrap_or(now), target, writing)
    })
}

fn touch(
    arguments: &Arguments,
    time: Timestamp,
    target: &Target,
    writing: &mut Writing,
) -> Result<()> {
    let volume = writing.get(target)?;
    let [accessed, modified] = times(arguments, time, &volume)?;
    let follow = if arguments.no_dereference { Follow::No } else { Follow::Yes };
    let node = match volume.resolve(&target.path, follow) {
        Err(Error::NotFound) if arguments.no_create || arguments.no_dereference => return Ok(()),
        Err(Error::NotFound) => target.create_file(&volume, writing.umask)?.node,
        node => node.map_err(|error| Failure::library(target, &error))?,
    };
    let only = |wanted: bool, other: bool| wanted || !other;
    let change = AttributeChange {
        accessed: only(arguments.accessed, arguments.modified).then_some(accessed),
        modified: only(arguments.modified, arguments.accessed).then_some(modified),
        ..AttributeChange::default()
    };
    let changed = node.set_attributes(&change, &Credentials::ROOT);
    changed.map_err(|error| Failure::action(target, "cannot change times", &error))
}

/// Returns the times of access and modification to set.
fn times(arguments: &Arguments, time: Timestamp, volume: &Volume) -> Result<[Timestamp; 2]> {
    let Some(reference) = &arguments.reference else { return Ok([time; 2]) };
    let follow = if arguments.no_dereference { Follow::No } else { Follow::Yes };
    let attributes = reference.resolve(volume, follow)?.attributes();
    Ok([attributes.accessed, attributes.modified])
}
