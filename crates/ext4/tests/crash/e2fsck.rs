//! Runs e2fsck on images in memory.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, BlockDevice, SharedDevice};
use rustix::fs::{MemfdFlags, memfd_create};

const CHUNK: usize = 1 << 18;

thread_local! {
    /// The image that e2fsck gets, and what it says: files without a file system, made once.
    static FILES: RefCell<Option<(Arc<File>, File)>> = const { RefCell::new(None) };
}

/// How an e2fsck has ended.
pub struct Outcome {
    pub code: i32,
    pub text: String,
    /// What it has left; good until the thread's next run.
    pub device: SharedDevice,
}

/// Runs e2fsck on a copy of what `device` holds.
pub fn run(argument: &str, device: &SharedDevice) -> Outcome {
    FILES.with_borrow_mut(|files| {
        let new = |name| File::from(memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
        let (image, said) = files.get_or_insert_with(|| (Arc::new(new("image")), new("said")));
        copy(device, image);
        said.set_len(0).unwrap();
        let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let output = File::options().append(true).open(path(said)).unwrap();
        let mut command = Command::new("e2fsck");
        command.args([argument, &path(image)]).stdin(Stdio::null());
        let status = command.stdout(output.try_clone().unwrap()).stderr(output).status();
        let code = status.expect("e2fsck runs").code().unwrap_or(i32::MAX);
        let text = std::fs::read_to_string(path(said)).unwrap();
        let size = device.size();
        Outcome { code, text, device: Arc::new(FileImage { file: Arc::clone(image), size }) }
    })
}

/// Puts what `device` holds into `file`.
fn copy(device: &SharedDevice, file: &File) {
    let size = device.size();
    file.set_len(size).unwrap();
    let mut chunk = vec![0; CHUNK];
    for at in (0..size).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min((size - at) as usize)];
        device.read_at(DeviceOffset(at), chunk).unwrap();
        file.write_all_at(chunk, at).unwrap();
    }
}

/// A file that is only read.
#[derive(Debug)]
struct FileImage {
    file: Arc<File>,
    size: u64,
}

impl BlockDevice for FileImage {
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
        unreachable!("it is only read")
    }

    fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
        unreachable!("it is only read")
    }
}
