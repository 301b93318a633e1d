//! What files on a kind of volume are known not to offer, so that no other operation is refused
//! unnoticed.

use testkit::crash::Kind;
use vfs::Fallocate;

/// Returns whether files refuse this mode of fallocate.
pub fn refuses(kind: &Kind, mode: Fallocate) -> bool {
    let shifts = matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange);
    let clears = matches!(mode, Fallocate::PunchHole | Fallocate::ZeroRange { .. });
    kind.has_block_maps() && mode != Fallocate::PunchHole
        || kind.is_compressed() && (shifts || clears)
        || kind.is_encrypted() && shifts
}

/// Returns whether files refuse to exchange blocks.
pub fn refuses_to_move_extents(kind: &Kind) -> bool {
    !kind.is_ext4() || kind.has_block_maps() || kind.has_clusters()
}
