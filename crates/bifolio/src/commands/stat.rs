//! `bifolio stat`.

use base::attributes::{Attributes, FileType};
use base::{Error, Unsupported};
use clap::Args;
use serde::Serialize;
use vfs::{Follow, Node};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::{acl, json, mode, time, xattr};
use crate::images::Volumes;
use crate::images::target::{ImageOptions, Target};
use crate::tree::listing;

/// The maximum of the values of all extended attributes of a file in JSON, in bytes, since programs
/// read all of it to memory, with up to eight times the bytes. Files on Linux have at most 64 KiB
/// in a value.
const JSON_VALUES_BYTES_MAX: usize = 64 << 20;

/// The arguments of `bifolio stat`.
#[derive(Args)]
pub struct Arguments {
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print a JSON array; values of extended attributes only up to 64 MiB for each file
    #[arg(long)]
    json: bool,
    /// Files and directories to show
    #[arg(required = true, value_name = "IMAGE[:/PATH]", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Shows all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let mut volumes = Volumes::new(&arguments.image, &arguments.targets)?;
    let mut array = if arguments.json { Some(json::Array::begin(console)?) } else { None };
    let follow = if arguments.dereference { Follow::Yes } else { Follow::No };
    for target in &arguments.targets {
        let outcome = volumes.get(target).and_then(|volume| {
            let node = target.resolve(&volume, follow)?;
            let info = FileInfo::read(&node, volume.statfs().block_size, target, console)?;
            match &mut array {
                Some(array) => info.json(array, console),
                None => info.print(&volumes.display(target, &target.path), console),
            }
        });
        console.tolerate(outcome)?;
    }
    match array {
        Some(array) => array.end(console),
        None => Ok(()),
    }
}

/// What is known of a file before the values of its extended attributes are read. A small image can
/// have thousands of names for one value of 16 MiB, so at most one value is in memory, besides
/// those of access control lists.
struct FileInfo<'a> {
    node: &'a Node,
    target: &'a Target,
    attributes: Attributes,
    block_size: u32,
    link_target: Option<Vec<u8>>,
    /// The lines of the access control lists.
    acl: Vec<String>,
    /// The names of the other extended attributes, sorted.
    names: Vec<Vec<u8>>,
    verity_digest: Option<String>,
}

impl<'a> FileInfo<'a> {
    /// Reads the attributes of the node. Reports and skips attributes that cannot be read.
    fn read(
        node: &'a Node,
        block_size: u32,
        target: &'a Target,
        console: &mut Console,
    ) -> Result<Self> {
        let failure = |error| target.failure(&target.path, &error);
        let link_target = listing::link_target(node).map_err(failure);
        let link_target = console.tolerate(link_target)?.flatten();
        let names = console.tolerate(node.list_xattrs().map_err(failure))?;
        let mut names = names.unwrap_or_default();
        names.sort();
        let mut acl = Vec::new();
        for (name, prefix) in acl::ATTRIBUTES {
            let Some(at) = names.iter().position(|found| found == name) else { continue };
            let value = console.tolerate(node.get_xattr(name).map_err(failure))?;
            match value.map(|value| acl::lines(&value, prefix)) {
                // An invalid list is shown as an extended attribute instead.
                Some(None) => {}
                Some(Some(lines)) => {
                    acl.extend(lines);
                    names.remove(at);
                }
                None => drop(names.remove(at)),
            }
        }
        let verity_digest = match node.verity_digest() {
            // The digest is encrypted with the file.
            Err(Error::Unsupported(Unsupported::Encrypted(_))) => None,
            digest => console.tolerate(digest.map_err(failure))?.flatten(),
        };
        let attributes = node.attributes();
        Ok(Self { node, target, attributes, block_size, link_target, acl, names, verity_digest })
    }

    /// Reads the value of an extended attribute. Reports an error, and returns `None`.
    fn value(&self, name: &[u8], console: &mut Console) -> Result<Option<Vec<u8>>> {
        let failure = |error| self.target.failure(&self.target.path, &error);
        console.tolerate(self.node.get_xattr(name).map_err(failure))
    }

