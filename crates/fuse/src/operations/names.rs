//! LOOKUP, FORGET and READLINK.

use std::sync::Arc;

use base::{Error, Result};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::protocol::{Attr, BatchForgetIn, EntryOut, ForgetIn, ForgetOne, InHeader};
use crate::reply::{Answer, Outcome, Reply};
use crate::request;
use crate::server::Server;

/// The maximum length of a link target that the kernel accepts, in bytes: PATH_MAX without the NUL.
const TARGET_BYTES_MAX: usize = 4095;

impl Server {
    /// LOOKUP. The kernel may cache the answer for a missing name, too.
    ///
    /// For file handles (NFS), the kernel looks up names in nodes that it has forgotten: "." in nodes of all types, and
    /// ".." in directories.
    pub(crate) fn lookup(
        &self,
        header: &InHeader,
        (): &(),
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let name = request::name(rest)?;
        if name.len() > self.name_bytes_max {
            return Err(Errno::NAMETOOLONG.into());
        }
        let found = match name {
            b"." => self.forgotten_node(header.node),
            b".." => self
                .forgotten_node(header.node)
                .and_then(|directory| self.volume.lookup(&directory, name)),
            _ => self.volume.lookup(&self.known(header.node)?.node, name),
        };
        let node = match found {
            Ok(node) => node,
            Err(Error::NotFound) => {
                reply.push(&self.entry(0, 0, Attr::default()))?;
                return Ok(Answer::Payload);
            }
            Err(error) => return Err(error.into()),
        };
        if reply.room() < size_of::<EntryOut>() {
            return Err(Errno::RANGE.into());
        }
        reply.push(&self.entry_out(&node))?;
        Ok(Answer::Payload)
    }

    /// Returns the node of an id that the kernel has forgotten, even if FORGET was not received yet. Fails with
    /// `NotFound` if the file is deleted: while a deleted file is open, the kernel finds its node itself.
    fn forgotten_node(&self, id: u64) -> Result<Arc<vfs::Node>> {
        match self.nodes.get(id) {
            Some(known) if known.node.attributes().links == 0 => Err(Error::NotFound),
            Some(known) => Ok(Arc::clone(&known.node)),
            None => self.volume.kept_node(self.nodes.number(id)),
        }
    }

    /// Returns the entry of `node` for the kernel, and counts a lookup.
    pub(crate) fn entry_out(&self, node: &Arc<vfs::Node>) -> EntryOut {
        let attributes = node.attributes();
        let id = self.nodes.count_lookup(node);
        self.entry(id, attributes.generation, self.attr(&attributes))
    }

    /// Returns an entry in the protocol's form.
    fn entry(&self, node: u64, generation: u32, attr: Attr) -> EntryOut {
        let seconds = self.options.valid.as_secs();
        let nanoseconds = self.options.valid.subsec_nanos();
        EntryOut {
            node,
            generation: generation.into(),
            entry_valid: seconds,
            attr_valid: seconds,
            entry_valid_nanoseconds: nanoseconds,
            attr_valid_nanoseconds: nanoseconds,
            attr,
        }
    }

    /// FORGET.
    pub(crate) fn forget(
        &self,
        header: &InHeader,
        operation: &ForgetIn,
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        self.nodes.forget(header.node, operation.lookups);
        Ok(Answer::Silent)
    }

    /// BATCH_FORGET.
    pub(crate) fn batch_forget(
        &self,
        _header: &InHeader,
        operation: &BatchForgetIn,
        mut rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        for _ in 0..operation.count {
            let Ok((one, after)) = ForgetOne::read_from_prefix(rest) else { break };
            self.nodes.forget(one.node, one.lookups);
            rest = after;
        }
        Ok(Answer::Silent)
    }

    /// READLINK.
    pub(crate) fn read_link(
        &self,
        header: &InHeader,
        (): &(),
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let known = self.known(header.node)?;
        let target = known.node.read_link()?;
        known.node.note_access();
        if target.len() > TARGET_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        reply.push_bytes(&target)?;
        Ok(Answer::Payload)
    }
}
