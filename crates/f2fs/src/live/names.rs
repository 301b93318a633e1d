//! New inodes, and names in directories.

use base::attributes::{FileType, Timestamp};
use base::{Error, InodeNumber, Location, Problem, Result};
use fs::NewInode;
use fscrypt::Context;

use super::{LiveInode, NODES_MAX};
use crate::dir::edit::NewEntry;
use crate::dir::entries::code_of_file_type;
use crate::dir::{EntryName, Found};
use crate::edit::{Editor, EntryEditor, InodeName};
use crate::inode::Inode;
use crate::inode::record::SECTOR_SHIFT;
use crate::write::Demand;

/// The blocks of a directory besides its inode and those of its map: that of its extended
/// attributes.
const OWN_BLOCKS_MAX: u64 = 1;

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'n> {
    pub(crate) directory: &'n LiveInode,
    pub(crate) name: &'n [u8],
}

/// The kind of a rename.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RenameMode<'n> {
    Move,
    Exchange,
    Whiteout(&'n LiveInode),
}

impl LiveInode {
    /// Creates an inode with a name in this directory. Errors: `Exists`.
    pub(crate) fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Self> {
        let parent = self.check_holds_names()?;
        let context = parent.new_context(new.kind)?;
        let stored = parent.entry_name(name)?;
        let named = Named { directory: self, name };
        let number = self.change(Demand::Adds(NODES_MAX), &[], |editor, _| {
            let number = editor.create_inode(new, &parent, Some(&stored), context.as_ref())?;
            set_first_xattrs(editor, number, new, context.as_ref())?;
            add_new(editor, named, number, code_of_file_type(new.kind))?;
            let new_file = (new.kind == FileType::Regular).then_some(number);
            editor.overlay.write().note_name(new_file);
            let is_dir = new.kind == FileType::Directory;
            self.touch(editor, i64::from(is_dir), new.time)?;
            Ok(number)
        })?;
        Self::load(&self.volume, number)
    }

    /// Creates an inode without a name.
    pub(crate) fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Self> {
        let parent = self.check_holds_names()?;
        if new.kind == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        let context = parent.new_context(new.kind)?;
        let number = self.change(Demand::Adds(NODES_MAX), &[], |editor, _| {
            let number = editor.create_inode(new, &parent, None, context.as_ref())?;
            set_first_xattrs(editor, number, new, context.as_ref())?;
            editor.overlay.write().set_orphan(number, true);
            Ok(number)
        })?;
        Self::load(&self.volume, number)
    }

    /// Adds a name in this directory to `inode`. Errors: `Exists`.
    pub(crate) fn link(&self, name: &[u8], inode: &Self, time: Timestamp) -> Result<()> {
        let directory = self.check_holds_names()?;
        let stored = directory.entry_name(name)?;
        directory.check_policy_of(&inode.current())?;
        let kind = inode.current().attributes().kind;
        if kind == FileType::Directory {
            return Err(Error::NotPermitted("a directory cannot have hard links"));
        }
        self.change(Demand::Adds(NODES_MAX), &[inode], |editor, _| {
            let named = Named { directory: self, name };
            add_new(editor, named, inode.number, code_of_file_type(kind))?;
            let parent = self.number;
            inode.update(editor, |raw| {
                raw.links.set(raw.links.get().saturating_add(1));
                raw.set_changed(time);
                raw.set_name(InodeName { parent, name: &stored });
            })?;
            editor.overlay.write().set_orphan(inode.number, false);
            names_changed(editor, [self.number, inode.number]);
            self.touch(editor, 0, time)
        })
    }

    /// Removes the name of `inode`, which is no directory, from this directory.
    pub(crate) fn unlink(&self, name: &[u8], inode: &Self, time: Timestamp) -> Result<()> {
        self.check_holds_names()?;
        if inode.current().attributes().is_dir() {
            return Err(Error::IsDirectory);
        }
        self.change(Demand::Few, &[inode], |editor, _| {
            remove(editor, Named { directory: self, name }, inode.number)?;
            names_changed(editor, [self.number]);
            inode.drop_link(editor, time)?;
            self.touch(editor, 0, time)
        })
    }

