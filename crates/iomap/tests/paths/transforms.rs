//! Files whose data is transformed between the cache and the device: random writes and reads,
//! damaged blocks, and direct requests.

use std::sync::Arc;

use crate::support::format::{Format, Mode};
use crate::support::{Late, Random, block_size, cache};
use base::{DeviceOffset, Error, FileOffset, Location, Problem, Result};
use device::{BlockDevice, MemoryDevice, SharedDevice};
use iomap::{
    EndIo, Iomap, IomapKind, MapFlags, MapRead, ReadContext, ReadOptions, Readahead, Refused,
    SplitExtents, Transform, WritableFile, detach_cache, note_size_on_disk, overwrite_direct,
    punch_cache, read, read_direct, truncate_cache, wait_for_writeback, write, write_back,
    write_direct_alone,
};

/// Encrypts each byte with the number of its block, and ends each block with a byte that depends on
/// all others.
#[derive(Debug)]
struct Cipher {
    block: usize,
}

impl Cipher {
    fn key(&self, at: FileOffset) -> u8 {
        (at.0 / self.block as u64) as u8 ^ 0x5a
    }
}

impl Transform for Cipher {
    fn store(&self, at: FileOffset, data: &[u8], stored: &mut [u8]) -> Result<()> {
        assert!(at.0 % self.block as u64 == 0 && data.len() % self.block == 0);
        for (index, (from, to)) in data.iter().zip(stored).enumerate() {
            *to = from ^ self.key(FileOffset(at.0 + index as u64));
        }
        Ok(())
    }

    fn load(&self, at: FileOffset, stored: &mut [u8]) -> Result<()> {
        assert!(at.0 % self.block as u64 == 0 && stored.len() % self.block == 0);
        for (index, byte) in stored.iter_mut().enumerate() {
            *byte ^= self.key(FileOffset(at.0 + index as u64));
            if *byte == DAMAGE {
                let problem = Problem::Invalid { field: "byte", found: DAMAGE.into() };
                return Err(Error::corrupt("block", Location::default(), problem));
            }
        }
        Ok(())
    }
}

/// A byte that no file has.
const DAMAGE: u8 = 0xdd;
const SIZE_MAX: u64 = 1 << 20;

fn file_of(random: &mut Random, order_max: u8) -> (Arc<Format>, Arc<WritableFile>) {
    let size = block_size(1024 << random.below(7));
    let transform: Arc<dyn Transform> = Arc::new(Cipher { block: size.len() });
    let blocks = 2 * SIZE_MAX / size.len() as u64;
    let mode = Mode::random(random);
    let format = Format::with_transform(size, blocks, 1 << 20, mode, Some(transform));
    let mut device: SharedDevice = format.device();
    if random.one_in(2) {
        device = Arc::new(Late::device(device, random.next()));
    }
    let (cache, end_io) = (cache(4 << 20, order_max), EndIo::start().expect("a thread"));
    let (mapping, options) = (cache.new_mapping(size), ReadOptions::default());
    (Arc::clone(&format), WritableFile::new(mapping, format, device, end_io, 0, options))
}

#[test]
fn random_writes_read_back_and_are_stored_in_another_form() {
    for seed in 0..60 {
        println!("seed {seed}");
        let random = &mut Random(seed);
        let (format, file) = file_of(random, (seed % 10) as u8);
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..100 {
            let at = random.below(model.len() as u64 + 10);
            let length = random.of_magnitude(1..18).max(1).min(SIZE_MAX - at.min(SIZE_MAX - 1));
            let end = (at + length).min(model.len() as u64);
            match random.below(8) {
                0..=3 => {
                    let data = vec![random.next() as u8 & 0x7f; length as usize];
                    let written = write(&file, FileOffset(at), &data).expect("room");
                    model.resize(model.len().max(at as usize + written), 0);
                    model[at as usize..at as usize + written].copy_from_slice(&data[..written]);
                }
                4 => {
                    let size = random.below(SIZE_MAX);
                    truncate_cache(&file, size).expect("memory");
                    format.truncate(size);
                    note_size_on_disk(&file);
                    model.resize(size as usize, 0);
                }
                5 if at < end => {
                    format.punch(punch_cache(&file, at..end).expect("memory"));
                    model[at as usize..end as usize].fill(0);
                }
                6 => {
                    write_back(&file, 0..u64::MAX);
                    wait_for_writeback(&file, 0..u64::MAX);
                    assert_eq!(format.on_disk(), model);
                    // The next reads come from the device.
                    detach_cache(&file, 0);
                }
                _ => {
                    let mut buffer = vec![0; length as usize];
                    let context = file.read_context();
                    let count = read(&context, &Readahead::default(), FileOffset(at), &mut buffer);
                    let count = count.expect("readable");
                    let expected = &model[model.len().min(at as usize)..];
                    assert_eq!(buffer[..count], expected[..count]);
                }
            }
        }
        write_back(&file, 0..u64::MAX);
        wait_for_writeback(&file, 0..u64::MAX);
        assert_eq!(file.errors().check(&file.errors().cursor()), Ok(()));
        assert_eq!(format.on_disk(), model);
    }
}

