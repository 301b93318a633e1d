//! Tests of sparse images against a model of their bytes, and of hostile headers.

use std::ptr::NonNull;
use std::sync::{Arc, mpsc};

use base::{Corrupt, IoError, Problem};
use proptest::prelude::*;

use super::*;
use crate::{MemoryDevice, Segment};

const BLOCK: usize = 512;

/// A chunk of an image.
#[derive(Clone, Debug)]
enum Chunk {
    Raw(Vec<u8>),
    Fill(u32, u32),
    DontCare(u32),
    Checksum,
}

/// The size of headers, which may be longer than what is known of them.
#[derive(Clone, Copy, Debug)]
struct HeaderBytes {
    file: u16,
    chunk: u16,
}

const USUAL: HeaderBytes = HeaderBytes { file: 28, chunk: 12 };

/// Returns a sparse image, and the bytes that it contains.
fn encode(chunks: &[Chunk], headers: HeaderBytes) -> (Vec<u8>, Vec<u8>) {
    let mut body = Vec::new();
    let mut model = Vec::new();
    for chunk in chunks {
        let (kind, blocks, data) = match chunk {
            Chunk::Raw(bytes) => {
                model.extend_from_slice(bytes);
                (0xcac1u16, (bytes.len() / BLOCK) as u32, bytes.clone())
            }
            Chunk::Fill(blocks, value) => {
                let words = *blocks as usize * BLOCK / 4;
                model.extend(std::iter::repeat_n(value.to_le_bytes(), words).flatten());
                (0xcac2, *blocks, value.to_le_bytes().to_vec())
            }
            Chunk::DontCare(blocks) => {
                model.resize(model.len() + *blocks as usize * BLOCK, 0);
                (0xcac3, *blocks, Vec::new())
            }
            Chunk::Checksum => (0xcac4, 0, vec![1, 2, 3, 4]),
        };
        body.extend(kind.to_le_bytes());
        body.extend([0; 2]);
        body.extend(blocks.to_le_bytes());
        body.extend((u32::from(headers.chunk) + data.len() as u32).to_le_bytes());
        body.resize(body.len() + usize::from(headers.chunk) - 12, 0x55);
        body.extend(data);
    }
    let mut image = Vec::new();
    image.extend(0xed26_ff3au32.to_le_bytes());
    image.extend([1, 0, 0, 0]);
    image.extend(headers.file.to_le_bytes());
    image.extend(headers.chunk.to_le_bytes());
    image.extend((BLOCK as u32).to_le_bytes());
    image.extend(((model.len() / BLOCK) as u32).to_le_bytes());
    image.extend((chunks.len() as u32).to_le_bytes());
    image.extend([0; 4]);
    image.resize(headers.file.into(), 0x55);
    image.extend(body);
    (image, model)
}

fn open(image: Vec<u8>) -> Result<SparseDevice> {
    SparseDevice::open(Arc::new(MemoryDevice::new(image)))
}

/// Reads ranges into segments of at most `segment` bytes, in one batch.
fn read(
    device: &SparseDevice,
    ranges: &[(u64, usize)],
    segment: usize,
) -> Vec<Result<Vec<u8>, IoError>> {
    let mut buffers: Vec<_> = ranges.iter().map(|&(_, length)| vec![0xee; length]).collect();
    let mut ends = Vec::new();
    let mut batch = Vec::new();
    for (&(start, _), buffer) in ranges.iter().zip(&mut buffers) {
        // SAFETY: the buffers outlive the end of every bio, and are not accessed before.
        let segments = buffer.chunks_mut(segment).map(|memory| unsafe {
            Segment::new(NonNull::from(&mut *memory).cast(), memory.len())
        });
        let segments: Vec<_> = segments.collect();
        let (sender, receiver) = mpsc::channel();
        batch.push(Bio::new(BioOperation::Read, DeviceOffset(start), segments, move |result| {
            sender.send(result).unwrap();
        }));
        ends.push(receiver);
    }
    device.submit(batch);
    let results: Vec<_> = ends.iter().map(|end| end.recv().unwrap()).collect();
    results.into_iter().zip(buffers).map(|(result, buffer)| result.map(|()| buffer)).collect()
}

