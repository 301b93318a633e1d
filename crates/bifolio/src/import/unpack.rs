//! Unpacking of archives into an image. Names are relative to one directory: symbolic links are not
//! followed unless an option asks for it (`tree/links.rs`), and names with `..` are refused.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, InodeNumber};
use vfs::{Creation, Credentials, Node, Privileges, Volume};

use super::casefolded::Casefolded;
use super::directories::Directories;
use super::input::Interruptible;
use super::losses::{Losses, Lost};
use super::metadata::{self, Preserved};
use super::whiteouts::Whiteouts;
use super::{
    CopyError, IS_REPLACED, LEADS_OUT, contents, create_complete, hard_link, link_text, report,
};
use crate::archive::{ArchiveReader, BadMember, Damage, Kind, Member, Name, TextAcl, Xattrs};
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::copy::{Full, IS_MADE, LeftOut};
use crate::format::{acl, text};
use crate::images::writing::Writing;
use crate::tree::accounts::Accounts;
use crate::tree::links::{self, LINKS_MAX, Leads};

/// Permissions of directories that are not in the archive.
const DIRECTORY_PERMISSIONS: u16 = 0o755;

/// Maximum size of a member's path. An extended header has 16 times as much, and each level takes
/// memory: [`Unpacker`] keeps the directories on the way to a member. Paths of system calls have
/// 4096 bytes at most.
const PATH_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes of a path that is too long in its message.
const SHOWN_BYTES_MAX: usize = 255;

const HAS_NO_RECORD: &str = "the record is not supported";
const IS_MALFORMED: &str = "it has no valid length, name and value";
const IS_UNKNOWN: &str = "the archive has it in an unknown form";
const IS_INVALID: &str = "the value is invalid, and that of the member's header was used";

/// Options of unpacking.
#[derive(Clone, Copy, Debug)]
pub struct UnpackOptions {
    /// The number of leading components to remove from each path.
    pub strip: usize,
    /// Whether symbolic links to directories are followed below the destination.
    pub keep_directory_links: bool,
    /// Whether whiteouts are unpacked as files.
    pub keep_whiteouts: bool,
}

/// Unpacker of an archive into one directory.
pub struct Unpacker<'a> {
    volume: &'a Volume,
    /// The directory to which names are relative.
    root: Arc<Node>,
    options: UnpackOptions,
    writing: &'a Writing,
    console: &'a mut Console,
    /// Directories whose attributes are set at the end.
    directories: Directories,
    left_out: LeftOut,
    /// The paths of members that were not unpacked. Hard links to them are not unpacked, either.
    left_out_paths: HashSet<Vec<u8>>,
    /// The directories that were removed since `directories` got them. Others may have their
    /// numbers.
    removed: HashSet<InodeNumber>,
    /// What was unpacked to casefolded directories.
    casefolded: Casefolded,
    losses: Losses,
    /// The symbolic links that were not followed, and the number of members that were not unpacked
    /// for each but the first one.
    links: BTreeMap<Vec<u8>, u64>,
    whiteouts: Whiteouts,
    accounts: Accounts,
}

impl<'a> Unpacker<'a> {
    /// Creates an unpacker to the directory `root`.
    pub fn new(
        volume: &'a Volume,
        root: Arc<Node>,
        options: UnpackOptions,
        writing: &'a Writing,
        console: &'a mut Console,
    ) -> Self {
        Self {
            volume,
            root,
            options,
            writing,
            console,
            directories: Directories::default(),
            left_out: LeftOut::default(),
            left_out_paths: HashSet::new(),
            removed: HashSet::new(),
            casefolded: Casefolded::default(),
            losses: Losses::default(),
            links: BTreeMap::new(),
            whiteouts: Whiteouts::default(),
            accounts: Accounts::default(),
        }
    }

    /// Unpacks all members of the archive `input`, which is at `name`, to `image`. Reports members
    /// that fail. Errors: the archive cannot be read.
    pub fn unpack(mut self, name: &Path, input: impl Read, image: &Path) -> Result<()> {
        let outcome = self.unpack_all(name, input);
        if let Some(failure) = self.left_out.failure(image.as_os_str().as_bytes()) {
            self.console.report(&failure);
        }
        for (link, more) in self.links.into_iter().filter(|(_, more)| *more > 0) {
            let (s, was) = if more == 1 { ("", "was") } else { ("s", "were") };
            let text = format!("{more} more member{s} below this symbolic link {was} not unpacked");
            self.console.report(&Failure::new(link.as_slice(), text));
        }
        if let Some(failure) = self.whiteouts.failure(name) {
            self.console.report(&failure);
        }
        self.losses.warn(self.console);
        outcome
    }

