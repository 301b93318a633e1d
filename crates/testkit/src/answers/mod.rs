//! The answers of a reader of an untrusted volume to all questions about its tree: facts, or
//! errors. Two readers should give the same facts where both give one. Not here: the questions
//! (`host`, `volume`), and trees that must be read without errors ([`Manifest`](crate::Manifest)).

mod compare;
mod host;
mod volume;

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

pub use compare::{Compared, Difference, Refusal, compare_images};

use crate::manifest::{self, escape};

/// The maximum number of names that are visited.
const NAMES_MAX: usize = 2_000;
/// The maximum number of entries that are read from a directory.
const ENTRIES_MAX: usize = 5_000;
/// The maximum number of ranges with data that are looked for in a file.
const RANGES_MAX: usize = 64;
/// The maximum number of extents of a file.
const EXTENTS_MAX: usize = 20_000;
/// Parts of files: all small parts are read up to the first limit, all large ones up to the second
/// one, and some after it.
const SMALL_PART: u64 = 4 << 10;
const SMALL_PARTS_END: u64 = 64 << 10;
const LARGE_PARTS_END: u64 = 2 << 20;

/// An error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Its number.
    pub errno: i32,
    /// The reader's description. May be empty.
    pub text: String,
}

/// A fact, or the reason why there is none.
pub type Answer<T = String> = Result<T, Failure>;

/// The answers to the questions about one name.
type Facts = BTreeMap<String, Answer>;

/// The answers about all names of a tree. Names are paths from the top, or "." for the top itself,
/// with unprintable bytes escaped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Answers {
    names: BTreeMap<String, Facts>,
}

/// A reader of a tree.
trait Reader {
    /// An inode, at a name.
    type Node;

    /// Returns the top of the tree.
    fn root(&self) -> Answer<Self::Node>;

    /// Returns the number of an inode.
    fn number(&self, node: &Self::Node) -> u64;

    /// Returns the names in a directory, and the error that ended the list. `None` if the inode is
    /// not a directory.
    fn list(&self, node: &Self::Node) -> Option<(Vec<Entry>, Option<Failure>)>;

    /// Returns the inode at a name of a directory.
    fn child(&self, node: &Self::Node, name: &[u8]) -> Answer<Self::Node>;

    /// Asks all questions about an inode, but for its names.
    fn read(&self, node: &Self::Node, facts: &mut Facts);
}

/// A directory entry.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    name: Vec<u8>,
    inode: u64,
    /// The first letter of the type, or '?'.
    kind: char,
}

impl Answers {
    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns a fact about a name.
    pub fn fact(&self, name: &str, fact: &str) -> Option<&str> {
        self.names.get(name)?.get(fact)?.as_ref().ok().map(String::as_str)
    }

    /// Returns whether all questions were answered without an error.
    pub fn is_whole(&self) -> bool {
        self.names.values().all(|facts| facts.values().all(Result::is_ok))
    }

    /// Asks `reader` about all names, in an order that depends only on the tree. Each inode is read
    /// at its first name only, so that directories that contain each other have an end.
    fn of<R: Reader>(reader: &R) -> Self {
        let mut answers = Self::default();
        let mut seen = HashSet::new();
        let mut ahead = vec![(Vec::new(), reader.root())];
        while let Some((name, node)) = ahead.pop() {
            if answers.len() >= NAMES_MAX {
                break;
            }
            let shown = if name.is_empty() { ".".to_owned() } else { escape(&name) };
            let facts = answers.names.entry(shown).or_default();
            let node = match node {
                Ok(node) => node,
                Err(failure) => {
                    facts.insert("inode".to_owned(), Err(failure));
                    continue;
                }
            };
            let number = reader.number(&node);
            facts.insert("inode".to_owned(), Ok(number.to_string()));
            if !seen.insert(number) {
                continue;
            }
            reader.read(&node, facts);
            let Some((mut entries, failure)) = reader.list(&node) else { continue };
            entries.sort_unstable();
            let listed = failure.map_or(Ok(list_text(&entries)), Err);
            facts.insert("names".to_owned(), listed);
            // The first name is the next one.
            for entry in entries.iter().rev().filter(|entry| is_visited(&entry.name)) {
                let separator = if name.is_empty() { &b""[..] } else { b"/" };
                let path = [&name[..], &entry.name].join(separator);
                ahead.push((path, reader.child(&node, &entry.name)));
            }
        }
        answers
    }
}

/// Returns whether an entry is looked up. System calls cannot look up all names.
fn is_visited(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// Returns a line for each entry.
fn list_text(entries: &[Entry]) -> String {
    let texts = entries
        .iter()
        .map(|entry| format!("{} {}{}", escape(&entry.name), entry.kind, entry.inode));
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the parts of a file that are read: offsets and lengths.
fn parts(size: u64) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < size.min(LARGE_PARTS_END) {
        let length = if at < SMALL_PARTS_END { SMALL_PART } else { SMALL_PARTS_END };
        parts.push((at, length));
        at += length;
    }
    // Positions of all magnitudes, and the end.
    let large = (LARGE_PARTS_END.trailing_zeros()..63).map(|shift| 1 << shift);
    parts.extend(large.take_while(|at| *at < size).map(|at| (at, SMALL_PART)));
    if size > LARGE_PARTS_END {
        parts.push(((size - 1) & !(SMALL_PART - 1), SMALL_PART));
    }
    parts
}

/// Inserts the contents of a file. `read` fills its buffer from an offset, and returns how much
/// there was.
fn insert_contents(
    facts: &mut Facts,
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Answer<usize>,
) {
    let mut buffer = vec![0; SMALL_PARTS_END as usize];
    for (at, length) in parts(size) {
        let part = read(at, &mut buffer[..length as usize]);
        let text = part.map(|count| format!("{count} bytes, {}", digest(&buffer[..count])));
        facts.insert(format!("contents at {at}"), text);
    }
}

/// Returns what stands for contents.
pub fn digest(bytes: &[u8]) -> String {
    crate::digest(bytes.len() as u64, &[], |at, buffer| {
        buffer.copy_from_slice(&bytes[at as usize..][..buffer.len()]);
    })
}

/// Adds facts that are known without an error.
fn insert_known(facts: &mut Facts, known: manifest::Facts) {
    facts.extend(known.into_iter().map(|(fact, value)| (fact, Ok(value))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_read_as_a_whole_and_large_ones_in_part() {
        assert_eq!(parts(0), []);
        assert_eq!(parts(5000), [(0, 4096), (4096, 4096)]);
        assert_eq!(parts(70_000).last(), Some(&(65_536, 65_536)));
        let large = parts(u64::MAX);
        assert_eq!(large.last(), Some(&(u64::MAX - 4095, 4096)));
        assert!(large.len() < 150 && large.contains(&(1 << 62, 4096)));
    }
}
