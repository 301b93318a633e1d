//! The chunks of an Android sparse image: parsing into runs of bytes with one source. Source of the
//! format: `sparse_format.h` and the tools of libsparse in the Android Open Source Project. Not
//! here: reads of the image's contents.

use base::{Container, DeviceOffset, Error, Location, Problem, Result, Unsupported};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::BlockDevice;

/// The magic number, at the beginning of the image.
pub(super) const MAGIC: u32 = 0xed26_ff3a;
/// The only known major version. Other minor versions are compatible.
const MAJOR_VERSION: u16 = 1;
/// The maximum number of chunks. Their runs take at most 64 MiB. An image of 16 GiB with blocks of
/// 4 KiB has at most as many.
const CHUNKS_MAX: u32 = 1 << 22;
/// The minimum size of blocks. It limits the pieces into which a request is split.
const BLOCK_BYTES_MIN: u32 = 512;
/// The maximum size of blocks. It keeps the size of the image below 2^62.
const BLOCK_BYTES_MAX: u32 = 1 << 30;
/// The size of the window through which chunk headers are read. Runs of chunks without data share
/// one read.
const WINDOW_BYTES: u64 = 4096;

const HEADER: &str = "sparse image header";
const CHUNK: &str = "sparse image chunk header";

const RAW: u16 = 0xcac1;
const FILL: u16 = 0xcac2;
const DONT_CARE: u16 = 0xcac3;
const CRC32: u16 = 0xcac4;

/// The header of the image.
#[repr(C)]
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
struct RawHeader {
    /// [`MAGIC`].
    magic: U32,
    /// [`MAJOR_VERSION`].
    major_version: U16,
    _minor_version: U16,
    /// The size of this header in bytes: at least 28.
    header_bytes: U16,
    /// The size of a chunk header in bytes: at least 12.
    chunk_header_bytes: U16,
    /// The size of a block in bytes: a multiple of 4.
    block_bytes: U32,
    /// The number of blocks in the contained image.
    blocks: U32,
    /// The number of chunks.
    chunks: U32,
    /// CRC-32 of the contained image, or 0.
    _checksum: U32,
}
const _: () = assert!(size_of::<RawHeader>() == 28);
const _: () = assert!(std::mem::offset_of!(RawHeader, chunks) == 20);

/// The header of a chunk. The chunk's data follows it.
#[repr(C)]
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
struct RawChunk {
    /// [`RAW`], [`FILL`], [`DONT_CARE`] or [`CRC32`].
    kind: U16,
    _reserved: U16,
    /// The number of blocks in the contained image.
    blocks: U32,
    /// The size of the chunk in bytes, with its header.
    bytes: U32,
}
const _: () = assert!(size_of::<RawChunk>() == 12);

/// The source of a run's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// Adjacent bytes of the file.
    File(DeviceOffset),
    /// A repeated pattern of 4 bytes, which begins at each multiple of 4. Zero for bytes that the
    /// image does not define.
    Fill([u8; 4]),
}

/// A run of blocks with one source. It ends where the next one begins. 16 bytes, since there may be
/// millions.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The first block.
    block: u32,
    /// Whether `source` is an offset in the file, and not a pattern.
    is_file: bool,
    source: u64,
}
const _: () = assert!(size_of::<Run>() == 16);

impl Run {
    fn new(block: u32, source: Source) -> Self {
        match source {
            Source::File(DeviceOffset(offset)) => Self { block, is_file: true, source: offset },
            Source::Fill(pattern) => {
                Self { block, is_file: false, source: u32::from_le_bytes(pattern).into() }
            }
        }
    }

    fn source(self) -> Source {
        if self.is_file {
            Source::File(DeviceOffset(self.source))
        } else {
            Source::Fill((self.source as u32).to_le_bytes())
        }
    }
}

/// The runs of an image.
///
/// Invariants: the first run begins at block 0, runs ascend strictly and begin before `blocks`, and
/// the file has all bytes of all runs from it. There is a run unless the image is empty.
#[derive(Debug)]
pub(super) struct Chunks {
    block_bytes: u32,
    blocks: u32,
    runs: Vec<Run>,
    /// The number of undefined blocks before the first defined one.
    leading_gap: u32,
}

