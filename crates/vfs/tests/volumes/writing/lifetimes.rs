//! Lifetimes of inodes without a name.

use base::Error;
use base::attributes::FileType;
use vfs::{Creation, RenameFlags};

use crate::writing::*;

#[test]
fn the_last_user_of_a_file_without_a_name_deletes_it() {
    let (volume, file_system) = volume();
    let file = create(&volume, "/file");
    let other = node(&volume, "/file");
    volume.remove(b"/file", &ROOT).unwrap();
    assert_eq!((file.attributes().links, file_system.verify()), (0, 1));
    file.set_size(5, vfs::Privileges::Keep).unwrap();
    drop(file);
    assert_eq!(other.attributes().size, 5);
    // A lookup by number returns the same node.
    assert!(Arc::ptr_eq(&volume.node(other.number()).unwrap(), &other));
    assert_eq!(file_system.released(), 0);
    let number = other.number();
    drop(other);
    assert_eq!((file_system.released(), file_system.inode_count()), (1, 1));
    assert_eq!(volume.node(number).unwrap_err(), Error::NotFound);
}

#[test]
fn a_reused_inode_number_has_a_new_node() {
    let (volume, file_system) = volume_with(4);
    for round in 0..300 {
        let file = create(&volume, "/file");
        let number = file.number();
        volume.remove(b"/file", &ROOT).unwrap();
        drop(file);
        let directory = mkdir(&volume, "/dir");
        assert_eq!(directory.number(), number, "numbers are reused at once");
        assert_eq!(node(&volume, "/dir").kind(), FileType::Directory);
        volume.remove(b"/dir", &ROOT).unwrap();
        drop(directory);
        assert_eq!(file_system.released(), 2 * (round + 1));
    }
    assert_eq!(
        file_system.loads(),
        1,
        "only the root is loaded: all other inodes were just created"
    );
}

#[test]
fn a_removed_directory_exists_until_its_last_user_drops_it() {
    let (volume, file_system) = volume();
    let directory = mkdir(&volume, "/d");
    volume.remove(b"/d", &ROOT).unwrap();
    assert_eq!(directory.attributes().links, 0);
    assert_eq!(directory.lookup(b"x"), Err(Error::NotFound));
    drop(directory);
    assert_eq!(file_system.released(), 1);
}

#[test]
fn a_file_created_without_a_name_can_be_linked() {
    let (volume, file_system) = volume_with(1);
    let root = volume.root().unwrap();
    let unnamed = || volume.create_unnamed(&root, &regular(0o600), &ROOT).unwrap();
    drop(unnamed());
    assert_eq!(file_system.released(), 1);
    let file = unnamed();
    volume.link(&root, b"file", &file).unwrap();
    assert_eq!(file_system.verify(), 0);
    drop(file);
    assert_eq!(file_system.released(), 1);
    assert_eq!(node(&volume, "/file").attributes().permissions, 0o600);
    let directory = Creation::of(FileType::Directory, 0o755);
    let made = volume.create_unnamed(&root, &directory, &ROOT);
    assert_eq!(made.unwrap_err(), Error::IsDirectory);
}

#[test]
fn a_file_that_has_lost_its_last_name_cannot_be_linked() {
    let (volume, file_system) = volume();
    let root = volume.root().unwrap();
    let file = create(&volume, "/file");
    volume.remove(b"/file", &ROOT).unwrap();
    assert_eq!(volume.link(&root, b"again", &file), Err(Error::NotFound));
    drop(file);
    // Also if it was created without a name.
    let file = volume.create_unnamed(&root, &regular(0o600), &ROOT).unwrap();
    volume.link(&root, b"once", &file).unwrap();
    volume.remove(b"/once", &ROOT).unwrap();
    assert_eq!(volume.link(&root, b"again", &file), Err(Error::NotFound));
    drop(file);
    assert_eq!(file_system.verify(), 0);
}

#[test]
fn the_last_user_of_a_file_that_a_rename_replaced_deletes_it() {
    let (volume, file_system) = volume();
    create(&volume, "/a");
    let replaced = create(&volume, "/b");
    volume.rename_at(b"/a", b"/b", RenameFlags::default(), &ROOT).unwrap();
    assert_eq!((replaced.attributes().links, file_system.released()), (0, 0));
    drop(replaced);
    assert_eq!(file_system.released(), 1);
    create(&volume, "/c");
    volume.rename_at(b"/b", b"/c", RenameFlags::default(), &ROOT).unwrap();
    assert_eq!((file_system.released(), file_system.inode_count()), (2, 2));
}

#[test]
fn dropping_a_volume_drops_its_nodes() {
    let (volume, file_system) = volume();
    create(&volume, "/file");
    drop(volume);
    assert_eq!(Arc::strong_count(&file_system), 1);
}
