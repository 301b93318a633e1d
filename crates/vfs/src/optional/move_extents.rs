//! Exchange of blocks between two files, as by EXT4_IOC_MOVE_EXT. Not here: the choice of blocks
//! (`defragment.rs`), and changes of maps (the format).

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, Result};

use crate::file::File;
use crate::node::Node;
use crate::node::locked::Locked;
use crate::node::rights::{self, SETGID, SETUID};

/// The maximum number of bytes that are moved while both files stay locked.
const PART_BYTES: u64 = 8 << 20;

impl File {
    /// Exchanges the blocks of this file from byte `at` on with those of `donor`, another file of
    /// the volume, from byte `donor_at` on. Both files are open for writing. Readers of this file
    /// see no difference, since its data is copied. The data of `donor` in the range is lost, and
    /// reads as zeroes. Unwritten blocks are exchanged, too, and stay unwritten. Where one of the
    /// files has a hole, both files keep their blocks.
    ///
    /// Examines `length` bytes of both files, or fewer if one of them ends before, in whole blocks.
    /// Returns the number of bytes whose move is durable. After an error, a part may be moved.
    ///
    /// Errors: `InvalidArgument` for offsets that are not whole [units](Self::allocation_unit) or
    /// past a file's end, for one file given twice, and for a donor with the setuid or setgid bit;
    /// `NotOpenFor` for files not opened for writing; `NotPermitted` for immutable and append-only
    /// files; `NoSpace` if the maps cannot grow; `Unsupported` for files whose blocks cannot be
    /// exchanged.
    pub fn move_extents(
        &self,
        at: FileOffset,
        donor: &Self,
        donor_at: FileOffset,
        length: u64,
    ) -> Result<u64> {
        self.require_writing()?;
        donor.require_writing()?;
        let mut examined = 0;
        let mut moved = 0;
        while examined < length {
            let part = (length - examined).min(PART_BYTES);
            let [at, donor_at] = [at, donor_at].map(|at| at.checked_add(examined));
            let (at, donor_at) = at.zip(donor_at).ok_or(Error::FileTooLarge)?;
            match self.node().move_part(at, donor.node(), donor_at, part)? {
                Some(bytes) => moved += bytes,
                None if examined == 0 => {
                    return Err(Error::InvalidArgument("a range past the end of a file"));
                }
                None => break,
            }
            examined += part;
        }
        Ok(moved)
    }
}

impl Node {
    /// Moves up to `length` bytes. Returns `None` if one of the files has ended.
    fn move_part(
        self: &Arc<Self>,
        at: FileOffset,
        donor: &Arc<Self>,
        donor_at: FileOffset,
        length: u64,
    ) -> Result<Option<u64>> {
        if !Arc::ptr_eq(self.volume(), donor.volume()) || Arc::ptr_eq(self, donor) {
            return Err(Error::InvalidArgument("the files are the same, or on different volumes"));
        }
        if [self, donor].iter().any(|node| node.kind() != FileType::Regular) {
            return Err(Error::InvalidArgument("not a regular file"));
        }
        self.writeback()?;
        self.volume().begin_change()?;
        let (Some(file), Some(donor_file)) = (self.writable()?, donor.writable()?) else {
            return Err(Error::ReadOnly);
        };
        let mut locked = Locked::new([Some(self), Some(donor)]);
        // The volume may have been closed before the locks were taken.
        self.writeback()?;
        for node in [self, donor] {
            locked.state(node).atomic.check_none()?;
        }
        rights::may_overwrite(&self.attributes())?;
        rights::may_overwrite(&donor.attributes())?;
        if donor.attributes().permissions & (SETUID | SETGID) != 0 {
            return Err(Error::InvalidArgument("the donor has the setuid or setgid bit"));
        }
        let unit = self.inode().allocation_unit();
        let in_file = |at: FileOffset, size: u64| {
            size.checked_next_multiple_of(unit)
                .unwrap_or(u64::MAX / unit * unit)
                .saturating_sub(at.0)
        };
        if at.0 % unit != 0 || donor_at.0 % unit != 0 {
            return Err(Error::InvalidArgument("an offset is not a multiple of the block size"));
        }
        let length = length.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        let length = length.min(in_file(at, file.size())).min(in_file(donor_at, donor_file.size()));
        if length == 0 {
            return Ok(None);
        }
        let range = at..FileOffset(at.0 + length);
        iomap::quiesce_cache(file, range.start.0..range.end.0);
        iomap::detach_cache(donor_file, donor_at.0);
        self.inode()
            .move_extents(range, &**donor.inode(), donor_at, &mut |range, to| {
                iomap::copy_out(file, range, to)
            })
            .map(Some)
    }
}
