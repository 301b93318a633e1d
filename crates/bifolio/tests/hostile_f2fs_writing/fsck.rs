//! fsck.f2fs as a second judge.

use std::fs::File;
use std::os::unix::fs::FileExt;

use base::DeviceOffset;
use device::SharedDevice;
use tempfile::NamedTempFile;
use testkit::f2fs::complaint_of_fsck;

use super::COPIED;

/// A file with the contents of one device after another.
pub struct Image {
    file: NamedTempFile,
    contents: Vec<u8>,
}

impl Image {
    /// Returns a file of `length` zeroes.
    pub fn new(length: usize) -> Self {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(length as u64).unwrap();
        Self { file, contents: vec![0; length] }
    }

    /// Returns the output of fsck.f2fs about `device`. `None` if it finds no errors.
    pub fn complaint(&mut self, device: &SharedDevice) -> Option<String> {
        let file: &File = self.file.as_file();
        let mut read = vec![0; COPIED];
        for (at, old) in (0..).step_by(COPIED).zip(self.contents.chunks_mut(COPIED)) {
            let read = &mut read[..old.len()];
            device.read_at(DeviceOffset(at), read).unwrap();
            if old != read {
                old.copy_from_slice(read);
                file.write_all_at(old, at).unwrap();
            }
        }
        complaint_of_fsck(self.file.path())
    }
}
