//! `bifolio df`.

use std::os::unix::ffi::OsStrExt;

use base::attributes::StatFs;
use clap::Args;
use serde::Serialize;

use crate::console::Console;
use crate::console::failure::Result;
use crate::format::{json, size};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};

/// The arguments of `bifolio df`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Print sizes such as 1.5K and 20M; the default unit is 1024 bytes
    #[arg(short, long)]
    human_readable: bool,
    /// Show inodes instead of space
    #[arg(short, long)]
    inodes: bool,
    /// Print a JSON array with all counts; sizes are in bytes
    #[arg(long)]
    json: bool,
    /// Images to show
    #[arg(required = true, value_name = "IMAGE", value_parser = Target::image_parser())]
    targets: Vec<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Shows the space of all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let mut counts = Vec::new();
    for target in &arguments.targets {
        let outcome = volumes.get(target).map(|volume| Counts::of(&volume.statfs()));
        if let Some(count) = console.tolerate(outcome)? {
            counts.push((target.image.as_os_str().as_bytes(), count));
        }
    }
    if arguments.json {
        let mut array = json::Array::begin(console)?;
        for (image, counts) in counts {
            array.push(console, &JsonDf { image: json::bytes(json::IMAGE, image), counts })?;
        }
        return array.end(console);
    }
    let titles = match (arguments.inodes, arguments.human_readable) {
        (true, _) => ["Inodes", "IUsed", "IFree", "IUse%"],
        (false, true) => ["Size", "Used", "Avail", "Use%"],
        (false, false) => ["1K-blocks", "Used", "Available", "Use%"],
    };
    let rows: Vec<_> =
        counts.iter().map(|(image, counts)| (*image, counts.row(&arguments))).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|(_, row)| row[column].len());
        cells.chain([titles[column].len()]).max().unwrap_or(0)
    };
    let widths = [0, 1, 2, 3].map(width);
    let titles = titles.map(str::to_owned);
    for (image, row) in
        [(&b"Image"[..], &titles)].into_iter().chain(rows.iter().map(|(image, row)| (*image, row)))
    {
        for (cell, width) in row.iter().zip(widths) {
            console.print(format_args!("{cell:>width$} "))?;
        }
        console.print_name(image)?;
        console.print('\n')?;
    }
    Ok(())
}

#[derive(Serialize)]
struct JsonDf<'a> {
    #[serde(flatten)]
    image: json::Bytes<'a>,
    #[serde(flatten)]
    counts: Counts,
}

/// Space in bytes, and numbers of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Counts {
    size: u64,
    used: u64,
    available: u64,
    used_percent: u64,
    free: u64,
    block_size: u32,
    inodes: u64,
    inodes_used: u64,
    inodes_free: u64,
    inodes_used_percent: u64,
}

impl Counts {
    fn of(of: &StatFs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(of.block_size.into());
        let used = of.blocks.saturating_sub(of.blocks_free);
        let inodes_used = of.inodes.saturating_sub(of.inodes_free);
        Self {
            size: bytes(of.blocks),
            used: bytes(used),
            available: bytes(of.blocks_available),
            used_percent: percent(used, used.saturating_add(of.blocks_available)),
            free: bytes(of.blocks_free),
            block_size: of.block_size,
            inodes: of.inodes,
            inodes_used,
            inodes_free: of.inodes_free,
            inodes_used_percent: percent(inodes_used, of.inodes),
        }
    }

    fn row(&self, arguments: &Arguments) -> [String; 4] {
        if arguments.inodes {
            let [inodes, used, free] =
                [self.inodes, self.inodes_used, self.inodes_free].map(|count| count.to_string());
            return [inodes, used, free, format!("{}%", self.inodes_used_percent)];
        }
        let [size, used, available] =
            [self.size, self.used, self.available].map(|bytes| match arguments.human_readable {
                true => size::human(bytes),
                false => bytes.div_ceil(1024).to_string(),
            });
        [size, used, available, format!("{}%", self.used_percent)]
    }
}

/// Returns the percentage of `part` in `whole`, rounded up as in df.
fn percent(part: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => (u128::from(part) * 100).div_ceil(u128::from(whole)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_computed_from_statfs_without_overflow() {
        let statfs = StatFs {
            block_size: 4096,
            blocks: 1000,
            blocks_free: 300,
            blocks_available: 250,
            inodes: 64,
            inodes_free: 53,
            name_bytes_max: 255,
        };
        let counts = Counts::of(&statfs);
        assert_eq!((counts.used, counts.used_percent), (700 * 4096, 74));
        assert_eq!((counts.inodes_used, counts.inodes_used_percent), (11, 18));
        let hostile = StatFs { blocks: u64::MAX, blocks_free: u64::MAX, inodes_free: 99, ..statfs };
        assert_eq!(Counts::of(&hostile).used_percent, 0);
        assert_eq!(Counts::of(&StatFs { blocks: u64::MAX, ..statfs }).used_percent, 100);
    }
}
