//! `bifolio mount`: serves an image through FUSE.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use device::Image;
use fuse::{Claim, MountOptions, OptionError, Plan, SessionError, THREADS_DEFAULT};
use vfs::Volume;

use crate::console::Console;
use crate::failure::{Failure, Result, Status};
use crate::log::Log;
use crate::mount_options::Options;
use crate::target::{ImageOptions, Target};
use crate::writing;

/// The limit of `--threads`.
const THREADS_MAX: u16 = 1024;

// The lines of both texts are indented, since man pages join lines that are not.
const OPTIONS_HELP: &str = "\
Mount options, separated by commas. A later option overrides an earlier one.

  ro, rw
      Mount read-only (the default) or for writing.
  [no]allow_other
      Give access to all users, not only to the one who mounts. The
      kernel checks modes and ACLs in any case.
  [no]suid, [no]dev, [no]exec
      Honour setuid and setgid bits, open device files, execute
      programs. Default: nosuid,nodev,exec.
  fsname=NAME
      Show NAME as the source in the mount table.
  owner=image|mapped
      With mapped, the user who mounts is the image's root: files of
      the image's root are shown as this user's and the reverse, files
      that the user creates belong to root in the image, and the user
      may read, change and give away every file. No other user has
      access. Default: image.
  uidmap=IMAGE:HOST:COUNT, gidmap=IMAGE:HOST:COUNT
      Show COUNT ids of the image, starting at IMAGE, as the host's
      ids starting at HOST. Repeat the option for further ranges.
      Owners in no range are shown as 65534; their files cannot be
      written.
  [no]idmap
      Let root make idmapped mounts of the mount (containers, mount -o
      X-mount.idmap). The kernel then does not say which user writes,
      so no user may take blocks reserved for root. Default: noidmap.
  commit=SECONDS
      Make written data durable after this time without fsync.
      Default: 5.
  sync, [no]dirsync
      Make changes to files, or to names in directories, durable
      before each call returns. Default: async,nodirsync.
  errors=continue|remount-ro|panic
      What to do after corruption was found, instead of what the
      volume says (tune2fs -e). panic does what remount-ro does.
  [no]loop
      Attach a loop device to an image file that root mounts for
      writing; see Durability below. Default: loop, or noloop with
      fsname.
  [no]auto_da_alloc
      Protect programs that replace a file without fsync. After a
      crash, a file that another one was renamed over has its old
      contents or the new ones, never a mixture. A file that was
      truncated and written again is written back when it is closed.
      noauto_da_alloc saves these writes. Default: auto_da_alloc.
  [no]discard
      Discard freed blocks: an image file becomes sparse there. If the
      host does not support it, the log says so once. Default:
      nodiscard.
  [no]writeback
      Let the kernel collect writes: faster for small writes, slower
      for large ones. Any user's writes may then take blocks reserved
      for root. Default: nowriteback.
  [no]uncached
      Keep no file data in the kernel's cache (from Linux 6.6) or the
      server's, except what programs map. Each read goes to the image.
      Not together with writeback. Default: nouncached.
  relatime, strictatime, noatime
      Update access times as mount(8) describes. A read that the
      kernel answers from its cache counts when the file is opened.
      Default: relatime; atime, norelatime and nostrictatime mean
      that.
  [no]diratime
      Update access times of directories. Default: diratime.
  [no]lazytime
      Write access times with the inode's next change, at a sync, or
      after 12 hours. Default: nolazytime.
  io_uring=auto|off|on
      Pass requests through io_uring: where the kernel offers it, never,
      or else fail to mount. Needs Linux 6.14 and enable_uring=Y in the
      kernel's module fuse. Default: auto.
  [no]low_latency
      Keep the host's processors awake while requests without io_uring
      follow each other closely and no other program needs the
      processors. On virtual machines, requests take a fraction of the
      time. Only for root, for whom it is the default where the host
      has /dev/cpu_dma_latency.
  defaults, default_permissions
      Accepted; they change nothing.

