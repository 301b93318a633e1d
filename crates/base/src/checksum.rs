//! The checksums of the on-disk formats.

/// Returns the crc32c (Castagnoli) of `bytes`, without inversion before or after, as the formats
/// store it. So `crc32c(crc32c(seed, a), b)` is the checksum of `a` followed by `b`.
#[inline]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // The crate inverts on entry and on exit; undo both.
    !crc32c::crc32c_append(!seed, bytes)
}

/// Returns `crc32c(crc, …)` of `count` zero bytes, in constant time. Since a crc is linear, this
/// gives the effect of a change of a few bytes on the crc of many.
pub fn crc32c_zeros(crc: u32, count: u32) -> u32 {
    // A zero byte multiplies by x^8. The table has the powers of that for each byte of `count`.
    let digits = count.to_le_bytes().into_iter().zip(&CRC32C_POWERS);
    let digits = digits.filter(|(digit, _)| *digit != 0);
    digits.fold(crc, |crc, (digit, powers)| crc32c_multiply(crc, powers[usize::from(digit)]))
}

/// The polynomial of crc32c. The highest bit is the coefficient of x^0.
const CRC32C_POLYNOMIAL: u32 = 0x82F6_3B78;

/// Returns the product of two polynomials, modulo that of crc32c.
const fn crc32c_multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ CRC32C_POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// x^(8 * digit * 256^byte), by `byte` and `digit`.
static CRC32C_POWERS: [[u32; 256]; 4] = {
    let mut powers = [[1 << 31; 256]; 4];
    let mut byte = 0;
    let mut factor = 1 << 23;
    while byte < 4 {
        let mut digit = 1;
        while digit < 256 {
            powers[byte][digit] = crc32c_multiply(powers[byte][digit - 1], factor);
            digit += 1;
        }
        factor = crc32c_multiply(powers[byte][255], factor);
        byte += 1;
    }
    powers
};

/// Returns the CRC-16 (polynomial 0xA001, reflected) of ext4's `gdt_csum` feature.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0xA001 } else { 0 }
        })
    })
}

/// Returns the CRC-32 (polynomial 0x04C11DB7, most significant bit first, no inversion) of jbd2's
/// checksum version 1.
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| {
        let top = (crc >> 24) as u8 ^ byte;
        (crc << 8) ^ CRC32_BE_TABLE[usize::from(top)]
    })
}

/// Returns the CRC-32 (polynomial 0xEDB88320, least significant bit first, no inversion) of f2fs.
/// Inverted before and after, it is that of the GUID partition table.
pub fn crc32_le(seed: u32, bytes: &[u8]) -> u32 {
    // The crate inverts on entry and on exit; undo both.
    let mut hasher = crc32fast::Hasher::new_with_initial(!seed);
    hasher.update(bytes);
    !hasher.finalize()
}

static CRC32_BE_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x8000_0000 != 0 { 0x04C1_1DB7 } else { 0 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: &[u8] = b"123456789";

    #[test]
    fn checksums_match_their_published_check_values() {
        assert_eq!(!crc32c(!0, CHECK), 0xE306_9283);
        assert_eq!(crc16(0, CHECK), 0xBB3D);
        assert_eq!(!crc32_be(!0, CHECK), 0xFC89_1918);
        assert_eq!(!crc32_le(!0, CHECK), 0xCBF4_3926);
    }

    #[test]
    fn crc32c_of_two_parts_is_that_of_the_whole() {
        assert_eq!(crc32c(crc32c(7, b"1234"), b"56789"), crc32c(7, CHECK));
    }

    #[test]
    fn crc32_le_is_that_of_its_definition_for_all_seeds_lengths_and_parts() {
        let by_bits = |seed: u32, bytes: &[u8]| {
            bytes.iter().fold(seed, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                    (crc >> 1) ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 }
                })
            })
        };
        let bytes: Vec<u8> = (0..1000_u32).map(|at| (at * 7 + at / 256) as u8).collect();
        for seed in [0, 1, 0xF2F5_2010, u32::MAX] {
            for length in [0, 1, 7, 15, 16, 63, 64, 127, 128, 129, 255, 256, 300, 1000] {
                let (all, cut) = (&bytes[..length], length / 3);
                assert_eq!(crc32_le(seed, all), by_bits(seed, all), "{length} bytes from {seed}");
                let parts = crc32_le(crc32_le(seed, &all[..cut]), &all[cut..]);
                assert_eq!(parts, crc32_le(seed, all), "{length} bytes in two parts");
            }
        }
    }

    #[test]
    fn crc32c_zeros_is_the_crc32c_of_zero_bytes() {
        for count in [0, 1, 255, 256, 4095, 65_536, 70_001] {
            assert_eq!(
                crc32c_zeros(0x1234_5678, count),
                crc32c(0x1234_5678, &vec![0; count as usize])
            );
        }
        let twice = crc32c_zeros(crc32c_zeros(9, 3 << 24), 5);
        assert_eq!(crc32c_zeros(9, (3 << 24) + 5), twice);
    }
}
