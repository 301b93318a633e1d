//! IOCTL: the requests of f2fs (`linux/f2fs.h`), for volumes of that format.
//!
//! The kernel passes the argument of a request on as the request's number declares it, so that these have no answer:
//! F2FS_IOC_SHUTDOWN, whose number does not declare the mode that the caller passes, and F2FS_IOC_MOVE_RANGE, which names
//! its target by a descriptor of the caller, as EXT4_IOC_MOVE_EXT does. The confined server cannot look it up.
//!
//! | request | answer |
//! |---|---|
//! | atomic writes: start, start with replacement, commit, abort | on mounts without `-o writeback` |
//! | pinning of files, and the failures to clean a pinned one | as in Linux, for owners |
//! | features, compression of a file, whether it is an alias of a device | as in Linux |
//! | checkpoint | the volume is synced (for root) |
//! | cleaning | a section is cleaned (for root); ENODATA if there is nothing to gain |
//! | cleaning of a range | as in Linux (for root), but that it waits for other cleaning, and never fails with EBUSY |
//! | defragmentation | a range in several pieces is written again, durably (for root) |
//! | caching of extents | the map is read |
//! | flush of a device | EINVAL, as for all volumes with one device |
//! | options of compression, release and reservation of the blocks that it saves | as in Linux, for owners |
//! | resizing, secure trimming, priorities of I/O, compression now | EOPNOTSUPP |
//! | others | ENOTTY |

use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, FsBlock};
use rustix::io::Errno;
use vfs::{AtomicWrite, Node, RangeCleaning};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::data::KERNEL_TIMEOUT;
use crate::open_files::OpenFile;
use crate::owners::NO_ID;
use crate::protocol::{InHeader, InitFlags, IoctlIn, IoctlOut};
use crate::reply::{Answer, Failure, Reply};
use crate::server::Server;

/// The feature bit that tells programs that they may write atomically. Linux reports it whatever the superblock has.
const ATOMIC_WRITE: u32 = 0x4;

/// Numbers of requests.
mod command {
    pub(super) const START_ATOMIC_WRITE: u32 = 0xf501;
    pub(super) const COMMIT_ATOMIC_WRITE: u32 = 0xf502;
    pub(super) const ABORT_ATOMIC_WRITE: u32 = 0xf505;
    pub(super) const GARBAGE_COLLECT: u32 = 0x4004_f506;
    pub(super) const WRITE_CHECKPOINT: u32 = 0xf507;
    pub(super) const DEFRAGMENT: u32 = 0xc010_f508;
    pub(super) const MOVE_RANGE: u32 = 0xc020_f509;
    pub(super) const FLUSH_DEVICE: u32 = 0x4008_f50a;
    pub(super) const GARBAGE_COLLECT_RANGE: u32 = 0x4018_f50b;
    pub(super) const GET_FEATURES: u32 = 0x8004_f50c;
    pub(super) const SET_PIN_FILE: u32 = 0x4004_f50d;
    pub(super) const GET_PIN_FILE: u32 = 0x8004_f50e;
    pub(super) const PRECACHE_EXTENTS: u32 = 0xf50f;
    pub(super) const RESIZE_FS: u32 = 0x4008_f510;
    pub(super) const GET_COMPRESS_BLOCKS: u32 = 0x8008_f511;
    pub(super) const RELEASE_COMPRESS_BLOCKS: u32 = 0x8008_f512;
    pub(super) const RESERVE_COMPRESS_BLOCKS: u32 = 0x8008_f513;
    pub(super) const SEC_TRIM_FILE: u32 = 0x4018_f514;
    pub(super) const GET_COMPRESS_OPTION: u32 = 0x8002_f515;
    pub(super) const SET_COMPRESS_OPTION: u32 = 0x4002_f516;
    pub(super) const DECOMPRESS_FILE: u32 = 0xf517;
    pub(super) const COMPRESS_FILE: u32 = 0xf518;
    pub(super) const START_ATOMIC_REPLACE: u32 = 0xf519;
    pub(super) const GET_DEV_ALIAS_FILE: u32 = 0x8004_f51a;
    pub(super) const IO_PRIO: u32 = 0x4004_f51b;
}

