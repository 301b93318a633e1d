//! One module per command: its arguments, and `run`.

pub mod mount;
