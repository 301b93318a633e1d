//! Moving a file's data to the blocks of another file, as EXT4_IOC_MOVE_EXT does. Not here: which blocks
//! are better (`defragment.rs`), and how maps change (the format).

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, Result};

use crate::file::File;
use crate::locked::Locked;
use crate::node::Node;
use crate::rights::{self, SETGID, SETUID};

/// What is moved at once: both files are locked meanwhile.
const PART_BYTES: u64 = 8 << 20;

impl File {
    /// Exchanges blocks that this file has from byte `at` on for those that `donor`, another file of the
    /// volume, has from byte `donor_at` on; both opened for writing. Nobody who reads this file sees a
    /// difference: its data is copied. What `donor` has there is lost, and reads as zeroes. Blocks that
    /// have no data yet are exchanged, too, and have none afterwards; where one of the files has a hole,
    /// both stay as they are.
    ///
    /// `length` bytes of both files are looked at, or as many as both have: whole blocks, with the one
    /// that a file ends in. Gives how many bytes have moved. What has, is durable; an error leaves a part
    /// of it undone.
    ///
    /// `InvalidArgument` for offsets that are not whole [units](Self::allocation_unit) or lie past a
    /// file's end, for one file given twice, and for a donor with setuid or setgid; `NotPermitted` for
    /// immutable and append-only files; `NoSpace` where the maps find no room; `Unsupported` for files
    /// whose blocks cannot be exchanged.
    pub fn move_extents(
        &self,
        at: FileOffset,
        donor: &Self,
        donor_at: FileOffset,
        length: u64,
    ) -> Result<u64> {
        if !self.mode().write || !donor.mode().write {
            return Err(Error::InvalidArgument("blocks of files that were not opened for writing"));
        }
        let (mut seen, mut moved) = (0, 0);
        while seen < length {
            let part = (length - seen).min(PART_BYTES);
            let [at, donor_at] = [at, donor_at].map(|at| at.checked_add(seen));
            let (at, donor_at) = at.zip(donor_at).ok_or(Error::FileTooLarge)?;
            match self.node().move_part(at, donor.node(), donor_at, part)? {
                Some(bytes) => moved += bytes,
                // The first part tells what is wrong with the offsets.
                None if seen == 0 => {
                    return Err(Error::InvalidArgument("blocks past the end of a file"));
                }
                None => break,
            }
            seen += part;
        }
        Ok(moved)
    }
}

impl Node {
    /// Moves what there is of `length` bytes; `None` where one of the files has ended.
    fn move_part(
        self: &Arc<Self>,
        at: FileOffset,
        donor: &Arc<Self>,
        donor_at: FileOffset,
        length: u64,
    ) -> Result<Option<u64>> {
        if !Arc::ptr_eq(self.volume(), donor.volume()) || Arc::ptr_eq(self, donor) {
            return Err(Error::InvalidArgument("blocks are exchanged by two files of a volume"));
        }
        if [self, donor].iter().any(|node| node.kind() != FileType::Regular) {
            return Err(Error::InvalidArgument("only regular files exchange blocks"));
        }
        self.writeback()?;
        self.volume().file_system.check_writable()?;
        let (Some(file), Some(donor_file)) = (self.writable()?, donor.writable()?) else {
            return Err(Error::ReadOnly);
        };
        let _locked = Locked::new([Some(self), Some(donor)]);
        rights::may_overwrite(&self.attributes())?;
        rights::may_overwrite(&donor.attributes())?;
        if donor.attributes().permissions & (SETUID | SETGID) != 0 {
            return Err(Error::InvalidArgument("a donor with setuid or setgid"));
        }
        let unit = self.inode().allocation_unit();
        let in_file = |at: FileOffset, size: u64| {
            size.checked_next_multiple_of(unit)
                .unwrap_or(u64::MAX / unit * unit)
                .saturating_sub(at.0)
        };
        if at.0 % unit != 0 || donor_at.0 % unit != 0 {
            return Err(Error::InvalidArgument("offsets that are not multiples of a block"));
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
