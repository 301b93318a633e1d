//! `bifolio chattr`.

use std::str::FromStr;

use clap::Args;
use vfs::{Credentials, Follow};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::format::mode;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Writing, change_targets};
use crate::tree::tree_change;

/// The letters of flags that can be changed.
const LETTERS: &str = "aAcCdDFijmPsStTux";

const AFTER_HELP: &str = "\
FLAGS are + to add, - to remove or = to set exactly, and letters: a append only, A no access times, c compressed, C no copy on \
write, d no dump, D synchronous directory, F casefolded directory, i immutable, j journaled data, m not compressed, P project \
inherited, s secure deletion, S synchronous, t no tail merging, T top of directory trees, u undeletable, x direct access. \
Which of them a volume has depends on its format and features. `bifolio lsattr` shows all flags.";

/// The arguments of `bifolio chattr`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Change directories and their contents, except symbolic links
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Flags to change, such as +i or -i+d
    #[arg(value_name = "FLAGS", allow_hyphen_values = true)]
    flags: FlagChange,
    /// Files and directories to change
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Change of inode flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FlagChange {
    /// The flags to remove first.
    remove: u32,
    /// The flags to add.
    add: u32,
}

impl FromStr for FlagChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected +, - or =, and letters of {LETTERS}, not {text:?}");
        let mut change = Self { remove: 0, add: 0 };
        let mut sign = None;
        for char in text.chars() {
            if matches!(char, '+' | '-' | '=') {
                if sign.is_some_and(|sign| sign == '=' || char == '=') {
                    return Err(format!(
                        "= sets all flags, so that it excludes + and -, in {text:?}"
                    ));
                }
                sign = Some(char);
                continue;
            }
            let flag = mode::flag(char).filter(|_| LETTERS.contains(char)).ok_or_else(expected)?;
            match sign.ok_or_else(expected)? {
                '-' => change.remove |= flag,
                _ => change.add |= flag,
            }
        }
        if change.remove & change.add != 0 {
            return Err(format!("{text:?} adds and removes the same flag"));
        }
        match sign {
            Some('=') => change.remove = LETTERS.chars().filter_map(mode::flag).sum(),
            Some(_) if change.remove | change.add != 0 => {}
            _ => return Err(expected()),
        }
        Ok(change)
    }
}

/// Changes the flags of all targets.
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
    // As in chattr(1), which changes no links, but what they lead to only by its own path.
    let node = target.resolve(&volume, Follow::No)?;
    if node.kind().is_symlink() {
        let failure = Failure::new(target, "is a symbolic link, which has no flags to change");
        return Err(failure.advise("give the path of its target"));
    }
    let tree = (target, &*volume);
    let run = (&*writing, console);
    tree_change::change(tree, node, arguments.recursive, "cannot change flags", run, |node| {
        if node.kind().is_symlink() {
            return Ok(());
        }
        let FlagChange { remove, add } = arguments.flags;
        node.set_flags(node.attributes().flags & !remove | add, &Credentials::ROOT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_change_as_in_chattr() {
        let parsed =
            |text: &str| text.parse::<FlagChange>().map(|change| (change.remove, change.add));
        assert_eq!(parsed("+i"), Ok((0, 0x10)));
        assert_eq!(parsed("-ia"), Ok((0x30, 0)));
        assert_eq!(parsed("-i+d"), Ok((0x10, 0x40)));
        let (removed, added) = parsed("=A").unwrap();
        assert_eq!((removed & 0xb0, removed & 0x0008_0000, added), (0xb0, 0, 0x80));
        assert_eq!(parsed("=").unwrap().1, 0);
        for bad in
            ["", "i", "+e", "+z", "+E", "i+", "+", "-", "+-", "+i-i", "-ia+a", "=i+a", "+a=i", "=="]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
