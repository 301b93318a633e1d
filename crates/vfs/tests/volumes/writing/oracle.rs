//! The same changes on a volume and in a directory of the host: both succeed, or fail with the same
//! error number.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::attributes::FileType;
use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, FileType as HostType, Mode, RenameFlags as HostFlags};
use rustix::io::Errno;
use vfs::{Follow, RenameFlags};

use crate::writing::*;

#[derive(Clone, Debug)]
enum Change {
    Mkdir(String),
    Create(String),
    Symlink(String),
    Link(String, String),
    Remove(String),
    Rename(String, String, u8),
}

fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![4 => "[ab]", 1 => Just("..".to_owned()), 1 => Just(".".to_owned())];
    let slash = prop_oneof![5 => Just(""), 1 => Just("/")];
    (proptest::collection::vec(name, 1..4), slash).prop_map(|(names, end)| names.join("/") + end)
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => path().prop_map(Change::Mkdir),
        2 => path().prop_map(Change::Create),
        1 => path().prop_map(Change::Symlink),
        1 => (path(), path()).prop_map(|(from, to)| Change::Link(from, to)),
        2 => path().prop_map(Change::Remove),
        5 => (path(), path(), 0..3_u8).prop_map(|(from, to, flags)| Change::Rename(from, to, flags)),
    ]
}

fn here(volume: &Volume, change: &Change) -> Result<(), base::Error> {
    match change {
        Change::Mkdir(path) => volume.mkdir(path.as_bytes(), 0o755, &ROOT).map(drop),
        Change::Create(path) => volume.create_file(path.as_bytes(), 0o644, &ROOT).map(drop),
        Change::Symlink(path) => {
            volume.create_at(path.as_bytes(), &Creation::symlink(b"a"), &ROOT).map(drop)
        }
        Change::Link(from, to) => volume.link_at(from.as_bytes(), to.as_bytes()),
        Change::Remove(path) => volume.remove(path.as_bytes(), &ROOT),
        Change::Rename(from, to, flags) => {
            let flags =
                RenameFlags { no_replace: *flags == 1, exchange: *flags == 2, whiteout: false };
            volume.rename_at(from.as_bytes(), to.as_bytes(), flags, &ROOT)
        }
    }
}

fn on_host(root: &Path, change: &Change) -> Result<(), Errno> {
    match change {
        Change::Mkdir(path) => rustix::fs::mkdir(root.join(path), Mode::RWXU),
        Change::Create(path) => {
            rustix::fs::mknodat(CWD, root.join(path), HostType::RegularFile, Mode::RUSR, 0)
        }
        Change::Symlink(path) => rustix::fs::symlink("a", root.join(path)),
        Change::Link(from, to) => rustix::fs::link(root.join(from), root.join(to)),
        Change::Remove(path) => match rustix::fs::unlink(root.join(path)) {
            Err(Errno::ISDIR | Errno::PERM) => rustix::fs::rmdir(root.join(path)),
            // A file whose path ends with a slash, or a directory.
            Err(Errno::NOTDIR) => rustix::fs::unlinkat(CWD, root.join(path), AtFlags::REMOVEDIR),
            done => done,
        },
        Change::Rename(from, to, flags) => {
            let flags = match flags {
                1 => HostFlags::NOREPLACE,
                2 => HostFlags::EXCHANGE,
                _ => HostFlags::empty(),
            };
            rustix::fs::renameat_with(CWD, root.join(from), CWD, root.join(to), flags)
        }
    }
}

/// Returns all paths, with whether they are directories and the number of links.
fn listing_here(volume: &Volume) -> Vec<(PathBuf, bool, u32)> {
    let mut all = Vec::new();
    let mut ahead = vec![PathBuf::new()];
    while let Some(directory) = ahead.pop() {
        for name in ["a", "b"] {
            let path = directory.join(name);
            let Ok(node) = volume.resolve(path.as_os_str().as_encoded_bytes(), Follow::No) else {
                continue;
            };
            let is_directory = node.kind() == FileType::Directory;
            all.push((path.clone(), is_directory, node.attributes().links));
            ahead.extend(is_directory.then_some(path));
        }
    }
    all
}

fn listing_on_host(root: &Path) -> Vec<(PathBuf, bool, u32)> {
    let mut all = Vec::new();
    let mut ahead = vec![PathBuf::new()];
    while let Some(directory) = ahead.pop() {
        for name in ["a", "b"] {
            let path = directory.join(name);
            let Ok(found) = root.join(&path).symlink_metadata() else { continue };
            all.push((path.clone(), found.is_dir(), found.nlink() as u32));
            ahead.extend(found.is_dir().then_some(path));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn errors_and_results_are_those_of_the_host(
        changes in proptest::collection::vec(change(), 1..40),
    ) {
        let (volume, file_system) = volume();
        // Paths with ".." that lead out of the directory on the host are left out.
        let host = tempfile::tempdir_in("/dev/shm").unwrap();
        for change in &changes {
            if is_excluded(change) {
                continue;
            }
            let expected = on_host(host.path(), change);
            let found = here(&volume, change);
            let found = found.as_ref().map(|()| 0).unwrap_or_else(base::Error::errno);
            let expected = expected.map(|()| 0).unwrap_or_else(Errno::raw_os_error);
            prop_assert_eq!(found, expected, "{:?}", change);
        }
        prop_assert_eq!(listing_here(&volume), listing_on_host(host.path()));
        prop_assert_eq!(file_system.verify(), 0);
    }
}

/// Returns whether a path may lead out of the directory on the host. Also returns true if two
/// errors apply, of which Linux and this library are known to return different ones.
fn is_excluded(change: &Change) -> bool {
    if let Change::Rename(from, to, 1 | 2) = change {
        if from.ends_with('/') || to.ends_with('/') {
            return true;
        }
    }
    let paths: &[&String] = match change {
        Change::Mkdir(path) | Change::Create(path) | Change::Symlink(path) => &[path],
        Change::Remove(path) => &[path],
        Change::Link(from, to) | Change::Rename(from, to, _) => &[from, to],
    };
    paths.iter().any(|path| {
        let mut depth = 0_i32;
        let names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
        let mut depths = names.map(|name| {
            depth += if name == ".." { -1 } else { 1 };
            depth
        });
        let last = path.trim_end_matches('/').rsplit('/').next();
        depths.any(|depth| depth < 0) || matches!(last, Some("." | ".."))
    })
}
