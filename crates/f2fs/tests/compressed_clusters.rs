//! Compressed clusters: data that lz4, zstd and lzop have compressed, damaged data, and reads
//! through the cache.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use base::checksum::crc32_le;
use base::{
    BlockSize, Corrupt, DeviceOffset, Error, FileBlock, FileOffset, InodeNumber, Location, Problem,
};
use device::{MemoryDevice, SharedDevice};
use f2fs::compress::{Algorithm, ClusterCodec};
use f2fs::ondisk::cluster::{COMPRESS_CHECKSUM, RawClusterHeader};
use iomap::{
    CacheOptions, Cluster, Decode, DecodePool, Encoding, Iomap, IomapKind, MapFlags, MapRead,
    PageCache, ReadContext, ReadOptions, Readahead, StoredRun, read,
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

const BLOCK: usize = 4096;
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Lzo, Algorithm::Lz4, Algorithm::Zstd, Algorithm::LzoRle];
/// The first bytes of LZO-RLE data.
const RLE_VERSION: [u8; 2] = [17, 1];
/// The last bytes of LZO data.
const LZO_END: [u8; 3] = [17, 0, 0];

fn decoder(algorithm: Algorithm, flags: u16) -> ClusterCodec {
    let block_size = BlockSize::from_bytes(BLOCK as u64).expect("a block size");
    ClusterCodec::new(InodeNumber(7), block_size, algorithm, flags)
}

/// Returns the blocks of a cluster with this compressed data.
fn stored(payload: &[u8]) -> Vec<u8> {
    let header = RawClusterHeader {
        length: u32::try_from(payload.len()).expect("short").into(),
        checksum: crc32_le(0xF2F5_2010, payload).into(),
        reserved: [0.into(); 4],
    };
    let mut bytes = [header.as_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// Returns the problem of the cluster, or its `length` bytes of data.
fn decode(algorithm: Algorithm, payload: &[u8], length: usize) -> Result<Vec<u8>, Problem> {
    decode_stored(algorithm, COMPRESS_CHECKSUM, &stored(payload), length)
}

fn decode_stored(
    algorithm: Algorithm,
    flags: u16,
    stored: &[u8],
    length: usize,
) -> Result<Vec<u8>, Problem> {
    let mut data = vec![0xee; length];
    let at = FileOffset(64 * BLOCK as u64);
    match decoder(algorithm, flags).decode(at, &mut stored.to_vec(), &mut data) {
        Ok(()) => Ok(data),
        Err(Error::Corrupt(corrupt)) => {
            let Corrupt { structure, location, problem, .. } = *corrupt;
            let expected = Location::inode(InodeNumber(7)).at_file_block(FileBlock(64));
            assert_eq!((structure, location), ("compressed cluster", expected));
            Err(problem)
        }
        Err(other) => panic!("{other}"),
    }
}

fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed | 1), |last| {
        Some(last.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f))
    })
    .map(|number| number >> 33)
}

/// Returns `length` bytes of several kinds: text with repetitions near and far, runs of zeroes,
/// short periods, noise.
fn sample(seed: u64, length: usize) -> Vec<u8> {
    let mut numbers = numbers(seed);
    let mut next = |below: usize| numbers.next().expect("endless") as usize % below;
    let mut data: Vec<u8> = Vec::with_capacity(length + 5000);
    while data.len() < length {
        let magnitude = 1 + next(11);
        let run = 1 + next(1 << magnitude);
        match next(6) {
            0 => data.resize(data.len() + run, 0),
            1 => (0..run.min(64)).for_each(|_| data.push(next(256) as u8)),
            2 => {
                let period = 1 + next(9);
                (0..run).for_each(|at| data.push(b'a' + (at % period) as u8));
            }
            3 => (0..run).for_each(|_| data.push(b"etaoin shrdlu"[next(13)])),
            _ if data.is_empty() => {}
            _ => {
                let from = data.len() - 1 - next(data.len().min(70_000));
                (0..run).for_each(|at| data.push(data[from + at]));
            }
        }
    }
    data.truncate(length);
    data
}

/// Returns what the tool writes for `data` in a file.
fn tool(name: &str, arguments: &[&str], data: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("data");
    fs::write(&path, data).expect("a file");
    let output = Command::new(name).args(arguments).arg("-c").arg(&path).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}; is it installed?"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The rest of a tool's output, which is read field by field.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn big(&mut self, bytes: usize) -> usize {
        self.take(bytes).iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }
}

