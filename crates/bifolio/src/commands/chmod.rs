//! `bifolio chmod`.

use base::attributes::{AttributeChange, FileType};
use clap::Args;
use vfs::{Credentials, Follow};

use crate::cli::mode_change::{ModeChange, Subject};
use crate::console::Console;
use crate::console::failure::Result;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};
use crate::tree::tree_change;

/// The arguments of `bifolio chmod`.
#[derive(Args)]
pub struct Arguments {
    /// Change directories and their contents, except symbolic links
    #[arg(short = 'R', long)]
    recursive: bool,
    /// New mode: octal, such as 755, or symbolic, such as u+x,go-w
    #[arg(allow_hyphen_values = true)]
    mode: ModeChange,
    /// Files and directories to change
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Changes the permissions of all targets.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, console| {
        change(&arguments, target, writing, console)
    })
}

fn change(
    arguments: &Arguments,
    target: &Target,
    writing: &mut Writing,
    console: &mut Console,
) -> Result<()> {
    let volume = writing.get(target)?;
    let node = target.resolve(&volume, Follow::Yes)?;
    let umask = writing.umask;
    let tree = (target, &*volume);
    let action = "cannot change permissions";
    let run = (&*writing, console);
    tree_change::change(tree, node, arguments.recursive, action, run, |node| {
        if node.kind() == FileType::Symlink {
            return Ok(());
        }
        let is_directory = node.kind() == FileType::Directory;
        let permissions = node.attributes().permissions;
        let permissions = arguments.mode.apply(Subject { permissions, is_directory, umask });
        let change =
            AttributeChange { permissions: Some(permissions), ..AttributeChange::default() };
        node.set_attributes(&change, &Credentials::ROOT)
    })
}
