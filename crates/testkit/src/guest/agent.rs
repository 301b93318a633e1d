//! The guest's side: the first and only process of a booted Linux. It mounts each disk, does its
//! job, writes the results to the last disk, and restarts the machine, which ends qemu.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::system::RebootCommand;

use super::{JOBS, Job, MODULES};
use crate::turns::OnHost;
use crate::{Manifest, must, tree};

/// Does the guest's work and does not return, if this process is the guest. Otherwise returns at once.
pub fn run_if_guest() {
    if std::process::id() != 1 || !Path::new(JOBS).exists() {
        return;
    }
    mount("devtmpfs", Path::new("/dev"), "devtmpfs", MountFlags::empty());
    for module in MODULES {
        let file = must(File::open(Path::new("/").join(module)), module);
        must(rustix::system::finit_module(&file, c"", 0), module);
    }

    let jobs: Vec<Job> = must(serde_json::from_slice(&must(fs::read(JOBS), JOBS)), JOBS);
    let start = Instant::now();
    let mut results = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        // Shows the progress if a later job fails.
        let _ = writeln!(std::io::stderr(), "{:?}: {}", start.elapsed(), disk(number));
        results.push(do_job(&disk(number), job));
    }
    // No other disk is synced: jobs may have left their disks in the middle of their work.
    write_results(Path::new(&disk(jobs.len())), &results);
    must(rustix::system::reboot(RebootCommand::Restart), "restart");
}

/// Returns the path of disk `number`.
fn disk(number: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(number).expect("few disks"));
    assert!(letter.is_ascii_lowercase(), "too many disks");
    format!("/dev/vd{letter}")
}

fn do_job(disk: &str, job: &Job) -> Vec<Manifest> {
    let top = Path::new("/mnt");
    match job {
        Job::List => vec![list(disk, top)],
        Job::Fill(options) => {
            mount(disk, top, "ext4", MountFlags::NOATIME);
            tree::populate(top, options);
            unmount(disk, top);
            vec![list(disk, top)]
        }
        Job::Change(steps) => {
            let before = list(disk, top);
            mount(disk, top, "ext4", MountFlags::NOATIME);
            OnHost::new(top).run(steps);
            unmount(disk, top);
            vec![before, list(disk, top)]
        }
        Job::BreakOff(turn) => {
            let before = list(disk, top);
            let own_top = top.with_file_name(disk.replace('/', "-"));
            must(fs::create_dir(&own_top), disk);
            mount(disk, &own_top, "ext4", MountFlags::NOATIME);
            let mut kernel = OnHost::new(&own_top);
            kernel.run(&turn.synced);
            kernel.sync();
            kernel.run(&turn.after);
            // Keeps files without a name open until the end.
            std::mem::forget(kernel);
            vec![before]
        }
    }
}

fn list(disk: &str, top: &Path) -> Manifest {
    mount(disk, top, "ext4", MountFlags::NOATIME | MountFlags::RDONLY);
    let manifest = Manifest::of_host(top);
    unmount(disk, top);
    manifest
}

fn unmount(disk: &str, top: &Path) {
    must(rustix::mount::unmount(top, UnmountFlags::empty()), disk);
}

fn mount(source: &str, target: &Path, format: &str, flags: MountFlags) {
    must(
        rustix::mount::mount(source, target, format, flags, None),
        format_args!("mounting {source}"),
    );
}

/// Writes the length of the results, then the results.
fn write_results(disk: &Path, results: &[Vec<Manifest>]) {
    let bytes = must(serde_json::to_vec(results), "the results");
    let mut file = must(OpenOptions::new().write(true).open(disk), disk.display());
    must(file.write_all(&(bytes.len() as u64).to_le_bytes()), "the results");
    must(file.write_all(&bytes), "the results");
    must(file.sync_all(), "the results");
}

/// Returns what [`write_results`] has written, or `None` if it was not called.
pub(super) fn read_results(disk: &Path) -> Option<Vec<Vec<Manifest>>> {
    let mut file = must(File::open(disk), "the results");
    let mut length = [0; 8];
    must(file.read_exact(&mut length), "the results");
    let length = u64::from_le_bytes(length);
    if length == 0 {
        return None;
    }
    let mut bytes = Vec::new();
    must(file.take(length).read_to_end(&mut bytes), "the results");
    Some(must(serde_json::from_slice(&bytes), "the results"))
}
