//! Volumes with files of every kind and an exact number of free clusters or inodes.

use std::path::Path;
use std::sync::Arc;

use base::{BlockSize, Error};
use testkit::f2fs::make::{MakeOptions, make_file};
use testkit::{Mke2fs, f2fs};
use vfs::{Creation, Credentials, Follow, Privileges, Volume, XattrMode};

use super::operations::{WRITE, acl, name};
use super::{Kind, contents, open};

const ROOT: &Credentials = &Credentials::ROOT;

/// The resource that is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    Clusters,
    Inodes,
}

/// The number of clusters of the file that is truncated to free some.
const SPARE_CLUSTERS: u64 = 24;

/// Returns the image of a full volume.
pub fn full(kind: &Kind, shortage: Shortage, folder: &Path) -> Arc<Vec<u8>> {
    let image = if kind.is_f2fs() { make_f2fs(kind, folder) } else { make_ext4(kind, folder) };
    // The next name in the indexed directory must need a new block. A copy shows how many names fit
    // before.
    let (_, volume) = open(&image);
    populate(&volume, kind);
    let names = until_it_grows(&volume, "/indexed", u64::MAX);
    drop(volume);
    let (device, volume) = open(&image);
    populate(&volume, kind);
    until_it_grows(&volume, "/indexed", names);
    match shortage {
        Shortage::Clusters => fill_clusters(&volume, kind),
        Shortage::Inodes => fill_inodes(&volume),
    }
    volume.close().unwrap();
    drop(volume);
    contents(&device)
}

/// The contents of the file `/small`.
const SMALL: &[u8] = b"a few bytes of data";

fn make_ext4(kind: &Kind, folder: &Path) -> Arc<Vec<u8>> {
    let source = folder.join("source");
    let directory = source.join("small-directory");
    let _ = std::fs::create_dir_all(&directory);
    std::fs::write(source.join("small"), SMALL).unwrap();
    std::fs::write(directory.join("file"), "").unwrap();
    let image = folder.join("image");
    let size = kind.mebibytes << 20;
    let arguments = format!("{} -m 0 -N 160 -I 256", kind.arguments);
    let made = Mke2fs { size, ..Mke2fs::new(kind.format, kind.block_size) }.with(&arguments);
    made.make(&image, Some(&source));
    Arc::new(std::fs::read(image).unwrap())
}

fn make_f2fs(kind: &Kind, folder: &Path) -> Arc<Vec<u8>> {
    let image = folder.join("image");
    if kind.block_size > f2fs::BLOCK_SIZE {
        let block_size = BlockSize::from_bytes(kind.block_size.into()).unwrap();
        make_file(&image, &MakeOptions::new(block_size, kind.mebibytes << 20));
    } else {
        f2fs::Kind::named(kind.arguments).make(&image, kind.mebibytes);
    }
    let (device, volume) = open(&Arc::new(std::fs::read(image).unwrap()));
    create(&volume, "/small");
    volume.mkdir(b"/small-directory", 0o755, ROOT).unwrap();
    create(&volume, "/small-directory/file");
    volume.close().unwrap();
    let mut image = contents(&device);
    f2fs::store_inline(Arc::<Vec<u8>>::make_mut(&mut image), b"small", SMALL);
    image
}

/// Returns the full volume's image with `free` free clusters or inodes.
pub fn with_shortage(full: &Arc<Vec<u8>>, shortage: Shortage, free: u64) -> Arc<Vec<u8>> {
    let (device, volume) = open(full);
    match shortage {
        Shortage::Clusters => {
            let spare = volume.resolve(b"/spare", Follow::No).unwrap();
            let left = SPARE_CLUSTERS - free;
            let cluster = spare.attributes().size / SPARE_CLUSTERS;
            spare.set_size(left * cluster, Privileges::Keep).unwrap();
        }
        Shortage::Inodes => {
            for index in 0..free {
                volume.remove(format!("/empty/{index}").as_bytes(), ROOT).unwrap();
            }
        }
    }
    volume.close().unwrap();
    drop(volume);
    contents(&device)
}

