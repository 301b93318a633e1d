//! Runs of e2fsck on images in memory.

use std::cell::RefCell;
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base::{BlockSize, FsBlock};
use device::SharedDevice;
use rustix::fs::{MemfdFlags, memfd_create};

use super::disks::{Disks, VolumeFormat};
use super::image_file::{ImageFile, path};

/// The exit status if e2fsck has corrected all errors.
const REPAIRED: i32 = 1;

thread_local! {
    /// The files of e2fsck. Each thread creates them once.
    static FILES: RefCell<Option<Files>> = const { RefCell::new(None) };
}

/// Files in memory for the image, the journal and the output of e2fsck.
struct Files {
    image: ImageFile,
    journal: ImageFile,
    output: File,
}

impl Files {
    fn new() -> Self {
        let output = memfd_create("output", MemfdFlags::CLOEXEC).unwrap().into();
        Self { image: ImageFile::new(), journal: ImageFile::new(), output }
    }
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

/// Returns the same of the volume once e2fsck has replayed its log, but not processed its orphans.
/// `Err` if e2fsck does not replay the log.
pub fn complaint_once_replayed(device: &SharedDevice) -> Result<Option<String>, String> {
    let disks = Disks::new(Arc::clone(device), VolumeFormat::Ext4);
    let replayed = run_with(&["-y", "-E", "journal_only"], &disks);
    // It repairs the whole volume if it does not find a log with changes.
    if replayed.text.contains("Pass 1") || replayed.code & !REPAIRED != 0 {
        return Err(replayed.text);
    }
    Ok(complaint(&replayed.disks.volume))
}

/// Runs e2fsck on a copy of the contents of `disks`, with the copy of the superblock in `block`.
pub fn repair_by_copy(block: FsBlock, block_size: BlockSize, disks: &Disks) -> Outcome {
    run_with(&["-fy", "-b", &block.to_string(), "-B", &block_size.bytes().to_string()], disks)
}

fn run_with(arguments: &[&str], disks: &Disks) -> Outcome {
    FILES.with_borrow_mut(|files| {
        let Files { image, journal, output } = files.get_or_insert_with(Files::new);
        image.become_volume_of(disks);
        output.set_len(0).unwrap();
        let appended = File::options().append(true).open(path(output)).unwrap();
        let mut command = Command::new("e2fsck");
        if let Some(device) = &disks.journal {
            journal.become_copy_of(device);
            command.args(["-j", &journal.path()]);
        }
        command.args(arguments).arg(image.path()).stdin(Stdio::null());
        let status = command.stdout(appended.try_clone().unwrap()).stderr(appended).status();
        let code = status.expect("e2fsck runs").code().unwrap_or(i32::MAX);
        if !arguments.contains(&"-fn") {
            image.look_again();
            journal.look_again();
        }
        // Names in damaged directories need not be UTF-8.
        let text = String::from_utf8_lossy(&std::fs::read(path(output)).unwrap()).into_owned();
        let journal = disks.journal.as_ref().map(|_| journal.device());
        let disks = Disks { journal, ..Disks::new(image.device(), disks.format) };
        Outcome { code, text, disks }
    })
}
