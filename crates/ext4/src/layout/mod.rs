//! Layout of a volume: its geometry, block groups, bitmaps, and the blocks of structures with fixed
//! positions.

pub(crate) mod geometry;
pub(crate) mod group;
pub(crate) mod zones;
