//! Encrypted files: policies of each kind, their master key, and the ioctls that add the key to a
//! mounted volume and set the policy of a directory.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use fscrypt::{Context, IvRule, KeyId, Keys, Mode, Policy};
use rustix::io::Result;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

use crate::must;

/// The master key of all policies. Its halves differ, as XTS requires of keys of policies of
/// version 1.
pub const MASTER_KEY: [u8; 64] =
    *b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-";

/// The descriptor of the master key for policies of version 1.
pub const DESCRIPTOR: [u8; 8] = [0xd5; 8];

/// Returns the master key under both of its names.
pub fn master_keys() -> Keys {
    let mut keys = Keys::default();
    must(keys.add(&MASTER_KEY), "the master key");
    must(keys.add_with_descriptor(DESCRIPTOR, &MASTER_KEY), "the master key");
    keys
}

/// Adds the master key, under both of its names, to the volume that is mounted on `top`.
pub fn add_master_keys(top: &Path) {
    let file = must(File::open(top), top.display());
    for descriptor in [None, Some(DESCRIPTOR)] {
        must(add_encryption_key(&file, descriptor, &MASTER_KEY), "adding the master key");
    }
}

/// Returns policies of all kinds that need no ciphers besides AES in the modes XTS and CTS, with
/// names.
pub fn policies() -> Vec<(&'static str, Policy)> {
    let identifier = must(Keys::default().add(&MASTER_KEY), "the master key");
    let policy = |key, iv, name_padding, log2_data_unit_size| Policy {
        key,
        contents: Mode::Aes256Xts,
        names: Mode::Aes256Cts,
        iv,
        name_padding,
        log2_data_unit_size,
    };
    vec![
        ("v1", policy(KeyId::Descriptor(DESCRIPTOR), IvRule::PerFileKey, 4, None)),
        ("v2", policy(identifier, IvRule::PerFileKey, 32, None)),
        ("lblk64", policy(identifier, IvRule::InodeLblk64, 16, None)),
        ("lblk32", policy(identifier, IvRule::InodeLblk32, 8, None)),
        ("units of 1024", policy(identifier, IvRule::PerFileKey, 32, Some(10))),
    ]
}

/// Returns the policy of [`policies`] with this name.
pub fn policy(name: &str) -> Policy {
    let found = policies().into_iter().find(|(found, _)| *found == name);
    found.unwrap_or_else(|| panic!("no policy {name}")).1
}

/// Returns policies with other ciphers, with names. Few kernels have all of these. Debian's have no
/// HCTR2.
pub fn rare_policies() -> Vec<(&'static str, Policy)> {
    let identifier = must(Keys::default().add(&MASTER_KEY), "the master key");
    let descriptor = KeyId::Descriptor(DESCRIPTOR);
    let policy = |key, contents, names, iv| Policy {
        key,
        contents,
        names,
        iv,
        name_padding: 32,
        log2_data_unit_size: None,
    };
    let (cbc, cts) = (Mode::Aes128CbcEssiv, Mode::Aes128Cts);
    let adiantum = Mode::Adiantum;
    vec![
        ("adiantum", policy(identifier, adiantum, adiantum, IvRule::PerFileKey)),
        ("direct adiantum", policy(identifier, adiantum, adiantum, IvRule::DirectKey)),
        ("direct adiantum of v1", policy(descriptor, adiantum, adiantum, IvRule::DirectKey)),
        ("cbc", policy(identifier, cbc, cts, IvRule::PerFileKey)),
    ]
}

/// Creates a folder in `top` for each policy that has none, with its name.
pub(crate) fn make_folders(top: &Path) {
    for (name, policy) in policies().into_iter().chain(rare_policies()) {
        let folder = top.join(name);
        if folder.exists() {
            continue;
        }
        must(std::fs::create_dir(&folder), folder.display());
        let file = must(File::open(&folder), folder.display());
        must(set_encryption_policy(&file, &policy), folder.display());
    }
}

/// `struct fscrypt_add_key_arg` of linux/fscrypt.h with the longest key.
#[repr(C)]
#[derive(Clone, Copy)]
struct AddKey {
    /// 1: a descriptor, 2: an identifier.
    kind: u32,
    reserved: u32,
    /// The descriptor or, from the kernel, the identifier.
    name: [u8; 32],
    raw_bytes: u32,
    key_id: u32,
    reserved_end: [u32; 8],
    raw: [u8; 64],
}

/// Adds the master key `raw`, at most 64 bytes, to the volume of `file`, for policies of version 1
/// if it has a descriptor, and else of version 2. Returns the identifier, which starts with the
/// descriptor if there is one.
fn add_encryption_key(
    file: impl AsFd,
    descriptor: Option<[u8; 8]>,
    raw: &[u8],
) -> Result<[u8; 16]> {
    const OPCODE: Opcode = opcode::read_write::<[u8; 80]>(b'f', 23);
    let mut request = AddKey {
        kind: if descriptor.is_some() { 1 } else { 2 },
        reserved: 0,
        name: [0; 32],
        raw_bytes: raw.len() as u32,
        key_id: 0,
        reserved_end: [0; 8],
        raw: [0; 64],
    };
    request.name[..8].copy_from_slice(&descriptor.unwrap_or_default());
    request.raw[..raw.len()].copy_from_slice(raw);
    // SAFETY: FS_IOC_ADD_ENCRYPTION_KEY reads and fills a `struct fscrypt_add_key_arg`, and reads
    // the `raw_bytes` bytes after it, which are at most those of `raw`.
    unsafe { ioctl(file, Updater::<OPCODE, AddKey>::new(&mut request))? };
    let (identifier, _) = request.name.split_at(16);
    Ok(identifier.try_into().expect("16 bytes"))
}

/// Sets the policy of an empty directory.
pub fn set_encryption_policy(directory: impl AsFd, policy: &Policy) -> Result<()> {
    // Declared with the first structure, but the version decides.
    const OPCODE: Opcode = opcode::read::<[u8; 12]>(b'f', 19);
    // A context is a policy and a nonce.
    let nonce = [0; 16];
    let context = Context { policy: *policy, nonce }.to_bytes();
    let stored = &context[..context.len() - nonce.len()];
    let mut request = [0; 24];
    request[..stored.len()].copy_from_slice(stored);
    // The versions of policies are 0 and 2, those of contexts 1 and 2.
    request[0] &= 2;
    // SAFETY: FS_IOC_SET_ENCRYPTION_POLICY reads at most the 24 bytes of a
    // `struct fscrypt_policy_v2`.
    unsafe { ioctl(directory, Setter::<OPCODE, [u8; 24]>::new(request)) }
}
