//! Positions of the nodes of a map: the number in a node's footer, and the first block that the
//! node maps. Source: kernel documentation, `filesystems/f2fs.rst`, "Index Structure".

use crate::geometry::Geometry;
use crate::inode::record::InodeRecord;
use crate::ondisk::node::INODE_NIDS;

/// The counts that positions depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapShape {
    /// The number of addresses in the inode.
    pub(crate) in_inode: u64,
    /// The number of addresses in a direct node.
    pub(crate) in_node: u64,
    /// The number of node numbers in an indirect node.
    pub(crate) nids: u64,
}

impl MapShape {
    /// Returns the shape of a file's map.
    pub(crate) fn of(record: &InodeRecord, geometry: &Geometry) -> Self {
        Self {
            in_inode: record.address_count.into(),
            in_node: record.addresses_per_node.into(),
            nids: geometry.addresses_per_node().into(),
        }
    }
}

/// A kind of node of a map, below the inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeKind {
    Direct,
    Indirect,
    DoubleIndirect,
}

impl NodeKind {
    /// Returns the kinds and positions of the nodes whose numbers an inode has. `nids` is the
    /// number of node numbers in an indirect node.
    pub(super) fn below_inode(nids: u32) -> [(Self, u32); INODE_NIDS] {
        [
            (Self::Direct, 1),
            (Self::Direct, 2),
            (Self::Indirect, 3),
            (Self::Indirect, 4 + nids),
            (Self::DoubleIndirect, 5 + 2 * nids),
        ]
    }

    /// Returns the kind of the nodes whose numbers a node of this kind has, and the distance of
    /// their positions. `None` for direct nodes, which have addresses.
    pub(super) fn child(self, nids: u32) -> Option<(Self, u32)> {
        match self {
            Self::Direct => None,
            Self::Indirect => Some((Self::Direct, 1)),
            Self::DoubleIndirect => Some((Self::Indirect, nids + 1)),
        }
    }

    /// Returns the number of blocks that a node of this kind maps.
    pub(super) fn span(self, shape: MapShape) -> u64 {
        let MapShape { in_node, nids, .. } = shape;
        match self {
            Self::Direct => in_node,
            Self::Indirect => in_node * nids,
            Self::DoubleIndirect => in_node * nids * nids,
        }
    }
}

/// Returns whether the node at `position` is an inode or a direct node. Others have no addresses of
/// data.
pub(crate) fn has_addresses(position: u32, geometry: &Geometry) -> bool {
    // Which nodes these are does not depend on how many addresses they have.
    let shape = MapShape { in_inode: 0, in_node: 1, nids: geometry.addresses_per_node().into() };
    first_block(position, shape).is_some()
}

/// Returns the first block that the node at `position` maps. `None` if it is neither an inode nor a
/// direct node: if it is an indirect node, or has extended attributes.
pub(crate) fn first_block(position: u32, shape: MapShape) -> Option<u64> {
    let MapShape { in_inode, in_node, nids } = shape;
    let position = u64::from(position);
    let direct = match position {
        0 => return Some(0),
        1 | 2 => position - 1,
        _ if (4..4 + nids).contains(&position) => 2 + position - 4,
        _ if (5 + nids..5 + 2 * nids).contains(&position) => 2 + nids + position - (5 + nids),
        _ => {
            let below_double = position.checked_sub(6 + 2 * nids)?;
            let (indirect, child) = (below_double / (nids + 1), below_double % (nids + 1));
            if indirect >= nids {
                return None;
            }
            // Child 0 is the indirect node itself.
            2 + 2 * nids + indirect * nids + child.checked_sub(1)?
        }
    };
    Some(in_inode + direct * in_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::XATTR_POSITION;

    const SHAPE: MapShape = MapShape { in_inode: 100, in_node: 10, nids: 3 };

    #[test]
    fn direct_nodes_follow_each_other_and_indirect_nodes_map_nothing() {
        // Three nids: 3 and 7 are indirect, 11 double indirect, 12, 16 and 20 indirect.
        let indirect = [3, 7, 11, 12, 16, 20];
        let mut next = 100;
        for position in 1..24 {
            let expected = (!indirect.contains(&position)).then_some(next);
            assert_eq!(first_block(position, SHAPE), expected, "{position}");
            if expected.is_some() {
                next += 10;
            }
        }
        assert_eq!(next, 100 + 10 * (2 + 2 * 3 + 9));
        assert_eq!(first_block(0, SHAPE), Some(0));
    }

    #[test]
    fn kinds_of_nodes_agree_with_their_first_blocks() {
        let mut start = SHAPE.in_inode;
        for (kind, position) in NodeKind::below_inode(3) {
            let mut first = (position, kind);
            // The first direct node below begins where the subtree does.
            while let Some((child, _)) = first.1.child(3) {
                assert_eq!(first_block(first.0, SHAPE), None);
                first = (first.0 + 1, child);
            }
            assert_eq!(first_block(first.0, SHAPE), Some(start));
            start += kind.span(SHAPE);
        }
        let (_, positions) = NodeKind::DoubleIndirect.child(3).unwrap();
        assert_eq!(
            first_block(11 + 2 + positions, SHAPE),
            Some(180 + NodeKind::Indirect.span(SHAPE))
        );
    }

    #[test]
    fn positions_behind_the_last_node_map_nothing() {
        for position in [24, 25, 1 << 20, u32::MAX >> 3, u32::MAX] {
            assert_eq!(first_block(position, SHAPE), None, "{position}");
        }
    }

    #[test]
    fn nodes_with_extended_attributes_map_nothing() {
        // Of blocks of 4 and 16 KiB.
        for nids in [1018, 4090] {
            assert_eq!(first_block(XATTR_POSITION, MapShape { nids, ..SHAPE }), None);
        }
    }
}
