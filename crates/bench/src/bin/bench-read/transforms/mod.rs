//! Table of reads of encrypted, verified and compressed files, beside what the same ciphers, hashes
//! and decompressors do on bare memory.

mod images;

use std::sync::Arc;

use base::{BlockSize, FileOffset, InodeNumber};
use bench::selection::Selection;
use device::SharedDevice;
use fscrypt::{Contents, Context, Owner};
use iomap::ReadOptions;
use pagecache::CacheOptions;
use sha2::{Digest, Sha256};
use testkit::encryption::{master_keys, policies};

use crate::buffer::Buffer;
use crate::case::{Case, Content, LENGTHS, State};
use crate::measure;
use crate::sides::{Opener, Ours, Read, Side};

/// The unit of encryption and of verification, in bytes.
const UNIT: usize = 4096;
/// The size of a compressed cluster in bytes.
const CLUSTER: usize = 4 * UNIT;

/// A conversion: its name, the maker of its image, the folder of the file, and the bare work.
type Conversion = (&'static str, fn() -> SharedDevice, Option<&'static str>, fn() -> Bare);

const CONVERSIONS: [Conversion; 3] = [
    ("AES-256-XTS", images::encrypted, Some(images::ENCRYPTED), decryption),
    ("SHA-256 verity", images::verified, None, hashing),
    ("LZ4", images::compressed, None, decompression),
];

/// Measures the rows that are selected.
pub fn run(selection: &Selection) {
    let mut has_heading = false;
    for (name, make, folder, bare) in CONVERSIONS {
        let cases = LENGTHS.map(|length| Case {
            content: Content::Data,
            state: State::Full,
            length,
            threads: 1,
        });
        let is_selected =
            |case: &Case| selection.has_row(&format!("{name} {}", bench::length_name(case.length)));
        let cases: Vec<Case> = cases.into_iter().filter(is_selected).collect();
        if cases.is_empty() {
            continue;
        }
        if !has_heading {
            println!("\nconverted files, device: memory, cache: full, 1 thread, MiB/s\n");
            println!("{:<20}{:>12}{:>12} |{:>8}", "", "bare memory", "ours", "ours");
            has_heading = true;
        }
        let device = make();
        let open: Opener = Arc::new(move || Arc::clone(&device));
        let order = CacheOptions::default().folio_order_max;
        let ours = Ours::new(open, "ours", order, ReadOptions::default()).below(folder);
        let mut sides: Vec<Box<dyn Side>> = vec![Box::new(bare()), Box::new(ours)];
        for case in cases {
            let speeds = measure::medians(&case, &mut sides).speeds;
            let [bare, ours] = [speeds[0], speeds[1]].map(|speed| speed / f64::from(1 << 20));
            let row = format!("{name} {}", bench::length_name(case.length));
            println!("{row:<20}{bare:>12.0}{ours:>12.0} |{:>8.2}", ours / bare);
        }
    }
}

/// A conversion of a stored unit, with its offset in the file, into a buffer.
type Convert = Box<dyn Fn(u64, &[u8], &mut [u8]) + Send + Sync>;

/// Work on bytes in memory: `convert` turns each stored unit into bytes of the file.
struct Bare {
    stored: Vec<Vec<u8>>,
    unit: usize,
    convert: Convert,
}

impl Side for Bare {
    fn name(&self) -> &'static str {
        "bare memory"
    }

    fn prepare(&mut self, _: &Case) {}

    fn reader<'a>(&'a self, _: &Case) -> Read<'a> {
        let mut whole = Buffer::new(self.unit);
        Box::new(move |at, buffer| {
            let unit = self.unit as u64;
            let end = at + buffer.len() as u64;
            // A unit that is read in parts is converted once.
            for start in (at.next_multiple_of(unit)..end).step_by(self.unit) {
                let stored = &self.stored[(start / unit) as usize % self.stored.len()];
                let into = (start - at) as usize;
                match buffer.get_mut(into..into + self.unit) {
                    Some(target) => (self.convert)(start, stored, target),
                    None => (self.convert)(start, stored, &mut whole),
                }
            }
        })
    }
}

/// Returns the units of a MiB of random bytes, as if they were stored.
fn random_units() -> Vec<Vec<u8>> {
    testkit::tree::contents(2, 1 << 20).chunks(UNIT).map(<[u8]>::to_vec).collect()
}

fn decryption() -> Bare {
    let (_, policy) = policies().into_iter().find(|(name, _)| *name == "v2").expect("a policy");
    let context = Context { policy, nonce: [7; 16] };
    let block_size = BlockSize::from_bytes(UNIT as u64).expect("a power of two");
    let owner = Owner { inode: InodeNumber(12), uuid: [1; 16], block_size };
    let contents = master_keys().contents(&context, &owner);
    let contents: Contents = contents.expect("a valid policy").expect("a known key");
    let convert = move |at: u64, stored: &[u8], target: &mut [u8]| {
        target.copy_from_slice(stored);
        contents.decrypt(FileOffset(at), target).expect("a small file");
    };
    Bare { stored: random_units(), unit: UNIT, convert: Box::new(convert) }
}

fn hashing() -> Bare {
    let convert = |_: u64, stored: &[u8], target: &mut [u8]| {
        target.copy_from_slice(stored);
        std::hint::black_box(Sha256::digest(&*target));
    };
    Bare { stored: random_units(), unit: UNIT, convert: Box::new(convert) }
}

fn decompression() -> Bare {
    let stored = vec![lz4_flex::block::compress(&images::compressible(CLUSTER)); 64];
    let convert = |_: u64, stored: &[u8], target: &mut [u8]| {
        let length = lz4_flex::block::decompress_into(stored, target).expect("valid data");
        assert_eq!(length, CLUSTER);
    };
    Bare { stored, unit: CLUSTER, convert: Box::new(convert) }
}
