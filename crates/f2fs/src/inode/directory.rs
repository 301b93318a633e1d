//! Directories of a volume: lookup and listing, through the inode's map.
//! Not here: the entries (`dir`).

use std::ops::ControlFlow;

use base::attributes::{DirCursor, DirEntry};
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Result};
use fscrypt::ShownNames;
use iomap::MetadataBuffer;

use super::Inode;
use super::map::BlockState;
use super::record::flags;
use crate::dir::{
    Blocks, Casefold, Directory, DirectoryShape, EntryName, Found, InlineDirectory, WantedName,
};

impl Inode {
    /// Returns the inode of a name that [`read_dir`](Self::read_dir) shows in this directory.
    /// Errors: `NotFound`, `NotDirectory`.
    pub fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let found = self.find(&self.wanted_name(name)?)?;
        found.map(|found| found.inode).ok_or(Error::NotFound)
    }

    /// Returns the entry of a name in this directory. Errors: `NotDirectory`.
    pub(crate) fn find(&self, wanted: &WantedName<'_>) -> Result<Option<Found>> {
        let shape = self.directory_shape()?;
        match self.inline_contents()? {
            Some(area) => InlineDirectory::new(&shape, &area, self.location()).lookup(wanted),
            None => Directory::new(&shape, self).lookup(wanted),
        }
    }

    /// Returns the name that [`read_dir`](Self::read_dir) shows as `name`, for lookups in this
    /// directory. Errors: `NotDirectory`, and those of [`WantedName`].
    pub(crate) fn wanted_name<'n>(&'n self, name: &'n [u8]) -> Result<WantedName<'n>> {
        let shape = self.directory_shape()?;
        match shape.encrypted {
            true => WantedName::encrypted(name, self.names_cipher()?, &shape),
            false => WantedName::new(name, &shape),
        }
    }

    /// Returns what a new name is stored as in this directory. Errors: `NotDirectory`;
    /// `Unsupported` for encrypted directories without the key; `NameTooLong`; those of
    /// [`WantedName`].
    pub(crate) fn entry_name<'n>(&self, name: &'n [u8]) -> Result<EntryName<'n>> {
        let shape = self.directory_shape()?;
        self.check_has_key()?;
        let names = if shape.encrypted { self.names_cipher()? } else { None };
        EntryName::new(name, names, &shape)
    }

    /// Calls `emit` for each entry from `from` on, until it breaks or the directory ends. Encrypted
    /// names are decrypted, or without the key, shown in another form. Errors: `NotDirectory`.
    pub fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let shape = self.directory_shape()?;
        let shown = match shape.encrypted {
            true => ShownNames::encrypted(self.names_cipher()?),
            false => ShownNames::Plain,
        };
        match self.inline_contents()? {
            Some(area) => {
                InlineDirectory::new(&shape, &area, self.location()).read_dir(from, shown, emit)
            }
            None => Directory::new(&shape, self).read_dir(from, shown, emit),
        }
    }

    fn location(&self) -> Location {
        Location::inode(self.number())
    }

    /// Returns the properties of this directory. Errors: `NotDirectory`.
    pub(crate) fn directory_shape(&self) -> Result<DirectoryShape> {
        if !self.attributes().is_dir() {
            return Err(Error::NotDirectory);
        }
        let (volume, record) = (self.volume(), self.record());
        let geometry = volume.geometry();
        let encoding = volume.superblock().encoding;
        let casefold = encoding.filter(|_| record.has_flag(flags::CASEFOLDED));
        Ok(DirectoryShape {
            inode: self.number(),
            inode_max: InodeNumber(geometry.nid_count().saturating_sub(1)),
            block_size: geometry.block_size,
            block_count: geometry.block_size.blocks_for(self.attributes().size),
            depth: record.depth,
            dir_level: record.dir_level,
            casefold: casefold.map(|encoding| Casefold {
                strict: encoding.is_strict,
                linear_fallback: !encoding.is_hash_only,
            }),
            encrypted: record.is_encrypted,
        })
    }
}

impl Inode {
    /// Returns a block that is not in the page cache: one of a directory, or of a symbolic link.
    /// `None` if it is a hole.
    pub(super) fn uncached_block(
        &self,
        at: FileBlock,
        structure: &'static str,
    ) -> Result<Option<MetadataBuffer>> {
        let changed = || {
            let overlay = self.volume().overlay()?.read();
            let contents = overlay.directory_block(self.number(), at)?.clone();
            Some(MetadataBuffer::with_contents(FsBlock(0), contents))
        };
        self.volume().read_stably(|| {
            if let Some(buffer) = changed() {
                return Ok(Some(buffer));
            }
            let BlockState::Mapped(block) = self.piece_at(at, FileBlock(at.0 + 1))?.state else {
                return Ok(None);
            };
            // A checkpoint sets the addresses of changed blocks before it writes them.
            if let Some(buffer) = changed() {
                return Ok(Some(buffer));
            }
            let location = Location::inode(self.number()).at_file_block(at);
            self.volume().metadata().read(block, structure, location).map(Some)
        })
    }
}

