//! Names, directories, links and inodes without data.

use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::{TreeOptions, folder, join, write};
use crate::must;

/// Creates names of many lengths, and names with bytes that programs may handle wrongly.
pub(super) fn names(top: &Path) {
    let mut names: Vec<Vec<u8>> = vec![
        b" ".to_vec(),
        b"...".to_vec(),
        b"-rf".to_vec(),
        b"a b\tc\nd".to_vec(),
        b"\\".to_vec(),
        b"'\"$`*?[".to_vec(),
        b"\xff\xfe\x80".to_vec(),
        b"\x01\x7f".to_vec(),
        "größe".into(),
        "文件".into(),
        "\u{1F4C1}".into(),
    ];
    names.extend([2, 3, 4, 5, 7, 8, 127, 128, 254, 255].map(|length| vec![b'n'; length]));
    names.push(vec![0xE9; 255]);
    for name in names {
        write(&join(top, &name), &name);
    }
}

/// Creates directories: empty, deep, large, with removed names, with many subdirectories.
pub(super) fn directories(top: &Path, options: &TreeOptions) {
    folder(top, "empty");

    let mut deep = folder(top, "deep");
    for level in 0..60 {
        deep = folder(&deep, &format!("level-{level}"));
    }
    write(&deep.join("bottom"), "the bottom");

    let wide = folder(top, "wide");
    for number in 0..100 {
        folder(&wide, &format!("{number}"));
    }

    // Links, since many names need no inodes of their own.
    let large = folder(top, "large");
    let target = large.join("the file behind the names");
    write(&target, "one file");
    for number in 0..options.names {
        let name = format!("{number}-{}", "x".repeat(number * 7 % 90));
        must(std::fs::hard_link(&target, large.join(&name)), name);
    }

    let thinned = folder(top, "thinned");
    let target = thinned.join("kept");
    write(&target, "kept");
    let name = |number: usize| thinned.join(format!("{number:040}"));
    for number in 0..400 {
        must(std::fs::hard_link(&target, name(number)), "a link");
    }
    for number in (0..400).filter(|number| number % 3 != 0) {
        must(std::fs::remove_file(name(number)), "removing a link");
    }

    let emptied = folder(top, "emptied");
    for number in 0..100 {
        write(&emptied.join(format!("{number:0100}")), "");
    }
    for number in 0..100 {
        must(std::fs::remove_file(emptied.join(format!("{number:0100}"))), "removing a file");
    }
}

/// Creates several names for an inode, of each type that permits this.
pub(super) fn links(top: &Path) {
    let below = folder(top, "below");
    write(&top.join("file"), "linked");
    must(symlink("file", top.join("symlink")), "a symbolic link");
    node(&top.join("fifo"), FileType::Fifo, 0, 0);
    for name in ["file", "symlink", "fifo"] {
        must(std::fs::hard_link(top.join(name), below.join(name)), name);
        must(std::fs::hard_link(top.join(name), top.join(format!("{name} again"))), name);
    }
}

/// Creates symbolic links, with lengths around the maximum in an inode, and up to the longest.
pub(super) fn symlinks(top: &Path, options: &TreeOptions) {
    for target in ["names/ ", "/absolute", "..", ".", "missing", "loop", "\u{1F4C1}"] {
        let name = target.replace('/', "_");
        must(symlink(target, top.join(format!("to {name}"))), target);
    }
    must(symlink("loop", top.join("loop")), "a loop");
    // A target and the zero byte after it must fit into a block, and into PATH_MAX.
    let longest = (options.block_size as usize - 1).min(4095);
    for length in [1, 58, 59, 60, 61, 100, 155, 156, 157, 255, 256, 1000, longest] {
        // Has slashes, since some tools check the length of names in targets.
        let target: String = "target/".chars().cycle().take(length).collect();
        let path = top.join(format!("length {length}"));
        if length == longest && path.exists() {
            continue;
        }
        must(symlink(&target, &path), length);
    }
}

fn node(path: &Path, kind: FileType, major: u32, minor: u32) {
    let mode = Mode::from_raw_mode(0o640);
    must(mknodat(CWD, path, kind, mode, makedev(major, minor)), path.display());
}

/// Creates devices of both encodings, pipes and sockets.
pub(super) fn special(top: &Path) {
    node(&top.join("fifo"), FileType::Fifo, 0, 0);
    node(&top.join("socket"), FileType::Socket, 0, 0);
    for (major, minor) in
        [(0, 0), (1, 3), (8, 255), (255, 255), (8, 256), (256, 1), (259, 70_000), (4095, 0xF_FFFF)]
    {
        node(&top.join(format!("char {major}:{minor}")), FileType::CharacterDevice, major, minor);
        node(&top.join(format!("block {major}:{minor}")), FileType::BlockDevice, major, minor);
    }
}
