//! `bifolio truncate`.

use std::str::FromStr;

use base::Error;
use base::attributes::FileType;
use clap::Args;
use vfs::{Follow, Privileges, Volume};

use crate::cli::numbers::parse_size;
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};

const AFTER_HELP: &str = "\
Missing files are created and belong to root. A file that grows gets a hole. SIZE is a number of bytes, \
decimal or hexadecimal (0x), with an optional suffix: K, M, G or T (or KiB …) for a power of 1024, KB … for a power of 1000, or s for sectors of 512 bytes. Before it, + extends and - reduces by SIZE, < means at most and > at least SIZE, and / rounds \
down and % up to a multiple of SIZE.";

/// The arguments of `bifolio truncate`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
#[command(group(clap::ArgGroup::new("wanted").required(true).multiple(true).args(["size", "reference"])))]
pub struct Arguments {
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Set or change the size, in bytes or with a suffix K, M, G, T or s (see below)
    #[arg(short, long, value_name = "[+-<>/%]SIZE", allow_hyphen_values = true)]
    size: Option<SizeChange>,
    /// Use the size of this file in the same image; --size changes it
    #[arg(short, long, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    reference: Option<Target>,
    /// Files to change
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// New size of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SizeChange {
    To(u64),
    By(i64),
    AtMost(u64),
    AtLeast(u64),
    DownTo(u64),
    UpTo(u64),
}

impl FromStr for SizeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (sign, number) = text.split_at_checked(1).unwrap_or_default();
        let signed = |text: &str| {
            let bytes = parse_size(text)?;
            i64::try_from(bytes).map_err(|_| "the number of bytes is too large".to_owned())
        };
        let multiple = |text: &str| match parse_size(text)? {
            0 => Err("cannot round to a multiple of 0".to_owned()),
            bytes => Ok(bytes),
        };
        match sign {
            "+" => signed(number).map(Self::By),
            "-" => signed(number).map(|bytes| Self::By(-bytes)),
            "<" => parse_size(number).map(Self::AtMost),
            ">" => parse_size(number).map(Self::AtLeast),
            "/" => multiple(number).map(Self::DownTo),
            "%" => multiple(number).map(Self::UpTo),
            _ => parse_size(text).map(Self::To),
        }
    }
}

impl SizeChange {
    /// Returns the new size of a file with this size. `None` if it is too large.
    fn apply(self, size: u64) -> Option<u64> {
        match self {
            Self::To(bytes) => Some(bytes),
            Self::By(bytes @ ..0) => Some(size.saturating_sub(bytes.unsigned_abs())),
            Self::By(bytes) => size.checked_add(bytes.unsigned_abs()),
            Self::AtMost(bytes) => Some(size.min(bytes)),
            Self::AtLeast(bytes) => Some(size.max(bytes)),
            Self::DownTo(bytes) => Some(size - size.checked_rem(bytes)?),
            Self::UpTo(bytes) => size.checked_next_multiple_of(bytes),
        }
    }
}

/// Changes the sizes of all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    for target in &arguments.targets {
        arguments.reference.as_ref().map_or(Ok(()), |file| file.require_same_image(target))?;
    }
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, _| {
        truncate(&arguments, target, writing)
    })
}

fn truncate(arguments: &Arguments, target: &Target, writing: &mut Writing) -> Result<()> {
    let volume = writing.get(target)?;
    let failure = |error: &Error| Failure::action(target, "cannot change the size", error);
    let base = arguments.reference.as_ref().map(|file| size_of(file, &volume)).transpose()?;
    let node = match volume.resolve(&target.path, Follow::Yes) {
        Err(Error::NotFound) if arguments.no_create => return Ok(()),
        Err(Error::NotFound) => target.create_file(&volume, writing.umask)?.node,
        node => node.map_err(|error| failure(&error))?,
    };
    match node.kind() {
        FileType::Regular => {}
        FileType::Directory => return Err(failure(&Error::IsDirectory)),
        _ => return Err(Failure::new(target, "is not a regular file")),
    }
    let size = base.unwrap_or_else(|| node.attributes().size);
    let size = arguments.size.map_or(Some(size), |change| change.apply(size));
    let size = size.ok_or_else(|| failure(&Error::FileTooLarge))?;
    node.set_size(size, Privileges::Keep).map_err(|error| failure(&error))
}

fn size_of(file: &Target, volume: &Volume) -> Result<u64> {
    Ok(file.resolve(volume, Follow::Yes)?.attributes().size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_as_in_truncate() {
        let apply = |text: &str, size| text.parse::<SizeChange>().map(|change| change.apply(size));
        for (text, expected) in [
            ("5", 5),
            ("1K", 1024),
            ("+5", 105),
            ("-5", 95),
            ("-1M", 0),
            ("<50", 50),
            ("<200", 100),
            (">50", 100),
            (">200", 200),
            ("/30", 90),
            ("%30", 120),
            ("%50", 100),
        ] {
            assert_eq!(apply(text, 100), Ok(Some(expected)), "{text}");
        }
        assert_eq!(apply("+1", u64::MAX), Ok(None));
        for bad in ["", "+", "/0", "%0", "x", "--1", "+-1", "é"] {
            assert!(apply(bad, 1).is_err(), "{bad}");
        }
    }
}
