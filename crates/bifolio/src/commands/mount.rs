//! `bifolio mount`.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::attributes::{Detail, VolumeInfo};
use clap::Args;
use device::Image;
use fuse::{
    Claim, Inherited, MountEntry, MountError, MountOptions, OptionError, Plan, SessionError,
    THREADS_DEFAULT, Upgrade,
};
use rustix::io::Errno;
use vfs::{Volume, VolumeOptions};

use crate::cli::numbers::parse_threads;
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::console::log::Log;
use crate::console::log_file;
use crate::images::confinement;
use crate::images::part::PartDevice;
use crate::images::related;
use crate::images::target::{ImageOptions, Target};
use crate::images::writing;
use crate::images::{upgrade, users};
use crate::mount_options::{Options, defaults, table};

/// The memory that a server may map beside its cache, in bytes: stacks, buffers, and what the
/// formats keep.
const MEMORY_BESIDE_CACHE: u64 = 4 << 30;
/// The memory that a server may map for the nodes that the kernel knows, in bytes, where the
/// machine's memory is unknown.
const NODES_MEMORY: u64 = 16 << 30;

// The lines of these texts are indented, because man pages join lines that are not indented.
const OPTIONS_HELP: &str = "\
Mount options, separated by commas. Of options that exclude each other, the
last one counts; uidmap, gidmap and extensions add up.

  ro, rw
      Mount read-only (the default) or for writing.
  [no]allow_other
      Allow access to all users, not only to the user who mounts. The
      kernel checks permissions and ACLs in any case. Default for root
      with mount(8): allow_other; otherwise noallow_other.
  [no]suid, [no]dev, [no]exec
      Honour set-user-ID and set-group-ID bits, allow device files,
      allow programs to be executed. Default for root with mount(8):
      suid,dev,exec; otherwise nosuid,nodev,exec. Of ordinary users,
      suid and dev are ignored, with a warning.
  fsname=NAME
      Show NAME as the source in the mount table.
  owner=image|mapped
      image: show owners as they are in the image.
      mapped: exchange root of the image with the user who mounts.
      Files of root are shown as files of this user, and files that
      the user creates belong to root in the image. The user may read,
      change and chown every file. Other users have no access.
      Default: image.
  uidmap=IMAGE:HOST:COUNT, gidmap=IMAGE:HOST:COUNT
      Show COUNT ids of the image, starting at IMAGE, as the ids of
      the host that start at HOST. Repeat the option for more ranges.
      Owners outside of all ranges are shown as 65534, and their files
      cannot be written.
  [no]idmap
      Allow root to create idmapped mounts of this mount (for
      containers, or with mount -o X-mount.idmap). The kernel then does
      not report which user writes, so no user may use the blocks that
      are reserved for root. Default: noidmap.
  commit=SECONDS
      Make written data durable after this time, without fsync.
      Default: 5.
  sync, [no]dirsync
      Make each change durable before the call returns: all changes
      (sync), or changes of names in directories (dirsync).
      Default: async,nodirsync.
  errors=continue|remount-ro|panic
      What to do when corruption is found, instead of the setting of
      the volume (tune2fs -e; f2fs: continue). panic is the same as
      remount-ro.
  [no]loop
      Attach a loop device to the image file when root mounts it for
      writing, or a partition of it (see Durability below).
      Default: loop, or noloop with fsname.
  [no]auto_da_alloc
      Protect programs that replace files without fsync. After a crash,
      a file that was replaced by a rename has either the old contents
      or the new contents. A file that was truncated and rewritten is
      written back when it is closed. noauto_da_alloc avoids these
      writes. Default: auto_da_alloc.
  [no]discard
      Discard freed blocks, which makes an image file sparse. If the
      host does not support this, one warning is logged.
      Default: the setting of the volume (tune2fs -o), or nodiscard.
  [no]grpid, bsdgroups, sysvgroups
      Give new files on ext4 the group of their directory (grpid or
      bsdgroups), and not that of their creator (nogrpid or
      sysvgroups). Default: the setting of the volume (tune2fs -o), or
      nogrpid.
  mode=adaptive|lfs
      Where f2fs writes data. adaptive: when few segments are free, also
      to the free blocks between others. lfs: only to free segments, as
      long as cleaning makes some; blocks that are written together stay
      adjacent, but other blocks have to be moved. Default: adaptive.
  background_gc=on|off|sync
      Whether f2fs cleans segments while nothing else is done, if more
      than 40% of the free blocks lie between others. sync is the same as
      on. Default: on.
  compress_algorithm=lz4|zstd|lzo|lzo-rle, compress_log_size=N,
  compress_chksum
      How f2fs compresses new files: in clusters of 2^N blocks (2 to 8),
      with a checksum each. Data of files with LZO is stored without
      compression. Default: lz4, 2, and no checksums.
  compress_extension=EXT
      Compress new f2fs files whose names have the extension EXT, or all
      files with *. Can be given up to 16 times. Other files are
      compressed if their directory has the flag c (chattr +c).
  nocompress_extension=EXT
      Do not compress new f2fs files whose names have the extension EXT.
      Can be given up to 16 times.
  [no]writeback
      Let the kernel cache writes: faster for small writes, slower for
      large writes. Writes of all users may then use the blocks that
      are reserved for root. Default: nowriteback.
  [no]uncached
      Keep no file data in the caches of the kernel (Linux 6.6 or newer)
      and the server, except data that programs map. Each read goes to
      the image. Cannot be combined with writeback.
      Default: nouncached.
  relatime, strictatime, noatime
      Update access times as described in mount(8). Reads that the
      kernel answers from its cache do not update the access time;
      opening the file does. Default: relatime. atime, norelatime and
      nostrictatime are the same as relatime.
  [no]diratime
      Update access times of directories. Default: diratime.
  [no]lazytime
      Write access times with the next change of the inode, at a sync,
      or after 12 hours. Default: nolazytime.
  io_uring=auto|off|on
      auto: receive requests through io_uring if the kernel supports it.
      off: do not use io_uring. on: fail if the kernel does not support
      it. Needs Linux 6.14 and enable_uring=Y in the kernel module fuse.
      Default: auto.
  [no]low_latency
      Keep the processors of the host awake while requests follow each
      other closely and no other program needs the processors. Much
      faster on virtual machines. No effect with io_uring. Only for
      root. Default for root if the host has /dev/cpu_dma_latency.
  noload, norecovery, disable_roll_forward
      The same as --no-recovery, of ext4, of both formats, and of f2fs.
      Only with ro.
  no_confine, no_confine=LAYER
      The same as --no-confine, for mount(8) and fstab. Repeat the option
      for more layers.

