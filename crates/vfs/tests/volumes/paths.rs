//! Path walks on a toy file system.

use std::sync::Arc;

use base::{Error, InodeNumber};
use testkit::toy::{Content, Toy};
use vfs::{Follow, Volume};

fn volume() -> Volume {
    let inodes = [
        (
            2,
            Content::directory(&[
                ("a", 3),
                ("file", 5),
                ("loop", 6),
                ("abs", 7),
                ("up", 8),
                ("slash", 9),
            ]),
        ),
        // The directory has a wrong parent, which a walk must not use.
        (3, Content::directory(&[("b", 4), ("..", 4), ("empty", 10), ("rel", 11)])),
        (4, Content::directory(&[("deep", 5)])),
        (5, Content::empty_file()),
        (6, Content::symlink("loop")),
        (7, Content::symlink("/a/b/deep")),
        (8, Content::symlink("../../../a")),
        (9, Content::symlink("file/")),
        (10, Content::symlink("")),
        (11, Content::symlink("../file")),
    ];
    Toy::new(Vec::new(), inodes).volume(16)
}

#[track_caller]
fn check(path: &str, follow: Follow, expected: Result<u64, Error>) {
    let found = volume().resolve(path.as_bytes(), follow).map(|node| node.number());
    assert_eq!(found, expected.map(InodeNumber), "{path}");
}

#[test]
fn paths_without_links_lead_to_their_inode() {
    for path in ["", "/", ".", "//", "/..", "../..", "/a/..", "/a/b/../.."] {
        check(path, Follow::Yes, Ok(2));
    }
    check("/a/b/deep", Follow::Yes, Ok(5));
    check("a//b/./deep", Follow::Yes, Ok(5));
    check("/a/b/../../file", Follow::Yes, Ok(5));
    check("/a/", Follow::No, Ok(3));
}

#[test]
fn errors_are_those_of_the_kernel() {
    check("/none", Follow::Yes, Err(Error::NotFound));
    check("/file/x", Follow::Yes, Err(Error::NotDirectory));
    check("/file/..", Follow::Yes, Err(Error::NotDirectory));
    check("/file/", Follow::Yes, Err(Error::NotDirectory));
    check("/loop", Follow::Yes, Err(Error::SymlinkLoop));
    check("/a/empty", Follow::Yes, Err(Error::NotFound));
    check("/slash", Follow::Yes, Err(Error::NotDirectory));
    let nul = Err(Error::InvalidArgument("the path contains NUL"));
    check("/a/\0", Follow::Yes, nul);
}

#[test]
fn links_are_followed_inside_the_volume() {
    check("/abs", Follow::Yes, Ok(5));
    check("/abs", Follow::No, Ok(7));
    check("/up/b", Follow::Yes, Ok(4));
    check("/up/", Follow::No, Ok(3));
    check("/a/rel", Follow::Yes, Ok(5));
    check("/loop", Follow::No, Ok(6));
}

#[test]
fn a_path_that_expands_to_too_many_bytes_is_refused() {
    let long = format!("{}x", "loop/".repeat(20_000));
    check(&long, Follow::Yes, Err(Error::NameTooLong));
}

#[test]
fn a_node_is_loaded_once_while_the_table_keeps_it_and_again_after_it_was_dropped() {
    let inodes = (3..40).map(|number| (number, Content::empty_file()));
    let file_system = Toy::new(Vec::new(), inodes.chain([(2, Content::directory(&[]))]));
    let volume = file_system.volume(4);
    let held = volume.node(InodeNumber(3)).unwrap();
    for number in 4..40 {
        volume.node(InodeNumber(number)).unwrap();
    }
    assert_eq!(file_system.loads(), 37);
    assert!(Arc::ptr_eq(&held, &volume.node(InodeNumber(3)).unwrap()), "a node in use stays");
    assert_eq!(file_system.loads(), 37);
    volume.node(InodeNumber(4)).unwrap();
    assert_eq!(file_system.loads(), 38, "an unused node made room");
}