    /// Removes the empty directory `inode` from this one.
    pub(crate) fn rmdir(&self, name: &[u8], inode: &Self, time: Timestamp) -> Result<()> {
        self.check_holds_names()?;
        inode.check_empty()?;
        self.change(Demand::Few, &[inode], |editor, _| {
            remove(editor, Named { directory: self, name }, inode.number)?;
            names_changed(editor, [self.number]);
            inode.drop_directory(editor, time)?;
            self.touch(editor, -1, time)
        })
    }

    /// Renames this inode. `replaced` is the inode that has the name `to`, if there is one.
    pub(crate) fn rename(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        replaced: Option<&Self>,
        mode: RenameMode<'_>,
        time: Timestamp,
    ) -> Result<()> {
        let from_directory = from.directory.check_holds_names()?;
        let to_directory = to.directory.check_holds_names()?;
        from_directory.check_has_key()?;
        to_directory.check_has_key()?;
        if from.directory.number != to.directory.number {
            to_directory.check_policy_of(&self.current())?;
            if let (RenameMode::Exchange, Some(replaced)) = (mode, replaced) {
                from_directory.check_policy_of(&replaced.current())?;
            }
        }
        match (replaced, mode) {
            (None, RenameMode::Exchange) => return Err(Error::NotFound),
            (None, _) | (_, RenameMode::Exchange) => {}
            (Some(replaced), _) if replaced.number == self.number => return Ok(()),
            (Some(replaced), _) => self.check_replaces(replaced)?,
        }
        let rename = Rename { moved: self, from, to, replaced, time };
        let mut others = vec![from.directory, to.directory];
        others.extend(replaced);
        if let RenameMode::Whiteout(whiteout) = mode {
            others.push(whiteout);
        }
        self.change(Demand::Adds(NODES_MAX), &others, |editor, _| match mode {
            RenameMode::Move => rename.replace(editor, None),
            RenameMode::Whiteout(whiteout) => rename.replace(editor, Some(whiteout)),
            RenameMode::Exchange => rename.exchange(editor),
        })
    }

    /// Returns this directory. Errors: `NotFound` if it was removed.
    fn check_holds_names(&self) -> Result<std::sync::Arc<Inode>> {
        let current = self.current();
        if !current.attributes().is_dir() {
            return Err(Error::NotDirectory);
        }
        self.check_changeable()?;
        check_size_of_directory(&current)?;
        if current.attributes().links == 0 { Err(Error::NotFound) } else { Ok(current) }
    }

    pub(super) fn check_empty(&self) -> Result<()> {
        let current = self.current();
        if !current.attributes().is_dir() {
            return Err(Error::NotDirectory);
        }
        check_size_of_directory(&current)?;
        let mut is_empty = true;
        current.read_dir(base::attributes::DirCursor(0), &mut |entry| {
            is_empty &= matches!(entry.name, b"." | b"..");
            if is_empty {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            }
        })?;
        if is_empty { Ok(()) } else { Err(Error::NotEmpty) }
    }

    fn check_replaces(&self, replaced: &Self) -> Result<()> {
        let is_dir = |inode: &Self| inode.current().attributes().is_dir();
        match (is_dir(self), is_dir(replaced)) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) => replaced.check_empty(),
            (false, false) => Ok(()),
        }
    }

    /// Sets the times of a change of this directory's names, and changes its number of links.
    fn touch(&self, editor: &Editor<'_>, more_links: i64, time: Timestamp) -> Result<()> {
        self.update(editor, |raw| {
            // A directory has fewer links than there are inodes.
            raw.links.set(raw.links.get().saturating_add_signed(more_links as i32));
            raw.set_modified(time);
            raw.set_changed(time);
        })
    }

    /// Takes a link away. Without links, the inode is an orphan.
    fn drop_link(&self, editor: &Editor<'_>, time: Timestamp) -> Result<()> {
        let links = editor.inode(self.number)?.attributes().links;
        if links == 0 {
            let problem = Problem::Invalid { field: "links", found: 0 };
            return Err(Error::corrupt("inode", Location::inode(self.number), problem));
        }
        self.update(editor, |raw| {
            raw.links.set(links - 1);
            raw.set_changed(time);
        })?;
        names_changed(editor, [self.number]);
        if links == 1 {
            editor.overlay.write().set_orphan(self.number, true);
        }
        Ok(())
    }

    /// Makes this directory, which is empty and has lost its name, an orphan.
    fn drop_directory(&self, editor: &Editor<'_>, time: Timestamp) -> Result<()> {
        self.update(editor, |raw| {
            raw.links.set(0);
            raw.size.set(0);
            raw.set_changed(time);
        })?;
        names_changed(editor, [self.number]);
        editor.overlay.write().set_orphan(self.number, true);
        Ok(())
    }
}

