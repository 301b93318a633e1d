//! Facts about a tree, read by the library.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use base::attributes::{Attributes, DirCursor, FileType};
use base::{Error, FileOffset, InodeNumber, Unsupported};
use device::OpenDevice;
use iomap::FiemapExtent;
use vfs::{File, Node, Volume, VolumeOptions};

use super::{
    Extent, Facts, Manifest, VOLUME, escape, extents_text, ranges_text, time_text, value_text,
};
use crate::must;

/// The inode flags that ext4 shows to programs, and that of pinned files of f2fs.
pub(crate) const FLAGS_VISIBLE: u32 = 0x725B_DFFF | 0x80_0000;

impl Manifest {
    /// Returns the manifest of the volume in `image`.
    pub fn of_image(image: &Path) -> Self {
        Self::of_image_with(image, &VolumeOptions::default())
    }

    /// Returns the manifest of the volume in `image`, which is opened with `options`.
    pub fn of_image_with(image: &Path, options: &VolumeOptions) -> Self {
        let device = must(device::open(image, OpenDevice::default()), image.display());
        Self::of_volume(&must(Volume::open_device(device, options), image.display()))
    }

    /// Returns the manifest of `volume`.
    pub fn of_volume(volume: &Volume) -> Self {
        let mut manifest = Self::default();
        manifest.entries.insert(VOLUME.to_owned(), statfs_facts(volume));
        let root = must(volume.root(), "the root");
        let mut seen: HashMap<InodeNumber, Facts> = HashMap::new();
        let mut ahead: Vec<(Vec<u8>, Arc<Node>)> = vec![(Vec::new(), root)];
        while let Some((name, node)) = ahead.pop() {
            let shown = escape(&name);
            let facts = match seen.get(&node.number()) {
                Some(facts) => facts.clone(),
                None => facts_of(&node, &shown),
            };
            if node.kind() == FileType::Directory {
                for below in entries_of(&node, &shown) {
                    let number = must(node.lookup(&below), format_args!("{shown}: lookup"));
                    let child = must(volume.node(number), format_args!("{shown}: {number}"));
                    let path =
                        [&name[..], &below].join(if name.is_empty() { &b""[..] } else { b"/" });
                    ahead.push((path, child));
                }
            } else if node.attributes().links > 1 {
                seen.insert(node.number(), facts.clone());
            }
            manifest.insert(&name, facts);
        }
        manifest
    }
}

/// Returns the names in a directory. Checks that lookups find the inodes of its entries.
fn entries_of(node: &Arc<Node>, shown: &str) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    let mut emit = |entry: base::attributes::DirEntry<'_>| {
        entries.push((entry.name.to_vec(), entry.inode));
        ControlFlow::Continue(())
    };
    must(node.read_dir(DirCursor::default(), &mut emit), shown);
    for (name, number) in &entries {
        let found = must(node.lookup(name), format_args!("{shown}: lookup"));
        assert_eq!(found, *number, "{shown}: {}", escape(name));
    }
    let names = entries.into_iter().map(|(name, _)| name);
    names.filter(|name| name != b"." && name != b"..").collect()
}

/// Returns the facts about the whole volume.
pub(crate) fn statfs_facts(volume: &Volume) -> Facts {
    let found = volume.statfs();
    Facts::from([
        ("block size".to_owned(), found.block_size.to_string()),
        ("blocks".to_owned(), found.blocks.to_string()),
        ("blocks free".to_owned(), found.blocks_free.to_string()),
        ("blocks available".to_owned(), found.blocks_available.to_string()),
        ("inodes".to_owned(), found.inodes.to_string()),
        ("inodes free".to_owned(), found.inodes_free.to_string()),
        ("longest name".to_owned(), found.name_bytes_max.to_string()),
    ])
}

