//! Consistency checks of f2fs images, by fsck.f2fs and by the library.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use device::{OpenDevice, SharedDevice};
use vfs::{Volume, VolumeOptions};

use super::Tools;
use crate::host::command::output;
use crate::{Manifest, must};

/// Checks that fsck.f2fs, in both versions, finds no errors in `image`, which it does not change.
#[track_caller]
pub fn check_by_fsck(image: &Path) {
    for tools in [Tools::Installed, Tools::V1_16] {
        if let Some(complaint) = complaint(tools.command("fsck.f2fs"), image) {
            panic!("{tools:?}, {}: {complaint}", image.display());
        }
    }
}

/// Returns the output of fsck.f2fs, in the installed version, about the damaged image `image`,
/// which it does not change; `None` if it finds no errors. Some damage makes it hang, or end by a
/// signal. Both are errors, too.
pub fn complaint_of_fsck(image: &Path) -> Option<String> {
    let mut fsck = Command::new("timeout");
    fsck.args(["10", "fsck.f2fs"]);
    complaint(fsck, image)
}

fn complaint(mut fsck: Command, image: &Path) -> Option<String> {
    let output = output(fsck.arg("--dry-run").arg(image));
    // A wrong type of a segment and a wrong hash are no errors to it, but it would fix them.
    let text = output.text();
    let is_clean = output.status.success()
        && ["[Fail]", "[ASSERT]", "[FIX]"].iter().all(|mark| !text.contains(mark));
    (!is_clean).then(|| format!("{}\n{text}", output.status))
}

/// Returns the findings of the library's check about the last checkpoint on `device`.
pub fn findings(device: SharedDevice) -> Vec<String> {
    let volume = match Volume::open_device(device, VolumeOptions::new().no_recovery(true)) {
        Ok(volume) => volume,
        Err(error) => return vec![error.to_string()],
    };
    let mut findings = Vec::new();
    let summary = volume.check(&mut |error| {
        findings.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert!(summary.is_complete, "a part was skipped");
    assert_eq!(summary.findings, findings.len() as u64, "{findings:?}");
    findings
}

/// Checks that the library finds no inconsistency in the last checkpoint of `image`.
#[track_caller]
pub fn check_by_library(image: &Path) {
    let device = must(device::open(image, OpenDevice::default()), image.display());
    assert_eq!(findings(device), [""; 0], "{}", image.display());
}

/// Checks that neither fsck.f2fs nor the library's check finds an inconsistency in `image`.
#[track_caller]
pub fn check_by_both(image: &Path) {
    check_by_fsck(image);
    check_by_library(image);
}

/// Checks that our recovery finds what Linux has after its own. `before` is the checkpoint.
#[track_caller]
pub fn check_recovered(ours: &Manifest, before: &Manifest, of_guest: &Manifest) {
    // Kinds of images with projects have quota files. There, Linux also makes entries for ids that
    // own a file in between.
    let has_quota = ours.count("project", |_| true) > 0;
    let comparable = |manifest: &Manifest| {
        manifest.clone().map(|name, mode, fact, value| {
            let is_directory = mode.starts_with("04");
            // Linux changes directories, and inodes that lose a name, at the time of the recovery.
            // It writes the blocks of directories elsewhere.
            let is_changed = |fact| of_guest.fact(name, fact) != before.fact(name, fact);
            let is_own = is_changed(fact)
                && match fact {
                    "modified" | "extents" => is_directory,
                    "changed" => is_directory || is_changed("links"),
                    _ => false,
                }
                || has_quota && ["blocks available", "blocks free", "inodes free"].contains(&fact);
            // It reports preallocated blocks behind data as data.
            (!is_own && fact != "data").then(|| value.to_owned())
        })
    };
    comparable(ours).assert_equal("our recovery", &comparable(of_guest), "that of the kernel");
}
