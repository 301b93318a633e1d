//! A run of zeroed memory that is reserved as a whole and takes up room only where it was touched.
//! Parts of it can be taken from somewhere else, at the same addresses.
//! Not here: what lies in it.

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

/// Owns the memory.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    length: usize,
    mapped: Mapped,
}

// SAFETY: a region is memory and its address; those who use the memory answer for how they share it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `length` zero bytes, aligned to 2 MiB, and backed by huge pages where the host has them.
    pub(crate) fn new(length: usize) -> Result<Self> {
        let mapped = Mapped::new(length.max(1))?;
        Ok(Self { start: mapped.aligned(), length, mapped })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Has `part`, whole pages, be memory of `file` from its byte `offset` on; what was in it is gone.
    ///
    /// # Safety
    /// Nobody else uses the part meanwhile, and whoever uses it afterwards knows who else has that
    /// memory.
    pub(crate) unsafe fn take_from(
        &self,
        part: Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.mapped.replace(self.at(&part), part.len(), Source::File(file, offset)) }
    }

    /// Has `part`, whole pages, be memory of `file` from its byte `offset` on, or memory of its own,
    /// with the same bytes in it: who reads them does not notice.
    ///
    /// # Safety
    /// Nobody writes to the part meanwhile, and whoever uses it afterwards knows who else has that
    /// memory.
    pub(crate) unsafe fn move_to(
        &self,
        part: Range<usize>,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<()> {
        let source = file.map_or(Source::Zeroes, |(file, offset)| Source::File(file, offset));
        // SAFETY: the caller's promise is the same.
        unsafe { self.mapped.replace_by_copy(self.at(&part), part.len(), source) }
    }

    /// Has `part`, whole pages, be zeroed memory of its own.
    ///
    /// # Safety
    /// Nobody else uses the part meanwhile.
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

/// Where memory is from.
#[derive(Clone, Copy)]
enum Source<'f> {
    Zeroes,
    /// From a byte of a file on, shared with all who have it mapped.
    File(BorrowedFd<'f>, u64),
}

impl Drop for Region {
    fn drop(&mut self) {
        self.mapped.unmap();
    }
}

/// The memory as it came from the host: with room to align within it.
#[derive(Debug)]
#[cfg(not(miri))]
struct Mapped {
    start: NonNull<u8>,
    length: usize,
    /// How many of the aligned bytes the host was advised to use huge pages for.
    advised: usize,
}

#[cfg(not(miri))]
impl Mapped {
    fn new(length: usize) -> Result<Self> {
        let whole_huge_pages = length / HUGE * HUGE;
        let length = length.checked_add(HUGE).ok_or(Error::OutOfMemory)?;
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start =
            unsafe { map(std::ptr::null_mut(), length, Source::Zeroes, MapFlags::empty())? };
        let mapped = Self { start, length, advised: whole_huge_pages };
        // Not the rest: a huge page there would be more memory than asked for.
        mapped.advise(mapped.aligned(), whole_huge_pages);
        Ok(mapped)
    }

    /// Has the host use huge pages for memory of this mapping. A host without any refuses; the memory
    /// is as good.
    fn advise(&self, start: NonNull<u8>, length: usize) {
        // SAFETY: advice changes no contents.
        let _ = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage) };
    }

    /// [`advise`](Self::advise) for what lies at `at`, as it was before it was replaced, so that the
    /// host can join it with its neighbours again.
    fn advise_again(&self, at: NonNull<u8>, start: NonNull<u8>, length: usize) {
        if at.as_ptr() as usize + length <= self.aligned().as_ptr() as usize + self.advised {
            self.advise(start, length);
        }
    }

    /// # Safety
    /// The range lies in this mapping, and nobody uses it meanwhile.
    unsafe fn replace(&self, at: NonNull<u8>, length: usize, source: Source<'_>) -> Result<()> {
        // SAFETY: by the caller's promise. The kernel replaces in one step.
        unsafe { map(at.as_ptr(), length, source, MapFlags::FIXED)? };
        if let Source::Zeroes = source {
            self.advise_again(at, at, length);
        }
        Ok(())
    }

    /// # Safety
    /// The range lies in this mapping, and nobody writes to it meanwhile.
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
        // SAFETY: the new mapping is nobody else's yet; the old one has as many bytes, which nobody
        // changes. Then the kernel puts the copy in its place in one step.
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
        // SAFETY: the mapping has HUGE bytes more than asked for, and the offset is less than that.
        unsafe { self.start.add(offset) }
    }

    fn unmap(&mut self) {
        // SAFETY: the mapping is ours, and its owner is being dropped.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Maps `length` bytes to read and write, at `at` if the flags say so.
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

/// Miri knows no memory mappings.
#[derive(Debug)]
#[cfg(miri)]
struct Mapped {
    start: NonNull<u8>,
    layout: std::alloc::Layout,
}

#[cfg(miri)]
impl Mapped {
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
        // SAFETY: the region has that many bytes, and nobody else uses them.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.start().as_ptr(), length) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        bytes.fill(1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no memory mappings")]
    fn parts_are_a_files_memory_and_their_own_again_where_they_are() {
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
            region.take_from(part.clone(), file.as_fd(), 8 << 12).unwrap();
            assert_eq!(byte(part.start + 5).read(), 8);
            region.renew(part.clone()).unwrap();
            assert_eq!((byte(part.start + 5).read(), in_file((8 << 12) + 5)), (0, 8));
        }
    }
}
