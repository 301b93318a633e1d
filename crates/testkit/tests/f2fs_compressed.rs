//! Compressed files of f2fs that Linux has written and the library changes: Linux and fsck.f2fs
//! find what the library wrote.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base::Error;
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind};
use testkit::turns::{Bytes, OnVolume, Step};
use testkit::{Manifest, Random, guest, must};
use vfs::{F2fsCompressedNames, File, Follow, OpenMode, Privileges, Volume, VolumeOptions};

/// An empty image of a kind.
type Image = (&'static Kind, PathBuf);

const BLOCK: usize = 4096;

/// A change of a file, and what else is done to it.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Writes so many bytes at an offset.
    Write(usize, usize),
    SetSize(usize),
}

use Change::{SetSize, Write};

/// Files of the tree that Linux fills volumes with compression with, and their changes.
const CHANGES: [(&str, &[Change]); 8] = [
    // Within one block, over the border of two clusters, a whole cluster, and past the end.
    (
        "text 01228800",
        &[Write(5000, 100), Write(64 * BLOCK - 10, 20), Write(128 * BLOCK, 16 * BLOCK)],
    ),
    ("text 01228801", &[Write(1_228_801, 50_000), Write(2_000_000, 1)]),
    // An end within a cluster, between two, and none.
    ("text 01230848", &[SetSize(201 * BLOCK + 77), SetSize(900_000)]),
    ("text 00262144", &[SetSize(32 * BLOCK), Write(40 * BLOCK, 10)]),
    ("text 00262145", &[SetSize(0), Write(0, 100)]),
    ("text 00264192", &[SetSize(17 * BLOCK), SetSize(64 * BLOCK)]),
    ("sparse", &[Write(2 * BLOCK, BLOCK), Write(1003 * BLOCK + 5, BLOCK), SetSize(5001 * BLOCK)]),
    ("rewritten", &[Write(0, 3), Write(29 * BLOCK, 10)]),
];

fn path(name: &str) -> String {
    format!("compressed/{name}")
}

fn read(volume: &Volume, name: &str) -> Vec<u8> {
    must(volume.read(path(name)), name)
}

/// Does `change` to a file, and to `contents`. The written bytes are `value`.
fn apply(volume: &Volume, name: &str, change: Change, value: u8, contents: &mut Vec<u8>) {
    let node = must(volume.resolve(path(name).as_bytes(), Follow::No), name);
    match change {
        Write(at, length) => {
            let file = must(node.open_for(OpenMode { write: true, append: false }), name);
            let bytes = vec![value; length];
            assert_eq!(must(file.write_at(&bytes, at as u64), name), length);
            contents.resize(contents.len().max(at + length), 0);
            contents[at..at + length].fill(value);
        }
        SetSize(size) => {
            must(node.set_size(size as u64, Privileges::Keep), name);
            contents.resize(size, 0);
        }
    }
}

/// Data that compresses, or not.
fn data(length: usize, compresses: bool) -> Vec<u8> {
    let mut random = Random(length as u64);
    (0..length).map(|at| if compresses { (at / 100) as u8 } else { random.draw() as u8 }).collect()
}

/// Creates files in a directory whose files are compressed. Returns their names, and what they
/// have.
fn create(volume: &Volume) -> Vec<(&'static str, Vec<u8>)> {
    let (text, noise) = (data(75 * BLOCK + 77, true), data(64 * BLOCK, false));
    let create = |name, contents: &[u8]| {
        must(volume.write(path(name), contents), name);
        let node = must(volume.resolve(path(name).as_bytes(), Follow::No), name);
        (must(node.open_for(OpenMode { write: true, append: false }), name), contents.to_vec())
    };
    let saved = |file: &File| {
        must(file.sync_all(), "fsync");
        must(file.node().compression(), "compression").map(|compression| compression.saved_blocks)
    };
    let (file, new_text) = create("new text", &text);
    assert!(saved(&file) > Some(32), "{:?}", saved(&file));
    let (file, new_noise) = create("new noise", &noise);
    assert_eq!(saved(&file), Some(0));
    let (file, new_zeroes) = create("new zeroes", &vec![0; 256 * BLOCK]);
    assert!(saved(&file) > Some(128), "{:?}", saved(&file));

    // Clusters that become compressed ones, and ones that do not compress any more.
    let (file, mut new_mixed) = create("new mixed", &[&text[..32 * BLOCK], &noise].concat());
    let before = saved(&file);
    for (start, part) in [(16 * BLOCK, &noise[..9000]), (48 * BLOCK, &text[..32 * BLOCK])] {
        must(file.write_at(part, start as u64), "new mixed");
        new_mixed[start..start + part.len()].copy_from_slice(part);
    }
    assert!(saved(&file) > before, "{:?} after {before:?}", saved(&file));
    must(file.node().set_size(70 * BLOCK as u64 + 5, Privileges::Keep), "new mixed");
    new_mixed.truncate(70 * BLOCK + 5);

    // Saved blocks that are free, and of another file, reserved again.
    let (file, new_released) = create("new released", &text);
    let blocks = must(file.sync_all().map(|()| file.node().attributes().blocks), "fsync");
    let released = must(file.node().release_saved_blocks(), "release");
    assert_eq!(Some(released), saved(&create("new reserved", &text).0));
    assert_eq!(file.node().attributes().blocks, blocks - released * (BLOCK as u64 / 512));
    assert!(matches!(file.write_at(b"no", 0), Err(Error::NotPermitted(_))));
    let (file, _) = create("new reserved", &text);
    must(file.sync_all(), "fsync");
    let released = must(file.node().release_saved_blocks(), "release");
    assert!(matches!(file.node().release_saved_blocks(), Err(Error::InvalidArgument(_))));
    assert_eq!(must(file.node().reserve_saved_blocks(), "reserve"), released);
    assert!(matches!(file.node().reserve_saved_blocks(), Err(Error::InvalidArgument(_))));
    assert_eq!(saved(&file), Some(released));
    must(file.write_at(b"yes", 5), "new reserved");
    let new_reserved = [&text[..5], b"yes", &text[8..]].concat();
    vec![
        ("new text", new_text),
        ("new noise", new_noise),
        ("new zeroes", new_zeroes),
        ("new mixed", new_mixed),
        ("new released", new_released),
        ("new reserved", new_reserved),
    ]
}

