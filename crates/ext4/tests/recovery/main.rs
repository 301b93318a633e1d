//! Tests of the recovery of logs and fast commits.

#[path = "../common/mod.rs"]
mod common;

mod fast_commits;
mod interrupted_replays;
