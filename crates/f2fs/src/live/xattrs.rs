//! Changes of extended attributes: the list goes to the inode, and if it is longer, to a node of
//! its own.

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, InodeNumber, Location, Result, Unsupported};
use fs::acl::stored;
use fs::xattr::NameIndex;
use fscrypt::{CONTEXT_NAME, Context};

use super::{LiveInode, NODES_MAX, apply};
use crate::edit::{Editor, nid_of};
use crate::inode::ADVISE;
use crate::nat::Nid;
use crate::ondisk::node::{RawNodeFooter, advise};
use crate::write::Demand;
use crate::xattr::NAMES;
use crate::xattr::edit::List;

/// As in Linux.
const VALUE_BYTES_MAX: usize = 64 << 10;

impl LiveInode {
    /// Sets an extended attribute, and changes the attributes in `change` with it.
    pub(crate) fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        change: &AttributeChange,
    ) -> Result<()> {
        if name == ADVISE {
            return self.set_advice(value, change);
        }
        let (index, name) = NAMES.changeable_name(name)?;
        let value = stored_value(self.current().attributes().kind, index, value)?;
        self.change_xattrs(Demand::Adds(NODES_MAX), change, |list| match &value {
            Some(value) => list.set(index, name, value, mode),
            // An ACL that says no more than the mode.
            None => list.remove(index, name).or(Ok(())),
        })
    }

    /// Removes an extended attribute, and changes the attributes in `change` with it. Errors:
    /// `NoAttribute`.
    pub(crate) fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        if name == ADVISE {
            return Err(Error::InvalidArgument("every inode has advice flags"));
        }
        let (index, name) = NAMES.changeable_name(name)?;
        self.change_xattrs(Demand::Few, change, |list| list.remove(index, name))
    }

    /// Sets the advice flags that say how soon data is likely to be overwritten. The others stay.
    fn set_advice(&self, value: &[u8], change: &AttributeChange) -> Result<()> {
        const CHANGEABLE: u8 = advise::COLD | advise::HOT;
        let advice = match value {
            [advice] if advice & !CHANGEABLE == 0 => *advice,
            _ => return Err(Error::InvalidArgument("the advice is not one byte, hot or cold")),
        };
        self.change(Demand::Few, &[], |editor, _| {
            self.update(editor, |raw| {
                raw.advise = raw.advise & !CHANGEABLE | advice;
                apply(raw, change);
            })
        })
    }

    fn change_xattrs(
        &self,
        demand: Demand,
        change: &AttributeChange,
        work: impl FnOnce(&mut List) -> Result<()>,
    ) -> Result<()> {
        self.change(demand, &[], |editor, _| {
            editor.change_xattrs(self.number, work)?;
            self.update(editor, |raw| apply(raw, change))
        })
    }
}

impl Editor<'_> {
    /// Stores the encryption context of a new inode.
    pub(super) fn set_new_context(&mut self, number: InodeNumber, context: &Context) -> Result<()> {
        self.change_xattrs(number, |list| {
            let value = context.to_bytes();
            list.set(NameIndex::ENCRYPTION, CONTEXT_NAME, &value, XattrMode::Create)
        })
    }

    /// Sets the first extended attributes of a new inode.
    pub(super) fn set_new_xattrs(
        &mut self,
        number: InodeNumber,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<()> {
        if xattrs.is_empty() {
            return Ok(());
        }
        let kind = self.inode(number)?.attributes().kind;
        self.change_xattrs(number, |list| {
            for (name, value) in xattrs {
                let (index, name) = NAMES.changeable_name(name)?;
                if let Some(value) = stored_value(kind, index, value)? {
                    list.set(index, name, &value, XattrMode::Either)?;
                }
            }
            Ok(())
        })
    }

    fn change_xattrs(
        &mut self,
        number: InodeNumber,
        work: impl FnOnce(&mut List) -> Result<()>,
    ) -> Result<()> {
        let inode = self.inode(number)?;
        let record = inode.record();
        let in_inode = record.inline_xattrs.clone();
        let in_node = self.volume.geometry().block_size.len() - size_of::<RawNodeFooter>();
        let room = in_inode.len() + in_node;
        let mut list = List::parse(&inode.xattr_bytes()?, room, Location::inode(number))?;
        work(&mut list)?;
        if inode.attributes().is_dir() {
            // A recovery of a new file in the directory would not find the change.
            self.overlay.write().set_unsyncable(number);
        }
        let mut stored = list.bytes().to_vec();
        let needs_node = stored.len() > in_inode.len();
        stored.resize(room, 0);
        let (first, rest) = stored.split_at(in_inode.len());
        self.edit_node(nid_of(number), number, |bytes| bytes[in_inode].copy_from_slice(first))?;
        let node: Option<Nid> = match (needs_node, record.xattr_node) {
            (true, None) => Some(self.new_xattr_node(number)?),
            (true, node) => node,
            (false, Some(_)) => {
                self.free_xattrs(&inode)?;
                self.edit_inode(number, |raw| raw.xattr_nid.set(0))?;
                None
            }
            (false, None) => None,
        };
        match node {
            Some(nid) => {
                self.edit_node(nid, number, |bytes| bytes[..in_node].copy_from_slice(rest))
            }
            None => Ok(()),
        }
    }
}

/// Returns the stored form of a value. `None` for an ACL that says no more than the mode. `kind` is
/// the inode's type.
fn stored_value(kind: FileType, index: NameIndex, value: &[u8]) -> Result<Option<Vec<u8>>> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::InvalidArgument("the attribute's value is too long"));
    }
    let is_default = index == NameIndex::ACL_DEFAULT;
    if !is_default && index != NameIndex::ACL_ACCESS {
        return Ok(Some(value.to_vec()));
    }
    if kind == FileType::Symlink {
        return Err(Unsupported::Operation("an ACL of a symbolic link").into());
    }
    let stored = stored::to_stored(value)?;
    if is_default && stored.is_some() && kind != FileType::Directory {
        return Err(Error::NotPermitted("only directories have default ACLs"));
    }
    Ok(stored)
}
