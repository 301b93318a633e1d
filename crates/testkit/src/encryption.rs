//! Ioctls that encrypt files: adding a master key to a mounted volume, and setting the policy of a directory.

use std::os::fd::AsFd;

use rustix::io::Result;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};

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

/// Adds the master key `raw`, at most 64 bytes, to the volume of `file`, for policies of version 1 if it has a
/// descriptor, and else of version 2. Returns the identifier, which starts with the descriptor if there is one.
pub fn add_encryption_key(
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
    // SAFETY: FS_IOC_ADD_ENCRYPTION_KEY reads and fills a `struct fscrypt_add_key_arg`, and reads the `raw_bytes` bytes
    // after it, which are at most those of `raw`.
    unsafe { ioctl(file, Updater::<OPCODE, AddKey>::new(&mut request))? };
    let (identifier, _) = request.name.split_at(16);
    Ok(identifier.try_into().expect("16 bytes"))
}

/// Sets the policy of an empty directory. The policy is a `struct fscrypt_policy_v1` or `fscrypt_policy_v2`.
pub fn set_encryption_policy(directory: impl AsFd, policy: &[u8]) -> Result<()> {
    // Declared with the first structure, but the version decides.
    const OPCODE: Opcode = opcode::read::<[u8; 12]>(b'f', 19);
    let mut request = [0; 24];
    request[..policy.len()].copy_from_slice(policy);
    // SAFETY: FS_IOC_SET_ENCRYPTION_POLICY reads at most the 24 bytes of a `struct fscrypt_policy_v2`.
    unsafe { ioctl(directory, Setter::<OPCODE, [u8; 24]>::new(request)) }
}
