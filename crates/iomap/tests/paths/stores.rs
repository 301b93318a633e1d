//! Stores to files' memory, and when a sync finds them. Not here: the stored data (the tests of
//! `vfs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::support::gate::setup;
use crate::support::waiting::Waiter;
use iomap::{WritableFile, fault_for_store};
use pagecache::{FaultHandler, MapWindow};

/// Serves the faults of a file's window, and records that the file is dirty.
struct Server {
    window: MapWindow,
    file: Arc<WritableFile>,
    /// The store, which waits for the fault.
    store: Waiter,
    store_waits: AtomicBool,
    is_recorded: AtomicBool,
}

impl FaultHandler for Server {
    fn handle_fault(&self, page: u64, _is_store: bool) {
        let dirtied = || {
            // False if the store has ended without waiting for this.
            self.store_waits.store(self.store.begins_to_wait(), Ordering::Release);
            self.is_recorded.store(true, Ordering::Release);
        };
        fault_for_store(&self.file, None, &self.window, page, 1, dirtied).unwrap();
    }
}

#[test]
fn a_store_ends_after_its_file_is_recorded_as_dirty() {
    let setup = setup(9, 4096);
    setup.write(0, &[1; 4096]);
    setup.sync();
    let window = setup.file.mapping().open_window(0..1, true, 4096).unwrap();
    let server = Arc::new(Server {
        window,
        file: Arc::clone(&setup.file),
        store: Waiter::default(),
        store_waits: AtomicBool::new(false),
        is_recorded: AtomicBool::new(false),
    });
    let serves = Arc::downgrade(&server);
    server.window.set_fault_handler(serves as Weak<dyn FaultHandler>);
    // SAFETY: the window has the file's only page, and lives on.
    server.store.run(|| unsafe { server.window.start().write_volatile(2) });
    assert!(server.store_waits.load(Ordering::Acquire), "the store does not wait");
    assert!(server.is_recorded.load(Ordering::Acquire), "a sync that begins now misses the file");
    assert_eq!(setup.file.mapping().bytes_dirty(), 4096);
}
