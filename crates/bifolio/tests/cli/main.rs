//! Tests of the commands.

#[path = "../support/mod.rs"]
mod support;

mod check;
mod confinement;
mod containers;
mod copy;
mod copy_strangers;
mod damage;
mod defrag;
mod f2fs;
mod general;
mod import;
mod listing;
mod tar;
mod write;
