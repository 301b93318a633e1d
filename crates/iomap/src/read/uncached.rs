//! Reads of a file's bytes from the device to the caller's memory, without the cache.

use base::{FileOffset, Result};

use crate::mapping::{IomapKind, device_address, map_at};
use crate::read::cluster::read_cluster;
use crate::read::context::ReadContext;

/// Reads `into.len()` bytes from byte `at` on, which is a block's start, and verifies them if the
/// file is verified. Bytes after the end of the file become zeroes.
///
/// No folio is locked meanwhile, so the format may move the blocks that are read. Then it has
/// changed the generation before it uses the old ones for anything else, and they are read again.
pub(crate) fn read(context: &ReadContext<'_>, at: u64, into: &mut [u8]) -> Result<()> {
    // The ends of direct writes change the generation, too, so that the read lasts as long as
    // others overwrite the file directly and out of place.
    loop {
        let generation = context.mapper.generation();
        let result = read_once(context, at, into);
        if context.mapper.generation() == generation {
            return result;
        }
    }
}

fn read_once(context: &ReadContext<'_>, at: u64, into: &mut [u8]) -> Result<()> {
    let size = context.size();
    let in_file = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(into.len());
    let transform = context.mapper.transform();
    let mut done = 0;
    while done < in_file {
        let here = at + done as u64;
        let map = map_at(context.mapper, FileOffset(here), (in_file - done) as u64)?;
        let mut run = usize::try_from(map.end() - here).unwrap_or(usize::MAX).min(in_file - done);
        let whole_blocks = run.next_multiple_of(context.mapping.block_size().len());
        let stored = done..(done + whole_blocks).min(into.len());
        let part = &mut into[done..done + run];
        match map.kind {
            IomapKind::Hole | IomapKind::Delalloc | IomapKind::Unwritten => part.fill(0),
            IomapKind::Inline => {
                let data = context.mapper.inline_data()?;
                let start = usize::try_from(here).unwrap_or(usize::MAX).min(data.len());
                let data = &data[start..data.len().min(start.saturating_add(run))];
                part[..data.len()].copy_from_slice(data);
                part[data.len()..].fill(0);
            }
            IomapKind::Encoded => {
                let data = read_cluster(context, here)?;
                run = run.min(data.len());
                part[..run].copy_from_slice(&data[..run]);
            }
            IomapKind::Mapped => {
                let address = device_address(&map, here)?;
                match &transform {
                    None => context.device.read_at(address, part)?,
                    Some(transform) => {
                        let stored = &mut into[stored];
                        context.device.read_at(address, stored)?;
                        transform.load(FileOffset(here), stored)?;
                    }
                }
            }
        }
        done += run;
    }
    into[in_file..].fill(0);
    if context.mapper.is_verified() {
        let blocks = in_file.next_multiple_of(context.mapping.block_size().len()).min(into.len());
        context.mapper.verify(FileOffset(at), &into[..blocks])?;
    }
    Ok(())
}
