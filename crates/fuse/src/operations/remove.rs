//! UNLINK, RMDIR, RENAME and RENAME2.

use rustix::fs::RenameFlags as HostFlags;
use rustix::io::Errno;
use vfs::RenameFlags;

use crate::protocol::{InHeader, Rename2In, RenameIn};
use crate::reply::{Answer, Outcome, Reply};
use crate::request;
use crate::server::Server;

impl Server {
    /// UNLINK.
    pub(crate) fn unlink(
        &self,
        header: &InHeader,
        (): &(),
        rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let directory = self.known(header.node)?;
        let by = self.options.owners.credentials(header);
        self.volume().unlink(&directory.node, request::name(rest)?, &by)?;
        Ok(Answer::Payload)
    }

    /// RMDIR.
    pub(crate) fn remove_directory(
        &self,
        header: &InHeader,
        (): &(),
        rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let directory = self.known(header.node)?;
        let by = self.options.owners.credentials(header);
        self.volume().rmdir(&directory.node, request::name(rest)?, &by)?;
        Ok(Answer::Payload)
    }

    /// RENAME.
    pub(crate) fn rename(
        &self,
        header: &InHeader,
        operation: &RenameIn,
        rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        self.move_name(header, operation.directory, rest, RenameFlags::default())
    }

    /// RENAME2.
    pub(crate) fn rename2(
        &self,
        header: &InHeader,
        operation: &Rename2In,
        rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let flags = HostFlags::from_bits_retain(operation.flags);
        if !(flags - (HostFlags::NOREPLACE | HostFlags::EXCHANGE | HostFlags::WHITEOUT)).is_empty()
        {
            return Err(Errno::INVAL.into());
        }
        let flags = RenameFlags {
            no_replace: flags.contains(HostFlags::NOREPLACE),
            exchange: flags.contains(HostFlags::EXCHANGE),
            whiteout: flags.contains(HostFlags::WHITEOUT),
        };
        self.move_name(header, operation.directory, rest, flags)
    }

    /// Renames as RENAME and RENAME2 request.
    fn move_name(
        &self,
        header: &InHeader,
        to_directory: u64,
        rest: &[u8],
        flags: RenameFlags,
    ) -> Outcome {
        let (from, to) = request::two_names(rest)?;
        let directory = self.known(header.node)?;
        let to_directory = self.known(to_directory)?;
        let from = (&directory.node, from);
        let to = (&to_directory.node, to);
        let by = if flags.whiteout {
            // RENAME_WHITEOUT creates a device file.
            self.options.owners.creator(header)?
        } else {
            self.options.owners.credentials(header)
        };
        self.volume().rename_in(from, to, flags, &by)?;
        Ok(Answer::Payload)
    }
}
