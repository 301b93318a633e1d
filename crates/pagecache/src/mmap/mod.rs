//! Files as memory: a file that is mapped has memory of its own, in which a page of the file lies at
//! its own offset, and windows onto it. The folios' pages are moved there when they are wanted, at the
//! addresses in the arena that they have; so a folio and what a window shows of it are the same memory.
//! Not here: what is read when a page is missing, and what a store to one needs (`iomap`).
//!
//! Invariants (`W` for window):
//!
//! - **W1.** A page of a file's memory is that of one folio at most, which its mapping's tree holds: it
//!   leaves the memory under the tree's lock, before or as it leaves the tree.
//! - **W2.** A page that no folio has there does not exist: touching it through a window is a fault,
//!   which somebody serves with the folio locked. Who has it locked can take it away at once.
//! - **W3.** Where a window lets bytes be stored to without a fault, the folio is STORABLE, the blocks
//!   are dirty, uptodate, and not on their way to the device, and nothing of the folio is lent.
//!   `Mapping::protect` ends that; whoever makes blocks clean, lends them, or moves the file's end past
//!   them calls it before.
//! - **W4.** The file's memory ends with the page that holds the file's last byte: past it, the kernel
//!   gives SIGBUS.

mod faults;
mod file_memory;
mod place;
mod userfault;
mod window;

pub(crate) use self::{faults::Faults, place::Mapped};
pub use self::{
    faults::ServeFault,
    window::{MapWindow, is_mapped},
};
