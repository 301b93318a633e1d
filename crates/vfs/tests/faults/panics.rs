//! Panics of threads that write data in the background, and metadata for a caller.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base::Error;
use testkit::{PanicDevice, PanicOnce};

use crate::kind::{KINDS, Kind};
use crate::{ALL, EIO, EROFS, WRITE, create, number, write};

#[test]
fn a_panic_in_background_writeback_shuts_the_volume_down() {
    KINDS.iter().for_each(panic_in_the_background);
}

fn panic_in_the_background(kind: &Kind) {
    let device = Arc::new(PanicDevice::new(kind.disk(), PanicOnce::new("bifolio-flush")));
    let volume = kind.open(device.clone());
    let node = create(&volume, "/file").unwrap();
    let file = node.open_for(WRITE).unwrap();
    volume.sync().unwrap();
    device.arm();
    // Above the background limit, so that the flusher writes back.
    let deadline = Instant::now() + Duration::from_secs(60);
    for at in (0..6).cycle() {
        assert!(Instant::now() < deadline, "{kind:?}: no write reports the panic");
        let written = write(&file, at << 20, &vec![7; 1 << 20]);
        std::thread::sleep(Duration::from_millis(20));
        if let Err(error) = written {
            let is_panic =
                matches!(&error, Error::ShutDown(cause) if matches!(**cause, Error::Panicked(_)));
            assert!(is_panic, "{kind:?}: {error:?}");
            break;
        }
    }
    assert!(device.has_panicked(), "{kind:?}");
    assert_eq!(number(create(&volume, "/more").map(drop)), EROFS, "{kind:?}");
    assert_eq!([number(file.sync_data()), number(volume.sync())], [EIO, EIO], "{kind:?}");
    assert_ne!(number(volume.close()), 0, "{kind:?}");
}

#[test]
fn a_panic_of_a_thread_that_syncs_shuts_the_volume_down() {
    for kind in &KINDS {
        panic_in_a_sync(kind, false);
        panic_in_a_sync(kind, true);
    }
}

/// Lets the thread panic that writes metadata for a sync of the file or of the whole volume.
fn panic_in_a_sync(kind: &Kind, of_volume: bool) {
    const NAME: &str = "syncing";
    let place = format!("{kind:?}, {of_volume}");
    let device = Arc::new(PanicDevice::new(kind.disk(), PanicOnce::new(NAME)));
    let volume = kind.open(device.clone());
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    let other = create(&volume, "/other").unwrap().open_for(WRITE).unwrap();
    volume.sync().unwrap();
    let data = vec![7; kind.length()];
    for file in [&file, &other] {
        assert_eq!(write(file, 0, &data), Ok(data.len()), "{place}");
        file.sync_range(0..u64::MAX, ALL).unwrap();
    }
    device.arm();
    thread::scope(|scope| {
        let sync = || if of_volume { volume.sync() } else { file.sync_all() };
        let syncing = thread::Builder::new().name(NAME.into()).spawn_scoped(scope, sync).unwrap();
        let synced = syncing.join();
        assert!(synced.is_err() || synced.is_ok_and(|synced| synced.is_err()), "{place}");
    });
    assert!(device.has_panicked(), "{place}");
    assert_eq!(number(create(&volume, "/more").map(drop)), EROFS, "{place}");
    assert_eq!(number(write(&file, 0, b"x").map(drop)), EROFS, "{place}");
    let synced = [number(file.sync_all()), number(other.sync_all()), number(volume.sync())];
    assert_eq!(synced, [EIO; 3], "{place}");
    assert_ne!(number(volume.close()), 0, "{place}");
}
