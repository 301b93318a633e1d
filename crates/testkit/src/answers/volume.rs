//! Questions about a tree, to the library.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, FileOffset};
use iomap::FiemapExtent;
use vfs::{File, Node, Volume};

use super::{
    Answer, Answers, ENTRIES_MAX, EXTENTS_MAX, Entry, Facts, Failure, RANGES_MAX, Reader,
    insert_contents, insert_known,
};
use crate::manifest::volume::{FLAGS_VISIBLE, attribute_facts, statfs_facts};
use crate::manifest::{Extent, VOLUME, escape, extents_text, ranges_text, value_text};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { errno: error.errno(), text: error.to_string() }
    }
}

impl Answers {
    /// Returns the library's answers about the tree of `volume`.
    pub fn of_volume(volume: &Volume) -> Self {
        let mut answers = Self::of(&OfVolume(volume));
        let facts = answers.names.entry(VOLUME.to_owned()).or_default();
        insert_known(facts, statfs_facts(volume));
        answers
    }
}

struct OfVolume<'v>(&'v Volume);

impl Reader for OfVolume<'_> {
    type Node = Arc<Node>;

    fn root(&self) -> Answer<Arc<Node>> {
        Ok(self.0.root()?)
    }

    fn number(&self, node: &Arc<Node>) -> u64 {
        node.number().0
    }

    fn list(&self, node: &Arc<Node>) -> Option<(Vec<Entry>, Option<Failure>)> {
        if node.kind() != FileType::Directory {
            return None;
        }
        let mut entries = Vec::new();
        let read = node.read_dir(DirCursor::default(), &mut |entry| {
            entries.push(Entry {
                name: entry.name.to_vec(),
                inode: entry.inode.0,
                kind: entry.kind.map_or('?', letter),
            });
            proceed(entries.len() < ENTRIES_MAX)
        });
        Some((entries, read.err().map(Failure::from)))
    }

    fn child(&self, node: &Arc<Node>, name: &[u8]) -> Answer<Arc<Node>> {
        Ok(self.0.lookup(node, name)?)
    }

    fn read(&self, node: &Arc<Node>, facts: &mut Facts) {
        insert_known(facts, attribute_facts(&node.attributes()));
        match node.kind() {
            FileType::Symlink => {
                let target = node.read_link().map(|target| value_text(&target));
                facts.insert("target".to_owned(), target.map_err(Failure::from));
            }
            FileType::Directory => insert_facts_of_open(node, facts),
            FileType::Regular => match node.open() {
                Ok(file) => {
                    insert_facts_of_open(node, facts);
                    insert_facts_of_data(node, &file, facts);
                }
                Err(error) => {
                    facts.insert("open".to_owned(), Err(error.into()));
                }
            },
            _ => {}
        }
        insert_xattrs(node, facts);
    }
}

fn proceed(yes: bool) -> ControlFlow<()> {
    if yes { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

fn letter(kind: FileType) -> char {
    match kind {
        FileType::Regular => 'r',
        FileType::Directory => 'd',
        FileType::Symlink => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'f',
        FileType::Socket => 'k',
    }
}

fn insert_facts_of_open(node: &Arc<Node>, facts: &mut Facts) {
    let found = node.attributes();
    facts.insert("flags".to_owned(), Ok(format!("{:#x}", found.flags & FLAGS_VISIBLE)));
    facts.insert("generation".to_owned(), Ok(found.generation.to_string()));
    facts.insert("project".to_owned(), Ok(found.project.unwrap_or(0).to_string()));
    facts.insert("extents".to_owned(), extents_of(node));
}

fn extents_of(node: &Node) -> Answer {
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
        proceed(extents.len() < EXTENTS_MAX)
    };
    node.extents(FileOffset(0)..FileOffset(u64::MAX), &mut emit)?;
    Ok(if inline { "inline".to_owned() } else { extents_text(&extents) })
}

fn insert_facts_of_data(node: &Node, file: &File, facts: &mut Facts) {
    let size = node.attributes().size;
    facts.insert("data".to_owned(), data_ranges(file, size));
    insert_contents(facts, size, |at, buffer| Ok(file.read_at(buffer, at)?));
}

fn data_ranges(file: &File, size: u64) -> Answer {
    let mut ranges = Vec::new();
    let mut at = FileOffset(0);
    while at.0 < size && ranges.len() < RANGES_MAX {
        let start = match file.seek_data(at) {
            Ok(start) => start,
            Err(Error::NoSuchOffset) => break,
            Err(error) => return Err(error.into()),
        };
        let end = file.seek_hole(start)?;
        ranges.push(start.0..end.0);
        at = end;
    }
    Ok(ranges_text(&ranges))
}

fn insert_xattrs(node: &Node, facts: &mut Facts) {
    let mut names = match node.list_xattrs() {
        Ok(names) => names,
        Err(error) => {
            facts.insert("attributes".to_owned(), Err(error.into()));
            return;
        }
    };
    names.sort_unstable();
    let text = names.iter().map(|name| escape(name)).collect::<Vec<_>>().join(", ");
    facts.insert("attributes".to_owned(), Ok(text));
    for name in names {
        let value = node.get_xattr(&name).map(|value| value_text(&value));
        facts.insert(format!("attribute {}", escape(&name)), value.map_err(Failure::from));
    }
}
