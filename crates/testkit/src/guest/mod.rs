//! A guest: Linux in qemu or as a process. It fills, lists and changes images that the machine's
//! own kernel may not be able to mount, such as ext4 with blocks larger than a page, and f2fs. This
//! module boots it. The test program itself is the guest's only process (`agent`), or a script on a
//! machine with another processor (`agent.py`).

mod agent;
mod machine;
pub mod reading;
mod root;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::tree::TreeOptions;
use crate::turns::{Step, Turn};
use crate::{Manifest, Random, must};

pub use agent::run_if_guest;
use machine::Disk;
pub use machine::Machine;

/// The maximum time between two stops of a guest.
const STOP_MILLISECONDS_MAX: u64 = 8;

/// The maximum size of the guest's results, in bytes.
const RESULTS_BYTES_MAX: u64 = 256 << 20;

/// The guest's work on an image. In each case, it replays a dirty journal first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Mounts the image, fills it, unmounts it, mounts it read-only and lists it. If it has
    /// encrypted files, lists it first with the master keys of `testkit::encryption`.
    Fill(TreeOptions),
    /// Mounts the image read-only and lists it.
    List,
    /// Lists the image, changes it and lists it again.
    Change(Vec<Step>),
    /// Lists the image with the master keys of `testkit::encryption`, creates the missing folders
    /// of its policies, changes the image, and lists it again, with keys and without.
    ChangeEncrypted(Vec<Step>),
    /// Lists the image and does both parts of a turn, with a sync in between. The image stays
    /// mounted until the machine ends, after all other jobs.
    BreakOff(Turn),
}

/// An image, how it is mounted, and what to do with it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The path of the image.
    pub image: PathBuf,
    /// The name of its format for mount(2).
    pub format: &'static str,
    /// The format's mount options, separated by commas. May be empty.
    pub options: String,
    /// The work.
    pub job: Job,
    /// A file for a log of all writes to the image (`testkit::log_writes`). Only for machines that
    /// are emulated.
    pub log: Option<PathBuf>,
}

/// The guest's orders: its machine, the kernel modules in the order in which they are loaded, and
/// the mounts and jobs in the order of the disks.
#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    machine: Machine,
    modules: Vec<String>,
    works: Vec<Work>,
    /// The damaged images to read, if that is the guest's duty instead.
    damaged: Option<reading::Duty>,
}

impl Orders {
    fn new(machine: Machine, works: Vec<Work>) -> Self {
        let modules = machine.modules().iter().map(|module| (*module).to_owned()).collect();
        Self { machine, modules, works, damaged: None }
    }
}

/// A [`Task`] without its path.
#[derive(Debug, Serialize, Deserialize)]
struct Work {
    format: String,
    options: String,
    job: Job,
}

impl From<&Task> for Work {
    fn from(task: &Task) -> Self {
        let (format, options) = (task.format.to_owned(), task.options.clone());
        Self { format, options, job: task.job.clone() }
    }
}

/// The file with the guest's orders.
const ORDERS: &str = "/orders.json";

/// Boots an emulated guest that does each job with its ext4 image, and returns the lists of each
/// job. The calling program must begin its `main` with [`run_if_guest`].
pub fn run(jobs: &[(PathBuf, Job)]) -> Vec<Vec<Manifest>> {
    let task = |(image, job): &(PathBuf, Job)| Task {
        image: image.clone(),
        format: "ext4",
        options: String::new(),
        job: job.clone(),
        log: None,
    };
    let tasks: Vec<Task> = jobs.iter().map(task).collect();
    run_on(Machine::Emulated, &tasks)
}

/// Boots guests on `machine` that do each task, one after the other, and returns the lists of each
/// task. The calling program must begin its `main` with [`run_if_guest`].
pub fn run_on(machine: Machine, tasks: &[Task]) -> Vec<Vec<Manifest>> {
    // One disk is for the results.
    let boots = tasks.chunks(machine.disks_max() - 1);
    boots.flat_map(|tasks| boot(machine, tasks, &mut |_| ())).collect()
}

/// Boots one guest on `machine` that does each task. Stops it at random moments, and calls
/// `while_stopped` each time.
pub fn run_with_stops(
    machine: Machine,
    tasks: &[Task],
    random: &mut Random,
    while_stopped: &mut dyn FnMut(),
) -> Vec<Vec<Manifest>> {
    let mut next = Instant::now();
    boot(machine, tasks, &mut |process| {
        if Instant::now() < next {
            return;
        }
        // It may have ended.
        if rustix::process::kill_process(process, Signal::STOP).is_ok() {
            while_stopped();
            let _ = rustix::process::kill_process(process, Signal::CONT);
        }
        next = Instant::now() + Duration::from_millis(random.below(STOP_MILLISECONDS_MAX));
    })
}

/// Boots one guest for `tasks`. Calls `watch` with its process repeatedly.
fn boot(machine: Machine, tasks: &[Task], watch: &mut dyn FnMut(Pid)) -> Vec<Vec<Manifest>> {
    let folder = must(TempDir::new(), "a folder for the guest");
    let initrd = folder.path().join("initrd");
    let works = tasks.iter().map(Work::from).collect();
    let root = root::archive(&Orders::new(machine, works), folder.path());
    must(fs::write(&initrd, root), "the guest's first root");
    let results = make_results(folder.path());

    let of_task = |task: &Task| Disk { image: task.image.clone(), log: task.log.clone() };
    let of_results = Disk { image: results.clone(), log: None };
    let disks: Vec<Disk> = tasks.iter().map(of_task).chain([of_results]).collect();
    let output = machine.boot(&initrd, &disks, folder.path(), watch);

    let listed = agent::read_results(&results);
    let Some(listed) = listed else {
        panic!("the guest did not finish: {}\n{}", output.status, output.text());
    };
    assert_eq!(listed.len(), tasks.len(), "the guest did other tasks than requested");
    listed
}

/// Creates the file for the guest's results in `folder`.
fn make_results(folder: &Path) -> PathBuf {
    let results = folder.join("results");
    let file = must(fs::File::create(&results), "the results");
    must(file.set_len(RESULTS_BYTES_MAX), "the results");
    results
}
