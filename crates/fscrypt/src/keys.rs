//! Sets of master keys, and the ciphers that they give for inodes.

use std::fmt;
use std::path::Path;

use base::{BlockSize, Error, InodeNumber, Location, Problem, Result, Unsupported};
use siphasher::sip::SipHasher24;
use zeroize::Zeroizing;

use crate::cipher::Cipher;
use crate::derive::{Purpose, derive, derive_array, derive_v1, usual_descriptor};
use crate::iv::Ivs;
use crate::{Contents, Context, IvRule, KeyId, Mode, Names, key_file};

/// The lengths of master keys in bytes.
const MASTER_KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// The error for master keys of other lengths.
const BAD_LENGTH: Error = Error::InvalidArgument("a master key has 16 to 64 bytes");

/// A master key, which is erased on drop, and its names.
struct MasterKey {
    raw: Zeroizing<Vec<u8>>,
    descriptor: [u8; 8],
    identifier: [u8; 16],
}

/// A set of master keys. The keys are erased on drop.
#[derive(Default)]
pub struct Keys {
    keys: Vec<MasterKey>,
}

impl fmt::Debug for Keys {
    /// Shows the names of the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identifiers = self.keys.iter().map(|key| KeyId::Identifier(key.identifier));
        f.debug_list().entries(identifiers).finish()
    }
}

/// An inode that is encrypted, and what its keys depend on besides its [`Context`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The inode.
    pub inode: InodeNumber,
    /// The UUID of the volume. If the superblock has another one for encryption, that one.
    pub uuid: [u8; 16],
    /// The block size of the volume.
    pub block_size: BlockSize,
}

impl Keys {
    /// Reads a set of keys from the file at `path`: a raw key of 16 to 64 bytes, or lines with keys
    /// in hexadecimal. A line can begin with a descriptor of 16 digits and a colon, for policies of
    /// version 1 whose descriptor is not computed from the key. Empty lines, and lines that begin
    /// with `#`, are ignored.
    ///
    /// Errors: `Open`; `InvalidArgument` if the file has another form.
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self> {
        Self::parse(&key_file::read(path.as_ref())?)
    }

    /// Returns the keys in `contents`, which have a form of [`read_file`](Self::read_file).
    pub fn parse(contents: &[u8]) -> Result<Self> {
        let mut keys = Self::default();
        match key_file::parse_lines(contents) {
            Some(lines) => {
                for line in lines {
                    let (descriptor, raw) = line?;
                    keys.add_with(descriptor, raw)?;
                }
            }
            None => {
                keys.add(contents)?;
            }
        }
        if keys.keys.is_empty() {
            return Err(Error::InvalidArgument("the key file has no key"));
        }
        Ok(keys)
    }

    /// Adds a master key, and returns its identifier. Errors: `InvalidArgument` if it does not have
    /// 16 to 64 bytes.
    pub fn add(&mut self, raw: &[u8]) -> Result<KeyId> {
        self.add_with(None, Zeroizing::new(raw.to_vec()))
    }

    /// Adds a master key with a descriptor that is not computed from it. Errors: as
    /// [`add`](Self::add).
    pub fn add_with_descriptor(&mut self, descriptor: [u8; 8], raw: &[u8]) -> Result<KeyId> {
        self.add_with(Some(descriptor), Zeroizing::new(raw.to_vec()))
    }

    fn add_with(&mut self, descriptor: Option<[u8; 8]>, raw: Zeroizing<Vec<u8>>) -> Result<KeyId> {
        if !MASTER_KEY_BYTES.contains(&raw.len()) {
            return Err(BAD_LENGTH);
        }
        let descriptor = descriptor.unwrap_or_else(|| usual_descriptor(&raw));
        let identifier = *derive_array(&raw, Purpose::Identifier, &[]);
        self.keys.push(MasterKey { raw, descriptor, identifier });
        Ok(KeyId::Identifier(identifier))
    }

    /// Returns whether the set has the key `id`.
    pub fn has(&self, id: KeyId) -> bool {
        self.find(id).is_some()
    }

    fn find(&self, id: KeyId) -> Option<&MasterKey> {
        self.keys.iter().find(|key| match id {
            KeyId::Descriptor(descriptor) => key.descriptor == descriptor,
            KeyId::Identifier(identifier) => key.identifier == identifier,
        })
    }

    /// Returns the cipher for the contents of the regular file `owner` with `context`; `None`
    /// without the key.
    ///
    /// Errors: `Corrupt`; `Unsupported` for sizes of data units that kernels refuse;
    /// `InvalidArgument` if the key is too short for the mode.
    pub fn contents(&self, context: &Context, owner: &Owner) -> Result<Option<Contents>> {
        let policy = &context.policy;
        let Some(key) = self.find(policy.key) else { return Ok(None) };
        let block_shift = owner.block_size.shift();
        let unit_shift = policy.log2_data_unit_size.map_or(block_shift, u32::from);
        // The sum with the hash of the inode number wraps around, which hardware allows only with
        // whole blocks.
        let is_valid = match policy.iv {
            IvRule::InodeLblk32 => unit_shift == block_shift,
            _ => (9..=block_shift).contains(&unit_shift),
        };
        if !is_valid {
            let feature = "this size of encrypted data units";
            return Err(Unsupported::Inode { inode: owner.inode, feature }.into());
        }
        let (cipher, ivs) = key.cipher(context, policy.contents, owner)?;
        Ok(Some(Contents::new(cipher, ivs, unit_shift)))
    }

