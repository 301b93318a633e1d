//! `bifolio check`.

mod findings;
mod paths;
mod progress;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Error;
use base::attributes::CheckSummary;
use clap::Args;
use device::SharedDevice;
use vfs::{CheckObserver, CheckProgress, Volume, VolumeOptions};

use self::findings::{Findings, Stop};
use self::paths::Paths;
use self::progress::Progress;
use crate::console::Console;
use crate::console::failure::{Failure, Result, Status, is_table_damage};
use crate::images::Images;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing;

const EXIT_STATUS: &str = "\
Exit status:
  0    The image is consistent.
  2    The command line is invalid.
  4    Inconsistencies were found.
  8    The check could not be started or completed, --timeout stopped it, or standard output could not be written.
       Inconsistencies may have been found, too.
  141  The reader of standard output closed the pipe.

The image is only read, and nothing is repaired; use e2fsck or fsck.f2fs for repairs. The state of an ext4 image \
with a dirty journal is checked after a replay in memory, unless --no-recovery is given or the replay fails. Of an \
f2fs image, the last checkpoint and the nodes synced after it are checked, and then what the recovery of these nodes, in \
memory, leaves.";

/// The arguments of `bifolio check`.
#[derive(Args)]
#[command(after_help = EXIT_STATUS)]
pub struct Arguments {
    /// Print a JSON object with an array of findings
    #[arg(long)]
    json: bool,
    /// Stop after N inconsistencies. Their paths are still searched for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_findings: Option<u64>,
    /// Stop after this time; what was found until then is printed
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Image to check
    #[arg(value_name = "IMAGE", value_parser = Target::image_parser())]
    target: Target,
    #[command(flatten)]
    image: ImageOptions,
}

/// Checks the image.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    console.set_output_status(Status::Operational);
    // None if it is too far away to come.
    let timeout = arguments.timeout.map(Duration::from_secs);
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    // Asks for the terminal, which a confined process cannot.
    let progress = Progress::new();
    let mut findings = Findings::new(console, progress, arguments.json, arguments.max_findings);
    let targets = std::slice::from_ref(&arguments.target);
    let mut images = Images::open(&arguments.image, targets).map_err(operational)?;
    let device = images.device(&arguments.target).map_err(operational)?;
    let mut options = images.volume_options().clone();
    let mut opened = open(&arguments.target, &device, &options)?;
    // What prevents opening is a finding, too. The state before the recovery may still be checked.
    let refused = opened.as_ref().err().cloned();
    if refused.is_some() && !options.no_recovery {
        options.no_recovery = true;
        opened = open(&arguments.target, &device, &options)?;
    }
    if let Ok(volume) = &opened {
        writing::warn_of_errors(&arguments.target.image, volume);
    }
    findings.begin(&arguments.target)?;
    if let Some(refused) = &refused {
        findings.add(refused.clone())?;
    }
    if options.incomplete && opened.is_ok() {
        // Opening without the option says what is missing.
        let whole = VolumeOptions { incomplete: false, no_recovery: true, ..options.clone() };
        if let Err(error) = open(&arguments.target, &device, &whole)? {
            findings.add(error)?;
        }
    }
    let mut summary = CheckSummary::default();
    let mut stop = findings.is_full().then_some(Stop::Findings);
    match opened {
        Ok(volume) if stop.is_none() => {
            let mut check = Check {
                volume: &volume,
                findings: &mut findings,
                reported: refused.as_ref(),
                deadline,
                stop: None,
                outcome: Ok(()),
            };
            summary = volume.check_with(&mut check);
            if check.outcome.is_ok() {
                check.outcome = check.print_held();
            }
            stop = check.stop;
            check.outcome.map_err(|failure| match failure.is_fatal() {
                true => failure,
                false => operational(failure),
            })?;
        }
        Err(error) if stop.is_none() && Some(&error) != refused.as_ref() => findings.add(error)?,
        _ => {}
    }
    // Without an open volume, findings have no paths.
    findings.print_held(&Paths::default())?;
    findings.end(&summary, stop)?;
    let Findings { console, status, .. } = findings;
    console.raise_status(status);
    if stop == Some(Stop::Timeout) {
        console.raise_status(Status::Operational);
    }
    Ok(())
}

fn operational(failure: Failure) -> Failure {
    failure.with_status(Status::Operational)
}

/// Opens the volume. The inner error is corruption that prevents opening, or data of the recovery
/// that cannot be read.
fn open(
    target: &Target,
    device: &SharedDevice,
    options: &VolumeOptions,
) -> Result<Result<Volume, Error>> {
    match Volume::open_device(Arc::clone(device), options) {
        Ok(volume) => Ok(Ok(volume)),
        Err(error @ Error::Corrupt(_)) if !is_table_damage(&error) => Ok(Err(error)),
        Err(error @ Error::Io(_)) if !options.no_recovery => Ok(Err(error)),
        Err(error) => Err(operational(Failure::library(target.image.as_path(), &error))),
    }
}

/// A check in progress.
struct Check<'a, 'c> {
    volume: &'a Volume,
    findings: &'a mut Findings<'c>,
    /// A finding that is not reported again.
    reported: Option<&'a Error>,
    deadline: Option<Instant>,
    stop: Option<Stop>,
    outcome: Result<()>,
}

impl Check<'_, '_> {
    fn flow(&mut self, now: Option<Instant>) -> ControlFlow<()> {
        if self.findings.is_full() {
            self.stop = Some(Stop::Findings);
        } else if self.deadline.zip(now).is_some_and(|(deadline, now)| now >= deadline) {
            self.stop = Some(Stop::Timeout);
        }
        match self.outcome.is_ok() && self.stop.is_none() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

impl Check<'_, '_> {
    /// Prints the findings of a batch with their paths. Those that are not found until the deadline
    /// are missing.
    fn print_held(&mut self) -> Result<()> {
        let sought = self.findings.sought();
        let paths = match sought.is_empty() {
            true => Paths::default(),
            false => {
                let (progress, deadline) = (&mut self.findings.progress, self.deadline);
                let has_clock = deadline.is_some() || progress.is_shown();
                paths::find(self.volume, sought, &mut |part| {
                    let now = has_clock.then(Instant::now);
                    now.inspect(|now| progress.show(part, *now));
                    deadline.zip(now).is_none_or(|(deadline, now)| now < deadline)
                })?
            }
        };
        self.findings.print_held(&paths)
    }
}

impl CheckObserver for Check<'_, '_> {
    fn found(&mut self, error: Error) -> ControlFlow<()> {
        if self.reported != Some(&error) {
            self.outcome = self.findings.add(error);
            if self.outcome.is_ok() && self.findings.is_batch_full() {
                self.outcome = self.print_held();
            }
        }
        self.flow(self.deadline.map(|_| Instant::now()))
    }

    fn advanced(&mut self, progress: CheckProgress) -> ControlFlow<()> {
        if self.deadline.is_none() && !self.findings.progress.is_shown() {
            return ControlFlow::Continue(());
        }
        let now = Instant::now();
        self.findings.progress.show(progress, now);
        self.flow(Some(now))
    }
}
