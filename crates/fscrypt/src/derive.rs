//! Keys that are derived from master keys.

use aes::Aes128;
use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockEncrypt, KeyInit};
use hkdf::Hkdf;
use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use crate::Nonce;

/// The use of a key that is derived with HKDF-SHA512.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The public name of the master key.
    Identifier = 1,
    /// The key of one file.
    File = 2,
    /// The key of a mode.
    DirectKey = 3,
    /// The key of a mode on one volume, for `IV_INO_LBLK_64`.
    InodeLblk64 = 4,
    /// The key of the hashes of a directory's names.
    DirectoryHash = 5,
    /// The key of a mode on one volume, for `IV_INO_LBLK_32`.
    InodeLblk32 = 6,
    /// The key of the hashes of inode numbers.
    InodeHash = 7,
}

/// Returns the first `length` bytes that the master key `raw` gives for `purpose` and `info`, as
/// policies of version 2 define.
pub fn derive(raw: &[u8], purpose: Purpose, info: &[&[u8]], length: usize) -> Zeroizing<Vec<u8>> {
    let mut key = Zeroizing::new(vec![0; length]);
    let purpose = [purpose as u8];
    let mut parts: Vec<&[u8]> = vec![b"fscrypt\0", &purpose];
    parts.extend(info);
    let expanded = Hkdf::<Sha512>::new(None, raw).expand_multi_info(&parts, &mut key);
    expanded.expect("the longest key is much shorter than HKDF allows");
    key
}

/// Returns 16 bytes that the master key gives, as [`derive`] does.
pub fn derive_array(raw: &[u8], purpose: Purpose, info: &[&[u8]]) -> Zeroizing<[u8; 16]> {
    let derived = derive(raw, purpose, info, 16);
    Zeroizing::new(derived[..].try_into().expect("16 bytes"))
}

/// Returns the key of a file in a policy of version 1: the first `length` bytes of the master key
/// `raw`, encrypted with the nonce.
///
/// Panics if the master key is shorter, or `length` is not a multiple of 16.
pub fn derive_v1(raw: &[u8], nonce: &Nonce, length: usize) -> Zeroizing<Vec<u8>> {
    let mut key = Zeroizing::new(raw[..length].to_vec());
    let (blocks, rest) = InOutBuf::from(&mut key[..]).into_chunks();
    assert!(rest.is_empty(), "keys are whole blocks");
    Aes128::new(nonce.into()).encrypt_blocks_inout(blocks);
    key
}

/// Returns the descriptor that user space usually gives to the master key `raw`: the start of the
/// SHA-512 of its SHA-512.
pub fn usual_descriptor(raw: &[u8]) -> [u8; 8] {
    let digest = Sha512::digest(Sha512::digest(raw));
    let mut descriptor = [0; 8];
    descriptor.copy_from_slice(&digest[..8]);
    descriptor
}
