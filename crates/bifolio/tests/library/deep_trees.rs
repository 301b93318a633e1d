//! Trees of many levels: the memory of the commands that list and copy them grows with their number
//! of files, and so does the output, except for paths.

use std::sync::Arc;
use std::time::Duration;

use crate::support::listed::{list, memory};
use crate::support::{Image, bifolio, shell};
use bifolio::{Creation, Credentials, FileType, Node, Volume, VolumeOptions};
use testkit::Mke2fs;

/// The number of levels. Each has a directory with the next one, and after that an empty directory.
const LEVELS: usize = 12_000;
/// The number of levels above files with two names, and of these files. The paths of all files have
/// 3 MB, and as names in memory they took 80 MB.
const LINKS: usize = 1200;
/// The memory that a command may take. The paths of all levels have 144 MB.
const MEMORY_MAX: u64 = 48 << 20;
/// The processor time that a command may take.
const TIME_MAX: Duration = Duration::from_secs(10);

fn deep_image() -> Image {
    let image = Image::empty();
    let recipe = Mke2fs::new("ext4", 1024).with("-N 32000 -O ^has_journal");
    Mke2fs { size: 128 << 20, ..recipe }.make(&image.path, None);
    let volume = VolumeOptions::new().writable(true).open(&image.path).unwrap();
    let mut directory = volume.root().unwrap();
    for _ in 0..LEVELS {
        let next = make_directory(&volume, &directory, b"a");
        make_directory(&volume, &directory, b"z");
        directory = next;
    }
    volume.close().unwrap();
    image
}

/// An image of so many levels as files, of which each has its first name in the innermost
/// directory, and the other one in one that is copied after it.
fn image_of_links() -> Image {
    let image = Image::empty();
    let recipe = Mke2fs::new("ext4", 1024).with("-N 32000 -O ^has_journal");
    Mke2fs { size: 128 << 20, ..recipe }.make(&image.path, None);
    let volume = VolumeOptions::new().writable(true).open(&image.path).unwrap();
    let root = volume.root().unwrap();
    let mut directory = Arc::clone(&root);
    for _ in 0..LINKS {
        directory = make_directory(&volume, &directory, b"a");
    }
    let files: Vec<_> = (0..LINKS)
        .map(|number| {
            let creation = Creation::of(FileType::Regular, 0o644);
            let name = format!("f{number}");
            volume.create_in(&directory, name.as_bytes(), &creation, &Credentials::ROOT).unwrap()
        })
        .collect();
    let last = make_directory(&volume, &root, b"last");
    for (number, file) in files.iter().enumerate() {
        volume.link(&last, format!("l{number}").as_bytes(), file).unwrap();
    }
    volume.close().unwrap();
    image
}

fn make_directory(volume: &Volume, parent: &Arc<Node>, name: &[u8]) -> Arc<Node> {
    let creation = Creation::of(FileType::Directory, 0o755);
    volume.create_in(parent, name, &creation, &Credentials::ROOT).unwrap()
}

#[test]
fn copies_of_links_in_deep_trees_take_memory_for_their_files_and_not_for_their_paths() {
    let image = image_of_links();
    let destination = image.folder.path().join("copy");
    std::fs::create_dir(&destination).unwrap();
    let mut command = bifolio();
    command.args(["cp", "-a", "--cache-size", "8M", &image.at("/")]).arg(&destination);
    let mut child = command.spawn().unwrap();
    let mut memory_max = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        memory_max = memory(child.id()).unwrap_or(memory_max);
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
    println!("cp -a: {} MiB", memory_max >> 20);
    assert!(memory_max < MEMORY_MAX, "{memory_max}");
    // std::fs cannot remove so many levels.
    let linked = "find last -type f -links 2 | wc -l; cd ..; rm -r copy";
    let linked = shell(&destination, linked);
    assert_eq!(linked.trim(), LINKS.to_string());
}

#[test]
fn listings_of_deep_trees_take_memory_for_their_files_and_not_for_the_square_of_the_depth() {
    let image = deep_image();
    // With the root and "lost+found".
    let directories = 2 * LEVELS + 2;
    for (arguments, lines) in [
        (&["tree"][..], directories + 2),
        (&["find"], directories),
        (&["du"], directories),
        // A title, names and an empty line for each directory.
        (&["ls", "-R"], directories + (directories - 1) + (directories - 1)),
    ] {
        let listed = list(&image.at("/"), arguments);
        assert_eq!(listed.lines, lines, "{arguments:?}");
        assert!(listed.memory < MEMORY_MAX, "{arguments:?}: {listed:?}");
        println!("{arguments:?}: {} MiB, {:?}", listed.memory >> 20, listed.time);
        assert!(listed.time < TIME_MAX, "{arguments:?}: {listed:?}");
        let has_paths = arguments[0] != "tree";
        // The bars of 64 levels have 6 bytes each.
        assert!(has_paths || listed.longest < 500, "{listed:?}");
    }
}
