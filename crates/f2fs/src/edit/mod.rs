//! Changes of nodes and directories in memory: the overlay, and the changes that operations and
//! recoveries have in common. A checkpoint writes the overlay (`write/checkpoint/mod.rs`).

mod create;
mod data;
mod deletion;
mod entries;
mod fields;
mod inline;
mod nodes;
mod position;
mod saved;

pub(crate) use self::deletion::{delete_inode, free_data};
pub(crate) use self::entries::EntryEditor;
pub(crate) use self::fields::InodeName;
pub(crate) use self::nodes::{Editor, Slot, nid_of};
pub(crate) use self::position::{MapShape, first_block, has_addresses};
