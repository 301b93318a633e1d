//! Tests of reads, writes and writeback on a format in memory.
#![allow(clippy::print_stdout, reason = "the seed of a failure")]

#[path = "../support/mod.rs"]
mod support;

mod checkpoints;
mod clusters;
mod concurrent;
mod end_order;
mod hostile;
mod many_files;
mod metadata;
mod nodes;
mod out_of_place;
mod reads;
mod reservations;
mod stores;
mod transforms;
mod writeback;
mod writes;
