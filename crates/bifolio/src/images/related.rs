//! Devices that have the same bytes as an image: what backs it, such as the file of a loop device
//! or the devices of the device mapper, and the loop devices on it. Locks of the image do not
//! exclude their users. Not here: users of the image itself.
//!
//! The host claims the whole disk for a user of a partition, and the device mapper claims its
//! devices. Loop devices claim nothing, so their files are locked here, and other loop devices of
//! the same bytes are looked for.

use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use device::PartLock;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::images::target::is_busy;
use crate::images::users::InUse;

/// The maximum number of devices between an image and what backs it.
const DEPTH_MAX: usize = 8;
/// The maximum number of devices below an image that are looked at to compare it with another one.
const BELOW_MAX: usize = 64;
/// The unit of positions in /sys, in bytes.
const SECTOR_BYTES: u64 = 512;
/// All bytes of a file or device.
const WHOLE: Range<u64> = 0..u64::MAX;

/// The loop devices of removed mounts whose servers had died. Unset unless devices of dead mounts
/// are left out.
static DEAD: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Leaves out loop devices of mounts whose servers have died: the `removed` ones, and those that
/// are found when they are in the way. As long as programs have files open on such a mount, the
/// kernel keeps its device claimed, but nothing can access the image through it. Only the first
/// call has an effect.
pub fn leave_out_dead(removed: Vec<PathBuf>) {
    let _ = DEAD.set(removed);
}

/// Returns whether a loop device is left out. Asks the server of its mount, which may not answer
/// for seconds.
fn is_left_out(device: &Path) -> bool {
    DEAD.get().is_some_and(|removed| {
        removed.iter().any(|known| known == device) || fuse::is_dead_device(device)
    })
}

/// Locks what backs `image`. A writer also looks whether a loop device of its bytes is in use.
/// Locks are kept as long as the image is used.
///
/// # Errors
///
/// Another program uses the bytes of the image.
pub fn lock(image: &Path, read_only: bool) -> Result<Vec<PartLock>, InUse> {
    let Some(object) = Object::of(image) else { return Ok(Vec::new()) };
    let mut search = Search { image, read_only, locks: Vec::new() };
    search.lock_below(image, object, WHOLE, 0)?;
    if !read_only {
        search.refuse_above(object, 0)?;
    }
    Ok(search.locks)
}

/// A file or block device, whatever its path is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Object {
    /// A regular file: the device and the inode.
    File(u64, u64),
    /// A block device.
    Device(u64),
}

impl Object {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let is_device = metadata.file_type().is_block_device();
        Some(if is_device {
            Self::Device(metadata.rdev())
        } else {
            Self::File(metadata.dev(), metadata.ino())
        })
    }

    /// Returns the directory of a block device in /sys.
    fn folder(self) -> Option<PathBuf> {
        let Self::Device(device) = self else { return None };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()
    }
}

/// A loop device.
struct Loop {
    /// The path of its node.
    node: PathBuf,
    /// The path of its file, as the kernel has it.
    file: PathBuf,
    /// Its file.
    object: Object,
    /// The bytes of the file that it has.
    range: Range<u64>,
}

impl Loop {
    /// Returns the loop device with this directory in /sys. `None` if it is not one, or is not
    /// attached.
    fn of(folder: &Path) -> Option<Self> {
        let file = fuse::backing_file(folder)?;
        let node = node_of(folder)?;
        // The path may lead elsewhere: the file was renamed or removed, or is in another mount
        // namespace.
        let object = match fuse::loop_backing(&node) {
            Some(file) if file.real_device != 0 => Object::Device(file.real_device),
            Some(file) => Object::File(file.device, file.inode),
            None => Object::of(&file)?,
        };
        let start = number_in(&folder.join("loop/offset"))?;
        let range = match number_in(&folder.join("loop/sizelimit"))? {
            0 => start..u64::MAX,
            size => start..start.saturating_add(size),
        };
        Some(Self { node, file, object, range })
    }

