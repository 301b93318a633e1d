//! `bifolio fiemap`.

use std::ops::ControlFlow;

use base::FileOffset;
use clap::Args;
use iomap::{FiemapExtent, FiemapFlags};
use serde::Serialize;
use vfs::{Follow, Node};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::json;
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};

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
            let output = Output {
                path: &target.path,
                shown: volumes.display(target, &target.path),
                size: node.attributes().size,
                block_size: volume.statfs().block_size.max(1).into(),
            };
            let failure = |error| target.failure(&target.path, &error);
            match &mut array {
                Some(array) => output.json(&node, array, console, failure),
                None => output.text(&node, console, failure),
            }
        });
        console.tolerate(outcome)?;
    }
    match array {
        Some(array) => array.end(console),
        None => Ok(()),
    }
}

/// Calls `show` for each extent of the node. A failure of `show` ends the list. Nothing keeps the
/// extents: a few blocks of a map that refer to each other have a billion of them.
fn for_each_extent(
    node: &Node,
    failure: impl Fn(base::Error) -> Failure,
    mut show: impl FnMut(&FiemapExtent) -> Result<()>,
) -> Result<()> {
    let mut shown = Ok(());
    let whole_file = FileOffset(0)..FileOffset(u64::MAX);
    let listed = node.extents(whole_file, &mut |extent| {
        shown = show(&extent);
        if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    shown.and(listed.map_err(failure))
}

/// The output for one file.
struct Output<'a> {
    /// The path in the image.
    path: &'a [u8],
    /// The path as it is shown in text.
    shown: Vec<u8>,
    size: u64,
    block_size: u64,
}

impl Output<'_> {
    /// Prints the extents as text. Prints nothing if the first one cannot be found.
    fn text(
        &self,
        node: &Node,
        console: &mut Console,
        failure: impl Fn(base::Error) -> Failure,
    ) -> Result<()> {
        let mut previous = None;
        let mut number = 0;
        let mut pieces = 0;
        for_each_extent(node, failure, |extent| {
            if number == 0 {
                self.title(console)?;
            }
            let expected = previous.and_then(|previous| expected(&previous, extent));
            let jumps = expected.is_some_and(|expected| expected != extent.physical.0);
            pieces += u64::from(previous.is_none() || jumps);
            previous = Some(*extent);
            console.print(self.line(number, extent, expected.filter(|_| jumps)))?;
            number += 1;
            Ok(())
        })?;
        if number == 0 {
            self.title(console)?;
        }
        console.print_name(&self.shown)?;
        let s = if pieces == 1 { "" } else { "s" };
        console.print(format_args!(": {pieces} extent{s} found\n"))
    }

    fn title(&self, console: &mut Console) -> Result<()> {
        let blocks = self.size.div_ceil(self.block_size);
        let s = if blocks == 1 { "" } else { "s" };
        console.print("File size of ")?;
        console.print_name(&self.shown)?;
        console.print(format_args!(
            " is {} ({blocks} block{s} of {} bytes)\n",
            self.size, self.block_size
        ))?;
        console
            .print(" ext:     logical_offset:        physical_offset: length:   expected: flags:\n")
    }

    fn line(&self, number: u64, extent: &FiemapExtent, expected: Option<u64>) -> String {
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

    /// Prints the extents as an element of `array`. Prints nothing if the first one cannot be
    /// found.
    fn json(
        &self,
        node: &Node,
        array: &mut json::Array,
        console: &mut Console,
        failure: impl Fn(base::Error) -> Failure,
    ) -> Result<()> {
        let head = JsonFile {
            path: json::bytes(json::PATH, self.path),
            size: self.size,
            block_size: self.block_size,
        };
        let mut list = None;
        let listed = for_each_extent(node, failure, |extent| {
            let list = match &mut list {
                Some(list) => list,
                None => list.insert(array.begin_object(console, &head, EXTENTS)?),
            };
            let extent = JsonExtent {
                logical: extent.logical.0,
                physical: extent.physical.0,
                length: extent.length,
                flags: self.flags(extent),
            };
            list.push(console, &extent)
        });
        if let (None, Err(failure)) = (&list, &listed) {
            return Err(failure.clone());
        }
        let list = match list {
            Some(list) => list,
            None => array.begin_object(console, &head, EXTENTS)?,
        };
        match &listed {
            // Nothing more can be written.
            Err(failure) if failure.is_fatal() => {}
            listed => list.end(console, &JsonEnd { incomplete: listed.is_err() })?,
        }
        listed
    }
}

/// Returns the device offset that `extent` would have if the file were contiguous from `previous`
/// on.
fn expected(previous: &FiemapExtent, extent: &FiemapExtent) -> Option<u64> {
    let distance = extent.logical.checked_distance_from(previous.logical)?;
    previous.physical.0.checked_add(distance)
}

#[derive(Serialize)]
struct JsonFile<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    size: u64,
    block_size: u64,
}

#[derive(Serialize)]
struct JsonExtent {
    logical: u64,
    physical: u64,
    length: u64,
    flags: Vec<&'static str>,
}

/// The key of the array of extents.
const EXTENTS: &str = "extents";

/// The members after the extents.
#[derive(Serialize)]
struct JsonEnd {
    /// Whether the next extent could not be found.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    incomplete: bool,
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
        let file = Output { path: b"/f", shown: b"/f".to_vec(), size: 92 << 10, block_size: 1024 };
        let expected = expected(&first, &second);
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
