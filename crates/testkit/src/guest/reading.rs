//! A guest that reads many damaged copies of a few images. If Linux panics or hangs on one, the
//! next guest goes on with the others. Not here: damage, and the questions about a tree
//! ([`Answers`]).

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::machine::{Disk, Machine};
use super::{Orders, make_results, root};
use crate::answers::{Answer, Answers, Failure};
use crate::must;

/// The maximum number of copies that one guest reads.
const COPIES_MAX: usize = 250;
/// The time without a new result after which a guest is killed. It reads most copies in less than
/// 100 ms.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The unit in which images are compared.
const UNIT: usize = 4096;
/// The maximum number of kernel messages about a copy, after which only warnings and errors count,
/// and their maximum.
const MESSAGES_MAX: usize = 20;
const WARNINGS_MAX: usize = 100;
/// The level of warnings. That of errors is lower.
const WARNING: u64 = 4;
/// Where copies are mounted.
const TOP: &str = "/mnt";
/// The first of the results: the guest has begun.
const BEGUN: &[u8] = b"null";

/// A range of bytes that differs from the valid image.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Patch {
    at: u64,
    bytes: Vec<u8>,
}

/// A damaged copy of an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Copy {
    /// The number of the image.
    image: usize,
    /// The format's mount options.
    options: String,
    patches: Vec<Patch>,
}

impl Copy {
    /// Returns the copy `damaged` of the image of that number, which is `valid`.
    pub fn new(image: usize, valid: &[u8], damaged: &[u8], options: &str) -> Self {
        assert_eq!(valid.len(), damaged.len(), "a copy has the size of its image");
        let units = valid.chunks(UNIT).zip(damaged.chunks(UNIT)).enumerate();
        let patches = units.filter(|(_, (valid, damaged))| valid != damaged);
        let patches = patches.map(|(number, (valid, damaged))| {
            let differs = |at: &usize| valid[*at] != damaged[*at];
            let first = (0..valid.len()).find(differs).unwrap_or(0);
            let last = (0..valid.len()).rfind(differs).unwrap_or(0);
            let at = (number * UNIT + first) as u64;
            Patch { at, bytes: damaged[first..=last].to_vec() }
        });
        Self { image, options: options.to_owned(), patches: patches.collect() }
    }

    /// Returns the number of the image.
    pub fn image(&self) -> usize {
        self.image
    }

    /// Makes `image`, the valid one, the copy.
    pub fn apply(&self, image: &mut [u8]) {
        for Patch { at, bytes } in &self.patches {
            image[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// What a guest has read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reading {
    /// The answers, or the error of the mount.
    pub answers: Answer<Answers>,
    /// What the kernel has said meanwhile.
    pub messages: Vec<String>,
}

impl Reading {
    /// Returns whether the kernel has said `part`.
    pub fn has_message(&self, part: &str) -> bool {
        self.messages.iter().any(|message| message.contains(part))
    }
}

/// What became of a copy.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was read.
    Read(Reading),
    /// The guest ended: the last lines that it has printed.
    Died(String),
    /// The guest was killed, since it did not go on.
    Hung,
}

/// The orders to read copies of the images on the disks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Duty {
    format: String,
    images: usize,
    copies: Vec<Copy>,
}

/// Boots guests on `machine` that mount `copies` of `images` read-only, one after the other, and
/// read their trees. The calling program must begin its `main` with
/// [`run_if_guest`](super::run_if_guest).
pub fn read_copies(
    machine: Machine,
    format: &str,
    images: &[&[u8]],
    copies: &[Copy],
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while outcomes.len() < copies.len() {
        let rest = &copies[outcomes.len()..];
        outcomes.extend(boot(machine, format, images, &rest[..rest.len().min(COPIES_MAX)]));
    }
    outcomes
}

/// Boots one guest. Returns the outcomes of all copies up to the first one that ended the guest.
fn boot(machine: Machine, format: &str, images: &[&[u8]], copies: &[Copy]) -> Vec<Outcome> {
    let folder = must(TempDir::new(), "a folder for the guest");
    let duty = Duty { format: format.to_owned(), images: images.len(), copies: copies.to_vec() };
    let mut orders = Orders::new(machine, Vec::new());
    orders.damaged = Some(duty);
    let initrd = folder.path().join("initrd");
    must(fs::write(&initrd, root::archive(&orders, folder.path())), "the guest's first root");
    let results = make_results(folder.path());
    let mut disks: Vec<Disk> = Vec::new();
    for (number, image) in images.iter().enumerate() {
        let path = folder.path().join(format!("image{number}"));
        write_sparse(&path, image);
        disks.push(Disk { image: path, log: None });
    }
    disks.push(Disk { image: results.clone(), log: None });

    let mut hung = false;
    let output = machine.boot(&initrd, &disks, folder.path(), &mut |process| {
        hung = hung || kill_if_late(process, &results);
    });
    let mut read = read_results(&results).into_iter();
    assert!(read.next().is_some(), "the guest did not begin: {}", output.text());
    let readings = read.map(|bytes| must(serde_json::from_slice(&bytes), "a reading"));
    let mut outcomes: Vec<Outcome> = readings.map(Outcome::Read).collect();
    if outcomes.len() < copies.len() {
        let text = output.text();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(MESSAGES_MAX)..].join("\n");
        outcomes.push(if hung { Outcome::Hung } else { Outcome::Died(last) });
    }
    outcomes
}

