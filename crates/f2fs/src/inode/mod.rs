//! Inodes in memory.

pub(crate) mod checksum;
mod clusters;
mod directory;
pub(crate) mod encryption;
pub(crate) mod map;
pub(crate) mod record;
mod verity;
mod xattrs;

pub(crate) use self::xattrs::ADVISE;

use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

use ::verity::Verifier;
use base::attributes::{Attributes, FileType};
use base::view::view_at;
use base::{Error, FileBlock, FileOffset, InodeNumber, Location, Problem, Result, Unsupported};
use fscrypt::Ciphers;
use iomap::{Cluster, Encoding, Iomap, IomapKind, MapFlags, MapRead, Transform};

use self::map::BlockState;
use self::record::InodeRecord;
use crate::compress::ClusterCodec;
use crate::core::Core;
use crate::node::Node;
use crate::ondisk::node::RawInode;

/// The maximum length of a symbolic link's target, in bytes: that of a path.
const TARGET_BYTES_MAX: u64 = 4096;

/// An inode of an open volume.
#[derive(Debug)]
pub struct Inode {
    volume: Arc<Core>,
    record: InodeRecord,
    /// The ciphers of an encrypted inode.
    ciphers: Arc<Ciphers>,
    /// The decoder of a file's compressed clusters, once it is needed.
    codec: OnceLock<Arc<ClusterCodec>>,
    /// The verifier of a file with fs-verity, once it is loaded.
    verifier: OnceLock<Box<Verifier>>,
}

/// The bytes of an inode's block with inline data or dentries.
pub(crate) struct InlineContents {
    node: Node,
    area: Range<usize>,
}

impl Deref for InlineContents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.node.bytes().get(self.area.clone()).unwrap_or_default()
    }
}

impl Core {
    /// Loads an inode. Errors: `NotFound` if the inode is not in use.
    pub(crate) fn inode(self: &Arc<Self>, number: InodeNumber) -> Result<Inode> {
        let node = self.inode_node(number)?;
        let record = InodeRecord::parse(&node, self.geometry())?;
        Ok(Inode::new(Arc::clone(self), record))
    }
}

impl Inode {
    pub(crate) fn new(volume: Arc<Core>, record: InodeRecord) -> Self {
        Self {
            volume,
            record,
            ciphers: Arc::default(),
            codec: OnceLock::new(),
            verifier: OnceLock::new(),
        }
    }

    /// Returns the inode's number.
    pub fn number(&self) -> InodeNumber {
        self.record.attributes.inode
    }

    /// Returns the attributes as they are stored.
    pub fn attributes(&self) -> &Attributes {
        &self.record.attributes
    }

    /// Returns the attributes that stat(2) reports.
    pub fn shown_attributes(&self) -> Attributes {
        let mut attributes = self.record.attributes.clone();
        if attributes.kind == FileType::Symlink && self.record.is_encrypted {
            // As in the kernel, the size is that of the target that is shown. A damaged link keeps
            // its own size.
            let target = self.read_link();
            attributes.size = target.map_or(attributes.size, |target| target.len() as u64);
        }
        attributes
    }

    /// Returns the directory that the inode names for a recovery.
    pub(crate) fn parent(&self) -> Result<u32> {
        self.raw(|raw| raw.parent.get())
    }

    /// Returns the advice flags.
    pub(crate) fn advise(&self) -> Result<u8> {
        self.raw(|raw| raw.advise)
    }

    fn raw<R>(&self, field: impl FnOnce(&RawInode) -> R) -> Result<R> {
        let node = self.volume.inode_node(self.number())?;
        Ok(field(view_at(node.bytes(), 0, "inode", node.location())?))
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Arc<Core> {
        &self.volume
    }

    pub(crate) fn record(&self) -> &InodeRecord {
        &self.record
    }

    /// Returns the bytes of the block with inline data or dentries. `None` if the inode has none.
    pub(crate) fn inline_contents(&self) -> Result<Option<InlineContents>> {
        let Some(area) = self.record.inline_area.clone() else { return Ok(None) };
        let node = self.volume.inode_node(self.number())?;
        Ok(Some(InlineContents { node, area }))
    }

    /// Returns the target of a symbolic link. That of an encrypted link is decrypted, or without
    /// the key, shown in another form.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        if self.attributes().kind != FileType::Symlink {
            return Err(Error::InvalidArgument("not a symbolic link"));
        }
        let size = self.attributes().size;
        let block: u64 = self.volume.geometry().block_size.bytes().into();
        // An encrypted target is stored with its length and padding.
        let max = if self.record.is_encrypted { block } else { TARGET_BYTES_MAX.min(block) };
        if !(1..=max).contains(&size) {
            let problem = Problem::Range { field: "size", found: size, min: 1, max };
            return Err(Error::corrupt("symbolic link", Location::inode(self.number()), problem));
        }
        let mut target = match self.inline_contents()? {
            Some(contents) => contents.to_vec(),
            None => {
                let block = self.uncached_block(FileBlock(0), "symbolic link")?;
                block.map_or_else(Vec::new, |block| block.to_vec())
            }
        };
        target.truncate(size as usize);
        if self.record.is_encrypted {
            return fscrypt::shown_target(&target, self.names_cipher()?, self.number());
        }
        if target.len() as u64 != size || target.contains(&0) {
            let problem = Problem::Truncated { needed: size, available: target.len() as u64 };
            return Err(Error::corrupt("symbolic link", Location::inode(self.number()), problem));
        }
        Ok(target)
    }
}

