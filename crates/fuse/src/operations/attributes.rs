//! GETATTR, STATX, STATFS, and attributes as the protocol shows them.

use base::attributes::{Attributes, Timestamp};

use crate::protocol::{
    Attr, AttrOut, GetAttrIn, InHeader, STATX_BASIC_STATS, STATX_BTIME, StatFsOut, Statx, StatxIn,
    StatxOut, StatxTime, encode_device,
};
use crate::reply::{Answer, Outcome, Reply};
use crate::server::Server;

impl Server {
    /// GETATTR.
    pub(crate) fn get_attr(
        &self,
        header: &InHeader,
        _operation: &GetAttrIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let attributes = self.known(header.node)?.node.attributes();
        reply.push(&self.attr_out(&attributes))?;
        Ok(Answer::Payload)
    }

    /// The answer that tells attributes.
    pub(crate) fn attr_out(&self, attributes: &Attributes) -> AttrOut {
        AttrOut {
            valid: self.options.valid.as_secs(),
            valid_nanoseconds: self.options.valid.subsec_nanos(),
            padding: 0,
            attr: self.attr(attributes),
        }
    }

    /// STATX: what GETATTR tells, and the time of creation.
    pub(crate) fn statx(
        &self,
        header: &InHeader,
        _operation: &StatxIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let attributes = self.known(header.node)?.node.attributes();
        reply.push(&StatxOut {
            valid: self.options.valid.as_secs(),
            valid_nanoseconds: self.options.valid.subsec_nanos(),
            flags: 0,
            spare: [0; 2],
            statx: statx(&attributes, self.block_size),
        })?;
        Ok(Answer::Payload)
    }

    /// STATFS.
    pub(crate) fn stat_fs(
        &self,
        _header: &InHeader,
        (): &(),
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let counts = self.volume.statfs();
        reply.push(&StatFsOut {
            blocks: counts.blocks,
            blocks_free: counts.blocks_free,
            blocks_available: counts.blocks_available,
            inodes: counts.inodes,
            inodes_free: counts.inodes_free,
            block_size: counts.block_size,
            name_bytes_max: counts.name_bytes_max,
            fragment_size: counts.block_size,
            padding: 0,
            spare: [0; 6],
        })?;
        Ok(Answer::Payload)
    }

    /// Attributes as LOOKUP and GETATTR show them.
    pub(crate) fn attr(&self, attributes: &Attributes) -> Attr {
        Attr {
            inode: attributes.inode.0,
            size: attributes.size,
            blocks: attributes.blocks,
            accessed: attributes.accessed.seconds as u64,
            modified: attributes.modified.seconds as u64,
            changed: attributes.changed.seconds as u64,
            accessed_nanoseconds: attributes.accessed.nanoseconds,
            modified_nanoseconds: attributes.modified.nanoseconds,
            changed_nanoseconds: attributes.changed.nanoseconds,
            mode: mode(attributes),
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            device: encode_device(attributes.device.major, attributes.device.minor),
            block_size: self.block_size,
            flags: 0,
        }
    }
}

fn mode(attributes: &Attributes) -> u32 {
    attributes.kind.mode_bits() | u32::from(attributes.permissions & 0o7777)
}

fn statx(attributes: &Attributes, block_size: u32) -> Statx {
    let mask = STATX_BASIC_STATS | if attributes.created.is_some() { STATX_BTIME } else { 0 };
    Statx {
        mask,
        block_size,
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: mode(attributes) as u16,
        inode: attributes.inode.0,
        size: attributes.size,
        blocks: attributes.blocks,
        accessed: time(attributes.accessed),
        created: time(attributes.created.unwrap_or_default()),
        changed: time(attributes.changed),
        modified: time(attributes.modified),
        device_major: attributes.device.major,
        device_minor: attributes.device.minor,
        ..Statx::default()
    }
}

fn time(time: Timestamp) -> StatxTime {
    StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}
