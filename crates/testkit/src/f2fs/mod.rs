//! Images of f2fs: making them with mkfs.f2fs, filling and listing them by a guest's Linux or by
//! sload.f2fs, and fsck.f2fs as a judge. Not here: the guest, the contents of trees.
//!
//! A test program makes an image with [`Kind::make`], and fills it with [`Kind::fill`], or several
//! images in one boot with [`fill_all`]. The result is the [`Manifest`](crate::Manifest) of the
//! guest's kernel, for a comparison with that of another reader. The program needs
//! `harness = false` and begins its `main` with [`run_if_guest`](crate::guest::run_if_guest).
//!
//! [`change_all`] makes random changes of a [`Plan`](crate::turns::Plan), or [`wearing_steps`],
//! which leave an image nearly full and its segments partly valid. [`break_off`] with an
//! [`interrupted_turn`] leaves images that the next mount must roll forward. [`list_all`] of a copy
//! gives the contents after that by the kernel, and [`list_last_checkpoints`] those before.
//! [`cut_states`] copies images in the middle of such a turn. [`hostile`] damages single fields of
//! small images.

mod check;
mod cut;
mod encrypted;
mod extension;
mod fill;
pub mod hostile;
mod inline;
mod kind;
mod layout;
pub mod make;
mod offered;
mod segments;
mod tools;
mod unclean;
mod wear;

pub use check::{
    check_by_both, check_by_fsck, check_by_library, check_recovered, complaint_of_fsck, findings,
};
pub use cut::{
    Torn, cut_states, damage_synced_node, lose_synced_xattr_node, recorded_states,
    set_checkpoint_flags, states_after_cuts, tear_synced_inode,
};
pub use encrypted::encrypt_root;
pub use extension::cut_off_extension;
pub use fill::{
    break_off, change_all, change_all_encrypted, fill_all, fill_and_decrypt_all, list_all,
    list_last_checkpoints,
};
pub use inline::{damage_inline, store_inline};
pub use kind::{Filler, KINDS, Kind};
pub use offered::offer_all_segments_but;
pub use segments::{Segment, check_kinds_of_sections, segments};
pub use tools::Tools;
pub use unclean::{Steps, interrupted_turn};
pub use wear::wearing_steps;

/// The size of a block in bytes.
pub const BLOCK_SIZE: u32 = 4096;