impl Inode {
    /// Returns the range with `at` of a file with at most `inline_max` bytes of inline data. The
    /// rest is a hole.
    fn map_inline(&self, at: FileOffset, inline_max: u64) -> Iomap {
        let size = self.attributes().size;
        let inline = size.min(inline_max);
        let (start, end, kind) = if at.0 < inline {
            (0, inline, IomapKind::Inline)
        } else {
            let block = u64::from(self.volume.geometry().block_size.bytes());
            let end = size.max(at.0.saturating_add(1)).div_ceil(block).saturating_mul(block);
            (inline, end, IomapKind::Hole)
        };
        Iomap {
            offset: FileOffset(start),
            length: end - start,
            kind,
            address: None,
            flags: MapFlags { last: true, ..MapFlags::default() },
        }
    }
}

impl Inode {
    /// Fails for files whose data is not moved to other blocks on request.
    pub(crate) fn check_movable(&self) -> Result<()> {
        let record = self.record();
        let refused = [
            (record.has_flag(record::flags::VERITY), "moving files with fs-verity"),
            (record.has_flag(record::flags::PINNED), "moving pinned files"),
            (record.compression.is_some(), "moving compressed files"),
            (record.inline_area.is_some(), "moving files with inline data"),
        ];
        match refused.into_iter().find(|(is_refused, _)| *is_refused) {
            Some((_, feature)) => Err(Unsupported::Inode { inode: self.number(), feature }.into()),
            None => self.check_readable(),
        }
    }
}

impl MapRead for Inode {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.check_readable()?;
        let block_size = self.volume.geometry().block_size;
        if let Some(area) = &self.record.inline_area {
            return Ok(self.map_inline(at, area.len() as u64));
        }
        let wanted_end = FileBlock(block_size.blocks_for(at.0.saturating_add(length)));
        let piece = self.piece_at(block_size.file_block(at), wanted_end)?;
        let (kind, block) = match piece.state {
            BlockState::Hole => (IomapKind::Hole, None),
            BlockState::Reserved => (IomapKind::Unwritten, None),
            BlockState::Mapped(block) => (IomapKind::Mapped, Some(block)),
            BlockState::Compressed(block) => (IomapKind::Encoded, Some(block)),
        };
        // No shift overflows: pieces end below 2^48, and blocks have 16 KiB at most.
        let bytes = |blocks: u64| blocks << block_size.shift();
        Ok(Iomap {
            offset: FileOffset(bytes(piece.start.0)),
            length: bytes(piece.end.0 - piece.start.0),
            kind,
            address: block.and_then(|block| block_size.device_offset(block)),
            flags: MapFlags {
                last: piece.is_last(),
                encoded: self.record.is_encrypted,
                ..MapFlags::default()
            },
        })
    }

    fn transform(&self) -> Option<Arc<dyn Transform>> {
        // Without the key, no data is mapped.
        let cipher = self.contents_cipher().ok()??;
        Some(Arc::clone(cipher) as Arc<dyn Transform>)
    }

    fn is_verified(&self) -> bool {
        self.has_verity()
    }

    fn verify(&self, at: FileOffset, data: &[u8]) -> Result<()> {
        self.verify_data(at, data)
    }

    fn encoding(&self) -> Option<Encoding> {
        self.cluster_encoding()
    }

    fn cluster_bytes(&self) -> Option<u64> {
        self.bytes_of_clusters()
    }

    fn cluster(&self, at: FileOffset) -> Result<Cluster> {
        self.cluster_at(at)
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        let contents = self.inline_contents()?;
        let mut data = contents.as_deref().unwrap_or_default().to_vec();
        // Bytes behind the size are not data.
        let size = usize::try_from(self.attributes().size).unwrap_or(usize::MAX);
        data.truncate(size);
        Ok(data)
    }
}
