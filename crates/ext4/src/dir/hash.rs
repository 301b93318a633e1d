//! Hashes of names, by which hashed directories order their entries.
//! Not here: the index that uses them, and case folding.
//!
//! Source: kernel documentation, `filesystems/ext4/directory.rst`, "Hash Tree Directories". The
//! half MD4 and TEA transforms are those of the ciphers' public descriptions, with fewer rounds
//! (MD4: 8 steps of each of its 3 rounds; TEA: 16 cycles).

/// The hash function of a directory's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HashAlgorithm {
    /// The hash of the first htree patches.
    Legacy,
    /// MD4 with half of its steps. The default.
    HalfMd4,
    /// The Tiny Encryption Algorithm, used as a hash.
    Tea,
}

impl HashAlgorithm {
    /// Returns the algorithm of an index root's `hash_version`; `None` if it is not one of these.
    pub fn from_disk(hash_version: u8) -> Option<Self> {
        match hash_version {
            0 => Some(Self::Legacy),
            1 => Some(Self::HalfMd4),
            2 => Some(Self::Tea),
            _ => None,
        }
    }

    /// Returns the `hash_version` of the algorithm.
    pub fn to_disk(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
        }
    }
}

/// The parameters of a directory's name hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameHasher {
    /// The algorithm, from the index root.
    pub algorithm: HashAlgorithm,
    /// Whether bytes from 128 on count as positive numbers. The superblock records whether `char`
    /// was unsigned where the volume was first written.
    pub is_unsigned: bool,
    /// The volume's seed; all zeroes stand for the algorithm's default.
    pub seed: [u32; 4],
}

/// The hash of a name. The index orders names by `major`, whose lowest bit is always clear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct NameHash {
    /// The hash in the index.
    pub major: u32,
    /// Further bits, which order names of equal `major` in listings.
    pub minor: u32,
}

/// MD4's initial state, which replaces a seed of zeroes.
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// Major hash that the kernel's listings reserve for the end of the directory.
const END_OF_DIRECTORY: u32 = 0x7FFF_FFFF << 1;

impl NameHasher {
    /// Returns the hash of `name`.
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (major, minor) = match self.algorithm {
            HashAlgorithm::Legacy => (self.legacy(name), 0),
            HashAlgorithm::HalfMd4 => {
                let state = self.digest::<8>(name, half_md4);
                (state[1], state[2])
            }
            HashAlgorithm::Tea => {
                let state = self.digest::<4>(name, tea);
                (state[0], state[1])
            }
        };
        let major = match major & !1 {
            END_OF_DIRECTORY => END_OF_DIRECTORY - 2,
            major => major,
        };
        NameHash { major, minor }
    }

    /// Returns a byte of a name as the number that enters the hash.
    #[inline]
    fn widen(&self, byte: u8) -> u32 {
        if self.is_unsigned { u32::from(byte) } else { byte as i8 as u32 }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut current, mut previous) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
        for &byte in name {
            let mixed = current ^ self.widen(byte).wrapping_mul(7_152_373);
            let mut next = previous.wrapping_add(mixed);
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7FFF_FFFF);
            }
            (previous, current) = (current, next);
        }
        current << 1
    }

    /// Runs `transform` over the name in pieces of `WORDS` words.
    fn digest<const WORDS: usize>(
        &self,
        name: &[u8],
        transform: fn(&mut [u32; 4], &[u32; WORDS]),
    ) -> [u32; 4] {
        let mut state = if self.seed == [0; 4] { DEFAULT_SEED } else { self.seed };
        let mut rest = name;
        while !rest.is_empty() {
            transform(&mut state, &self.words(rest));
            rest = rest.get(4 * WORDS..).unwrap_or_default();
        }
        state
    }

    /// Returns the first `4 * WORDS` bytes of `rest` as words. Missing bytes are replaced by the
    /// length of `rest`, repeated in every byte.
    fn words<const WORDS: usize>(&self, rest: &[u8]) -> [u32; WORDS] {
        let length = rest.len() as u32;
        let pad = length | length << 8;
        let pad = pad | pad << 16;
        let mut words = [pad; WORDS];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            *word =
                bytes.iter().fold(pad, |word, &byte| (word << 8).wrapping_add(self.widen(byte)));
        }
        words
    }
}

/// 24 of MD4's 48 steps, with its three round functions.
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    const ROUND_2: u32 = 0x5A82_7999;
    const ROUND_3: u32 = 0x6ED9_EBA1;
    let choose = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;

    let [mut a, mut b, mut c, mut d] = *state;
    // Does one step, after which the four variables change roles.
    let mut step = |mix: &dyn Fn(u32, u32, u32) -> u32, word: u32, rotate: u32| {
        let next = a.wrapping_add(mix(b, c, d)).wrapping_add(word).rotate_left(rotate);
        (a, b, c, d) = (d, next, b, c);
    };
    for (word, rotate) in (0..8).zip([3, 7, 11, 19].into_iter().cycle()) {
        step(&choose, input[word], rotate);
    }
    for (word, rotate) in
        [1, 3, 5, 7, 0, 2, 4, 6].into_iter().zip([3, 5, 9, 13].into_iter().cycle())
    {
        step(&majority, input[word].wrapping_add(ROUND_2), rotate);
    }
    for (word, rotate) in
        [3, 7, 2, 6, 1, 5, 0, 4].into_iter().zip([3, 9, 11, 15].into_iter().cycle())
    {
        step(&parity, input[word].wrapping_add(ROUND_3), rotate);
    }
    for (word, added) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(added);
    }
}

