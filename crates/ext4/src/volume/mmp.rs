//! Multiple-mount protection: a block of the volume with a sequence number that advances while the volume is
//! open for writing, so that others, also on other hosts, find it in use. The protocol is that of the kernel's
//! documentation (`filesystems/ext4/mmp.rst`).
//! Not here: what follows if another host takes the volume over (the journal stops).

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::checksum::crc32c;
use base::{DeviceOffset, Error, FsBlock, Location, Problem, Result, WaitCallback};
use device::SharedDevice;
use parking_lot::{Condvar, Mutex};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::features::Feature;
use crate::journal::Journal;
use crate::ondisk::mmp::{
    MMP_MAGIC, MMP_SEQUENCE_CLEAN, MMP_SEQUENCE_FSCK, MMP_SEQUENCE_MAX, RawMmp,
};
use crate::volume::Volume;
use crate::volume::clock;

const STRUCTURE: &str = "MMP block";
/// The update interval, in seconds, if the superblock has none.
const UPDATE_INTERVAL: u16 = 5;
/// The maximum of the update interval, as in mke2fs.
const UPDATE_INTERVAL_MAX: u16 = 300;
/// The lateness of an update that a check allows for, in update intervals, as in the kernel.
const CHECK_FACTOR: u16 = 2;
const CHECK_INTERVAL_MIN: u16 = 5;
const CHECK_INTERVAL_MAX: u16 = CHECK_FACTOR * UPDATE_INTERVAL_MAX;

/// The position of the block.
#[derive(Clone, Debug)]
pub(crate) struct MmpBlock {
    device: SharedDevice,
    offset: DeviceOffset,
    location: Location,
    seed: Option<u32>,
    /// The update interval, in seconds.
    update_interval: u16,
}

