//! AES in CBC mode: with ciphertext stealing, and with encrypted initialization vectors (ESSIV).
//!
//! Source: NIST SP 800-38A and its addendum (CBC-CS3; data of one block is not swapped). ESSIV: the
//! vector is encrypted with AES-256, whose key is the SHA-256 of the key.

use aes::cipher::consts::U16;
use aes::cipher::{BlockCipher, BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use sha2::{Digest, Sha256};

use super::{BLOCK_BYTES, number};

/// A cipher with blocks of 16 bytes.
pub trait Aes: KeyInit + BlockCipher<BlockSize = U16> + BlockEncrypt + BlockDecrypt {}

impl Aes for Aes128 {}
impl Aes for Aes256 {}

/// CBC with ciphertext stealing.
pub struct Cts<C>(C);

impl<C: Aes> Cts<C> {
    pub fn new(key: &[u8]) -> Self {
        Self(C::new_from_slice(key).expect("a key of the cipher"))
    }

    pub fn encrypt(&self, iv: u128, data: &mut [u8]) {
        let Some((whole, tail)) = split(data) else {
            encrypt_cbc(&self.0, iv, data);
            return;
        };
        let last = encrypt_cbc(&self.0, iv, whole);
        let mut block = [0; BLOCK_BYTES];
        block[..tail.len()].copy_from_slice(tail);
        let stolen = last.to_le_bytes();
        tail.copy_from_slice(&stolen[..tail.len()]);
        let (_, end) = whole.split_at_mut(whole.len() - BLOCK_BYTES);
        end.copy_from_slice(&block);
        encrypt_cbc(&self.0, last, end);
    }

    pub fn decrypt(&self, iv: u128, data: &mut [u8]) {
        let Some((whole, tail)) = split(data) else { return decrypt_cbc(&self.0, iv, data) };
        let (start, end) = whole.split_at_mut(whole.len() - BLOCK_BYTES);
        let last = start.last_chunk().map_or(iv, |last| u128::from_le_bytes(*last));
        // The second-to-last block of CBC proper begins with the tail. The rest of it is what
        // padding with zeroes leaves of it.
        let mut padded: [u8; BLOCK_BYTES] = decrypt_block(&self.0, number(end)).to_le_bytes();
        for (padded, tail) in padded.iter_mut().zip(tail) {
            let stolen = *tail;
            *tail ^= *padded;
            *padded = stolen;
        }
        let plain = decrypt_block(&self.0, u128::from_le_bytes(padded)) ^ last;
        end.copy_from_slice(&plain.to_le_bytes());
        decrypt_cbc(&self.0, iv, start);
    }
}

/// Returns the blocks of `data` before the last, which may be shorter, and the last. Returns `None`
/// if there is only one.
fn split(data: &mut [u8]) -> Option<(&mut [u8], &mut [u8])> {
    assert!(data.len() >= BLOCK_BYTES, "data is at least a cipher block");
    let whole = (data.len() - 1) / BLOCK_BYTES * BLOCK_BYTES;
    (whole > 0).then(|| data.split_at_mut(whole))
}

/// CBC with encrypted initialization vectors.
pub struct CbcEssiv {
    data: Aes128,
    iv: Aes256,
}

impl CbcEssiv {
    pub fn new(key: &[u8]) -> Self {
        Self { data: Aes128::new(key.into()), iv: Aes256::new(&Sha256::digest(key)) }
    }

    pub fn encrypt(&self, iv: u128, data: &mut [u8]) {
        encrypt_cbc(&self.data, encrypt_block(&self.iv, iv), data);
    }

    pub fn decrypt(&self, iv: u128, data: &mut [u8]) {
        decrypt_cbc(&self.data, encrypt_block(&self.iv, iv), data);
    }
}

/// Encrypts whole blocks, and returns the last.
fn encrypt_cbc(cipher: &impl Aes, iv: u128, data: &mut [u8]) -> u128 {
    let mut last = iv;
    for block in data.chunks_mut(BLOCK_BYTES) {
        last = encrypt_block(cipher, last ^ number(block));
        block.copy_from_slice(&last.to_le_bytes());
    }
    last
}

/// Decrypts whole blocks.
fn decrypt_cbc(cipher: &impl Aes, iv: u128, data: &mut [u8]) {
    let mut last = iv;
    for block in data.chunks_mut(BLOCK_BYTES) {
        let stored = number(block);
        block.copy_from_slice(&(decrypt_block(cipher, stored) ^ last).to_le_bytes());
        last = stored;
    }
}

fn encrypt_block(cipher: &impl Aes, block: u128) -> u128 {
    let mut block = Block::from(block.to_le_bytes());
    cipher.encrypt_block(&mut block);
    u128::from_le_bytes(block.into())
}

fn decrypt_block(cipher: &impl Aes, block: u128) -> u128 {
    let mut block = Block::from(block.to_le_bytes());
    cipher.decrypt_block(&mut block);
    u128::from_le_bytes(block.into())
}
