//! The `bifolio` command.
fn main() {}
