//! `bifolio mkdir`.

use base::Error;
use base::attributes::{AttributeChange, FileType};
use clap::Args;
use vfs::{Creation, Credentials, Follow, Volume};

use crate::cli::mode_change::{ModeChange, Subject};
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Ownership, Writing, change_targets};

/// Permissions of new directories, before the umask.
const PERMISSIONS: u16 = 0o777;
/// Permissions that the owner of a directory needs to create files in it.
const OWNER_MODIFY: u16 = 0o300;
const CANNOT_CREATE: &str = "cannot create directory";

/// The arguments of `bifolio mkdir`.
#[derive(Args)]
pub struct Arguments {
    /// Create missing parent directories; do not fail if a directory exists
    #[arg(short, long)]
    parents: bool,
    /// Set the mode of the new directories, as in chmod; ignores the umask
    #[arg(short, long, allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    #[command(flatten)]
    ownership: Ownership,
    /// Directories to create
    #[arg(required = true, value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    targets: Vec<Target>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Creates all directories.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    change_targets(&arguments.image, &arguments.targets, console, |target, writing, _console| {
        create(&arguments, target, writing)
    })
}

fn create(arguments: &Arguments, target: &Target, writing: &mut Writing) -> Result<()> {
    let volume = writing.get(target)?;
    let by = arguments.ownership.credentials(&volume)?;
    let creator = Creator { by, volume: &volume, umask: writing.umask };
    if arguments.parents {
        for end in ends_of_parents(&target.path) {
            let parent = &target.path[..end];
            let created = creator.create_if_missing(parent, writing.umask & !OWNER_MODIFY, None);
            created.map_err(|error| failure(target, parent, &error))?;
        }
    }
    let mode = arguments.mode.as_ref();
    let created = match arguments.parents {
        true => creator.create_if_missing(&target.path, writing.umask, mode),
        false => creator.create(&target.path, writing.umask, mode),
    };
    created.map_err(|error| failure(target, &target.path, &error))
}

fn failure(target: &Target, path: &[u8], error: &Error) -> Failure {
    Failure::action(target.subject(path).as_slice(), CANNOT_CREATE, error)
}

struct Creator<'a> {
    by: Credentials,
    volume: &'a Volume,
    umask: u16,
}

impl Creator<'_> {
    fn create(&self, path: &[u8], umask: u16, mode: Option<&ModeChange>) -> Result<(), Error> {
        let by = &self.by;
        let plain = Creation { umask, ..Creation::of(FileType::Directory, PERMISSIONS) };
        let Some(mode) = mode else { return self.volume.create_at(path, &plain, by).map(drop) };
        // Other users cannot enter the directory before it has its final mode.
        let closed = Creation { permissions: 0o700, ..plain };
        let node = self.volume.create_at(path, &closed, by)?;
        let set_id = node.attributes().permissions & 0o6000;
        let before =
            Subject { permissions: PERMISSIONS | set_id, is_directory: true, umask: self.umask };
        let permissions = Some(mode.apply(before));
        let change = AttributeChange { permissions, ..AttributeChange::default() };
        node.set_attributes(&change, by)
    }

    fn create_if_missing(
        &self,
        path: &[u8],
        umask: u16,
        mode: Option<&ModeChange>,
    ) -> Result<(), Error> {
        match self.volume.resolve(path, Follow::Yes) {
            Ok(node) if node.kind() == FileType::Directory => Ok(()),
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => self.create(path, umask, mode),
            Err(error) => Err(error),
        }
    }
}

/// Returns the end of each parent directory's path in `path`.
fn ends_of_parents(path: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let last = path.iter().rposition(|&byte| byte != b'/').unwrap_or(0);
    (1..last).filter(|&at| path[at] == b'/' && path[at - 1] != b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_found_with_repeated_slashes() {
        let ends = |path: &str| ends_of_parents(path.as_bytes()).collect::<Vec<_>>();
        assert_eq!(ends("/"), [0_usize; 0]);
        assert_eq!(ends("/a"), [0_usize; 0]);
        assert_eq!(ends("/a//"), [0_usize; 0]);
        assert_eq!(ends("/a/b"), [2]);
        assert_eq!(ends("//a//b/c/"), [3, 6]);
    }
}
