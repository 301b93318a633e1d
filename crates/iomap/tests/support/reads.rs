//! Random reads, compared with a model.

use iomap::{Caching, ReadContext, ReadOptions, Readahead, lend, read};

use super::Random;
use base::FileOffset;

/// Chooses options of cached reads.
pub fn random_options(random: &mut Random) -> ReadOptions {
    ReadOptions {
        batch_pending_accounting: !random.one_in(4),
        skip_folio_state: !random.one_in(4),
        readahead_bytes_max: 4096 << random.below(11),
        caching: Caching::Kept,
    }
}

/// Reads a file in random ways, with other options than those of `context`, and compares with its
/// `contents`.
pub fn check_reads(random: &mut Random, context: ReadContext<'_>, contents: &[u8], reads: u64) {
    let mut context = ReadContext { options: random_options(random), ..context };
    let readahead = Readahead::default();
    let mut at = 0;
    for _ in 0..reads {
        if random.one_in(4) {
            at = random.below(context.size + 10);
        }
        if random.one_in(8) {
            let uncached = random.one_in(2);
            context.options.caching = if uncached { Caching::Dropbehind } else { Caching::Kept };
        }
        let length = random.of_magnitude(1..20) as usize;
        let start = (at as usize).min(contents.len());
        let expected = &contents[start..contents.len().min(start + length)];
        if random.one_in(3) {
            let slice = lend(&context, &readahead, FileOffset(at), length).expect("readable");
            assert!(!slice.is_empty() || expected.is_empty());
            assert!(*slice == expected[..slice.len()], "lent {} at {at}", slice.len());
            at += slice.len() as u64;
        } else {
            let mut buffer = vec![0xaa; length];
            let got = read(&context, &readahead, FileOffset(at), &mut buffer).expect("readable");
            assert_eq!(got, expected.len(), "{length} bytes at {at} of {}", context.size);
            assert!(buffer[..got] == *expected, "{length} bytes at {at}");
            assert!(buffer[got..].iter().all(|&byte| byte == 0xaa));
            at += got as u64;
        }
        if at >= context.size {
            at = 0;
        }
    }
}
