//! Contents, names and targets that are encrypted and decrypted again under all policies, and
//! damaged ones.

use base::{BlockSize, Error, FileOffset, InodeNumber};
use data_encoding::HEXLOWER;
use fscrypt::{Context, IvRule, KeyId, Keys, Mode, Owner, Policy};
use iomap::Transform;
use sha2::{Digest, Sha256};

const BLOCK: BlockSize = BlockSize::from_shift(12).unwrap();
const OWNER: Owner = Owner { inode: InodeNumber(77), uuid: [9; 16], block_size: BLOCK };

/// Returns a set with a key, and all policies with it.
fn policies() -> (Keys, Vec<Policy>) {
    let mut keys = Keys::default();
    let identifier = keys.add(&[42; 64]).expect("a key");
    let descriptor = KeyId::Descriptor([3; 8]);
    keys.add_with_descriptor([3; 8], &[42; 64]).expect("a key");
    let mut policies = Vec::new();
    for key in [identifier, descriptor] {
        for (contents, names) in [
            (Mode::Aes256Xts, Mode::Aes256Cts),
            (Mode::Aes256Xts, Mode::Aes256Hctr2),
            (Mode::Aes128CbcEssiv, Mode::Aes128Cts),
            (Mode::Adiantum, Mode::Adiantum),
        ] {
            for (iv, name_padding) in [
                (IvRule::PerFileKey, 4),
                (IvRule::DirectKey, 8),
                (IvRule::InodeLblk64, 16),
                (IvRule::InodeLblk32, 32),
            ] {
                let log2_data_unit_size = None;
                let policy = Policy { key, contents, names, iv, name_padding, log2_data_unit_size };
                let stored = Context { policy, nonce: [0; 16] }.to_bytes();
                if Context::parse(&stored, OWNER.inode).is_ok() {
                    policies.push(policy);
                }
            }
        }
    }
    (keys, policies)
}

#[test]
fn contents_and_names_are_restored_under_all_policies() {
    let (keys, policies) = policies();
    assert_eq!(policies.len(), 9 + 4, "all that kernels accept");
    for policy in policies {
        let context = Context { policy, nonce: [1; 16] };
        let contents = keys.contents(&context, &OWNER).expect("valid").expect("a key");
        let data: Vec<u8> = (0..3 * BLOCK.len()).map(|at| (at / 5) as u8).collect();
        let mut stored = vec![0; data.len()];
        contents.store(FileOffset(8192), &data, &mut stored).expect("room");
        assert_ne!(stored, data);
        // Each block can be read alone.
        let (_, last) = stored.split_at_mut(2 * BLOCK.len());
        contents.load(FileOffset(4 * 4096), last).expect("room");
        assert_eq!(last, &data[2 * BLOCK.len()..]);

        let names = keys.names(&context, &OWNER).expect("valid").expect("a key");
        for length in 1..=255 {
            let name = vec![b'n'; length];
            let stored = names.encrypt(&name).expect("a name");
            let padded = length.max(16).next_multiple_of(policy.name_padding).min(255);
            assert_eq!(stored.len(), padded);
            assert_eq!(names.decrypt(&stored), Ok(name));
        }
        assert_eq!(names.encrypt(&[b'n'; 256]), Err(Error::NameTooLong));
        let target = names.encrypt_target(b"../there", 4096).expect("a target");
        assert_eq!(names.decrypt_target(&target), Ok(b"../there".to_vec()));
        let longest = names.encrypt_target(&[b't'; 4094], 4096).expect("a target");
        assert_eq!(longest.len(), 4096);
        assert_eq!(names.encrypt_target(&[b't'; 4095], 4096), Err(Error::NameTooLong));
        assert_eq!(names.dirhash(b"a").is_some(), matches!(policy.key, KeyId::Identifier(_)));
    }
}