/// Returns a file of 16 blocks of ones.
fn of_ones() -> (Arc<Format>, Arc<WritableFile>, usize) {
    let (format, file) = file_of(&mut Random(3), 4);
    let block = file.mapping().block_size().len();
    let data = vec![1; 16 * block];
    assert_eq!(write(&file, FileOffset(0), &data), Ok(data.len()));
    write_back(&file, 0..u64::MAX);
    wait_for_writeback(&file, 0..u64::MAX);
    (format, file, block)
}

#[test]
fn a_block_that_the_transform_refuses_is_an_error_only_for_its_readers() {
    let (format, file, block) = of_ones();
    let place = format.addresses()[5];
    let key = Cipher { block }.key(FileOffset(5 * block as u64));
    let device: &dyn BlockDevice = &*format.device();
    device.write_at(DeviceOffset(place), &[DAMAGE ^ key]).expect("memory");
    detach_cache(&file, 0);
    let read_at = |at: usize| {
        let mut buffer = vec![0; block];
        let context = file.read_context();
        read(&context, &Readahead::default(), FileOffset(at as u64), &mut buffer).map(|_| buffer)
    };
    assert!(matches!(read_at(5 * block), Err(Error::Corrupt(_))));
    for other in (0..16).filter(|&other| other != 5) {
        assert_eq!(read_at(other * block), Ok(vec![1; block]), "{other}");
    }
}

/// A file of one mapping, whose data is transformed.
struct Mapped {
    size: u64,
    transform: Arc<dyn Transform>,
}

impl MapRead for Mapped {
    fn map_read(&self, _at: FileOffset, _length: u64) -> Result<Iomap> {
        Ok(Iomap {
            offset: FileOffset(0),
            length: self.size.next_multiple_of(4096),
            kind: IomapKind::Mapped,
            address: Some(DeviceOffset(0)),
            flags: MapFlags::default(),
        })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Err(Error::InvalidArgument("not inline"))
    }

    fn transform(&self) -> Option<Arc<dyn Transform>> {
        Some(Arc::clone(&self.transform))
    }
}

#[test]
fn a_block_at_the_end_of_a_device_that_ends_within_it_is_an_error() {
    let size = block_size(4096);
    let transform: Arc<dyn Transform> = Arc::new(Cipher { block: size.len() });
    let file = Mapped { size: 3 * 4096 + 100, transform };
    // The last block has all of the file's bytes, and not those that the transform needs.
    let device: SharedDevice = Arc::new(MemoryDevice::new(vec![0; 3 * 4096 + 1000]));
    let mapping = cache(4 << 20, 9).new_mapping(size);
    let (options, size) = (ReadOptions::default(), file.size);
    let context = ReadContext { mapping: &mapping, mapper: &file, device: &device, size, options };
    let mut buffer = [0; 4096];
    let mut read_at =
        |page: u64| read(&context, &Readahead::default(), FileOffset(page << 12), &mut buffer);
    assert_eq!(read_at(2), Ok(4096));
    let last = read_at(3);
    assert!(matches!(last, Err(Error::Io(_))), "{last:?}");
}

#[test]
fn direct_requests_need_the_cache() {
    let (_, file, block) = of_ones();
    let mut buffer = vec![0; block];
    let (at, split) = (FileOffset(0), SplitExtents::AtEnd);
    let done = read_direct(&file.read_context(), Some(&file), at, &mut buffer, ());
    assert_eq!(done, Err(Refused::NeedsCache));
    assert_eq!(overwrite_direct(&file, at, &buffer, split, ()), Err(Refused::NeedsCache));
    assert_eq!(write_direct_alone(&file, at, &buffer, split), Ok(None));
}
