//! Encryption contexts: the policy and the nonce of an inode.

use base::{Error, InodeNumber, Location, Problem, Result, Unsupported};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use zerocopy::{FromBytes, IntoBytes};

use crate::ondisk::{RawContextV1, RawContextV2, VERSION_1, VERSION_2};
use crate::{KeyId, Mode, Policy};

/// Random bytes, unique for each inode.
pub type Nonce = [u8; 16];

/// The encryption context of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The policy, which all inodes of an encrypted tree share.
    pub policy: Policy,
    /// The nonce of the inode.
    pub nonce: Nonce,
}

impl Context {
    /// Returns the context of a new inode with a policy. Its nonce is random.
    ///
    /// # Panics
    ///
    /// If the kernel has no random numbers, which it has had since its start.
    pub fn new(policy: Policy) -> Self {
        let mut nonce = Nonce::default();
        loop {
            match rustix::rand::getrandom(&mut nonce[..], GetRandomFlags::empty()) {
                // Requests of up to 256 bytes are answered as a whole.
                Ok(length) if length == nonce.len() => return Self { policy, nonce },
                Ok(_) | Err(Errno::INTR) => {}
                // A nonce that is not random would weaken the encryption.
                Err(error) => panic!("no random numbers: {error}"),
            }
        }
    }

    /// Returns the context of `inode` that is stored in `bytes`. Errors: `Corrupt`; `Unsupported`
    /// for versions, modes and flags that are unknown, and for combinations of them that kernels
    /// refuse.
    pub fn parse(bytes: &[u8], inode: InodeNumber) -> Result<Self> {
        let corrupt =
            |problem| Error::corrupt("encryption context", Location::inode(inode), problem);
        let size = |needed: usize| {
            let (needed, available) = (needed as u64, bytes.len() as u64);
            corrupt(Problem::Mismatch { field: "length", found: available, expected: needed })
        };
        let context = match bytes.first() {
            None => return Err(corrupt(Problem::Missing("version"))),
            Some(&VERSION_1) => {
                let raw = RawContextV1::ref_from_bytes(bytes)
                    .map_err(|_| size(size_of::<RawContextV1>()))?;
                Self::parse_v1(raw, inode)?
            }
            Some(&VERSION_2) => {
                let raw = RawContextV2::ref_from_bytes(bytes)
                    .map_err(|_| size(size_of::<RawContextV2>()))?;
                if raw.reserved != [0; 3] {
                    let feature = "unknown fields of the encryption context";
                    return Err(Unsupported::Inode { inode, feature }.into());
                }
                Self::parse_v2(raw, inode)?
            }
            Some(_) => {
                let feature = "an unknown version of the encryption context";
                return Err(Unsupported::Inode { inode, feature }.into());
            }
        };
        context.policy.check(inode)?;
        Ok(context)
    }

    fn parse_v1(raw: &RawContextV1, inode: InodeNumber) -> Result<Self> {
        let (iv, name_padding) = Policy::parse_flags(raw.flags, inode)?;
        let policy = Policy {
            key: KeyId::Descriptor(raw.master_key_descriptor),
            contents: Mode::from_disk(raw.contents_encryption_mode, inode)?,
            names: Mode::from_disk(raw.filenames_encryption_mode, inode)?,
            iv,
            name_padding,
            log2_data_unit_size: None,
        };
        Ok(Self { policy, nonce: raw.nonce })
    }

    fn parse_v2(raw: &RawContextV2, inode: InodeNumber) -> Result<Self> {
        let (iv, name_padding) = Policy::parse_flags(raw.flags, inode)?;
        let policy = Policy {
            key: KeyId::Identifier(raw.master_key_identifier),
            contents: Mode::from_disk(raw.contents_encryption_mode, inode)?,
            names: Mode::from_disk(raw.filenames_encryption_mode, inode)?,
            iv,
            name_padding,
            log2_data_unit_size: Some(raw.log2_data_unit_size).filter(|&log2| log2 != 0),
        };
        Ok(Self { policy, nonce: raw.nonce })
    }