/// Returns the LZO data in the blocks of a file of lzop, each with the length of its contents.
fn lzop_blocks(file: &[u8]) -> Vec<(usize, &[u8])> {
    let mut fields = Fields(file);
    assert_eq!(fields.take(9), b"\x89LZO\0\r\n\x1a\n");
    // Versions, method and level.
    fields.take(2 + 2 + 2 + 1 + 1);
    let flags = fields.big(4);
    // The mode and the time.
    fields.take(4 + 4 + 4);
    let name = fields.big(1);
    fields.take(name + 4);
    let of_contents = [0x1, 0x100].iter().filter(|bit| flags & *bit != 0).count();
    let of_compressed = [0x2, 0x200].iter().filter(|bit| flags & *bit != 0).count();
    let mut blocks = Vec::new();
    loop {
        let contents = fields.big(4);
        if contents == 0 {
            return blocks;
        }
        let compressed = fields.big(4);
        let is_compressed = compressed < contents;
        fields.take(4 * (of_contents + if is_compressed { of_compressed } else { 0 }));
        let data = fields.take(compressed);
        if is_compressed {
            blocks.push((contents, data));
        }
    }
}

/// The lengths of clusters, in bytes.
const LENGTHS: [usize; 4] = [4 * BLOCK, 16 * BLOCK, 64 * BLOCK, 256 * BLOCK];

#[test]
fn data_that_lz4_compressed_is_decoded() {
    for (seed, length) in (0..16).zip(LENGTHS.into_iter().cycle()) {
        let data = sample(seed, length);
        for level in ["-1", "-9", "-12"] {
            let file = tool("lz4", &["-l", level], &data);
            let mut fields = Fields(&file);
            assert_eq!(fields.take(4), 0x184C_2102_u32.to_le_bytes());
            fields.take(4);
            assert_eq!(decode(Algorithm::Lz4, fields.0, length).as_ref(), Ok(&data), "{seed}");
        }
    }
}

#[test]
fn zstd_data_with_more_than_one_frame_is_refused() {
    let data = sample(3, 4 * BLOCK);
    let first = tool("zstd", &["-q", "--no-check"], &data);
    assert_eq!(decode(Algorithm::Zstd, &first, data.len()).as_ref(), Ok(&data));
    // Without contents, with a window of 64 MiB.
    let large_window = [0x28, 0xb5, 0x2f, 0xfd, 0, 16 << 3, 1, 0, 0];
    // A frame that decoders skip, of two bytes.
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 7, 7];
    for further in [&large_window[..], &skippable, &[0]] {
        let stored = [&first[..], further].concat();
        let length = stored.len() as u64;
        let problem = Problem::Invalid { field: "Zstandard data of length", found: length };
        let refused = decode(Algorithm::Zstd, &stored, data.len()).err();
        assert_eq!(refused, Some(problem), "{further:?}");
    }
}

#[test]
fn data_that_zstd_compressed_is_decoded() {
    for (seed, length) in (0..16).zip(LENGTHS.into_iter().cycle()) {
        let data = sample(seed, length);
        for level in ["-1", "-3", "-19"] {
            for checksum in ["--no-check", "--check"] {
                let file = tool("zstd", &["-q", level, checksum], &data);
                let decoded = decode(Algorithm::Zstd, &file, length);
                assert_eq!(decoded.as_ref(), Ok(&data), "{seed} {level} {checksum}");
            }
            // The size is not in the frame, which has a window.
            let window = format!("--zstd=wlog={}", length.ilog2());
            let options = ["-q", level, "--no-content-size", &window];
            let file = tool("zstd", &options, &data);
            assert_eq!(decode(Algorithm::Zstd, &file, length).as_ref(), Ok(&data), "{seed}");
        }
    }
}