Blocks that are reserved for root (tune2fs -m) can be used by root, and by the user and the group that are \
set in the superblock (tune2fs -u and -g).";

/// Time for which the command waits for the server of an earlier mount of the image.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

const AFTER_HELP: &str = "\
Mounting and unmounting:
  Root can mount directly. Other users need fusermount3 (package fuse3) and a
  directory that they own. To unmount, use `bifolio umount`, `umount` or
  `fusermount3 -u`, or send SIGINT, SIGTERM, SIGHUP or SIGQUIT to the server.

  A signal unmounts even while the mount is in use. All written data is written
  to the image first, which can take minutes; the kernel has 30 seconds for data
  that is still in its cache, and a second signal ends this wait.

  If root mounts a block device that is mounted already, or an image file that is
  mounted for writing, both mounts show the same volume, and the server ends with
  the last one. The options ro, suid, dev, exec and those of access times are those
  of each mount; the others are those of the first mount. If that one is read-only,
  the second one cannot be for writing.

Durability:
  Written data is durable after fsync. Without fsync, it is durable after 5
  seconds (see commit=) and the time that writing takes.

  sync, syncfs and `mount -o remount,ro` make all data durable only if the
  kernel forwards these calls to the server. Linux 6.18 and newer do this for
  mounts of block devices. Therefore, when root mounts an image file for
  writing, a loop device is attached to it and shown as the source of the mount.
  Unmounting detaches it. Only data of a partition (--partition, --offset) goes
  through it: the server then has nothing else of the disk open.

  Without a loop device (other users, noloop, fsname, older kernels), these
  calls write only data that is in the cache of the kernel. To make all data
  durable on any mount, use `bifolio sync DIRECTORY`.

  For mounts of block devices and loop devices, umount returns when all data is
  written to the image. `bifolio umount` does this for all mounts.

