//! A run of zeroed memory that is reserved as a whole and takes up room only where it was touched.
//! Not here: what lies in it.

use std::ptr::NonNull;

use base::{Error, Result};

/// The size and alignment of a huge page, in bytes.
const HUGE: usize = 2 << 20;

/// Owns the memory.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
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
        Ok(Self { start: mapped.aligned(), mapped })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
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
}

#[cfg(not(miri))]
impl Mapped {
    fn new(length: usize) -> Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

        let whole_huge_pages = length / HUGE * HUGE;
        let length = length.checked_add(HUGE).ok_or(Error::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        let start = start.ok().and_then(|start| NonNull::new(start.cast::<u8>()));
        let start = start.ok_or(Error::OutOfMemory)?;
        let mapped = Self { start, length };
        // Not the rest: a huge page there would be more memory than asked for.
        let aligned = mapped.aligned().as_ptr().cast();
        // SAFETY: the range lies within the mapping just made. A host without huge pages refuses;
        // the memory is as good.
        let _ = unsafe { madvise(aligned, whole_huge_pages, Advice::LinuxHugepage) };
        Ok(mapped)
    }

    fn aligned(&self) -> NonNull<u8> {
        let offset = self.start.as_ptr().align_offset(HUGE);
        // SAFETY: the mapping has HUGE bytes more than asked for, and the offset is less than that.
        unsafe { self.start.add(offset) }
    }

    fn unmap(&mut self) {
        // SAFETY: the mapping is ours, and its owner is being dropped.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
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

    fn unmap(&mut self) {
        // SAFETY: the memory is from `alloc_zeroed` with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
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
}
