//! Hints for commands that do not exist: the command, or the program, that does what they are for
//! elsewhere.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Names of commands that users try, and what does it.
const HINTS: &[(&[&str], &str)] = &[
    (
        &["mkfs", "mkfs.ext4", "mke2fs", "mkfs.f2fs", "format"],
        "`mke2fs -t ext4 IMAGE SIZE` and `mkfs.f2fs IMAGE` create file systems",
    ),
    (
        &["resize", "resize2fs", "grow", "shrink"],
        "`resize2fs IMAGE SIZE` resizes ext4, and `resize.f2fs IMAGE` f2fs",
    ),
    (
        &["fsck", "e2fsck", "fsck.f2fs", "repair", "scrub", "verify"],
        "`bifolio check` lists inconsistencies; `e2fsck -f IMAGE` and `fsck.f2fs -f IMAGE` repair them",
    ),
    (
        &["tune", "tune2fs", "label", "e2label"],
        "`tune2fs IMAGE` changes ext4; `bifolio info` shows the label and the features",
    ),
    (&["unmount", "fusermount", "fusermount3"], "`bifolio umount DIRECTORY` unmounts an image"),
    (
        &["dumpe2fs", "dump.f2fs", "debugfs", "blkid", "partitions"],
        "`bifolio info IMAGE` shows the format, or the partitions",
    ),
    (&["dir", "list", "ll"], "`bifolio ls -l IMAGE:/DIRECTORY` lists a directory"),
    (
        &["read", "print", "type", "dump"],
        "`bifolio cat IMAGE:/FILE` writes a file to standard output",
    ),
    (
        &["copy", "get", "extract", "rdump", "export"],
        "`bifolio cp -a IMAGE:/DIRECTORY DESTINATION` copies files out of an image",
    ),
    (
        &["write", "add", "import", "insert"],
        "`bifolio put FILE IMAGE:/FILE` and `bifolio cp -a` write files into an image",
    ),
    (
        &["untar", "unpack"],
        "`bifolio tar ARCHIVE IMAGE:/DIRECTORY` unpacks an archive into an image",
    ),
    (
        &["del", "delete", "remove", "unlink", "rmdir"],
        "`bifolio rm IMAGE:/FILE` removes a file, and `rm -r` a directory",
    ),
    (&["move", "rename", "ren"], "`bifolio mv IMAGE:/FROM /TO` renames a file"),
    (&["chgrp"], "`bifolio chown :GROUP IMAGE:/FILE` changes the group"),
    (
        &["getfacl"],
        "`bifolio getfattr -n system.posix_acl_access IMAGE:/FILE` shows an access control list",
    ),
    (
        &["setfacl"],
        "`bifolio setfattr -n system.posix_acl_access -v 0xVALUE IMAGE:/FILE` sets an access control list",
    ),
    (&["link", "symlink"], "`bifolio ln` creates links"),
    (
        &["fstrim", "trim", "discard"],
        "`bifolio rm --discard` and `fstrim` on a mount free space of the host",
    ),
    (&["defragment", "e4defrag"], "`bifolio defrag IMAGE:/FILE` defragments files"),
];

/// Returns the error of the command line with a hint, if that is known. It replaces clap's, which
/// are similar names. Removes that of an unknown option: the option is hardly meant as a name.
pub fn add(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    if let Some(hint) = find(name) {
        error.remove(ContextKind::SuggestedSubcommand);
        let hint = vec![StyledStr::from(hint)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hint));
    }
    error
}

fn find(name: &str) -> Option<&'static str> {
    HINTS.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn hints_are_for_commands_that_do_not_exist() {
        let cli = crate::cli::Cli::command();
        for (names, _) in HINTS {
            for name in *names {
                assert!(cli.find_subcommand(name).is_none(), "{name}");
                let error = cli.clone().try_get_matches_from(["bifolio", name]).unwrap_err();
                let text = add(error).to_string();
                assert!(text.contains(find(name).unwrap()), "{name}: {text}");
            }
        }
    }
}
