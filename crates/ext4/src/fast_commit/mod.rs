//! Fast commits: changes that Linux writes between two full transactions, one tag for each.
//! Not here: the log of transactions (`jbd2`), and writing fast commits.

mod area;
pub mod ondisk;

pub use area::{Change, read_changes};
