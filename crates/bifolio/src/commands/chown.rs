//! `bifolio chown`.

use std::str::FromStr;

use base::attributes::AttributeChange;
use clap::Args;
use vfs::{Credentials, Follow};

use crate::console::Console;
use crate::console::failure::Result;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};
use crate::tree::accounts::Account;
use crate::tree::tree_change;

const AFTER_HELP: &str = "\
Names of owners and groups are those of the image, by its /etc/passwd and /etc/group: the users of the image are not those of this \
host. For an owner of this host, give the number, such as $(id -u NAME). Like chown(1), the command clears the set-user-ID and \
set-group-ID bits of executable files.";

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
    /// New owner, group or both: numbers, or names of the image; :GROUP changes only the group, and
    /// NAME: also sets the group that the user has in /etc/passwd
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
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owner {
    user: Option<Account>,
    group: Option<Account>,
    /// Whether the group is that of the user in /etc/passwd.
    has_login_group: bool,
}

impl Owner {
    fn new(user: Option<Account>, group: Option<Account>) -> Self {
        Self { user, group, has_login_group: false }
    }
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None => Ok(Self::new(Some(text.parse()?), None)),
            Some(("", group)) => Ok(Self::new(None, Some(group.parse()?))),
            Some((user, "")) => match user.parse()? {
                Account::Number(_) => {
                    Err(format!("expected a group after {text:?}: a number has no login group"))
                }
                user => Ok(Self { has_login_group: true, ..Self::new(Some(user), None) }),
            },
            Some((user, group)) => Ok(Self::new(Some(user.parse()?), Some(group.parse()?))),
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
    let Owner { user, group, has_login_group } = &arguments.owner;
    let uid = user.as_ref().map(|user| user.user(&volume)).transpose()?;
    let gid = match user {
        Some(user) if *has_login_group => Some(user.login_group(&volume)?),
        _ => group.as_ref().map(|group| group.group(&volume)).transpose()?,
    };
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
    fn owners_are_numbers_or_names() {
        let owner = |user: Option<&str>, group: Option<&str>| {
            let account = |text: Option<&str>| text.map(|text| text.parse().unwrap());
            Ok(Owner::new(account(user), account(group)))
        };
        assert_eq!("12".parse(), owner(Some("12"), None));
        assert_eq!("12:ann".parse(), owner(Some("12"), Some("ann")));
        assert_eq!(":34".parse(), owner(None, Some("34")));
        let login = Owner::new(Some("ann".parse().unwrap()), None);
        assert_eq!("ann:".parse(), Ok(Owner { has_login_group: true, ..login }));
        for bad in ["", ":", "12:", "-1", "+1", "4294967295", "1:2:3"] {
            assert!(bad.parse::<Owner>().is_err(), "{bad}");
        }
    }
}
