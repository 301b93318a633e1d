//! Threads that commit while a volume is closed.

use std::cell::RefCell;
use std::sync::Arc;

use crate::common::{Image, inode_of, new_file, open_for_writing};

/// The position of the volume's name in the superblock.
const VOLUME_NAME: usize = 0x78;
/// How the superblock of a log begins: the magic number, and the kind of the block.
const LOG: &[u8] = &[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
/// The position of the last byte of the first block with changes, in the superblock of a log. It is
/// zero in an empty log.
const LOG_START: usize = 0x1F;

thread_local! {
    /// What the thread does once, before it lets no further change begin.
    static BEFORE_CLOSING: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Called after the last checkpoint, before changes are refused.
pub(super) fn before_closing() {
    let action = BEFORE_CLOSING.with_borrow_mut(Option::take);
    if let Some(action) = action {
        action();
    }
}

#[test]
fn a_commit_after_the_last_checkpoint_is_not_lost() {
    for options in [&["-O", "has_journal"], &["-O", "^has_journal"]] {
        let image = Image::make(8, options);
        let volume = open_for_writing(&image);
        let other = Arc::clone(&volume);
        let commit = Box::new(move || {
            new_file(&other, "late");
            other.sync().unwrap();
        });
        BEFORE_CLOSING.with_borrow_mut(|action| *action = Some(commit));
        volume.close().unwrap();
        assert!(BEFORE_CLOSING.with_borrow(Option::is_none));
        drop(volume);
        image.check_by_e2fsck();
        assert!(inode_of(&image, "late").0 > 0, "{options:?}");
    }
}

/// Another host may have the volume then, so nothing may be written.
#[test]
fn a_volume_that_is_marked_as_clean_while_it_is_closed_is_not_written_afterwards() {
    for options in [&["-O", "has_journal"], &["-O", "^has_journal"]] {
        let image = Image::make(8, options);
        let volume = open_for_writing(&image);
        new_file(&volume, "file");
        let other = Arc::clone(&volume);
        let path = image.path.clone();
        let marked = Arc::new(std::sync::Mutex::new(Vec::new()));
        let kept = Arc::clone(&marked);
        let mark = Box::new(move || {
            other.mark_clean().unwrap();
            // What another host writes must stay.
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[1024 + VOLUME_NAME] = 7;
            if let Some(log) =
                (0..bytes.len()).step_by(1024).find(|at| bytes[*at..].starts_with(LOG))
            {
                bytes[log + LOG_START] = 1;
            }
            std::fs::write(&path, &bytes).unwrap();
            *kept.lock().unwrap() = bytes;
        });
        BEFORE_CLOSING.with_borrow_mut(|action| *action = Some(mark));
        volume.close().unwrap();
        drop(volume);
        assert!(std::fs::read(&image.path).unwrap() == *marked.lock().unwrap(), "{options:?}");
    }
}
