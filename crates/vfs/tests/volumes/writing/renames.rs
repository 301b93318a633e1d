//! Renames.

use base::Error;
use base::attributes::FileType;
use vfs::{Follow, RenameFlags};

use crate::writing::*;

const MOVE: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, ..MOVE };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..MOVE };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..MOVE };

/// Creates `/d/e/f/`, `/d/file`, `/empty/` and `/top`.
fn tree() -> (Volume, Arc<MemoryFileSystem>) {
    let (volume, file_system) = volume();
    for path in ["/d", "/d/e", "/d/e/f", "/empty"] {
        mkdir(&volume, path);
    }
    create(&volume, "/d/file");
    create(&volume, "/top");
    (volume, file_system)
}

#[track_caller]
fn check(from: &str, to: &str, flags: RenameFlags, expected: Result<(), Error>) {
    let (volume, file_system) = tree();
    let moved = volume.resolve(from.as_bytes(), Follow::No).map(|node| node.number());
    let done = volume.rename_at(from.as_bytes(), to.as_bytes(), flags, &ROOT);
    match (&done, &expected) {
        (Err(Error::InvalidArgument(_)), Err(Error::InvalidArgument(_))) => {}
        _ => assert_eq!(done, expected, "{from} to {to}"),
    }
    assert_eq!(file_system.verify(), 0);
    if done.is_ok() {
        assert_eq!(node(&volume, to).number(), moved.unwrap());
    }
}

#[test]
fn names_move_within_and_between_directories() {
    check("/top", "/new", MOVE, Ok(()));
    check("/top", "/d/new", MOVE, Ok(()));
    check("/d/e", "/empty/e", MOVE, Ok(()));
    check("/d/e/f", "/f/", MOVE, Ok(()));
    check("/top", "/top", MOVE, Ok(()));
    check("/none", "/new", MOVE, Err(Error::NotFound));
    check("/top", "/none/new", MOVE, Err(Error::NotFound));
    check("/top", "/new/", MOVE, Err(Error::NotDirectory));
    check("/top/", "/new", MOVE, Err(Error::NotDirectory));
}

#[test]
fn a_replaced_inode_must_have_the_same_type_and_be_empty() {
    check("/top", "/d/file", MOVE, Ok(()));
    check("/d/e", "/empty", MOVE, Ok(()));
    check("/empty", "/d/e/f", MOVE, Ok(()));
    check("/empty", "/d", MOVE, Err(Error::NotEmpty));
    check("/top", "/empty", MOVE, Err(Error::IsDirectory));
    check("/empty", "/top", MOVE, Err(Error::NotDirectory));
    check("/top", "/d/file", NO_REPLACE, Err(Error::Exists));
    check("/top", "/d/new", NO_REPLACE, Ok(()));
}

#[test]
fn a_directory_is_never_moved_into_itself() {
    let invalid = || Err(Error::InvalidArgument(""));
    check("/d", "/d/e/new", MOVE, invalid());
    check("/d", "/d/new", MOVE, invalid());
    check("/d", "/d/e/f", MOVE, invalid());
    check("/d", "/d/e/f", EXCHANGE, invalid());
    check("/d/e/f", "/d", EXCHANGE, invalid());
    check("/d/e/f", "/d", MOVE, Err(Error::NotEmpty));
    check("/d/file", "/d", MOVE, Err(Error::NotEmpty));
    check("/d/e", "/d", MOVE, Err(Error::NotEmpty));
    check("/", "/new", MOVE, invalid());
}

#[test]
fn an_exchange_keeps_both_inodes() {
    check("/top", "/empty", EXCHANGE, Ok(()));
    check("/d/e", "/top", EXCHANGE, Ok(()));
    check("/d/e", "/empty", EXCHANGE, Ok(()));
    check("/top", "/none", EXCHANGE, Err(Error::NotFound));
    let both = RenameFlags { exchange: true, ..WHITEOUT };
    check("/top", "/empty", both, Err(Error::InvalidArgument("")));
}

#[test]
fn a_whiteout_stays_at_the_old_name() {
    let (volume, file_system) = tree();
    volume.rename_at(b"/top", b"/d/file", WHITEOUT, &ROOT).unwrap();
    let whiteout = node(&volume, "/top");
    assert_eq!(whiteout.kind(), FileType::CharacterDevice);
    assert_eq!((whiteout.attributes().device.major, whiteout.attributes().links), (0, 1));
    drop(whiteout);
    assert_eq!((file_system.verify(), file_system.released()), (0, 1));
    // A failed rename leaves no whiteout.
    let failed = volume.rename_at(b"/empty", b"/d", WHITEOUT, &ROOT);
    assert_eq!(failed, Err(Error::NotEmpty));
    assert_eq!((file_system.verify(), file_system.released()), (0, 2));
}

#[test]
fn a_rename_between_names_of_one_inode_keeps_both() {
    let (volume, file_system) = tree();
    volume.link_at(b"/top", b"/d/other").unwrap();
    volume.rename_at(b"/top", b"/d/other", MOVE, &ROOT).unwrap();
    assert_eq!(node(&volume, "/top").attributes().links, 2);
    assert_eq!(file_system.verify(), 0);
}
