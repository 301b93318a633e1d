//! `bifolio fiemap`.

use std::ops::ControlFlow;

use base::FileOffset;
use clap::Args;
use iomap::{FiemapExtent, FiemapFlags};
use serde::Serialize;
use vfs::{Follow, Node};

use crate::console::Console;
use crate::failure::Result;
use crate::format::json;
use crate::target::{ImageOptions, Target, Volumes};

/// The arguments of `bifolio fiemap`.
#[derive(Args)]
pub struct Arguments {
    /// Print a JSON array; offsets and lengths are in bytes
    #[arg(long)]
    json: bool,
    /// Files, directories and symbolic links to show
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Shows all targets in the format of `filefrag -v`: in blocks from the start of the file system.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let mut array = if arguments.json { Some(json::Array::begin(console)?) } else { None };
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let node = target.resolve(&volume, Follow::No)?;
            let extents = extents(&node).map_err(|error| target.failure(&target.path, &error))?;
            let file = File {
                size: node.attributes().size,
                block_size: volume.statfs().block_size.max(1).into(),
                extents,
            };
            match &mut array {
                Some(array) => array.push(console, &file.json(&target.path)),
                None => file.print(&volumes.display(target, &target.path), console),
            }
        });
        console.tolerate(outcome)?;
    }
    match array {
        Some(array) => array.end(console),
        None => Ok(()),
    }
}

fn extents(node: &Node) -> base::Result<Vec<FiemapExtent>> {
    let mut extents = Vec::new();
    let whole_file = FileOffset(0)..FileOffset(u64::MAX);
    node.extents(whole_file, &mut |extent| {
        extents.push(extent);
        ControlFlow::Continue(())
    })?;
    Ok(extents)
}

struct File {
    size: u64,
    block_size: u64,
    extents: Vec<FiemapExtent>,
}

impl File {
    fn print(&self, path: &[u8], console: &mut Console) -> Result<()> {
        let blocks = self.size.div_ceil(self.block_size);
        let s = if blocks == 1 { "" } else { "s" };
        console.print("File size of ")?;
        console.print_name(path)?;
        console.print(format_args!(
            " is {} ({blocks} block{s} of {} bytes)\n",
            self.size, self.block_size
        ))?;
        console.print(
            " ext:     logical_offset:        physical_offset: length:   expected: flags:\n",
        )?;
        let mut previous = None;
        let mut pieces = 0;
        for (number, extent) in self.extents.iter().enumerate() {
            let expected = expected(previous, extent);
            let jumps = expected.is_some_and(|expected| expected != extent.physical.0);
            pieces += u64::from(previous.is_none() || jumps);
            previous = Some(extent);
            console.print(self.line(number, extent, expected.filter(|_| jumps)))?;
        }
        console.print_name(path)?;
        let s = if pieces == 1 { "" } else { "s" };
        console.print(format_args!(": {pieces} extent{s} found\n"))
    }

    fn line(&self, number: usize, extent: &FiemapExtent, expected: Option<u64>) -> String {
        let blocks = |bytes: u64| bytes / self.block_size;
        let (logical, physical) = (blocks(extent.logical.0), blocks(extent.physical.0));
        let length = extent.length.div_ceil(self.block_size);
        let last = length.saturating_sub(1);
        let expected = expected.map_or(String::new(), |bytes| format!("{}:", blocks(bytes)));
        let line = format!(
            "{number:>4}: {logical:>8}..{:>8}: {physical:>10}..{:>10}: {length:>6}: {expected:>11} {}",
            logical.saturating_add(last),
            physical.saturating_add(last),
            self.flags(extent).join(","),
        );
        format!("{}\n", line.trim_end())
    }

    fn flags(&self, extent: &FiemapExtent) -> Vec<&'static str> {
        let FiemapFlags { last, delalloc, unwritten, inline, shared, encoded } = extent.flags;
        let ends = extent.logical.0.saturating_add(extent.length) >= self.size;
        [
            (last, "last"),
            (delalloc, "unknown_loc"),
            (delalloc, "delalloc"),
            (encoded, "encoded"),
            (inline, "not_aligned"),
            (inline, "inline"),
            (unwritten, "unwritten"),
            (shared, "shared"),
            (ends, "eof"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
        .collect()
    }

    fn json<'a>(&self, path: &'a [u8]) -> JsonFile<'a> {
        let extent = |extent: &FiemapExtent| JsonExtent {
            logical: extent.logical.0,
            physical: extent.physical.0,
            length: extent.length,
            flags: self.flags(extent),
        };
        JsonFile {
            path: json::bytes(json::PATH, path),
            size: self.size,
            block_size: self.block_size,
            extents: self.extents.iter().map(extent).collect(),
        }
    }
}

/// Returns the device offset that `extent` would have if the file were contiguous from `previous` on.
fn expected(previous: Option<&FiemapExtent>, extent: &FiemapExtent) -> Option<u64> {
    let previous = previous?;
    let distance = extent.logical.checked_distance_from(previous.logical)?;
    previous.physical.0.checked_add(distance)
}

#[derive(Serialize)]
struct JsonFile<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    size: u64,
    block_size: u64,
    extents: Vec<JsonExtent>,
}

#[derive(Serialize)]
struct JsonExtent {
    logical: u64,
    physical: u64,
    length: u64,
    flags: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use base::DeviceOffset;

    use super::*;

    #[test]
    fn lines_have_the_format_of_filefrag() {
        let extent = |logical: u64, physical: u64, length: u64, unwritten| FiemapExtent {
            logical: FileOffset(logical * 1024),
            physical: DeviceOffset(physical * 1024),
            length: length * 1024,
            flags: FiemapFlags { unwritten, ..FiemapFlags::default() },
        };
        let first = extent(80, 8657, 4, false);
        let second = extent(88, 8453, 4, true);
        let file = File { size: 92 * 1024, block_size: 1024, extents: Vec::new() };
        let expected = expected(Some(&first), &second);
        assert_eq!(
            file.line(1, &first, None),
            "   1:       80..      83:       8657..      8660:      4:\n"
        );
        assert_eq!(
            file.line(2, &second, expected),
            "   2:       88..      91:       8453..      8456:      4:       8665: unwritten,eof\n"
        );
    }
}