#[test]
fn data_that_lzop_compressed_is_decoded() {
    let mut decoded = 0;
    for (seed, length) in (0..16).zip(LENGTHS.into_iter().cycle()) {
        let data = sample(seed, length);
        for level in ["-1", "-3", "-9"] {
            let file = tool("lzop", &[level], &data);
            let mut rest = &data[..];
            for (contents, compressed) in lzop_blocks(&file) {
                let (expected, after) = rest.split_at(contents);
                rest = after;
                for algorithm in [Algorithm::Lzo, Algorithm::LzoRle] {
                    let found = decode(algorithm, compressed, contents);
                    assert_eq!(found.as_deref(), Ok(expected), "{seed} {level}");
                }
                decoded += 1;
            }
        }
    }
    assert!(decoded > 40, "{decoded}");
}

#[test]
fn data_that_linux_compressed_by_lzo_rle_is_decoded() {
    let text = b"etaoin shrdlu ";
    let end = b"literals at the end of the data";
    let data = [&text.repeat(3)[..], &[0; 100], b"xyz", &[0; 5], text, &[0; 3000], b"ab", &[0; 4]];
    let data = [&data.concat()[..], end].concat();
    let compressed = [
        &RLE_VERSION[..],
        &[11],
        text,
        &[58, 52, 0, 24, 255, 255, 12, 120, 121, 122, 25, 252, 255, 0, 44, 28, 2],
        &[31, 252, 255, 255, 25, 254, 255, 118, 97, 98, 24, 252, 255, 0, 0, 13],
        end,
        &LZO_END,
    ];
    let compressed = compressed.concat();
    assert_eq!(decode(Algorithm::LzoRle, &compressed, data.len()), Ok(data));
}

/// Appends an instruction that copies `literals`, at least 4.
fn put_literals(encoded: &mut Vec<u8>, literals: &[u8]) {
    match literals.len() - 3 {
        short @ 1..=15 => encoded.push(short as u8),
        long => {
            encoded.push(0);
            encoded.extend(std::iter::repeat_n(0, (long - 16) / 255));
            encoded.push(((long - 16) % 255 + 1) as u8);
        }
    }
    encoded.extend_from_slice(literals);
}

#[test]
fn runs_of_zeroes_are_decoded_in_lzo_rle_data_only() {
    // 10 literals, 2,051 zeroes, and 2 literals.
    let run = [10 + 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0x1f, 0xfe, 0xff, 0xff, 11, 12];
    let expected = [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10][..], &[0; 2051], &[11, 12]].concat();
    let versioned = [&RLE_VERSION[..], &run, &LZO_END].concat();
    assert_eq!(decode(Algorithm::LzoRle, &versioned, expected.len()), Ok(expected.clone()));
    // In other data, the same instruction is a copy.
    let plain = [&run[..], &LZO_END].concat();
    assert!(decode(Algorithm::LzoRle, &plain, expected.len()).is_err());
    let newer = [&[17, 2][..], &run, &LZO_END].concat();
    let problem = decode(Algorithm::LzoRle, &newer, expected.len());
    assert_eq!(problem, Err(Problem::Invalid { field: "version of LZO data", found: 2 }));
}

proptest! {
    #[test]
    fn literals_and_runs_of_zeroes_of_any_length_are_decoded(
        parts in prop::collection::vec((4_usize..900, 4_usize..2052, 0_usize..4), 1..12),
    ) {
        let (mut encoded, mut data) = (RLE_VERSION.to_vec(), Vec::new());
        let mut can_begin_with_literals = true;
        for (literals, zeroes, trailing) in parts {
            if can_begin_with_literals {
                let literals: Vec<u8> = (0..literals).map(|at| 1 + (at % 250) as u8).collect();
                put_literals(&mut encoded, &literals);
                data.extend_from_slice(&literals);
            }
            let run = zeroes - 4;
            let code = 0x18 | (run & 7) as u8;
            encoded.extend([code, 0xfc | trailing as u8, 0xff, (run >> 3) as u8]);
            data.resize(data.len() + zeroes, 0);
            encoded.extend(vec![7; trailing]);
            data.extend(vec![7; trailing]);
            // After 1 to 3 literals, the same code is a copy.
            can_begin_with_literals = trailing == 0;
        }
        encoded.extend(LZO_END);
        prop_assert_eq!(decode(Algorithm::LzoRle, &encoded, data.len()), Ok(data));
    }

    #[test]
    fn any_bytes_are_decoded_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        length in prop::sample::select(vec![1, 100, BLOCK, 4 * BLOCK]),
        is_versioned: bool,
    ) {
        let magic: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
        for algorithm in ALGORITHMS {
            let _ = decode(algorithm, &bytes, length);
            let _ = decode_stored(algorithm, 0, &bytes, length);
        }
        let _ = decode(Algorithm::Zstd, &[magic, &bytes].concat(), length);
        if is_versioned {
            let _ = decode(Algorithm::LzoRle, &[&RLE_VERSION[..], &bytes].concat(), length);
        }
    }
}

