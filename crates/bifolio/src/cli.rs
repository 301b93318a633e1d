//! The command line: what can be asked. Not here: doing it (`commands`).

use clap::{Parser, Subcommand};

use crate::commands;
use crate::console::Console;
use crate::failure::Result;

const EXIT_STATUS: &str = "\
Exit status:
  0    Everything went well.
  1    Something failed, or part of it did; standard error says what. The rest was done.
  2    The command line makes no sense.
  4    `check` found inconsistencies.
  8    `check` could not finish.
  130  Interrupted; nothing half-written was left behind.
  141  The reader of standard output went away.";

const ABOUT: &str = "Read and change ext2, ext3 and ext4 images without the kernel's driver";

const LONG_ABOUT: &str = "\
Read and change ext2, ext3 and ext4 images without the kernel's driver.

A path in an image is written IMAGE:/path, as in disk.img:/etc/fstab; a plain IMAGE means its root \
directory. IMAGE is a file or a block device. It is split at the last \":/\" before which an \
existing file is named, so that image names may contain colons.

Only put, tar, mkdir, rm, mv, ln, fallocate, defrag, chmod, chown, cp into an image, and mount -o rw write \
to images; all else only reads them, and replays a dirty journal in memory.";

/// The command line.
#[derive(Parser)]
#[command(name = "bifolio", version, about = ABOUT, long_about = LONG_ABOUT)]
#[command(after_help = EXIT_STATUS, after_long_help = EXIT_STATUS)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Subcommand)]
pub enum Command {
    /// Show what an image holds: format, features, journal, or its partitions
    Info(commands::info::Arguments),
    /// List directories
    Ls(commands::ls::Arguments),
    /// Draw a directory and all that is in it
    Tree(commands::tree::Arguments),
    /// Show everything that is known of an inode
    Stat(commands::stat::Arguments),
    /// Write files to standard output
    Cat(commands::cat::Arguments),
    /// Copy files and trees out of an image, or into one
    Cp(commands::cp::Arguments),
    /// Sum up the space that trees take
    Du(commands::du::Arguments),
    /// Show how full images are
    Df(commands::df::Arguments),
    /// Search a tree
    Find(commands::find::Arguments),
    /// Show where the data of files lies in the image
    Fiemap(commands::fiemap::Arguments),
    /// Hold everything in an image against everything else, and list what does not agree
    Check(commands::check::Arguments),
    /// Write files into an image
    Put(commands::put::Arguments),
    /// Unpack a tar archive into an image
    Tar(commands::tar::Arguments),
    /// Make directories in an image
    Mkdir(commands::mkdir::Arguments),
    /// Remove files and trees from an image
    Rm(commands::rm::Arguments),
    /// Move and rename files within an image
    Mv(commands::mv::Arguments),
    /// Make hard and symbolic links in an image
    Ln(commands::ln::Arguments),
    /// Give ranges of files in an image space, or take it from them
    Fallocate(commands::fallocate::Arguments),
    /// Put files in an image that lie in many pieces into fewer ones
    Defrag(commands::defrag::Arguments),
    /// Change the permissions of files in an image
    Chmod(commands::chmod::Arguments),
    /// Change the owner and group of files in an image
    Chown(commands::chown::Arguments),
    /// Mount an image through FUSE, read-only unless asked otherwise
    Mount(commands::mount::Arguments),
    /// Unmount what `mount` mounted, and wait for its server
    Umount(commands::umount::Arguments),
    /// Make all data written to a mount durable
    Sync(commands::sync::Arguments),
    /// Write a script that makes a shell complete command lines
    Completions(commands::completions::Arguments),
    /// Write the manual pages
    #[command(hide = true)]
    Man(commands::man::Arguments),
}

impl Command {
    /// Does it.
    pub fn run(self, console: &mut Console) -> Result<()> {
        match self {
            Self::Info(arguments) => commands::info::run(arguments, console),
            Self::Ls(arguments) => commands::ls::run(arguments, console),
            Self::Tree(arguments) => commands::tree::run(arguments, console),
            Self::Stat(arguments) => commands::stat::run(arguments, console),
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
            Self::Rm(arguments) => commands::rm::run(arguments, console),
            Self::Mv(arguments) => commands::mv::run(arguments, console),
            Self::Ln(arguments) => commands::ln::run(arguments, console),
            Self::Fallocate(arguments) => commands::fallocate::run(arguments, console),
            Self::Defrag(arguments) => commands::defrag::run(arguments, console),
            Self::Chmod(arguments) => commands::chmod::run(arguments, console),
            Self::Chown(arguments) => commands::chown::run(arguments, console),
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
