//! AES-256 in XTS mode, for whole cipher blocks.
//!
//! Source: IEEE Std 1619-2007; NIST SP 800-38E.

use aes::cipher::inout::InOutBuf;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes256, Block};

use super::{BLOCK_BYTES, xor};

/// The number of blocks that the cipher works on at once.
const BLOCKS_AT_ONCE: usize = 16;

/// AES-256-XTS with its two keys.
pub struct Xts {
    data: Aes256,
    tweak: Aes256,
}

impl Xts {
    /// Returns the cipher with the 64 bytes of `key`.
    pub fn new(key: &[u8]) -> Self {
        let (data, tweak) = key.split_at(32);
        Self { data: Aes256::new(data.into()), tweak: Aes256::new(tweak.into()) }
    }

    pub fn encrypt(&self, iv: u128, data: &mut [u8]) {
        self.convert(iv, data, |blocks| self.data.encrypt_blocks_inout(blocks));
    }

    pub fn decrypt(&self, iv: u128, data: &mut [u8]) {
        self.convert(iv, data, |blocks| self.data.decrypt_blocks_inout(blocks));
    }

    fn convert(&self, iv: u128, data: &mut [u8], cipher: impl Fn(InOutBuf<'_, '_, Block>)) {
        assert!(data.len() % BLOCK_BYTES == 0, "data units are whole cipher blocks");
        let mut tweak = Block::from(iv.to_le_bytes());
        self.tweak.encrypt_block(&mut tweak);
        let mut tweak = u128::from_le_bytes(tweak.into());
        let mut tweaks = [0; BLOCKS_AT_ONCE * BLOCK_BYTES];
        for part in data.chunks_mut(tweaks.len()) {
            for bytes in tweaks.chunks_exact_mut(BLOCK_BYTES) {
                bytes.copy_from_slice(&tweak.to_le_bytes());
                tweak = double(tweak);
            }
            xor(part, &tweaks);
            cipher(InOutBuf::from(&mut *part).into_chunks().0);
            xor(part, &tweaks);
        }
    }
}

/// Returns the product of `value` and x in the field of XTS.
fn double(value: u128) -> u128 {
    (value << 1) ^ ((value >> 127) * 0x87)
}
