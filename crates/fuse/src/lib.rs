//! A FUSE server: transport, protocol and operations.
