//! A guest: Linux 7.2 in qemu. It fills, lists and changes images that the machine's own kernel may not be able
//! to mount, such as ext4 with blocks larger than a page. This module prepares and boots it. The test
//! program itself is the guest's only process (`agent`).

mod agent;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::cpio::Archive;
use crate::tree::TreeOptions;
use crate::turns::{Step, Turn};
use crate::{Manifest, command, must};

pub use agent::run_if_guest;

/// The time after which a guest is killed. Long, since the guest is emulated, maybe on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(900);

/// The maximum size of the guest's results, in bytes.
const RESULTS_BYTES_MAX: u64 = 256 << 20;

/// The guest's work on an image. In each case, it replays a dirty journal first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Mounts the image, fills it, unmounts it, mounts it read-only and lists it.
    Fill(TreeOptions),
    /// Mounts the image read-only and lists it.
    List,
    /// Lists the image, changes it and lists it again.
    Change(Vec<Step>),
    /// Lists the image and does both parts of a turn, with a sync in between. The image stays mounted until the machine
    /// ends, after all other jobs.
    BreakOff(Turn),
}

/// The file with the guest's jobs, in the order of its disks.
const JOBS: &str = "/jobs.json";

/// The kernel modules that the guest loads, in this order, from its root.
const MODULES: [&str; 3] = ["virtio_blk.ko", "quota_tree.ko", "quota_v2.ko"];

/// Boots a guest that does each job with its image, and returns the lists of each job. The calling program must begin
/// its `main` with [`run_if_guest`].
pub fn run(jobs: &[(PathBuf, Job)]) -> Vec<Vec<Manifest>> {
    let folder = must(TempDir::new(), "a folder for the guest");
    let initrd = folder.path().join("initrd");
    must(fs::write(&initrd, first_root(jobs, folder.path())), "the guest's first root");
    let results = folder.path().join("results");
    let file = must(fs::File::create(&results), "the results");
    must(file.set_len(RESULTS_BYTES_MAX), "the results");

    let mut qemu = Command::new("qemu-system-x86_64");
    // Emulation works on every machine, unlike nested virtualization.
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "2G"]);
    qemu.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]);
    qemu.arg("-kernel").arg(kernel_file("vmlinuz")).arg("-initrd").arg(&initrd);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1 rdinit=/init"]);
    for image in jobs.iter().map(|(image, _)| image).chain([&results]) {
        let drive = format!("file={},if=virtio,format=raw,cache=unsafe", image.display());
        qemu.args(["-drive", &drive]);
    }
    let output = command::output_within(&mut qemu, TIME_MAX);

    let listed = agent::read_results(&results);
    let Some(listed) = listed else {
        panic!("the guest did not finish: {}\n{}", output.status, output.text());
    };
    assert_eq!(listed.len(), jobs.len(), "the guest did other jobs than requested");
    listed
}

/// Returns the path of a file that `scripts/fetch-guest` has fetched.
fn kernel_file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/guest").join(name);
    assert!(path.exists(), "no {}: run scripts/fetch-guest", path.display());
    path
}

/// Returns the archive with this program as `/init`, its shared libraries, and its jobs.
fn first_root(jobs: &[(PathBuf, Job)], scratch: &Path) -> Vec<u8> {
    let program = must(std::env::current_exe(), "this program");
    // The guest unpacks it much faster without debugging information.
    let stripped = scratch.join("init");
    command::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(&program));

    let mut archive = Archive::default();
    for folder in ["dev", "proc", "mnt", "tmp"] {
        archive.folder(folder);
    }
    archive.file("init", &must(fs::read(&stripped), "the stripped program"));
    for module in MODULES {
        archive.file(module, &must(fs::read(kernel_file(module)), module));
    }
    let jobs: Vec<&Job> = jobs.iter().map(|(_, job)| job).collect();
    archive.file(&JOBS[1..], &must(serde_json::to_vec(&jobs), "the jobs"));
    let listed = command::run(Command::new("ldd").arg(&program));
    for library in String::from_utf8_lossy(&listed).split_whitespace() {
        let Some(name) = library.strip_prefix('/') else { continue };
        let parents: Vec<&Path> = Path::new(name).ancestors().skip(1).collect();
        for parent in parents.into_iter().rev().skip(1) {
            archive.folder(&parent.to_string_lossy());
        }
        archive.file(name, &must(fs::read(library), library));
    }
    archive.finish()
}
