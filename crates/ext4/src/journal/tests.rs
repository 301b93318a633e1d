//! Threads that commit while a volume is closed.

use std::cell::RefCell;
use std::sync::Arc;

use crate::common::{Image, inode_of, new_file, open_for_writing};

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
