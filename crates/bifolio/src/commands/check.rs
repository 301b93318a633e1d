//! `bifolio check`.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use base::attributes::CheckSummary;
use base::{Corrupt, Error, Location};
use clap::Args;
use device::SharedDevice;
use serde::Serialize;
use vfs::{Volume, VolumeOptions};

use crate::console::Console;
use crate::failure::{Failure, Result, Status};
use crate::format::json;
use crate::target::{ImageOptions, Images, Target};

const EXIT_STATUS: &str = "\
Exit status:
  0    The image is consistent.
  2    The command line is invalid.
  4    Inconsistencies were found.
  8    The check could not be started or completed. Inconsistencies may have been found, too.
  141  The reader of standard output closed the pipe.

The image is only read, and nothing is repaired; use e2fsck or fsck.f2fs for repairs. The state of an ext4 image \
with a dirty journal is checked after a replay in memory, unless --no-recovery is given or the replay fails. Of an \
f2fs image, the last checkpoint and the nodes synced after it are checked.";

/// The arguments of `bifolio check`.
#[derive(Args)]
#[command(after_help = EXIT_STATUS)]
pub struct Arguments {
    /// Print a JSON object with an array of findings
    #[arg(long)]
    json: bool,
    /// Image to check
    #[arg(value_name = "IMAGE", value_parser = Target::parser())]
    target: Target,
    #[command(flatten)]
    image: ImageOptions,
}

/// Checks the image.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut findings =
        Findings { console, json: arguments.json, count: 0, status: Status::Success };
    let targets = std::slice::from_ref(&arguments.target);
    let mut images = Images::open(&arguments.image, targets).map_err(operational)?;
    let device = images.device(&arguments.target).map_err(operational)?;
    let mut options = images.volume_options().clone();
    let mut opened = open(&arguments.target, &device, &options)?;
    findings.begin(&arguments.target)?;
    // Corruption that prevents opening is a finding, too. The state before the recovery may still be checked.
    let refused = opened.as_ref().err().cloned();
    if let Some(refused) = &refused {
        findings.add(refused)?;
        if !options.no_recovery {
            options.no_recovery = true;
            opened = open(&arguments.target, &device, &options)?;
        }
    }
    let summary = match opened {
        Ok(volume) => check(&volume, refused.as_ref(), &mut findings)?,
        Err(error) if Some(&error) != refused.as_ref() => {
            findings.add(&error)?;
            CheckSummary::default()
        }
        Err(_) => CheckSummary::default(),
    };
    findings.end(&summary)?;
    let Findings { console, status, .. } = findings;
    console.raise_status(status);
    Ok(())
}

fn operational(failure: Failure) -> Failure {
    failure.with_status(Status::Operational)
}

/// Opens the volume. The inner error is corruption that prevents opening.
fn open(
    target: &Target,
    device: &SharedDevice,
    options: &VolumeOptions,
) -> Result<Result<Volume, Error>> {
    match Volume::open_device(Arc::clone(device), options) {
        Ok(volume) => Ok(Ok(volume)),
        Err(error @ Error::Corrupt(_)) => Ok(Err(error)),
        Err(error) => Err(operational(Failure::library(target.image.as_path(), &error))),
    }
}

/// Checks the volume. `reported` is not reported again.
fn check(
    volume: &Volume,
    reported: Option<&Error>,
    findings: &mut Findings<'_>,
) -> Result<CheckSummary> {
    let mut outcome = Ok(());
    let summary = volume.check(&mut |error| {
        if reported != Some(&error) {
            outcome = findings.add(&error);
        }
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    outcome.map_err(|failure| match failure.is_fatal() {
        true => failure,
        false => operational(failure),
    })?;
    Ok(summary)
}

struct Findings<'a> {
    console: &'a mut Console,
    json: bool,
    count: u64,
    status: Status,
}

/// A finding as JSON: its message and, for corruption, the structure, location and problem.
#[derive(Serialize)]
struct JsonFinding<'a> {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    structure: Option<&'a str>,
    #[serde(flatten)]
    location: JsonLocation,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Default, Serialize)]
struct JsonLocation {
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte: Option<u64>,
}

#[derive(Serialize)]
struct JsonSummary {
    is_consistent: bool,
    inodes: u64,
    directories: u64,
    clusters: u64,
}

impl From<&Location> for JsonLocation {
    fn from(location: &Location) -> Self {
        Self {
            group: location.group.map(|group| group.0),
            inode: location.inode.map(|inode| inode.0),
            file_block: location.file_block.map(|block| block.0),
            block: location.block.map(|block| block.0),
            byte: location.byte,
        }
    }
}

impl<'a> From<&'a Error> for JsonFinding<'a> {
    fn from(error: &'a Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Corrupt(corrupt) => {
                let Corrupt { structure, location, problem } = &**corrupt;
                let problem = Some(problem.to_string());
                Self { message, structure: Some(structure), location: location.into(), problem }
            }
            _ => {
                Self { message, structure: None, location: JsonLocation::default(), problem: None }
            }
        }
    }
}

impl Findings<'_> {
    fn begin(&mut self, target: &Target) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let image = json::bytes(json::IMAGE, target.image.as_os_str().as_bytes());
        let text = json::text(&image);
        self.console.print(text.strip_suffix('}').unwrap_or(&text))?;
        self.console.print(",\"findings\":[")
    }

    fn add(&mut self, error: &Error) -> Result<()> {
        let status = match error {
            Error::Corrupt(_) => Status::Inconsistent,
            _ => Status::Operational,
        };
        self.status = self.status.max(status);
        if self.json {
            self.console.print(if self.count == 0 { "\n" } else { ",\n" })?;
            self.console.print(json::text(&JsonFinding::from(error)))?;
        } else {
            self.console.print_name(error.to_string().as_bytes())?;
            self.console.print('\n')?;
        }
        self.count += 1;
        Ok(())
    }

    fn end(&mut self, summary: &CheckSummary) -> Result<()> {
        let CheckSummary { inodes, directories, clusters, .. } = *summary;
        let is_consistent = self.status == Status::Success;
        if self.json {
            let summary = json::text(&JsonSummary { is_consistent, inodes, directories, clusters });
            let line = if self.count == 0 { "" } else { "\n" };
            let rest = summary.strip_prefix('{').unwrap_or(&summary);
            return self.console.print(format_args!("{line}],{rest}\n"));
        }
        match self.count {
            0 => self.console.print(format_args!(
                "consistent: {inodes} inodes, {directories} directories, {clusters} clusters\n"
            )),
            1 => self.console.print("1 inconsistency\n"),
            count => self.console.print(format_args!("{count} inconsistencies\n")),
        }
    }
}