    /// Returns the cipher for the names in the directory, or the target of the symbolic link,
    /// `owner` with `context`; `None` without the key. Errors: `Corrupt`; `InvalidArgument` if the
    /// key is too short for the mode.
    pub fn names(&self, context: &Context, owner: &Owner) -> Result<Option<Names>> {
        let policy = &context.policy;
        let Some(key) = self.find(policy.key) else { return Ok(None) };
        let (cipher, ivs) = key.cipher(context, policy.names, owner)?;
        let hasher = match policy.key {
            KeyId::Descriptor(_) => None,
            KeyId::Identifier(_) => {
                let key = derive_array(&key.raw, Purpose::DirectoryHash, &[&context.nonce]);
                Some(SipHasher24::new_with_key(&key))
            }
        };
        Ok(Some(Names::new(cipher, ivs.at(0), policy.name_padding, hasher, owner.inode)))
    }
}

impl MasterKey {
    /// Returns the cipher with `mode` and the initialization vectors of an inode.
    fn cipher(&self, context: &Context, mode: Mode, owner: &Owner) -> Result<(Cipher, Ivs)> {
        let Ok(inode) = u32::try_from(owner.inode.0) else {
            let (min, max) = (0, u32::MAX.into());
            let problem = Problem::Range { field: "inode number", found: owner.inode.0, min, max };
            return Err(Error::corrupt("encrypted inode", Location::inode(owner.inode), problem));
        };
        let ivs = Ivs::new(context, inode, &self.raw);
        Ok((Cipher::new(mode, &self.derive(context, mode, owner)?), ivs))
    }

    /// Returns the key for `mode` and an inode.
    fn derive(&self, context: &Context, mode: Mode, owner: &Owner) -> Result<Zeroizing<Vec<u8>>> {
        const TOO_SHORT: Error = Error::InvalidArgument("the master key is too short for the mode");
        let length = mode.key_bytes();
        let policy = &context.policy;
        if let KeyId::Descriptor(_) = policy.key {
            let used = self.raw.get(..length).ok_or(TOO_SHORT)?;
            return Ok(match policy.iv {
                IvRule::DirectKey => Zeroizing::new(used.to_vec()),
                _ => derive_v1(&self.raw, &context.nonce, length),
            });
        }
        if self.raw.len() < mode.strength_bytes() {
            return Err(TOO_SHORT);
        }
        let number = [mode.to_disk()];
        Ok(match policy.iv {
            IvRule::PerFileKey => derive(&self.raw, Purpose::File, &[&context.nonce], length),
            IvRule::DirectKey => derive(&self.raw, Purpose::DirectKey, &[&number], length),
            IvRule::InodeLblk64 => {
                derive(&self.raw, Purpose::InodeLblk64, &[&number, &owner.uuid], length)
            }
            IvRule::InodeLblk32 => {
                derive(&self.raw, Purpose::InodeLblk32, &[&number, &owner.uuid], length)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(contents: &[u8], complaint: &str) {
        let error = Keys::parse(contents).expect_err("not keys").to_string();
        assert!(error.contains(complaint), "{error}");
    }

    #[test]
    fn files_have_raw_keys_or_lines_of_hexadecimal() {
        let raw: Vec<u8> = (0..64).collect();
        let id = Keys::default().add(&raw).expect("a key");
        let hex = data_encoding::HEXLOWER.encode(&raw);
        let text = format!("# keys\n\n  {hex}\r\n0123456789ABCDEF: {}", "00".repeat(16));
        assert!(Keys::parse(&raw).expect("a raw key").has(id));
        let keys = Keys::parse(text.as_bytes()).expect("keys");
        assert!(keys.has(id));
        let named = KeyId::Descriptor(0x0123_4567_89ab_cdef_u64.to_be_bytes());
        assert!(keys.has(named) && !Keys::parse(&raw).expect("a raw key").has(named));
    }

    #[test]
    fn files_of_another_form_are_refused() {
        check_refused(b"", "no key");
        check_refused(b"# nothing\n", "no key");
        check_refused(&[0xfe; 15], "16 to 64 bytes");
        check_refused(&[0xfe; 65], "16 to 64 bytes");
        check_refused("0".repeat(30).as_bytes(), "16 to 64 bytes");
        check_refused("0".repeat(33).as_bytes(), "not a key in hexadecimal");
        check_refused(format!("0123:{}", "0".repeat(64)).as_bytes(), "not a key in hexadecimal");
        let folder = tempfile::tempdir().expect("a folder");
        let missing = Keys::read_file(folder.path().join("none"));
        assert!(matches!(missing, Err(Error::Open { errno: 2, .. })));
        let long = folder.path().join("long");
        std::fs::write(&long, "\n".repeat(100 << 10)).expect("a file");
        assert!(matches!(Keys::read_file(&long), Err(Error::InvalidArgument(_))));
    }

    #[test]
    fn debug_output_shows_no_keys() {
        let mut keys = Keys::default();
        keys.add(&[0xab; 32]).expect("a key");
        assert!(!format!("{keys:?}").contains("abab"));
    }
}
