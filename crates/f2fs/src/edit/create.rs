//! New inodes.

use base::attributes::{DeviceNumber, FileType};
use base::{Error, FileBlock, FsBlock, InodeNumber, Result, Unsupported};
use fs::NewInode;
use fscrypt::Context;
use zerocopy::{FromZeros, IntoBytes};

use super::entries::EntryEditor;
use super::fields::InodeName;
use super::nodes::{Editor, nid_of};
use crate::dir::EntryName;
use crate::dir::edit::{self, NewEntry};
use crate::dir::entries::code_of_file_type;
use crate::features::Feature;
use crate::geometry::WORD_BYTES;
use crate::inode::Inode;
use crate::inode::encryption::encryption_owner;
use crate::inode::record::{DEFAULT_XATTR_WORDS, flags, inline};
use crate::nat::Nid;
use crate::ondisk::node::{RawExtraAttributes, RawInode, advise};
use crate::temperature::Temperature;

impl Editor<'_> {
    /// Creates an inode in the directory `parent`, whose entry for it the caller adds. An inode
    /// without a name gets no link. One with an encryption context is encrypted; the caller stores
    /// the context.
    pub(crate) fn create_inode(
        &mut self,
        new: &NewInode<'_>,
        parent: &Inode,
        name: Option<&EntryName<'_>>,
        context: Option<&Context>,
    ) -> Result<InodeNumber> {
        let nid = self.free_nid()?;
        let number = InodeNumber(nid.0.into());
        self.put_new_node(nid, number, 0, FsBlock(0))?;
        self.count_inodes(1);
        self.count_blocks_of_deleted(1);
        let mut raw = new_inode(new, parent, name);
        raw.flags.set(raw.flags.get() | flags_of_compression(parent, new.kind, name));
        if context.is_some() {
            raw.advise |= advise::ENCRYPTED;
        }
        let is_compressed = raw.flags.get() & flags::COMPRESSED != 0;
        let extra = self.extra_attributes(new, parent, is_compressed);
        self.edit_node(nid, number, |bytes| {
            let start = size_of::<RawInode>();
            bytes[..start].copy_from_slice(raw.as_bytes());
            if let Some(extra) = &extra {
                bytes[start..start + size_of::<RawExtraAttributes>()]
                    .copy_from_slice(extra.as_bytes());
            }
        })?;
        match new.kind {
            FileType::Directory => self.add_dots(number, parent.number())?,
            FileType::Symlink => match context {
                Some(context) => {
                    let target = self.encrypted_target(number, new.target, context)?;
                    self.store_target(number, &target)?;
                }
                None => self.store_target(number, new.target)?,
            },
            FileType::CharacterDevice | FileType::BlockDevice => {
                self.store_device(nid, number, new.device)?;
            }
            _ => {}
        }
        Ok(number)
    }

    /// Returns the extra attributes of a new inode, if the volume has them.
    fn extra_attributes(
        &self,
        new: &NewInode<'_>,
        parent: &Inode,
        is_compressed: bool,
    ) -> Option<RawExtraAttributes> {
        let features = &self.volume.geometry().features;
        if !features.has(Feature::ExtraAttributes) {
            return None;
        }
        let mut extra = RawExtraAttributes::default();
        extra.size.set(size_of::<RawExtraAttributes>() as u16);
        if features.has(Feature::FlexibleInlineXattr) {
            extra.inline_xattr_words.set(DEFAULT_XATTR_WORDS as u16);
        }
        if features.has(Feature::ProjectQuota) && parent.record().has_flag(flags::INHERIT_PROJECT) {
            extra.project.set(parent.attributes().project.unwrap_or(0));
        }
        if is_compressed {
            extra.set_compression(self.volume.new_compression());
        }
        if features.has(Feature::InodeCreationTime) {
            extra.created.set(new.created.seconds as u64);
            extra.created_nsec.set(new.created.nanoseconds);
        }
        Some(extra)
    }

    /// Adds "." and ".." to a new directory.
    fn add_dots(&mut self, number: InodeNumber, parent: InodeNumber) -> Result<()> {
        let area = self.inode(number)?.record().inline_area.clone().unwrap_or_default();
        self.edit_node(nid_of(number), number, |bytes| {
            let kind = code_of_file_type(FileType::Directory);
            for (name, inode) in [(&b"."[..], number), (&b".."[..], parent)] {
                edit::add(&mut bytes[area.clone()], &NewEntry { name, hash: 0, inode, kind });
            }
        })?;
        self.edit_inode(number, |raw| raw.size.set(area.len() as u64))
    }

    /// Returns the stored form of the target of an encrypted symbolic link. Errors: `NameTooLong`;
    /// `Unsupported` without the key.
    fn encrypted_target(
        &self,
        number: InodeNumber,
        target: &[u8],
        context: &Context,
    ) -> Result<Vec<u8>> {
        let owner = encryption_owner(self.volume.geometry(), number);
        let names = self.volume.keys().names(context, &owner)?;
        let names = names.ok_or(Unsupported::Encrypted(number))?;
        // Linux leaves a byte of the block for the end of the text.
        names.encrypt_target(target, self.volume.geometry().block_size.len() - 1)
    }

    /// Stores the target of a symbolic link: in its inode, or in a block.
    fn store_target(&mut self, number: InodeNumber, target: &[u8]) -> Result<()> {
        let block_size = self.volume.geometry().block_size;
        if target.len() >= block_size.len() {
            return Err(Error::NameTooLong);
        }
        self.edit_inode(number, |raw| raw.size.set(target.len() as u64))?;
        let area = self.inode(number)?.record().inline_area.clone().unwrap_or_default();
        if target.len() <= area.len() {
            return self.edit_node(nid_of(number), number, |bytes| {
                bytes[area][..target.len()].copy_from_slice(target);
            });
        }
        self.edit_inode(number, |raw| raw.inline &= !(inline::DATA | inline::DATA_EXISTS))?;
        EntryEditor { editor: self, number }.new_block(FileBlock(0))?;
        self.edit_inode(number, |raw| raw.size.set(target.len() as u64))?;
        let mut contents = target.to_vec();
        contents.resize(block_size.len(), 0);
        self.overlay.write().put_directory_block(number, FileBlock(0), contents)
    }

    /// Stores a device's number: in the first address in the old form, or in the second one in the
    /// new form.
    fn store_device(&self, nid: Nid, number: InodeNumber, device: DeviceNumber) -> Result<()> {
        let DeviceNumber { major, minor } = device;
        let start = self.inode(number)?.record().addresses_at;
        let is_old = major < 256 && minor < 256;
        let words = if is_old {
            [major << 8 | minor, 0]
        } else {
            [0, minor & 0xFF | major << 8 | (minor & !0xFF) << 12]
        };
        self.edit_node(nid, number, |bytes| {
            for (index, word) in words.iter().enumerate() {
                let at = start + index * WORD_BYTES;
                bytes[at..at + WORD_BYTES].copy_from_slice(&word.to_le_bytes());
            }
        })
    }
}

