//! The state of a volume in memory, and the promises that syncs make from it.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use base::Result;
use base::attributes::{FileType, Timestamp};
use testkit::crash::{Owned, Snapshot, merge};
use vfs::{Follow, Volume};

use crate::common::bytes;
use crate::operation::{Operation, parent_of};

/// The state of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    inode: u64,
    kind: FileType,
    /// The number of names. Zero for directories: the check compares theirs with the names.
    links: u32,
    contents: Vec<u8>,
    /// The ranges of a regular file that have blocks, also past its end.
    allocated: Vec<Range<u64>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Vec<u8>,
    permissions: u16,
    uid: u32,
    gid: u32,
    /// The last change of the contents. `None` for directories, whose promises do not end when
    /// names in them change.
    modified: Option<Timestamp>,
}

impl Object {
    /// Returns the mode and the owners.
    fn rights(&self) -> (u16, u32, u32) {
        (self.permissions, self.uid, self.gid)
    }
}

/// The state of all paths.
pub type State = BTreeMap<String, Object>;

/// Reads the whole volume.
pub fn state_of(volume: &Volume) -> Result<State> {
    let mut state = State::new();
    let mut ahead = vec![String::new()];
    while let Some(directory) = ahead.pop() {
        let listed = if directory.is_empty() { "/" } else { &directory };
        for entry in volume.read_dir(listed)? {
            let entry = entry?;
            let name = entry.file_name();
            let path = format!("{directory}/{}", name.to_str().expect("the names are ASCII"));
            if path == "/lost+found" {
                continue;
            }
            let attributes = volume.symlink_metadata(&path)?;
            let (inode, kind) = (attributes.inode.0, attributes.kind);
            let node = volume.resolve(path.as_bytes(), Follow::No)?;
            let names = node.list_xattrs()?.into_iter();
            let xattrs = names.map(|name| Ok((name.clone(), node.get_xattr(&name)?)));
            let xattrs = xattrs.collect::<Result<_>>()?;
            let (mut contents, mut target) = (Vec::new(), Vec::new());
            let mut allocated = Vec::new();
            match kind {
                FileType::Regular => {
                    contents = volume.read(&path)?;
                    node.extents(bytes(0..u64::MAX), &mut |extent| {
                        if !extent.flags.inline {
                            let start = extent.logical.0;
                            merge(&mut allocated, start..start + extent.length);
                        }
                        ControlFlow::Continue(())
                    })?;
                }
                FileType::Symlink => {
                    target = volume.read_link(&path)?.into_os_string().into_encoded_bytes()
                }
                _ => ahead.push(path.clone()),
            }
            let links = links_of(kind, attributes.links);
            let (permissions, uid, gid) = (attributes.permissions, attributes.uid, attributes.gid);
            let modified = modified_of(kind, attributes.modified);
            let object = Object {
                inode,
                kind,
                links,
                contents,
                allocated,
                xattrs,
                target,
                permissions,
                uid,
                gid,
                modified,
            };
            state.insert(path, object);
        }
    }
    Ok(state)
}

/// What a sync promises of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// All of its state.
    All,
    /// Its contents.
    Contents,
    /// Its contents, except for zeroes at its end, for which nothing is written.
    Stores,
    /// Its type, its mode and its owners.
    Rights,
    /// That it exists, with its type.
    Name,
    /// That it does not exist.
    Absent,
}

/// A promise for the states that cuts leave from the point `from` on, and before `until`.
#[derive(Clone, Debug)]
struct Promise {
    from: usize,
    until: usize,
    /// The paths of which one keeps the promise.
    paths: Vec<String>,
    level: Level,
    object: Option<Object>,
}

impl Promise {
    fn check(&self, found: &State) -> bool {
        self.paths.iter().any(|path| {
            let found = found.get(path);
            match (self.level, found, &self.object) {
                (Level::Absent, found, _) => found.is_none(),
                (_, None, _) => false,
                (Level::Name, Some(found), object) => {
                    object.as_ref().is_none_or(|object| found.kind == object.kind)
                }
                (Level::Rights, Some(found), object) => object.as_ref().is_some_and(|object| {
                    (found.kind, found.rights()) == (object.kind, object.rights())
                }),
                (Level::Contents, Some(found), object) => {
                    object.as_ref().is_some_and(|object| found.contents == object.contents)
                }
                (Level::Stores, Some(found), object) => object
                    .as_ref()
                    .is_some_and(|object| without_zeroes(found) == without_zeroes(object)),
                (Level::All, Some(found), object) => object.as_ref() == Some(found),
            }
        })
    }
}

