//! GETATTR, STATX and STATFS, and attributes in the protocol's form.

use base::attributes::{Attributes, FileType, Timestamp};

use crate::protocol::{
    Attr, AttrOut, GetAttrIn, InHeader, InitFlags, STATX_BASIC_STATS, STATX_BTIME, StatFsOut,
    Statx, StatxIn, StatxOut, StatxTime, encode_device,
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

    /// Returns the answer to GETATTR and SETATTR.
    pub(crate) fn attr_out(&self, attributes: &Attributes) -> AttrOut {
        AttrOut {
            valid: self.options.valid.as_secs(),
            valid_nanoseconds: self.options.valid.subsec_nanos(),
            padding: 0,
            attr: self.attr(attributes),
        }
    }

    /// STATX: the attributes of GETATTR, and the time of creation.
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
            statx: self.statx_record(&attributes),
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
        let counts = self.volume().statfs();
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

    /// Returns attributes in the form of LOOKUP and GETATTR.
    pub(crate) fn attr(&self, attributes: &Attributes) -> Attr {
        let (uid, gid) = self.options.owners.shown(attributes);
        Attr {
            inode: attributes.inode.0,
            size: attributes.size,
            blocks: self.blocks(attributes),
            accessed: attributes.accessed.seconds as u64,
            modified: attributes.modified.seconds as u64,
            changed: attributes.changed.seconds as u64,
            accessed_nanoseconds: attributes.accessed.nanoseconds,
            modified_nanoseconds: attributes.modified.nanoseconds,
            changed_nanoseconds: attributes.changed.nanoseconds,
            mode: mode(attributes),
            links: attributes.links,
            uid,
            gid,
            device: encode_device(attributes.device.major, attributes.device.minor),
            block_size: self.block_size,
            flags: 0,
        }
    }

    /// Returns attributes in the form of STATX.
    fn statx_record(&self, attributes: &Attributes) -> Statx {
        let (uid, gid) = self.options.owners.shown(attributes);
        let mask = STATX_BASIC_STATS | if attributes.created.is_some() { STATX_BTIME } else { 0 };
        Statx {
            mask,
            block_size: self.block_size,
            links: attributes.links,
            uid,
            gid,
            mode: mode(attributes) as u16,
            inode: attributes.inode.0,
            size: attributes.size,
            blocks: self.blocks(attributes),
            accessed: time(attributes.accessed),
            created: time(attributes.created.unwrap_or_default()),
            changed: time(attributes.changed),
            modified: time(attributes.modified),
            device_major: attributes.device.major,
            device_minor: attributes.device.minor,
            ..Statx::default()
        }
    }

    /// Returns the number of allocated blocks to report. Programs do not read a file without
    /// blocks, since it is a hole. So one block is reported while the kernel may hold data of the
    /// file.
    fn blocks(&self, attributes: &Attributes) -> u64 {
        let is_hole = attributes.kind == FileType::Regular && attributes.blocks == 0;
        // If the kernel collects writes, the file may have data even if its size is zero here.
        let may_have_data = attributes.size > 0 || self.agreed_on(InitFlags::WRITEBACK_CACHE);
        if is_hole && may_have_data && self.files.kernel_may_hold_data(attributes.inode) {
            1
        } else {
            attributes.blocks
        }
    }
}

fn mode(attributes: &Attributes) -> u32 {
    attributes.kind.mode_bits() | u32::from(attributes.permissions & 0o7777)
}

fn time(time: Timestamp) -> StatxTime {
    StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}