/// 16 cycles of TEA with the input as the key.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let [mut low, mut high, ..] = *state;
    let mut sum = 0_u32;
    let mix = |value: u32, sum: u32, first: u32, second: u32| {
        (value << 4).wrapping_add(first)
            ^ value.wrapping_add(sum)
            ^ (value >> 5).wrapping_add(second)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        low = low.wrapping_add(mix(high, sum, key[0], key[1]));
        high = high.wrapping_add(mix(low, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(low);
    state[1] = state[1].wrapping_add(high);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed other than the default, and a name longer than one MD4 piece.
    const SEED: [u32; 4] = [0x6745_2311, 0xEFCD_AB89, 0x6745_2301, 0xE1CD_AB89];
    const LONG: &str = "a-name-of-more-than-thirty-two-bytes-in-all.txt";

    /// Checks a hash. `expected` is the output of `debugfs -R "dx_hash -h ALGORITHM -s SEED NAME"`.
    fn check(
        (algorithm, is_unsigned): (HashAlgorithm, bool),
        seed: [u32; 4],
        name: &str,
        (major, minor): (u32, u32),
    ) {
        let found = NameHasher { algorithm, is_unsigned, seed }.hash(name.as_bytes());
        assert_eq!(found, NameHash { major, minor }, "{algorithm:?} {is_unsigned} {name}");
    }

    #[test]
    fn hashes_equal_those_of_debugfs() {
        use HashAlgorithm::{HalfMd4, Legacy, Tea};
        check((Legacy, false), [0; 4], "a", (0xE74B_53E2, 0x0000_0000));
        check((Legacy, false), [0; 4], "é", (0x1108_3C86, 0x0000_0000));
        check((Legacy, false), [0; 4], LONG, (0x7BA7_7D44, 0x0000_0000));
        check((Legacy, false), SEED, "a", (0xE74B_53E2, 0x0000_0000));
        check((Legacy, false), SEED, "é", (0x1108_3C86, 0x0000_0000));
        check((Legacy, false), SEED, LONG, (0x7BA7_7D44, 0x0000_0000));
        check((HalfMd4, false), [0; 4], "a", (0xD5FA_7D7A, 0xACB4_8187));
        check((HalfMd4, false), [0; 4], "é", (0x89D4_704E, 0x75D5_2D82));
        check((HalfMd4, false), [0; 4], LONG, (0x8B71_C960, 0x8390_FF1F));
        check((HalfMd4, false), SEED, "a", (0x16C9_E5F4, 0xB9CE_A0F0));
        check((HalfMd4, false), SEED, "é", (0xBE9A_E386, 0x9CD5_9D3E));
        check((HalfMd4, false), SEED, LONG, (0x37E7_F130, 0xB2B1_694A));
        check((Tea, false), [0; 4], "a", (0x6D0E_A4C0, 0xC189_22DF));
        check((Tea, false), [0; 4], "é", (0x591E_9BD6, 0xF780_721F));
        check((Tea, false), [0; 4], LONG, (0x9067_73D2, 0xF6E8_14CB));
        check((Tea, false), SEED, "a", (0x2F30_F356, 0x62BA_AB1D));
        check((Tea, false), SEED, "é", (0x5991_35F2, 0xA4D1_2F72));
        check((Tea, false), SEED, LONG, (0x4951_0A88, 0xB538_6CC1));
        check((Legacy, true), [0; 4], "a", (0xE74B_53E2, 0x0000_0000));
        check((Legacy, true), [0; 4], "é", (0x878C_A486, 0x0000_0000));
        check((Legacy, true), [0; 4], LONG, (0x7BA7_7D44, 0x0000_0000));
        check((Legacy, true), SEED, "a", (0xE74B_53E2, 0x0000_0000));
        check((Legacy, true), SEED, "é", (0x878C_A486, 0x0000_0000));
        check((Legacy, true), SEED, LONG, (0x7BA7_7D44, 0x0000_0000));
        check((HalfMd4, true), [0; 4], "a", (0xD5FA_7D7A, 0xACB4_8187));
        check((HalfMd4, true), [0; 4], "é", (0xFDA9_F3F8, 0x6978_8442));
        check((HalfMd4, true), [0; 4], LONG, (0x8B71_C960, 0x8390_FF1F));
        check((HalfMd4, true), SEED, "a", (0x16C9_E5F4, 0xB9CE_A0F0));
        check((HalfMd4, true), SEED, "é", (0x80FA_4CB0, 0x5E89_E461));
        check((HalfMd4, true), SEED, LONG, (0x37E7_F130, 0xB2B1_694A));
        check((Tea, true), [0; 4], "a", (0x6D0E_A4C0, 0xC189_22DF));
        check((Tea, true), [0; 4], "é", (0x6DAF_7C00, 0xDC9B_6B19));
        check((Tea, true), [0; 4], LONG, (0x9067_73D2, 0xF6E8_14CB));
        check((Tea, true), SEED, "a", (0x2F30_F356, 0x62BA_AB1D));
        check((Tea, true), SEED, "é", (0x0903_E78C, 0x95A0_4369));
        check((Tea, true), SEED, LONG, (0x4951_0A88, 0xB538_6CC1));
    }

    #[test]
    fn an_unknown_hash_version_is_none() {
        assert_eq!(HashAlgorithm::from_disk(1), Some(HashAlgorithm::HalfMd4));
        assert_eq!(HashAlgorithm::from_disk(6), None);
    }
}
