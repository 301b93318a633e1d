//! Directories that sload.f2fs writes: lookup and listing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use base::attributes::{DirCursor, FileType};
use base::{BlockSize, FileBlock, FsBlock, InodeNumber, Result};
use f2fs::dir::{Blocks, Directory, DirectoryShape, WantedName};

const BLOCK_BYTES: usize = 4096;

/// Makes a volume with the files below `source`.
fn image_of(source: &Path, folder: &Path) -> Vec<u8> {
    let image = folder.join("image");
    File::create(&image).unwrap().set_len(128 << 20).unwrap();
    testkit::command::run(Command::new("mkfs.f2fs").arg("-q").arg(&image));
    testkit::command::run(Command::new("sload.f2fs").arg("-f").arg(source).arg(&image));
    fs::read(image).unwrap()
}

/// A directory in an image, all of whose blocks its inode points to.
struct InImage<'i> {
    image: &'i [u8],
    /// The inode's block.
    inode: &'i [u8],
}

impl<'i> InImage<'i> {
    /// Finds the inode that was created with this name. It is the block whose node id and inode
    /// number are equal, in its last version: directories only grow here.
    fn find(image: &'i [u8], name: &[u8]) -> Self {
        let inode = image
            .chunks_exact(BLOCK_BYTES)
            .filter(|block| {
                word(block, 4072) == word(block, 4076)
                    && word(block, 88) == name.len() as u32
                    && block[92..].starts_with(name)
            })
            .max_by_key(|block| word(block, 16))
            .expect("the inode");
        Self { image, inode }
    }

    fn shape(&self) -> DirectoryShape {
        DirectoryShape {
            inode: InodeNumber(word(self.inode, 4076).into()),
            inode_max: InodeNumber(1 << 20),
            block_size: BlockSize::from_bytes(BLOCK_BYTES as u64).unwrap(),
            block_count: u64::from(word(self.inode, 16)).div_ceil(BLOCK_BYTES as u64),
            depth: word(self.inode, 72),
            dir_level: self.inode[347],
            casefold: None,
            encrypted: false,
        }
    }

    /// Returns the address of a block; 0 in a hole.
    fn address(&self, at: u64) -> usize {
        const ADDRESSES: u64 = 873;
        assert!(at < ADDRESSES, "the inode has the address");
        word(self.inode, 360 + 4 * at as usize) as usize
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl<'i> Blocks for InImage<'i> {
    type Bytes = &'i [u8];

    fn block(&self, at: FileBlock) -> Result<Option<(&'i [u8], FsBlock)>> {
        let address = self.address(at.0);
        let start = address * BLOCK_BYTES;
        let bytes = || &self.image[start..start + BLOCK_BYTES];
        Ok((address != 0).then(|| (bytes(), FsBlock(address as u64))))
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        let blocks = self.shape().block_count;
        Ok((from.0..blocks).find(|&at| self.address(at) != 0).map(FileBlock))
    }
}

#[test]
fn names_that_sload_writes_are_found_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let many = folder.path().join("source/many");
    fs::create_dir_all(many.join("folder")).unwrap();
    std::os::unix::fs::symlink("target", many.join("link")).unwrap();
    let mut expected = BTreeMap::from([
        (b".".to_vec(), FileType::Directory),
        (b"..".to_vec(), FileType::Directory),
        (b"folder".to_vec(), FileType::Directory),
        (b"link".to_vec(), FileType::Symlink),
    ]);
    for number in 0..2000_usize {
        let name = format!("{number}-{}", "é".repeat(number % 125));
        File::create(many.join(&name)).unwrap();
        expected.insert(name.into_bytes(), FileType::Regular);
    }
    let image = image_of(&folder.path().join("source"), folder.path());

    let found = InImage::find(&image, b"many");
    let shape = found.shape();
    assert!(shape.depth >= 5, "the directory has {} levels", shape.depth);
    let directory = Directory::new(&shape, &found);
    let mut listed = BTreeMap::new();
    directory
        .read_dir(DirCursor(0), fscrypt::ShownNames::Plain, &mut |entry| {
            let before = listed.insert(entry.name.to_vec(), (entry.inode, entry.kind.unwrap()));
            assert_eq!(before, None, "each name is listed once");
            ControlFlow::Continue(())
        })
        .unwrap();
    let kinds: BTreeMap<_, _> =
        listed.iter().map(|(name, (_, kind))| (name.clone(), *kind)).collect();
    assert_eq!(kinds, expected);
    for (name, (inode, kind)) in &listed {
        let wanted = WantedName::new(name, &shape).unwrap();
        let found = directory.lookup(&wanted).unwrap().unwrap();
        assert_eq!((found.inode, found.kind), (*inode, Some(*kind)));
    }
    let missing = directory.lookup(&WantedName::new(b"missing", &shape).unwrap());
    assert_eq!(missing, Ok(None));
}
