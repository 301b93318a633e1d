//! The ciphers against published vectors.

use data_encoding::HEXLOWER;

use super::Cipher;
use crate::Mode;

/// Checks that `mode` encrypts and decrypts as the lines of `vectors`: a key, an initialization
/// vector, the plaintext and the ciphertext.
#[track_caller]
fn check(mode: Mode, vectors: &str) {
    let mut count = 0;
    for line in vectors.lines().filter(|line| !line.starts_with('#')) {
        let fields = line.split(' ').map(|field| HEXLOWER.decode(field.as_bytes()));
        let fields: Vec<Vec<u8>> = fields.collect::<Result<_, _>>().expect("hexadecimal");
        let [key, iv, plain, stored] = &fields[..] else { panic!("a line of four fields") };
        let cipher = Cipher::new(mode, key);
        let iv = iv[..].try_into().expect("32 bytes");
        let mut data = plain.clone();
        cipher.encrypt(&iv, &mut data);
        assert_eq!(HEXLOWER.encode(&data), HEXLOWER.encode(stored), "{} bytes", data.len());
        cipher.decrypt(&iv, &mut data);
        assert_eq!(HEXLOWER.encode(&data), HEXLOWER.encode(plain), "{} bytes", data.len());
        count += 1;
    }
    assert!(count > 0, "no vectors");
}

#[test]
fn xts_agrees_with_published_vectors() {
    check(Mode::Aes256Xts, include_str!("vectors/xts.txt"));
}

#[test]
fn ciphertext_stealing_agrees_with_published_vectors() {
    check(Mode::Aes128Cts, include_str!("vectors/aes128_cts.txt"));
}

#[test]
fn essiv_agrees_with_published_vectors() {
    check(Mode::Aes128CbcEssiv, include_str!("vectors/essiv.txt"));
}

#[test]
fn adiantum_agrees_with_published_vectors() {
    check(Mode::Adiantum, include_str!("vectors/adiantum.txt"));
}

#[test]
fn hctr2_agrees_with_published_vectors() {
    check(Mode::Aes256Hctr2, include_str!("vectors/hctr2.txt"));
}

#[test]
fn data_of_every_length_that_a_mode_of_names_takes_is_decrypted() {
    for mode in [Mode::Aes128Cts, Mode::Aes256Cts, Mode::Adiantum, Mode::Aes256Hctr2] {
        let cipher = Cipher::new(mode, &vec![3; mode.key_bytes()]);
        for length in 16..=255_u8 {
            let plain: Vec<u8> = (0..length).collect();
            let mut data = plain.clone();
            cipher.encrypt(&[length; 32], &mut data);
            assert_ne!(data, plain);
            cipher.decrypt(&[length; 32], &mut data);
            assert_eq!(data, plain, "{mode:?} {length}");
        }
    }
}
