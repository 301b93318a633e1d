//! Layout of a volume: its geometry, block groups, bitmaps, and the blocks of structures with fixed positions.

pub(crate) mod bitmap;
pub(crate) mod block_validity;
pub(crate) mod geometry;
pub(crate) mod group;
pub(crate) mod system_zones;
pub(crate) mod zones;