mount(8), fstab and systemd:
  For `mount -t bifolio` and the type bifolio in fstab, create a symbolic link to
  bifolio with the name /sbin/mount.bifolio. The defaults are then rw and, for
  root, allow_other, suid and dev, as for file systems of the kernel: give
  nosuid,nodev for images that you do not trust. Further options are incomplete, partition=,
  offset=, superblock=, block_size=, journal_path=, log=, threads= and cache_size=.

  Where libfuse has installed /sbin/mount.fuse, and bifolio is in a folder such
  as /usr/bin or /usr/local/bin, the type fuse.bifolio needs no link.

  Create the links mount.fuse.bifolio and mount.fuseblk.bifolio, too. With them
  (for mounts without a block device, also with /sbin/mount.fuse),
  `mount -o remount,ro` makes all data durable on all mounts, and leaves the
  image as after an unmount: its journal is empty until the next change. As in
  Linux, ro and rw concern all mounts of the volume (with remount,bind, only this
  one), and suid, dev and exec only the one that is remounted. Those three give
  back what nosuid, nodev and noexec have taken, unless fstab or the command
  line names the image; `mount -o remount,bind,exec` always does. Other options,
  such as commit=, sync and noatime, are ignored by a remount: unmount, and mount
  again.
  `mount -o remount,rw` also works for a mount of root that began read-only,
  unless it is one of a part of an image, noload, norecovery or incomplete. With
  links of the names umount.fuse.bifolio and umount.fuseblk.bifolio, umount(8)
  waits for all data of all mounts, and reports errors.

If the server dies:
  The mount stays, and accesses to it fail (ENOTCONN), until it is unmounted or
  `bifolio mount` replaces it. Data that was synced is durable. Messages of
  mounts in the background go to the system log (syslog or the journal).

Confinement:
  The process that parses the image runs without privileges, without access to
  other files and the network, and with a filter on system calls.";

/// The arguments of `bifolio mount`.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Arguments {
    /// Mount options, separated by commas, such as rw,allow_other
    #[arg(short = 'o', value_name = "OPTIONS", value_parser = parse_options)]
    #[arg(long_help = format!("{OPTIONS_HELP}\n{}", table::help()))]
    options: Vec<MountOptionList>,
    /// Stay in the foreground until the image is unmounted
    #[arg(short, long)]
    foreground: bool,
    /// Receive requests with N threads. With io_uring, they are divided among the processors, each
    /// of which gets at least 4, or N if that is less. Another 16 threads serve requests that wait
    /// for the kernel
    #[arg(long, value_name = "N", default_value_t = THREADS_DEFAULT, value_parser = parse_threads)]
    threads: NonZeroUsize,
    /// Append errors and warnings to FILE; in the background, they also go to the system log
    /// (syslog or the journal)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Image to mount
    #[arg(value_name = "IMAGE", value_parser = Target::image_parser())]
    target: Target,
    /// Mount point, an existing directory
    directory: PathBuf,
    #[command(flatten)]
    image: ImageOptions,
}

/// A valid list of `-o`.
#[derive(Clone, Debug)]
struct MountOptionList(String);

fn parse_options(list: &str) -> Result<MountOptionList, String> {
    Options::default().add(list).map_err(|error| error.to_string())?;
    Ok(MountOptionList(list.to_owned()))
}

