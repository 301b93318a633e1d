//! The decisions for each address in a replayed node, and for the file's size.

use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS};

/// The change of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotStep {
    /// Nothing: both addresses are the same.
    Keep,
    /// Free the block, and leave a hole.
    Free,
    /// Free the block, and reserve one without data.
    Reserve,
    /// Take this block away from any other owner. Then free the old block, and refer to this one.
    Refer(u32),
}

/// Returns the change from the address `now` to the address `replayed`.
pub(crate) fn slot_step(now: u32, replayed: u32) -> SlotStep {
    match replayed {
        _ if now == replayed => SlotStep::Keep,
        NULL_ADDRESS => SlotStep::Free,
        NEW_ADDRESS => SlotStep::Reserve,
        block => SlotStep::Refer(block),
    }
}

/// Returns the size of a file of `size` bytes after `step` at the block that ends at byte
/// `block_end`. A file that has blocks behind its end on purpose does not grow (`keeps_size`).
pub(crate) fn size_after(
    size: u64,
    step: SlotStep,
    block_start: u64,
    block_end: u64,
    keeps_size: bool,
) -> u64 {
    match step {
        SlotStep::Reserve | SlotStep::Refer(_) if !keeps_size && size <= block_start => block_end,
        _ => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_addresses_has_a_step() {
        let (hole, reserved) = (NULL_ADDRESS, NEW_ADDRESS);
        for (now, replayed, expected) in [
            (hole, hole, SlotStep::Keep),
            (reserved, reserved, SlotStep::Keep),
            (70, 70, SlotStep::Keep),
            (70, hole, SlotStep::Free),
            (reserved, hole, SlotStep::Free),
            (70, reserved, SlotStep::Reserve),
            (hole, reserved, SlotStep::Reserve),
            (hole, 71, SlotStep::Refer(71)),
            (reserved, 71, SlotStep::Refer(71)),
            (70, 71, SlotStep::Refer(71)),
        ] {
            assert_eq!(slot_step(now, replayed), expected, "{now} {replayed}");
        }
    }

    #[test]
    fn only_new_blocks_behind_the_end_grow_the_file() {
        let size = |step, size, keeps| size_after(size, step, 8192, 12288, keeps);
        for step in [SlotStep::Reserve, SlotStep::Refer(9)] {
            assert_eq!(size(step, 8192, false), 12288);
            assert_eq!(size(step, 0, false), 12288);
            assert_eq!(size(step, 8193, false), 8193);
            assert_eq!(size(step, 0, true), 0);
        }
        assert_eq!(size(SlotStep::Keep, 0, false), 0);
        assert_eq!(size(SlotStep::Free, 0, false), 0);
    }
}