/// A rename whose conditions were checked.
#[derive(Clone, Copy)]
struct Rename<'a> {
    moved: &'a LiveInode,
    from: Named<'a>,
    to: Named<'a>,
    replaced: Option<&'a LiveInode>,
    time: Timestamp,
}

impl Rename<'_> {
    fn replace(&self, editor: &mut Editor<'_>, whiteout: Option<&LiveInode>) -> Result<()> {
        let Self { moved, from, to, replaced, time } = *self;
        let kind = kind_code(moved);
        let mut more_links = 0;
        match replaced {
            Some(replaced) => {
                set_entry(editor, to, replaced.number, moved.number, kind)?;
                if replaced.current().attributes().is_dir() {
                    replaced.drop_directory(editor, time)?;
                    more_links = -1;
                } else {
                    replaced.drop_link(editor, time)?;
                }
            }
            None => add_new(editor, to, moved.number, kind)?,
        }
        match whiteout {
            Some(whiteout) => {
                set_entry(editor, from, moved.number, whiteout.number, kind_code(whiteout))?;
                whiteout.update(editor, |raw| raw.links.set(1))?;
                names_changed(editor, [whiteout.number]);
                editor.overlay.write().set_orphan(whiteout.number, false);
                whiteout.set_name(editor, from)?;
            }
            None => remove(editor, from, moved.number)?,
        }
        to.directory.touch(editor, more_links, time)?;
        from.directory.touch(editor, 0, time)?;
        self.end_move(editor, moved, from, to)
    }

    fn exchange(&self, editor: &mut Editor<'_>) -> Result<()> {
        let Self { moved, from, to, replaced, time } = *self;
        let Some(other) = replaced else { return Err(Error::NotFound) };
        set_entry(editor, to, other.number, moved.number, kind_code(moved))?;
        set_entry(editor, from, moved.number, other.number, kind_code(other))?;
        to.directory.touch(editor, 0, time)?;
        from.directory.touch(editor, 0, time)?;
        self.end_move(editor, moved, from, to)?;
        self.end_move(editor, other, to, from)
    }

    /// Stores the new name in a moved inode, and the new parent in a moved directory.
    fn end_move(
        &self,
        editor: &mut Editor<'_>,
        moved: &LiveInode,
        from: Named<'_>,
        to: Named<'_>,
    ) -> Result<()> {
        moved.update(editor, |raw| raw.set_changed(self.time))?;
        moved.set_name(editor, to)?;
        names_changed(editor, [from.directory.number, to.directory.number, moved.number]);
        if moved.current().attributes().is_dir() {
            editor.overlay.write().set_directory_moved();
        }
        if !moved.current().attributes().is_dir() || from.directory.number == to.directory.number {
            return Ok(());
        }
        let parent = Named { directory: moved, name: b".." };
        let kind = code_of_file_type(FileType::Directory);
        set_entry(editor, parent, from.directory.number, to.directory.number, kind)?;
        from.directory.touch(editor, -1, self.time)?;
        to.directory.touch(editor, 1, self.time)
    }
}

impl LiveInode {
    fn set_name(&self, editor: &Editor<'_>, to: Named<'_>) -> Result<()> {
        let parent = to.directory.number;
        let directory = to.directory.current();
        let stored = directory.entry_name(to.name)?;
        editor.edit_inode(self.number, |raw| raw.set_name(InodeName { parent, name: &stored }))
    }
}