    /// Returns the bytes that store the context.
    pub fn to_bytes(&self) -> Vec<u8> {
        let policy = &self.policy;
        let flags = policy.flags();
        match policy.key {
            KeyId::Descriptor(master_key_descriptor) => {
                let raw = RawContextV1 {
                    version: VERSION_1,
                    contents_encryption_mode: policy.contents.to_disk(),
                    filenames_encryption_mode: policy.names.to_disk(),
                    flags,
                    master_key_descriptor,
                    nonce: self.nonce,
                };
                raw.as_bytes().to_vec()
            }
            KeyId::Identifier(master_key_identifier) => {
                let raw = RawContextV2 {
                    version: VERSION_2,
                    contents_encryption_mode: policy.contents.to_disk(),
                    filenames_encryption_mode: policy.names.to_disk(),
                    flags,
                    log2_data_unit_size: policy.log2_data_unit_size.unwrap_or(0),
                    reserved: [0; 3],
                    master_key_identifier,
                    nonce: self.nonce,
                };
                raw.as_bytes().to_vec()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IvRule;

    const INODE: InodeNumber = InodeNumber(12);

    fn v1() -> Vec<u8> {
        let mut bytes = vec![1, 1, 4, 2];
        bytes.extend(*b"\x01\x23\x45\x67\x89\xab\xcd\xef");
        bytes.extend([7; 16]);
        bytes
    }

    fn v2() -> Vec<u8> {
        let mut bytes = vec![2, 1, 4, 0x0b, 0, 0, 0, 0];
        bytes.extend([5; 16]);
        bytes.extend([7; 16]);
        bytes
    }

    #[test]
    fn contexts_are_parsed_and_stored_again() {
        let context = Context::parse(&v1(), INODE).expect("valid");
        assert_eq!(context.policy.key.to_string(), "0123456789abcdef");
        assert_eq!(context.policy.name_padding, 16);
        assert_eq!((context.nonce, context.to_bytes()), ([7; 16], v1()));
        let context = Context::parse(&v2(), INODE).expect("valid");
        assert_eq!(context.policy.key, KeyId::Identifier([5; 16]));
        assert_eq!((context.policy.iv, context.policy.name_padding), (IvRule::InodeLblk64, 32));
        assert_eq!((context.nonce, context.to_bytes()), ([7; 16], v2()));
    }

    #[test]
    fn new_contexts_have_their_own_nonces() {
        let policy = Context::parse(&v2(), INODE).expect("valid").policy;
        let contexts = [(); 2].map(|()| Context::new(policy));
        assert_eq!(contexts.map(|context| context.policy), [policy; 2]);
        assert_ne!(contexts[0].nonce, contexts[1].nonce);
    }

    #[track_caller]
    fn check_change(mut bytes: Vec<u8>, at: usize, value: u8, complaint: &str) {
        bytes[at] = value;
        let error = Context::parse(&bytes, INODE).expect_err("not valid").to_string();
        assert!(error.contains(complaint), "{error}");
    }

    #[test]
    fn unknown_and_contradictory_fields_are_named() {
        check_change(v2(), 0, 3, "an unknown version");
        check_change(v1(), 0, 2, "length is 28, but must be 40");
        check_change(v2(), 1, 7, "SM4-XTS");
        check_change(v2(), 1, 99, "an unknown encryption mode");
        check_change(v2(), 2, 6, "an unknown pair");
        check_change(v1(), 2, 10, "an unknown pair");
        check_change(v1(), 3, 8, "do not fit");
        check_change(v1(), 3, 4, "do not fit");
        check_change(v2(), 3, 0x20, "unknown encryption flags");
        check_change(v2(), 3, 0x18, "flags is invalid: 0x18");
        check_change(v2(), 6, 1, "unknown fields");
    }

    #[test]
    fn all_short_and_arbitrary_contexts_are_refused_or_stored_again() {
        for length in 0..v2().len() {
            assert!(Context::parse(&v2()[..length], INODE).is_err());
        }
        for at in 0..8 {
            for value in 0..=255 {
                for mut bytes in [v1(), v2()] {
                    bytes[at] = value;
                    if let Ok(context) = Context::parse(&bytes, INODE) {
                        assert_eq!(context.to_bytes(), bytes);
                    }
                }
            }
        }
    }
}
