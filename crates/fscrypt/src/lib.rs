//! The encryption of files that ext4 and f2fs share ("fscrypt"): policies, master keys, contents
//! and names.
//!
//! A format reads the [`Context`] of an encrypted inode and asks [`Keys`] for the ciphers of the
//! inode: [`Contents`] for regular files, [`Names`] for directories and symbolic links, which it
//! keeps as [`Ciphers`]. Without the key, names are shown as [`NoKeyName`]s.
//!
//! Source: kernel documentation, `filesystems/fscrypt.rst`. Not here: I/O, except for reading files
//! of keys.
#![forbid(unsafe_code)]

mod cipher;
mod contents;
mod context;
mod derive;
mod inode;
mod iv;
mod key_file;
mod keys;
mod mode;
mod names;
mod nokey;
pub mod ondisk;
mod policy;

pub use contents::Contents;
pub use context::{Context, Nonce};
pub use inode::{CONTEXT_NAME, Ciphers, ShownNames, StoredName, shown_target};
pub use keys::{Keys, Owner};
pub use mode::Mode;
pub use names::{NAME_BYTES_MAX, Names, stored_target};
pub use nokey::NoKeyName;
pub use policy::{IvRule, KeyId, Policy};