/// A part of the image with one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// The number of bytes.
    pub(super) length: u64,
    /// The source of the first byte.
    pub(super) source: Source,
}

impl Chunks {
    /// Reads the chunk headers of the sparse image in `device`. Errors: `Corrupt`, and
    /// `Unsupported` for more chunks or smaller blocks than the limits.
    pub(super) fn read(device: &dyn BlockDevice) -> Result<Self> {
        let mut window = Window { device, start: 0, bytes: Vec::new() };
        let header = window.view::<RawHeader>(0, HEADER)?;
        check_header(header)?;
        let mut at = u64::from(header.header_bytes.get());
        let chunk_header_bytes = header.chunk_header_bytes.get().into();
        let chunks = header.chunks.get();
        let (block_bytes, blocks) = (header.block_bytes.get(), header.blocks.get());
        let mut parsed = Self { block_bytes, blocks, runs: Vec::new(), leading_gap: 0 };
        let mut done = 0;
        for _ in 0..chunks {
            let chunk = window.view::<RawChunk>(at, CHUNK)?;
            let chunk = Chunk {
                at,
                header_bytes: chunk_header_bytes,
                kind: chunk.kind.get(),
                blocks: chunk.blocks.get(),
                bytes: chunk.bytes.get().into(),
            };
            let end = chunk.check(device.size(), blocks - done, block_bytes)?;
            parsed.add(&chunk, done, &mut window)?;
            done += chunk.image_blocks();
            at = end;
        }
        if done != blocks {
            let (found, expected) = (done.into(), blocks.into());
            let problem = Problem::Mismatch { field: "blocks of all chunks", found, expected };
            return Err(Error::corrupt(HEADER, Location::byte(0), problem));
        }
        parsed.runs.shrink_to_fit();
        Ok(parsed)
    }

    /// Adds a checked chunk that begins at block `block` of the image.
    fn add(&mut self, chunk: &Chunk, block: u32, window: &mut Window<'_>) -> Result<()> {
        if chunk.image_blocks() == 0 {
            return Ok(());
        }
        let source = match chunk.kind {
            RAW => Source::File(DeviceOffset(chunk.data())),
            FILL => Source::Fill(window.view::<U32>(chunk.data(), CHUNK)?.get().to_le_bytes()),
            _ => Source::Fill([0; 4]),
        };
        if chunk.kind == DONT_CARE && self.leading_gap == block {
            self.leading_gap = block + chunk.blocks;
        }
        let last = self.runs.last().map(|run| run.source());
        if last != Some(source) {
            self.runs.push(Run::new(block, source));
        }
        Ok(())
    }

    /// Returns the size of the contained image in bytes.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_bytes)
    }

    /// Returns the number of bytes at the beginning that the image does not define.
    pub(super) fn leading_gap(&self) -> u64 {
        u64::from(self.leading_gap) * u64::from(self.block_bytes)
    }

    /// Returns the parts of `length` bytes from `start` on, in order. The range is within the
    /// image.
    pub(super) fn parts(&self, start: u64, length: u64) -> impl Iterator<Item = Part> + '_ {
        let unit = u64::from(self.block_bytes);
        let end = start + length;
        let first = self.runs.partition_point(|run| u64::from(run.block) * unit <= start);
        let runs = self.runs.get(first.saturating_sub(1)..).unwrap_or_default();
        let next = runs.iter().skip(1).map(|run| run.block).chain([self.blocks]);
        let parts = runs.iter().zip(next).map(move |(run, next)| {
            let run_start = u64::from(run.block) * unit;
            let from = run_start.max(start);
            let to = (u64::from(next) * unit).min(end);
            let source = match run.source() {
                Source::File(DeviceOffset(offset)) => {
                    Source::File(DeviceOffset(offset + (from - run_start)))
                }
                Source::Fill(mut pattern) => {
                    pattern.rotate_left((from % 4) as usize);
                    Source::Fill(pattern)
                }
            };
            (from < to).then(|| Part { length: to - from, source })
        });
        parts.map_while(|part| part)
    }
}

