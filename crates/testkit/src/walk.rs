//! A bounded walk over all nodes of an untrusted volume, which counts the results.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, FileOffset, InodeNumber};
use vfs::{Follow, Node, Volume};

/// The maximum number of nodes in a walk. The images are small.
const NODES_MAX: usize = 2_000;
/// The maximum number of entries read from a directory.
const ENTRIES_MAX: usize = 4_000;
/// The maximum number of extents read from a file.
const EXTENTS_MAX: usize = 10_000;
/// The number of bytes of each read from a file.
const READ_BYTES: usize = 128 << 10;

/// The results of a walk.
#[derive(Clone, Copy, Default, Debug)]
pub struct Walked {
    /// The number of loaded nodes.
    pub nodes: usize,
    /// The number of successful calls.
    pub successes: usize,
    /// The number of calls that found corruption.
    pub corrupt: usize,
}

impl Walked {
    /// Counts the result of a call.
    fn count<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match &result {
            Ok(_) => self.successes += 1,
            Err(error) => {
                self.corrupt += usize::from(matches!(error, Error::Corrupt(_)));
                // Each error has a text and a number.
                assert!(!error.to_string().is_empty() && error.errno() > 0);
            }
        }
        result.ok()
    }
}

/// Makes all calls that read on each node of `volume`. Counts errors. Only panics and endless work
/// are failures.
pub fn walk(volume: &Volume) -> Walked {
    let mut walked = Walked::default();
    assert!(volume.statfs().block_size.is_power_of_two());
    let _ = volume.info();
    let mut seen: HashSet<InodeNumber> = HashSet::new();
    let mut ahead = Vec::from_iter(walked.count(volume.root()));
    while let Some(node) = ahead.pop() {
        if walked.nodes >= NODES_MAX || !seen.insert(node.number()) {
            continue;
        }
        ahead.extend(visit(volume, &node, &mut walked));
    }
    walked
}

/// Makes all calls that read on one node.
pub fn read_node(volume: &Volume, node: &Arc<Node>) -> Walked {
    let mut walked = Walked::default();
    visit(volume, node, &mut walked);
    walked
}

/// Makes all calls that read on a node. Returns the nodes in it, if it is a directory.
fn visit(volume: &Volume, node: &Arc<Node>, walked: &mut Walked) -> Vec<Arc<Node>> {
    walked.nodes += 1;
    read_attributes(node, walked);
    match node.kind() {
        FileType::Directory => return read_directory(volume, node, walked),
        FileType::Regular => read_file(node, walked),
        FileType::Symlink => {
            if let Some(target) = walked.count(node.read_link()) {
                walked.count(volume.resolve(&target, Follow::Yes));
            }
        }
        _ => {}
    }
    Vec::new()
}

fn read_attributes(node: &Arc<Node>, walked: &mut Walked) {
    let attributes = node.attributes();
    assert!(attributes.modified.nanoseconds < 1_000_000_000);
    for name in walked.count(node.list_xattrs()).unwrap_or_default() {
        walked.count(node.get_xattr(&name));
    }
    walked.count(node.get_xattr(b"user.absent"));
    walked.count(node.get_xattr(b"system.posix_acl_access"));
    let mut extents = 0;
    walked.count(node.extents(FileOffset(0)..FileOffset(u64::MAX), &mut |_| {
        extents += 1;
        if extents < EXTENTS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }));
}

/// Lists a directory in one call and again in small parts, and looks up all names.
fn read_directory(volume: &Volume, node: &Arc<Node>, walked: &mut Walked) -> Vec<Arc<Node>> {
    let mut names = Vec::new();
    let listed = walked.count(node.read_dir(DirCursor(0), &mut |entry| {
        names.push(entry.name.to_vec());
        if names.len() < ENTRIES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }));
    let mut cursor = DirCursor(0);
    let mut total = 0;
    while total < names.len() {
        let mut count = 0;
        let more = node.read_dir(cursor, &mut |entry| {
            cursor = entry.next;
            count += 1;
            if count < 7 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        total += count;
        if more.is_err() || count == 0 {
            break;
        }
    }
    if listed.is_some() && names.len() < ENTRIES_MAX {
        assert_eq!(
            total,
            names.len(),
            "a listing in parts has as many names as one in a single call"
        );
    }
    walked.count(node.lookup(b"absent"));
    walked.count(node.lookup(&[b'n'; 300]));
    let mut found = Vec::new();
    for name in &names {
        if let Some(number) = walked.count(node.lookup(name)) {
            found.extend(walked.count(volume.node(number)));
        }
    }
    found
}

fn read_file(node: &Arc<Node>, walked: &mut Walked) {
    let Some(file) = walked.count(node.open()) else { return };
    let size = node.attributes().size;
    let mut buffer = vec![0; READ_BYTES];
    for at in [0, size / 2, size.saturating_sub(100), size, u64::MAX - 10] {
        walked.count(file.read_at(&mut buffer, at));
        walked.count(file.lend(FileOffset(at), READ_BYTES).map(|slice| slice.len()));
    }
    let mut here = FileOffset(0);
    for _ in 0..200 {
        let Some(data) = walked.count(file.seek_data(here)) else { break };
        assert!(data >= here);
        walked.count(file.read_at(&mut buffer, data.0));
        let Some(hole) = walked.count(file.seek_hole(data)) else { break };
        assert!(hole > data, "data at {data} has a length");
        here = hole;
    }
}
