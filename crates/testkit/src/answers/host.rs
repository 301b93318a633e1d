//! Questions about a tree that the running kernel has mounted.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::{
    Answer, Answers, ENTRIES_MAX, EXTENTS_MAX, Entry, Facts, Failure, RANGES_MAX, Reader,
    insert_contents, insert_known,
};
use crate::host::ioctl::{self, FiemapExtent};
use crate::manifest::host::{XATTR_BYTES_MAX, attribute_facts, data_ranges, statfs_facts};
use crate::manifest::{Extent, VOLUME, escape, extents_text, ranges_text, value_text};

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self { errno: errno.raw_os_error(), text: String::new() }
    }
}

impl Answers {
    /// Returns the answers of the running kernel about the tree at `top`.
    pub fn of_host(top: &Path) -> Self {
        let mut answers = Self::of(&Host { top });
        let facts = answers.names.entry(VOLUME.to_owned()).or_default();
        match rustix::fs::statvfs(top) {
            Ok(found) => insert_known(facts, statfs_facts(&found)),
            Err(errno) => {
                facts.insert("blocks".to_owned(), Err(errno.into()));
            }
        }
        answers
    }
}

struct Host<'t> {
    top: &'t Path,
}

struct HostNode {
    path: PathBuf,
    stat: Statx,
}

fn node(path: PathBuf) -> Answer<HostNode> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
    Ok(HostNode { path, stat })
}

fn open(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

impl HostNode {
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.stx_mode.into())
    }
}

impl Reader for Host<'_> {
    type Node = HostNode;

    fn root(&self) -> Answer<HostNode> {
        node(self.top.to_owned())
    }

    fn number(&self, node: &HostNode) -> u64 {
        node.stat.stx_ino
    }

    fn list(&self, node: &HostNode) -> Option<(Vec<Entry>, Option<Failure>)> {
        if node.kind() != FileType::Directory {
            return None;
        }
        let mut entries = Vec::new();
        let mut add = || -> Result<(), Errno> {
            for entry in Dir::read_from(open(&node.path)?)?.take(ENTRIES_MAX) {
                let entry = entry?;
                entries.push(Entry {
                    name: entry.file_name().to_bytes().to_vec(),
                    inode: entry.ino(),
                    kind: letter(entry.file_type()),
                });
            }
            Ok(())
        };
        let failure = add().err().map(Failure::from);
        Some((entries, failure))
    }

    fn child(&self, directory: &HostNode, name: &[u8]) -> Answer<HostNode> {
        node(directory.path.join(OsStr::from_bytes(name)))
    }

    fn read(&self, node: &HostNode, facts: &mut Facts) {
        insert_known(facts, attribute_facts(&node.stat));
        match node.kind() {
            FileType::Symlink => {
                let target = rustix::fs::readlink(&node.path, Vec::new());
                let target = target.map(|target| value_text(target.to_bytes()));
                facts.insert("target".to_owned(), target.map_err(Failure::from));
            }
            FileType::RegularFile | FileType::Directory => match open(&node.path) {
                Ok(file) => insert_facts_of_open(node, &file, facts),
                Err(errno) => {
                    facts.insert("open".to_owned(), Err(errno.into()));
                }
            },
            _ => {}
        }
        insert_xattrs(&node.path, facts);
    }
}

fn letter(kind: FileType) -> char {
    match kind {
        FileType::RegularFile => 'r',
        FileType::Directory => 'd',
        FileType::Symlink => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'f',
        FileType::Socket => 'k',
        FileType::Unknown => '?',
    }
}

fn insert_facts_of_open(node: &HostNode, file: &File, facts: &mut Facts) {
    let mut add = |fact: &str, value: Result<String, Errno>| {
        facts.insert(fact.to_owned(), value.map_err(Failure::from));
    };
    let flags = rustix::fs::ioctl_getflags(file);
    add("flags", flags.map(|flags| format!("{:#x}", flags.bits())));
    add("generation", ioctl::generation(file).map(|generation| generation.to_string()));
    if let Ok(project) = ioctl::project(file) {
        add("project", Ok(project.to_string()));
    }
    add("extents", ioctl::fiemap(file).map(|extents| text_of_extents(&extents)));
    if node.kind() == FileType::RegularFile {
        // Before contents are read, since data in the cache is not a hole.
        let data = data_ranges(file, node.stat.stx_size, RANGES_MAX);
        add("data", data.map(|data| ranges_text(&data)));
        insert_contents(facts, node.stat.stx_size, |at, buffer| read_at(file, at, buffer));
    }
}

fn text_of_extents(extents: &[FiemapExtent]) -> String {
    if extents.iter().any(|extent| extent.flags & FiemapExtent::INLINE != 0) {
        return "inline".to_owned();
    }
    let extents = extents.iter().take(EXTENTS_MAX).map(Extent::from);
    extents_text(&extents.collect::<Vec<_>>())
}

fn read_at(file: &File, at: u64, buffer: &mut [u8]) -> Answer<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read_at(&mut buffer[count..], at + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) => {
                return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO).into());
            }
        }
    }
    Ok(count)
}

fn insert_xattrs(path: &Path, facts: &mut Facts) {
    let mut buffer = vec![0; XATTR_BYTES_MAX];
    let listed = match rustix::fs::llistxattr(path, &mut buffer[..]) {
        Ok(length) => buffer[..length].to_vec(),
        Err(errno) => {
            facts.insert("attributes".to_owned(), Err(errno.into()));
            return;
        }
    };
    let mut names: Vec<&[u8]> =
        listed.split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    let text = names.iter().map(|name| escape(name)).collect::<Vec<_>>().join(", ");
    facts.insert("attributes".to_owned(), Ok(text));
    for name in names {
        let value = rustix::fs::lgetxattr(path, name, &mut buffer[..]);
        let value = value.map(|length| value_text(&buffer[..length]));
        facts.insert(format!("attribute {}", escape(name)), value.map_err(Failure::from));
    }
}
