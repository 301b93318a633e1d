//! The commands. Each module has the arguments of a command and its function `run`.

pub mod cat;
pub mod check;
pub mod chmod;
pub mod chown;
pub mod completions;
pub mod cp;
pub mod defrag;
pub mod df;
pub mod du;
pub mod fallocate;
pub mod fiemap;
pub mod find;
pub mod info;
pub mod ln;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mount;
pub mod mv;
pub mod put;
pub mod rm;
pub mod stat;
pub mod sync;
pub mod tar;
pub mod tree;
pub mod umount;
