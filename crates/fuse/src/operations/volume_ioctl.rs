//! IOCTL for the whole volume: FITRIM, FS_IOC_GETFSLABEL and FS_IOC_SETFSLABEL.
//!
//! The kernel answers FS_IOC_GETFSUUID and FS_IOC_GETFSSYSFSPATH itself, and does not pass on the
//! mode of FS_IOC_SHUTDOWN.

use base::Error;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::protocol::{InHeader, IoctlIn, IoctlOut};
use crate::reply::{Answer, Failure, Reply};
use crate::server::Server;

/// FITRIM.
const FITRIM: u32 = 0xc018_5879;
/// FS_IOC_GETFSLABEL.
const GETFSLABEL: u32 = 0x8100_9431;
/// FS_IOC_SETFSLABEL.
const SETFSLABEL: u32 = 0x4100_9432;
/// The size of a caller's buffer for a label, in bytes.
const LABEL_ROOM: usize = 256;

/// `struct fstrim_range`, in bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    length_min: u64,
}
const _: () = assert!(size_of::<TrimRange>() == 24);

impl Server {
    /// Answers an IOCTL for the whole volume. Returns `None` for other commands.
    pub(super) fn volume_ioctl(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
        argument: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Answer>, Failure> {
        let mut label = [0; LABEL_ROOM];
        let trimmed;
        let data: &[u8] = match operation.command {
            FITRIM => {
                self.require_root(header)?;
                let (range, _) = TrimRange::read_from_prefix(argument).map_err(|_| Errno::INVAL)?;
                trimmed = self.trim(range)?;
                trimmed.as_bytes()
            }
            GETFSLABEL => {
                let found = self.volume().label()?;
                let length = found.len().min(LABEL_ROOM - 1);
                label[..length].copy_from_slice(&found[..length]);
                &label
            }
            SETFSLABEL => {
                self.require_root(header)?;
                let argument = argument.get(..LABEL_ROOM).ok_or(Errno::INVAL)?;
                // As in Linux, a label ends within the buffer.
                let end = argument.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
                self.volume().set_label(&argument[..end])?;
                &[]
            }
            _ => return Ok(None),
        };
        if data.len() > operation.out_size as usize {
            return Err(Errno::INVAL.into());
        }
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(data)?;
        Ok(Some(Answer::Payload))
    }

    /// Discards free blocks in `range`. Returns the range with the number of bytes discarded.
    fn trim(&self, range: TrimRange) -> Result<TrimRange, Failure> {
        base::waiting::about_to_wait();
        let end = range.start.saturating_add(range.length);
        match self.volume().trim(range.start..end, range.length_min) {
            Ok(length) => Ok(TrimRange { length, ..range }),
            Err(Error::Io(error)) if error.errno == Errno::OPNOTSUPP.raw_os_error() => {
                Err(Errno::OPNOTSUPP.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fails with EPERM for callers other than root, since FUSE does not pass capabilities.
    pub(super) fn require_root(&self, header: &InHeader) -> Result<(), Errno> {
        if header.uid == 0 || self.options.owners.caller_is_root {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }
}
