//! The output of findings, as lines or as JSON, in batches: the findings of a batch wait until the
//! paths of their inodes are known.

use std::os::unix::ffi::OsStrExt;

use base::attributes::CheckSummary;
use base::{Corrupt, Error, FsBlock, InodeNumber, Location, Problem};
use serde::Serialize;

use super::paths::{Paths, Sought};
use super::progress::Progress;
use crate::console::Console;
use crate::console::failure::{Result, Status};
use crate::format::json;
use crate::images::target::Target;
use crate::tree::directory;

/// The reason why a check was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The maximum number of findings was reached.
    Findings,
    /// The time was over.
    Timeout,
}

/// The number of findings in the first batch. Each batch may be [`BATCH_GROWTH`] times as large as
/// the one before, so that many findings need few walks.
const FIRST_BATCH: usize = 256;
const BATCH_GROWTH: usize = 4;
/// Maximum number of findings in a batch.
const BATCH_MAX: usize = 64 << 10;

/// The findings so far.
pub struct Findings<'a> {
    pub console: &'a mut Console,
    pub progress: Progress,
    json: bool,
    count: u64,
    count_max: Option<u64>,
    /// The number of findings that were printed.
    printed: u64,
    /// Findings that wait for paths. The first one has an inode or a block.
    held: Vec<Error>,
    /// The number of findings at which the batch is full.
    batch: usize,
    /// The worst status of a finding.
    pub status: Status,
}

/// A finding as JSON: its message and, for corruption, the structure, location and problem, and the
/// path of the entry or the inode, if it has one.
#[derive(Serialize)]
struct JsonFinding<'a> {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    structure: Option<&'a str>,
    #[serde(flatten)]
    location: JsonLocation,
    #[serde(flatten)]
    path: Option<json::Bytes<'a>>,
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

impl<'a> JsonFinding<'a> {
    fn new(error: &'a Error, path: Option<&'a [u8]>) -> Self {
        let message = error.to_string();
        match error {
            Error::Corrupt(corrupt) => {
                let Corrupt { structure, location, problem, .. } = &**corrupt;
                let path = path.map(|path| json::bytes(json::PATH, path));
                let problem = Some(problem.to_string());
                let location = location.into();
                Self { message, structure: Some(structure), location, path, problem }
            }
            _ => {
                let location = JsonLocation::default();
                Self { message, structure: None, location, path: None, problem: None }
            }
        }
    }
}

/// Returns the inode whose path a finding needs.
fn inode_of(error: &Error) -> Option<InodeNumber> {
    match error {
        Error::Corrupt(corrupt) => corrupt.location.inode,
        _ => None,
    }
}

/// Returns the block of a finding without an inode, if a file may have the block.
fn block_of(error: &Error) -> Option<FsBlock> {
    match error {
        Error::Corrupt(corrupt) => match corrupt.problem {
            Problem::MarkedFree { .. } if corrupt.location.inode.is_none() => {
                corrupt.location.block
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns the finding with the inode that has its block, if that is known.
fn with_owner(error: &Error, paths: &Paths) -> Option<(Error, Vec<u8>)> {
    let (inode, path) = paths.owners.get(&block_of(error)?)?;
    let Error::Corrupt(corrupt) = error else { return None };
    let mut corrupt = corrupt.clone();
    corrupt.location.inode = Some(*inode);
    Some((Error::Corrupt(corrupt), path.clone()))
}

/// Returns the path of the inode of a finding, or of the entry.
fn path_of(error: &Error, paths: &Paths) -> Option<Vec<u8>> {
    let Error::Corrupt(corrupt) = error else { return None };
    let path = paths.inodes.get(&corrupt.location.inode?)?;
    Some(match &corrupt.entry {
        Some(name) => directory::join(path, name),
        None => path.clone(),
    })
}

/// Returns the line of a finding.
fn line(error: &Error, path: Option<&[u8]>) -> Vec<u8> {
    let (Error::Corrupt(corrupt), Some(path)) = (error, path) else {
        return error.to_string().into_bytes();
    };
    let (head, rest) = corrupt.split_at_inode();
    [head.as_bytes(), b" (", path, b")", rest.as_bytes()].concat()
}

impl<'a> Findings<'a> {
    /// Returns an empty list, which is full with `count_max` findings.
    pub fn new(
        console: &'a mut Console,
        progress: Progress,
        json: bool,
        count_max: Option<u64>,
    ) -> Self {
        Self {
            console,
            progress,
            json,
            count: 0,
            count_max,
            printed: 0,
            held: Vec::new(),
            batch: FIRST_BATCH,
            status: Status::Success,
        }
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

    /// Adds a finding. It is printed at once if it needs no path and none waits before it.
    pub fn add(&mut self, error: Error) -> Result<()> {
        let status = match error {
            Error::Corrupt(_) => Status::Inconsistent,
            _ => Status::Operational,
        };
        self.status = self.status.max(status);
        self.count += 1;
        let needs_path = inode_of(&error).is_some() || block_of(&error).is_some();
        if self.held.is_empty() && !needs_path {
            return self.print(&error, &Paths::default());
        }
        self.held.push(error);
        Ok(())
    }

    /// Returns whether as many findings wait as may wait.
    pub fn is_batch_full(&self) -> bool {
        self.held.len() >= self.batch
    }

    /// Returns what the waiting findings need the paths of.
    pub fn sought(&self) -> Sought {
        Sought {
            inodes: self.held.iter().filter_map(inode_of).collect(),
            blocks: self.held.iter().filter_map(block_of).collect(),
        }
    }

    /// Prints the waiting findings.
    pub fn print_held(&mut self, paths: &Paths) -> Result<()> {
        self.batch = (self.batch * BATCH_GROWTH).min(BATCH_MAX);
        for error in std::mem::take(&mut self.held) {
            self.print(&error, paths)?;
        }
        Ok(())
    }

    fn print(&mut self, error: &Error, paths: &Paths) -> Result<()> {
        self.progress.clear();
        let owned = with_owner(error, paths);
        let (error, path) = match &owned {
            Some((error, path)) => (error, Some(path.clone())),
            None => (error, path_of(error, paths)),
        };
        if self.json {
            self.console.print(if self.printed == 0 { "\n" } else { ",\n" })?;
            self.console.print(json::text(&JsonFinding::new(error, path.as_deref())))?;
        } else {
            self.console.print_name(&line(error, path.as_deref()))?;
            self.console.print('\n')?;
        }
        self.printed += 1;
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
            0 => self.console.print(format_args!("no inconsistencies{rest}\n")),
            1 => self.console.print(format_args!("1 inconsistency{rest}\n")),
            count => self.console.print(format_args!("{count} inconsistencies{rest}\n")),
        }
    }
}
