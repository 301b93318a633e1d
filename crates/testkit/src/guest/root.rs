//! The first root of a guest: its program, kernel modules and orders. Not here: booting with it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Job, ORDERS, Orders};
use crate::host::command;
use crate::images::cpio::Archive;
use crate::turns::Step;
use crate::{must, tree};

/// Returns the archive with a program as `/init`, its libraries and its orders. `scratch` is a
/// folder for files.
pub(super) fn archive(orders: &Orders, scratch: &Path) -> Vec<u8> {
    let machine = orders.machine;
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "mnt", "tmp"] {
        archive.folder(folder);
    }
    for module in machine.modules() {
        archive.file(module, &must(fs::read(machine.kernel_file(module)), module));
    }
    archive.file(&ORDERS[1..], &must(serde_json::to_vec(orders), "the orders"));
    if machine.is_native() {
        add_program(&mut archive, scratch);
    } else {
        add_script(&mut archive, orders);
    }
    archive.finish()
}

/// Adds this program and its shared libraries.
fn add_program(archive: &mut Archive, scratch: &Path) {
    let program = must(std::env::current_exe(), "this program");
    // The guest unpacks it much faster without debugging information.
    let stripped = scratch.join("init");
    command::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(&program));
    archive.file("init", &must(fs::read(&stripped), "the stripped program"));

    let listed = command::run(Command::new("ldd").arg(&program));
    for library in String::from_utf8_lossy(&listed).split_whitespace() {
        let Some(name) = library.strip_prefix('/') else { continue };
        let parents: Vec<&Path> = Path::new(name).ancestors().skip(1).collect();
        for parent in parents.into_iter().rev().skip(1) {
            archive.folder(&parent.to_string_lossy());
        }
        archive.file(name, &must(fs::read(library), library));
    }
}

/// Adds the script and its interpreter, and the bytes of all steps.
fn add_script(archive: &mut Archive, orders: &Orders) {
    archive.file("init", include_bytes!("agent.py"));
    add_folder(archive, &orders.machine.kernel_file("root"), "");

    let mut contents: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for step in orders.works.iter().flat_map(|work| steps(&work.job)) {
        if let Some(bytes) = step.bytes() {
            contents.insert(format!("{} {}", bytes.seed, bytes.length), bytes.make());
        }
        if let Step::SetAcl(_, users) = step {
            contents.insert(format!("acl {users}"), tree::acl_of_users(*users));
        }
    }
    let lengths: Vec<(&String, usize)> =
        contents.iter().map(|(name, bytes)| (name, bytes.len())).collect();
    archive.file("contents.json", &must(serde_json::to_vec(&lengths), "the contents"));
    let all: Vec<u8> = contents.values().flatten().copied().collect();
    archive.file("contents", &all);
}

fn steps(job: &Job) -> Vec<&Step> {
    match job {
        Job::Fill(_) | Job::ChangeEncrypted(_) => {
            panic!("this machine does not run the program that fills images")
        }
        Job::List => Vec::new(),
        Job::Change(steps) => steps.iter().collect(),
        Job::BreakOff(turn) => turn.synced.iter().chain(&turn.after).collect(),
    }
}

/// Adds the files below `folder` as those below `name`.
fn add_folder(archive: &mut Archive, folder: &Path, name: &str) {
    for entry in must(fs::read_dir(folder), folder.display()) {
        let path = must(entry, folder.display()).path();
        let below = path.file_name().unwrap_or_default().to_string_lossy();
        let name = if name.is_empty() { below.into_owned() } else { format!("{name}/{below}") };
        if path.is_dir() {
            archive.folder(&name);
            add_folder(archive, &path, &name);
        } else {
            archive.file(&name, &must(fs::read(&path), path.display()));
        }
    }
}
