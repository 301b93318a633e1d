//! Runs of e2fsck on images in memory.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base::{BlockSize, DeviceOffset, FsBlock, Result};
use device::{Bio, BioOperation, BlockDevice, SharedDevice};
use rustix::fs::{MemfdFlags, memfd_create};

use super::disks::{Disks, VolumeFormat};

const CHUNK: usize = 1 << 18;

thread_local! {
    /// Files in memory for the image, the journal and the output of e2fsck. Each thread creates them once.
    static FILES: RefCell<Option<[Arc<File>; 3]>> = const { RefCell::new(None) };
}

/// The result of a run of e2fsck.
pub struct Outcome {
    /// The exit status.
    pub code: i32,
    /// The output.
    pub text: String,
    /// The devices after the run. Valid until the thread's next run.
    pub disks: Disks,
}

/// Runs e2fsck on a copy of the contents of `disks`.
pub fn run(argument: &str, disks: &Disks) -> Outcome {
    run_with(&[argument], disks)
}

/// Returns the output of `e2fsck -fn` about the volume on `device`, or `None` if it finds nothing.
pub fn complaint(device: &SharedDevice) -> Option<String> {
    let outcome = run("-fn", &Disks::new(Arc::clone(device), VolumeFormat::Ext4));
    (outcome.code != 0).then_some(outcome.text)
}

/// Runs e2fsck on a copy of the contents of `disks`, with the copy of the superblock in `block`.
pub fn repair_by_copy(block: FsBlock, block_size: BlockSize, disks: &Disks) -> Outcome {
    run_with(&["-fy", "-b", &block.to_string(), "-B", &block_size.bytes().to_string()], disks)
}

fn run_with(arguments: &[&str], disks: &Disks) -> Outcome {
    FILES.with_borrow_mut(|files| {
        let new = |name| Arc::new(memfd_create(name, MemfdFlags::CLOEXEC).unwrap().into());
        let files = files.get_or_insert_with(|| ["image", "journal", "output"].map(new));
        let [image, journal, text] = files;
        let volume = copy(&disks.volume, image);
        let journal_copy = disks.journal.as_ref().map(|device| copy(device, journal));
        text.set_len(0).unwrap();
        let output = File::options().append(true).open(path(text)).unwrap();
        let mut command = Command::new("e2fsck");
        if journal_copy.is_some() {
            command.args(["-j", &path(journal)]);
        }
        command.args(arguments).arg(path(image)).stdin(Stdio::null());
        let status = command.stdout(output.try_clone().unwrap()).stderr(output).status();
        let code = status.expect("e2fsck runs").code().unwrap_or(i32::MAX);
        // Names in damaged directories need not be UTF-8.
        let text = String::from_utf8_lossy(&std::fs::read(path(text)).unwrap()).into_owned();
        let disks = Disks { journal: journal_copy, ..Disks::new(volume, disks.format) };
        Outcome { code, text, disks }
    })
}

/// Returns a path by which another process can open a file in memory.
pub(super) fn path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Copies the contents of `device` to `file`. Returns a device that reads the file.
fn copy(device: &SharedDevice, file: &Arc<File>) -> SharedDevice {
    let size = device.size();
    file.set_len(size).unwrap();
    let mut chunk = vec![0; CHUNK];
    for at in (0..size).step_by(CHUNK) {
        let chunk = &mut chunk[..CHUNK.min((size - at) as usize)];
        device.read_at(DeviceOffset(at), chunk).unwrap();
        file.write_all_at(chunk, at).unwrap();
    }
    Arc::new(FileImage { file: Arc::clone(file), size })
}

/// A read-only device over a file.
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
        unreachable!("it is read-only")
    }

    fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
        unreachable!("it is read-only")
    }
}
