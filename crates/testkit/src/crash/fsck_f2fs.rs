//! Runs of fsck.f2fs on images in memory.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::DeviceOffset;
use device::SharedDevice;
use rustix::fs::{MemfdFlags, memfd_create};

use super::e2fsck;
use crate::f2fs::complaint_of_fsck;

/// The size of parts that are compared and written as a whole, in bytes.
const PART: usize = 4 << 10;
/// The size of parts that are read as a whole, in bytes.
const CHUNK: usize = 256 << 10;

thread_local! {
    /// The image of the last state. Most states of a thread differ in few blocks.
    static IMAGE: RefCell<Option<Image>> = const { RefCell::new(None) };
}

/// A file in memory, and its contents. fsck.f2fs does not change it.
struct Image {
    file: File,
    contents: Vec<u8>,
}

impl Image {
    fn new(size: u64) -> Self {
        let file: File = memfd_create("image", MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(size).unwrap();
        Self { file, contents: vec![0; size as usize] }
    }

    /// Makes the contents those of `device`.
    fn become_copy_of(&mut self, device: &SharedDevice) {
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        for old in self.contents.chunks_mut(CHUNK) {
            let new = &mut chunk[..old.len()];
            device.read_at(DeviceOffset(at), new).unwrap();
            for (old, new) in old.chunks_mut(PART).zip(new.chunks(PART)) {
                if old != new {
                    self.file.write_all_at(new, at).unwrap();
                    old.copy_from_slice(new);
                }
                at += new.len() as u64;
            }
        }
    }
}

/// Returns whether fsck.f2fs can read a volume. It needs blocks of the size of pages.
pub(super) fn can_read(device: &SharedDevice) -> bool {
    let superblock = f2fs::Superblock::read(device);
    superblock.is_ok_and(|superblock| superblock.geometry.block_size.len() == PART)
}

/// Returns the output of fsck.f2fs about the contents of a device. `None` if it finds no errors.
pub(super) fn complaint(device: &SharedDevice) -> Option<String> {
    IMAGE.with_borrow_mut(|image| {
        let size = device.size();
        let image = match image {
            Some(image) if image.contents.len() as u64 == size => image,
            other => other.insert(Image::new(size)),
        };
        image.become_copy_of(device);
        complaint_of_fsck(Path::new(&e2fsck::path(&image.file)))
    })
}
