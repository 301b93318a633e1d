//! Regions of zeroed memory. Their address space is reserved as a whole; only pages that were
//! touched take up memory. Parts can be replaced by memory of files, at the same addresses. Not
//! here: the contents.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use base::{Error, Result};
#[cfg(not(miri))]
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};

/// The size and alignment of a huge page, in bytes.
const HUGE: usize = 2 << 20;

/// A region. Owns its memory.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    length: usize,
    mapped: HostMapping,
}

// SAFETY: a region is memory and its address. The users of the memory are responsible for sharing
// it correctly.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region of `length` zero bytes, aligned to 2 MiB, and backed by huge pages where
    /// the host has them.
    pub(crate) fn new(length: usize) -> Result<Self> {
        let mapped = HostMapping::new(length.max(1))?;
        Ok(Self { start: mapped.aligned(), length, mapped })
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Replaces `part`, whole pages, by the memory of `file` from its byte `offset` on. The former
    /// contents are lost.
    ///
    /// # Safety
    /// No other thread uses the part during the call. Later users take into account who else maps
    /// the file's memory.
    pub(crate) unsafe fn replace_by_file(
        &self,
        part: Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.mapped.replace(self.at(&part), part.len(), Source::File(file, offset)) }
    }

    /// Replaces `part`, whole pages, by the memory of a file from a byte offset on, or by anonymous
    /// memory if `file` is `None`. Copies the contents, so concurrent readers do not notice.
    ///
    /// # Safety
    /// No thread writes to the part during the call. Later users take into account who else maps
    /// the file's memory.
    pub(crate) unsafe fn move_to(
        &self,
        part: Range<usize>,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<()> {
        let source = file.map_or(Source::Zeroes, |(file, offset)| Source::File(file, offset));
        // SAFETY: the caller's promise is the same.
        unsafe { self.mapped.replace_by_copy(self.at(&part), part.len(), source) }
    }

    /// Replaces `part`, whole pages, by zeroed anonymous memory.
    ///
    /// # Safety
    /// No other thread uses the part during the call.
    pub(crate) unsafe fn renew(&self, part: Range<usize>) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.mapped.replace(self.at(&part), part.len(), Source::Zeroes) }
    }

    fn at(&self, part: &Range<usize>) -> NonNull<u8> {
        assert!(part.start <= part.end && part.end <= self.length, "not in the region");
        // SAFETY: within the memory.
        unsafe { self.start.add(part.start) }
    }
}

/// The source of memory.
#[derive(Clone, Copy)]
enum Source<'f> {
    /// Anonymous memory.
    Zeroes,
    /// A file's memory from a byte offset on, shared with all others that map it.
    #[cfg_attr(miri, allow(dead_code, reason = "Miri maps no files"))]
    File(BorrowedFd<'f>, u64),
}

impl Drop for Region {
    fn drop(&mut self) {
        self.mapped.unmap();
    }
}

/// The memory as the host returned it, with room for alignment.
#[derive(Debug)]
#[cfg(not(miri))]
struct HostMapping {
    start: NonNull<u8>,
    length: usize,
    /// The number of bytes, from the first aligned one on, that the host was advised to back with
    /// huge pages.
    advised: usize,
}

#[cfg(not(miri))]
impl HostMapping {
    fn new(length: usize) -> Result<Self> {
        let whole_huge_pages = length / HUGE * HUGE;
        let length = length.checked_add(HUGE).ok_or(Error::OutOfMemory)?;
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start =
            unsafe { map(std::ptr::null_mut(), length, Source::Zeroes, MapFlags::empty())? };
        let mapped = Self { start, length, advised: whole_huge_pages };
        // Not for the rest: a huge page there would take more memory than requested.
        mapped.advise(mapped.aligned(), whole_huge_pages);
        Ok(mapped)
    }

