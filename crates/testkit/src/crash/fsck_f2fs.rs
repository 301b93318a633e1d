//! Runs of fsck.f2fs on images in memory.

use std::cell::RefCell;
use std::path::Path;

use device::RebuiltDevice;

use super::image_file::ImageFile;
use crate::f2fs::complaint_of_fsck;

thread_local! {
    /// The image of the last state, which fsck.f2fs does not change.
    static IMAGE: RefCell<Option<ImageFile>> = const { RefCell::new(None) };
}

/// Returns whether fsck.f2fs can read a volume. It needs blocks of the size of pages.
pub fn can_read(rebuilt: &RebuiltDevice) -> bool {
    let superblock = f2fs::Superblock::read(&rebuilt.device());
    superblock.is_ok_and(|superblock| superblock.geometry.block_size.len() == 4096)
}

/// Returns the output of fsck.f2fs about the contents of a device. `None` if it finds no errors.
pub fn complaint(rebuilt: &RebuiltDevice) -> Option<String> {
    IMAGE.with_borrow_mut(|image| {
        let image = image.get_or_insert_with(ImageFile::new);
        image.become_rebuilt(rebuilt);
        complaint_of_fsck(Path::new(&image.path()))
    })
}
