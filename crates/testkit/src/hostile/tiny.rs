//! Tiny valid ext4 images to be damaged and written, of many features. Not here: damage.

use std::path::Path;
use std::sync::Arc;

use base::attributes::{FileType, XattrMode};
use base::{FileOffset, Result};
use device::MemoryDevice;
use vfs::{
    Creation, Credentials, Fallocate, File, Node, OpenMode, Privileges, Volume, VolumeOptions,
};

use super::Specimen;
use crate::{Mke2fs, must};

const BY: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };
const KEEP: Privileges = Privileges::Keep;

/// A kind of tiny image.
#[derive(Debug)]
struct TinyKind {
    name: &'static str,
    format: &'static str,
    block_size: u32,
    kibibytes: u64,
    /// Arguments of mke2fs.
    arguments: &'static str,
    end: End,
}

/// How the filling of an image ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Close,
    /// A state with a dirty log, open files without names, and synced files.
    Cut,
}

const fn kind(name: &'static str, block_size: u32, arguments: &'static str, end: End) -> TinyKind {
    TinyKind { name, format: "ext4", block_size, kibibytes: 4096, arguments, end }
}

/// The kinds. Together they have all structures that changes can meet. Where there are no checksums
/// of metadata, damage of the log is found by checks of its contents only.
const KINDS: &[TinyKind] = &[
    TinyKind { format: "ext2", ..kind("ext2", 1024, "", End::Close) },
    TinyKind { format: "ext3", ..kind("ext3", 1024, "-J size=1 -I 128", End::Close) },
    kind("plain", 1024, "-O ^metadata_csum -J size=1", End::Close),
    kind("log", 1024, "-O ^metadata_csum,^64bit -J size=1", End::Cut),
    kind(
        "checksums",
        1024,
        "-O metadata_csum,64bit,inline_data,orphan_file,large_dir -J size=1",
        End::Close,
    ),
    kind(
        "checksums_log",
        1024,
        "-O metadata_csum,64bit,inline_data,orphan_file -J size=1",
        End::Cut,
    ),
    TinyKind {
        kibibytes: 8192,
        ..kind(
            "fast_commits",
            1024,
            "-O ^metadata_csum,fast_commit,inline_data -J size=2",
            End::Cut,
        )
    },
    kind("large_blocks", 4096, "-O metadata_csum,inline_data,ea_inode,^has_journal", End::Close),
    TinyKind {
        kibibytes: 8192,
        ..kind("bigalloc", 4096, "-O ^metadata_csum,bigalloc,^has_journal -C 16384", End::Close)
    },
    kind(
        "groups",
        1024,
        "-O metadata_csum,metadata_csum_seed,^flex_bg,^resize_inode,sparse_super2 -g 1024 -J size=1",
        End::Cut,
    ),
];

/// Returns the number of kinds.
pub const fn tiny_kinds() -> usize {
    KINDS.len()
}

/// Creates the tiny image of a kind, by its number.
pub fn tiny(number: usize) -> Specimen {
    let kind = &KINDS[number];
    let folder = must(tempfile::tempdir(), "a temporary folder");
    let image = folder.path().join("image");
    Specimen::new(kind.name, kind.make(&image))
}

impl TinyKind {
    fn make(&self, image: &Path) -> Vec<u8> {
        let fixed = "-m 1 -N 96 -U 6e6ab4b3-8a3c-4a6a-9d5a-2b1f3f5f6c11 \
                     -E hash_seed=1b1e8a3c-0a6a-4d5a-8b1f-3f5f6c116e6a,lazy_itable_init=0,nodiscard";
        let options = Mke2fs {
            format: self.format,
            block_size: self.block_size,
            size: self.kibibytes << 10,
            arguments: format!("{} {fixed}", self.arguments),
        };
        options.make(image, None);
        let device = Arc::new(MemoryDevice::new(must(std::fs::read(image), image.display())));
        let mut options = VolumeOptions::default();
        options.writable(true).cache_bytes_max(16 << 20);
        let volume = must(Volume::open_device(device.clone(), &options), self.name);
        let filler = Filler { volume: &volume, block: self.block_size.into() };
        must(filler.fill(), self.name);
        must(volume.sync(), self.name);
        if self.end == End::Cut {
            let open = must(filler.change(), self.name);
            let cut = device.snapshot();
            drop(open);
            return cut;
        }
        must(volume.close(), self.name);
        device.snapshot()
    }
}

struct Filler<'v> {
    volume: &'v Volume,
    block: u64,
}