    fn unpack_all(&mut self, name: &Path, input: impl Read) -> Result<()> {
        let mut archive = ArchiveReader::new(Interruptible { input, writing: self.writing });
        let read = self.unpack_members(name, &mut archive);
        let directories = std::mem::take(&mut self.directories);
        // Also after a signal: directories are not left with the permissions that they have until
        // they are complete.
        directories.for_each(|directory| {
            if self.removed.contains(&directory.number) {
                return Ok(());
            }
            let outcome = self.volume.node(directory.number).map_err(CopyError::from);
            let lost = Lost { losses: &self.losses, path: directory.path };
            let outcome = outcome
                .and_then(|node| set_metadata(&node, directory.preserved, directory.xattrs, lost));
            self.report(directory.path, outcome)
        })?;
        match read {
            Ok(()) => Ok(()),
            Err(CopyError::Host(action, error)) => Err(Failure::host(name, action, &error)),
            Err(CopyError::Fatal(failure)) => Err(failure),
            Err(CopyError::Image(action, error)) => Err(Failure::action(name, action, &error)),
            Err(CopyError::Replaced) => Err(Failure::new(name, IS_REPLACED)),
            Err(CopyError::Other(what)) => Err(Failure::new(name, what)),
            Err(CopyError::Link(link)) => Err(Failure::new(name, link_text(&link))),
        }
    }

    fn unpack_members<R: Read>(
        &mut self,
        name: &Path,
        archive: &mut ArchiveReader<R>,
    ) -> Result<(), CopyError> {
        let cannot_read = |error| CopyError::Host("cannot read the rest", error);
        loop {
            let member = archive.next_member();
            // The signal often ends the program, too, from which the archive comes.
            self.writing.check_interrupted().map_err(CopyError::Fatal)?;
            for damage in archive.take_damages() {
                self.report_damage(name, damage);
            }
            let Some(member) = member.map_err(cannot_read)? else {
                if let Some(end) = archive.early_end() {
                    let text = format!(
                        "ends at byte {end} without the zeroes of its end: it may have been cut there"
                    );
                    self.console.warn(Failure::new(name, text));
                }
                return Ok(());
            };
            let mut member = match member {
                Ok(member) => member,
                Err(BadMember { path, error }) => {
                    let text = format!("was not unpacked: {error}");
                    self.console.report(&Failure::new(shown(&path).as_slice(), text));
                    continue;
                }
            };
            if let Some(failure) = too_long(&member) {
                self.console.report(&failure);
                continue;
            }
            self.take_acls(&mut member).map_err(CopyError::Fatal)?;
            let outcome = match self.unpack_member(&member, archive) {
                // An error while the archive is read ends the command.
                Err(CopyError::Host(_, error)) => {
                    self.writing.check_interrupted().map_err(CopyError::Fatal)?;
                    return Err(cannot_read(error));
                }
                outcome => outcome,
            };
            if outcome.is_ok() {
                self.count_losses(&member);
            }
            self.report_left_out(&member, outcome).map_err(CopyError::Fatal)?;
        }
    }

    /// Reports a part of the archive `name` that was skipped.
    fn report_damage(&mut self, name: &Path, Damage { start, end }: Damage) {
        let skipped = match end {
            Some(end) => format!("skipped to the next header, at byte {end}"),
            None => "found no other header after it".to_owned(),
        };
        let text = format!("the header at byte {start} has a wrong checksum; {skipped}");
        let advice = "the archive is damaged: members between them are missing in the image";
        self.console.report(&Failure::new(name, text).advise(advice));
    }

