//! The combined effects of fast commits, in memory: the inode of each name, and the fields and
//! blocks of each inode. Not here: changing the volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Location, Problem, Result, Unsupported};
use fs::Run;

use super::image::InodeImage;
use super::names::{self, Names};
use super::ranges::MapChanges;
use super::{Change, existing_record};
use crate::dir::check_new_name;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::layout::geometry::{FILE_BLOCKS_MAX, Geometry};
use crate::volume::Volume;

/// The files that fast commits create, by the generations of their images. A number can be used
/// several times.
pub(super) struct Created(BTreeMap<InodeNumber, BTreeSet<u32>>);

impl Created {
    fn new(geometry: &Geometry, commits: &[Vec<Change>]) -> Self {
        let mut created: BTreeMap<InodeNumber, BTreeSet<u32>> = BTreeMap::new();
        for commit in commits {
            for change in commit {
                if let Change::Link { inode, created: true, .. } = change {
                    created.entry(*inode).or_default();
                }
            }
            for change in commit {
                let Change::Inode { inode, image } = change else { continue };
                let Some(generations) = created.get_mut(inode) else { continue };
                // Invalid images are ignored later, too.
                let image = InodeImage::parse(image, geometry, Location::inode(*inode));
                if let Ok(image) = image
                    && image.check(geometry, *inode).is_ok()
                {
                    generations.insert(image.generation);
                }
            }
        }
        Self(created)
    }

    /// Returns whether the fast commits create this file, which is on the volume already.
    pub(super) fn contains(&self, record: &InodeRecord) -> bool {
        let generations = self.0.get(&record.number);
        record.links > 0 && generations.is_some_and(|known| known.contains(&record.generation))
    }
}

/// An inode that fast commits change, or whose names they change.
pub(super) struct FileState {
    /// The inode on the volume before the fast commits, if it is in use.
    pub before: Option<InodeRecord>,
    /// Whether the inode is now another file than the one on the volume.
    pub is_new: bool,
    /// Whether the fast commits create the file on the volume: an interrupted replay has written
    /// its inode. The entries of its names may be missing, and so may its own entries if it is a
    /// directory.
    pub was_created: bool,
    /// The last image of the inode in a fast commit.
    pub image: Option<InodeImage>,
    /// The link count of the image, and the names that later fast commits add and remove.
    pub links: i64,
    /// The changes of its extent tree.
    pub map: MapChanges,
}

impl FileState {
    /// Returns the inode on the volume, if it is still the same file.
    pub(super) fn existing(&self) -> Option<&InodeRecord> {
        self.before.as_ref().filter(|_| !self.is_new)
    }

    /// Returns whether this is a directory whose names are all in the fast commits.
    pub(super) fn is_created_directory(&self) -> bool {
        self.kind() == Some(FileType::Directory) && (self.is_new || self.was_created)
    }

    /// Returns the inode on the volume, if its map is kept.
    pub(super) fn kept(&self) -> Option<&InodeRecord> {
        self.existing().filter(|_| !self.is_created_directory())
    }

    pub(super) fn kind(&self) -> Option<FileType> {
        match (&self.image, self.existing()) {
            (Some(image), _) => Some(image.kind),
            (None, existing) => existing.map(|record| record.kind),
        }
    }

    pub(super) fn flags(&self) -> InodeFlags {
        match (&self.image, self.existing()) {
            (Some(image), _) => {
                // The image that Linux logs does not show whether a directory now has an index. The
                // volume's flag does.
                let hashed = self.kept().map_or(0, |record| record.flags.0 & InodeFlags::INDEX.0);
                let flags = image.flags.0;
                if image.kind == FileType::Directory {
                    InodeFlags(flags & !InodeFlags::INDEX.0 | hashed)
                } else {
                    InodeFlags(flags)
                }
            }
            (None, existing) => existing.map(|record| record.flags).unwrap_or_default(),
        }
    }

    pub(super) fn generation(&self) -> Option<u32> {
        match (&self.image, self.existing()) {
            (Some(image), _) => Some(image.generation),
            (None, existing) => existing.map(|record| record.generation),
        }
    }

    pub(super) fn has_tree(&self) -> bool {
        self.flags().contains(InodeFlags::EXTENTS)
    }
}

/// The combined effects of fast commits on inodes and names.
pub(super) struct Outcome {
    pub volume: Arc<Volume>,
    pub files: BTreeMap<InodeNumber, FileState>,
    pub directories: BTreeMap<InodeNumber, Names>,
    /// The number of removals of names of each inode.
    pub removals: BTreeMap<InodeNumber, u64>,
    created: Created,
}

