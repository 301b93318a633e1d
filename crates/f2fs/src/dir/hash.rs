//! Hashes of names, by which directories choose the bucket of an entry. Not here: case folding
//! (`fold.rs`), and the keyed hashes of directories that are encrypted and ignore case (`fscrypt`).
//!
//! Source: kernel documentation, `filesystems/f2fs.rst`, and the cipher's public description (TEA,
//! 16 cycles).

/// Bytes that enter the hash at once.
const PIECE_BYTES: usize = 16;
/// The first two words of MD5's initial state.
const INITIAL: [u32; 2] = [0x6745_2301, 0xEFCD_AB89];

/// Returns the hash of `name`. That of "." and ".." is 0.
pub fn name_hash(name: &[u8]) -> u32 {
    if matches!(name, b"." | b"..") {
        return 0;
    }
    let mut state = INITIAL;
    let mut rest = name;
    loop {
        mix(&mut state, words(rest));
        match rest.get(PIECE_BYTES..) {
            Some(next) if !next.is_empty() => rest = next,
            _ => return state[0],
        }
    }
}

/// Returns the first bytes of `rest` as words, big-endian. The length of `rest`, repeated in every
/// byte, replaces missing bytes; in a word that is incomplete, it comes before the bytes.
fn words(rest: &[u8]) -> [u32; 4] {
    let pad = (rest.len() as u32 & 0xFF).wrapping_mul(0x0101_0101);
    let mut words = [pad; 4];
    for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, &byte| word << 8 | u32::from(byte));
    }
    words
}

/// Encrypts the state with the key `input` by 16 cycles of TEA, and adds the result to the state.
fn mix(state: &mut [u32; 2], input: [u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let [mut low, mut high] = *state;
    let half = |value: u32, sum: u32, first: u32, second: u32| {
        (value << 4).wrapping_add(first)
            ^ value.wrapping_add(sum)
            ^ (value >> 5).wrapping_add(second)
    };
    let mut sum = 0_u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        low = low.wrapping_add(half(high, sum, input[0], input[1]));
        high = high.wrapping_add(half(low, sum, input[2], input[3]));
    }
    state[0] = state[0].wrapping_add(low);
    state[1] = state[1].wrapping_add(high);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_equal_those_that_sload_stores() {
        for (name, expected) in [
            ("a", 0x6D0E_A4C1),
            ("ab", 0xD27D_8659),
            ("many", 0xCF81_6E16),
            ("eight-by", 0xC847_B889),
            ("README.txt", 0xE03C_E005),
            ("sixteen-bytes-ab", 0xC7EF_72D0),
            ("seventeen-bytes-a", 0xDC8E_1CA3),
            ("thirty-two-bytes-in-this-name-ok", 0xBE7A_3BC3),
            ("é", 0x6DAF_7C01),
            ("Straße", 0xE4C3_4BAA),
            (&"n".repeat(255), 0x0415_6E7C),
        ] {
            assert_eq!(name_hash(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn dots_hash_to_zero() {
        assert_eq!((name_hash(b"."), name_hash(b"..")), (0, 0));
        assert_ne!(name_hash(b"..."), 0);
    }
}