/// Changes files of an image, with a sync after each change if `syncs`, creates some, and removes
/// some. Checks what they have.
fn change(image: &Path, syncs: bool) {
    let ours = OnVolume::open(image);
    let mut expected = Vec::new();
    for (name, changes) in CHANGES {
        let mut contents = read(ours.volume(), name);
        for (change, value) in changes.iter().zip(1..) {
            apply(ours.volume(), name, *change, value, &mut contents);
            assert!(read(ours.volume(), name) == contents, "{name} after {change:?}");
            if syncs {
                ours.sync();
            }
        }
        expected.push((name, contents));
    }
    expected.extend(create(ours.volume()));
    ours.close();
    let mut ours = OnVolume::open(image);
    for (name, contents) in expected {
        assert!(read(ours.volume(), name) == contents, "{name} after the volume was closed");
    }
    let removed = ["text 01228800", "text 00032768", "released"];
    ours.run(&removed.map(|name| Step::Remove(path(name))));
    ours.close();
}

/// Checks that a file whose saved blocks were released is not written.
fn refuse_released(image: &Path) {
    let ours = OnVolume::open(image);
    let node = must(ours.volume().resolve(b"compressed/released", Follow::No), "released");
    let file = must(node.open_for(OpenMode { write: true, append: false }), "released");
    let refused = file.write_at(b"new", 5);
    assert!(matches!(refused, Err(Error::NotPermitted(_))), "{refused:?}");
    drop(file);
    drop(node);
    ours.close();
}

fn changed_files() {
    let folder = must(TempDir::new(), "a folder");
    let images: Vec<Image> = ["lz4", "zstd"]
        .map(|name| {
            let (kind, image) = (Kind::named(name), folder.path().join(name));
            kind.make(&image, kind.megabytes);
            (kind, image)
        })
        .into();
    f2fs::fill_all(&images);
    for (number, (_, image)) in images.iter().enumerate() {
        refuse_released(image);
        change(image, number == 0);
        f2fs::check_by_both(image);
    }
    let ours: Vec<Manifest> = images.iter().map(|(_, image)| Manifest::of_image(image)).collect();
    let of_guest = f2fs::list_all(&images);
    for (number, (kind, image)) in images.iter().enumerate() {
        // Linux reports preallocated blocks behind data as data.
        let comparable = |manifest: &Manifest| {
            manifest.clone().map(|_, _, fact, value| (fact != "data").then(|| value.to_owned()))
        };
        let [ours, of_guest] = [&ours[number], &of_guest[number]].map(comparable);
        ours.assert_equal(&format!("{}: our reading", kind.name), &of_guest, "that of Linux");
        f2fs::check_by_both(image);
    }
}

/// Lets Linux and the library create the same files, and compares which of them are compressed.
fn names() {
    static KIND: LazyLock<Kind> = LazyLock::new(|| Kind {
        options: "compress_extension=so,compress_extension=txt,nocompress_extension=gz",
        ..*Kind::named("lz4")
    });
    // Extensions, others that begin like them, and those of hot files.
    let names = [
        ["a.so", "a.SO.tmp", "a.soup", ".so", "so", "a"],
        ["a.txt", "a.so.txt", "a.so.gz", "a.gz.so", "a.gz", "a.GZ.so.tmp"],
        ["a.gzip.so", "a.txt.gzip", "a.txt.gzip.tmp", "a.so.db", "a.db.txt", "a.dbx.txt"],
    ]
    .concat();
    let names = &names;
    let bytes = Bytes { seed: 1, length: 100 };
    let steps: Vec<_> = names.iter().map(|&name| Step::Write(name.to_owned(), 0, bytes)).collect();
    let folder = must(TempDir::new(), "a folder");
    let [of_linux, of_library] = ["Linux", "library"].map(|name| folder.path().join(name));
    for image in [&of_linux, &of_library] {
        KIND.make(image, KIND.megabytes);
    }
    let of_linux = f2fs::change_all(&[(&KIND, of_linux)], &steps).remove(0);
    let list = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect();
    let mut options = VolumeOptions::default();
    options.f2fs.compressed_names =
        F2fsCompressedNames { compressed: list(&["so", "txt"]), uncompressed: list(&["gz"]) };
    let mut ours = OnVolume::open_with(&of_library, options);
    ours.run(&steps);
    ours.close();
    let ours = Manifest::of_image(&of_library);
    // The flags that Linux shows have those of inline data, too.
    let compressed = |manifest: &Manifest| -> Vec<&str> {
        let is_compressed = |name: &&&str| manifest.fact(name, "flags") == Some("0x4");
        names.iter().filter(is_compressed).copied().collect()
    };
    let [ours, of_linux] = [&ours, &of_linux].map(compressed);
    assert_eq!(ours, of_linux);
    assert_eq!(ours.len(), 7, "{ours:?}");
    f2fs::check_by_both(&of_library);
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trial = |name, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial("linux_reads_compressed_files_that_the_library_changed", changed_files),
        trial("names_decide_which_files_are_compressed", names),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}