/// Returns the facts about an inode that stat(2) reports.
pub(crate) fn attribute_facts(found: &Attributes) -> Facts {
    let mut facts = Facts::new();
    let mut add = |fact: &str, value: String| {
        facts.insert(fact.to_owned(), value);
    };
    add("inode", found.inode.to_string());
    add("mode", format!("{:06o}", found.mode()));
    add("links", found.links.to_string());
    add("owner", format!("{}:{}", found.uid, found.gid));
    add("size", found.size.to_string());
    add("blocks", found.blocks.to_string());
    for (fact, time) in [
        ("accessed", Some(found.accessed)),
        ("modified", Some(found.modified)),
        ("changed", Some(found.changed)),
        ("created", found.created),
    ] {
        if let Some(time) = time {
            add(fact, time_text(time.seconds, time.nanoseconds));
        }
    }
    if matches!(found.kind, FileType::CharacterDevice | FileType::BlockDevice) {
        add("device", format!("{}:{}", found.device.major, found.device.minor));
    }
    facts
}

fn facts_of(node: &Arc<Node>, shown: &str) -> Facts {
    let found: Attributes = node.attributes();
    let mut facts = attribute_facts(&found);
    let mut add = |fact: &str, value: String| {
        facts.insert(fact.to_owned(), value);
    };
    match found.kind {
        FileType::Symlink => add("target", value_text(&must(node.read_link(), shown))),
        // As by the kernel, such a file cannot be opened.
        FileType::Regular if is_locked(node) => {}
        FileType::Regular | FileType::Directory => {
            add("flags", format!("{:#x}", found.flags & FLAGS_VISIBLE));
            add("generation", found.generation.to_string());
            add("project", found.project.unwrap_or(0).to_string());
            add("extents", extents_of(node, shown));
            if found.kind == FileType::Regular {
                add_facts_of_open(node, &found, shown, &mut add);
            }
        }
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {}
    }
    for name in must(node.list_xattrs(), shown) {
        let value = must(node.get_xattr(&name), format_args!("{shown}: {}", escape(&name)));
        add(&format!("xattr {}", escape(&name)), value_text(&value));
    }
    facts
}

/// Returns whether the file is encrypted, and the volume was opened without its key.
fn is_locked(node: &Arc<Node>) -> bool {
    matches!(node.open(), Err(Error::Unsupported(Unsupported::Encrypted(_))))
}

fn add_facts_of_open(
    node: &Arc<Node>,
    found: &Attributes,
    shown: &str,
    add: &mut impl FnMut(&str, String),
) {
    let file = must(node.open(), shown);
    let data = data_ranges(&file, found.size, shown);
    add("data", ranges_text(&data));
    let digest = crate::digest(found.size, &data, |at, buffer| {
        let read = must(file.read_at(buffer, at), format_args!("{shown} at {at}"));
        assert_eq!(read, buffer.len(), "{shown}: short read at {at}");
    });
    add("contents", digest);
}

fn extents_of(node: &Arc<Node>, shown: &str) -> String {
    let mut extents: Vec<Extent> = Vec::new();
    let mut inline = false;
    let mut emit = |extent: FiemapExtent| {
        inline |= extent.flags.inline;
        extents.push(Extent {
            logical: extent.logical.0,
            physical: extent.physical.0,
            length: extent.length,
            unwritten: extent.flags.unwritten,
        });
        ControlFlow::Continue(())
    };
    let everything = FileOffset(0)..FileOffset(u64::MAX);
    must(node.extents(everything, &mut emit), format_args!("{shown}: extents"));
    if inline { "inline".to_owned() } else { extents_text(&extents) }
}

fn data_ranges(file: &File, size: u64, shown: &str) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match file.seek_data(FileOffset(at)) {
            Ok(start) => start,
            Err(Error::NoSuchOffset) => break,
            Err(error) => panic!("{shown}: data from {at}: {error}"),
        };
        let end = must(file.seek_hole(start), format_args!("{shown}: hole from {start}"));
        ranges.push(start.0..end.0);
        at = end.0;
    }
    ranges
}