impl Blocks for Inode {
    type Bytes = MetadataBuffer;

    fn block(&self, at: FileBlock) -> Result<Option<(MetadataBuffer, FsBlock)>> {
        let found = self.uncached_block(at, "directory block")?;
        Ok(found.map(|buffer| {
            let block = buffer.block();
            (buffer, block)
        }))
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        let end = self.volume().geometry().block_size.blocks_for(self.attributes().size);
        self.volume().read_stably(|| {
            let mut at = from;
            while at.0 < end {
                let piece = self.piece_at(at, FileBlock(end))?;
                #[cfg(test)]
                tests::between_lookups();
                match piece.state {
                    BlockState::Mapped(_) => return Ok(Some(at)),
                    // New blocks are in memory only.
                    BlockState::Reserved if self.volume().overlay().is_some() => {
                        let overlay = self.volume().overlay_or_new().read();
                        let is_here = |at: &u64| {
                            overlay.directory_block(self.number(), FileBlock(*at)).is_some()
                        };
                        if let Some(at) = (at.0..piece.end.0.min(end)).find(is_here) {
                            return Ok(Some(FileBlock(at)));
                        }
                    }
                    _ => {}
                }
                at = piece.end;
            }
            Ok(None)
        })
    }

    fn count_max(&self) -> u64 {
        let main = &self.volume().geometry().main;
        main.end.0 - main.start.0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use base::BlockSize;
    use base::attributes::{DeviceNumber, FileType, Timestamp};
    use device::{MemoryDevice, SharedDevice};
    use fs::{Format as _, FormatOptions, NewInode};
    use iomap::{CacheOptions, PageCache};
    use testkit::f2fs::make::{MakeOptions, make_file};

    use super::*;
    use crate::Format;

    /// The number of names, which take several blocks.
    const NAMES: usize = 1000;

    thread_local! {
        /// What the thread does once, between its next two lookups of a block.
        static BETWEEN_LOOKUPS: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    /// Called between the lookup of a block in the map, and that of its contents in memory.
    pub(super) fn between_lookups() {
        let action = BETWEEN_LOOKUPS.with_borrow_mut(Option::take);
        if let Some(action) = action {
            action();
        }
    }

    #[test]
    fn a_listing_shows_new_blocks_that_a_checkpoint_writes_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let block_size = BlockSize::from_bytes(4096).unwrap();
        make_file(&image, &MakeOptions::new(block_size, 64 << 20));
        let device: SharedDevice = Arc::new(MemoryDevice::new(std::fs::read(&image).unwrap()));
        let cache = PageCache::new(CacheOptions { bytes_max: 16 << 20, ..CacheOptions::default() });
        let options = FormatOptions { writable: true, ..FormatOptions::default() };
        let volume = Format::default().open(&device, &cache.unwrap(), &options).unwrap();
        let root = volume.load_inode(volume.root()).unwrap();
        let time = Timestamp { seconds: 1, nanoseconds: 0 };
        let new = |kind| NewInode {
            kind,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            device: DeviceNumber { major: 0, minor: 0 },
            target: b"",
            xattrs: &[],
            time,
            created: time,
        };
        let directory = root.create(b"directory", &new(FileType::Directory)).unwrap();
        for name in 0..NAMES {
            directory.create(format!("name{name}").as_bytes(), &new(FileType::Regular)).unwrap();
        }
        let names = || {
            let mut names = 0;
            let mut count = |_: DirEntry<'_>| {
                names += 1;
                ControlFlow::Continue(())
            };
            directory.read_dir(DirCursor::default(), &mut count).unwrap();
            names
        };
        let all = names();
        assert!(all >= NAMES);
        let syncing = Arc::clone(&volume);
        let sync = Box::new(move || syncing.sync().unwrap());
        BETWEEN_LOOKUPS.with_borrow_mut(|action| *action = Some(sync));
        assert_eq!(names(), all);
        assert!(BETWEEN_LOOKUPS.with_borrow(Option::is_none), "the checkpoint was not written");
        volume.close().unwrap();
    }
}
