//! Directories of f2fs, with blocks and inline: lookups and listings of any bytes.
#![no_main]

use std::ops::ControlFlow;

use base::attributes::DirCursor;
use base::{BlockSize, FileBlock, FsBlock, InodeNumber, Result};
use f2fs::dir::{Blocks, Casefold, Directory, DirectoryShape, InlineDirectory, WantedName};
use fscrypt::ShownNames;
use libfuzzer_sys::fuzz_target;

/// A directory each of whose mapped blocks has the same contents.
struct Same<'d> {
    contents: &'d [u8],
    mapped: [u16; 4],
}

impl<'d> Blocks for Same<'d> {
    type Bytes = &'d [u8];

    fn block(&self, at: FileBlock) -> Result<Option<(&'d [u8], FsBlock)>> {
        let is_mapped = self.mapped.iter().any(|&mapped| u64::from(mapped) == at.0);
        Ok(is_mapped.then_some((self.contents, FsBlock(at.0))))
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        let mapped = self.mapped.iter().map(|&mapped| FileBlock(mapped.into()));
        Ok(mapped.filter(|&mapped| mapped >= from).min())
    }
}

type Input<'d> = (&'d [u8], [u16; 4], (u32, u8, u64), u64, Option<(bool, bool)>, bool, &'d [u8]);

fuzz_target!(|data: Input<'_>| {
    let (name, mapped, (depth, dir_level, block_count), cursor, casefold, encrypted, bytes) = data;
    let casefold = casefold.map(|(strict, linear_fallback)| Casefold { strict, linear_fallback });
    let shape = DirectoryShape {
        inode: InodeNumber(12),
        inode_max: InodeNumber(1000),
        block_size: BlockSize::from_bytes(4096).expect("in range"),
        block_count,
        depth,
        dir_level,
        casefold,
        encrypted,
    };
    let mut block = bytes.to_vec();
    block.resize(4096, 0);
    let blocks = Same { contents: &block, mapped };
    let directory = Directory::new(&shape, &blocks);
    let inline = InlineDirectory::new(&shape, bytes, support::location());
    let wanted = match encrypted {
        true => WantedName::encrypted(name, None, &shape),
        false => WantedName::new(name, &shape),
    };
    if let Ok(wanted) = wanted {
        let _ = directory.lookup(&wanted);
        let _ = inline.lookup(&wanted);
    }
    let shown = if encrypted { ShownNames::NoKey } else { ShownNames::Plain };
    let mut last = None;
    let _ = directory.read_dir(DirCursor(cursor), shown, &mut |entry| {
        assert!(last < Some(entry.next.0) && entry.next.0 > cursor);
        last = Some(entry.next.0);
        ControlFlow::Continue(())
    });
    let _ = inline.read_dir(DirCursor(cursor), shown, &mut |_| ControlFlow::Continue(()));
});
