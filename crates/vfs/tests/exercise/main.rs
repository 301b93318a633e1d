//! Random operations of all kinds on files and on models of them, with a cache that is smaller than
//! the files. Reads are compared with the models. From time to time the volume is closed, judged by
//! e2fsck or fsck.f2fs, opened and read again. `testkit::exercise` describes the environment
//! variables.

#[path = "../common/mod.rs"]
mod common;
mod operation;
mod subject;

use std::path::{Path, PathBuf};

use base::BlockSize;
use common::{file, make, open};
use device::OpenDevice;
use testkit::exercise::{Model, Run};
use testkit::f2fs::make::{MakeOptions, make_file};
use testkit::{Mke2fs, check_by_e2fsck, f2fs};
use vfs::{Credentials, Volume};

use crate::operation::{Operation, SHARES};
use crate::subject::Subject;

/// The names of the files. Together, the files may be larger than the cache.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// The number of operations between two judgements of the volume. A run of `make test` has several
/// times as many.
const JUDGED_EVERY: u64 = 500;

/// FS_COMPR_FL.
const COMPRESSED: u32 = 4;

/// A format of an image.
enum Format {
    /// With blocks of so many bytes, and more arguments of mke2fs.
    Ext4(u32, &'static str),
    /// A kind of image.
    F2fs(&'static str),
    /// A kind of image, with the compression of each file: the algorithm, and the logarithm of the
    /// blocks in a cluster.
    Compressed(&'static str, [Option<(u8, u8)>; NAMES.len()]),
    /// A volume with blocks of 16 KiB, and the bits of its features.
    LargeF2fs(u32),
}

impl Format {
    fn make(&self, image: &Path) {
        match self {
            Self::Ext4(block_size, arguments) => {
                let kind = Mke2fs { size: 160 << 20, ..Mke2fs::new("ext4", *block_size) };
                kind.with(arguments).make(image, None);
            }
            Self::F2fs(kind) | Self::Compressed(kind, _) => {
                f2fs::Kind::named(kind).make(image, 160);
            }
            Self::LargeF2fs(features) => {
                let block_size = BlockSize::from_shift(14).unwrap();
                let mut options = MakeOptions::new(block_size, 640 << 20);
                options.features = *features;
                make_file(image, &options);
            }
        }
    }

    /// Checks an image by the format's own program, or if it cannot read the image, by the library.
    fn check(&self, image: &Path) {
        match self {
            Self::Ext4(..) => check_by_e2fsck(image),
            Self::F2fs(_) | Self::Compressed(..) => f2fs::check_by_both(image),
            Self::LargeF2fs(_) => {
                let device = device::open(image, OpenDevice::default()).unwrap();
                assert_eq!(f2fs::findings(device), [""; 0]);
            }
        }
    }

    /// Returns whether files can exchange their blocks. With clusters, and on f2fs, they cannot.
    fn moves_extents(&self) -> bool {
        matches!(self, Self::Ext4(_, arguments) if !arguments.contains("bigalloc"))
    }

    /// Returns the size of blocks, and text for messages.
    fn describe(&self) -> (u32, String) {
        match self {
            Self::Ext4(block_size, arguments) => {
                (*block_size, format!("blocks of {block_size} {arguments}"))
            }
            Self::F2fs(kind) => (4096, format!("f2fs {kind}")),
            Self::Compressed(kind, _) => (4096, format!("compressed f2fs {kind}")),
            Self::LargeF2fs(features) => (16_384, format!("f2fs with the features {features:#x}")),
        }
    }
}

/// An image, its volume and the files on it.
struct Stage {
    format: Format,
    image: PathBuf,
    open: Option<(Vec<Subject>, Volume)>,
}

impl Stage {
    fn subjects(&mut self) -> &mut [Subject] {
        &mut self.open.as_mut().unwrap().0
    }

    /// Closes the volume, lets the format's own program judge it, and opens it again.
    fn reopen(&mut self) {
        let (subjects, volume) = self.open.take().unwrap();
        let models: Vec<_> = subjects.into_iter().map(Subject::close).collect();
        self.close(volume);
        let volume = open(&self.image);
        let subjects = models.into_iter();
        let subjects = subjects.map(|model| Subject::new(file(&volume, model.name()), model));
        self.open = Some((subjects.collect(), volume));
        self.subjects().iter().for_each(Subject::check);
    }

    fn close(&self, volume: Volume) {
        volume.close().unwrap();
        drop(volume);
        self.format.check(&self.image);
    }
}

fn exercise(format: Format) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    format.make(&image);
    let (block_size, kind) = format.describe();
    let mut run = Run::new(kind, block_size.into(), 1500);
    let mut shares = SHARES.to_vec();
    if !format.moves_extents() {
        shares.retain(|(operation, _)| *operation != Operation::MoveExtents);
    }
    let volume = open(&image);
    let subjects = NAMES.map(|name| Subject::new(make(&volume, name), Model::new(name)));
    if let Format::Compressed(_, compressions) = &format {
        shares.retain(|(operation, _)| !operation.moves_or_clears());
        for (name, compression) in NAMES.into_iter().zip(compressions) {
            let Some((algorithm, log_cluster_blocks)) = *compression else { continue };
            let file = file(&volume, name);
            file.node().set_flags(COMPRESSED, &Credentials::ROOT).unwrap();
            file.node().set_compression(algorithm, log_cluster_blocks).unwrap();
        }
    }
    let mut stage = Stage { format, image, open: Some((subjects.into(), volume)) };
    while let Some(step) = run.next_step() {
        let operation = run.choose(&shares);
        let index = run.random.below(NAMES.len() as u64) as usize;
        let another = 1 + run.random.below(NAMES.len() as u64 - 1) as usize;
        let range = run.choose_range(stage.subjects()[index].size(), subject::SIZE_MAX);
        run.note(format!("{}: {operation:?} {range:?}", NAMES[index]));
        let files = (index, (index + another) % NAMES.len());
        subject::run(stage.subjects(), operation, files, range, &mut run.random);
        if (step + 1) % JUDGED_EVERY == 0 {
            stage.subjects().iter().for_each(Subject::check);
            stage.reopen();
        }
    }
    stage.subjects().iter().for_each(Subject::check);
    stage.reopen();
    let (subjects, volume) = stage.open.take().unwrap();
    drop(subjects);
    if let Format::Compressed(..) = stage.format {
        let compressions = NAMES.map(|name| file(&volume, name).node().compression().unwrap());
        let saved: u64 = compressions.iter().flatten().map(|found| found.saved_blocks).sum();
        assert!(saved > 0, "nothing is compressed");
    }
    stage.close(volume);
}

#[test]
fn blocks_of_1_kib() {
    exercise(Format::Ext4(1024, ""));
}

#[test]
fn blocks_of_4_kib() {
    exercise(Format::Ext4(4096, ""));
}

#[test]
fn blocks_of_64_kib() {
    exercise(Format::Ext4(65_536, ""));
}

#[test]
fn clusters() {
    exercise(Format::Ext4(4096, "-O bigalloc,^resize_inode -C 16384"));
}

#[test]
fn without_a_journal() {
    exercise(Format::Ext4(1024, "-O ^has_journal"));
}

#[test]
fn inline_data() {
    exercise(Format::Ext4(4096, "-O inline_data"));
}

#[test]
fn f2fs_without_extra_attributes() {
    exercise(Format::F2fs("plain"));
}

#[test]
fn f2fs_with_extra_attributes() {
    exercise(Format::F2fs("attributes"));
}

#[test]
fn compressed_f2fs() {
    let [lzo, lz4, zstd] = [0, 1, 2];
    let small = [Some((lz4, 2)), Some((zstd, 2)), Some((lzo, 2)), None, Some((lz4, 3)), None];
    exercise(Format::Compressed("lz4", small));
}

#[test]
fn compressed_f2fs_with_large_clusters() {
    let [lz4, zstd] = [1, 2];
    let large = [Some((lz4, 4)), Some((zstd, 8)), Some((lz4, 8)), Some((zstd, 6)), None, None];
    exercise(Format::Compressed("zstd", large));
}

#[test]
fn f2fs_with_blocks_of_16_kib() {
    exercise(Format::LargeF2fs(0));
}

#[test]
fn f2fs_with_blocks_of_16_kib_extra_attributes_and_packed_summaries() {
    const EXTRA_ATTR: u32 = 0x8;
    const INODE_CHECKSUM: u32 = 0x20;
    const PACKED_SSA: u32 = 0x1_0000;
    exercise(Format::LargeF2fs(EXTRA_ATTR | INODE_CHECKSUM | PACKED_SSA));
}
