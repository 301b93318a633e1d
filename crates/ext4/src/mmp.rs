//! Multiple-mount protection: a block of the volume with a sequence number that advances while the
//! volume is open for writing. By it, other programs and other hosts find the volume in use. The
//! protocol is that of the kernel's documentation (`filesystems/ext4/mmp.rst`). Not here: the
//! shutdown of the journal after another host takes the volume (`journal/failure.rs`).

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::checksum::crc32c;
use base::{DeviceOffset, Error, FsBlock, Location, Problem, Result, WaitCallback};
use device::SharedDevice;
use parking_lot::{Condvar, Mutex};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::clock;
use crate::core::Core;
use crate::features::Feature;
use crate::ondisk::mmp::{
    MMP_MAGIC, MMP_SEQUENCE_CLEAN, MMP_SEQUENCE_FSCK, MMP_SEQUENCE_MAX, RawMmp,
};

const STRUCTURE: &str = "MMP block";
/// The default of the update interval, in seconds.
const UPDATE_INTERVAL: u16 = 5;
/// The maximum of the update interval, as in mke2fs.
const UPDATE_INTERVAL_MAX: u16 = 300;
/// The number of update intervals that an update may be late, as in the kernel.
const CHECK_FACTOR: u16 = 2;
const CHECK_INTERVAL_MIN: u16 = 5;
const CHECK_INTERVAL_MAX: u16 = CHECK_FACTOR * UPDATE_INTERVAL_MAX;

/// The block with the sequence number, as a location on a device.
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
    /// Returns the block of a volume, or `None` if the volume does not have the feature.
    pub(crate) fn of(core: &Core) -> Result<Option<Self>> {
        let (geometry, raw) = (core.geometry(), core.superblock().raw());
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
        let offset = geometry.block_size.device_offset(block).expect("the block is in the volume");
        let (device, seed) = (Arc::clone(core.device()), geometry.metadata_seed());
        Ok(Some(Self { device, offset, location, seed, update_interval }))
    }

    /// Returns the block's number.
    pub(crate) fn block(&self) -> FsBlock {
        self.location.block.unwrap_or_default()
    }

    /// Logs a warning if the volume seems to be in use. Readers are not excluded.
    pub(crate) fn warn_if_in_use(&self) {
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
        self.write_unflushed(sequence)?;
        self.device.flush()
    }

    fn write_unflushed(&self, sequence: u32) -> Result<()> {
        let mut raw = RawMmp::new_zeroed();
        raw.magic = MMP_MAGIC.into();
        raw.sequence = sequence.into();
        raw.time = clock::since_1970().as_secs().into();
        store_name(&mut raw.node_name, &node_name());
        store_name(&mut raw.device_name, "bifolio");
        let interval = (CHECK_FACTOR * self.update_interval).max(CHECK_INTERVAL_MIN);
        raw.check_interval = interval.into();
        raw.checksum = checksum(&raw, self.seed).unwrap_or_default().into();
        self.device.write_at(self.offset, raw.as_bytes())
    }
}

/// Parses the block at `location`. `seed` is the seed of the volume's metadata checksums, or `None`
/// if it has none. Errors: [`Error::Corrupt`].
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

/// The claim of this process to the volume. Advancing the sequence number excludes other hosts.
pub(crate) struct Claim {
    block: MmpBlock,
    sequence: u32,
}

impl Claim {
    /// Claims the volume. If the volume was not closed, calls `wait` with a message and a time,
    /// twice: another host may have it open, or may have crashed. If it was closed, calls `wait`
    /// with no time. Errors: `InUse` if another host has the volume open.
    pub(crate) fn acquire(
        block: MmpBlock,
        mut wait: impl FnMut(&str, Duration) -> Result<()>,
    ) -> Result<Self> {
        let found = block.read()?;
        let interval = found.check_interval.get().max(block.update_interval);
        let interval = interval.max(CHECK_INTERVAL_MIN);
        let seconds = (CHECK_FACTOR * interval + 1).min(interval + 60);
        let mut time = Duration::from_secs(seconds.into());
        let mut message = String::new();
        match found.sequence.get() {
            MMP_SEQUENCE_CLEAN => time = Duration::ZERO,
            MMP_SEQUENCE_FSCK => return Err(in_use(&found)),
            sequence => {
                let user = user(&found);
                message = format!(
                    "the volume was not closed by {user}: waiting for {} s to see whether it is in use",
                    2 * seconds
                );
                tracing::warn!("{message}");
                wait(&message, time)?;
                let again = block.read()?;
                if again.sequence.get() != sequence {
                    return Err(in_use(&again));
                }
            }
        }
        // A random number, which no other host is likely to choose.
        let sequence = (RandomState::new().hash_one(0) as u32) % MMP_SEQUENCE_MAX + 1;
        block.write(sequence)?;
        wait(&message, time)?;
        let claim = Self { block, sequence };
        claim.check()?;
        Ok(claim)
    }

    /// Returns a new claim to the volume, which was released with the block `released`. Errors:
    /// `InUse` if another host has written the block since.
    fn claim_again(&self, released: &RawMmp) -> Result<Self> {
        let found = self.block.read()?;
        if found.as_bytes() != released.as_bytes() {
            return Err(in_use(&found));
        }
        Self::acquire(self.block.clone(), |_, _| Ok(()))
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
        self.block.write_unflushed(next)?;
        // Even if the flush fails, a read of the block returns the new number.
        self.sequence = next;
        self.block.device.flush()
    }