/// Records that only a checkpoint makes changes of these inodes durable: of an inode that was
/// renamed, and of those that are created in a directory with fewer names.
fn names_changed<const N: usize>(editor: &Editor<'_>, inodes: [InodeNumber; N]) {
    let mut overlay = editor.overlay.write();
    inodes.into_iter().for_each(|inode| overlay.set_unsyncable(inode));
    overlay.note_name(None);
}

fn kind_code(inode: &LiveInode) -> u8 {
    code_of_file_type(inode.current().attributes().kind)
}

/// Sets the first extended attributes of a new inode.
fn set_first_xattrs(
    editor: &mut Editor<'_>,
    number: InodeNumber,
    new: &NewInode<'_>,
    context: Option<&Context>,
) -> Result<()> {
    if let Some(context) = context {
        editor.set_new_context(number, context)?;
    }
    editor.set_new_xattrs(number, new.xattrs)
}

/// Adds an entry. Errors: `Exists`; `Unsupported` without the key of an encrypted directory.
fn add_new(editor: &mut Editor<'_>, named: Named<'_>, inode: InodeNumber, kind: u8) -> Result<()> {
    // The inode in memory keeps the cipher of its names.
    let directory = named.directory.current();
    let mut entries = EntryEditor { editor, number: named.directory.number };
    if entries.find_wanted(&directory.wanted_name(named.name)?)?.is_some() {
        return Err(Error::Exists);
    }
    let EntryName { stored, hash, .. } = directory.entry_name(named.name)?;
    entries.add(&NewEntry { name: &stored, hash, inode, kind })
}

/// Returns the entry of a name. Errors: `Corrupt` if it names another inode.
fn existing(entries: &EntryEditor<'_, '_>, named: Named<'_>, inode: InodeNumber) -> Result<Found> {
    let directory = named.directory.current();
    let wanted = directory.wanted_name(named.name)?;
    let found = entries.find_wanted(&wanted)?.ok_or(Error::NotFound)?;
    if found.inode != inode {
        let problem = Problem::Mismatch { field: "inode", found: found.inode.0, expected: inode.0 };
        return Err(Error::corrupt("directory entry", Location::inode(entries.number), problem));
    }
    Ok(found)
}

/// Removes the entry of a name, which names `inode`.
fn remove(editor: &mut Editor<'_>, named: Named<'_>, inode: InodeNumber) -> Result<()> {
    editor.overlay.write().note_removed_name(named.directory.number);
    let mut entries = EntryEditor { editor, number: named.directory.number };
    let found = existing(&entries, named, inode)?;
    entries.remove(&found)
}

/// Lets a name that names the inode `now` name the inode `new`.
fn set_entry(
    editor: &mut Editor<'_>,
    named: Named<'_>,
    now: InodeNumber,
    new: InodeNumber,
    kind: u8,
) -> Result<()> {
    editor.overlay.write().note_removed_name(named.directory.number);
    let mut entries = EntryEditor { editor, number: named.directory.number };
    let found = existing(&entries, named, now)?;
    entries.set_inode(&found, new, kind)
}

/// Checks that a directory's size has room for all of its blocks: names behind it are not found,
/// and a change would lose them. Errors: `Corrupt`.
fn check_size_of_directory(directory: &Inode) -> Result<()> {
    let record = directory.record();
    if record.inline_area.is_some() {
        return Ok(());
    }
    let attributes = directory.attributes();
    let block_size = directory.volume().geometry().block_size;
    let max = block_size.blocks_for(attributes.size);
    // No node has more addresses than an inode has room for.
    let nodes = match max > record.address_count.into() {
        true => max / u64::from(record.address_count.max(1)) + NODES_MAX,
        false => 0,
    };
    let needed = attributes.blocks.saturating_mul(1 << SECTOR_SHIFT);
    if block_size.blocks_for(needed) <= OWN_BLOCKS_MAX.saturating_add(nodes).saturating_add(max) {
        return Ok(());
    }
    let problem = Problem::Truncated { needed, available: attributes.size };
    Err(Error::corrupt("directory", Location::inode(directory.number()), problem))
}