    /// Advises the host to use huge pages. Ignores errors: a host without huge pages refuses, and
    /// the memory works without them.
    fn advise(&self, start: NonNull<u8>, length: usize) {
        // SAFETY: advice changes no contents.
        let _ = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage) };
    }

    /// [Advises](Self::advise) the host for the new memory at `start`, which replaces the memory at
    /// `at`, if that was advised. The host can merge only mappings with the same advice.
    fn advise_again(&self, at: NonNull<u8>, start: NonNull<u8>, length: usize) {
        if at.as_ptr() as usize + length <= self.aligned().as_ptr() as usize + self.advised {
            self.advise(start, length);
        }
    }

    /// Replaces a range by memory of `source`.
    ///
    /// # Safety
    /// The range is within this mapping, and no other thread uses it during the call.
    unsafe fn replace(&self, at: NonNull<u8>, length: usize, source: Source<'_>) -> Result<()> {
        // SAFETY: by the caller's promise. The kernel replaces the mapping atomically.
        unsafe { map(at.as_ptr(), length, source, MapFlags::FIXED)? };
        if let Source::Zeroes = source {
            self.advise_again(at, at, length);
        }
        Ok(())
    }

    /// Replaces a range by memory of `source` with the same contents.
    ///
    /// # Safety
    /// The range is within this mapping, and no thread writes to it during the call.
    unsafe fn replace_by_copy(
        &self,
        at: NonNull<u8>,
        length: usize,
        source: Source<'_>,
    ) -> Result<()> {
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let copy = unsafe { map(std::ptr::null_mut(), length, source, MapFlags::empty())? };
        if let Source::Zeroes = source {
            self.advise_again(at, copy, length);
        }
        // SAFETY: no other thread knows the new mapping yet. The old one has as many bytes, and no
        // thread changes them. Then the kernel moves the copy to its address atomically.
        unsafe {
            copy.copy_from_nonoverlapping(at, length);
            let (copy, at) = (copy.as_ptr().cast(), at.as_ptr().cast());
            mremap_fixed(copy, length, length, MremapFlags::MAYMOVE, at).map_err(|_| {
                let unmapped = munmap(copy, length);
                debug_assert_eq!(unmapped, Ok(()));
                Error::OutOfMemory
            })?;
        }
        Ok(())
    }

    fn aligned(&self) -> NonNull<u8> {
        let offset = self.start.as_ptr().align_offset(HUGE);
        // SAFETY: the mapping has HUGE bytes more than requested, and the offset is less than that.
        unsafe { self.start.add(offset) }
    }

    fn unmap(&mut self) {
        // SAFETY: this value owns the mapping, and its owner is being dropped.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Maps `length` readable and writable bytes, at `at` if `flags` contains `FIXED`.
///
/// # Safety
/// As for `mmap`.
#[cfg(not(miri))]
unsafe fn map(
    at: *mut u8,
    length: usize,
    source: Source<'_>,
    flags: MapFlags,
) -> Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = flags | MapFlags::NORESERVE;
    // SAFETY: the caller's promise is the same.
    let start = unsafe {
        match source {
            Source::Zeroes => mmap_anonymous(at.cast(), length, access, flags | MapFlags::PRIVATE),
            Source::File(file, offset) => {
                let flags = flags | MapFlags::SHARED | MapFlags::POPULATE;
                mmap(at.cast(), length, access, flags, file, offset)
            }
        }
    };
    start.ok().and_then(|start| NonNull::new(start.cast())).ok_or(Error::OutOfMemory)
}

/// Ordinary memory: Miri does not support memory mappings.
#[derive(Debug)]
#[cfg(miri)]
struct HostMapping {
    start: NonNull<u8>,
    layout: std::alloc::Layout,
}

#[cfg(miri)]
impl HostMapping {
    fn new(length: usize) -> Result<Self> {
        let layout = std::alloc::Layout::from_size_align(length, HUGE);
        let layout = layout.map_err(|_| Error::OutOfMemory)?;
        // SAFETY: the length is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        Ok(Self { start: start.ok_or(Error::OutOfMemory)?, layout })
    }

    fn aligned(&self) -> NonNull<u8> {
        self.start
    }

    unsafe fn replace(&self, _: NonNull<u8>, _: usize, _: Source<'_>) -> Result<()> {
        Err(Error::OutOfMemory)
    }

    unsafe fn replace_by_copy(&self, _: NonNull<u8>, _: usize, _: Source<'_>) -> Result<()> {
        Err(Error::OutOfMemory)
    }

    fn unmap(&mut self) {
        // SAFETY: the memory is from `alloc_zeroed` with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_region_is_aligned_and_zero() {
        let length = 5 << 12;
        let region = Region::new(length).expect("memory");
        assert_eq!(region.start().as_ptr().align_offset(HUGE), 0);
        // SAFETY: the region has so many bytes, and no other thread uses them.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.start().as_ptr(), length) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        bytes.fill(1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support memory mappings")]
    fn parts_become_a_files_memory_and_anonymous_memory_again_at_the_same_addresses() {
        let region = Region::new(4 << 12).expect("memory");
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        let part = 1 << 12..3 << 12;
        let byte = |at: usize| {
            // SAFETY: in the region, which only this thread uses.
            unsafe { region.start().add(at) }
        };
        let in_file = |offset: u64| {
            let mut found = [0];
            rustix::io::pread(&file, &mut found, offset).unwrap();
            found[0]
        };
        // SAFETY: only this thread uses the region and the file.
        unsafe {
            byte(part.start + 5).write(7);
            region.move_to(part.clone(), Some((file.as_fd(), 8 << 12))).unwrap();
            assert_eq!((byte(part.start + 5).read(), in_file((8 << 12) + 5)), (7, 7));
            byte(part.start + 5).write(8);
            assert_eq!(in_file((8 << 12) + 5), 8);
            region.move_to(part.clone(), None).unwrap();
            byte(part.start + 5).write(9);
            assert_eq!((byte(part.start + 5).read(), in_file((8 << 12) + 5)), (9, 8));
            region.replace_by_file(part.clone(), file.as_fd(), 8 << 12).unwrap();
            assert_eq!(byte(part.start + 5).read(), 8);
            region.renew(part.clone()).unwrap();
            assert_eq!((byte(part.start + 5).read(), in_file((8 << 12) + 5)), (0, 8));
        }
    }
}