    /// Adds the access control lists in text to the extended attributes of a member, unless these
    /// have lists.
    fn take_acls(&mut self, member: &mut Member) -> Result<()> {
        let texts = std::mem::take(&mut member.text_acls);
        for (text, (attribute, _)) in texts.into_iter().zip(acl::ATTRIBUTES) {
            let Some(text) = text.filter(|_| !member.xattrs.contains(attribute)) else { continue };
            self.writing.check_interrupted()?;
            let lost = Lost { losses: &self.losses, path: &member.path };
            let Some(acl) = TextAcl::parse(&text) else {
                lost.add(b"the access control list", IS_UNKNOWN);
                if attribute == acl::ACCESS {
                    // The mode may have the mask in their place, which can be more.
                    let group = TextAcl::owning_group(&text).unwrap_or_default();
                    member.permissions &= !0o070 | group << 3;
                }
                continue;
            };
            for entry in acl.unknown() {
                let what = [b"the entry ", &entry[..], b" in the access control list"].concat();
                lost.add(&what, IS_UNKNOWN);
            }
            if acl.has_names() {
                self.accounts.update(self.volume);
            }
            let value = acl.value(|name| {
                let found = self.accounts.number(name);
                if found.is_none() {
                    let (kind, name) = match name {
                        Name::User(name) => ("user", name),
                        Name::Group(name) => ("group", name),
                    };
                    let what = format!("the entry for the {kind} ").into_bytes();
                    let what = [&what, &name[..], b" in the access control list"].concat();
                    let reason = "the image has no such name in /etc/passwd or /etc/group; create the archive with \
                                  --numeric-owner";
                    lost.add(&what, reason);
                }
                found
            });
            member.xattrs.add(attribute, &value);
        }
        Ok(())
    }

    /// Counts the records of a member of which nothing was unpacked.
    fn count_losses(&self, member: &Member) {
        for record in &member.lost {
            self.losses.add(record, HAS_NO_RECORD, &member.path);
        }
        for record in &member.invalid {
            self.losses.add(record, IS_INVALID, &member.path);
        }
        if member.malformed > 0 {
            self.losses.add(b"an extended record", IS_MALFORMED, &member.path);
        }
    }

    fn report(&mut self, path: &[u8], outcome: Result<(), CopyError>) -> Result<()> {
        report(self.console, Path::new(OsStr::from_bytes(path)), outcome)
    }

    /// Reports a member that was not unpacked. If the image is full, counts the member for the
    /// report at the end instead.
    fn report_left_out(&mut self, member: &Member, outcome: Result<(), CopyError>) -> Result<()> {
        let (action, error) = match (&outcome, &member.kind) {
            (Err(CopyError::Image(action, error @ (Error::NoSpace | Error::NoInodes))), _) => {
                (*action, error.clone())
            }
            (Err(CopyError::Image(action, _)), Kind::HardLink(path))
                if self.left_out_paths.contains(path) =>
            {
                (*action, Error::NoSpace)
            }
            (Err(CopyError::Link(link)), _) if self.links.contains_key(link) => {
                *self.links.entry(link.clone()).or_default() += 1;
                return Ok(());
            }
            (Err(CopyError::Link(link)), _) => {
                self.links.insert(link.clone(), 0);
                return self.report(&member.path, outcome);
            }
            _ => return self.report(&member.path, outcome),
        };
        let path = Path::new(OsStr::from_bytes(&member.path));
        let failure = Failure::action(path, action, &error);
        self.left_out.add(&member.path, member.size, failure, Full::of(&error));
        self.left_out_paths.insert(member.path.clone());
        Ok(())
    }

    fn unpack_member<R: Read>(
        &mut self,
        member: &Member,
        archive: &mut ArchiveReader<R>,
    ) -> Result<(), CopyError> {
        if member.kind == Kind::Label {
            self.losses.add(
                b"the label of the archive",
                "an image has no place for it",
                &member.path,
            );
            return Ok(());
        }
        let Some(names) = self.names(&member.path)? else { return Ok(()) };
        let Some((name, parents)) = names.split_last() else {
            // The destination directory itself.
            return match member.kind {
                Kind::Inode(FileType::Directory) => {
                    self.directories.add(self.root.number(), member);
                    Ok(())
                }
                _ => Err(CopyError::Other("was not unpacked: the name is empty".into())),
            };
        };
        if !self.options.keep_whiteouts && self.whiteouts.add(&member.path) {
            return Ok(());
        }
        let directories = self.directories_at(parents, true)?;
        let Some(directory) = directories.last() else { return Ok(()) };
        let linked = match &member.kind {
            Kind::HardLink(path) => self.linked(member, path)?,
            _ => None,
        };
        let exists = self.prepare(member, (&names, &directories), name)?;
        self.create(member, archive, (directory, name), linked, exists)?;
        Ok(self.casefolded.add(self.volume, &names, &directories)?)
    }

