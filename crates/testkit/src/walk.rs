//! Walks everything in a volume that nobody trusts, within bounds, and counts what came of it.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, FileOffset, InodeNumber};
use vfs::{Follow, Node, Volume};

/// Nodes looked at in one walk; the images are small.
const NODES_MAX: usize = 2_000;
/// Entries taken from one directory.
const ENTRIES_MAX: usize = 4_000;
/// Extents taken from one file.
const EXTENTS_MAX: usize = 10_000;
/// Bytes read at each of a file's places.
const READ_BYTES: usize = 128 << 10;

/// What a walk met.
#[derive(Clone, Copy, Default, Debug)]
pub struct Walked {
    /// Nodes loaded.
    pub nodes: usize,
    /// Calls that gave a result.
    pub successes: usize,
    /// Calls that found the image corrupt.
    pub corrupt: usize,
}

impl Walked {
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match &result {
            Ok(_) => self.successes += 1,
            Err(error) => {
                self.corrupt += usize::from(matches!(error, Error::Corrupt(_)));
                // Every error can be shown and has its number.
                assert!(!error.to_string().is_empty() && error.errno() > 0);
            }
        }
        result.ok()
    }
}

/// Does with each node of `volume` whatever can be done with it. Errors are counted; only panics
/// and endless work are failures.
pub fn walk(volume: &Volume) -> Walked {
    let mut walked = Walked::default();
    assert!(volume.statfs().block_size.is_power_of_two());
    let _ = volume.info();
    let mut seen: HashSet<InodeNumber> = HashSet::new();
    let mut ahead = Vec::from_iter(walked.note(volume.root()));
    while let Some(node) = ahead.pop() {
        if walked.nodes >= NODES_MAX || !seen.insert(node.number()) {
            continue;
        }
        ahead.extend(look(volume, &node, &mut walked));
    }
    walked
}

/// Does with one node whatever can be done with it.
pub fn look_at(volume: &Volume, node: &Arc<Node>) -> Walked {
    let mut walked = Walked::default();
    look(volume, node, &mut walked);
    walked
}

/// Looks at a node, and gives the nodes below it.
fn look(volume: &Volume, node: &Arc<Node>, walked: &mut Walked) -> Vec<Arc<Node>> {
    walked.nodes += 1;
    look_at_attributes(node, walked);
    match node.kind() {
        FileType::Directory => return look_at_directory(volume, node, walked),
        FileType::Regular => look_at_file(node, walked),
        FileType::Symlink => {
            if let Some(target) = walked.note(node.read_link()) {
                walked.note(volume.resolve(&target, Follow::Yes));
            }
        }
        _ => {}
    }
    Vec::new()
}

fn look_at_attributes(node: &Arc<Node>, walked: &mut Walked) {
    let attributes = node.attributes();
    assert!(attributes.modified.nanoseconds < 1_000_000_000);
    for name in walked.note(node.list_xattrs()).unwrap_or_default() {
        walked.note(node.get_xattr(&name));
    }
    walked.note(node.get_xattr(b"user.absent"));
    walked.note(node.get_xattr(b"system.posix_acl_access"));
    let mut extents = 0;
    walked.note(node.extents(FileOffset(0)..FileOffset(u64::MAX), &mut |_| {
        extents += 1;
        if extents < EXTENTS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }));
}

/// Lists a directory whole and again in small steps, and looks every name up.
fn look_at_directory(volume: &Volume, node: &Arc<Node>, walked: &mut Walked) -> Vec<Arc<Node>> {
    let mut names = Vec::new();
    let listed = walked.note(node.read_dir(DirCursor(0), &mut |entry| {
        names.push(entry.name.to_vec());
        if names.len() < ENTRIES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }));
    let mut cursor = DirCursor(0);
    let mut stepped = 0;
    while stepped < names.len() {
        let mut step = 0;
        let more = node.read_dir(cursor, &mut |entry| {
            cursor = entry.next;
            step += 1;
            if step < 7 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        stepped += step;
        if more.is_err() || step == 0 {
            break;
        }
    }
    if listed.is_some() && names.len() < ENTRIES_MAX {
        assert_eq!(stepped, names.len(), "a listing in steps is the listing at once");
    }
    walked.note(node.lookup(b"absent"));
    walked.note(node.lookup(&[b'n'; 300]));
    let mut found = Vec::new();
    for name in &names {
        if let Some(number) = walked.note(node.lookup(name)) {
            found.extend(walked.note(volume.node(number)));
        }
    }
    found
}

fn look_at_file(node: &Arc<Node>, walked: &mut Walked) {
    let Some(file) = walked.note(node.open()) else { return };
    let size = node.attributes().size;
    let mut buffer = vec![0; READ_BYTES];
    for at in [0, size / 2, size.saturating_sub(100), size, u64::MAX - 10] {
        walked.note(file.read_at(&mut buffer, at));
        walked.note(file.lend(FileOffset(at), READ_BYTES).map(|slice| slice.len()));
    }
    let mut here = FileOffset(0);
    for _ in 0..200 {
        let Some(data) = walked.note(file.seek_data(here)) else { break };
        assert!(data >= here);
        let Some(hole) = walked.note(file.seek_hole(data)) else { break };
        assert!(hole > data, "data at {data} has a length");
        here = hole;
    }
}