    fn print(&self, path: &[u8], console: &mut Console) -> Result<()> {
        let attributes = &self.attributes;
        console.print("  File: ")?;
        console.print_name(path)?;
        if let Some(target) = &self.link_target {
            console.print(" -> ")?;
            console.print_name(target)?;
        }
        console.print(format_args!(
            "\n  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {}\n Inode: {:<15} Links: {:<11}",
            attributes.size,
            attributes.blocks,
            self.block_size,
            mode::type_words(attributes.kind),
            attributes.inode,
            attributes.links,
        ))?;
        if matches!(attributes.kind, FileType::CharacterDevice | FileType::BlockDevice) {
            console.print(format_args!(
                "Device type: {},{}",
                attributes.device.major, attributes.device.minor
            ))?;
        }
        console.print(format_args!(
            "\nAccess: ({:04o}/{})  Uid: {:<8} Gid: {}\n",
            attributes.permissions,
            mode::mode_text(attributes.kind, attributes.permissions),
            attributes.uid,
            attributes.gid,
        ))?;
        for (title, moment) in [
            ("Access", Some(attributes.accessed)),
            ("Modify", Some(attributes.modified)),
            ("Change", Some(attributes.changed)),
            (" Birth", attributes.created),
        ] {
            let text = moment.map_or_else(|| "-".to_owned(), time::full);
            console.print(format_args!("{title}: {text}\n"))?;
        }
        console.print(format_args!(" Flags: {}", mode::flag_letters(attributes.flags)))?;
        let names = mode::flag_names(attributes.flags);
        if !names.is_empty() {
            console.print(format_args!(" ({})", names.join(", ")))?;
        }
        let project =
            attributes.project.map_or_else(|| "-".to_owned(), |project| project.to_string());
        console
            .print(format_args!("\n   Gen: {:<15} Project: {project}\n", attributes.generation))?;
        if let Some(digest) = &self.verity_digest {
            console.print(format_args!("Verity: {digest}\n"))?;
        }
        self.print_xattrs(console)
    }

    fn print_xattrs(&self, console: &mut Console) -> Result<()> {
        if !self.acl.is_empty() {
            console.print("   ACL:\n")?;
        }
        for line in &self.acl {
            console.print(format_args!("        {line}\n"))?;
        }
        if !self.names.is_empty() {
            console.print("Xattrs:\n")?;
        }
        for name in &self.names {
            let Some(value) = self.value(name, console)? else { continue };
            console.print("        ")?;
            console.print_name(name)?;
            console.print(format_args!("={}\n", xattr::value_text(&value)))?;
        }
        Ok(())
    }

    /// Prints the file as an element of `array`.
    fn json(&self, array: &mut json::Array, console: &mut Console) -> Result<()> {
        let head = JsonStat {
            path: json::bytes(json::PATH, &self.target.path),
            inode: (&self.attributes).into(),
            target: self.link_target.as_deref().map(|target| json::bytes(json::TARGET, target)),
            block_size: self.block_size,
            verity_digest: self.verity_digest.as_deref(),
            acl: &self.acl,
        };
        let mut list = array.begin_object(console, &head, "xattrs")?;
        let mut bytes_left = JSON_VALUES_BYTES_MAX;
        let mut names = self.names.iter();
        let mut xattrs_left_out = 0;
        while let Some(name) = names.next() {
            let Some(value) = self.value(name, console)? else { continue };
            let Some(left) = bytes_left.checked_sub(value.len()) else {
                xattrs_left_out = names.len() + 1;
                break;
            };
            bytes_left = left;
            let (name, value) = (json::bytes(json::NAME, name), json::bytes(json::VALUE, &value));
            list.push(console, &JsonXattr { name, value })?;
        }
        list.end(console, &JsonEnd { xattrs_left_out })?;
        if xattrs_left_out > 0 {
            let left_out = format!(
                "{xattrs_left_out} extended attributes were left out, since the values have more than {} MiB",
                JSON_VALUES_BYTES_MAX >> 20
            );
            console.report(
                &Failure::new(self.target.subject(&self.target.path).as_slice(), left_out)
                    .advise("`bifolio stat` without --json shows all"),
            );
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct JsonStat<'a> {
    #[serde(flatten)]
    path: json::Bytes<'a>,
    #[serde(flatten)]
    inode: json::Inode,
    #[serde(flatten)]
    target: Option<json::Bytes<'a>>,
    block_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    verity_digest: Option<&'a str>,
    acl: &'a [String],
}

/// The members after the extended attributes.
#[derive(Serialize)]
struct JsonEnd {
    /// The number of extended attributes that are not shown.
    #[serde(skip_serializing_if = "is_zero")]
    xattrs_left_out: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde passes it")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[derive(Serialize)]
struct JsonXattr<'a> {
    #[serde(flatten)]
    name: json::Bytes<'a>,
    #[serde(flatten)]
    value: json::Bytes<'a>,
}
