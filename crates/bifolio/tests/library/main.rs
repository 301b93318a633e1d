//! Tests of the library.
#![allow(clippy::print_stdout, reason = "prints what it measured")]

#[path = "../support/mod.rs"]
mod support;

mod deep_trees;
mod large_metadata;
mod repeated_blocks;
mod std_calls;
