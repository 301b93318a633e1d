//! `bifolio mount`: serves an image through FUSE.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use device::Image;
use fuse::{MountOptions, Plan, SessionError, THREADS_DEFAULT};
use vfs::Volume;

use crate::console::Console;
use crate::failure::{Failure, Result, Status};
use crate::log::Log;
use crate::target::{ImageOptions, Target};

/// The most threads that serve.
const THREADS_MAX: u16 = 1024;

const AFTER_HELP: &str = "\
Root mounts by itself; ordinary users need fusermount3 (package fuse3) and a directory that is \
theirs. The mount goes away with `bifolio umount`, `umount` or `fusermount3 -u`, or when the \
process gets SIGINT, SIGTERM or SIGHUP. A signal ends even a mount in use, once what was written to it \
is on the image: mostly within seconds, in minutes if there is much. A second signal cuts short the \
wait for what the kernel still has.

The process that reads the image runs without privileges, without access to files or the network, \
and behind a filter on system calls.";

/// The arguments of `bifolio mount`.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// Mount options, separated by commas: ro, rw, allow_other, [no]suid, [no]dev, [no]exec, [no]writeback, [no]uncached, [no]discard, low_latency, io_uring=auto|off|on, fsname=NAME
    ///
    /// Mounts are read-only unless rw is given. nosuid and nodev are on unless suid or dev is given.
    /// Only the user who mounts has access unless allow_other is given; modes and ACLs always count.
    /// With writeback the kernel collects what is written: faster for small writes, slower for large
    /// ones. With uncached neither the kernel (from Linux 6.6 on) nor the server keeps what is read and
    /// written, save what programs map: what else the host has in memory stays there, and each read goes to the
    /// image. What is kept for root (tune2fs -m) is for root and for the user and the group that the
    /// superblock names; with writeback anybody may take of it, since the kernel has accepted what is
    /// written by then. With discard, blocks that are freed are given back: an image file becomes sparse
    /// there; where the host cannot, the log says so once.
    /// Requests travel through io_uring where the kernel offers it (Linux 6.14, if its module
    /// fuse has enable_uring=Y); io_uring=on fails without it. With low_latency,
    /// which takes root, no processor of the host sleeps while requests without io_uring follow each
    /// other closely: on virtual machines they take a fraction of the time.
    #[arg(short = 'o', value_name = "OPTIONS", value_parser = parse_options)]
    options: Vec<MountOptionList>,
    /// Stay in the foreground until unmounted
    #[arg(short, long)]
    foreground: bool,
    /// How many threads serve; through io_uring, 4 for each processor at least unless N is less
    #[arg(long, value_name = "N", default_value_t = THREADS_DEFAULT, value_parser = parse_threads)]
    threads: NonZeroUsize,
    /// Append what goes wrong to FILE: in the background nobody sees standard error
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Do not confine the process that reads the image
    #[arg(long)]
    no_confine: bool,
    /// The image
    #[arg(value_name = "IMAGE", value_parser = Target::parser())]
    target: Target,
    /// Where to mount it: an existing directory
    directory: PathBuf,
    #[command(flatten)]
    image: ImageOptions,
}

/// One `-o` list that was found to be sound.
#[derive(Clone, Debug)]
struct MountOptionList(String);

fn parse_options(list: &str) -> Result<MountOptionList, String> {
    MountOptions::default().add(list).map_err(|error| error.to_string())?;
    Ok(MountOptionList(list.to_owned()))
}

fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    number
        .and_then(|number| NonZeroUsize::new(number.into()))
        .ok_or_else(|| format!("expected a number from 1 to {THREADS_MAX}"))
}

/// Mounts and serves until unmounted.
pub fn run(arguments: Arguments, _console: &mut Console) -> Result<()> {
    let Arguments { mut image, options, foreground, threads, log, no_confine, target, directory } =
        arguments;
    if target.path != b"/" {
        return Err(
            Failure::new(&target, "only a whole volume can be mounted").with_status(Status::Usage)
        );
    }
    let mut mount_options = MountOptions::default();
    for list in &options {
        mount_options
            .add(&list.0)
            .map_err(|error| Failure::new("-o", error.to_string()).with_status(Status::Usage))?;
    }
    mount_options
        .check()
        .map_err(|error| Failure::new("-o", error.to_string()).with_status(Status::Usage))?;
    let source = target.image.canonicalize();
    let source = source.map_err(|error| Failure::host(&*target.image, "cannot open", &error))?;
    let plan = Plan {
        block_device: image.is_whole() && is_block_device(&source),
        source: source.into_os_string(),
        directory: mount_point(&directory)?,
        options: mount_options,
        foreground,
        confine: !no_confine,
        threads,
    };
    let log = Log::new(log.as_deref().map(open_log).transpose()?);
    log.begin();
    // How much memory there is must be found out before the confinement.
    let writable = plan.options.writable;
    image.discard = plan.options.discard;
    image.uncached = plan.options.uncached;
    let volume_options = match writable {
        true => image.volume_options_for_writing()?,
        false => image.volume_options()?,
    };
    let open = |image: Image| {
        let volume = image.device().and_then(|device| Volume::open(device, &volume_options));
        volume.map(Arc::new).map_err(|error| Failure::library(&*target.image, &error))
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

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
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
            Some(107) => failure.advise("`bifolio umount` clears a dead mount away"),
            _ => failure,
        }
    })
}
