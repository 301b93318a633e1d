//! `bifolio info`.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use base::attributes::{Detail, VolumeInfo};
use base::{Error, Foreign, Unsupported};
use clap::Args;
use device::SharedDevice;
use device::partition::{Partition, PartitionTable};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use vfs::Volume;

use crate::console::failure::{Failure, Result};
use crate::console::{self, Console};
use crate::format::{json, size};
use crate::images::Images;
use crate::images::target::{ImageOptions, Target};

/// The arguments of `bifolio info`.
#[derive(Args)]
pub struct Arguments {
    /// Print a JSON array with an object for each image
    #[arg(long)]
    json: bool,
    /// Images to show
    #[arg(required = true, value_name = "IMAGE", value_parser = Target::image_parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Shows all images.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut images = Images::open(&arguments.image, &arguments.targets)?;
    let mut array = if arguments.json { Some(json::Array::begin(console)?) } else { None };
    for (number, target) in arguments.targets.iter().enumerate() {
        let contents = read_contents(&arguments.image, &mut images, target);
        let outcome = contents.and_then(|contents| match &mut array {
            Some(array) => {
                let image = target.image.as_os_str().as_bytes();
                let image = json::bytes(json::IMAGE, image);
                array.push(console, &JsonImage { image, contents: contents.json() })
            }
            None => {
                if number > 0 {
                    console.print('\n')?;
                }
                print(target, &contents, console)
            }
        });
        console.tolerate(outcome)?;
    }
    match array {
        Some(array) => array.end(console),
        None => Ok(()),
    }
}

