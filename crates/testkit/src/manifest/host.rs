//! Facts about a tree that the running kernel has mounted.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, StatVfs, Statx, StatxFlags};
use rustix::io::Errno;

use super::{
    Extent, Facts, Manifest, NO_ANSWER, VOLUME, escape, extents_text, ranges_text, time_text,
    value_text,
};
use crate::host::ioctl::{self, FiemapExtent};
use crate::must;

/// Linux's limit for a value, and for the sum of all names.
pub(crate) const XATTR_BYTES_MAX: usize = 64 << 10;

/// FS_ENCRYPT_FL.
const ENCRYPTED: u32 = 0x800;

impl Manifest {
    /// Returns the manifest of all files below `top`, without other file systems.
    pub fn of_host(top: &Path) -> Self {
        let mut manifest = Self::default();
        let volume = must(rustix::fs::statvfs(top), top.display());
        manifest.entries.insert(VOLUME.to_owned(), statfs_facts(&volume));
        let device = device_of(&stat(top));
        let mut seen: HashMap<u64, Facts> = HashMap::new();
        // One for all files, since emulated processors are slow to zero it.
        let mut xattrs_buffer = vec![0; XATTR_BYTES_MAX];
        let mut ahead: Vec<Vec<u8>> = vec![Vec::new()];
        while let Some(name) = ahead.pop() {
            let path = top.join(OsStr::from_bytes(&name));
            let stat = stat(&path);
            if device_of(&stat) != device {
                continue;
            }
            let is_directory = stat.stx_mode & 0o170_000 == 0o040_000;
            let facts = match seen.get(&stat.stx_ino) {
                Some(facts) => facts.clone(),
                None => facts_of(&path, &stat, &mut xattrs_buffer),
            };
            if is_directory {
                for entry in must(std::fs::read_dir(&path), path.display()) {
                    let entry = must(entry, path.display());
                    let mut below = name.clone();
                    if !below.is_empty() {
                        below.push(b'/');
                    }
                    below.extend_from_slice(entry.file_name().as_bytes());
                    ahead.push(below);
                }
            } else if stat.stx_nlink > 1 {
                seen.insert(stat.stx_ino, facts.clone());
            }
            manifest.insert(&name, facts);
        }
        manifest
    }
}

/// Returns the facts about the whole volume.
pub(crate) fn statfs_facts(found: &StatVfs) -> Facts {
    Facts::from([
        ("block size".to_owned(), found.f_bsize.to_string()),
        ("blocks".to_owned(), found.f_blocks.to_string()),
        ("blocks free".to_owned(), found.f_bfree.to_string()),
        ("blocks available".to_owned(), found.f_bavail.to_string()),
        ("inodes".to_owned(), found.f_files.to_string()),
        ("inodes free".to_owned(), found.f_ffree.to_string()),
        ("longest name".to_owned(), found.f_namemax.to_string()),
    ])
}

fn stat(path: &Path) -> Statx {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    must(rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted), path.display())
}

