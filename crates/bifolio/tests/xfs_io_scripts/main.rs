//! xfs_io scripts on mounts of bifolio and of the kernel: the output, the bytes and the extents are
//! the same. Extents are compared as the kernel and as bifolio report them.

#[path = "../mounting/mod.rs"]
mod mounting;
mod scripts;

use std::fs;
use std::path::Path;
use std::process::Command;

use mounting::{Fixture, bifolio};
use testkit::command::{output, run};
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts};

use crate::scripts::{Part, SCRIPTS};

/// Runs xfs_io on a file. Returns its output without timings.
fn xfs_io(path: &Path, direct: bool, commands: &[&str], succeeds: bool) -> String {
    let mut command = Command::new("xfs_io");
    // Relative, because the output contains the path.
    command.arg("-f").args(direct.then_some("-d")).current_dir(path.parent().unwrap());
    for line in commands {
        command.args(["-c", line]);
    }
    let output = output(command.arg(path.file_name().unwrap()));
    let text = output.text();
    assert_eq!(output.status.success(), succeeds, "{path:?}: {commands:?}: {text}");
    text.lines().filter(|line| !line.contains(" ops; ")).collect::<Vec<_>>().join("\n")
}

/// Outputs of xfs_io, by script and part.
type Outputs = Vec<(&'static str, usize, String)>;

/// Runs the parts with this number, except those that shift data.
fn change(root: &Path, number: usize, outputs: &mut Outputs) {
    for (name, parts) in SCRIPTS {
        let (direct, commands, succeeds) = match parts.get(number) {
            Some(Part::Cached(commands)) => (false, commands, true),
            Some(Part::Direct(commands)) => (true, commands, true),
            Some(Part::Refused(commands)) => (false, commands, false),
            Some(Part::Collapse(..) | Part::Insert(..)) | None => continue,
        };
        outputs.push((name, number, xfs_io(&root.join(name), direct, commands, succeeds)));
    }
}

/// Shifts data in the parts with this number, by calling `shift_range`.
fn shift(number: usize, shift_range: impl Fn(&str, &str, [String; 2])) {
    for (name, parts) in SCRIPTS {
        let (how, from, length) = match parts.get(number) {
            Some(Part::Collapse(from, length)) => ("collapse", from, length),
            Some(Part::Insert(from, length)) => ("insert", from, length),
            _ => continue,
        };
        shift_range(name, how, [from, length].map(u64::to_string));
    }
}

/// An extent of a file.
#[derive(Debug, PartialEq)]
struct Extent {
    start: u64,
    end: u64,
    unwritten: bool,
    last: bool,
}

/// Merges adjacent extents.
fn merged(all: impl IntoIterator<Item = Extent>) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for extent in all {
        match extents.last_mut() {
            Some(before) if before.end == extent.start && before.unwritten == extent.unwritten => {
                before.end = extent.end;
                before.last |= extent.last;
            }
            _ => extents.push(extent),
        }
    }
    extents
}

/// Returns the extents of a file on a mount, as the kernel reports them.
fn extents_by_kernel(path: &Path) -> Vec<Extent> {
    let mut command = Command::new("xfs_io");
    let text = String::from_utf8(run(command.args(["-r", "-c", "fiemap -v"]).arg(path))).unwrap();
    // Skips the title and the names of the columns.
    merged(text.lines().skip(2).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_number, range, _blocks, rest @ ..] = &words[..] else { panic!("{text}") };
        let [_count, flags] = rest else { return None };
        let (start, end) = range.strip_prefix('[').unwrap().split_once("..").unwrap();
        let flags = u32::from_str_radix(flags.strip_prefix("0x").unwrap(), 16).unwrap();
        let end: u64 = end.strip_suffix("]:").unwrap().parse().unwrap();
        Some(Extent {
            start: start.parse::<u64>().unwrap() * 512,
            end: (end + 1) * 512,
            unwritten: flags & 0x800 != 0,
            last: flags & 1 != 0,
        })
    }))
}

/// Returns the extents of a file in an image, as bifolio reports them.
fn extents_by_bifolio(image: &Path, name: &str) -> Vec<Extent> {
    let file = format!("{}:/{name}", image.display());
    let json = run(bifolio("fiemap").arg("--json").arg(file));
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    merged(json[0]["extents"].as_array().unwrap().iter().map(|extent| {
        let start = extent["logical"].as_u64().unwrap();
        let flags = extent["flags"].as_array().unwrap();
        Extent {
            start,
            end: start + extent["length"].as_u64().unwrap(),
            unwritten: flags.contains(&"unwritten".into()),
            last: flags.contains(&"last".into()),
        }
    }))
}

fn check(block_size: u32, options: &str) {
    private_mounts();
    let fixture = Fixture::new();
    let kernels_image = fixture.folder.path().join("kernels.img");
    for image in [&fixture.image, &kernels_image] {
        Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", block_size) }.make(image, None);
    }
    let (mut ours, mut theirs) = (Outputs::new(), Outputs::new());
    let parts = SCRIPTS.iter().map(|(_, parts)| parts.len()).max().unwrap();
    for number in 0..parts {
        let kernels = LoopMount::new(&kernels_image, "ext4", "rw");
        change(kernels.path(), number, &mut theirs);
        let mount = fixture.mount(&["-o", options]);
        change(mount.path(), number, &mut ours);
        for (name, _) in SCRIPTS {
            let [ours, theirs] = [mount.path(), kernels.path()].map(|root| root.join(name));
            let is_same = fs::read(ours).unwrap() == fs::read(theirs).unwrap();
            assert!(is_same, "{name}: what the mounts show after part {number}");
        }
        shift(number, |name, how, [from, length]| {
            let command = format!("f{how} {from} {length}");
            xfs_io(&kernels.path().join(name), false, &[&command], true);
        });
        kernels.unmount();
        fixture.umount();
        mount.assert_gone();
        drop(mount);
        // The kernel does not forward these calls to FUSE servers.
        shift(number, |name, how, [from, length]| {
            let file = format!("{}:/{name}", fixture.image.display());
            let how = format!("--{how}-range");
            run(bifolio("fallocate").args([&how, "--from", &from, "--length", &length]).arg(file));
        });
        check_by_e2fsck(&fixture.image);
    }
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "ours, the kernel's; {options}, blocks of {block_size}");
    }
    let by_us = |image| SCRIPTS.map(|(name, _)| extents_by_bifolio(image, name));
    let (ours_by_us, theirs_by_us) = (by_us(&fixture.image), by_us(&kernels_image));
    let ours = LoopMount::new(&fixture.image, "ext4", "ro");
    let theirs = LoopMount::new(&kernels_image, "ext4", "ro");
    for (index, (name, _)) in SCRIPTS.iter().enumerate() {
        let case = format!("{name}; {options}, blocks of {block_size}");
        let [ours, theirs] = [&ours, &theirs].map(|mount| mount.path().join(name));
        assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap(), "{case}");
        let [ours, theirs] = [&ours, &theirs].map(|path| extents_by_kernel(path));
        assert_eq!(ours, theirs, "{case}: extents");
        assert_eq!(ours_by_us[index], ours, "{case}: extents by bifolio and by the kernel");
        assert_eq!(
            theirs_by_us[index], theirs,
            "{case}: the kernel's extents by bifolio and by the kernel"
        );
    }
}

#[test]
fn blocks_of_4_kib() {
    check(4096, "rw");
}

#[test]
fn blocks_of_1_kib() {
    check(1024, "rw");
}

#[test]
fn blocks_of_4_kib_with_writeback_cache() {
    check(4096, "rw,writeback");
}
