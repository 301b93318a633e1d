//! Tests of what only volumes of f2fs have.

#[path = "../common/mod.rs"]
mod common;

mod compressed;
mod damage;
mod encrypted;
mod inline;
mod labels;
mod projects;
mod quota;
mod reservations;
mod sessions;
mod sync_reasons;
mod syncs;
mod temperatures;
mod unsynced_xattrs;