fn any_chunk() -> impl Strategy<Value = Chunk> {
    prop_oneof![
        (0..5usize, any::<u8>()).prop_map(|(blocks, seed)| {
            let byte = |at: usize| (at * 31 + at / 251) as u8 ^ seed;
            Chunk::Raw((0..blocks * BLOCK).map(byte).collect())
        }),
        (0..5u32, prop_oneof![Just(0), any::<u32>()])
            .prop_map(|(blocks, value)| Chunk::Fill(blocks, value)),
        (0..5u32).prop_map(Chunk::DontCare),
        Just(Chunk::Checksum),
    ]
}

proptest! {
    #[test]
    fn reads_of_random_images_equal_the_model(
        chunks in prop::collection::vec(any_chunk(), 0..30),
        file in 28..80u16,
        chunk in 12..40u16,
        reads in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..10),
        segment in 1..3000usize,
    ) {
        let (image, model) = encode(&chunks, HeaderBytes { file, chunk });
        let device = open(image).unwrap();
        prop_assert_eq!(device.size(), model.len() as u64);
        let range = |(start, length): &(prop::sample::Index, prop::sample::Index)| {
            let start = start.index(model.len() + 1);
            (start as u64, length.index(model.len() - start + 1))
        };
        let ranges: Vec<_> = reads.iter().map(range).collect();
        for (found, &(start, length)) in read(&device, &ranges, segment).iter().zip(&ranges) {
            prop_assert!(found.as_deref() == Ok(&model[start as usize..][..length]), "{} {}", start, length);
        }
        let past_the_end = &read(&device, &[(model.len() as u64, 1)], 1)[0];
        prop_assert_eq!(past_the_end.as_ref().unwrap_err().errno, crate::bio::EINVAL);
    }

    #[test]
    fn changed_bytes_give_errors_or_readable_images(
        chunks in prop::collection::vec(any_chunk(), 0..10),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        length in any::<prop::sample::Index>(),
    ) {
        let (mut image, _) = encode(&chunks, USUAL);
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        image.truncate(length.index(image.len() * 2));
        if let Ok(device) = open(image) {
            let length = device.size().min(10_000) as usize;
            let end = device.size() - length as u64;
            for result in read(&device, &[(0, length), (end, length)], 4096) {
                result.unwrap();
            }
        }
    }
}

fn small() -> Vec<u8> {
    let chunks = [Chunk::Raw(vec![7; 2 * BLOCK]), Chunk::Fill(3, 0x01020304), Chunk::DontCare(4)];
    encode(&chunks, USUAL).0
}

/// Overwrites bytes of a small image, and checks the structure and the problem of its error.
fn check(at: usize, bytes: &[u8], structure: &str, expected: impl Fn(&Problem) -> bool) {
    let mut image = small();
    image[at..at + bytes.len()].copy_from_slice(bytes);
    let Err(Error::Corrupt(corrupt)) = open(image) else { panic!("byte {at} is not checked") };
    let Corrupt { structure: found, problem, .. } = *corrupt;
    assert!(found == structure && expected(&problem), "{at}: {found}: {problem}");
}

