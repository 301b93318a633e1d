//! IOCTL: the requests of f2fs (`linux/f2fs.h`), for volumes of that format.
//!
//! The kernel passes the argument of a request on as the request's number declares it, so that
//! these have no answer: F2FS_IOC_SHUTDOWN, whose number does not declare the mode that the caller
//! passes, and F2FS_IOC_MOVE_RANGE, which names its target by a descriptor of the caller, as
//! EXT4_IOC_MOVE_EXT does. The confined server cannot look it up.
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

/// The feature bit that tells programs that they may write atomically. Linux reports it whatever
/// the superblock has.
const ATOMIC_WRITE: u32 = 0x4;

/// The caller who may send a request, apart from what its handler checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sender {
    Anyone,
    Root,
}

/// A request, as its handler gets it.
struct Call<'a> {
    header: &'a InHeader,
    operation: &'a IoctlIn,
    argument: &'a [u8],
}

/// A handler. Returns the bytes of the answer.
type Serve = fn(&Server, &Call<'_>) -> Result<Vec<u8>, Failure>;

/// A row of the table.
struct Ioctl {
    /// The number in `linux/f2fs.h`.
    number: u32,
    sender: Sender,
    serve: Serve,
}

const fn anyone(number: u32, serve: Serve) -> Ioctl {
    Ioctl { number, sender: Sender::Anyone, serve }
}

const fn root(number: u32, serve: Serve) -> Ioctl {
    Ioctl { number, sender: Sender::Root, serve }
}

const NOT_SUPPORTED: Serve = |_, _| Err(Errno::OPNOTSUPP.into());

/// All requests of f2fs.
const IOCTLS: &[Ioctl] = &[
    // F2FS_IOC_START_ATOMIC_WRITE, _COMMIT_, _ABORT_, and F2FS_IOC_START_ATOMIC_REPLACE
    anyone(0xf501, |server, call| server.start_atomic_write(call, AtomicWrite::Update)),
    anyone(0xf502, Server::commit_atomic_write),
    anyone(0xf505, Server::request_abort),
    anyone(0xf519, |server, call| server.start_atomic_write(call, AtomicWrite::Replace)),
    // F2FS_IOC_GARBAGE_COLLECT, and _RANGE
    root(0x4004_f506, |server, _| server.clean()),
    root(0x4018_f50b, Server::clean_range),
    // F2FS_IOC_WRITE_CHECKPOINT
    root(0xf507, |server, _| server.write_checkpoint()),
    // F2FS_IOC_DEFRAGMENT
    root(0xc010_f508, Server::defragment),
    // F2FS_IOC_FLUSH_DEVICE, as for all volumes with one device
    root(0x4008_f50a, |_, _| Err(Errno::INVAL.into())),
    // F2FS_IOC_GET_FEATURES
    anyone(0x8004_f50c, |server, _| server.features()),
    // F2FS_IOC_SET_PIN_FILE, _GET_
    anyone(0x4004_f50d, Server::set_pinned),
    anyone(0x8004_f50e, Server::pin_failures),
    // F2FS_IOC_PRECACHE_EXTENTS
    anyone(0xf50f, Server::cache_extents),
    // F2FS_IOC_GET_COMPRESS_BLOCKS, F2FS_IOC_RELEASE_COMPRESS_BLOCKS, _RESERVE_
    anyone(0x8008_f511, Server::saved_blocks),
    anyone(0x8008_f512, |server, call| {
        server.change_saved_blocks(call, Node::release_saved_blocks)
    }),
    anyone(0x8008_f513, |server, call| {
        server.change_saved_blocks(call, Node::reserve_saved_blocks)
    }),
    // F2FS_IOC_GET_COMPRESS_OPTION, _SET_
    anyone(0x8002_f515, Server::compress_option),
    anyone(0x4002_f516, Server::set_compress_option),
    // F2FS_IOC_GET_DEV_ALIAS_FILE. Volumes with such files are not opened.
    anyone(0x8004_f51a, |_, _| Ok(0_u32.as_bytes().to_vec())),
    // F2FS_IOC_MOVE_RANGE, _RESIZE_FS, _SEC_TRIM_FILE, _DECOMPRESS_FILE, _COMPRESS_FILE, _IO_PRIO
    anyone(0xc020_f509, NOT_SUPPORTED),
    anyone(0x4008_f510, NOT_SUPPORTED),
    anyone(0x4018_f514, NOT_SUPPORTED),
    anyone(0xf517, NOT_SUPPORTED),
    anyone(0xf518, NOT_SUPPORTED),
    anyone(0x4004_f51b, NOT_SUPPORTED),
];

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
    /// Answers an IOCTL of f2fs. Returns `None` for other commands, and for volumes of other
    /// formats.
    pub(super) fn f2fs_ioctl(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Answer>, Failure> {
        if self.volume().feature_bits().is_none() {
            return Ok(None);
        }
        let Some(ioctl) = IOCTLS.iter().find(|ioctl| ioctl.number == operation.command) else {
            return Ok(None);
        };
        if ioctl.sender == Sender::Root {
            self.require_root(header)?;
        }
        let data = (ioctl.serve)(self, &Call { header, operation, argument: rest })?;
        if data.len() > operation.out_size as usize {
            return Err(Errno::INVAL.into());
        }
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(&data)?;
        Ok(Some(Answer::Payload))
    }

    fn features(&self) -> Result<Vec<u8>, Failure> {
        let features = self.volume().feature_bits().ok_or(Errno::NOTTY)?;
        let atomic = if self.has_atomic_writes() { ATOMIC_WRITE } else { 0 };
        Ok((features & !ATOMIC_WRITE | atomic).as_bytes().to_vec())
    }

    fn write_checkpoint(&self) -> Result<Vec<u8>, Failure> {
        if !self.volume().is_writable() {
            return Err(Errno::ROFS.into());
        }
        base::waiting::about_to_wait();
        self.volume().sync()?;
        Ok(Vec::new())
    }

    /// Cleans a section.
    fn clean(&self) -> Result<Vec<u8>, Failure> {
        base::waiting::about_to_wait();
        if self.volume().clean_some()? { Ok(Vec::new()) } else { Err(Errno::NODATA.into()) }
    }

    fn cache_extents(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let node = &self.known(call.header.node)?.node;
        let whole = FileOffset(0)..FileOffset(u64::MAX);
        node.extents(whole, &mut |_| ControlFlow::Continue(()))?;
        Ok(Vec::new())
    }

    fn pin_failures(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let failures: u32 = match self.known(call.header.node)?.node.pin_failures() {
            Err(Error::WrongType(_)) => 0,
            failures => failures?.unwrap_or(0),
        };
        Ok(failures.as_bytes().to_vec())
    }

    /// Returns the number of blocks that the compression of a file saves.
    fn saved_blocks(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let compression = self.known(call.header.node)?.node.compression()?;
        let blocks = compression.ok_or(Errno::INVAL)?.saved_blocks;
        Ok(blocks.as_bytes().to_vec())
    }

    /// Releases or reserves the blocks that the compression of a file saves. Returns their number.
    fn change_saved_blocks(
        &self,
        call: &Call<'_>,
        change: fn(&Arc<Node>) -> base::Result<u64>,
    ) -> Result<Vec<u8>, Failure> {
        let opened = self.compressed_file(call)?;
        let blocks = change(opened.file.node())?;
        self.invalidate_attributes(call.header.node);
        Ok(blocks.as_bytes().to_vec())
    }

    fn compress_option(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let compression = self.known(call.header.node)?.node.compression()?;
        let compression = compression.ok_or(Errno::NODATA)?;
        let log_cluster_size = compression.log_cluster_blocks;
        let option = CompressOption { algorithm: compression.algorithm, log_cluster_size };
        Ok(option.as_bytes().to_vec())
    }

    fn set_compress_option(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let option = CompressOption::read_from_prefix(call.argument);
        let (CompressOption { algorithm, log_cluster_size }, _) =
            option.map_err(|_| Errno::INVAL)?;
        let opened = self.compressed_file(call)?;
        if !opened.file.mode().write {
            return Err(Errno::BADF.into());
        }
        opened.file.node().set_compression(algorithm, log_cluster_size)?;
        Ok(Vec::new())
    }

    /// Returns whether files of the mount can be written atomically. With `-o writeback`, they
    /// cannot: the kernel takes a smaller size from no server, which an abort needs.
    fn has_atomic_writes(&self) -> bool {
        self.volume().is_writable() && !self.agreed_on(InitFlags::WRITEBACK_CACHE)
    }

    /// Returns the open file of a request that only the owner of the file may send.
    fn file_of_owner(&self, call: &Call<'_>) -> Result<Arc<OpenFile>, Failure> {
        let opened = self.files.get(call.operation.handle).ok_or(Errno::BADF)?;
        if !opened.file.mode().write {
            return Err(Errno::BADF.into());
        }
        self.require_owner(call.header, opened.file.node())?;
        Ok(opened)
    }

    /// Fails unless the owner of the inode, or a privileged user, sends the request.
    fn require_owner(&self, header: &InHeader, node: &Node) -> Result<(), Failure> {
        if self.is_owner(header, node) { Ok(()) } else { Err(Errno::ACCESS.into()) }
    }

    /// Returns whether the owner of the inode, or a privileged user, sends the request. The kernel
    /// does not check these requests, so that a caller whom it does not name is not the owner.
    pub(super) fn is_owner(&self, header: &InHeader, node: &Node) -> bool {
        let owners = &self.options.owners;
        let is_known = header.uid != NO_ID || owners.caller_is_root;
        is_known && owners.checked(header).owns(&node.attributes())
    }

    fn start_atomic_write(&self, call: &Call<'_>, kind: AtomicWrite) -> Result<Vec<u8>, Failure> {
        let opened = self.file_of_owner(call)?;
        if !self.has_atomic_writes() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if opened.is_opened_direct {
            return Err(Errno::INVAL.into());
        }
        base::waiting::about_to_wait();
        // What was stored to maps before is no part of the atomic write.
        self.receive_kernel_data(call.header.node, opened.file.node())?;
        opened.file.atomic_start(kind)?;
        if kind == AtomicWrite::Replace {
            self.drop_kernel_data(call.header.node);
        }
        Ok(Vec::new())
    }

    fn commit_atomic_write(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let node = call.header.node;
        let opened = self.file_of_owner(call)?;
        base::waiting::about_to_wait();
        self.receive_kernel_data(node, opened.file.node())?;
        opened.file.atomic_commit().inspect_err(|_| self.drop_kernel_data(node))?;
        Ok(Vec::new())
    }

    fn request_abort(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let opened = self.file_of_owner(call)?;
        self.abort_atomic_write(call.header.node, &opened)?;
        Ok(Vec::new())
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
    fn set_pinned(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let (is_pinned, _) = u32::read_from_prefix(call.argument).map_err(|_| Errno::INVAL)?;
        let node = Arc::clone(&self.known(call.header.node)?.node);
        if node.kind() != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        // As in Linux, the file may be open for reading.
        self.require_owner(call.header, &node)?;
        let opened = self.files.get(call.operation.handle).ok_or(Errno::BADF)?;
        base::waiting::about_to_wait();
        // Data that gets its blocks before the file is pinned.
        self.receive_kernel_data(call.header.node, opened.file.node())?;
        node.set_pinned(is_pinned != 0)?;
        self.invalidate_attributes(call.header.node);
        Ok(Vec::new())
    }

    /// Cleans the sections of a range.
    fn clean_range(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let (range, _) = CleanRange::read_from_prefix(call.argument).map_err(|_| Errno::INVAL)?;
        let last = range.start.checked_add(range.length).ok_or(Errno::INVAL)?;
        base::waiting::about_to_wait();
        match self.volume().clean_range(FsBlock(range.start)..=FsBlock(last), range.sync == 0)? {
            RangeCleaning::Done => Ok(Vec::new()),
            RangeCleaning::Empty => Err(Errno::NODATA.into()),
            RangeCleaning::InLog | RangeCleaning::Kept => Err(Errno::AGAIN.into()),
        }
    }

    /// Writes a range of a file again, if it is in several pieces. Returns what was moved.
    fn defragment(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let (Defragment { start, length }, _) =
            Defragment::read_from_prefix(call.argument).map_err(|_| Errno::INVAL)?;
        let end = start.checked_add(length).ok_or(Errno::INVAL)?;
        let node = Arc::clone(&self.known(call.header.node)?.node);
        if node.kind() != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        if !self.volume().is_writable() {
            return Err(Errno::ROFS.into());
        }
        let opened = self.files.get(call.operation.handle).ok_or(Errno::BADF)?;
        base::waiting::about_to_wait();
        self.receive_kernel_data(call.header.node, opened.file.node())?;
        match node.defragment_range(FileOffset(start)..FileOffset(end)) {
            // As in Linux.
            Err(Error::NoSpace) => Err(Errno::AGAIN.into()),
            length => Ok(Defragment { start, length: length? }.as_bytes().to_vec()),
        }
    }

    /// Returns the open file of a request that changes the compression of a file. The kernel holds
    /// no data of it.
    fn compressed_file(&self, call: &Call<'_>) -> Result<Arc<OpenFile>, Failure> {
        // As in Linux, the file may be open for reading.
        let opened = self.files.get(call.operation.handle).ok_or(Errno::BADF)?;
        self.require_owner(call.header, opened.file.node())?;
        base::waiting::about_to_wait();
        self.receive_kernel_data(call.header.node, opened.file.node())?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_request_has_one_row() {
        let numbers: BTreeSet<u32> = IOCTLS.iter().map(|ioctl| ioctl.number).collect();
        assert_eq!(numbers.len(), IOCTLS.len());
        assert!(numbers.iter().all(|number| number >> 8 & 0xff == 0xf5), "{numbers:x?}");
    }
}