/// `struct f2fs_comp_option`.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct CompressOption {
    algorithm: u8,
    log_cluster_size: u8,
}
const _: () = assert!(size_of::<CompressOption>() == 2);

/// `struct f2fs_defragment`: a range in bytes, and the length that was moved.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Defragment {
    start: u64,
    length: u64,
}
const _: () = assert!(size_of::<Defragment>() == 16);

/// `struct f2fs_gc_range`: a range of blocks of the volume.
#[derive(FromBytes)]
#[repr(C)]
struct CleanRange {
    sync: u32,
    _padding: u32,
    start: u64,
    length: u64,
}
const _: () = assert!(size_of::<CleanRange>() == 24);

impl Server {
    /// Answers an IOCTL of f2fs. Returns `None` for other commands, and for volumes of other formats.
    pub(super) fn f2fs_ioctl(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Answer>, Failure> {
        let Some(features) = self.volume().feature_bits() else { return Ok(None) };
        let (word, count, option, defragmented);
        let data: &[u8] = match operation.command {
            command::START_ATOMIC_WRITE => {
                self.start_atomic_write(header, operation, AtomicWrite::Update)?;
                &[]
            }
            command::START_ATOMIC_REPLACE => {
                self.start_atomic_write(header, operation, AtomicWrite::Replace)?;
                &[]
            }
            command::COMMIT_ATOMIC_WRITE => {
                self.commit_atomic_write(header, operation)?;
                &[]
            }
            command::ABORT_ATOMIC_WRITE => {
                let opened = self.file_of_owner(header, operation)?;
                self.abort_atomic_write(header.node, &opened)?;
                &[]
            }
            command::GARBAGE_COLLECT => {
                self.require_root(header)?;
                base::waiting::about_to_wait();
                if !self.volume().clean_some()? {
                    return Err(Errno::NODATA.into());
                }
                &[]
            }
            command::GARBAGE_COLLECT_RANGE => {
                self.require_root(header)?;
                self.clean_range(rest)?;
                &[]
            }
            command::DEFRAGMENT => {
                self.require_root(header)?;
                defragmented = self.defragment(header, operation, rest)?;
                defragmented.as_bytes()
            }
            command::WRITE_CHECKPOINT => {
                self.require_root(header)?;
                if !self.volume().is_writable() {
                    return Err(Errno::ROFS.into());
                }
                base::waiting::about_to_wait();
                self.volume().sync()?;
                &[]
            }
            command::GET_FEATURES => {
                let atomic = if self.has_atomic_writes() { ATOMIC_WRITE } else { 0 };
                word = features & !ATOMIC_WRITE | atomic;
                word.as_bytes()
            }
            command::SET_PIN_FILE => {
                self.set_pinned(header, operation, rest)?;
                &[]
            }
            command::GET_PIN_FILE => {
                word = match self.known(header.node)?.node.pin_failures() {
                    Err(Error::WrongType(_)) => 0,
                    failures => failures?.unwrap_or(0),
                };
                word.as_bytes()
            }
            command::PRECACHE_EXTENTS => {
                let node = &self.known(header.node)?.node;
                node.extents(FileOffset(0)..FileOffset(u64::MAX), &mut |_| {
                    ControlFlow::Continue(())
                })?;
                &[]
            }
            command::GET_COMPRESS_BLOCKS => {
                let compression = self.known(header.node)?.node.compression()?;
                count = compression.ok_or(Errno::INVAL)?.saved_blocks;
                count.as_bytes()
            }
            command::GET_COMPRESS_OPTION => {
                let compression = self.known(header.node)?.node.compression()?;
                let compression = compression.ok_or(Errno::NODATA)?;
                let log_cluster_size = compression.log_cluster_blocks;
                option = CompressOption { algorithm: compression.algorithm, log_cluster_size };
                option.as_bytes()
            }
            command::SET_COMPRESS_OPTION => {
                let (option, _) =
                    CompressOption::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
                let CompressOption { algorithm, log_cluster_size } = option;
                let opened = self.compressed_file(header, operation)?;
                if !opened.file.mode().write {
                    return Err(Errno::BADF.into());
                }
                opened.file.node().set_compression(algorithm, log_cluster_size)?;
                &[]
            }
            command::RELEASE_COMPRESS_BLOCKS => {
                let opened = self.compressed_file(header, operation)?;
                count = opened.file.node().release_saved_blocks()?;
                self.invalidate_attributes(header.node);
                count.as_bytes()
            }
            command::RESERVE_COMPRESS_BLOCKS => {
                let opened = self.compressed_file(header, operation)?;
                count = opened.file.node().reserve_saved_blocks()?;
                self.invalidate_attributes(header.node);
                count.as_bytes()
            }
            command::GET_DEV_ALIAS_FILE => {
                // Volumes with such files are not opened.
                word = 0_u32;
                word.as_bytes()
            }
            command::FLUSH_DEVICE => {
                self.require_root(header)?;
                return Err(Errno::INVAL.into());
            }
            command::MOVE_RANGE
            | command::RESIZE_FS
            | command::SEC_TRIM_FILE
            | command::IO_PRIO
            | command::DECOMPRESS_FILE
            | command::COMPRESS_FILE => return Err(Errno::OPNOTSUPP.into()),
            _ => return Ok(None),
        };
        if data.len() > operation.out_size as usize {
            return Err(Errno::INVAL.into());
        }
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(data)?;
        Ok(Some(Answer::Payload))
    }

    /// Returns whether files of the mount can be written atomically. With `-o writeback`, they cannot: the kernel takes a
    /// smaller size from no server, which an abort needs.
    fn has_atomic_writes(&self) -> bool {
        self.volume().is_writable() && !self.agreed_on(InitFlags::WRITEBACK_CACHE)
    }

    /// Returns the open file of a request that only the owner of the file may send.
    fn file_of_owner(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
    ) -> Result<Arc<OpenFile>, Failure> {
        let opened = self.files.get(operation.handle).ok_or(Errno::BADF)?;
        if !opened.file.mode().write {
            return Err(Errno::BADF.into());
        }
        self.require_owner(header, opened.file.node())?;
        Ok(opened)
    }

    /// Fails unless the owner of the inode, or a privileged user, sends the request.
    fn require_owner(&self, header: &InHeader, node: &Node) -> Result<(), Failure> {
        if self.is_owner(header, node) { Ok(()) } else { Err(Errno::ACCESS.into()) }
    }

    /// Returns whether the owner of the inode, or a privileged user, sends the request. The kernel does not check these
    /// requests, so that a caller whom it does not name is not the owner.
    pub(super) fn is_owner(&self, header: &InHeader, node: &Node) -> bool {
        let owners = &self.options.owners;
        let is_known = header.uid != NO_ID || owners.caller_is_root;
        is_known && owners.checked(header).owns(&node.attributes())
    }

    fn start_atomic_write(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
        kind: AtomicWrite,
    ) -> Result<(), Failure> {
        let opened = self.file_of_owner(header, operation)?;
        if !self.has_atomic_writes() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if opened.is_opened_direct {
            return Err(Errno::INVAL.into());
        }
        base::waiting::about_to_wait();
        // What was stored to maps before is no part of the atomic write.
        self.receive_kernel_data(header.node, opened.file.node())?;
        opened.file.atomic_start(kind)?;
        if kind == AtomicWrite::Replace {
            self.drop_kernel_data(header.node);
        }
        Ok(())
    }

    fn commit_atomic_write(&self, header: &InHeader, operation: &IoctlIn) -> Result<(), Failure> {
        let opened = self.file_of_owner(header, operation)?;
        base::waiting::about_to_wait();
        self.receive_kernel_data(header.node, opened.file.node())?;
        opened.file.atomic_commit().inspect_err(|_| self.drop_kernel_data(header.node))?;
        Ok(())
    }

    /// Ends an atomic write, and has the kernel drop its data.
    pub(super) fn abort_atomic_write(&self, node: u64, opened: &OpenFile) -> Result<(), Failure> {
        base::waiting::about_to_wait();
        // Stores to maps that the kernel would write later are a part of the atomic write.
        let received = self.receive_kernel_data(node, opened.file.node());
        opened.file.atomic_abort()?;
        self.drop_kernel_data(node);
        received
    }

    /// Pins a file, or ends that.
    fn set_pinned(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
        rest: &[u8],
    ) -> Result<(), Failure> {
        let (is_pinned, _) = u32::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        let node = Arc::clone(&self.known(header.node)?.node);
        if node.kind() != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        // As in Linux, the file may be open for reading.
        self.require_owner(header, &node)?;
        let opened = self.files.get(operation.handle).ok_or(Errno::BADF)?;
        base::waiting::about_to_wait();
        // Data that gets its blocks before the file is pinned.
        self.receive_kernel_data(header.node, opened.file.node())?;
        node.set_pinned(is_pinned != 0)?;
        self.invalidate_attributes(header.node);
        Ok(())
    }

    /// Cleans the sections of a range.
    fn clean_range(&self, rest: &[u8]) -> Result<(), Failure> {
        let (range, _) = CleanRange::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        let last = range.start.checked_add(range.length).ok_or(Errno::INVAL)?;
        base::waiting::about_to_wait();
        match self.volume().clean_range(FsBlock(range.start)..=FsBlock(last), range.sync == 0)? {
            RangeCleaning::Done => Ok(()),
            RangeCleaning::Empty => Err(Errno::NODATA.into()),
            RangeCleaning::InLog | RangeCleaning::Kept => Err(Errno::AGAIN.into()),
        }
    }

    /// Writes a range of a file again, if it is in several pieces.
    fn defragment(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
        rest: &[u8],
    ) -> Result<Defragment, Failure> {
        let (Defragment { start, length }, _) =
            Defragment::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        let end = start.checked_add(length).ok_or(Errno::INVAL)?;
        let node = Arc::clone(&self.known(header.node)?.node);
        if node.kind() != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        if !self.volume().is_writable() {
            return Err(Errno::ROFS.into());
        }
        let opened = self.files.get(operation.handle).ok_or(Errno::BADF)?;
        base::waiting::about_to_wait();
        self.receive_kernel_data(header.node, opened.file.node())?;
        match node.defragment_range(FileOffset(start)..FileOffset(end)) {
            // As in Linux.
            Err(Error::NoSpace) => Err(Errno::AGAIN.into()),
            length => Ok(Defragment { start, length: length? }),
        }
    }

    /// Returns the open file of a request that changes the compression of a file. The kernel holds no data of it.
    fn compressed_file(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
    ) -> Result<Arc<OpenFile>, Failure> {
        // As in Linux, the file may be open for reading.
        let opened = self.files.get(operation.handle).ok_or(Errno::BADF)?;
        self.require_owner(header, opened.file.node())?;
        base::waiting::about_to_wait();
        self.receive_kernel_data(header.node, opened.file.node())?;
        Ok(opened)
    }

    /// Makes the kernel drop the data and the size that it has cached.
    fn drop_kernel_data(&self, node: u64) {
        self.invalidate_attributes(node);
        if !self.write_and_invalidate(node, FileOffset(0), KERNEL_TIMEOUT) {
            let inode = self.nodes.number(node);
            tracing::warn!("the kernel did not invalidate cached data of inode {inode} in time");
        }
    }
}