/// Kills the guest if it has not written any result for a long time. Returns whether it did.
fn kill_if_late(process: Pid, results: &Path) -> bool {
    let written = fs::metadata(results).and_then(|found| found.modified());
    let age = SystemTime::now().duration_since(must(written, "the results"));
    let is_late = age.is_ok_and(|age| age > PAUSE_MAX);
    if is_late {
        let _ = rustix::process::kill_process_group(process, Signal::KILL);
    }
    is_late
}

fn write_sparse(path: &Path, bytes: &[u8]) {
    let file = must(File::create(path), path.display());
    must(file.set_len(bytes.len() as u64), path.display());
    let units = (0..).step_by(UNIT).zip(bytes.chunks(UNIT));
    for (at, unit) in units.filter(|(_, unit)| unit.iter().any(|byte| *byte != 0)) {
        must(file.write_all_at(unit, at), path.display());
    }
}

/// Returns what [`Results::write`] has written.
fn read_results(path: &Path) -> Vec<Vec<u8>> {
    let mut file = must(File::open(path), "the results");
    let mut results = Vec::new();
    loop {
        let mut length = [0; 8];
        must(file.read_exact(&mut length), "the results");
        let length = u64::from_le_bytes(length);
        if length == 0 {
            return results;
        }
        let mut bytes = vec![0; length as usize];
        must(file.read_exact(&mut bytes), "the results");
        results.push(bytes);
    }
}

/// The disk for the results, in the guest. Each is durable at once.
struct Results(File);

impl Results {
    fn write(&mut self, bytes: &[u8]) {
        let mut framed = (bytes.len() as u64).to_le_bytes().to_vec();
        framed.extend_from_slice(bytes);
        must(self.0.write_all(&framed), "the results");
        must(self.0.sync_data(), "the results");
    }
}

/// A disk in the guest.
struct OnDisk {
    path: PathBuf,
    valid: Vec<u8>,
}

impl OnDisk {
    /// Makes the disk a copy.
    fn damage(&self, patches: &[Patch]) {
        let file = must(OpenOptions::new().write(true).open(&self.path), self.path.display());
        for Patch { at, bytes } in patches {
            must(file.write_all_at(bytes, *at), self.path.display());
        }
        must(file.sync_data(), self.path.display());
    }

    /// Makes the disk equal to the valid image again. The replay of a journal changes disks, too.
    fn mend(&self) {
        let options = OpenOptions::new().read(true).write(true).clone();
        let file = must(options.open(&self.path), self.path.display());
        let mut found = vec![0; self.valid.len()];
        must(file.read_exact_at(&mut found, 0), self.path.display());
        let units = found.chunks(UNIT).zip(self.valid.chunks(UNIT)).enumerate();
        for (number, (_, valid)) in units.filter(|(_, (found, valid))| found != valid) {
            must(file.write_all_at(valid, (number * UNIT) as u64), self.path.display());
        }
        must(file.sync_data(), self.path.display());
    }
}