/// Returns the fixed fields of a new inode.
fn new_inode(new: &NewInode<'_>, parent: &Inode, name: Option<&EntryName<'_>>) -> RawInode {
    let features = &parent.volume().geometry().features;
    let mut raw = RawInode::new_zeroed();
    // The type bits lie in the upper four of sixteen.
    raw.mode.set(new.kind.mode_bits() as u16 | new.permissions & 0o7777);
    raw.inline = inline::XATTR;
    if features.has(Feature::ExtraAttributes) {
        raw.inline |= inline::EXTRA;
    }
    raw.uid.set(new.uid);
    raw.gid.set(new.gid);
    raw.links.set(match name {
        None => 0,
        Some(_) if new.kind == FileType::Directory => 2,
        Some(_) => 1,
    });
    raw.blocks.set(1);
    raw.set_accessed(new.time);
    raw.set_modified(new.time);
    raw.set_changed(new.time);
    raw.generation.set(random());
    raw.flags.set(flags::inherited(parent.attributes().flags, new.kind));
    match new.kind {
        FileType::Directory => {
            raw.inline |= inline::DENTRIES;
            raw.current_depth.set(1);
        }
        FileType::Symlink => {
            raw.inline |= inline::DATA | inline::DATA_EXISTS;
        }
        _ => {}
    }
    if let Some(name) = name {
        // Data of files with encrypted names is warm: the names' endings are not known here.
        if new.kind == FileType::Regular && !name.is_encrypted {
            let superblock = parent.volume().superblock().raw();
            raw.advise |= Temperature::of_name(&name.stored, superblock).advice();
        }
        raw.set_name(InodeName { parent: parent.number(), name });
    }
    raw
}

/// Returns the flags of compression of a new inode. As in Linux, a file without a name is not
/// compressed, nor is one with an extension of hot files. Otherwise the extensions of its name
/// decide, or else the directory.
fn flags_of_compression(parent: &Inode, kind: FileType, name: Option<&EntryName<'_>>) -> u32 {
    let volume = parent.volume();
    if !volume.geometry().features.has(Feature::Compression) {
        return 0;
    }
    let by_name = match (kind, name) {
        (FileType::Directory, _) => None,
        (FileType::Regular, Some(name)) if name.is_encrypted => None,
        (FileType::Regular, Some(name)) => {
            if Temperature::is_hot_name(&name.stored, volume.superblock().raw()) {
                return 0;
            }
            volume.compressed_names().and_then(|names| names.is_compressed(&name.stored))
        }
        _ => return 0,
    };
    let of_parent = parent.attributes().flags & flags::OF_COMPRESSION;
    match by_name {
        Some(true) => flags::COMPRESSED,
        Some(false) => 0,
        None if of_parent & flags::NOT_COMPRESSED != 0 => flags::NOT_COMPRESSED,
        None => of_parent,
    }
}

fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u32
}
