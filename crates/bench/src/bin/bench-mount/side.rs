//! The sides: each is a mount with a file to read.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use bench::image::Image;
use bench::mount::{Mount, Mounter};
use rustix::fs::{Advice, OFlags, fadvise};

use crate::row::{FILE_BYTES, Row, State};

const IMAGE_BYTES: u64 = 256 << 20;
const NAME: &str = "data";
/// The alignment of memory for O_DIRECT.
const ALIGNMENT: usize = 4096;

/// One way of mounting.
pub struct Side {
    /// The name of the column.
    pub name: &'static str,
    mounter: Mounter,
    /// The mount. `None` only during a remount.
    mount: Option<Mount>,
    image: Image,
}

impl Side {
    /// Creates an image, mounts it and writes the file.
    pub fn new(name: &'static str, mounter: Mounter) -> Self {
        let image = Image::make(IMAGE_BYTES, 4096, "");
        let mount = Mount::new(&image.path(), mounter);
        let mut file = File::create_new(mount.path().join(NAME)).expect("a new file");
        let piece: Vec<u8> =
            (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for _ in 0..FILE_BYTES / piece.len() as u64 {
            file.write_all(&piece).expect("room in the image");
        }
        file.sync_all().expect("a durable file");
        Self { name, mounter, mount: Some(mount), image }
    }

    /// Brings memory into the state of the row, and then reads the file. Returns the time of the
    /// read.
    pub fn measure(&mut self, row: &Row) -> Duration {
        if row.state == State::Cold {
            drop(self.mount.take());
        }
        let mount = self.mount.get_or_insert_with(|| Mount::new(&self.image.path(), self.mounter));
        let open = |flags: OFlags| {
            let mut options = File::options();
            options.read(true).custom_flags(flags.bits() as i32);
            options.open(mount.path().join(NAME)).expect("the file")
        };
        if row.state != State::Cold {
            read(
                &open(OFlags::empty()),
                (0..FILE_BYTES).step_by(1 << 20),
                &mut Buffer::new(1 << 20),
            );
        }
        if row.state == State::Served {
            fadvise(open(OFlags::empty()), 0, None, Advice::DontNeed).expect("accepted advice");
        }
        let flags = if row.direct { OFlags::DIRECT } else { OFlags::empty() };
        let readers: Vec<_> =
            (0..row.threads).map(|number| (number, open(flags), Buffer::new(row.length))).collect();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for (number, file, mut buffer) in readers {
                scope.spawn(move || read(&file, row.offsets(number), &mut buffer));
            }
        });
        begin.elapsed()
    }
}

fn read(file: &File, offsets: impl Iterator<Item = u64>, buffer: &mut Buffer) {
    for at in offsets {
        file.read_exact_at(buffer.bytes(), at).expect("the file's bytes");
        black_box(buffer.bytes());
    }
}

/// Aligned memory, whose pages are all present.
struct Buffer {
    memory: Vec<u8>,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> Self {
        Self { memory: vec![0xa5; length + ALIGNMENT], length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.memory.as_ptr().align_offset(ALIGNMENT);
        &mut self.memory[start..][..self.length]
    }
}
