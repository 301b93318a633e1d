//! Adiantum with XChaCha12 and AES-256, with tweaks of 32 bytes.
//!
//! Source: Crowley, Biggers, "Adiantum: length-preserving encryption for entry-level
//! processors", 2018.

use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes256, Block};
use chacha20::XChaCha12;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use poly1305::Poly1305;
use poly1305::universal_hash::UniversalHash;
use zeroize::Zeroizing;

use super::{BLOCK_BYTES, number};
use crate::iv::Iv;

/// The number of message bytes that NH hashes at once.
const NH_MESSAGE_BYTES: usize = 1024;
/// The number of passes of NH, each of which gives 8 bytes.
const NH_PASSES: usize = 4;
/// The number of 32-bit words in a unit of NH.
const NH_UNIT_WORDS: usize = 4;
/// The length of NH's key in words. Each pass begins a unit later in the key.
const NH_KEY_WORDS: usize = NH_MESSAGE_BYTES / 4 + (NH_PASSES - 1) * NH_UNIT_WORDS;

/// Adiantum with its keys.
pub struct Adiantum {
    stream_key: Zeroizing<[u8; 32]>,
    aes: Aes256,
    tweak_hash: Poly1305,
    message_hash: Poly1305,
    nh_key: Zeroizing<Vec<u32>>,
}

impl Adiantum {
    pub fn new(key: &[u8]) -> Self {
        let stream_key = Zeroizing::new(key.try_into().expect("32 bytes"));
        let mut keys = Zeroizing::new([0; 32 + 2 * 16 + 4 * NH_KEY_WORDS]);
        stream(&stream_key, &[]).apply_keystream(&mut keys[..]);
        let (aes, rest) = keys.split_at(32);
        let (tweak, rest) = rest.split_at(16);
        let (message, nh) = rest.split_at(16);
        let words = nh.chunks_exact(4).map(word);
        Self {
            aes: Aes256::new(aes.into()),
            tweak_hash: poly1305(tweak),
            message_hash: poly1305(message),
            nh_key: Zeroizing::new(words.collect()),
            stream_key,
        }
    }

    pub fn encrypt(&self, tweak: &Iv, data: &mut [u8]) {
        let (left, right) = split(data);
        let middle = number(right).wrapping_add(self.hash(tweak, left));
        let mut middle = Block::from(middle.to_le_bytes());
        self.aes.encrypt_block(&mut middle);
        stream(&self.stream_key, &middle).apply_keystream(left);
        let stored = u128::from_le_bytes(middle.into()).wrapping_sub(self.hash(tweak, left));
        right.copy_from_slice(&stored.to_le_bytes());
    }

    pub fn decrypt(&self, tweak: &Iv, data: &mut [u8]) {
        let (left, right) = split(data);
        let middle = number(right).wrapping_add(self.hash(tweak, left));
        let mut middle = Block::from(middle.to_le_bytes());
        stream(&self.stream_key, &middle).apply_keystream(left);
        self.aes.decrypt_block(&mut middle);
        let plain = u128::from_le_bytes(middle.into()).wrapping_sub(self.hash(tweak, left));
        right.copy_from_slice(&plain.to_le_bytes());
    }

    /// Returns the hash of the tweak and the data before the last block.
    fn hash(&self, tweak: &Iv, data: &[u8]) -> u128 {
        let mut start = [0; BLOCK_BYTES + size_of::<Iv>()];
        let (length, rest) = start.split_at_mut(BLOCK_BYTES);
        length.copy_from_slice(&(data.len() as u128 * 8).to_le_bytes());
        rest.copy_from_slice(tweak);
        let mut hash = self.tweak_hash.clone();
        hash.update_padded(&start);
        let tweak = u128::from_le_bytes(hash.finalize().into());

        let mut hash = self.message_hash.clone();
        for message in data.chunks(NH_MESSAGE_BYTES) {
            hash.update_padded(&self.nh(message));
        }
        tweak.wrapping_add(u128::from_le_bytes(hash.finalize().into()))
    }

    /// Returns the NH hash of a message, which is padded with zeroes to whole units.
    fn nh(&self, message: &[u8]) -> [u8; 8 * NH_PASSES] {
        let mut sums = [0_u64; NH_PASSES];
        let keys = self.nh_key.windows(NH_PASSES * NH_UNIT_WORDS).step_by(NH_UNIT_WORDS);
        for (bytes, keys) in message.chunks(BLOCK_BYTES).zip(keys) {
            let mut unit = [0; BLOCK_BYTES];
            unit[..bytes.len()].copy_from_slice(bytes);
            let [a, b, c, d] = [0, 4, 8, 12].map(|at| word(&unit[at..at + 4]));
            for (sum, key) in sums.iter_mut().zip(keys.chunks_exact(NH_UNIT_WORDS)) {
                let product = |left: u32, right: u32| u64::from(left) * u64::from(right);
                let first = product(a.wrapping_add(key[0]), c.wrapping_add(key[2]));
                let second = product(b.wrapping_add(key[1]), d.wrapping_add(key[3]));
                *sum = sum.wrapping_add(first).wrapping_add(second);
            }
        }
        let mut hash = [0; 8 * NH_PASSES];
        for (bytes, sum) in hash.chunks_exact_mut(8).zip(sums) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        hash
    }
}

/// Returns the data before the last 16 bytes, and these.
fn split(data: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    assert!(data.len() >= BLOCK_BYTES, "data is at least a cipher block");
    data.split_at_mut(data.len() - BLOCK_BYTES)
}

/// Returns the key stream for `start`, which a byte of 1 ends.
fn stream(key: &[u8; 32], start: &[u8]) -> XChaCha12 {
    let mut nonce = [0; 24];
    nonce[..start.len()].copy_from_slice(start);
    nonce[start.len()] = 1;
    XChaCha12::new(key.into(), &nonce.into())
}

/// Returns Poly1305 with the multiplier `key` and without an addend.
fn poly1305(key: &[u8]) -> Poly1305 {
    let mut whole = Zeroizing::new([0; 32]);
    whole[..16].copy_from_slice(key);
    Poly1305::new((&*whole).into())
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
}
