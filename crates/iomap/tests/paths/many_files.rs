//! Concurrent ends of I/O of many files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::format::Format;
use crate::support::gate::writable;
use crate::support::{block_size, cache, wait_until};
use base::{Error, FileOffset};
use iomap::{EndIo, PageCache, WritableFile, wait_for_writeback, write, write_back};

const BLOCK: u64 = 4096;

/// Files with a format and a device each, and one thread that completes their writes.
struct Files {
    cache: Arc<PageCache>,
    end_io: Arc<EndIo>,
    files: Vec<(Arc<Format>, Arc<WritableFile>)>,
}

impl Files {
    fn new(count: usize) -> Self {
        let (cache, end_io) = (cache(32 << 20, 0), EndIo::start().expect("a thread"));
        let mut files = Self { cache, end_io, files: Vec::new() };
        files.files = (0..count).map(|_| files.file()).collect();
        files
    }

    fn file(&self) -> (Arc<Format>, Arc<WritableFile>) {
        let format = Format::new(block_size(BLOCK), 4, 4);
        let (device, end_io) = (format.device(), Arc::clone(&self.end_io));
        let file = writable(&self.cache, &format, device, BLOCK, end_io);
        (format, file)
    }

    /// Keeps the end-of-I/O thread busy with another file while `during` runs.
    fn while_thread_is_busy(&self, during: impl FnOnce()) {
        let (format, file) = self.file();
        let paused = format.pause();
        dirty(&file, 0);
        write_back(&file, 0..BLOCK);
        wait_until("the thread completes a write", || format.waiting.load(Ordering::Relaxed) == 1);
        during();
        drop(paused);
        wait_for_writeback(&file, 0..u64::MAX);
    }

    fn under_writeback(&self) -> usize {
        let is_busy =
            |file: &WritableFile| file.mapping().next_under_writeback(0..u64::MAX).is_some();
        self.files.iter().filter(|(_, file)| is_busy(file)).count()
    }
}

fn dirty(file: &Arc<WritableFile>, block: u64) {
    assert_eq!(write(file, FileOffset(block * BLOCK), &[7; BLOCK as usize]), Ok(BLOCK as usize));
}

#[test]
fn a_submitter_completes_writes_itself_while_the_thread_is_busy() {
    let files = Files::new(3000);
    files.while_thread_is_busy(|| {
        for (_, file) in &files.files {
            dirty(file, 0);
            write_back(file, 0..u64::MAX);
        }
        let waiting = files.under_writeback();
        assert!((1..=1024).contains(&waiting), "{waiting} files wait for the thread");
    });
    for (format, file) in &files.files {
        wait_for_writeback(file, 0..u64::MAX);
        assert_eq!(format.size(), BLOCK);
    }
}

#[test]
fn ends_of_several_files_take_one_call_each_and_each_file_has_its_own_error() {
    let files = Files::new(60);
    let cursors: Vec<_> = files.files.iter().map(|(_, file)| file.errors().cursor()).collect();
    files.while_thread_is_busy(|| {
        // Block by block, so that the ends of one file are not adjacent in the queue.
        for block in 0..3 {
            for (number, (format, file)) in files.files.iter().enumerate() {
                dirty(file, block);
                match (number % 3, block) {
                    (0, 1) => format.fail(0, || Error::NoSpace),
                    (1, 0) => format.panics.store(true, Ordering::Relaxed),
                    _ => {}
                }
                write_back(file, 0..u64::MAX);
            }
        }
    });
    for (number, ((format, file), cursor)) in files.files.iter().zip(&cursors).enumerate() {
        wait_for_writeback(file, 0..u64::MAX);
        let error = file.errors().check(cursor);
        let calls = format.end_ios.load(Ordering::Relaxed);
        match number % 3 {
            0 => assert_eq!((error, calls), (Err(Error::NoSpace), 1), "file {number}"),
            1 => assert!(
                matches!(error, Err(Error::Lost(_))) && calls == 0,
                "file {number}: {error:?}"
            ),
            _ => assert_eq!((error, calls), (Ok(()), 1), "file {number}"),
        }
        let size = if number % 3 == 1 { 0 } else { 3 * BLOCK };
        assert_eq!(format.size(), size, "file {number}");
    }
}