/// Returns the contents of a file without zeroes at its end.
fn without_zeroes(object: &Object) -> &[u8] {
    let end = object.contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &object.contents[..end]
}

/// The promises of a sequence.
#[derive(Debug, Default)]
pub struct Oracle {
    promises: Vec<Promise>,
}

impl Oracle {
    fn add(&mut self, from: usize, path: &str, level: Level, object: Option<Object>) {
        let paths = vec![path.to_owned()];
        self.promises.push(Promise { from, until: usize::MAX, paths, level, object });
    }

    /// Returns whether anything was promised.
    pub fn has_promises(&self) -> bool {
        !self.promises.is_empty()
    }

    /// The whole volume was synced.
    pub fn volume_synced(&mut self, point: usize, state: &State, known: &[&str]) {
        for (path, object) in state {
            self.add(point, path, Level::All, Some(object.clone()));
        }
        for path in known.iter().filter(|path| !state.contains_key(**path)) {
            self.add(point, path, Level::Absent, None);
        }
    }

    /// The stores to a map of a file were synced.
    pub fn map_synced(&mut self, point: usize, state: &State, path: &str) {
        let object = state.get(path).filter(|object| !object.contents.is_empty());
        if let Some(object) = object {
            self.add(point, path, Level::Stores, Some(object.clone()));
        }
    }

    /// A file or a directory was synced.
    pub fn path_synced(
        &mut self,
        point: usize,
        state: &State,
        path: &str,
        known: &[&str],
        data_only: bool,
    ) {
        let Some(object) = state.get(path) else { return };
        if object.kind == FileType::Directory {
            return self.directory_synced(point, state, path, known);
        }
        let level = if data_only { Level::Contents } else { Level::All };
        self.add(point, path, level, Some(object.clone()));
    }

    /// A directory was synced: its mode, its owners and its names are durable, and of the paths in
    /// `known` those that were removed from it are gone.
    pub fn directory_synced(
        &mut self,
        point: usize,
        state: &State,
        directory: &str,
        known: &[&str],
    ) {
        if let Some(object) = state.get(directory) {
            self.add(point, directory, Level::Rights, Some(object.clone()));
        }
        let below = format!("{}/", directory.trim_end_matches('/'));
        for (path, object) in state {
            if path.strip_prefix(&below).is_some_and(|name| !name.contains('/')) {
                self.add(point, path, Level::Name, Some(object.clone()));
            }
        }
        let is_gone = |path: &&&str| parent_of(path) == directory && !state.contains_key(**path);
        for path in known.iter().filter(is_gone) {
            self.add(point, path, Level::Absent, None);
        }
    }

