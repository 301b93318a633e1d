//! Tests of changes of a volume.

#[path = "../common/mod.rs"]
mod common;

mod attribute_writing;
mod data_writing;
mod directories;
mod live_inodes;
mod maps;
mod mmp;
mod orphans;
mod others;
mod random_names;
mod write_races;
