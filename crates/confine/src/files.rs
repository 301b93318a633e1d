//! Landlock: no access to files by their paths but to trees that the process needs, no connections,
//! no signals to other processes. And the root directory of a process that creates files with
//! capabilities, since Landlock does not control the system calls for owners, permissions, times
//! and attributes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags, fstat};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::{Proof, Trees, inherited, no_landlock};

/// Denies every access that the kernel's Landlock controls, but that to `trees`. Older kernels
/// control less; the filter on system calls denies the rest. Returns whether the kernel controls
/// all that is known.
pub fn restrict(trees: &Trees<'_>, proof: &Proof) -> Result<bool, String> {
    let covers_root = covers_root(trees)
        .map_err(|errno| format!("cannot look at the directories to copy: {errno}"))?;
    let status = restrict_self(trees).map_err(|error| {
        let has_no_new_privileges = rustix::thread::no_new_privs().unwrap_or(false);
        no_landlock::reason_of_refusal(&error.to_string(), has_no_new_privileges)
    })?;
    if status == RulesetStatus::NotEnforced {
        return Err(no_landlock::reason(proof));
    }
    // /proc does not show Landlock's restrictions, so one is tried.
    let (path, flags) = match trees {
        _ if !covers_root => ("/", OFlags::RDONLY | OFlags::DIRECTORY),
        Trees::Create { .. } => ("/dev/null", OFlags::RDONLY),
        Trees::Read { .. } | Trees::None => ("/dev/null", OFlags::WRONLY),
    };
    match rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::ACCESS) => Ok(status == RulesetStatus::FullyEnforced),
        Ok(_) => Err(format!("{path} can still be opened")),
        Err(errno) => Err(format!("opening {path} fails for another reason: {errno}")),
    }
}

/// Returns whether the root directory is one of the trees.
fn covers_root(trees: &Trees<'_>) -> Result<bool, Errno> {
    let root = rustix::fs::stat("/")?;
    let is_root = |tree: &dyn AsFd| Ok(is_same(&fstat(tree.as_fd())?, &root));
    match trees {
        Trees::None => Ok(false),
        Trees::Read { trees, .. } => {
            trees.iter().try_fold(false, |found, tree| Ok(found || is_root(tree)?))
        }
        Trees::Create { tree, .. } => is_root(tree),
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn restrict_self(trees: &Trees<'_>) -> Result<RulesetStatus, landlock::RulesetError> {
    let abi = ABI::V6;
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?;
    Ok(allow(ruleset, trees)?.restrict_self()?.ruleset)
}

/// Adds the rules for `trees`.
fn allow(
    ruleset: RulesetCreated,
    trees: &Trees<'_>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    match trees {
        Trees::None => Ok(ruleset),
        Trees::Read { trees, .. } => trees.iter().try_fold(ruleset, |ruleset, tree| {
            let is_directory = fstat(tree)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
            let mut access = BitFlags::from(AccessFs::ReadFile);
            if is_directory {
                access |= AccessFs::ReadDir;
            }
            ruleset.add_rule(PathBeneath::new(tree, access))
        }),
        Trees::Create { tree, privileged, .. } => {
            let mut access = AccessFs::WriteFile
                | AccessFs::Truncate
                | AccessFs::ReadDir
                | AccessFs::RemoveFile
                // Also needed to rename a directory.
                | AccessFs::RemoveDir
                | AccessFs::Refer
                | AccessFs::MakeReg
                | AccessFs::MakeDir
                | AccessFs::MakeSym
                | AccessFs::MakeFifo
                | AccessFs::MakeSock;
            if *privileged {
                access |= AccessFs::MakeChar | AccessFs::MakeBlock;
            }
            ruleset.add_rule(PathBeneath::new(tree, access))
        }
    }
}

/// A directory in which files are created.
#[derive(Debug)]
pub struct Tree {
    /// The directory.
    pub directory: OwnedFd,
    /// The mount of its own, which ends with this.
    _mount: Option<OwnedFd>,
}

impl Tree {
    /// Returns a directory in a mount of its own, with all mounts below it: "..", from no directory
    /// in it, leads out of it, even if other programs move directories out of it. Needs
    /// CAP_SYS_ADMIN. Gives `directory` back if it fails.
    ///
    /// Closes `directory`: from there, ".." leads to its parent on the host, also in a process with
    /// another root directory.
    pub fn in_own_mount(directory: OwnedFd) -> Result<Self, (OwnedFd, Errno)> {
        let clone = || {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_EMPTY_PATH
                | OpenTreeFlags::AT_RECURSIVE;
            let mount = rustix::mount::open_tree(&directory, "", flags)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(&mount, ".", flags, Mode::empty())?;
            Ok(Self { directory, _mount: Some(mount) })
        };
        clone().map_err(|errno| (directory, errno))
    }
}

impl From<OwnedFd> for Tree {
    fn from(directory: OwnedFd) -> Self {
        Self { directory, _mount: None }
    }
}

/// Makes the tree that files are created in the root directory and the current directory. Fails for
/// a process with a directory open that is `outside` of it.
pub fn enter(trees: &Trees<'_>, outside: Option<RawFd>) -> Result<(), String> {
    let Trees::Create { tree, .. } = trees else { return Ok(()) };
    if let Some(number) = outside {
        return Err(format!(
            "file descriptor {number} is a directory outside of the one to copy to"
        ));
    }
    let entered = || {
        rustix::process::fchdir(tree)?;
        rustix::process::chroot(".")?;
        Ok(is_same(&rustix::fs::stat("/")?, &fstat(tree)?))
    };
    match entered() {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err("chroot succeeded, but the root directory is not the one to copy".to_owned())
        }
        Err(errno) => {
            let errno: Errno = errno;
            Err(errno.to_string())
        }
    }
}

/// Returns an open directory that is in another mount than the tree that files are created in. From
/// there, ".." leads past the root directory.
pub fn find_outside(trees: &Trees<'_>) -> Option<RawFd> {
    let Trees::Create { tree, .. } = trees else { return None };
    // Zero for all before Linux 5.8, which has no Landlock.
    let mount = |file: BorrowedFd<'_>| {
        let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        stat.map(|stat| stat.stx_mnt_id)
    };
    let of_tree = mount(tree.as_fd());
    inherited::find_open(|file| {
        let is_directory = fstat(file)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        is_directory && mount(file) != of_tree
    })
}
