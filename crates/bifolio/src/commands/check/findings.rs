//! The output of findings, as lines or as JSON.

use std::os::unix::ffi::OsStrExt;

use base::attributes::CheckSummary;
use base::{Corrupt, Error, Location};
use serde::Serialize;

use super::progress::Progress;
use crate::console::Console;
use crate::failure::{Result, Status};
use crate::format::json;
use crate::target::Target;

/// The reason why a check was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The maximum number of findings was reached.
    Findings,
    /// The time was over.
    Timeout,
}

/// The findings so far.
pub struct Findings<'a> {
    pub console: &'a mut Console,
    pub progress: Progress,
    json: bool,
    count: u64,
    count_max: Option<u64>,
    /// The worst status of a finding.
    pub status: Status,
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
    is_complete: bool,
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

impl<'a> Findings<'a> {
    /// Returns an empty list, which is full with `count_max` findings.
    pub fn new(
        console: &'a mut Console,
        progress: Progress,
        json: bool,
        count_max: Option<u64>,
    ) -> Self {
        Self { console, progress, json, count: 0, count_max, status: Status::Success }
    }

    /// Returns whether there are as many findings as there may be.
    pub fn is_full(&self) -> bool {
        self.count_max.is_some_and(|max| self.count >= max)
    }

    /// Prints the text before the findings.
    pub fn begin(&mut self, target: &Target) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let image = json::bytes(json::IMAGE, target.image.as_os_str().as_bytes());
        let text = json::text(&image);
        self.console.print(text.strip_suffix('}').unwrap_or(&text))?;
        self.console.print(",\"findings\":[")
    }

    /// Prints a finding.
    pub fn add(&mut self, error: &Error) -> Result<()> {
        let status = match error {
            Error::Corrupt(_) => Status::Inconsistent,
            _ => Status::Operational,
        };
        self.status = self.status.max(status);
        self.progress.clear();
        if self.json {
            self.console.print(if self.count == 0 { "\n" } else { ",\n" })?;
            self.console.print(json::text(&JsonFinding::from(error)))?;
        } else {
            self.console.print_name(error.to_string().as_bytes())?;
            self.console.print('\n')?;
        }
        self.count += 1;
        // Both streams may lead to the same terminal.
        if self.progress.is_shown() { self.console.flush() } else { Ok(()) }
    }

    /// Prints the text after the findings.
    pub fn end(&mut self, summary: &CheckSummary, stop: Option<Stop>) -> Result<()> {
        self.progress.clear();
        let CheckSummary { inodes, directories, clusters, .. } = *summary;
        let is_complete = summary.is_complete && stop.is_none();
        if self.json {
            let is_consistent = self.status == Status::Success && stop.is_none();
            let summary = JsonSummary { is_consistent, is_complete, inodes, directories, clusters };
            let summary = json::text(&summary);
            let line = if self.count == 0 { "" } else { "\n" };
            let rest = summary.strip_prefix('{').unwrap_or(&summary);
            return self.console.print(format_args!("{line}],{rest}\n"));
        }
        let rest = match stop {
            None => "",
            Some(Stop::Findings) => " (stopped by --max-findings: there may be more)",
            Some(Stop::Timeout) => " so far (stopped by --timeout)",
        };
        match self.count {
            0 if stop.is_none() => self.console.print(format_args!(
                "consistent: {inodes} inodes, {directories} directories, {clusters} clusters\n"
            )),
            1 => self.console.print(format_args!("1 inconsistency{rest}\n")),
            count => self.console.print(format_args!("{count} inconsistencies{rest}\n")),
        }
    }
}
