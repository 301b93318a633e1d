//! Layout of a volume: its geometry, block groups, bitmaps, and the blocks that hold metadata of fixed place.

pub(crate) mod bitmap;
pub(crate) mod block_validity;
pub(crate) mod geometry;
pub(crate) mod group;
pub(crate) mod system_zones;