/// Mounts the image, and serves the mount until it is unmounted.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    // Before anything is opened.
    let inherited = Inherited::list();
    let Arguments { mut image, options, foreground, threads, log, target, directory } = arguments;
    let mut all = Options::default();
    for list in &options {
        all.add(&list.0).map_err(refused)?;
    }
    if let Some(device) = &all.ignored_loop {
        let text = "is ignored: the kernel chooses the loop device";
        console.warn(Failure::new(&*format!("loop={device}"), text));
    }
    let source = target.image.canonicalize();
    let source = source.map_err(|error| Failure::host(&*target.image, "cannot open", &error))?;
    if all.mount.writable {
        all.mount.writable = !is_write_protected(&target, console)?;
    }
    all.check().map_err(refused)?;
    image.no_recovery |= all.no_recovery.is_some();
    image.confinement.limit_to(all.confinement);
    leave_out_dead(&directory)?;
    let mounted = mounted_already(&source, &image);
    if let Some(first) = mounted.map_err(|error| Failure::new(&*target.image, error.to_string()))? {
        let again = fuse::mount_again(&first, &mount_point(&directory)?, &all.mount);
        return again.map_err(|error| Failure::new(&*directory, error.to_string()));
    }
    let log = Log::new(log.as_deref().map(log_file::open).transpose()?);
    log.start();
    confinement::warn_of_ignored_variable();
    // The confined process cannot read the size of memory.
    let writable = all.mount.writable;
    image.timeout = LOCK_TIMEOUT;
    image.uncached = all.mount.uncached;
    let part = PartDevice::new(&target, &image, writable, all.mount.loop_device, &inherited)
        .inspect_err(|failure| log.append(failure))?;
    // What is opened: the image, or the device for a part of it.
    let mut opened = target.clone();
    if let Some(part) = &part {
        opened.image.clone_from(&part.path);
        (image.partition, image.offset) = (None, None);
    }
    let claim = match &part {
        // As for image files, a loop device is only claimed if the kernel passes on more than
        // reads.
        Some(part) if part.is_loop() && (!writable || all.mount.fsname.is_some()) => None,
        Some(part) => Some(Claim::Device(part.path.clone())),
        None => claim(&source, &image, &all.mount),
    };
    image.exclusive = claim.is_none();
    // The loop device of a part has the bytes of the image, which was locked with it. The guard
    // keeps the locks.
    let related = match &part {
        Some(part) if part.is_loop() => Vec::new(),
        _ => image
            .lock_related(&opened.image, writable)
            .inspect_err(|failure| log.append(failure))?,
    };
    image.locks_related = false;
    let mut volume_options = image.volume_options(writable)?;
    all.apply(&mut volume_options);
    let (upgrade, read_only) = match writable {
        true => (Upgrade::never(upgrade::HOST_IS_FULL), None),
        false => upgrade::open(&opened, &image, part.is_some(), &volume_options)
            .inspect_err(|failure| log.append(failure))?,
    };
    // A volume that becomes writable has a cache of its own.
    let caches = if read_only.is_some() { 2 } else { 1 };
    let plan = Plan {
        claim,
        source: source.into_os_string(),
        directory: mount_point(&directory)?,
        options: all.mount.clone(),
        upgrade,
        foreground,
        system_log: Arc::clone(log.system()),
        confinement: image.confinement.layers(),
        memory_max: memory_max(volume_options.cache.bytes_max.saturating_mul(caches)),
        inherited,
        threads,
    };
    // The guard keeps this without calling it, and with it the lock of the image and the loop
    // device. The server closes them, and keeps the locks in case that the guard is killed.
    let open_images = || {
        let files = match read_only {
            Some(files) => files,
            None => open_images(&image, &opened, writable)?,
        };
        let locked = part.iter().map(PartDevice::locked).chain(related.iter().map(AsFd::as_fd));
        for file in locked {
            fuse::keep_until_exit(file).map_err(|errno| {
                Failure::host(&*target.image, "cannot keep a lock", &errno.into())
            })?;
        }
        drop((part, related));
        Ok(files)
    };
    let open = |(unread, journal): upgrade::Opened| {
        volume_options.ext4.journal_device = image.journal_device(journal)?;
        open_volume(&target, unread, volume_options, &all)
    };
    fuse::run(&plan, open_images, open).map_err(|error| {
        let failure = failure(error, &target, &directory);
        log.append(&failure);
        failure
    })
}

fn refused(error: OptionError) -> Failure {
    Failure::new("-o", error.to_string()).usage()
}

/// Unmounts dead mounts on `directory`. From then on, loop devices of dead mounts do not count as
/// users of the image.
fn leave_out_dead(directory: &Path) -> Result<()> {
    let removed = fuse::remove_dead(directory).map_err(|error| {
        let action = "cannot unmount a mount whose server has died";
        Failure::new(directory, format!("{action}: {error}"))
    })?;
    related::leave_out_dead(removed.into_iter().map(PathBuf::from).collect());
    Ok(())
}

/// Opens the image and its external journal, without reading them.
fn open_images(image: &ImageOptions, target: &Target, writable: bool) -> Result<upgrade::Opened> {
    let unread = match writable {
        true => image.open_image_for_writing(target)?,
        false => image.open_image(target)?,
    };
    Ok((unread, image.open_journal(writable)?))
}

/// Opens the volume in an image: read-only if the host has no space for what has to be written.
fn open_volume(
    target: &Target,
    unread: Image,
    mut options: VolumeOptions,
    all: &Options,
) -> Result<Arc<Volume>> {
    let device = unread.device().map_err(|error| Failure::library(&*target.image, &error))?;
    let volume = match Volume::open_device(Arc::clone(&device), &options) {
        Err(error) if options.writable && is_out_of_space(&error) => {
            let text = "the host has no space for what has to be written: mounting it read-only";
            tracing::warn!("{}", target.warning(text));
            options.writable = false;
            Volume::open_device(Arc::clone(&device), &options)
        }
        opened => opened,
    };
    let volume =
        volume.map_err(|error| writing::open_failure(&target.image, device, &options, &error))?;
    if let Some(warning) = volume.warning() {
        tracing::warn!("{}", target.warning(&warning));
    }
    if let Some(warning) = recorded_errors(&volume.info()) {
        tracing::warn!("{}", target.warning(&warning));
    }
    let given = all.names();
    let default_warning = defaults::warning(&volume.default_options(), given);
    if let Some(warning) = default_warning.filter(|_| options.writable) {
        tracing::warn!("{}", target.warning(&warning));
    }
    if let Err(error) = all.check_format(volume.info().format) {
        volume.close().map_err(|error| Failure::library(&*target.image, &error))?;
        return Err(refused(error));
    }
    Ok(Arc::new(volume))
}

