//! `bifolio stat`.

use base::attributes::{Attributes, FileType};
use base::{Error, Unsupported};
use clap::Args;
use serde::Serialize;
use vfs::{Follow, Node};

use crate::console::Console;
use crate::failure::Result;
use crate::format::{acl, json, mode, time, xattr};
use crate::listing;
use crate::target::{ImageOptions, Target, Volumes};

/// The arguments of `bifolio stat`.
#[derive(Args)]
pub struct Arguments {
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print a JSON array
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
        let info = volumes.get(target).and_then(|volume| {
            let node = target.resolve(&volume, follow)?;
            FileInfo::read(&node, volume.statfs().block_size, target, console)
        });
        let Some(info) = console.tolerate(info)? else { continue };
        match &mut array {
            Some(array) => array.push(console, &info.json(&target.path))?,
            None => info.print(&volumes.display(target, &target.path), console)?,
        }
    }
    match array {
        Some(array) => array.end(console),
        None => Ok(()),
    }
}

struct FileInfo {
    attributes: Attributes,
    block_size: u32,
    link_target: Option<Vec<u8>>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    verity_digest: Option<String>,
}

impl FileInfo {
    /// Reads the attributes of the node. Reports and skips attributes that cannot be read.
    fn read(node: &Node, block_size: u32, target: &Target, console: &mut Console) -> Result<Self> {
        let failure = |error| target.failure(&target.path, &error);
        let link_target = listing::link_target(node).map_err(failure);
        let link_target = console.tolerate(link_target)?.flatten();
        let mut xattrs = Vec::new();
        let names = console.tolerate(node.list_xattrs().map_err(failure))?;
        for name in names.unwrap_or_default() {
            if let Some(value) = console.tolerate(node.get_xattr(&name).map_err(failure))? {
                xattrs.push((name, value));
            }
        }
        xattrs.sort();
        let verity_digest = match node.verity_digest() {
            // The digest is encrypted with the file.
            Err(Error::Unsupported(Unsupported::Encrypted(_))) => None,
            digest => console.tolerate(digest.map_err(failure))?.flatten(),
        };
        Ok(Self { attributes: node.attributes(), block_size, link_target, xattrs, verity_digest })
    }

    /// Returns the lines of the access control lists. An invalid list is shown as an extended attribute instead.
    fn acl(&self) -> Vec<String> {
        let values = acl::ATTRIBUTES.iter().filter_map(|(name, prefix)| {
            let (_, value) = self.xattrs.iter().find(|(found, _)| found == name)?;
            acl::lines(value, prefix)
        });
        values.flatten().collect()
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
        let acl = self.acl();
        if !acl.is_empty() {
            console.print("   ACL:\n")?;
        }
        for line in acl {
            console.print(format_args!("        {line}\n"))?;
        }
        // Valid access control lists are shown above.
        let others: Vec<_> =
            self.xattrs.iter().filter(|(name, value)| !is_acl(name, value)).collect();
        if !others.is_empty() {
            console.print("Xattrs:\n")?;
        }
        for (name, value) in others {
            console.print("        ")?;
            console.print_name(name)?;
            console.print(format_args!("={}\n", xattr::value_text(value)))?;
        }
        Ok(())
    }

    fn json<'a>(&'a self, path: &'a [u8]) -> JsonStat<'a> {
        let xattr = |(name, value): &'a (Vec<u8>, Vec<u8>)| JsonXattr {
            name: json::bytes(json::NAME, name),
            value: json::bytes(json::VALUE, value),
        };
        JsonStat {
            path: json::bytes(json::PATH, path),
            inode: (&self.attributes).into(),
            target: self.link_target.as_deref().map(|target| json::bytes(json::TARGET, target)),
            block_size: self.block_size,
            verity_digest: self.verity_digest.as_deref(),
            acl: self.acl(),
            xattrs: self.xattrs.iter().map(xattr).collect(),
        }
    }
}

fn is_acl(name: &[u8], value: &[u8]) -> bool {
    let has_acl_name = acl::ATTRIBUTES.iter().any(|(acl, _)| name == *acl);
    has_acl_name && acl::lines(value, "").is_some()
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
    acl: Vec<String>,
    xattrs: Vec<JsonXattr<'a>>,
}

#[derive(Serialize)]
struct JsonXattr<'a> {
    #[serde(flatten)]
    name: json::Bytes<'a>,
    #[serde(flatten)]
    value: json::Bytes<'a>,
}