/// The contents of an image.
enum Contents {
    Volume(Shown),
    Partitions { kind: &'static str, partitions: Vec<Part> },
}

/// A volume, and what its device is a member of.
struct Shown {
    info: Box<VolumeInfo>,
    member: Option<Foreign>,
}

/// A partition, and its volume or the error of opening it.
struct Part {
    number: u32,
    offset: u64,
    bytes: u64,
    name: String,
    volume: Result<Shown, Error>,
}

fn read_contents(
    options: &ImageOptions,
    images: &mut Images<'_>,
    target: &Target,
) -> Result<Contents> {
    let image = target.image.as_path();
    let failure = |error| Failure::library(image, &error);
    let device = images.device(target)?;
    let volume_options = images.volume_options();
    match Volume::open_device(device.clone(), volume_options) {
        Ok(volume) => {
            if let Some(warning) = volume.warning().filter(|_| volume_options.incomplete) {
                console::warn(target.warning(&warning));
            }
            let member = Volume::membership(&device, volume_options);
            Ok(Contents::Volume(Shown { info: Box::new(volume.info()), member }))
        }
        Err(error) if options.is_whole() && may_be_disk(&error) => {
            let table = match PartitionTable::read(&*device, None) {
                Ok(table) => table,
                Err(Error::Unsupported(Unsupported::PartitionTable)) => return Err(failure(error)),
                Err(damage) => return Err(failure(damage)),
            };
            let part = |partition: &Partition| {
                let sector = table.sector_size.bytes();
                let open = || {
                    let part = table.open(device.clone(), partition.number);
                    let part: SharedDevice = match part {
                        Err(error) => Arc::new(
                            table
                                .open_present(device.clone(), partition.number)
                                .filter(|_| volume_options.incomplete)
                                .ok_or(error)?,
                        ),
                        part => Arc::new(part?),
                    };
                    let member = Volume::membership(&part, volume_options);
                    let volume = Volume::open_device(part, volume_options)?;
                    Ok(Shown { info: Box::new(volume.info()), member })
                };
                Part {
                    number: partition.number,
                    offset: partition.first_sector.saturating_mul(sector),
                    bytes: partition.sectors.saturating_mul(sector),
                    name: partition.name.clone(),
                    volume: open(),
                }
            };
            if let Some(damage) = &table.damage {
                console::warn(target.warning(&format!("the partition table is damaged: {damage}")));
            }
            let partitions = table.partitions.iter().map(part).collect();
            Ok(Contents::Partitions { kind: table.kind.name(), partitions })
        }
        Err(error) => Err(failure(error)),
    }
}

/// Returns whether an image with the error may be a disk with partitions.
fn may_be_disk(error: &Error) -> bool {
    let Error::Unsupported(unsupported) = error else { return false };
    matches!(
        unsupported,
        Unsupported::Format | Unsupported::Blank(_) | Unsupported::Partitioned { .. }
    )
}

fn print(target: &Target, contents: &Contents, console: &mut Console) -> Result<()> {
    console.print("Image: ")?;
    console.print_name(target.image.as_os_str().as_bytes())?;
    console.print('\n')?;
    match contents {
        Contents::Volume(volume) => print_volume(volume, console),
        Contents::Partitions { kind, partitions } => {
            console.print(format_args!("Partition table: {kind}\n\n"))?;
            console.print("Number          Offset    Size  Contents\n")?;
            for part in partitions {
                let Part { number, offset, bytes, name, volume } = part;
                let size = size::human(*bytes);
                console.print(format_args!("{number:>6}  {offset:>14}  {size:>6}  "))?;
                match volume {
                    Ok(Shown { info, member }) => {
                        console.print(info.format)?;
                        if !info.label.is_empty() {
                            console.print(" \"")?;
                            console.print_name(&info.label)?;
                            console.print('"')?;
                        }
                        if let Some(member) = member {
                            console.print(format_args!(" on {}", member.name))?;
                        }
                    }
                    Err(Error::Unsupported(Unsupported::Format)) => console.print("-")?,
                    Err(Error::Unsupported(Unsupported::Foreign(foreign))) => {
                        console.print(foreign.name)?;
                    }
                    Err(Error::Unsupported(Unsupported::Blank(blank))) => {
                        console.print(blank.short())?;
                    }
                    Err(error) => console.print(format_args!("({error})"))?,
                }
                if !name.is_empty() {
                    console.print("  [")?;
                    console.print_name(name.as_bytes())?;
                    console.print(']')?;
                }
                console.print('\n')?;
            }
            let readable = partitions.iter().find(|part| part.volume.is_ok());
            match readable {
                Some(part) => {
                    let number = part.number;
                    console.print(format_args!(
                        "\nTo use a partition, add for example --partition {number}\n"
                    ))
                }
                None => console.print("\nNo partition has a supported file system.\n"),
            }
        }
    }
}

fn print_volume(volume: &Shown, console: &mut Console) -> Result<()> {
    let Shown { info, member } = volume;
    if let Some(member) = member {
        console.print(format_args!("Device: {}, which is only read\n", member.name))?;
    }
    console.print(format_args!("Format: {}\nLabel: ", info.format))?;
    console.print_name(&info.label)?;
    console.print(format_args!("\nUUID: {}\nFeatures: ", uuid_text(&info.uuid)))?;
    console.print_name(info.features.join(" ").as_bytes())?;
    console.print('\n')?;
    for (key, value) in &info.details {
        let words = key.replace('_', " ");
        let (first, rest) = words.split_at_checked(1).unwrap_or(("", ""));
        console.print(format_args!("{}{rest}: ", first.to_ascii_uppercase()))?;
        console.print_name(value.to_string().as_bytes())?;
        console.print('\n')?;
    }
    Ok(())
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    use std::fmt::Write;
    uuid.iter().enumerate().fold(String::with_capacity(36), |mut text, (index, byte)| {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[derive(Serialize)]
struct JsonImage<'a> {
    #[serde(flatten)]
    image: json::Bytes<'a>,
    #[serde(flatten)]
    contents: JsonContents<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonContents<'a> {
    Volume(JsonVolume<'a>),
    Partitions { partition_table: &'static str, partitions: Vec<JsonPart<'a>> },
}

#[derive(Serialize)]
struct JsonVolume<'a> {
    format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'static str>,
    #[serde(flatten)]
    label: json::Bytes<'a>,
    uuid: String,
    features: &'a [String],
    #[serde(serialize_with = "details")]
    details: &'a [(&'static str, Detail)],
}

#[derive(Serialize)]
struct JsonPart<'a> {
    number: u32,
    offset: u64,
    bytes: u64,
    #[serde(flatten)]
    name: json::Bytes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<JsonVolume<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Serializes the details as a map, in the order of the format.
fn details<S: Serializer>(
    details: &&[(&'static str, Detail)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(details.len()))?;
    for (key, value) in *details {
        match value {
            Detail::Number(number) => map.serialize_entry(key, number)?,
            Detail::Text(text) => map.serialize_entry(key, text)?,
        }
    }
    map.end()
}

impl<'a> From<&'a Shown> for JsonVolume<'a> {
    fn from(Shown { info, member }: &'a Shown) -> Self {
        Self {
            format: info.format,
            device: member.map(|member| member.name),
            label: json::bytes(json::LABEL, &info.label),
            uuid: uuid_text(&info.uuid),
            features: &info.features,
            details: &info.details,
        }
    }
}

impl Contents {
    fn json(&self) -> JsonContents<'_> {
        match self {
            Self::Volume(volume) => JsonContents::Volume(volume.into()),
            Self::Partitions { kind, partitions } => JsonContents::Partitions {
                partition_table: kind,
                partitions: partitions
                    .iter()
                    .map(|part| JsonPart {
                        number: part.number,
                        offset: part.offset,
                        bytes: part.bytes,
                        name: json::bytes(json::NAME, part.name.as_bytes()),
                        volume: part.volume.as_ref().ok().map(JsonVolume::from),
                        error: part.volume.as_ref().err().map(Error::to_string),
                    })
                    .collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn uuids_have_dashes() {
        let uuid = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(super::uuid_text(&uuid), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