fn write(volume: &Volume, path: &str, at: u64, data: &[u8]) -> base::Result<()> {
    let node = volume.resolve(path.as_bytes(), Follow::No)?;
    let file = node.open_for(WRITE)?;
    file.write_at(data, at)?;
    file.sync_all()
}

fn create(volume: &Volume, path: &str) {
    volume.create_file(path.as_bytes(), 0o644, ROOT).unwrap();
}

/// Creates the files for the operations.
fn populate(volume: &Volume, kind: &Kind) {
    for directory in ["acl", "full", "indexed", "empty", "fill", "one", "two"] {
        volume.mkdir(format!("/{directory}").as_bytes(), 0o755, ROOT).unwrap();
    }
    volume.mkdir(b"/one/directory", 0o755, ROOT).unwrap();
    let inherited = volume.resolve(b"/acl", Follow::No).unwrap();
    let default = b"system.posix_acl_default";
    inherited.set_xattr(default, &acl(30), XattrMode::Either, Privileges::Keep).unwrap();
    for file in ["/file", "/other", "/with-acl", "/many-links", "/two/file"] {
        create(volume, file);
    }
    let with_acl = volume.resolve(b"/with-acl", Follow::No).unwrap();
    let access = b"system.posix_acl_access";
    with_acl.set_xattr(access, &acl(30), XattrMode::Either, Privileges::Keep).unwrap();
    // As many extents, with holes between them, as fit in an inode.
    let block = u64::from(kind.block_size);
    let unit = 64 << 10;
    for piece in 0..4 {
        write(volume, "/file", piece * 2 * unit, &vec![7; 4 * block as usize]).unwrap();
    }
    volume.create_at(b"/link", &Creation::symlink(b"somewhere"), ROOT).unwrap();
    until_it_grows(volume, "/full", names_in_a_block(kind));
    for index in 0..20 {
        create(volume, &format!("/fill/{index}"));
    }
}

/// Returns the number of long names that fit in one block of a directory.
fn names_in_a_block(kind: &Kind) -> u64 {
    u64::from(kind.block_size - 64) / 264
}

/// Adds `names` names of one file to a directory, or as many as fit before the directory grows for
/// the third time. Returns the number of names.
fn until_it_grows(volume: &Volume, directory: &str, names: u64) -> u64 {
    let size = || volume.resolve(directory.as_bytes(), Follow::No).unwrap().attributes().size;
    let (mut before, mut growths) = (size(), 0);
    for index in 0..names {
        let path = format!("{directory}/{}", name(&format!("{index}")));
        volume.link_at(b"/many-links", path.as_bytes()).unwrap();
        if size() > before {
            (before, growths) = (size(), growths + 1);
            if growths == 3 {
                return index;
            }
        }
    }
    names
}

/// Fills the volume to its last cluster.
fn fill_clusters(volume: &Volume, kind: &Kind) {
    let statfs = volume.statfs();
    let cluster = match kind.name {
        "bigalloc" => 16384,
        _ => u64::from(statfs.block_size),
    };
    create(volume, "/spare");
    write(volume, "/spare", 0, &vec![1; (SPARE_CLUSTERS * cluster) as usize]).unwrap();
    // Large pieces first.
    let (mut at, mut piece) = (0, 256 << 10);
    while piece >= cluster {
        match write(volume, "/fill/0", at, &vec![2; piece as usize]) {
            Ok(()) => at += piece,
            Err(Error::NoSpace | Error::NoInodes) => piece /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    // The first file failed because its map needs blocks, too. These files need none for their
    // maps.
    for index in 1..20 {
        let path = format!("/fill/{index}");
        for block in 0..12 {
            match write(volume, &path, block * cluster, &vec![3; cluster as usize]) {
                Ok(()) => {}
                Err(Error::NoSpace | Error::NoInodes) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
    panic!("the volume does not become full");
}

/// Allocates all inodes.
fn fill_inodes(volume: &Volume) {
    for index in 0.. {
        let path = format!("/empty/{index}");
        match volume.create_file(path.as_bytes(), 0o644, ROOT) {
            Ok(_) => {}
            Err(Error::NoSpace | Error::NoInodes) => return,
            Err(error) => panic!("{error}"),
        }
    }
}
