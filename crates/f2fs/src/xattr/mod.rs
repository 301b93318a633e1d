//! Extended attributes: the list of an inode, names with their prefixes, values. Not here: reading
//! inodes and nodes, permissions, `system.advise` (which is not stored), and changes.
//!
//! An inode's attributes are one list. It begins in the inode and continues in the inode's
//! attribute node; the caller puts both parts together.

pub(crate) mod edit;
pub mod entries;

use base::{Error, Location, Result};
use fs::acl::stored;
use fs::xattr::{NameIndex, NameTable};

use self::entries::Entries;

/// The names of attributes.
pub(crate) const NAMES: NameTable = NameTable { own: &[], hidden: &[] };

/// The name under [`NameIndex::VERITY`] whose value is the position of the verity descriptor.
pub const VERITY_NAME: &[u8] = b"v";

/// Returns the full names of the attributes in `list`, in stored order. `location` is that of the
/// list.
pub fn list(list: &[u8], location: Location) -> Result<Vec<Vec<u8>>> {
    let entries = Entries::parse(list, location)?;
    Ok(entries.iter().filter_map(|entry| NAMES.full_name(entry.index, entry.name)).collect())
}

/// Returns the value of the attribute in `list` that has this full name. ACLs have the form of
/// `getxattr(2)`.
///
/// # Errors
///
/// `NoAttribute`, and `Corrupt` for any damage of the list.
pub fn get(list: &[u8], name: &[u8], location: Location) -> Result<Vec<u8>> {
    let (index, name) = NAMES.split_name(name).ok_or(Error::NoAttribute)?;
    let entry = Entries::parse(list, location)?.find(index, name).ok_or(Error::NoAttribute)?;
    match index {
        NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT => stored::to_xattr(entry.value, location),
        _ => Ok(entry.value.to_vec()),
    }
}
