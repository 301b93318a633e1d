//! Trees of many levels: the memory of the commands that list them grows with their number of files, and so does the output,
//! except for paths.

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;

use bifolio::{Creation, Credentials, FileType, Node, Volume, VolumeOptions};
use support::{Image, bifolio};
use testkit::Mke2fs;

/// The number of levels. Each has a directory with the next one, and after that an empty directory.
const LEVELS: usize = 6_000;
/// The memory that a command may take. The paths of all levels have 36 MB.
const MEMORY_MAX: u64 = 48 << 20;

fn deep_image() -> Image {
    let image = Image::empty();
    let recipe = Mke2fs::new("ext4", 1024).with("-N 16000 -O ^has_journal");
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

fn make_directory(volume: &Volume, parent: &Arc<Node>, name: &[u8]) -> Arc<Node> {
    let creation = Creation::of(FileType::Directory, 0o755);
    volume.create_in(parent, name, &creation, &Credentials::ROOT).unwrap()
}

/// The output of a command.
#[derive(Debug, Default)]
struct Listed {
    lines: usize,
    longest: usize,
    /// The maximum memory in use, in bytes.
    memory: u64,
}

/// Runs a command on the image, with a small cache.
fn list(image: &Image, arguments: &[&str]) -> Listed {
    let mut command = bifolio();
    command.args(arguments).args(["--cache-size", "8M"]).arg(image.at("/"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
    let mut listed = Listed::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).unwrap() > 0 {
        listed.lines += 1;
        listed.longest = listed.longest.max(line.len());
        line.clear();
        if listed.lines % 64 == 0 {
            listed.memory = memory(child.id()).unwrap_or(listed.memory);
        }
    }
    assert!(child.wait().unwrap().success(), "{arguments:?}");
    assert!(listed.memory > 0, "{arguments:?}: the memory was never seen");
    listed
}

/// Returns the maximum memory of a process until now, in bytes. `None` if it has ended.
fn memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
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
        let listed = list(&image, arguments);
        assert_eq!(listed.lines, lines, "{arguments:?}");
        assert!(listed.memory < MEMORY_MAX, "{arguments:?}: {listed:?}");
        let has_paths = arguments[0] != "tree";
        // The bars of 64 levels have 6 bytes each.
        assert!(has_paths || listed.longest < 500, "{listed:?}");
    }
}
