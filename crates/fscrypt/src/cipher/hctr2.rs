//! AES-256 in HCTR2 mode, with tweaks of 32 bytes.
//!
//! Source: Crowley, Huckleberry, Biggers, "Length-preserving encryption with HCTR2", 2021.

use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes256, Block};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;

use super::{BLOCK_BYTES, number, xor};
use crate::iv::Iv;

/// Twice the bits of the tweak, plus 2: the first block of the hash of data that is whole blocks.
/// One more for data that is not.
const LENGTH_BLOCK: u128 = 2 * 8 * size_of::<Iv>() as u128 + 2;

/// The number of blocks of the key stream that the cipher computes at once.
const BLOCKS_AT_ONCE: usize = 16;

/// AES-256-HCTR2 with its key.
pub struct Hctr2 {
    aes: Aes256,
    hash: Polyval,
    mask: u128,
}

impl Hctr2 {
    pub fn new(key: &[u8]) -> Self {
        let aes = Aes256::new(key.into());
        let mut hash_key = Block::default();
        aes.encrypt_block(&mut hash_key);
        let mut mask = Block::from(1_u128.to_le_bytes());
        aes.encrypt_block(&mut mask);
        let hash = Polyval::new(&hash_key);
        Self { aes, hash, mask: u128::from_le_bytes(mask.into()) }
    }

    pub fn encrypt(&self, tweak: &Iv, data: &mut [u8]) {
        self.convert(tweak, data, |block| self.aes.encrypt_block(block));
    }

    pub fn decrypt(&self, tweak: &Iv, data: &mut [u8]) {
        self.convert(tweak, data, |block| self.aes.decrypt_block(block));
    }

    /// Converts `data`. The first block goes through `cipher`; all else is the same in both
    /// directions.
    fn convert(&self, tweak: &Iv, data: &mut [u8], cipher: impl Fn(&mut Block)) {
        assert!(data.len() >= BLOCK_BYTES, "data is at least a cipher block");
        let (first, rest) = data.split_at_mut(BLOCK_BYTES);
        let before = number(first) ^ self.hash(tweak, rest);
        let mut block = Block::from(before.to_le_bytes());
        cipher(&mut block);
        let after = u128::from_le_bytes(block.into());
        self.add_key_stream(before ^ after ^ self.mask, rest);
        first.copy_from_slice(&(after ^ self.hash(tweak, rest)).to_le_bytes());
    }

    /// Returns the hash of the tweak and the data after the first block.
    fn hash(&self, tweak: &Iv, data: &[u8]) -> u128 {
        let mut hash = self.hash.clone();
        let (whole, tail) = data.split_at(data.len() - data.len() % BLOCK_BYTES);
        let length = if tail.is_empty() { LENGTH_BLOCK } else { LENGTH_BLOCK + 1 };
        hash.update_padded(&length.to_le_bytes());
        hash.update_padded(tweak);
        hash.update_padded(whole);
        if !tail.is_empty() {
            let mut last = [0; BLOCK_BYTES];
            last[..tail.len()].copy_from_slice(tail);
            last[tail.len()] = 1;
            hash.update_padded(&last);
        }
        u128::from_le_bytes(hash.finalize().into())
    }

    /// Adds the key stream that begins with `start` to `data`.
    fn add_key_stream(&self, start: u128, data: &mut [u8]) {
        let mut stream = [0; BLOCKS_AT_ONCE * BLOCK_BYTES];
        let mut counter = 0_u128;
        for part in data.chunks_mut(stream.len()) {
            for block in stream.chunks_exact_mut(BLOCK_BYTES) {
                counter += 1;
                block.copy_from_slice(&(start ^ counter).to_le_bytes());
            }
            self.aes.encrypt_blocks_inout(InOutBuf::from(&mut stream[..]).into_chunks().0);
            xor(part, &stream);
        }
    }
}
