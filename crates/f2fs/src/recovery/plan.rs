//! The choice of the nodes to replay: for each inode with a mark of fsync(2), its nodes up to the
//! last marked one. Nodes after that were not promised to be durable, and are dropped. Not here:
//! reading the chain (`chain`), and replaying it (`replay`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use base::{Error, InodeNumber, Problem, Result};

use super::STRUCTURE;
use super::chain::ChainNode;

/// The nodes of an inode to replay, as indices into the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedInode {
    /// The node to create the inode from, if the checkpoint does not have it.
    pub(crate) created_by: Option<usize>,
    /// The node with the name to recover.
    pub(crate) named_by: Option<usize>,
    /// The last node to replay.
    pub(crate) last: usize,
}

/// Returns the inodes to recover. `exists` returns whether the checkpoint has an inode.
///
/// A marked node may precede the block of its new inode. Nodes of an inode that neither exists nor
/// follows are dropped.
///
/// # Errors
///
/// `Corrupt` if a new inode exists already, and errors of `exists`.
pub(crate) fn plan(
    chain: &[ChainNode],
    mut exists: impl FnMut(InodeNumber) -> Result<bool>,
) -> Result<HashMap<InodeNumber, PlannedInode>> {
    let mut known: HashMap<InodeNumber, bool> = HashMap::new();
    let mut planned: HashMap<InodeNumber, PlannedInode> = HashMap::new();
    for (index, node) in chain.iter().enumerate().filter(|(_, node)| node.is_fsynced) {
        let is_named_inode = node.is_inode() && node.has_name;
        let entry = match planned.entry(node.inode) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(vacant) => {
                let exists = match known.get(&node.inode) {
                    Some(exists) => *exists,
                    None => exists(node.inode)?,
                };
                known.insert(node.inode, exists);
                if exists && is_named_inode {
                    let problem = Problem::Repeated("the new inode");
                    return Err(Error::corrupt(STRUCTURE, node.location(), problem));
                }
                if !exists && !is_named_inode {
                    continue;
                }
                let created_by = (!exists).then_some(index);
                vacant.insert(PlannedInode { created_by, named_by: None, last: index })
            }
        };
        entry.last = index;
        if is_named_inode {
            entry.named_by = Some(index);
        }
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use base::FsBlock;

    use super::*;
    use crate::nat::Nid;

    const OLD: u32 = 10;
    const NEW: u32 = 20;

    /// Parses a chain: `i` is an inode, `d` another node; `o` belongs to an inode that exists, `n`
    /// to one that does not; `F` is the mark of fsync, `D` that of the name.
    fn chain(text: &str) -> Vec<ChainNode> {
        let node = |(number, word): (usize, &str)| {
            let inode = if word.contains('o') { OLD } else { NEW };
            ChainNode {
                block: FsBlock(number as u64),
                nid: Nid(if word.contains('i') { inode } else { inode + 1 }),
                inode: InodeNumber(inode.into()),
                position: u32::from(!word.contains('i')),
                is_fsynced: word.contains('F'),
                has_name: word.contains('D'),
            }
        };
        text.split_whitespace().enumerate().map(node).collect()
    }

    type Planned = (Option<usize>, Option<usize>, usize);

    #[track_caller]
    fn check(text: &str, old: Option<Planned>, new: Option<Planned>) {
        let found = plan(&chain(text), |inode| Ok(inode.0 == u64::from(OLD))).unwrap();
        for (inode, expected) in [(OLD, old), (NEW, new)] {
            let found = found.get(&InodeNumber(inode.into()));
            let found = found.map(|inode| (inode.created_by, inode.named_by, inode.last));
            assert_eq!(found, expected, "{text}: inode {inode}");
        }
    }

    #[test]
    fn nodes_count_up_to_the_last_marked_one_of_their_inode() {
        check("", None, None);
        check("oi od", None, None);
        check("oi odF", Some((None, None, 1)), None);
        check("oiF odF oi od", Some((None, None, 1)), None);
        check("odF oi", Some((None, None, 0)), None);
        check("odF oiF", Some((None, None, 1)), None);
    }

    #[test]
    fn a_new_inode_needs_a_marked_block_with_its_name() {
        check("ni ndF", None, None);
        check("niF ndF", None, None);
        check("niD ndF", None, None);
        check("niFD ndF nd", None, Some((Some(0), Some(0), 1)));
        check("niFD niF niFD", None, Some((Some(0), Some(2), 2)));
    }

    #[test]
    fn marked_nodes_may_precede_their_new_inode() {
        check("ndF niFD", None, Some((Some(1), Some(1), 1)));
        check("ndF ni", None, None);
        check("ndF odF niFD nd od", Some((None, None, 1)), Some((Some(2), Some(2), 2)));
    }

    #[test]
    fn a_new_inode_must_not_exist() {
        let error = plan(&chain("oiFD"), |_| Ok(true)).unwrap_err().to_string();
        assert!(error.contains("the new inode occurs more than once"), "{error}");
        // After an unnamed mark, the inode is a known one, as for Linux.
        check("oiF oiFD", Some((None, Some(1), 1)), None);
    }
}
