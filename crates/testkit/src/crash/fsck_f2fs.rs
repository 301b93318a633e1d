//! Runs of fsck.f2fs on images in memory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::DeviceOffset;
use device::{RebuiltDevice, SharedDevice};
use rustix::fs::{MemfdFlags, memfd_create};

use super::e2fsck;
use crate::f2fs::complaint_of_fsck;

thread_local! {
    /// The image of the last state. Most states of a thread differ in few blocks.
    static IMAGE: RefCell<Option<Image>> = const { RefCell::new(None) };
}

/// A file in memory with the contents of a state. fsck.f2fs does not change it.
struct Image {
    file: File,
    contents: Vec<u8>,
    /// The contents before the recording.
    before: SharedDevice,
    /// The blocks that may differ from them.
    changed: BTreeSet<u64>,
}

impl Image {
    fn new(before: &SharedDevice) -> Self {
        let file: File = memfd_create("image", MemfdFlags::CLOEXEC).unwrap().into();
        let mut contents = vec![0; before.size() as usize];
        before.read_at(DeviceOffset(0), &mut contents).unwrap();
        file.write_all_at(&contents, 0).unwrap();
        let before = Arc::clone(before);
        Self { file, contents, before, changed: BTreeSet::new() }
    }

    /// Makes the contents those of `rebuilt`, which has the same contents before.
    fn become_copy_of(&mut self, rebuilt: &RebuiltDevice) {
        let mut restored = std::mem::take(&mut self.changed);
        rebuilt.for_each_changed(|number, block| {
            restored.remove(&number);
            self.changed.insert(number);
            self.write(number, block);
        });
        let before = Arc::clone(&self.before);
        for number in restored {
            let at = DeviceOffset(number << RebuiltDevice::BLOCK.shift());
            let mut block = vec![0; RebuiltDevice::BLOCK.len()];
            before.read_at(at, &mut block).unwrap();
            self.write(number, &block);
        }
    }

    fn write(&mut self, number: u64, block: &[u8]) {
        let at = number << RebuiltDevice::BLOCK.shift();
        let old = &mut self.contents[at as usize..][..block.len()];
        if old != block {
            self.file.write_all_at(block, at).unwrap();
            old.copy_from_slice(block);
        }
    }
}

/// Returns whether fsck.f2fs can read a volume. It needs blocks of the size of pages.
pub fn can_read(rebuilt: &RebuiltDevice) -> bool {
    let superblock = f2fs::Superblock::read(&rebuilt.device());
    superblock.is_ok_and(|superblock| superblock.geometry.block_size.len() == 4096)
}

/// Returns the output of fsck.f2fs about the contents of a device. `None` if it finds no errors.
pub fn complaint(rebuilt: &RebuiltDevice) -> Option<String> {
    IMAGE.with_borrow_mut(|image| {
        let before = rebuilt.before();
        let image = match image {
            Some(image) if Arc::ptr_eq(&image.before, before) => image,
            other => other.insert(Image::new(before)),
        };
        image.become_copy_of(rebuilt);
        complaint_of_fsck(Path::new(&e2fsck::path(&image.file)))
    })
}