/// Returns a cluster's data, and its compressed data by algorithm.
fn samples(length: usize) -> (Vec<u8>, Vec<(Algorithm, Vec<u8>)>) {
    let data = sample(77, length);
    let lzop = tool("lzop", &["-9"], &data);
    let lzo = lzop_blocks(&lzop)[0].1.to_vec();
    let lz4 = tool("lz4", &["-l", "-9"], &data)[8..].to_vec();
    let zstd = tool("zstd", &["-q", "-9", "--no-check"], &data);
    let by_algorithm = vec![
        (Algorithm::LzoRle, [&RLE_VERSION[..], &lzo].concat()),
        (Algorithm::Lzo, lzo),
        (Algorithm::Lz4, lz4),
        (Algorithm::Zstd, zstd),
    ];
    (data, by_algorithm)
}

#[test]
fn damaged_data_is_decoded_or_an_error() {
    let (data, by_algorithm) = samples(4 * BLOCK);
    for (algorithm, payload) in by_algorithm {
        for seed in 0..3000 {
            let mut damaged = payload.clone();
            let mut numbers = numbers(seed);
            let mut next = || numbers.next().expect("endless") as usize;
            for _ in 0..1 + next() % 3 {
                let at = next() % if next() % 2 == 0 { damaged.len() } else { 24 };
                damaged[at] = [next() as u8, 0, 0xff][next() % 3];
            }
            damaged
                .truncate(damaged.len() - if next() % 4 == 0 { next() % damaged.len() } else { 0 });
            let _ = decode(algorithm, &damaged, data.len());
        }
    }
}

#[test]
fn data_of_another_length_is_an_error() {
    let (data, by_algorithm) = samples(4 * BLOCK);
    for (algorithm, payload) in by_algorithm {
        assert_eq!(decode(algorithm, &payload, data.len()).as_ref(), Ok(&data));
        assert!(decode(algorithm, &payload, data.len() - 1).is_err(), "{algorithm:?}");
        assert!(decode(algorithm, &payload, data.len() + 1).is_err(), "{algorithm:?}");
        assert!(decode(algorithm, &payload[..payload.len() - 1], data.len()).is_err());
        let followed = [&payload[..], &[1]].concat();
        assert!(decode(algorithm, &followed, data.len()).is_err(), "{algorithm:?}");
    }
}

#[test]
fn a_frame_with_a_large_window_is_refused() {
    // 3.75 TiB (RFC 8878, 3.1.1.1.2), and contents of 2^64 - 1 bytes.
    for (header, found) in [
        (&[0x00, 0xff][..], 15 << 38),
        (&[0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..], u64::MAX),
        (&[0x60, 0x01, 0x3f][..], 0x3f01 + 256),
    ] {
        let frame = [&[0x28, 0xb5, 0x2f, 0xfd][..], header, &[1, 0, 0]].concat();
        let field = "window of Zstandard data";
        let problem = Problem::Range { field, found, min: 0, max: 4 * BLOCK as u64 };
        assert_eq!(decode(Algorithm::Zstd, &frame, 4 * BLOCK), Err(problem));
    }
}

#[test]
fn a_frame_of_more_data_than_the_cluster_has_is_refused() {
    // A window of 16 KiB, and blocks of 16 KiB of one byte, of which the last is marked.
    let block = |last: u32| ((16384 << 3) | (1 << 1) | last).to_le_bytes();
    for (blocks, is_right) in [(1, true), (2, false), (40_000, false)] {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x20];
        for index in 1..=blocks {
            frame.extend_from_slice(&block(u32::from(index == blocks))[..3]);
            frame.push(b'a');
        }
        let decoded = decode(Algorithm::Zstd, &frame, 4 * BLOCK);
        assert_eq!(decoded.is_ok_and(|data| data == [b'a'; 4 * BLOCK]), is_right, "{blocks}");
    }
}