    /// Creates the file of a member, or a further name of the file `linked`.
    fn create<R: Read>(
        &mut self,
        member: &Member,
        archive: &mut ArchiveReader<R>,
        (directory, name): (&Arc<Node>, &[u8]),
        linked: Option<Arc<Node>>,
        exists: Existing,
    ) -> Result<(), CopyError> {
        let by = owner_of(member);
        let lost = Lost { losses: &self.losses, path: &member.path };
        match &member.kind {
            Kind::Label => Ok(()),
            Kind::Continued => Err(CopyError::Other(
                "was not unpacked: the first part of the file is in another volume of the archive"
                    .into(),
            )),
            Kind::Unknown(byte) => {
                let byte = text::escape(&[*byte]).into_owned();
                let what =
                    format!("was not unpacked: members of the type {byte} are not supported");
                Err(CopyError::Other(what.into()))
            }
            Kind::HardLink(_) if linked.is_some() => {
                let Some(target) = linked else { return Ok(()) };
                create_complete(self.volume, directory, name, |_, name| {
                    Ok(self.volume.link(directory, name, &target)?)
                })?;
                match member.size > 0 && target.kind() == FileType::Regular {
                    true => self.write_linked(member, archive, &target),
                    false => {
                        hard_link::count_differences(member, &target, lost);
                        Ok(())
                    }
                }
            }
            Kind::Inode(FileType::Directory) if exists == Existing::LinkToDirectory => Ok(()),
            Kind::Inode(FileType::Directory) => self.unpack_directory(member, directory, name),
            Kind::HardLink(_) | Kind::Inode(FileType::Regular) => {
                create_complete(self.volume, directory, name, |_, name| {
                    let creation = Creation::of(FileType::Regular, 0o600);
                    let creation = Creation { created: member.created, ..creation };
                    let file = self.volume.create_in(directory, name, &creation, &by)?;
                    let check_interrupted =
                        || self.writing.check_interrupted().map_err(CopyError::Fatal);
                    contents::unpack(member, &mut *archive, &file, check_interrupted)?;
                    set_metadata(&file, &Preserved::of_member(member), &member.xattrs, lost)
                })
            }
            &Kind::Inode(kind) => create_complete(self.volume, directory, name, |_, name| {
                let target = match kind {
                    FileType::Symlink => &member.target[..],
                    _ => b"",
                };
                let permissions =
                    if kind == FileType::Symlink { 0o777 } else { member.permissions };
                let creation = Creation {
                    device: member.device,
                    target,
                    created: member.created,
                    ..Creation::of(kind, permissions)
                };
                let created = self.volume.create_in(directory, name, &creation, &by)?;
                set_metadata(&created, &Preserved::of_member(member), &member.xattrs, lost)
            }),
        }
    }

    /// Creates the directory of a member unless it exists. Its attributes are set at the end.
    fn unpack_directory(
        &mut self,
        member: &Member,
        directory: &Arc<Node>,
        name: &[u8],
    ) -> Result<(), CopyError> {
        let created = match self.volume.lookup(directory, name) {
            Ok(existing) => existing,
            Err(Error::NotFound) => {
                // Only the owner can enter the directory until it is complete.
                let creation = Creation::of(FileType::Directory, 0o700);
                let creation = Creation { created: member.created, ..creation };
                self.volume.create_in(directory, name, &creation, &owner_of(member))?
            }
            Err(error) => return Err(error.into()),
        };
        self.removed.remove(&created.number());
        self.directories.add(created.number(), member);
        Ok(())
    }

