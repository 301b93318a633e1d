//! The guest's side: the first and only process of a booted Linux. It mounts each disk, does its
//! job, writes the results to the last disk, and ends the machine.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use rustix::mount::{MountFlags, UnmountFlags};

use super::{Job, ORDERS, Orders, Work};
use crate::images::encryption;
use crate::tree::{self, Feature};
use crate::turns::OnHost;
use crate::{Manifest, must};

/// Does the guest's work and does not return, if this process is the guest. Otherwise returns at
/// once.
pub fn run_if_guest() {
    if std::process::id() != 1 || !Path::new(ORDERS).exists() {
        return;
    }
    let nothing = MountFlags::empty();
    must(
        rustix::mount::mount("devtmpfs", "/dev", "devtmpfs", nothing, None),
        "mounting the devices",
    );
    let orders: Orders = must(serde_json::from_slice(&must(fs::read(ORDERS), ORDERS)), ORDERS);
    let machine = orders.machine;
    for module in &orders.modules {
        let file = must(File::open(Path::new("/").join(module)), module);
        must(rustix::system::finit_module(&file, c"", 0), module);
    }

    if let Some(duty) = &orders.damaged {
        duty.read_all(machine);
        must(rustix::system::reboot(machine.end()), "the end of the machine");
    }
    let start = Instant::now();
    let mut results = Vec::new();
    for (number, work) in orders.works.iter().enumerate() {
        let disk = machine.disk(number);
        // Shows the progress if a later job fails.
        let _ = writeln!(std::io::stderr(), "{:?}: {disk}", start.elapsed());
        results.push(Volume { disk: &disk, work }.do_job());
    }
    // No other disk is synced: jobs may have left their disks in the middle of their work.
    write_results(Path::new(&machine.disk(orders.works.len())), &results);
    must(rustix::system::reboot(machine.end()), "the end of the machine");
}

/// A disk and the work on it.
struct Volume<'a> {
    disk: &'a str,
    work: &'a Work,
}

impl Volume<'_> {
    fn do_job(&self) -> Vec<Manifest> {
        let top = Path::new("/mnt");
        match &self.work.job {
            Job::List => vec![self.list(top)],
            Job::Fill(options) => {
                self.mount(top, MountFlags::empty());
                tree::populate(top, options);
                self.unmount(top);
                let is_encrypted = options.features.contains(&Feature::Encryption);
                let decrypted = is_encrypted.then(|| self.list_decrypted(top));
                decrypted.into_iter().chain([self.list(top)]).collect()
            }
            Job::Change(steps) => {
                let before = self.list(top);
                self.mount(top, MountFlags::empty());
                OnHost::new(top).run(steps);
                self.unmount(top);
                vec![before, self.list(top)]
            }
            Job::ChangeEncrypted(steps) => {
                let before = self.list_decrypted(top);
                self.mount(top, MountFlags::empty());
                encryption::add_master_keys(top);
                encryption::make_folders(top);
                OnHost::new(top).run(steps);
                self.unmount(top);
                vec![before, self.list_decrypted(top), self.list(top)]
            }
            Job::BreakOff(turn) => {
                let before = self.list(top);
                let own_top = top.with_file_name(self.disk.replace('/', "-"));
                must(fs::create_dir(&own_top), self.disk);
                self.mount(&own_top, MountFlags::empty());
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

    fn list(&self, top: &Path) -> Manifest {
        self.mount(top, MountFlags::RDONLY);
        let manifest = Manifest::of_host(top);
        self.unmount(top);
        manifest
    }

    fn list_decrypted(&self, top: &Path) -> Manifest {
        self.mount(top, MountFlags::RDONLY);
        encryption::add_master_keys(top);
        let manifest = Manifest::of_host(top);
        self.unmount(top);
        manifest
    }

    fn unmount(&self, top: &Path) {
        must(rustix::mount::unmount(top, UnmountFlags::empty()), self.disk);
    }

    fn mount(&self, top: &Path, flags: MountFlags) {
        let Work { format, options, .. } = self.work;
        let options = must(CString::new(options.as_str()), options);
        let flags = flags | MountFlags::NOATIME;
        let mounted =
            rustix::mount::mount(self.disk, top, format.as_str(), flags, options.as_c_str());
        must(mounted, format_args!("mounting {} as {format} with {options:?}", self.disk));
    }
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
