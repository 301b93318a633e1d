//! An image of f2fs whose root directory is encrypted, so that all files in it are. Not here: the
//! keys (`images/encryption.rs`).

use f2fs::ondisk::xattr::{RawXattrEntry, RawXattrHeader, XATTR_MAGIC};
use fs::xattr::NameIndex;
use fscrypt::{CONTEXT_NAME, Context, Policy};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::layout::{Layout, word};

/// The number of the root directory.
const ROOT: u32 = 3;
/// The offset of an inode's advice flags.
const ADVICE: usize = 2;
/// The bit of encrypted inodes among the advice flags.
const ENCRYPTED: u8 = 4;
/// The offset of an inode's inline flags.
const INLINE: usize = 3;
/// The bit of inodes with inline extended attributes.
const INLINE_XATTRS: u8 = 1;
/// The size of an inode's inline extended attributes in bytes.
const INLINE_XATTR_BYTES: usize = 200;
/// The size of the references to other nodes between them and the footer, in bytes.
const REFERENCES_BYTES: usize = 20;

/// Encrypts the root directory of an image that was just made, with the feature `encrypt` and
/// without inline extended attributes of other sizes. The directory is empty, so that only its
/// inode changes.
pub fn encrypt_root(image: &mut [u8], policy: Policy) {
    let layout = Layout::of(image);
    let is_root = |at: &usize| word(image, at + layout.footer()) == ROOT;
    let nodes = layout.nodes(image);
    let root = nodes.into_iter().find(is_root).expect("the root directory");
    image[root + ADVICE] |= ENCRYPTED;
    image[root + INLINE] |= INLINE_XATTRS;
    let end = root + layout.footer() - REFERENCES_BYTES;
    let list = xattrs(policy);
    let xattrs = &mut image[end - INLINE_XATTR_BYTES..end];
    xattrs.fill(0);
    xattrs[..list.len()].copy_from_slice(&list);
    layout.mend_node(image, root);
}

/// Returns extended attributes with the context of a directory with a policy.
fn xattrs(policy: Policy) -> Vec<u8> {
    let context = Context::new(policy).to_bytes();
    let header = RawXattrHeader {
        magic: XATTR_MAGIC.into(),
        refcount: U32::new(1),
        reserved: [U32::ZERO; 4],
    };
    let entry = RawXattrEntry {
        name_index: NameIndex::ENCRYPTION.0,
        name_len: CONTEXT_NAME.len() as u8,
        value_size: U16::new(context.len() as u16),
    };
    [header.as_bytes(), entry.as_bytes(), CONTEXT_NAME, &context].concat()
}