    /// Marks the volume as closed, so that other hosts may open it.
    fn release(&self) -> Result<()> {
        self.check()?;
        self.block.write(MMP_SEQUENCE_CLEAN)
    }
}

/// A thread that renews a claim.
pub(crate) struct Mmp {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A function that is called with the error by which a claim was lost.
type OnLoss = Box<dyn Fn(&Error) + Send + Sync>;

struct Shared {
    state: Mutex<State>,
    stopped: Condvar,
    /// Called when the claim is lost.
    on_loss: OnceLock<OnLoss>,
}

struct State {
    claim: Claim,
    /// The block as it was written when the volume was released for a while. `None` while the
    /// volume is claimed.
    released: Option<RawMmp>,
    is_stopped: bool,
    /// The error by which the claim was lost.
    lost: Option<Error>,
}

impl Mmp {
    /// Claims the volume with this block, and starts the thread.
    pub(crate) fn start(block: MmpBlock, wait_callback: &WaitCallback) -> Result<Self> {
        let claim = Claim::acquire(block, |message, time| wait_callback.wait(message, time))?;
        let state = Mutex::new(State { claim, released: None, is_stopped: false, lost: None });
        let (stopped, on_loss) = (Condvar::new(), OnceLock::new());
        let shared = Arc::new(Shared { state, stopped, on_loss });
        let in_thread = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("bifolio-mmp".into()).spawn(move || in_thread.run());
        let thread = thread.map_err(|error| {
            let not_started = Error::thread_spawn(&error);
            shared.state.lock().claim.release().err().unwrap_or(not_started)
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Calls `on_loss` when the claim is lost, to stop the journal. Fails if it is lost already.
    pub(crate) fn guard(&self, on_loss: impl Fn(&Error) + Send + Sync + 'static) -> Result<()> {
        // Under the lock: an earlier loss is seen here, and a later loss calls the function.
        let state = self.shared.state.lock();
        let _ = self.shared.on_loss.set(Box::new(on_loss));
        state.lost.clone().map_or(Ok(()), Err)
    }

    /// Releases the volume. The caller writes nothing more to it.
    pub(crate) fn finish(&self) -> Result<()> {
        self.stop();
        let state = self.shared.state.lock();
        match &state.lost {
            Some(error) => Err(error.clone()),
            None if state.released.is_some() => Ok(()),
            None => state.claim.release(),
        }
    }

    /// Returns a handle by which the volume is released for a while.
    pub(crate) fn hold(&self) -> MmpHold {
        MmpHold(Arc::clone(&self.shared))
    }

    fn stop(&self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// A handle to release and claim a volume whose claim a thread renews.
pub(crate) struct MmpHold(Arc<Shared>);

impl MmpHold {
    /// Marks the volume as closed, so that other hosts may open it, until [`resume`](Self::resume).
    pub(crate) fn pause(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        if state.released.is_none() {
            state.claim.release()?;
            state.released = Some(state.claim.block.read()?);
        }
        Ok(())
    }

    /// Claims the volume again. Errors: `InUse` if another host has opened it in the meantime, even
    /// if it has closed it since: what this process has read may be stale. Then the claim is lost.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        let Some(released) = &state.released else { return Ok(()) };
        let claimed = state.claim.claim_again(released);
        match claimed {
            Ok(claim) => {
                state.claim = claim;
                state.released = None;
                Ok(())
            }
            Err(error) => {
                self.0.mark_lost(&mut state, error.clone());
                Err(error)
            }
        }
    }
}

impl Drop for Mmp {
    /// Stops the thread. Without [`finish`](Self::finish), the volume is left as after a crash:
    /// another host that opens it waits until it is certain that the sequence number does not
    /// advance.
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self) {
        if catch_unwind(AssertUnwindSafe(|| self.renew_until_stopped())).is_err() {
            // The sequence number does not advance any more, so other hosts may take the volume at
            // any time.
            let operation = "the thread of multiple-mount protection";
            self.mark_lost(&mut self.state.lock(), Error::Panicked(operation));
        }
    }

    /// Records that the claim is lost, and says so, so that nothing more is written.
    fn mark_lost(&self, state: &mut State, error: Error) {
        if let Some(on_loss) = self.on_loss.get() {
            on_loss(&error);
        }
        state.lost = Some(error);
    }

    fn renew_until_stopped(&self) {
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
            if state.released.is_some() {
                renewed = Instant::now();
                continue;
            }
            match state.claim.renew() {
                Ok(()) => renewed = Instant::now(),
                // The next update may succeed before other hosts regard the volume as free.
                Err(error @ Error::Io(_)) if renewed.elapsed() < late => {
                    tracing::warn!("multiple-mount protection: {error}");
                }
                Err(error) => return self.mark_lost(&mut state, error),
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
    let program = if raw.sequence.get() == MMP_SEQUENCE_FSCK { "e2fsck on " } else { "" };
    format!("{program}{} as {}", name(&raw.node_name), name(&raw.device_name))
}

fn store_name(field: &mut [u8], name: &str) {
    // The last byte stays NUL.
    let length = name.len().min(field.len() - 1);
    field[..length].copy_from_slice(&name.as_bytes()[..length]);
}

/// Returns the host's name. It is not read from a file, since a confined process has no access to
/// files.
fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "mmp_tests.rs"]
mod tests;
