//! Zstandard frames (RFC 8878), which are decompressed with bounded memory. Not here: the decoder,
//! which is the crate `ruzstd`. It decodes at most 1 MiB and a block before the caller sees that
//! the data is too long, and no more than 128 KiB at once from one block.

use std::io::Read;

use base::{Problem, Result};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The number of bytes that are decoded before the caller sees them, and a block.
const STEP_BYTES: usize = 1 << 20;
/// The bit of the frame's descriptor that says that its window is as large as its contents.
const SINGLE_SEGMENT: u8 = 1 << 5;
/// The bits of the frame's descriptor that say that the size of the contents has 4 bytes.
const SIZE_OF_4_BYTES: u8 = 2 << 6;

/// Compresses `data` to one frame with a window as large as the data, since Linux reserves memory
/// for no larger one. Returns `None` if the frame could not be read.
pub(super) fn compress(data: &[u8]) -> Option<Vec<u8>> {
    let frame = compress_to_vec(data, CompressionLevel::Fastest);
    // The encoder's window is always larger: its frame has a descriptor without a size, and one
    // byte for the window.
    let (header, blocks) = frame.split_first_chunk::<6>()?;
    let [magic @ .., descriptor, _window] = header;
    if *magic != MAGIC || *descriptor != 0 {
        return None;
    }
    let size = u32::try_from(data.len()).ok()?;
    let descriptor = [SINGLE_SEGMENT | SIZE_OF_4_BYTES];
    let frame = [magic, &descriptor[..], &size.to_le_bytes(), blocks].concat();
    let mut decoded = vec![0; data.len()];
    let is_equal = decompress(&frame, &mut decoded) == Ok(data.len()) && decoded == data;
    is_equal.then_some(frame)
}

/// Decompresses the frame in `source` to the beginning of `target`. Returns the number of bytes.
/// Errors: data that is damaged, longer than `target`, or followed by other bytes, and frames that
/// need a window larger than `target`.
pub(super) fn decompress(source: &[u8], target: &mut [u8]) -> Result<usize, Problem> {
    let (window, max) = (window_bytes(source)?, target.len() as u64);
    if window > max {
        let field = "window of Zstandard data";
        return Err(Problem::Range { field, found: window, min: 0, max });
    }
    decode_frame(source, target)
        .ok_or(Problem::Invalid { field: "Zstandard data of length", found: source.len() as u64 })
}

/// Decodes the only frame in `source`. A further frame could have any window. Returns the number of
/// bytes.
fn decode_frame(mut source: &[u8], target: &mut [u8]) -> Option<usize> {
    let mut decoder = FrameDecoder::new();
    decoder.init(&mut source).ok()?;
    let mut done = 0;
    loop {
        decoder.decode_blocks(&mut source, BlockDecodingStrategy::UptoBytes(STEP_BYTES)).ok()?;
        done += decoder.read(target.get_mut(done..)?).ok()?;
        if decoder.can_collect() > 0 {
            return None;
        }
        if decoder.is_finished() {
            return source.is_empty().then_some(done);
        }
    }
}

/// Returns the number of bytes that the decoder of the frame in `source` must keep: those of its
/// window, or of its contents if it has no window (RFC 8878, 3.1.1.1).
fn window_bytes(source: &[u8]) -> Result<u64, Problem> {
    let truncated = |needed| Problem::Truncated { needed, available: source.len() as u64 };
    let (magic, rest) = source.split_first_chunk().ok_or_else(|| truncated(MAGIC.len() as u64))?;
    if *magic != MAGIC {
        let [found, expected] = [*magic, MAGIC].map(|magic| u32::from_le_bytes(magic).into());
        return Err(Problem::Magic { found, expected });
    }
    let (descriptor, rest) = rest.split_first().ok_or_else(|| truncated(5))?;
    if descriptor & SINGLE_SEGMENT == 0 {
        let window = rest.first().ok_or_else(|| truncated(6))?;
        let base = 1 << (10 + (window >> 3));
        return Ok(base + (base >> 3) * u64::from(window & 7));
    }
    let dictionary_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_len: usize = 1 << (descriptor >> 6);
    let end = dictionary_len + content_len;
    let content = rest.get(dictionary_len..end).ok_or_else(|| truncated(5 + end as u64))?;
    let mut bytes = [0; 8];
    bytes[..content_len].copy_from_slice(content);
    let offset = if content_len == 2 { 256 } else { 0 };
    Ok(u64::from_le_bytes(bytes).saturating_add(offset))
}
