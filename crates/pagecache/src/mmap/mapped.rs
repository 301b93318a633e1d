//! What a mapping has of a mapped file: its memory, and its windows.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use super::area::Area;
use super::file_memory::FileMemory;

/// The memory and the windows of a mapped file.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    /// Set by the first window.
    pub(super) memory: OnceLock<FileMemory>,
    pub(super) windows: RwLock<Vec<Arc<Area>>>,
    pub(super) count: AtomicUsize,
}

impl Mapped {
    pub(super) fn add(&self, area: &Arc<Area>) {
        self.windows.write().push(Arc::clone(area));
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn remove(&self, area: &Arc<Area>) {
        let mut windows = self.windows.write();
        if let Some(at) = windows.iter().position(|window| Arc::ptr_eq(window, area)) {
            windows.swap_remove(at);
            self.count.fetch_sub(1, Ordering::Release);
        }
    }
}