impl MmpBlock {
    /// Returns the block of a volume, if it has the feature.
    pub(crate) fn of(volume: &Volume) -> Result<Option<Self>> {
        let (geometry, raw) = (volume.geometry(), volume.superblock().raw());
        if !geometry.features.has(Feature::Mmp) {
            return Ok(None);
        }
        let block = FsBlock(raw.mmp_block.get());
        let (min, max) = (geometry.superblock_block().0 + 1, geometry.block_count - 1);
        let (found, location) = (block.0, Location::block(block));
        if !(min..=max).contains(&found) {
            let problem = Problem::Range { field: "block", found, min, max };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        let update_interval = match raw.mmp_interval.get() {
            0 => UPDATE_INTERVAL,
            seconds if seconds <= UPDATE_INTERVAL_MAX => seconds,
            seconds => {
                let (found, max) = (seconds.into(), UPDATE_INTERVAL_MAX.into());
                let problem = Problem::Range { field: "MMP update interval", found, min: 0, max };
                return Err(Error::corrupt("superblock", Location::default(), problem));
            }
        };
        let offset = geometry.block_size.device_offset(block).expect("it lies in the volume");
        let (device, seed) = (Arc::clone(volume.device()), geometry.metadata_seed());
        Ok(Some(Self { device, offset, location, seed, update_interval }))
    }

    /// Returns the block's number.
    pub(crate) fn block(&self) -> FsBlock {
        self.location.block.unwrap_or_default()
    }

    /// Warns if the volume seems to be in use. For readers, which are not kept out.
    pub(crate) fn look(&self) {
        match self.read() {
            Ok(raw) if raw.sequence.get() == MMP_SEQUENCE_CLEAN => {}
            Ok(raw) => tracing::warn!("the volume may be in use by {}", user(&raw)),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Reads the block.
    pub(crate) fn read(&self) -> Result<RawMmp> {
        let mut bytes = [0; size_of::<RawMmp>()];
        self.device.refresh(self.offset, bytes.len() as u64);
        self.device.read_at(self.offset, &mut bytes)?;
        parse(&bytes, self.seed, self.location)
    }

    /// Writes the block, durably, so that other hosts can read it.
    fn write(&self, sequence: u32) -> Result<()> {
        self.put(sequence)?;
        self.device.flush()
    }

    fn put(&self, sequence: u32) -> Result<()> {
        let mut raw = RawMmp::new_zeroed();
        raw.magic = MMP_MAGIC.into();
        raw.sequence = sequence.into();
        raw.time = clock::since_1970().as_secs().into();
        put_name(&mut raw.node_name, &node_name());
        put_name(&mut raw.device_name, "bifolio");
        let interval = (CHECK_FACTOR * self.update_interval).max(CHECK_INTERVAL_MIN);
        raw.check_interval = interval.into();
        raw.checksum = checksum(&raw, self.seed).unwrap_or_default().into();
        self.device.write_at(self.offset, raw.as_bytes())
    }
}

/// Parses the block at `location`. `seed` is that of the volume's metadata checksums, if it has any. Errors:
/// [`Error::Corrupt`].
pub fn parse(
    bytes: &[u8; size_of::<RawMmp>()],
    seed: Option<u32>,
    location: Location,
) -> Result<RawMmp> {
    let raw = RawMmp::read_from_bytes(bytes).expect("the array has the layout's size");
    let fault = |problem| Err(Error::corrupt(STRUCTURE, location, problem));
    let (found, expected) = (raw.magic.get().into(), MMP_MAGIC.into());
    if found != expected {
        return fault(Problem::Magic { found, expected });
    }
    let stored = raw.checksum.get();
    if let Some(computed) = checksum(&raw, seed).filter(|computed| *computed != stored) {
        return fault(Problem::Checksum { stored, computed });
    }
    let (found, max) = (raw.check_interval.get().into(), CHECK_INTERVAL_MAX.into());
    if found > max {
        return fault(Problem::Range { field: "check interval", found, min: 0, max });
    }
    let sequence = raw.sequence.get();
    let is_known = sequence <= MMP_SEQUENCE_FSCK || sequence == MMP_SEQUENCE_CLEAN;
    if !is_known {
        return fault(Problem::Invalid { field: "sequence", found: sequence.into() });
    }
    Ok(raw)
}

fn checksum(raw: &RawMmp, seed: Option<u32>) -> Option<u32> {
    let covered = &raw.as_bytes()[..size_of::<RawMmp>() - size_of::<u32>()];
    seed.map(|seed| crc32c(seed, covered))
}

/// A block whose sequence number we advance, which keeps other hosts out.
pub(crate) struct Claim {
    block: MmpBlock,
    sequence: u32,
}

impl Claim {
    /// Takes the volume. `wait` is called to wait for another host that may have crashed; not for a volume that was
    /// closed. Errors: `InUse` if another host has it.
    pub(crate) fn take(
        block: MmpBlock,
        mut wait: impl FnMut(&str, Duration) -> Result<()>,
    ) -> Result<Self> {
        let found = block.read()?;
        let interval = found.check_interval.get().max(block.update_interval);
        let interval = interval.max(CHECK_INTERVAL_MIN);
        let seconds = (CHECK_FACTOR * interval + 1).min(interval + 60);
        let mut time = Duration::from_secs(seconds.into());
        let mut what = String::new();
        match found.sequence.get() {
            MMP_SEQUENCE_CLEAN => time = Duration::ZERO,
            MMP_SEQUENCE_FSCK => return Err(in_use(&found)),
            sequence => {
                let user = user(&found);
                what = format!("the volume was in use by {user}: waiting for {} s", 2 * seconds);
                tracing::warn!("{what}");
                wait(&what, time)?;
                let again = block.read()?;
                if again.sequence.get() != sequence {
                    return Err(in_use(&again));
                }
            }
        }
        // Any number that others do not hit upon.
        let sequence = (RandomState::new().hash_one(0) as u32) % MMP_SEQUENCE_MAX + 1;
        block.write(sequence)?;
        wait(&what, time)?;
        let claim = Self { block, sequence };
        claim.check()?;
        Ok(claim)
    }

    /// Fails if another host has changed the block.
    fn check(&self) -> Result<()> {
        let found = self.block.read()?;
        if found.sequence.get() == self.sequence { Ok(()) } else { Err(in_use(&found)) }
    }

    /// Advances the sequence number.
    fn renew(&mut self) -> Result<()> {
        self.check()?;
        let next = self.sequence % MMP_SEQUENCE_MAX + 1;
        self.block.put(next)?;
        // It is there now, whatever comes of the flush.
        self.sequence = next;
        self.block.device.flush()
    }

    /// Marks the volume as closed, so that other hosts may open it.
    fn release(&self) -> Result<()> {
        self.check()?;
        self.block.write(MMP_SEQUENCE_CLEAN)
    }
}

/// A thread that keeps a claim.
pub(crate) struct Mmp {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    stopped: Condvar,
    journal: OnceLock<Weak<Journal>>,
}

struct State {
    claim: Claim,
    is_stopped: bool,
    /// The reason for which the claim was lost.
    lost: Option<Error>,
}

impl Mmp {
    /// Claims the volume with this block, and starts the thread.
    pub(crate) fn start(block: MmpBlock, wait_callback: &WaitCallback) -> Result<Self> {
        let claim = Claim::take(block, |what, time| wait_callback.wait(what, time))?;
        let state = Mutex::new(State { claim, is_stopped: false, lost: None });
        let (stopped, journal) = (Condvar::new(), OnceLock::new());
        let shared = Arc::new(Shared { state, stopped, journal });
        let theirs = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("bifolio-mmp".into()).spawn(move || theirs.work());
        let thread = thread.map_err(|error| {
            let refused = Error::thread_spawn(&error);
            shared.state.lock().claim.release().err().unwrap_or(refused)
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Stops `journal` when another host takes the volume.
    pub(crate) fn guard(&self, journal: &Arc<Journal>) -> Result<()> {
        // Under the lock, so that what was lost before is seen here, and what is lost later there.
        let state = self.shared.state.lock();
        let _ = self.shared.journal.set(Arc::downgrade(journal));
        state.lost.clone().map_or(Ok(()), Err)
    }

    /// Releases the volume, to which nothing is written any more.
    pub(crate) fn finish(&self) -> Result<()> {
        self.stop();
        let state = self.shared.state.lock();
        match &state.lost {
            Some(error) => Err(error.clone()),
            None => state.claim.release(),
        }
    }

    fn stop(&self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Mmp {
    /// Without [`finish`](Self::finish) the volume is left as after a crash: another host that opens it waits until
    /// it is certain that the sequence number does not advance.
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn work(&self) {
        if catch_unwind(AssertUnwindSafe(|| self.keep_up())).is_err() {
            // The sequence number does not advance any more, so other hosts may take the volume at any time.
            let operation = "the thread of multiple-mount protection";
            self.lose(&mut self.state.lock(), Error::Panicked(operation));
        }
    }

    /// Records the loss of the claim, after which nothing is written.
    fn lose(&self, state: &mut State, error: Error) {
        if let Some(journal) = self.journal.get().and_then(Weak::upgrade) {
            journal.stop(&error);
        }
        state.lost = Some(error);
    }

    fn keep_up(&self) {
        let mut state = self.state.lock();
        let block = &state.claim.block;
        let interval = Duration::from_secs(block.update_interval.into());
        let late = Duration::from_secs((CHECK_FACTOR * block.update_interval).into());
        let mut renewed = Instant::now();
        while !state.is_stopped {
            self.stopped.wait_for(&mut state, interval);
            if state.is_stopped {
                return;
            }
            match state.claim.renew() {
                Ok(()) => renewed = Instant::now(),
                // It may come to an end before others take the volume for free.
                Err(error @ Error::Io(_)) if renewed.elapsed() < late => {
                    tracing::warn!("multiple-mount protection: {error}");
                }
                Err(error) => return self.lose(&mut state, error),
            }
        }
    }
}

fn in_use(raw: &RawMmp) -> Error {
    Error::InUse { by: user(raw) }
}

/// Returns the host and the device that the block names, as text.
pub fn user(raw: &RawMmp) -> String {
    let name = |bytes: &[u8]| {
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        bytes[..length].escape_ascii().to_string()
    };
    let who = if raw.sequence.get() == MMP_SEQUENCE_FSCK { "e2fsck on " } else { "" };
    format!("{who}{} as {}", name(&raw.node_name), name(&raw.device_name))
}

fn put_name(field: &mut [u8], name: &str) {
    // With a NUL at the end.
    let length = name.len().min(field.len() - 1);
    field[..length].copy_from_slice(&name.as_bytes()[..length]);
}

/// Returns the host's name. It is not read from a file, since a confined process has no access to files.
fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "mmp_tests.rs"]
mod tests;
