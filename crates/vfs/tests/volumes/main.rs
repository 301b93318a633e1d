//! Tests of what volumes of all formats have.

#[path = "../common/mod.rs"]
mod common;

mod atomic;
mod cancellation;
mod encryption;
mod kept_nodes;
mod paths;
mod replaced;
mod writing;
