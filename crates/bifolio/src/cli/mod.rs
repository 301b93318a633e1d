//! Command-line grammar and help. Not here: the commands (`commands`).

pub(crate) mod date;
pub(crate) mod hints;
pub(crate) mod mode_change;
pub(crate) mod numbers;
pub(crate) mod operands;

use clap::{Parser, Subcommand};

use crate::commands;
use crate::console::Console;
use crate::console::failure::Result;

const EXIT_STATUS: &str = "\
Exit status:
  0    Success.
  1    At least one operation failed, or the command stopped early. Standard error has the reasons.
  2    The command line is invalid.
  4    `check` found inconsistencies.
  8    `check` could not finish.
  130  A signal interrupted a command that writes. Incomplete copies were removed; other changes are kept.
  141  The reader of standard output closed the pipe.";

const ABOUT: &str = "Read, change, check and mount ext2, ext3, ext4 and f2fs images in user space";

const LONG_ABOUT: &str = "\
Read, change, check and mount ext2, ext3, ext4 and f2fs images in user space. Mounts need FUSE.

Write a path in an image as IMAGE:/path, such as disk.img:/etc/fstab. IMAGE alone means the root directory \
of the image. IMAGE is a file or a block device. Its name may contain colons: the argument is split at the \
last \":/\" that follows the name of an existing file.

These commands write to images: put, tar, mkdir, mknod, rm, mv, ln, touch, truncate, fallocate, defrag, gc, chmod, \
chown, chattr, setfattr, cp into an image, and mount -o rw. All other commands only read images. If an image was not closed cleanly, they recover it \
in memory, for example by replaying its journal.";

/// The command line.
#[derive(Parser)]
#[command(name = "bifolio", version, about = ABOUT, long_about = LONG_ABOUT)]
#[command(after_help = EXIT_STATUS, after_long_help = EXIT_STATUS)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(max_term_width = 100)]
pub struct Cli {
    /// Print names as they are, without escapes for control characters, backslashes and bytes that
    /// are not UTF-8
    #[arg(long, global = true)]
    pub raw: bool,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Show the format, features and journal of images, or list their partitions
    Info(commands::info::Arguments),
    /// List the contents of directories
    Ls(commands::ls::Arguments),
    /// Show directory trees
    Tree(commands::tree::Arguments),
    /// Show all attributes of files
    Stat(commands::stat::Arguments),
    /// Show the extended attributes of files
    Getfattr(commands::getfattr::Arguments),
    /// Show the inode flags of files
    Lsattr(commands::lsattr::Arguments),
    /// Write files to standard output
    Cat(commands::cat::Arguments),
    /// Copy files and directories out of an image, into an image, or from one image to another
    Cp(commands::cp::Arguments),
    /// Show the space that files and directories use
    Du(commands::du::Arguments),
    /// Show the used and free space of images
    Df(commands::df::Arguments),
    /// Search for files in a directory tree
    Find(commands::find::Arguments),
    /// Show the extents of files, which are the locations of their data in the image
    Fiemap(commands::fiemap::Arguments),
    /// Check an image for inconsistencies
    Check(commands::check::Arguments),
    /// Write files of the host, or standard input, into an image
    Put(commands::put::Arguments),
    /// Unpack a tar archive into an image
    Tar(commands::tar::Arguments),
    /// Create directories in an image
    Mkdir(commands::mkdir::Arguments),
    /// Create device files, pipes and sockets in an image
    Mknod(commands::mknod::Arguments),
    /// Remove files and directories from an image
    Rm(commands::rm::Arguments),
    /// Move or rename files within an image
    Mv(commands::mv::Arguments),
    /// Create hard links or symbolic links in an image
    Ln(commands::ln::Arguments),
    /// Change the times of files in an image, or create files
    Touch(commands::touch::Arguments),
    /// Change the sizes of files in an image
    Truncate(commands::truncate::Arguments),
    /// Allocate or free space in files of an image
    Fallocate(commands::fallocate::Arguments),
    /// Defragment files in an image
    Defrag(commands::defrag::Arguments),
    /// Make scattered free space of f2fs images contiguous
    Gc(commands::gc::Arguments),
    /// Change the permissions of files in an image
    Chmod(commands::chmod::Arguments),
    /// Change the owner and group of files in an image
    Chown(commands::chown::Arguments),
    /// Change the inode flags of files in an image
    Chattr(commands::chattr::Arguments),
    /// Change the extended attributes of files in an image
    Setfattr(commands::setfattr::Arguments),
    /// Mount an image through FUSE, read-only by default
    Mount(commands::mount::Arguments),
    /// Unmount images, and wait until all data is written to them
    Umount(commands::umount::Arguments),
    /// Write all cached data of mounts to their images
    Sync(commands::sync::Arguments),
    /// Generate a completion script for a shell
    Completions(commands::completions::Arguments),
    /// Generate the manual pages
    Man(commands::man::Arguments),
}

impl Command {
    /// Runs the command.
    pub fn run(self, console: &mut Console) -> Result<()> {
        match self {
            Self::Info(arguments) => commands::info::run(arguments, console),
            Self::Ls(arguments) => commands::ls::run(arguments, console),
            Self::Tree(arguments) => commands::tree::run(arguments, console),
            Self::Stat(arguments) => commands::stat::run(arguments, console),
            Self::Getfattr(arguments) => commands::getfattr::run(arguments, console),
            Self::Lsattr(arguments) => commands::lsattr::run(arguments, console),
            Self::Cat(arguments) => commands::cat::run(arguments, console),
            Self::Cp(arguments) => commands::cp::run(arguments, console),
            Self::Du(arguments) => commands::du::run(arguments, console),
            Self::Df(arguments) => commands::df::run(arguments, console),
            Self::Find(arguments) => commands::find::run(arguments, console),
            Self::Fiemap(arguments) => commands::fiemap::run(arguments, console),
            Self::Check(arguments) => commands::check::run(arguments, console),
            Self::Put(arguments) => commands::put::run(arguments, console),
            Self::Tar(arguments) => commands::tar::run(arguments, console),
            Self::Mkdir(arguments) => commands::mkdir::run(arguments, console),
            Self::Mknod(arguments) => commands::mknod::run(arguments, console),
            Self::Rm(arguments) => commands::rm::run(arguments, console),
            Self::Mv(arguments) => commands::mv::run(arguments, console),
            Self::Ln(arguments) => commands::ln::run(arguments, console),
            Self::Touch(arguments) => commands::touch::run(arguments, console),
            Self::Truncate(arguments) => commands::truncate::run(arguments, console),
            Self::Fallocate(arguments) => commands::fallocate::run(arguments, console),
            Self::Defrag(arguments) => commands::defrag::run(arguments, console),
            Self::Gc(arguments) => commands::gc::run(arguments, console),
            Self::Chmod(arguments) => commands::chmod::run(arguments, console),
            Self::Chown(arguments) => commands::chown::run(arguments, console),
            Self::Chattr(arguments) => commands::chattr::run(arguments, console),
            Self::Setfattr(arguments) => commands::setfattr::run(arguments, console),
            Self::Mount(arguments) => commands::mount::run(arguments, console),
            Self::Umount(arguments) => commands::umount::run(arguments, console),
            Self::Sync(arguments) => commands::sync::run(arguments, console),
            Self::Completions(arguments) => commands::completions::run(arguments, console),
            Self::Man(arguments) => commands::man::run(arguments, console),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