    /// Returns all loop devices that are attached.
    fn all() -> Vec<Self> {
        let folders = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let folders = folders.filter(|entry| entry.file_name().as_bytes().starts_with(b"loop"));
        folders.filter_map(|entry| Self::of(&entry.path())).collect()
    }

    /// Returns whether it is mounted, or used by another program that claims or locks it.
    fn is_in_use(&self) -> bool {
        (is_claimed(&self.node) || device::is_locked(&self.node)) && !is_left_out(&self.node)
    }

    /// Returns the loop device with this node.
    fn of_node(node: &Path) -> Option<Self> {
        Self::of(&Object::of(node)?.folder()?)
    }
}

/// A search for the users of an image, through devices that have the same bytes.
struct Search<'a> {
    image: &'a Path,
    read_only: bool,
    /// Locks of what backs the image.
    locks: Vec<PartLock>,
}

impl Search<'_> {
    /// Locks what backs the bytes `range` of `object`, whose path is `path`.
    fn lock_below(
        &mut self,
        path: &Path,
        object: Object,
        range: Range<u64>,
        depth: usize,
    ) -> Result<(), InUse> {
        let Some(folder) = object.folder().filter(|_| depth < DEPTH_MAX) else { return Ok(()) };
        if let Some(attached) = Loop::of(&folder) {
            return self.lock_file(path, &attached, &range, depth);
        }
        let is_partition = folder.join("partition").exists();
        let below = match is_partition {
            true => folder.parent().map(Path::to_owned).into_iter().collect(),
            false => folders_in(&folder.join("slaves")),
        };
        let start = number_in(&folder.join("start")).unwrap_or(0).saturating_mul(SECTOR_BYTES);
        for below in below {
            let Some(node) = node_of(&below) else { continue };
            // The host has claimed it. Locks are those of programs that do not claim.
            if !self.read_only && device::is_locked_as_whole(&node) {
                return Err(InUse::Locked(node));
            }
            let Some(object) = Object::of(&node) else { continue };
            // Which bytes the device mapper has where is not known.
            let range = if is_partition { shifted(&range, start) } else { WHOLE };
            self.lock_below(&node, object, range, depth + 1)?;
        }
        Ok(())
    }

    /// Locks the file of a loop device, whose path is `path`, and what backs the file.
    fn lock_file(
        &mut self,
        path: &Path,
        attached: &Loop,
        range: &Range<u64>,
        depth: usize,
    ) -> Result<(), InUse> {
        let (file, object) = (attached.file.as_path(), attached.object);
        let range = shifted(range, attached.range.start);
        let range = range.start..range.end.min(attached.range.end);
        // The path may lead to another file: see `Loop::of`.
        let is_file = Object::of(file) == Some(object);
        if is_file {
            let own = Object::of(path);
            let is_other = |one: &Loop| one.object == object && Object::of(&one.node) != own;
            let has_others = Loop::all().iter().any(|one| is_other(one) && one.is_in_use());
            match PartLock::take(file, self.read_only, has_others) {
                Ok(lock) => self.locks.push(lock),
                Err(error) if is_busy(&error) => return Err(InUse::Locked(file.into())),
                // This user may use the device, and not its file.
                Err(_) => {}
            }
        }
        if !self.read_only {
            if is_file && matches!(object, Object::Device(_)) && is_claimed(file) {
                return Err(InUse::Locked(file.into()));
            }
            self.refuse_loops(object, &range, Object::of(path), depth + 1)?;
        }
        self.lock_below(file, object, range, depth + 1)
    }

    /// Refuses users of devices on `object`. What the host knows on a device has claimed it, but
    /// for its loop devices.
    fn refuse_above(&self, object: Object, depth: usize) -> Result<(), InUse> {
        if depth >= DEPTH_MAX {
            return Ok(());
        }
        self.refuse_loops(object, &WHOLE, None, depth)?;
        let Some(folder) = object.folder() else { return Ok(()) };
        let parts = fs::read_dir(&folder).into_iter().flatten().flatten();
        let parts = parts.map(|entry| entry.path()).filter(|path| path.join("partition").exists());
        for above in parts.chain(folders_in(&folder.join("holders"))) {
            let Some(node) = node_of(&above) else { continue };
            if device::is_locked(&node) {
                return Err(InUse::Locked(node));
            }
            if let Some(object) = Object::of(&node) {
                self.refuse_above(object, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Refuses loop devices that are in use and have bytes of `range` of `object`, except `own`.
    fn refuse_loops(
        &self,
        object: Object,
        range: &Range<u64>,
        own: Option<Object>,
        depth: usize,
    ) -> Result<(), InUse> {
        for attached in Loop::all() {
            let device = Object::of(&attached.node);
            let overlaps = attached.range.start < range.end && range.start < attached.range.end;
            if attached.object != object || !overlaps || (own.is_some() && device == own) {
                continue;
            }
            // The second look is for a loop device that was attached to another file since the
            // first one.
            if attached.is_in_use()
                && Loop::of_node(&attached.node).is_some_and(|now| now.object == object)
            {
                return Err(InUse::Loop { image: self.image.into(), device: attached.node });
            }
            if let Some(device) = device {
                self.refuse_above(device, depth + 1)?;
            }
        }
        Ok(())
    }
}

/// Returns whether two images have bytes in common: names of one file or device, or devices on it.
/// The ranges are those that are used of each.
pub fn have_same_bytes(one: (&Path, Range<u64>), other: (&Path, Range<u64>)) -> bool {
    let [one, other] = [one, other].map(|(path, range)| below(path, range));
    one.iter().any(|(object, range)| {
        let overlaps = |at: &Range<u64>| range.start < at.end && at.start < range.end;
        other.iter().any(|(same, at)| same == object && overlaps(at))
    })
}

/// Returns where the bytes `range` of an image are: in it, and in what backs it.
fn below(path: &Path, range: Range<u64>) -> Vec<(Object, Range<u64>)> {
    let mut found: Vec<_> = Object::of(path).map(|object| (object, range)).into_iter().collect();
    let mut at = 0;
    // Each device adds what is directly below it.
    while let Some((object, range)) = found.get(at).cloned().filter(|_| at < BELOW_MAX) {
        at += 1;
        let Some(folder) = object.folder() else { continue };
        if let Some(attached) = Loop::of(&folder) {
            let range = shifted(&range, attached.range.start);
            found.push((attached.object, range.start..range.end.min(attached.range.end)));
            continue;
        }
        let sectors =
            |name| number_in(&folder.join(name)).map(|at| at.saturating_mul(SECTOR_BYTES));
        let (folders, range) = match sectors("start").filter(|_| folder.join("partition").exists())
        {
            Some(start) => {
                let size = sectors("size").unwrap_or(u64::MAX);
                let disk = folder.parent().map(Path::to_owned);
                (disk.into_iter().collect(), shifted(&(range.start..range.end.min(size)), start))
            }
            // Which bytes the device mapper has where is not known.
            None => (folders_in(&folder.join("slaves")), WHOLE),
        };
        let nodes = folders.iter().filter_map(|folder| Object::of(&node_of(folder)?));
        found.extend(nodes.map(|object| (object, range.clone())));
    }
    found
}

fn shifted(range: &Range<u64>, by: u64) -> Range<u64> {
    range.start.saturating_add(by)..range.end.saturating_add(by)
}

/// Returns the directories that the links in a directory of /sys lead to.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.path().canonicalize().ok()).collect()
}

/// Returns the node of the device with this directory in /sys, if it has one.
fn node_of(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let node = Path::new("/dev").join(folder.file_name()?);
    // The node may be of another device, such as in a container.
    let is_same = Object::of(&node)?.folder()? == folder;
    is_same.then_some(node)
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns whether a device is mounted or otherwise claimed. One that this user may not open counts
/// as claimed.
fn is_claimed(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(device, flags, Mode::empty());
    matches!(opened, Err(Errno::BUSY | Errno::ACCESS | Errno::PERM))
}
