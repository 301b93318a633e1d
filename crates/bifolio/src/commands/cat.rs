//! `bifolio cat`.

use std::io::{self, Write};

use base::FileOffset;
use clap::Args;
use rustix::fs::{FileType, SeekFrom};
use vfs::{File, Follow};

use crate::console::Console;
use crate::console::failure::{Failure, Result, Status};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};

/// Maximum number of bytes that are lent and written at a time.
const SLICE_BYTES_MAX: usize = 2 << 20;

/// The arguments of `bifolio cat`.
#[derive(Args)]
pub struct Arguments {
    /// Files to print
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Writes all targets to standard output, in order.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let mut sink = Sink::standard_output();
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let node = target.resolve(&volume, Follow::Yes)?;
            let failure = |error| target.failure(&target.path, &error);
            let file = node.open().map_err(failure)?;
            copy(&file, node.attributes().size, target, &mut sink)
        });
        console.tolerate(outcome)?;
    }
    sink.finish()
}

/// Writes one file. Data is lent from the cache, and holes are not read.
fn copy(file: &File, size: u64, target: &Target, sink: &mut Sink) -> Result<()> {
    let failure = |error| target.failure(&target.path, &error);
    let mut at = 0;
    while at < size {
        let data = match file.seek_data(FileOffset(at)) {
            Ok(data) => data.0,
            Err(base::Error::NoSuchOffset) => size,
            Err(error) => return Err(failure(error)),
        };
        sink.write_zeroes(data.saturating_sub(at))?;
        if data >= size {
            break;
        }
        let hole = file.seek_hole(FileOffset(data)).map_err(failure)?.0.min(size);
        at = data;
        while at < hole {
            let length = usize::try_from(hole - at).unwrap_or(usize::MAX).min(SLICE_BYTES_MAX);
            let slice = file.lend(FileOffset(at), length).map_err(|error| {
                Failure::action(target, &format!("cannot read from byte {at} on"), &error)
            })?;
            if slice.is_empty() {
                return Err(Failure::new(target, "the file ends before its recorded size"));
            }
            sink.write_data(&slice)?;
            at += slice.len() as u64;
        }
    }
    Ok(())
}

/// Unbuffered standard output, by its own descriptor: a confined process cannot duplicate that.
struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    fn position() -> io::Result<u64> {
        Ok(rustix::fs::tell(rustix::stdio::stdout())?)
    }

    fn set_position(at: u64) -> io::Result<()> {
        rustix::fs::seek(rustix::stdio::stdout(), SeekFrom::Start(at))?;
        Ok(())
    }
}

/// Standard output. If it is a regular file, holes stay holes.
struct Sink {
    output: Output,
    /// Whether holes can be skipped, because the output is a file that is written at its end.
    can_skip: bool,
    /// The number of zeroes that were skipped at the end of the file.
    skipped: u64,
}

impl Sink {
    fn standard_output() -> Self {
        Self { output: Output, can_skip: is_written_at_end(), skipped: 0 }
    }

    fn write_data(&mut self, bytes: &[u8]) -> Result<()> {
        self.extend()?;
        self.output.write_all(bytes).map_err(|error| Failure::output(&error, Status::Failed))
    }

    fn write_zeroes(&mut self, mut count: u64) -> Result<()> {
        static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];
        if self.can_skip {
            self.skipped += count;
            return Ok(());
        }
        while count > 0 {
            let length = count.min(ZEROES.len() as u64);
            let zeroes = ZEROES.get(..length as usize).unwrap_or(&ZEROES);
            self.output
                .write_all(zeroes)
                .map_err(|error| Failure::output(&error, Status::Failed))?;
            count -= length;
        }
        Ok(())
    }

    /// Extends the file by the skipped bytes.
    fn extend(&mut self) -> Result<()> {
        if self.skipped == 0 {
            return Ok(());
        }
        let skipped = std::mem::take(&mut self.skipped);
        let extend = || {
            let end = Output::position()?.checked_add(skipped);
            Output::set_position(end.ok_or(io::ErrorKind::FileTooLarge)?)
        };
        extend().map_err(|error| Failure::output(&error, Status::Failed))
    }

    /// Writes the last zero, if zeroes were skipped at the end. The confined process cannot
    /// truncate files, since other programs may write to the output, too.
    fn finish(mut self) -> Result<()> {
        if self.skipped == 0 {
            return Ok(());
        }
        self.skipped -= 1;
        self.write_data(&[0])
    }
}

/// Returns the size of standard output, if it is a regular file. The confined process may not call
/// what the standard library calls for it.
fn size_of_regular() -> io::Result<Option<u64>> {
    let stat = rustix::fs::fstat(rustix::stdio::stdout())?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_regular.then_some(u64::try_from(stat.st_size).unwrap_or(0)))
}

/// Returns whether standard output is a regular file that is written at its end and not opened for
/// appending. If such a file is extended, the new bytes are zero.
fn is_written_at_end() -> bool {
    let is_at_end = || {
        let size = size_of_regular()?;
        Ok::<_, io::Error>(size.is_some() && Some(Output::position()?) == size)
    };
    let appends = rustix::fs::fcntl_getfl(rustix::stdio::stdout())
        .map_or(true, |flags| flags.contains(rustix::fs::OFlags::APPEND));
    !appends && is_at_end().unwrap_or(false)
}