    /// Removes an existing file of which a member makes a directory, or an empty directory of which
    /// it makes a file, as tar(1) does. Errors: the file is an earlier member with a name that
    /// differs in case; it is a symbolic link to a directory, and links are not kept.
    fn prepare(
        &mut self,
        member: &Member,
        (names, directories): (&[&[u8]], &[Arc<Node>]),
        name: &[u8],
    ) -> Result<Existing, CopyError> {
        let Some(directory) = directories.last() else { return Ok(Existing::Other) };
        let existing = match self.volume.lookup(directory, name) {
            Err(Error::NotFound) => return Ok(Existing::Other),
            existing => existing?,
        };
        let is_directory = matches!(member.kind, Kind::Inode(FileType::Directory));
        let is_kept = is_directory && existing.kind() == FileType::Directory;
        if !is_kept && self.casefolded.is_other(names, &existing) {
            return Err(CopyError::Other(IS_MADE.into()));
        }
        match (existing.kind(), is_directory) {
            (FileType::Directory, false)
                if matches!(member.kind, Kind::Inode(_) | Kind::HardLink(_)) =>
            {
                self.volume.rmdir(directory, name, &Credentials::ROOT)?;
                self.removed.insert(existing.number());
            }
            (FileType::Symlink, true) => {
                match links::follow(self.volume, directories, &existing, &mut { LINKS_MAX })? {
                    Leads::Directory(_) if self.options.keep_directory_links => {
                        return Ok(Existing::LinkToDirectory);
                    }
                    Leads::Directory(_) => return Err(CopyError::Link(names.join(&b'/'))),
                    Leads::Outside => return Err(CopyError::Other(LEADS_OUT.into())),
                    Leads::File(_) | Leads::Nowhere => {
                        self.volume.unlink(directory, name, &Credentials::ROOT)?;
                    }
                }
            }
            (FileType::Directory, _) | (_, false) => {}
            (_, true) => self.volume.unlink(directory, name, &Credentials::ROOT)?,
        }
        Ok(Existing::Other)
    }

    /// Returns the components of a path of the archive after --strip-components. `None` if none are
    /// left.
    fn names<'p>(&self, path: &'p [u8]) -> Result<Option<Vec<&'p [u8]>>, CopyError> {
        let names: Vec<_> =
            path.split(|&byte| byte == b'/').filter(|name| !matches!(name, [] | [b'.'])).collect();
        if names.contains(&&b".."[..]) {
            return Err(CopyError::Other("was not unpacked: the name contains ..".into()));
        }
        match names.get(self.options.strip..) {
            Some([]) if self.options.strip > 0 => Ok(None),
            names => Ok(names.map(<[_]>::to_vec)),
        }
    }

    /// Returns the directories from the destination down to this path. Creates missing ones if
    /// `create` is set.
    fn directories_at(&self, names: &[&[u8]], create: bool) -> Result<Vec<Arc<Node>>, CopyError> {
        let mut directories = vec![Arc::clone(&self.root)];
        let mut links_left = LINKS_MAX;
        for (depth, name) in names.iter().enumerate() {
            self.writing.check_interrupted().map_err(CopyError::Fatal)?;
            let Some(directory) = directories.last() else { break };
            let node = match self.volume.lookup(directory, name) {
                Err(Error::NotFound) if create => {
                    let creation = Creation::of(FileType::Directory, DIRECTORY_PERMISSIONS);
                    self.volume.create_in(directory, name, &creation, &Credentials::ROOT)?
                }
                node => node?,
            };
            match node.kind() {
                FileType::Directory => directories.push(node),
                FileType::Symlink => {
                    match links::follow(self.volume, &directories, &node, &mut links_left)? {
                        Leads::Directory(found) if self.options.keep_directory_links => {
                            directories = found;
                        }
                        Leads::Directory(_) => {
                            let link = names.get(..=depth).unwrap_or_default();
                            return Err(CopyError::Link(link.join(&b'/')));
                        }
                        Leads::Outside => return Err(CopyError::Other(LEADS_OUT.into())),
                        Leads::Nowhere if links_left == 0 => {
                            return Err(CopyError::Image("cannot unpack", Error::SymlinkLoop));
                        }
                        Leads::File(_) | Leads::Nowhere => return Err(NO_DIRECTORY),
                    }
                }
                _ => return Err(NO_DIRECTORY),
            }
        }
        Ok(directories)
    }

    /// Returns the file that a hard link is a further name of. `None` if it is missing, but the
    /// member has its data. Errors: there is no such file.
    fn linked(&self, member: &Member, path: &[u8]) -> Result<Option<Arc<Node>>, CopyError> {
        match self.node_at(path) {
            Err(CopyError::Image(_, Error::NotFound)) if member.size > 0 => Ok(None),
            // Before anything at the name of the link is removed.
            Ok(node) if node.kind() == FileType::Directory => Err(Error::IsDirectory.into()),
            found => found.map(Some),
        }
    }

    /// Writes the data of a hard link, and sets its metadata: the earlier members of the file may
    /// have none.
    fn write_linked<R: Read>(
        &self,
        member: &Member,
        archive: &mut ArchiveReader<R>,
        file: &Arc<Node>,
    ) -> Result<(), CopyError> {
        // What it has is not that of holes in the new data.
        file.set_size(0, Privileges::Keep)?;
        let check_interrupted = || self.writing.check_interrupted().map_err(CopyError::Fatal);
        contents::unpack(member, archive, file, check_interrupted)?;
        let lost = Lost { losses: &self.losses, path: &member.path };
        metadata::update(file, &Preserved::of_member(member), lost, |file, permissions| {
            set_xattrs(file, &member.xattrs, permissions, lost)
        })
    }

    /// Returns the node at a path of the archive, for a hard link.
    fn node_at(&self, path: &[u8]) -> Result<Arc<Node>, CopyError> {
        let names = self.names(path)?.unwrap_or_default();
        let missing = |error| {
            CopyError::Image("cannot create the hard link: its target does not exist", error)
        };
        let Some((name, parents)) = names.split_last() else { return Ok(Arc::clone(&self.root)) };
        let directories = match self.directories_at(parents, false) {
            Err(CopyError::Image(_, error)) => return Err(missing(error)),
            directories => directories?,
        };
        let directory = directories.last().unwrap_or(&self.root);
        self.volume.lookup(directory, name).map_err(missing)
    }
}

