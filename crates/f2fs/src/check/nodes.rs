//! The check of nodes: each one in use is reached once, from its inode, at an address and a
//! position that fit. Not here: what nodes contain (`inodes`, `data`).

use base::{FsBlock, InodeNumber, Location, Problem};

use super::Check;
use super::inodes::File;
use super::owners::Owner;
use crate::nat::Nid;
use crate::node::Node;
use crate::ondisk::node::{INODE_NIDS, NEW_ADDRESS, NULL_ADDRESS};
use crate::summaries::BlockKind;

const STRUCTURE: &str = "node";

/// A node that was read, and the version of its number.
pub(super) struct VersionedNode {
    pub(super) node: Node,
    pub(super) version: u8,
}

/// A subtree of a file's map.
#[derive(Clone, Copy)]
struct Subtree {
    nid: u32,
    /// The number of levels of nodes below the root of the subtree.
    depth: u32,
    /// The position of its root in the file.
    position: u32,
    /// The first block of the file that the subtree maps.
    start: u64,
}

impl Check<'_> {
    /// Reads the node `nid` of `inode`, to which `from` refers, and claims it. Returns `None` after
    /// a finding that prevents that.
    pub(super) fn claim_node(
        &mut self,
        nid: u32,
        inode: InodeNumber,
        position: u32,
        from: Location,
    ) -> Option<VersionedNode> {
        let node = self.try_claim_node(nid, inode, position, from);
        self.has_unread_files |= node.is_none();
        node
    }

    fn try_claim_node(
        &mut self,
        nid: u32,
        inode: InodeNumber,
        position: u32,
        from: Location,
    ) -> Option<VersionedNode> {
        let max = self.geometry().nid_count().saturating_sub(1);
        let min = self.geometry().root.0;
        if !(min..=max).contains(&nid.into()) {
            let problem = Problem::Range { field: "node number", found: nid.into(), min, max };
            self.report.corrupt(STRUCTURE, from, problem);
            return None;
        }
        if !self.nodes.insert(nid.into()) {
            self.report.corrupt(STRUCTURE, from, Problem::Repeated("reference to the node"));
            return None;
        }
        let entry = self.nat_entry(Nid(nid), from);
        let entry = self.report.ok(entry)?;
        let address = entry.block.get();
        if matches!(address, NULL_ADDRESS | NEW_ADDRESS) {
            self.report.corrupt(STRUCTURE, from, Problem::Missing("address"));
            return None;
        }
        let block = self.geometry().main_block(address, STRUCTURE, from);
        let block = self.report.ok(block)?;
        let location = Location::inode(inode).at_block(block);
        let owner = u64::from(entry.inode.get());
        self.report.compare("NAT entry", location, "inode number", owner, inode.0);
        if !self.claim_block(block, BlockKind::Node, location) {
            return None;
        }
        let version = entry.version;
        let owner = Owner { kind: BlockKind::Node, nid, version, index: 0 };
        self.check_owner(block, owner, location);
        let node = self.volume.metadata().read(block, STRUCTURE, location);
        let node = node.and_then(|buffer| Node::new(buffer, Nid(nid), inode));
        let node = self.report.ok(node.and_then(|node| node.at_position(position)))?;
        self.counts.nodes += 1;
        Some(VersionedNode { node, version })
    }

    /// Claims a block of the main area. Returns false and reports it if it was claimed already.
    pub(super) fn claim_block(
        &mut self,
        block: FsBlock,
        kind: BlockKind,
        location: Location,
    ) -> bool {
        let is_new = self.claims.claim(block, kind);
        if is_new {
            self.counts.blocks += 1;
        } else {
            self.report.corrupt("block", location, Problem::Shared { blocks: 1 });
        }
        is_new
    }

    /// Checks the nodes of a file below its inode, and what they refer to.
    pub(super) fn check_file_nodes(&mut self, file: &mut File<'_>, nodes: [u32; INODE_NIDS]) {
        let nids = self.geometry().addresses_per_node();
        let direct = u64::from(file.record.addresses_per_node);
        let indirect = direct * u64::from(nids);
        let first = u64::from(file.record.address_count);
        // The positions of nodes: kernel documentation of f2fs, "Index Structure".
        let shapes = [
            (0, 1, first),
            (0, 2, first + direct),
            (1, 3, first + 2 * direct),
            (1, 4 + nids, first + 2 * direct + indirect),
            (2, 5 + 2 * nids, first + 2 * direct + 2 * indirect),
        ];
        for (nid, (depth, position, start)) in nodes.into_iter().zip(shapes) {
            self.check_subtree(file, Subtree { nid, depth, position, start });
        }
    }

    /// Checks a subtree. The recursion has the depth of the format's maps.
    fn check_subtree(&mut self, file: &mut File<'_>, subtree: Subtree) {
        let Subtree { nid, depth, position, start } = subtree;
        if nid == 0 || !self.report.go_on() {
            return;
        }
        let Some(read) = self.claim_node(nid, file.number(), position, file.location()) else {
            return;
        };
        file.blocks += 1;
        if depth == 0 {
            let count = file.record.addresses_per_node;
            return self.check_addresses(file, &read, 0, count, start);
        }
        let nids = self.geometry().addresses_per_node();
        let mut span = u64::from(file.record.addresses_per_node);
        let mut positions = 1;
        for _ in 1..depth {
            span *= u64::from(nids);
            positions = positions * nids + 1;
        }
        for (index, nid) in (0_u32..).zip(read.node.words(0, 0, nids)) {
            self.check_subtree(
                file,
                Subtree {
                    nid,
                    depth: depth - 1,
                    position: position + 1 + index * positions,
                    start: start + u64::from(index) * span,
                },
            );
        }
    }
}
