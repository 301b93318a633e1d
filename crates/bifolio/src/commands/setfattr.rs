//! `bifolio setfattr`.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use base::Error;
use base::attributes::XattrMode;
use clap::Args;
use vfs::{Follow, Node, Privileges, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::text;
use crate::format::xattr_dump::{self, DumpedFile};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};
use crate::import;
use crate::tree::directory;
use crate::tree::links::{self, Found};

const AFTER_HELP: &str = "\
Names have a prefix: user., security., trusted. or system., such as user.comment or security.selinux. Values are text, in quotes or \
without, in which \\ and up to three octal digits stand for a byte, \\\\ for \\ and \\\" for \"; after 0x, hexadecimal; after 0s, base64. Access control lists are \
the attributes system.posix_acl_access and system.posix_acl_default.";

/// The arguments of `bifolio setfattr`.
#[derive(Args)]
#[command(after_help = AFTER_HELP, disable_help_flag = true)]
#[command(group(clap::ArgGroup::new("change").required(true).args(["name", "remove", "restore"])))]
pub struct Arguments {
    /// Set the extended attribute NAME
    #[arg(short, long, value_name = "NAME")]
    name: Option<OsString>,
    /// Its value; empty by default
    #[arg(short, long, value_name = "VALUE", requires = "name", allow_hyphen_values = true)]
    value: Option<OsString>,
    /// Remove the extended attribute NAME
    #[arg(short = 'x', long, value_name = "NAME")]
    remove: Option<OsString>,
    /// Set the attributes in this output of `getfattr -d`; its paths are below IMAGE:/PATH, and may
    /// not lead out of it. - is standard input
    #[arg(long, value_name = "FILE")]
    restore: Option<OsString>,
    /// Change symbolic links instead of their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Files to change
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    image: ImageOptions,
}

/// The change of each target.
enum Change {
    Set(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Restore(Vec<DumpedFile>),
}

/// Changes all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let change = match (&arguments.name, &arguments.remove, &arguments.restore) {
        (Some(name), ..) => {
            let value = arguments.value.as_deref().unwrap_or_default();
            let value = xattr_dump::decode(value.as_bytes());
            let value = value.ok_or_else(|| {
                let text = "is neither hexadecimal (0x), nor base64 (0s), nor text with closed quotes and escapes up to \\377";
                Failure::new("--value", text).usage()
            })?;
            Change::Set(name.clone().into_vec(), value)
        }
        (_, Some(name), _) => Change::Remove(name.clone().into_vec()),
        (_, _, Some(file)) => Change::Restore(read_dump(file)?),
        _ => return Ok(()),
    };
    let follow = if arguments.no_dereference { Follow::No } else { Follow::Yes };
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, console| {
        match &change {
            Change::Restore(files) => restore(files, target, follow, writing, console),
            change => {
                let volume = writing.get(target)?;
                let node = target.resolve(&volume, follow)?;
                apply(change, target, &node)
            }
        }
    })
}

/// Reads a dump, before the image.
fn read_dump(file: &OsStr) -> Result<Vec<DumpedFile>> {
    let mut dump = Vec::new();
    let (name, read) = if file == "-" {
        (Path::new("standard input"), std::io::stdin().lock().read_to_end(&mut dump).map(drop))
    } else {
        let read = std::fs::read(file).map(|contents| dump = contents);
        (Path::new(file), read)
    };
    read.map_err(|error| Failure::host(name, "cannot read", &error))?;
    xattr_dump::parse_dump(&dump).map_err(|line| {
        Failure::new(name, format!("line {line} is not part of an output of `getfattr -d`"))
    })
}

fn apply(change: &Change, target: &Target, node: &Node) -> Result<()> {
    let (outcome, action, name) = match change {
        Change::Set(name, value) => {
            let set = node.set_xattr(name, value, XattrMode::Either, Privileges::Keep);
            (set, "cannot set the extended attribute", name)
        }
        Change::Remove(name) => {
            (node.remove_xattr(name), "cannot remove the extended attribute", name)
        }
        Change::Restore(_) => return Ok(()),
    };
    let action = format!("{action} {}", text::escape(name));
    if let (Err(Error::NoSpace), Change::Set(_, value)) = (&outcome, change)
        && !import::is_full(node, value.len())
    {
        return Err(Failure::new(target, format!("{action}: {}", import::DOES_NOT_FIT)));
    }
    outcome.map_err(|error| Failure::action(target, &action, &error))
}

/// Returns the file `target` of a dump, which has the path `names` below `top`. Errors: the path
/// leads out of `top`.
fn find(
    volume: &Volume,
    top: &Target,
    target: &Target,
    names: &[&[u8]],
    follow: Follow,
) -> Result<Arc<Node>> {
    if names.is_empty() {
        return top.resolve(volume, follow);
    }
    if names.contains(&&b".."[..]) {
        return Err(Failure::new(target, "was not changed: the path in the dump contains .."));
    }
    let directory = top.resolve(volume, Follow::Yes)?;
    match links::resolve(volume, &directory, names, follow) {
        Ok(Found::File(node)) => Ok(node),
        Ok(Found::Outside) => {
            let text = "was not changed: a symbolic link in the image leads out of the directory \
                        that the command names";
            Err(Failure::new(target, text))
        }
        Err(error) => Err(Failure::library(target, &error)),
    }
}

/// Sets the attributes of files below `top`. Reports failures.
fn restore(
    files: &[DumpedFile],
    top: &Target,
    follow: Follow,
    writing: &mut Writing,
    console: &mut Console,
) -> Result<()> {
    let volume = writing.get(top)?;
    for file in files {
        writing.check_interrupted()?;
        let names = file.path.split(|&byte| byte == b'/');
        let names: Vec<_> = names.filter(|name| !matches!(name, [] | [b'.'])).collect();
        let path = match names.is_empty() {
            true => top.path.clone(),
            false => directory::join(&top.path, &names.join(&b'/')),
        };
        let target = Target { path, ..top.clone() };
        let node = find(&volume, top, &target, &names, follow);
        let Some(node) = console.tolerate(node)? else { continue };
        for (name, value) in &file.xattrs {
            let change = Change::Set(name.clone(), value.clone());
            console.tolerate(apply(&change, &target, &node))?;
        }
    }
    Ok(())
}