impl Outcome {
    /// Collects the effects of `commits` on `volume`.
    pub(super) fn collect(volume: Arc<Volume>, commits: &[Vec<Change>]) -> Result<Self> {
        let created = Created::new(volume.geometry(), commits);
        let directories = names::collect(&volume, &created, commits)?;
        let (files, removals) = (BTreeMap::new(), BTreeMap::new());
        let mut outcome = Self { volume, files, directories, removals, created };
        for commit in commits {
            outcome.add_commit(commit)?;
        }
        outcome.directories.values_mut().for_each(Names::finish);
        outcome.mark_new_types();
        outcome.load_named_inodes()?;
        Ok(outcome)
    }

    /// Returns the state of an inode. Loads it at the first call. Errors: `Corrupt` for a reserved,
    /// special or invalid number.
    fn file(&mut self, number: InodeNumber) -> Result<&mut FileState> {
        if !self.files.contains_key(&number) {
            let geometry = self.volume.geometry();
            if geometry.is_reserved_inode(number) {
                let (min, max) = (geometry.first_inode.into(), geometry.inode_count.into());
                let problem = Problem::Range { field: "inode", found: number.0, min, max };
                return Err(Error::corrupt("fast commit", Location::inode(number), problem));
            }
            self.volume.check_not_special("fast commit", number)?;
            let before = existing_record(&self.volume, number)?;
            let was_created = before.as_ref().is_some_and(|record| self.created.contains(record));
            let map = MapChanges::default();
            let state =
                FileState { before, is_new: false, was_created, image: None, links: 0, map };
            self.files.insert(number, state);
        }
        Ok(self.files.get_mut(&number).expect("it was present or has just been inserted"))
    }

    /// Adds the effects of one fast commit. Its images of inodes show their state at the time of
    /// the commit, so they are added first. The other changes are added in their order.
    fn add_commit(&mut self, commit: &[Change]) -> Result<()> {
        let mut with_image = BTreeSet::new();
        for change in commit {
            if let Change::Inode { inode, image } = change {
                self.add_image(*inode, image)?;
                with_image.insert(*inode);
            }
        }
        let count_link = |files: &mut BTreeMap<_, FileState>, inode: &InodeNumber, change| {
            // The image's link count includes the names of its own fast commit.
            if let Some(file) = files.get_mut(inode).filter(|_| !with_image.contains(inode)) {
                file.links += change;
            }
        };
        for change in commit {
            match change {
                Change::Inode { .. } => {}
                Change::AddRange { inode, start, block, length, unwritten } => {
                    let (start, block, unwritten) = (*start, *block, *unwritten);
                    let run = Run { start, length: (*length).into(), block, unwritten };
                    self.add_range(*inode, run)?;
                }
                Change::DeleteRange { inode, start, length } => {
                    let end = FileBlock(start.0 + u64::from(*length));
                    if let Some(map) = self.map(*inode)? {
                        map.unmap(*start..end);
                    }
                }
                Change::Link { parent, inode, name, .. } => {
                    count_link(&mut self.files, inode, 1);
                    if let Some(name) = self.name(*parent, name) {
                        name.now = Some(*inode);
                    }
                }
                Change::Unlink { parent, inode, name } => {
                    count_link(&mut self.files, inode, -1);
                    *self.removals.entry(*inode).or_default() += 1;
                    if let Some(name) = self.name(*parent, name) {
                        // The name may already have another inode.
                        name.now = name.now.filter(|now| now != inode);
                    }
                }
            }
        }
        Ok(())
    }

    fn name(&mut self, parent: InodeNumber, name: &[u8]) -> Option<&mut names::Name> {
        self.directories.get_mut(&parent)?.get_mut(name)
    }

    /// Adds the image of an inode. The inode is a new file if its generation or type differs from
    /// the known one.
    fn add_image(&mut self, number: InodeNumber, image: &[u8]) -> Result<()> {
        let location = Location::inode(number);
        let image = InodeImage::parse(image, self.volume.geometry(), location)?;
        let readable = image.check(self.volume.geometry(), number);
        let file = self.file(number)?;
        // A reused inode has another generation.
        let is_other = file.generation().is_some_and(|known| known != image.generation)
            || file.kind().is_some_and(|known| known != image.kind);
        let was_unused = file.image.is_none() && file.before.is_none();
        if was_unused || is_other {
            file.is_new = true;
            file.image = None;
            file.map = MapChanges::default();
            if let Some(names) = self.directories.get_mut(&number) {
                names.reset();
            }
        }
        let file = self.file(number)?;
        if let Err(error) = readable {
            // A new inode then has no type, so its names are dropped.
            tracing::warn!(%error, "ignoring an invalid inode in a fast commit");
            return Ok(());
        }
        // For an existing directory, the inode on the volume is used instead.
        if image.kind != FileType::Directory || file.is_new || file.was_created {
            file.links = image.links.into();
            file.image = Some(image);
        }
        Ok(())
    }