impl Filler<'_> {
    fn create(
        &self,
        directory: &Arc<Node>,
        name: &str,
        creation: &Creation<'_>,
    ) -> Result<Arc<Node>> {
        self.volume.create_in(directory, name.as_bytes(), creation, BY)
    }

    fn file(&self, directory: &Arc<Node>, name: &str, at: u64, data: &[u8]) -> Result<File> {
        let creation = Creation::of(FileType::Regular, 0o644);
        let file = self.create(directory, name, &creation)?.open_for(WRITE)?;
        file.write_all_at(data, at)?;
        Ok(file)
    }

    fn directory(&self, parent: &Arc<Node>, name: &str) -> Result<Arc<Node>> {
        self.create(parent, name, &Creation::of(FileType::Directory, 0o755))
    }

    fn fill(&self) -> Result<()> {
        let root = self.volume.root()?;
        let small = self.directory(&root, "small")?;
        for number in 0..4 {
            self.file(&small, &format!("{number}"), 0, &vec![b's'; 50 * number])?;
        }
        // Has so many names that it gets an index, in all but large blocks.
        let many = self.directory(&root, "many")?;
        for number in 0..20 {
            let name = format!("{number:02} {}", "n".repeat(120));
            self.create(&many, &name, &Creation::of(FileType::Regular, 0o600))?;
        }
        // Has a map with blocks of its own.
        let sparse = self.file(&root, "sparse", 0, b"data")?;
        for number in 0..8 {
            sparse.write_all_at(b"data", number * 3 * self.block)?;
            sparse.sync_data()?;
        }
        sparse.write_all_at(b"data", 300 * self.block)?;
        let dense = self.file(&root, "dense", 0, &vec![b'd'; 9 * self.block as usize])?;
        for (name, length) in [(&b"user.small"[..], 20), (b"user.large", 600)] {
            dense.node().set_xattr(name, &vec![b'v'; length], XattrMode::Either, KEEP)?;
        }
        let reserved = self.file(&root, "reserved", 0, b"data")?;
        let range = FileOffset(self.block)..FileOffset(6 * self.block);
        // Not on ext2 and ext3.
        let _ = reserved.fallocate(Fallocate::Allocate { keep_size: true }, range, KEEP);
        self.volume.link(&small, b"link", sparse.node())?;
        for length in [10, 200] {
            self.create(
                &root,
                &format!("symlink{length}"),
                &Creation::symlink(&vec![b't'; length]),
            )?;
        }
        self.create(&root, "fifo", &Creation::of(FileType::Fifo, 0o600))?;
        Ok(())
    }

    /// Changes files, and syncs them. Returns open files without names.
    fn change(&self) -> Result<Vec<File>> {
        let root = self.volume.root()?;
        let small = self.volume.lookup(&root, b"small")?;
        let mut open = Vec::new();
        for number in 0..3 {
            let creation = Creation::of(FileType::Regular, 0o600);
            let file = self.volume.create_unnamed(&root, &creation, BY)?.open_for(WRITE)?;
            file.write_all_at(&vec![b'u'; (1 + number) * self.block as usize], 0)?;
            open.push(file);
        }
        self.volume.sync()?;
        for number in 0..4 {
            let file = self.file(&small, &format!("new{number}"), 0, &vec![b'n'; 3000])?;
            file.sync_all()?;
        }
        self.volume.unlink(&small, b"1", BY)?;
        let dense = self.volume.lookup(&root, b"dense")?;
        dense.set_size(3 * self.block + 5, KEEP)?;
        dense.open_for(WRITE)?.sync_all()?;
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::hostile::fields::Structure;
    use crate::hostile::written;

    #[test]
    fn valid_images_are_sound_and_stay_so() {
        for number in 0..tiny_kinds() {
            let specimen = tiny(number);
            let device = written::over(&Arc::new(specimen.bytes.clone()));
            let outcome = written::write(&device, Random(1), 100);
            assert!(outcome.is_sound(), "{}: {outcome:?}", specimen.name);
            assert_eq!(outcome.after, Some(Vec::new()), "{}", specimen.name);
            assert!(outcome.made > Some(20), "{}: {outcome:?}", specimen.name);
        }
    }

    #[test]
    fn mended_checksums_are_those_of_the_writer() {
        let mut mended = Vec::new();
        for specimen in (0..tiny_kinds()).map(tiny) {
            let kind = KINDS.iter().find(|kind| kind.name == specimen.name).expect("a kind");
            let has_checksums =
                !kind.format.contains(['2', '3']) && !kind.arguments.contains("^metadata_csum");
            // Some blocks of the others are newer in the log.
            if !has_checksums || kind.end == End::Cut {
                continue;
            }
            let mut bytes = specimen.bytes.clone();
            for place in specimen.places().iter() {
                specimen.shape().mend(&mut bytes, &specimen.bytes, place);
                let structure = place.structure;
                assert!(bytes == specimen.bytes, "{}: {place:?}", specimen.name);
                if !mended.contains(&structure) {
                    mended.push(structure);
                }
            }
        }
        for structure in
            [Structure::Index, Structure::Entry, Structure::Attributes, Structure::OrphanFile]
        {
            assert!(mended.contains(&structure), "{structure:?}");
        }
    }
}
