//! `bifolio chown`.

use std::str::FromStr;

use base::attributes::AttributeChange;
use clap::Args;
use vfs::{Credentials, Follow};

use crate::console::Console;
use crate::failure::Result;
use crate::target::{ImageOptions, Target};
use crate::tree_change;
use crate::writing::{Writing, change_targets};

const AFTER_HELP: &str = "\
Owners and groups are given as numbers, because the users of the image are not those of this host. Like \
chown(1), the command clears the set-user-ID and set-group-ID bits of executable files.";

/// The arguments of `bifolio chown`.
#[derive(Args)]
#[command(after_help = AFTER_HELP, disable_help_flag = true)]
pub struct Arguments {
    /// Change directories and their contents; implies -h
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links instead of their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// New owner, group or both, as numbers; :GROUP changes only the group
    #[arg(value_name = "OWNER[:GROUP]")]
    owner: Owner,
    /// Files and directories to change
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    image: ImageOptions,
}

/// New owner and group. `None` is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            // u32::MAX is -1, which means "unchanged" in chown(2).
            let number = text.parse().ok().filter(|&number| number != u32::MAX);
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            number.filter(|_| digits).ok_or_else(|| {
                format!("expected OWNER, OWNER:GROUP or :GROUP in numbers, not {text:?}")
            })
        };
        match text.split_once(':') {
            None => Ok(Self { uid: Some(number(text)?), gid: None }),
            Some(("", group)) => Ok(Self { uid: None, gid: Some(number(group)?) }),
            Some((owner, group)) => {
                Ok(Self { uid: Some(number(owner)?), gid: Some(number(group)?) })
            }
        }
    }
}

/// Changes the owners of all targets.
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
    // As in chown(1), -R follows no symbolic link, not even a target that is one.
    let changes_links = arguments.no_dereference || arguments.recursive;
    let follow = if changes_links { Follow::No } else { Follow::Yes };
    let node = target.resolve(&volume, follow)?;
    let Owner { uid, gid } = arguments.owner;
    let change = AttributeChange { uid, gid, ..AttributeChange::default() };
    let tree = (target, &*volume);
    let run = (&*writing, console);
    tree_change::change(tree, node, arguments.recursive, "cannot change owner", run, |node| {
        node.set_attributes(&change, &Credentials::ROOT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers() {
        let owner = |uid, gid| Ok(Owner { uid, gid });
        assert_eq!("12".parse(), owner(Some(12), None));
        assert_eq!("12:34".parse(), owner(Some(12), Some(34)));
        assert_eq!(":34".parse(), owner(None, Some(34)));
        assert_eq!("4294967294:0".parse(), owner(Some(u32::MAX - 1), Some(0)));
        for bad in ["", ":", "12:", "root", "-1", "+1", "1.2", "4294967295", "1:2:3"] {
            assert!(bad.parse::<Owner>().is_err(), "{bad}");
        }
    }
}
