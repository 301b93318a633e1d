//! Steps by the kernel.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags, XattrFlags};

use super::Step;
use crate::{must, tree};

/// A mounted tree to be changed.
#[derive(Debug)]
pub struct OnHost {
    top: PathBuf,
    /// Open files whose names were removed.
    open: Vec<File>,
}

impl OnHost {
    /// Returns the tree below `top`.
    pub fn new(top: &Path) -> Self {
        Self { top: top.to_owned(), open: Vec::new() }
    }

    /// Does all of `steps`.
    pub fn run(&mut self, steps: &[Step]) {
        for step in steps {
            must(self.step(step), format_args!("the kernel: {step:?}"));
        }
    }

    /// Makes all changes durable.
    pub fn sync(&self) {
        let top = must(File::open(&self.top), self.top.display());
        must(rustix::fs::syncfs(&top), self.top.display());
    }

    fn step(&mut self, step: &Step) -> std::io::Result<()> {
        let at = |path: &str| self.top.join(path);
        let open = |path: &str| OpenOptions::new().write(true).open(at(path));
        match step {
            Step::Mkdir(path) => std::fs::create_dir(at(path))?,
            Step::Fifo(path) => {
                rustix::fs::mknodat(CWD, at(path), FileType::Fifo, Mode::from_raw_mode(0o644), 0)?;
            }
            Step::Symlink(path, length) => symlink(target(*length), at(path))?,
            Step::Write(path, offset, bytes) => {
                let mut options = OpenOptions::new();
                let file = options.write(true).create(true).truncate(false).open(at(path))?;
                file.write_all_at(&bytes.make(), *offset)?;
            }
            Step::Append(path, bytes) => {
                OpenOptions::new().append(true).open(at(path))?.write_all(&bytes.make())?;
            }
            Step::SetSize(path, size) => open(path)?.set_len(*size)?,
            Step::Allocate(path, offset, length) => {
                rustix::fs::fallocate(open(path)?, FallocateFlags::KEEP_SIZE, *offset, *length)?;
            }
            Step::Punch(path, offset, length) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(open(path)?, flags, *offset, *length)?;
            }
            Step::Collapse(path, offset, length) => {
                let flags = FallocateFlags::COLLAPSE_RANGE;
                rustix::fs::fallocate(open(path)?, flags, *offset, *length)?;
            }
            Step::Link(from, path) => std::fs::hard_link(at(from), at(path))?,
            Step::Rename(from, path) => std::fs::rename(at(from), at(path))?,
            Step::Exchange(one, other) => {
                let flags = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, at(one), CWD, at(other), flags)?;
            }
            Step::Remove(path) => {
                let path = at(path);
                if path.symlink_metadata()?.is_dir() {
                    std::fs::remove_dir(path)?;
                } else {
                    std::fs::remove_file(path)?;
                }
            }
            Step::RemoveOpen(path, bytes) => {
                let file = open(path)?;
                std::fs::remove_file(at(path))?;
                file.write_all_at(&bytes.make(), 0)?;
                self.open.push(file);
            }
            Step::SetXattr(path, name, bytes) => {
                let (value, none) = (bytes.make(), XattrFlags::empty());
                rustix::fs::lsetxattr(at(path), name.as_str(), &value, none)?;
            }
            Step::RemoveXattr(path, name) => rustix::fs::lremovexattr(at(path), name.as_str())?,
            Step::SetAcl(path, users) => {
                let (value, none) = (tree::acl_of_users(*users), XattrFlags::empty());
                rustix::fs::lsetxattr(at(path), "system.posix_acl_access", &value, none)?;
            }
            Step::SetMode(path, permissions) => {
                let permissions = Permissions::from_mode(u32::from(*permissions));
                std::fs::set_permissions(at(path), permissions)?;
            }
            Step::SetOwner(path, uid, gid) => lchown(at(path), Some(*uid), Some(*gid))?,
            Step::Pin(path, size) => {
                let file = File::create_new(at(path))?;
                crate::host::ioctl::pin(&file)?;
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, *size)?;
            }
            Step::Clean(path) => crate::host::ioctl::clean(File::open(at(path))?)?,
            Step::SetProject(path, project) => {
                crate::host::ioctl::set_inherited_project(File::open(at(path))?, *project)?;
            }
            Step::Sync(path) => open(path)?.sync_all()?,
        }
        Ok(())
    }
}

/// Returns the target of a symbolic link, with so many bytes.
pub(super) fn target(length: usize) -> String {
    "target/".chars().cycle().take(length).collect()
}