fn device_of(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

/// Returns the facts about an inode that stat(2) reports.
pub(crate) fn attribute_facts(stat: &Statx) -> Facts {
    let mut facts = Facts::new();
    let mut add = |fact: &str, value: String| {
        facts.insert(fact.to_owned(), value);
    };
    add("inode", stat.stx_ino.to_string());
    add("mode", format!("{:06o}", stat.stx_mode));
    add("links", stat.stx_nlink.to_string());
    add("owner", format!("{}:{}", stat.stx_uid, stat.stx_gid));
    add("size", stat.stx_size.to_string());
    add("blocks", stat.stx_blocks.to_string());
    for (fact, time) in [
        ("accessed", stat.stx_atime),
        ("modified", stat.stx_mtime),
        ("changed", stat.stx_ctime),
        ("created", stat.stx_btime),
    ] {
        if fact != "created" || stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
            add(fact, time_text(time.tv_sec, time.tv_nsec));
        }
    }
    let kind = FileType::from_raw_mode(stat.stx_mode.into());
    if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
        add("device", format!("{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor));
    }
    facts
}

fn facts_of(path: &Path, stat: &Statx, xattrs_buffer: &mut [u8]) -> Facts {
    let mut facts = attribute_facts(stat);
    let mut add = |fact: &str, value: String| {
        facts.insert(fact.to_owned(), value);
    };
    let mode = u32::from(stat.stx_mode);
    match mode & 0o170_000 {
        0o120_000 => {
            let target = must(std::fs::read_link(path), path.display());
            add("target", value_text(target.as_os_str().as_bytes()));
        }
        0o100_000 | 0o040_000 => add_facts_of_open(path, stat, &mut add),
        _ => {}
    }
    match xattrs(path, xattrs_buffer) {
        Some(xattrs) => {
            for (name, value) in xattrs {
                add(&format!("xattr {}", escape(&name)), value_text(&value));
            }
        }
        None => add("xattr list", "damaged".to_owned()),
    }
    facts
}

fn add_facts_of_open(path: &Path, stat: &Statx, add: &mut impl FnMut(&str, String)) {
    let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        // The file is encrypted.
        Err(Errno::NOKEY) => return,
        file => File::from(must(file, path.display())),
    };
    // File systems other than ext4 support fewer of these.
    let flags = rustix::fs::ioctl_getflags(&file);
    if let Ok(flags) = flags {
        add("flags", format!("{:#x}", flags.bits()));
    }
    if let Ok(generation) = ioctl::generation(&file) {
        add("generation", generation.to_string());
    }
    if let Ok(project) = ioctl::project(&file) {
        add("project", project.to_string());
    }
    // f2fs looks for each block of an empty file that is not inline, as no encrypted file is, and
    // compares the checksum of its inode each time, which takes an emulated processor 20 ms.
    let is_encrypted = flags.is_ok_and(|flags| flags.bits() & ENCRYPTED != 0);
    let has_no_blocks = is_encrypted && stat.stx_size == 0 && stat.stx_blocks == 0;
    let extents = if has_no_blocks { Ok(Vec::new()) } else { ioctl::fiemap(&file) };
    if let Ok(extents) = extents {
        if extents.iter().any(|extent| extent.flags & FiemapExtent::INLINE != 0) {
            add("extents", "inline".to_owned());
        } else {
            let extents: Vec<Extent> = extents.iter().map(Extent::from).collect();
            add("extents", extents_text(&extents));
        }
    }
    if stat.stx_mode & 0o170_000 == 0o100_000 {
        let data = match data_ranges(&file, stat.stx_size, usize::MAX) {
            Err(Errno::NOENT) => None,
            data => Some(must(data, format_args!("the data of {}", path.display()))),
        };
        add("data", data.as_ref().map_or(NO_ANSWER.to_owned(), |data| ranges_text(data)));
        // Inline data is near the start.
        let near_start = 0..stat.stx_size.min(1 << 20);
        let data = data.unwrap_or_else(|| std::iter::once(near_start).collect());
        let digest = crate::digest(stat.stx_size, &data, |at, buffer| {
            must(file.read_exact_at(buffer, at), format_args!("{} at {at}", path.display()));
        });
        add("contents", digest);
    }
}

impl From<&FiemapExtent> for Extent {
    fn from(from: &FiemapExtent) -> Self {
        Self {
            logical: from.logical,
            physical: from.physical,
            length: from.length,
            unwritten: from.flags & FiemapExtent::UNWRITTEN != 0,
        }
    }
}

/// Returns the first `ranges_max` ranges between holes, as SEEK_DATA and SEEK_HOLE find them. Up to
/// 7.2, Linux fails with ENOENT past the end of inline data that is shorter than its file. It also
/// finds blocks of f2fs past the end of the file, if the same node has them.
pub fn data_ranges(file: &File, size: u64, ranges_max: usize) -> Result<Vec<Range<u64>>, Errno> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size && ranges.len() < ranges_max {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        ranges.push(start..at);
    }
    Ok(ranges)
}

/// Returns the names and values of a file's attributes. `None` if the list is damaged. `buffer` has
/// [`XATTR_BYTES_MAX`] bytes.
fn xattrs(path: &Path, buffer: &mut [u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let names = match rustix::fs::llistxattr(path, &mut *buffer) {
        // The file system does not support attributes.
        Err(Errno::OPNOTSUPP) => return Some(Vec::new()),
        Err(Errno::UCLEAN) => return None,
        length => buffer[..must(length, path.display())].to_vec(),
    };
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let read = |name: &[u8]| {
        let length = rustix::fs::lgetxattr(path, name, &mut *buffer);
        let length = must(length, format_args!("{}: {}", path.display(), escape(name)));
        (name.to_vec(), buffer[..length].to_vec())
    };
    Some(names.map(read).collect())
}