/// A chunk header and its place.
struct Chunk {
    /// The offset of the header in the file.
    at: u64,
    header_bytes: u64,
    kind: u16,
    blocks: u32,
    bytes: u64,
}

impl Chunk {
    /// Checks the chunk, of which at most `blocks_max` blocks may follow. Returns its end in the
    /// file of `file_bytes`.
    fn check(&self, file_bytes: u64, blocks_max: u32, block_bytes: u32) -> Result<u64> {
        let data_bytes = match self.kind {
            RAW => u64::from(self.blocks) * u64::from(block_bytes),
            FILL | CRC32 => 4,
            DONT_CARE => 0,
            kind => {
                let problem = Problem::Invalid { field: "chunk type", found: kind.into() };
                return Err(self.corrupt(problem));
            }
        };
        let expected = self.header_bytes + data_bytes;
        if self.bytes != expected {
            let (field, found) = ("chunk size", self.bytes);
            return Err(self.corrupt(Problem::Mismatch { field, found, expected }));
        }
        if self.image_blocks() > blocks_max {
            let (found, max) = (self.blocks.into(), blocks_max.into());
            return Err(self.corrupt(Problem::Range { field: "chunk blocks", found, min: 0, max }));
        }
        let available = file_bytes.saturating_sub(self.at);
        if self.bytes > available {
            return Err(self.corrupt(Problem::Truncated { needed: self.bytes, available }));
        }
        Ok(self.at + self.bytes)
    }

    /// Returns the number of blocks of the image that the chunk defines.
    fn image_blocks(&self) -> u32 {
        if self.kind == CRC32 { 0 } else { self.blocks }
    }

    /// Returns the offset of the data in the file.
    fn data(&self) -> u64 {
        self.at + self.header_bytes
    }

    fn corrupt(&self, problem: Problem) -> Error {
        Error::corrupt(CHUNK, Location::byte(self.at), problem)
    }
}

fn check_header(header: &RawHeader) -> Result<()> {
    let corrupt = |problem| Err(Error::corrupt(HEADER, Location::byte(0), problem));
    if header.magic != MAGIC {
        let (found, expected) = (header.magic.get().into(), MAGIC.into());
        return corrupt(Problem::Magic { found, expected });
    }
    let found = header.major_version.get();
    if found != MAJOR_VERSION {
        return corrupt(Problem::Invalid { field: "major version", found: found.into() });
    }
    let at_least = |field, found: u16, min: usize| Problem::Range {
        field,
        found: found.into(),
        min: min as u64,
        max: u16::MAX.into(),
    };
    let found = header.header_bytes.get();
    if usize::from(found) < size_of::<RawHeader>() {
        return corrupt(at_least("header size", found, size_of::<RawHeader>()));
    }
    let found = header.chunk_header_bytes.get();
    if usize::from(found) < size_of::<RawChunk>() {
        return corrupt(at_least("chunk header size", found, size_of::<RawChunk>()));
    }
    let found = header.block_bytes.get();
    if found == 0 || found % 4 != 0 || found > BLOCK_BYTES_MAX {
        return corrupt(Problem::Invalid { field: "block size", found: found.into() });
    }
    if found < BLOCK_BYTES_MIN || header.chunks.get() > CHUNKS_MAX {
        return Err(Error::Unsupported(Unsupported::Container(Container::AndroidSparseFragmented)));
    }
    Ok(())
}

/// The part of the file that was read last.
struct Window<'a> {
    device: &'a dyn BlockDevice,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// Returns the layout `T` at byte `at` of the file.
    fn view<T>(&mut self, at: u64, structure: &'static str) -> Result<&T>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let needed = size_of::<T>() as u64;
        let end = self.start + self.bytes.len() as u64;
        if at < self.start || at.saturating_add(needed) > end {
            let available = self.device.size().saturating_sub(at);
            self.start = at;
            self.bytes.resize(available.min(WINDOW_BYTES) as usize, 0);
            self.device.read_at(DeviceOffset(at), &mut self.bytes)?;
        }
        let byte = (at - self.start) as usize;
        let location = Location::byte(at);
        let bytes = self.bytes.get(byte..).unwrap_or_default();
        base::view::view_at::<T>(bytes, 0, structure, location)
    }
}