/// Returns a warning if the volume says that errors were found in it, as the kernel prints when it
/// mounts one.
fn recorded_errors(info: &VolumeInfo) -> Option<String> {
    let text = |wanted: &str| {
        info.details.iter().find_map(|(name, detail)| match detail {
            Detail::Text(text) if *name == wanted => Some(text.as_str()),
            _ => None,
        })
    };
    let (has_errors, checker) = match info.format {
        "f2fs" => {
            let flags = text("checkpoint_state").unwrap_or_default().split(", ");
            let is_error = |flag| matches!(flag, "error" | "fsck needed" | "quota check needed");
            (flags.into_iter().any(is_error), "fsck.f2fs")
        }
        _ => (text("state").is_some_and(|state| state.contains("with errors")), "e2fsck"),
    };
    let last = text("last_error").map(|last| format!(" (the last one: {last})"));
    let last = last.unwrap_or_default();
    has_errors.then(|| {
        format!(
            "errors were found in this volume earlier{last}; list them with `bifolio check`, and repair it with {checker}"
        )
    })
}

/// Returns the mount of the volume that root can mount again. `None` if the volume is that of a
/// partition, which the image does not say without being read.
fn mounted_already(source: &Path, image: &ImageOptions) -> Result<Option<MountEntry>, MountError> {
    let is_root = rustix::process::geteuid().is_root();
    match image.partition {
        None if is_root => fuse::served(source, image.offset.unwrap_or(0)),
        _ => Ok(None),
    }
}

/// Returns whether the host has no space for a block that is a hole of the image file.
fn is_out_of_space(error: &base::Error) -> bool {
    let errnos = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
    matches!(error, base::Error::Io(error) if errnos.contains(&error.errno))
}

fn failure(error: SessionError<Failure>, target: &Target, directory: &Path) -> Failure {
    match error {
        SessionError::Open(failure) => failure,
        SessionError::Root(error) => Failure::library(&*target.image, &error),
        SessionError::Interrupted => Failure::interrupted(),
        // Another process of this command has reported the failure on the same standard error.
        SessionError::Reported(status) => std::process::exit(status.into()),
        SessionError::Mount(MountError::InUse(device)) if !fuse::mounts_of(&device).is_empty() => {
            users::in_use(&device)
        }
        error => Failure::new(directory, error.to_string()),
    }
}

/// Returns the memory that a server with a cache of `cache_bytes_max` may map, in bytes. The nodes
/// that the kernel knows need little more memory than the kernel's own inodes for them. So the
/// kernel frees inodes, which makes the server free nodes, before these need as much as the machine
/// has.
fn memory_max(cache_bytes_max: u64) -> u64 {
    let nodes = pagecache::machine_memory().unwrap_or(NODES_MEMORY);
    cache_bytes_max.saturating_mul(2).saturating_add(MEMORY_BESIDE_CACHE).saturating_add(nodes)
}

/// Returns whether the host refuses all writes to the image. If so, prints a warning: like
/// mount(8), the command then mounts the image read-only.
fn is_write_protected(target: &Target, console: &mut Console) -> Result<bool> {
    let image = target.image.as_path();
    let is_protected = device::is_write_protected(image);
    let is_protected = is_protected.map_err(|error| writing::cannot_write(image, &error))?;
    if is_protected {
        console.warn(Failure::new(image, "is write-protected; mounting it read-only"));
    }
    Ok(is_protected)
}

/// Returns the block device or image file to claim while `source` is mounted. `None` for users
/// other than root, because they cannot claim devices.
fn claim(source: &Path, image: &ImageOptions, options: &MountOptions) -> Option<Claim> {
    let kind = source.metadata().ok()?.file_type();
    if !rustix::process::geteuid().is_root() {
        None
    } else if kind.is_block_device() {
        Some(Claim::Device(source.to_owned()))
    } else if options.writable && options.loop_device && options.fsname.is_none() {
        // The offset of a partition is in the partition table, which is not read yet.
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
            // ENOTCONN: the server of a mount has died.
            Some(errno) if errno == Errno::NOTCONN.raw_os_error() => {
                failure.advise("unmount the dead mount first")
            }
            _ => failure,
        }
    })
}