#[test]
fn a_checksum_counts_only_with_its_flag() {
    let (data, by_algorithm) = samples(4 * BLOCK);
    let (algorithm, payload) = &by_algorithm[2];
    let mut stored = stored(payload);
    stored[4] ^= 1;
    assert_eq!(decode_stored(*algorithm, 0, &stored, data.len()), Ok(data.clone()));
    let computed = crc32_le(0xF2F5_2010, payload);
    let problem = Problem::Checksum { stored: computed ^ 1, computed };
    assert_eq!(decode_stored(*algorithm, COMPRESS_CHECKSUM, &stored, data.len()), Err(problem));
}

#[test]
fn a_length_past_the_stored_blocks_is_an_error() {
    let mut stored = stored(&[1, 2, 3]);
    stored[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let available = (BLOCK - size_of::<RawClusterHeader>()) as u64;
    let problem = Problem::Truncated { needed: u32::MAX.into(), available };
    assert_eq!(decode_stored(Algorithm::Lz4, 0, &stored, BLOCK), Err(problem));
    assert!(decode_stored(Algorithm::Lz4, 0, &stored[..20], BLOCK).is_err());
}

/// A file of compressed clusters that are one after the other on a device.
struct CompressedFile {
    cluster: u64,
    places: Vec<StoredRun>,
    decoder: Arc<ClusterCodec>,
    pool: Arc<DecodePool>,
}

impl MapRead for CompressedFile {
    fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap, Error> {
        let offset = FileOffset(at.0 / self.cluster * self.cluster);
        let (kind, flags) = (IomapKind::Encoded, MapFlags::default());
        Ok(Iomap { offset, length: self.cluster, kind, address: None, flags })
    }

    fn inline_data(&self) -> Result<Vec<u8>, Error> {
        Err(Error::NotFound)
    }

    fn encoding(&self) -> Option<Encoding> {
        let decode: Arc<dyn Decode> = self.decoder.clone();
        Some(Encoding { decode, pool: Arc::clone(&self.pool) })
    }

    fn cluster(&self, at: FileOffset) -> Result<Cluster, Error> {
        let index = at.0 / self.cluster;
        let stored = self.places[index as usize];
        let offset = FileOffset(index * self.cluster);
        Ok(Cluster { offset, length: self.cluster, stored: [stored].into_iter().collect() })
    }
}

#[test]
fn a_file_of_compressed_clusters_is_read_through_the_cache() {
    let (cluster, clusters) = (16 * BLOCK, 12);
    let data = sample(99, cluster * clusters);
    let (mut contents, mut places) = (Vec::new(), Vec::new());
    for plain in data.chunks(cluster) {
        let blocks = stored(&tool("lz4", &["-l", "-9"], plain)[8..]);
        assert!(blocks.len() < cluster, "{} bytes", blocks.len());
        let (address, length) = (DeviceOffset(contents.len() as u64), blocks.len() as u64);
        places.push(StoredRun { address, length });
        contents.extend(blocks);
    }
    let decoder = Arc::new(decoder(Algorithm::Lz4, COMPRESS_CHECKSUM));
    let file = CompressedFile { cluster: cluster as u64, places, decoder, pool: Arc::default() };
    let device: SharedDevice = Arc::new(MemoryDevice::new(contents));
    let options = CacheOptions { bytes_max: 16 << 20, ..CacheOptions::default() };
    let cache = PageCache::new(options).expect("memory");
    let mapping = cache.new_mapping(BlockSize::from_bytes(BLOCK as u64).expect("a block size"));
    // The file ends within its last cluster.
    let size = data.len() as u64 - 5000;
    let options = ReadOptions::default();
    let context = ReadContext { mapping: &mapping, mapper: &file, device: &device, size, options };
    for (readahead, step) in [(Readahead::default(), 3 * BLOCK + 7), (Readahead::default(), 900)] {
        for at in (0..size as usize).step_by(step) {
            let mut buffer = vec![0; step];
            let got = read(&context, &readahead, FileOffset(at as u64), &mut buffer);
            let expected = &data[at..(at + step).min(size as usize)];
            assert_eq!(got, Ok(expected.len()));
            assert!(buffer[..expected.len()] == *expected, "{at}");
        }
    }
}
