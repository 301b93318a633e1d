//! ext4 in user space: the library. The command line is in `main.rs`.
#![forbid(unsafe_code)]