Blocks reserved for root (tune2fs -m) are for root and for the user and the group that the \
superblock names.";

/// The time for which the command waits for the server of an earlier mount of the image.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "\
Mounting and unmounting:
  Root mounts directly. Other users need fusermount3 (package fuse3) and a
  directory that they own. `bifolio umount`, `umount` and `fusermount3 -u` end
  the mount, and so do the signals SIGINT, SIGTERM and SIGHUP.

  A signal ends a mount even while it is in use. Data that was written reaches
  the image first, which takes seconds, or minutes if there is much. A second
  signal cuts short the wait for data that the kernel still holds.

Durability:
  Written data is durable after fsync. Without fsync, it is durable after 5
  seconds, or commit= seconds, and the time that writing takes.

  sync, syncfs and `mount -o remount,ro` make all data durable only if the
  kernel passes them on. It does so from Linux 6.18 on, and only for block
  devices. When root mounts an image file for writing, the file therefore gets
  a loop device. The mount shows it as its source; data does not go through it,
  and it is detached with the mount.

  Without a loop device (other users, noloop, fsname, older kernels), these
  calls write only what the kernel has collected. `bifolio sync DIRECTORY` makes
  every mount durable.

  umount returns when all data is on the image if there is a block device or a
  loop device. `bifolio umount` always does.

mount(8), fstab and systemd:
  Called as mount.bifolio (make a symbolic link in /sbin), the command serves
  `mount -t bifolio` and the type bifolio in fstab. It mounts for writing unless
  ro is given, for all users if root mounts (see noallow_other), and with
  nosuid,nodev unless suid or dev is given. It accepts options of mount(8) and
  of ext4 that hold anyway, and refuses those that it cannot obey, such as
  data=journal and nobarrier. It also knows noload, partition=, offset=,
  journal_path=, log=, threads= and cache_size=. With links named
  mount.fuse.bifolio and mount.fuseblk.bifolio as well, `mount -o remount,ro`
  makes all data durable on every mount.

Confinement:
  The process that reads the image runs without privileges, without access to
  files or the network, and behind a filter for system calls.";

/// The arguments of `bifolio mount`.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    /// Mount options, separated by commas, such as rw,allow_other
    #[arg(short = 'o', value_name = "OPTIONS", value_parser = parse_options)]
    #[arg(long_help = OPTIONS_HELP)]
    options: Vec<MountOptionList>,
    /// Stay in the foreground until unmounted
    #[arg(short, long)]
    foreground: bool,
    /// Number of threads that serve requests; with io_uring at least 4 per processor, unless N is lower
    #[arg(long, value_name = "N", default_value_t = THREADS_DEFAULT, value_parser = parse_threads)]
    threads: NonZeroUsize,
    /// Append errors and warnings to FILE; standard error is lost in the background
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Do not confine the process that reads the image
    #[arg(long)]
    no_confine: bool,
    /// The image
    #[arg(value_name = "IMAGE", value_parser = Target::parser())]
    target: Target,
    /// The mount point, an existing directory
    directory: PathBuf,
    #[command(flatten)]
    image: ImageOptions,
}

/// A valid `-o` list.
#[derive(Clone, Debug)]
struct MountOptionList(String);

fn parse_options(list: &str) -> Result<MountOptionList, String> {
    Options::default().add(list).map_err(|error| error.to_string())?;
    Ok(MountOptionList(list.to_owned()))
}

fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    number
        .and_then(|number| NonZeroUsize::new(number.into()))
        .ok_or_else(|| format!("expected a number from 1 to {THREADS_MAX}"))
}

