//! LOOKUP, FORGET and READLINK.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, Result};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::protocol::{Attr, BatchForgetIn, EntryOut, ForgetIn, ForgetOne, InHeader};
use crate::reply::{Answer, Outcome, Reply};
use crate::request;
use crate::server::Server;

/// The maximum length of a link target that the kernel accepts, in bytes: PATH_MAX without the NUL.
const TARGET_BYTES_MAX: usize = 4095;

/// FS_CASEFOLD_FL.
const CASEFOLDED: u32 = 0x4000_0000;

/// Returns whether a file of the directory has many names, which differ in their case. The kernel
/// takes each of them for another entry, and does not know that a change of one changes all.
pub(super) fn ignores_case(directory: &vfs::Node) -> bool {
    directory.attributes().flags & CASEFOLDED != 0
}

impl Server {
    /// LOOKUP. The kernel may cache the answer for a missing name, too.
    ///
    /// For file handles (NFS), the kernel looks up names in nodes that it has forgotten: "." in
    /// nodes of all types, and ".." in directories.
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
        let mut is_lasting = true;
        let found = match name {
            b"." => self.forgotten_node(header.node),
            b".." => self
                .forgotten_node(header.node)
                .and_then(|directory| self.volume().lookup(&directory, name)),
            _ => {
                let directory = self.known(header.node)?;
                is_lasting = !ignores_case(&directory.node);
                self.volume().lookup(&directory.node, name)
            }
        };
        let node = match found {
            Ok(node) => node,
            Err(Error::NotFound) => {
                // An empty directory may get another rule for names, while the kernel remembers
                // which ones were missing.
                is_lasting &= !self.has_casefolding;
                reply.push(&self.entry(0, 0, Attr::default(), is_lasting))?;
                return Ok(Answer::Payload);
            }
            Err(error) => return Err(error.into()),
        };
        if reply.room() < size_of::<EntryOut>() {
            return Err(Errno::RANGE.into());
        }
        reply.push(&self.counted_entry(&node, is_lasting))?;
        Ok(Answer::Payload)
    }

    /// Returns the node of an id that the kernel has forgotten, even if FORGET was not received
    /// yet. Fails with `NotFound` if the file is deleted: while a deleted file is open, the kernel
    /// finds its node itself.
    fn forgotten_node(&self, id: u64) -> Result<Arc<vfs::Node>> {
        match self.nodes.get(id) {
            Some(known) if known.node.attributes().links == 0 => Err(Error::NotFound),
            Some(known) => Ok(Arc::clone(&known.node)),
            None => self.volume().kept_node(self.nodes.number(id)),
        }
    }

    /// Returns the entry of `node` in `directory` for the kernel, and counts a lookup.
    pub(crate) fn entry_out(&self, directory: &vfs::Node, node: &Arc<vfs::Node>) -> EntryOut {
        self.counted_entry(node, !ignores_case(directory))
    }

    /// [`entry_out`](Self::entry_out) for a directory of which it is known whether its entries
    /// last.
    pub(super) fn counted_entry(&self, node: &Arc<vfs::Node>, is_lasting: bool) -> EntryOut {
        let attributes = node.attributes();
        let id = self.nodes.count_lookup(node);
        self.entry(id, attributes.generation, self.attr(&attributes), is_lasting)
    }

    /// Returns an entry in the protocol's form. Unless it `is_lasting`, the kernel looks the name
    /// up each time.
    fn entry(&self, node: u64, generation: u32, attr: Attr, is_lasting: bool) -> EntryOut {
        let valid = self.options.valid;
        let entry_valid = if is_lasting { valid } else { Duration::ZERO };
        EntryOut {
            node,
            generation: generation.into(),
            entry_valid: entry_valid.as_secs(),
            attr_valid: valid.as_secs(),
            entry_valid_nanoseconds: entry_valid.subsec_nanos(),
            attr_valid_nanoseconds: valid.subsec_nanos(),
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
