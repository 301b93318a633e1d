//! A file on a device whose writes can be held.

use std::sync::{Arc, Mutex};

use base::FileOffset;
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use iomap::{
    EndIo, PageCache, ReadOptions, Readahead, WritableFile, read, wait_for_writeback, write,
    write_back,
};

use super::format::{Format, Mode};
use super::{block_size, cache};

/// Device hooks that list bios, and hold writes on demand.
#[derive(Debug)]
pub struct Gate {
    /// The operation and the number of bytes of each bio.
    pub log: Mutex<Vec<(BioOperation, u64)>>,
    /// Writes of more bytes than this are held.
    pub hold_above: Mutex<u64>,
    pub held: Mutex<Vec<Bio>>,
}

impl Gate {
    pub fn device(inner: Arc<MemoryDevice>) -> Arc<HookedDevice<Self>> {
        let (log, held) = (Mutex::default(), Mutex::default());
        let gate = Self { log, hold_above: Mutex::new(u64::MAX), held };
        Arc::new(HookedDevice::new(inner, gate))
    }

    pub fn take_log(&self) -> Vec<(BioOperation, u64)> {
        std::mem::take(&mut self.log.lock().expect("no panic"))
    }

    pub fn hold_above(&self, bytes: u64) {
        *self.hold_above.lock().expect("no panic") = bytes;
    }
}

impl DeviceHooks for Gate {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            self.log.lock().expect("no panic").push((bio.operation(), bio.length()));
            let above = *self.hold_above.lock().expect("no panic");
            if bio.operation() == BioOperation::Write && bio.length() > above {
                self.held.lock().expect("no panic").push(bio);
            } else {
                device.submit(vec![bio]);
            }
        }
    }
}

pub struct Setup {
    pub format: Arc<Format>,
    pub gate: Arc<HookedDevice<Gate>>,
    pub file: Arc<WritableFile>,
    pub cache: Arc<PageCache>,
    pub end_io: Arc<EndIo>,
}

pub fn setup_with(cache: Arc<PageCache>, block_bytes: u64) -> Setup {
    setup_of(cache, block_bytes, Mode::InPlace)
}

pub fn setup_of(cache: Arc<PageCache>, block_bytes: u64, mode: Mode) -> Setup {
    let size = block_size(block_bytes);
    let format = Format::with_mode(size, (16 << 20) / block_bytes, 1 << 20, mode);
    let gate = Gate::device(format.device());
    let end_io = EndIo::start().expect("a thread");
    let file = writable(&cache, &format, gate.clone(), block_bytes, Arc::clone(&end_io));
    Setup { format, gate, file, cache, end_io }
}

pub fn setup(folio_order_max: u8, block_bytes: u64) -> Setup {
    setup_with(cache(32 << 20, folio_order_max), block_bytes)
}

pub fn writable(
    cache: &Arc<PageCache>,
    format: &Arc<Format>,
    device: SharedDevice,
    block_bytes: u64,
    end_io: Arc<EndIo>,
) -> Arc<WritableFile> {
    let (mapping, format) = (cache.new_mapping(block_size(block_bytes)), Arc::clone(format));
    let size = format.size();
    WritableFile::new(mapping, format, device, end_io, size, ReadOptions::default())
}

impl Setup {
    /// Submits the held writes, and holds no more.
    pub fn release(&self) {
        self.gate.hold_above(u64::MAX);
        let held = std::mem::take(&mut *self.gate.held.lock().expect("no panic"));
        self.gate.inner().submit(held);
    }

    pub fn write(&self, at: u64, data: &[u8]) {
        assert_eq!(write(&self.file, FileOffset(at), data), Ok(data.len()));
    }

    pub fn sync(&self) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
    }

    /// Waits until the end-of-I/O thread has completed all writes that have ended on the device.
    pub fn wait_for_ended_writes(&self) {
        let format = Format::new(block_size(4096), 1, 1);
        let device = format.device();
        let other = writable(&self.cache, &format, device, 4096, Arc::clone(&self.end_io));
        assert_eq!(write(&other, FileOffset(0), &[1]), Ok(1));
        write_back(&other, 0..1);
        wait_for_writeback(&other, 0..1);
    }

    /// Opens the file again, with an empty cache.
    pub fn reopen(mut self, block_bytes: u64) -> Self {
        self.file = writable(
            &self.cache,
            &self.format,
            self.gate.clone(),
            block_bytes,
            Arc::clone(&self.end_io),
        );
        self.gate.take_log();
        self
    }

    pub fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        let context = self.file.read_context();
        let got = read(&context, &Readahead::default(), FileOffset(at), &mut buffer);
        buffer.truncate(got.expect("readable"));
        buffer
    }
}