/// Mounts and serves until unmounted.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let Arguments { mut image, options, foreground, threads, log, no_confine, target, directory } =
        arguments;
    if target.path != b"/" {
        return Err(
            Failure::new(&target, "only a whole volume can be mounted").with_status(Status::Usage)
        );
    }
    let refused = |error: OptionError| Failure::new("-o", error.to_string()).usage();
    let mut all = Options::default();
    for list in &options {
        all.add(&list.0).map_err(refused)?;
    }
    all.mount.check().map_err(refused)?;
    let source = target.image.canonicalize();
    let source = source.map_err(|error| Failure::host(&*target.image, "cannot open", &error))?;
    if all.mount.writable {
        all.mount.writable = !is_write_protected(&target, console)?;
    }
    let claim = claim(&source, &image, &all.mount);
    image.exclusive = claim.is_none();
    let plan = Plan {
        claim,
        source: source.into_os_string(),
        directory: mount_point(&directory)?,
        options: all.mount.clone(),
        foreground,
        confine: !no_confine,
        threads,
    };
    let log = Log::new(log.as_deref().map(open_log).transpose()?);
    log.begin();
    // The confined process cannot read the size of memory.
    let writable = all.mount.writable;
    image.timeout = LOCK_TIMEOUT;
    image.uncached = all.mount.uncached;
    let mut volume_options = match writable {
        true => image.volume_options_for_writing()?,
        false => image.volume_options()?,
    };
    all.apply(&mut volume_options);
    let open = |image: Image| {
        let volume = image.device().and_then(|device| Volume::open_device(device, &volume_options));
        let volume = volume.map_err(|error| Failure::library(&*target.image, &error))?;
        if let Some(warning) = volume.warning() {
            tracing::warn!("{}", target.warning(&warning));
        }
        Ok(Arc::new(volume))
    };
    let open_image = || match writable {
        true => image.open_image_for_writing(&target),
        false => image.open_image(&target),
    };
    fuse::run(&plan, open_image, open).map_err(|error| {
        let failure = failure(error, &target, &directory);
        log.note(&failure);
        failure
    })
}

fn open_log(path: &Path) -> Result<File> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map_err(|error| Failure::host(path, "cannot open the log", &error))
}

fn failure(error: SessionError<Failure>, target: &Target, directory: &Path) -> Failure {
    match error {
        SessionError::Open(failure) => failure,
        SessionError::Root(error) => Failure::library(&*target.image, &error),
        SessionError::Interrupted => Failure::interrupted(),
        // Another process of this command has said what is wrong, on the same standard error.
        SessionError::Reported(status) => std::process::exit(status.into()),
        error => Failure::new(directory, error.to_string()),
    }
}

/// Returns whether the host refuses all writes to the image, and warns if so: like mount(8), the command then
/// mounts it read-only.
fn is_write_protected(target: &Target, console: &mut Console) -> Result<bool> {
    let image = target.image.as_path();
    let is_protected = device::is_write_protected(image);
    let is_protected = is_protected.map_err(|error| writing::cannot_write(image, &error))?;
    if is_protected {
        console.warn(format_args!("{}: write-protected, mounted read-only", image.display()));
    }
    Ok(is_protected)
}

/// Returns the block device or image file that is claimed while `source` is mounted. `None` for users other
/// than root, whom the host does not let claim a device.
fn claim(source: &Path, image: &ImageOptions, options: &MountOptions) -> Option<Claim> {
    let kind = source.metadata().ok()?.file_type();
    if !rustix::process::geteuid().is_root() {
        None
    } else if kind.is_block_device() {
        Some(Claim::Device(source.to_owned()))
    } else if options.writable && options.loop_device && options.fsname.is_none() {
        // The partition table, which is not read yet, says where a partition begins.
        Some(Claim::Image { path: source.to_owned(), offset: image.offset.unwrap_or(0) })
    } else {
        None
    }
}

fn mount_point(directory: &Path) -> Result<PathBuf> {
    let path = directory.canonicalize().and_then(|path| match path.metadata()?.is_dir() {
        true => Ok(path),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    path.map_err(|error| {
        let failure = Failure::host(directory, "cannot mount here", &error);
        match error.raw_os_error() {
            // ENOTCONN: a mount whose server was killed.
            Some(107) => failure.advise("`bifolio umount` removes a mount whose server has died"),
            _ => failure,
        }
    })
}