    /// An operation begins on a volume with this state: what is promised of the paths that it
    /// changes, and of other names of their inodes, ends.
    pub fn operation_begins(&mut self, point: usize, operation: Operation, state: &State) {
        let touched = operation.paths();
        let is_below = |path: &String, touched: &str| {
            path.strip_prefix(touched).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_touched = |path: &String| touched.iter().any(|touched| is_below(path, touched));
        let inodes: Vec<u64> = state
            .iter()
            .filter_map(|(path, object)| is_touched(path).then_some(object.inode))
            .collect();
        let is_changed = |path: &String| {
            is_touched(path) || state.get(path).is_some_and(|object| inodes.contains(&object.inode))
        };
        for promise in self.promises.iter_mut().filter(|promise| promise.until == usize::MAX) {
            // Preparing the operation makes missing directories above its paths.
            let is_made = |path: &String| {
                touched.iter().any(|touched| is_below(&(*touched).to_owned(), path))
            };
            let is_absent = promise.level == Level::Absent;
            if promise.paths.iter().any(|path| is_changed(path) || is_absent && is_made(path)) {
                promise.until = point;
            }
        }
    }

    /// A rename begins at a point until which promises have ended, and now the volume has this
    /// state: what was synced has the old name or the new one, with all below it, and a new name
    /// that existed before exists.
    pub fn rename_begins(&mut self, point: usize, operation: Operation, state: &State) {
        let (Operation::Rename(from, to, exists) | Operation::RenameDirectory(from, to, exists)) =
            operation
        else {
            return;
        };
        let mut rest = Vec::new();
        for promise in &self.promises {
            let is_synced = promise.until == point && promise.level != Level::Absent;
            let [path] = &promise.paths[..] else { continue };
            let below = path.strip_prefix(from);
            let below = below.filter(|below| below.is_empty() || below.starts_with('/'));
            if !is_synced || (below.is_none() && !(exists && path == to)) {
                continue;
            }
            // Preparing a rename replaces what is no file at its names.
            let kind_of = |object: Option<&Object>| object.map(|object| object.kind);
            let is_replaced = kind_of(state.get(path)) != kind_of(promise.object.as_ref());
            if (path == to || path == from) && is_replaced {
                continue;
            }
            let mut next = Promise { from: point, until: usize::MAX, ..promise.clone() };
            next.paths.extend(below.map(|below| format!("{to}{below}")));
            if path == to || state.get(path) != promise.object.as_ref() {
                next.level = Level::Name;
            }
            rest.push(next);
        }
        self.promises.extend(rest);
    }

    /// Fails with a description if a cut at `point` cannot leave `found`.
    pub fn check(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        let found = state_found(found);
        // Blocks that no file has were filled with another byte.
        let is_known = |byte: &u8| *byte == 0 || byte.is_ascii_lowercase();
        if let Some((path, _)) = found.iter().find(|(_, it)| !it.contents.iter().all(is_known)) {
            return Err(format!("{path} has data that was never written to it"));
        }
        let broken = self.promises.iter().find(|promise| {
            (promise.from..promise.until).contains(&point) && !promise.check(&found)
        });
        match broken {
            None => Ok(()),
            Some(promise) => {
                let Promise { from, until, paths, level, object } = promise;
                let shown = |object: &Object| {
                    let Object { kind, links, contents, allocated, xattrs, target, .. } = object;
                    let (permissions, uid, gid) = object.rights();
                    let letters =
                        contents.iter().copied().collect::<std::collections::BTreeSet<u8>>();
                    format!(
                        "{kind:?}, {links} links, {} bytes of {letters:?} in {allocated:?}, {xattrs:?}, {target:?}, \
                         {permissions:o} of {uid} and {gid}, {:?}",
                        contents.len(),
                        object.modified
                    )
                };
                let found: Vec<_> = paths.iter().map(|path| found.get(path).map(shown)).collect();
                let object = object.as_ref().map(shown);
                Err(format!(
                    "{paths:?} at {point} in {from}..{until}: {level:?} of {object:?} was promised, but there is {found:?}"
                ))
            }
        }
    }
}

fn state_found(found: &Snapshot) -> State {
    let entries = found.tree.iter().filter(|(path, _)| !path.starts_with("/lost+found"));
    let object = |(path, entry): (&String, &testkit::crash::Entry)| {
        let contents = found.contents.get(&entry.inode).cloned().unwrap_or_default();
        let xattrs = found.xattrs.get(&entry.inode).cloned().unwrap_or_default();
        let allocated = found.allocated.get(&entry.inode).cloned().unwrap_or_default();
        let target = entry.target.clone();
        let (inode, kind, links) = (entry.inode, entry.kind, links_of(entry.kind, entry.links));
        let Owned { uid, gid, modified } = found.owned[&entry.inode];
        let (permissions, modified) = (entry.permissions, modified_of(kind, modified));
        let object = Object {
            inode,
            kind,
            links,
            contents,
            allocated,
            xattrs,
            target,
            permissions,
            uid,
            gid,
            modified,
        };
        (path.clone(), object)
    };
    entries.map(object).collect()
}

/// Returns the number of links that an [`Object`] has.
fn links_of(kind: FileType, links: u32) -> u32 {
    if kind == FileType::Directory { 0 } else { links }
}

/// Returns the time that an [`Object`] has.
fn modified_of(kind: FileType, modified: Timestamp) -> Option<Timestamp> {
    (kind != FileType::Directory).then_some(modified)
}
