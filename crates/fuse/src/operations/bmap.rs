//! BMAP: the blocks of a file on the device, for the ioctl FIBMAP. The kernel sends it for mounts
//! of block devices only.

use std::sync::Arc;

use base::FileOffset;
use rustix::io::Errno;

use crate::protocol::{BmapIn, BmapOut, InHeader};
use crate::reply::{Answer, Outcome, Reply};
use crate::requester::Requester;
use crate::server::Server;

impl Server {
    /// BMAP. Refuses all callers but those that wait in FIBMAP: swapon(2) requests blocks, too, and
    /// the kernel would then write to them without this server, even after it has ended.
    pub(crate) fn block_of_file(
        &self,
        header: &InHeader,
        operation: &BmapIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        if self.requesters.of(header.pid) != Requester::Fibmap {
            return Err(Errno::PERM.into());
        }
        let node = Arc::clone(&self.known(header.node)?.node);
        let size = u64::from(operation.block_size);
        let at = operation.block.checked_mul(size).ok_or(Errno::FBIG)?;
        base::waiting::about_to_wait();
        self.receive_kernel_data(header.node, &node)?;
        let found = node.device_offset(FileOffset(at), size)?;
        // The kernel's blocks are those of the device: not all of a volume's, if those are smaller.
        let block = found.filter(|at| at.0 % size == 0).map_or(0, |at| at.0 / size);
        reply.push(&BmapOut { block })?;
        Ok(Answer::Payload)
    }
}
