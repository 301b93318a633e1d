//! Files in memory with the contents of a device, for programs that judge them. Most states that a
//! thread judges one after the other differ in few blocks, so only these are written.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, BlockDevice, RebuiltDevice, SharedDevice};
use rustix::fs::{MemfdFlags, memfd_create};

use super::disks::Disks;

/// The unit in which devices and files are compared, in bytes.
const CHUNK: usize = 1 << 18;
/// The unit in which they differ.
const BLOCK: usize = RebuiltDevice::BLOCK.len();

/// A file in memory, and its contents.
#[derive(Debug)]
pub struct ImageFile {
    file: Arc<File>,
    contents: Vec<u8>,
    base: Option<Base>,
}

/// The contents that a file had before a recording.
#[derive(Debug)]
struct Base {
    before: SharedDevice,
    /// The blocks that may differ from them now.
    changed: BTreeSet<u64>,
}

impl ImageFile {
    pub fn new() -> Self {
        let file = memfd_create("image", MemfdFlags::CLOEXEC).unwrap().into();
        Self { file: Arc::new(file), contents: Vec::new(), base: None }
    }

    /// Returns a path by which another process can open the file.
    pub fn path(&self) -> String {
        path(&self.file)
    }

    /// Makes the contents those of a volume.
    pub fn become_volume_of(&mut self, disks: &Disks) {
        match &disks.rebuilt {
            Some(rebuilt) => self.become_rebuilt(rebuilt),
            None => self.become_copy_of(&disks.volume),
        }
    }

    /// Makes the contents those of `device`.
    pub fn become_copy_of(&mut self, device: &SharedDevice) {
        self.base = None;
        let size = device.size() as usize;
        if self.contents.len() != size {
            self.file.set_len(0).unwrap();
            self.file.set_len(size as u64).unwrap();
            self.contents = vec![0; size];
        }
        let mut chunk = vec![0; CHUNK];
        for at in (0..size).step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(size - at)];
            device.read_at(DeviceOffset(at as u64), chunk).unwrap();
            self.write(at, chunk);
        }
    }

    /// Makes the contents those of `rebuilt`.
    pub fn become_rebuilt(&mut self, rebuilt: &RebuiltDevice) {
        let base = self.base.take().filter(|base| Arc::ptr_eq(&base.before, rebuilt.before()));
        let base = base.unwrap_or_else(|| {
            let before = Arc::clone(rebuilt.before());
            self.become_copy_of(&before);
            Base { before, changed: BTreeSet::new() }
        });
        let (mut restored, mut changed) = (base.changed, BTreeSet::new());
        rebuilt.for_each_changed(|number, block| {
            restored.remove(&number);
            changed.insert(number);
            self.write(number as usize * BLOCK, block);
        });
        let mut block = vec![0; BLOCK];
        for number in restored {
            let at = number as usize * BLOCK;
            base.before.read_at(DeviceOffset(at as u64), &mut block).unwrap();
            self.write(at, &block);
        }
        self.base = Some(Base { changed, ..base });
    }

    /// Writes the blocks of `data` that differ from the contents at byte `at`.
    fn write(&mut self, at: usize, data: &[u8]) {
        let old = &mut self.contents[at..at + data.len()];
        if old == data {
            return;
        }
        for (index, (old, new)) in old.chunks_mut(BLOCK).zip(data.chunks(BLOCK)).enumerate() {
            if old != new {
                self.file.write_all_at(new, (at + index * BLOCK) as u64).unwrap();
                old.copy_from_slice(new);
            }
        }
    }

    /// Finds out what another program has written to the file.
    pub fn look_again(&mut self) {
        let mut chunk = vec![0; CHUNK];
        for (index, old) in self.contents.chunks_mut(CHUNK).enumerate() {
            let chunk = &mut chunk[..old.len()];
            self.file.read_exact_at(chunk, (index * CHUNK) as u64).unwrap();
            if old == chunk {
                continue;
            }
            let first = (index * (CHUNK / BLOCK)) as u64;
            for (number, (old, new)) in
                (first..).zip(old.chunks_mut(BLOCK).zip(chunk.chunks(BLOCK)))
            {
                if old != new {
                    old.copy_from_slice(new);
                    if let Some(base) = &mut self.base {
                        base.changed.insert(number);
                    }
                }
            }
        }
    }

    /// Returns a device that reads the file, as it is at the time of each read.
    pub fn device(&self) -> SharedDevice {
        let (file, size) = (Arc::clone(&self.file), self.contents.len() as u64);
        Arc::new(ImageDevice { file, size })
    }
}

/// Returns a path by which another process can open a file in memory.
pub fn path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// A read-only device over a file.
#[derive(Debug)]
struct ImageDevice {
    file: Arc<File>,
    size: u64,
}

impl BlockDevice for ImageDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn submit(&self, batch: Vec<Bio>) {
        for mut bio in batch {
            assert_eq!(bio.operation(), BioOperation::Read);
            let mut at = bio.offset().0;
            for memory in bio.memory_mut() {
                self.file.read_exact_at(memory, at).unwrap();
                at += memory.len() as u64;
            }
            bio.end(Ok(()));
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: DeviceOffset, _: u64) -> Result<()> {
        unreachable!("it is read-only")
    }

    fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
        unreachable!("it is read-only")
    }
}

#[cfg(test)]
mod tests {
    use device::{MemoryDevice, RecordDevice, Replay};

    use super::*;

    /// Asserts that the file and `contents` equal a device.
    fn assert_copy(image: &ImageFile, device: &SharedDevice) {
        let mut expected = vec![0; device.size() as usize];
        device.read_at(DeviceOffset(0), &mut expected).unwrap();
        let mut found = vec![0; expected.len() + 1];
        let length = image.file.read_at(&mut found, 0).unwrap();
        assert!(found[..length] == expected && image.contents == expected);
    }

    #[test]
    fn a_file_becomes_each_state_also_after_another_program_has_written_to_it() {
        let size = 3 * CHUNK;
        let before: SharedDevice = Arc::new(MemoryDevice::new(vec![7; size]));
        let recorder = RecordDevice::over_layer(Arc::clone(&before), |device| device);
        let device: &dyn BlockDevice = &recorder;
        for (at, byte) in [(0, 1), (CHUNK - 512, 2), (2 * CHUNK + 100, 3), (0, 4)] {
            device.write_at(DeviceOffset(at as u64), &[byte; 1024]).unwrap();
        }
        let recording = recorder.recording();
        let mut image = ImageFile::new();
        // A longer file, of other contents.
        let other: SharedDevice = Arc::new(MemoryDevice::new(vec![9; size + BLOCK]));
        image.become_copy_of(&other);
        assert_copy(&image, &other);
        // Volatile writes are kept or not, so that states have and do not have them by turns.
        for (step, point) in recording.crash_points().enumerate() {
            let state = Replay::new(&recording).device(point, |_, _| step % 2 == 0).unwrap();
            image.become_rebuilt(&state);
            assert_copy(&image, &state.device());
            let at = (step * 2 * BLOCK + 5) as u64;
            image.file.write_all_at(&[step as u8; 10], at).unwrap();
            image.look_again();
            let device = image.device();
            assert_copy(&image, &device);
            // A copy of itself.
            if step % 3 == 0 {
                image.become_copy_of(&device);
                assert_copy(&image, &device);
            }
        }
    }
}
