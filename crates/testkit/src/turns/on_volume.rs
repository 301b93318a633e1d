//! Steps by this library.

use std::ops::Range;

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, FileOffset, Result};
use vfs::{
    Creation, Credentials, Fallocate, File, Follow, OpenMode, Privileges, RenameFlags, Volume,
    VolumeOptions,
};

use super::{Step, on_host};
use crate::{must, tree};

const BY: &Credentials = &Credentials::ROOT;
/// FS_PROJINHERIT_FL.
const INHERIT_PROJECT: u32 = 0x2000_0000;

fn range(at: u64, length: u64) -> Range<FileOffset> {
    FileOffset(at)..FileOffset(at + length)
}

/// A volume to be changed.
#[derive(Debug)]
pub struct OnVolume {
    /// Open files whose names were removed. Dropped before their volume.
    open: Vec<File>,
    volume: Volume,
}

impl OnVolume {
    /// Opens the volume in the file `image` for writing.
    pub fn open(image: &std::path::Path) -> Self {
        Self::open_with(image, VolumeOptions::default())
    }

    /// Opens the volume in the file `image` for writing, with `options`.
    pub fn open_with(image: &std::path::Path, options: VolumeOptions) -> Self {
        let read_write = device::OpenDevice { read_only: false, ..device::OpenDevice::default() };
        let device = must(device::open(image, read_write), image.display());
        let options = VolumeOptions { writable: true, ..options };
        let volume = must(Volume::open_device(device, &options), image.display());
        Self { open: Vec::new(), volume }
    }

    /// Does all of `steps`.
    pub fn run(&mut self, steps: &[Step]) {
        for step in steps {
            must(self.step(step), format_args!("bifolio: {step:?}"));
        }
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Makes all changes durable.
    pub fn sync(&self) {
        must(self.volume.sync(), "sync");
    }

    /// Closes the volume.
    pub fn close(mut self) {
        self.open.clear();
        must(self.volume.close(), "close");
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let volume = &self.volume;
        let node = |path: &str| volume.resolve(path.as_bytes(), Follow::No);
        let open = |path: &str, append| node(path)?.open_for(OpenMode { write: true, append });
        let set = |path: &str, change| node(path)?.set_attributes(&change, BY);
        match step {
            Step::Mkdir(path) => volume.mkdir(path.as_bytes(), 0o755, BY).map(drop),
            Step::Fifo(path) => volume
                .create_at(path.as_bytes(), &Creation::of(FileType::Fifo, 0o644), BY)
                .map(drop),
            Step::Symlink(path, length) => {
                let target = on_host::target(*length);
                volume
                    .create_at(path.as_bytes(), &Creation::symlink(target.as_bytes()), BY)
                    .map(drop)
            }
            Step::Write(path, offset, bytes) => {
                match volume.create_file(path.as_bytes(), 0o644, BY) {
                    Ok(_) | Err(Error::Exists) => {}
                    Err(error) => return Err(error),
                }
                write_all(&open(path, false)?, *offset, &bytes.make())
            }
            Step::Append(path, bytes) => write_all(&open(path, true)?, 0, &bytes.make()),
            Step::SetSize(path, size) => node(path)?.set_size(*size, Privileges::Keep),
            Step::Allocate(path, at, length) => {
                let mode = Fallocate::Allocate { keep_size: true };
                open(path, false)?.fallocate(mode, range(*at, *length), Privileges::Keep)
            }
            Step::Punch(path, at, length) => {
                let mode = Fallocate::PunchHole;
                open(path, false)?.fallocate(mode, range(*at, *length), Privileges::Keep)
            }
            Step::Collapse(path, at, length) => {
                let mode = Fallocate::CollapseRange;
                open(path, false)?.fallocate(mode, range(*at, *length), Privileges::Keep)
            }
            Step::Link(from, path) => volume.link_at(from.as_bytes(), path.as_bytes()),
            Step::Rename(from, path) => {
                volume.rename_at(from.as_bytes(), path.as_bytes(), RenameFlags::default(), BY)
            }
            Step::Exchange(one, other) => {
                let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
                volume.rename_at(one.as_bytes(), other.as_bytes(), flags, BY)
            }
            Step::Remove(path) => volume.remove(path.as_bytes(), BY),
            Step::RemoveOpen(path, bytes) => {
                let file = open(path, false)?;
                volume.remove(path.as_bytes(), BY)?;
                write_all(&file, 0, &bytes.make())?;
                self.open.push(file);
                Ok(())
            }
            Step::SetXattr(path, name, bytes) => {
                let (name, value) = (name.as_bytes(), bytes.make());
                node(path)?.set_xattr(name, &value, XattrMode::Either, Privileges::Keep)
            }
            Step::RemoveXattr(path, name) => node(path)?.remove_xattr(name.as_bytes()),
            Step::SetAcl(path, users) => {
                let (name, value) = (b"system.posix_acl_access", tree::acl_of_users(*users));
                node(path)?.set_xattr(name, &value, XattrMode::Either, Privileges::Keep)
            }
            Step::SetMode(path, permissions) => {
                let permissions = Some(*permissions);
                set(path, AttributeChange { permissions, ..AttributeChange::default() })
            }
            Step::SetOwner(path, uid, gid) => {
                let (uid, gid) = (Some(*uid), Some(*gid));
                set(path, AttributeChange { uid, gid, ..AttributeChange::default() })
            }
            Step::Pin(path, size) => {
                volume.create_file(path.as_bytes(), 0o644, BY)?;
                let file = open(path, false)?;
                file.node().set_pinned(true)?;
                let mode = Fallocate::Allocate { keep_size: false };
                file.fallocate(mode, range(0, *size), Privileges::Keep)
            }
            Step::Clean(_) => volume.clean().map(drop),
            Step::SetProject(path, project) => {
                let node = node(path)?;
                node.set_flags(node.attributes().flags | INHERIT_PROJECT, BY)?;
                node.set_project(*project, BY)
            }
            Step::Sync(path) => open(path, false)?.sync_all(),
        }
    }
}

fn write_all(file: &File, offset: u64, bytes: &[u8]) -> Result<()> {
    let written = file.write_at(bytes, offset)?;
    assert_eq!(written, bytes.len(), "a short write");
    Ok(())
}