#[test]
fn damaged_names_and_targets_are_errors() {
    let (keys, policies) = policies();
    let context = Context { policy: policies[0], nonce: [1; 16] };
    let names = keys.names(&context, &OWNER).expect("valid").expect("a key");
    for name in [&b""[..], b"a/b", b".", b".."] {
        let stored = names.encrypt(name).expect("short");
        assert!(matches!(names.decrypt(&stored), Err(Error::Corrupt(_))), "{name:?}");
    }
    for length in 0..16 {
        assert!(matches!(names.decrypt(&vec![0; length]), Err(Error::Corrupt(_))));
    }
    let target = names.encrypt_target(b"there", 60).expect("a target");
    for length in 0..target.len() {
        assert!(matches!(names.decrypt_target(&target[..length]), Err(Error::Corrupt(_))));
    }
    // A block of a symbolic link has bytes after the target.
    let block = [&target[..], &[0; 40]].concat();
    assert_eq!(names.decrypt_target(&block), Ok(b"there".to_vec()));
}

#[test]
fn only_matching_keys_give_ciphers() {
    let (keys, policies) = policies();
    let other = Policy { key: KeyId::Identifier([0; 16]), ..policies[0] };
    let context = Context { policy: other, nonce: [1; 16] };
    assert!(keys.contents(&context, &OWNER).expect("valid").is_none());
    assert!(keys.names(&context, &OWNER).expect("valid").is_none());

    let mut short = Keys::default();
    let key = short.add(&[1; 16]).expect("a key");
    let context = Context { policy: Policy { key, ..policies[0] }, nonce: [1; 16] };
    assert!(matches!(short.contents(&context, &OWNER), Err(Error::InvalidArgument(_))));
}

#[test]
fn data_units_are_at_most_blocks_and_indexes_fit_their_rule() {
    let (keys, policies) = policies();
    let with = |iv: IvRule, log2: u8| {
        let policy = policies.iter().find(|policy| policy.iv == iv).expect("a policy");
        let context = Context {
            policy: Policy { log2_data_unit_size: Some(log2), ..*policy },
            nonce: [1; 16],
        };
        keys.contents(&context, &OWNER)
    };
    for (log2, is_valid) in [(8, false), (9, true), (12, true), (13, false), (255, false)] {
        assert_eq!(with(IvRule::PerFileKey, log2).is_ok(), is_valid, "{log2}");
    }
    assert!(with(IvRule::InodeLblk32, 11).is_err());
    let contents = with(IvRule::InodeLblk32, 12).expect("valid").expect("a key");
    let end = FileOffset((1 << 44) - 4096);
    assert_eq!(contents.encrypt(end, &mut [0; 4096]), Ok(()));
    assert_eq!(contents.encrypt(end, &mut [0; 8192]), Err(Error::FileTooLarge));
}

#[test]
fn all_policies_agree_with_published_vectors() {
    const KEY: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-";
    let mut keys = Keys::default();
    keys.add(KEY).expect("a key");
    let uuid = std::array::from_fn(|at| at as u8 * 0x11);
    let block_size = BlockSize::from_shift(9).unwrap();
    let owner = Owner { inode: InodeNumber(77), uuid, block_size };
    let mut count = 0;
    for line in include_str!("vectors/policies.txt").lines().filter(|line| !line.starts_with('#')) {
        let fields = line.split(' ').map(|field| HEXLOWER.decode(field.as_bytes()));
        let fields: Vec<Vec<u8>> = fields.collect::<Result<_, _>>().expect("hexadecimal");
        let [context, name, digest] = &fields[..] else { panic!("a line of three fields") };
        let context = Context::parse(context, owner.inode).expect("a context");
        let names = keys.names(&context, &owner).expect("valid").expect("a key");
        assert_eq!(names.encrypt(b"a name of 23 characters").as_ref(), Ok(name), "{context:?}");
        let contents = keys.contents(&context, &owner).expect("valid").expect("a key");
        let mut data: Vec<u8> = (0..1024).map(|at| (at / 3) as u8).collect();
        contents.encrypt(FileOffset(5 * 512), &mut data).expect("room");
        assert_eq!(&Sha256::digest(&data)[..], digest, "{context:?}");
        count += 1;
    }
    assert_eq!(count, 13, "all that kernels accept");
}