    /// Returns the changes of a file's map. `None` if the inode has no map that ranges can change.
    fn map(&mut self, number: InodeNumber) -> Result<Option<&mut MapChanges>> {
        let file = self.file(number)?;
        match file.kind() {
            Some(FileType::Regular) if file.has_tree() => Ok(Some(&mut file.map)),
            Some(FileType::Regular) if !file.flags().contains(InodeFlags::INLINE_DATA) => {
                let feature = "fast_commit on a file without extents";
                Err(Unsupported::Inode { inode: number, feature }.into())
            }
            _ => Ok(None),
        }
    }

    fn add_range(&mut self, number: InodeNumber, run: Run) -> Result<()> {
        const STRUCTURE: &str = "fast commit of a range";
        let location = Location::inode(number).at_file_block(run.start);
        self.volume.block_validity(number).check(STRUCTURE, location, run.block, run.length)?;
        let end = run.end().0;
        if run.length == 0 || end > FILE_BLOCKS_MAX {
            let (min, max) = (run.start.0 + 1, FILE_BLOCKS_MAX);
            let problem = Problem::Range { field: "end", found: end, min, max };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        if let Some(map) = self.map(number)? {
            map.map(run);
        }
        Ok(())
    }

    /// Marks names whose inode now is a file of another type as new, since an entry contains the
    /// type.
    fn mark_new_types(&mut self) {
        let files = &self.files;
        let has_new_type = |number: &InodeNumber| {
            let Some(file) = files.get(number) else { return false };
            let before = file.before.as_ref().map(|record| record.kind);
            file.kind().is_some_and(|kind| before != Some(kind))
        };
        for name in self.directories.values_mut().flat_map(|names| names.entries.values_mut()) {
            name.is_new |= name.now.as_ref().is_some_and(has_new_type);
        }
    }

    /// Loads the state of all inodes whose names change, and of all directories. Then drops
    /// unusable names.
    fn load_named_inodes(&mut self) -> Result<()> {
        let mut numbers: BTreeSet<InodeNumber> = BTreeSet::new();
        for (&parent, names) in &self.directories {
            // An interrupted replay may have changed the entries, but not yet the directory's link
            // count.
            numbers.extend(names.other_children.map(|_| parent));
            for (_, name) in names.changed() {
                numbers.extend([Some(parent), name.before, name.now].into_iter().flatten());
            }
        }
        for &number in &numbers {
            self.file(number)?;
        }
        self.drop_unusable_names();
        Ok(())
    }

    /// Undoes changes that would name an unused inode, add a name to an inode that is no directory,
    /// or add an invalid name. Encrypted names can have any bytes.
    fn drop_unusable_names(&mut self) {
        let files = &self.files;
        let kind = |number: InodeNumber| files.get(&number).and_then(FileState::kind);
        for (&parent, names) in &mut self.directories {
            let is_directory = kind(parent) == Some(FileType::Directory);
            let is_new = files.get(&parent).is_some_and(|file| file.is_new);
            let is_encrypted =
                files.get(&parent).is_some_and(|file| file.flags().contains(InodeFlags::ENCRYPTED));
            for (bytes, name) in names.entries.iter_mut().filter(|(_, name)| name.is_changed()) {
                let Some(now) = name.now else { continue };
                let checked = if is_encrypted { Ok(()) } else { check_new_name(bytes) };
                if let Err(error) = &checked {
                    let name = bytes.escape_ascii();
                    tracing::warn!(%error, %parent, %name, "ignoring an invalid name in a fast commit");
                }
                if !is_directory || kind(now).is_none() || checked.is_err() {
                    name.now = name.before.filter(|_| is_directory && !is_new);
                }
            }
        }
    }

    pub(super) fn kind_now(&self, number: InodeNumber) -> Option<FileType> {
        match self.files.get(&number) {
            Some(file) => file.kind(),
            None => self.kind_on_volume(number),
        }
    }

    pub(super) fn kind_before(&self, number: InodeNumber) -> Option<FileType> {
        match self.files.get(&number) {
            Some(file) => file.before.as_ref().map(|record| record.kind),
            None => self.kind_on_volume(number),
        }
    }

    fn kind_on_volume(&self, number: InodeNumber) -> Option<FileType> {
        existing_record(&self.volume, number).ok().flatten().map(|record| record.kind)
    }
}