impl Duty {
    /// Reads all copies, in the guest.
    pub(super) fn read_all(&self, machine: Machine) {
        let path = machine.disk(self.images);
        let mut file = must(OpenOptions::new().read(true).write(true).open(&path), &path);
        let mut first = [0; 8];
        must(file.read_exact_at(&mut first, 0), &path);
        if first != [0; 8] {
            // The machine has booted again after a panic.
            return;
        }
        must(file.flush(), &path);
        let mut results = Results(file);
        results.write(BEGUN);
        let disks: Vec<OnDisk> = (0..self.images)
            .map(|number| {
                let path = PathBuf::from(machine.disk(number));
                let valid = must(fs::read(&path), path.display());
                OnDisk { path, valid }
            })
            .collect();
        let mut messages = Messages::open();
        for copy in &self.copies {
            let disk = &disks[copy.image];
            disk.damage(&copy.patches);
            let mut answers = self.read(disk, &copy.options);
            disk.mend();
            let messages = messages.take();
            if let Err(failure) = &mut answers {
                failure.text = reason(&messages);
            }
            let reading = Reading { answers, messages };
            results.write(&must(serde_json::to_vec(&reading), "a reading"));
        }
    }

    fn read(&self, disk: &OnDisk, options: &str) -> Answer<Answers> {
        let options = must(CString::new(options), options);
        let flags = MountFlags::RDONLY | MountFlags::NOATIME;
        rustix::mount::mount(&disk.path, TOP, self.format.as_str(), flags, options.as_c_str())
            .map_err(Failure::from)?;
        let answers = Answers::of_host(Path::new(TOP));
        must(rustix::mount::unmount(TOP, UnmountFlags::empty()), disk.path.display());
        Ok(answers)
    }
}

/// Returns the last message that says why a mount has failed, without the name of the device.
fn reason(messages: &[String]) -> String {
    let says_why = |line: &&String| {
        !["mount failed", "error loading journal"].iter().any(|end| line.ends_with(end))
    };
    let line = messages.iter().rev().find(says_why).map_or("", String::as_str);
    line.split_once("): ").map_or(line, |(_, reason)| reason).to_owned()
}

/// Returns whether a line is part of a stack trace, which says the same at each error.
fn is_of_stack(line: &str) -> bool {
    ["CPU: ", "Stack:", "Call Trace:", " "].iter().any(|start| line.starts_with(start))
}

/// The kernel's messages.
struct Messages(File);

impl Messages {
    fn open() -> Self {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(nonblocking).open("/dev/kmsg");
        let mut messages = Self(must(file, "the kernel's messages"));
        messages.take();
        messages
    }

    /// Returns the messages since the last call.
    fn take(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.0.read(&mut record) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]).into_owned();
                    let (prefix, line) = text.split_once(';').unwrap_or(("", &text));
                    let line = line.lines().next().unwrap_or_default();
                    let priority = prefix.split(',').next().and_then(|number| number.parse().ok());
                    let is_warning = priority.is_some_and(|priority: u64| priority % 8 <= WARNING);
                    let count_max = if is_warning { WARNINGS_MAX } else { MESSAGES_MAX };
                    if messages.len() < count_max && !is_of_stack(line) {
                        messages.push(line.to_owned());
                    }
                }
                // Some were overwritten.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(_) => return messages,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_make_a_copy_of_the_image() {
        let valid = vec![7; 3 * UNIT + 100];
        let mut damaged = valid.clone();
        for at in [10, 500, UNIT, 3 * UNIT + 99] {
            damaged[at] = 8;
        }
        let copy = Copy::new(0, &valid, &damaged, "");
        let ranges: Vec<(u64, usize)> =
            copy.patches.iter().map(|patch| (patch.at, patch.bytes.len())).collect();
        let unit = UNIT as u64;
        assert_eq!(ranges, [(10, 491), (unit, 1), (3 * unit + 99, 1)]);
        let mut patched = valid;
        copy.apply(&mut patched);
        assert_eq!(patched, damaged);
    }
}