const NO_DIRECTORY: CopyError =
    CopyError::Image("cannot unpack: a parent is not a directory", Error::NotDirectory);

/// Returns the credentials that create the file of a member.
fn owner_of(member: &Member) -> Credentials {
    Credentials { uid: member.uid, gid: member.gid, ..Credentials::ROOT }
}

/// Returns the failure of a member with a path that is too long, or with that of a hard link's
/// target.
fn too_long(member: &Member) -> Option<Failure> {
    let target = match &member.kind {
        Kind::HardLink(target) => &target[..],
        _ => b"",
    };
    let paths = [("path", &member.path[..]), ("path of the hard link's target", target)];
    let (what, path) = paths.into_iter().find(|(_, path)| path.len() > PATH_BYTES_MAX)?;
    let bytes = path.len();
    let text = format!(
        "was not unpacked: its {what} has {bytes} bytes, and {PATH_BYTES_MAX} are supported"
    );
    Some(Failure::new(shown(&member.path).as_slice(), text))
}

/// Returns the path of a member for a message.
fn shown(path: &[u8]) -> Vec<u8> {
    match path.get(..SHOWN_BYTES_MAX) {
        Some(start) if start.len() < path.len() => [start, b"..."].concat(),
        _ => path.to_vec(),
    }
}

/// What exists at the name of a member, beside what is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Existing {
    /// A symbolic link to a directory, which takes the place of a directory in the archive.
    LinkToDirectory,
    /// Nothing else.
    Other,
}

fn set_metadata(
    copy: &Node,
    preserved: &Preserved,
    xattrs: &Xattrs,
    lost: Lost<'_>,
) -> Result<(), CopyError> {
    metadata::apply(copy, preserved, lost, |copy, permissions| {
        set_xattrs(copy, xattrs, permissions, lost)
    })
}

/// Sets the extended attributes of a member. Returns whether an access control list is among them.
fn set_xattrs(
    copy: &Node,
    xattrs: &Xattrs,
    permissions: &mut u16,
    lost: Lost<'_>,
) -> Result<bool, CopyError> {
    let mut has_acl = false;
    for (name, value) in xattrs.iter() {
        // The mode in the archive may have the permissions of the group in place of the mask.
        let is_set = metadata::set_xattr(copy, (name, value), permissions, lost)?;
        has_acl |= is_set && name == acl::ACCESS;
    }
    Ok(has_acl)
}