#[test]
fn every_field_of_the_headers_is_checked() {
    const HEADER: &str = "sparse image header";
    const CHUNK: &str = "sparse image chunk header";
    let range = |problem: &Problem| matches!(problem, Problem::Range { .. });
    let invalid = |problem: &Problem| matches!(problem, Problem::Invalid { .. });
    let mismatch = |problem: &Problem| matches!(problem, Problem::Mismatch { .. });
    open(small()).unwrap();
    check(0, &[0], HEADER, |problem| matches!(problem, Problem::Magic { .. }));
    check(4, &[2], HEADER, invalid);
    check(8, &[27], HEADER, range);
    check(10, &[11], HEADER, range);
    check(12, &[0, 0], HEADER, invalid);
    check(12, &[2, 2], HEADER, invalid);
    check(12, &[0, 0, 0, 0xff], HEADER, invalid);
    check(12, &[0, 4], CHUNK, mismatch);
    check(16, &[8], CHUNK, range);
    check(16, &[10], HEADER, mismatch);
    check(16, &[0xff; 4], HEADER, mismatch);
    check(20, &[2], HEADER, mismatch);
    check(20, &[4], CHUNK, |problem| matches!(problem, Problem::Truncated { .. }));
    check(28, &[0xc5], CHUNK, invalid);
    check(28, &[0xc2], CHUNK, mismatch);
    check(32, &[1], CHUNK, mismatch);
    check(32, &[0xff; 4], CHUNK, mismatch);
    check(36, &[0], CHUNK, mismatch);
    let fill = 28 + 12 + 2 * BLOCK;
    check(fill + 4, &[0xff; 4], CHUNK, range);
    check(fill + 8, &[0xff; 4], CHUNK, mismatch);
}

#[test]
fn a_truncated_image_is_an_error() {
    let image = small();
    for length in 0..image.len() {
        assert!(matches!(open(image[..length].to_vec()), Err(Error::Corrupt(_))), "{length}");
    }
}

#[test]
fn more_chunks_or_smaller_blocks_than_supported_are_refused() {
    for (at, bytes) in [(20, (1u32 << 22) + 1), (12, 256)] {
        let mut image = small();
        image[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
        let expected = Unsupported::Container(Container::AndroidSparseFragmented);
        assert_eq!(open(image).unwrap_err(), Error::Unsupported(expected));
    }
}

#[test]
fn changes_are_refused() {
    let device = open(small()).unwrap();
    let Err(Error::Io(error)) = (&device as &dyn BlockDevice).write_at(DeviceOffset(0), &[1])
    else {
        panic!("a write to a sparse image")
    };
    assert_eq!(error.errno, EROFS);
    for error in [device.discard(DeviceOffset(0), 512), device.write_zeroes(DeviceOffset(0), 512)] {
        assert!(error.unwrap_err().to_string().contains("simg2img IN OUT"));
    }
}

#[test]
fn chunks_without_data_and_of_zeroes_are_holes() {
    let chunks = [
        Chunk::DontCare(3),
        Chunk::Fill(2, 0),
        Chunk::Raw(vec![1; 2 * BLOCK]),
        Chunk::Fill(1, 0),
        Chunk::Fill(1, 5),
        Chunk::DontCare(1),
    ];
    let device = open(encode(&chunks, USUAL).0).unwrap();
    let blocks = |start: usize, end: usize| {
        Some(DeviceOffset((start * BLOCK) as u64)..DeviceOffset((end * BLOCK) as u64))
    };
    let next_data = |block: usize| device.next_data(DeviceOffset((block * BLOCK) as u64));
    assert_eq!(next_data(0), blocks(5, 7));
    assert_eq!(next_data(6), blocks(6, 7));
    assert_eq!(next_data(7), blocks(8, 9));
    assert_eq!(next_data(9), None);
    assert_eq!(next_data(10), None);
}

#[test]
fn an_image_without_a_beginning_is_a_piece_of_a_split_one() {
    let chunks = |blocks| [Chunk::DontCare(3), Chunk::DontCare(blocks), Chunk::Raw(vec![1; BLOCK])];
    assert!(open(encode(&chunks(5), USUAL).0).unwrap().begins_with_gap());
    assert!(!open(encode(&chunks(4), USUAL).0).unwrap().begins_with_gap());
    let zeroes = [Chunk::Fill(100, 0), Chunk::Raw(vec![1; BLOCK])];
    assert!(!open(encode(&zeroes, USUAL).0).unwrap().begins_with_gap());
}
