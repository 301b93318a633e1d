//! Mapped files. A mapped file has memory of its own, in which each page of the file has its own
//! offset, and map windows that show this memory. A folio's pages are moved there when they are
//! needed, and keep their addresses in the arena. So a folio and its pages in a window are the same
//! memory. Not here: reading missing pages, and preparing them for stores (`iomap`).
//!
//! Invariants (`W` for window):
//!
//! - **W1.** A page of a file's memory belongs to at most one folio, which is in the tree of the
//!   file's mapping. The page leaves the memory under the tree's lock, before the folio leaves the
//!   tree or at the same time.
//! - **W2.** A page of the memory that belongs to no folio does not exist: an access through a
//!   window is a fault, which a handler serves with the folio locked. So the thread that has a
//!   folio locked can remove its pages at any time.
//! - **W3.** While a window permits stores to bytes without a fault, the folio is STORABLE, the
//!   bytes' blocks are dirty, uptodate and not under writeback, and no bytes of the folio are lent.
//!   `Mapping::protect` ends this. It is called before blocks become clean or are lent, and before
//!   the file's end moves past them.
//! - **W4.** The file's memory ends with the page of the file's last byte. Past it, accesses get
//!   SIGBUS from the kernel.

mod area;
pub(crate) mod faults;
mod file_memory;
mod file_pages;
pub(crate) mod mapped;
mod userfault;
mod window;

pub use self::{
    faults::FaultHandler,
    window::{MapWindow, is_mapped},
};
