//! Images of f2fs that this library and Linux change by turns: after each turn, fsck.f2fs and the
//! library's check find no errors, and both sides see the same tree. Some turns are interrupted,
//! and the other side recovers.

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind, Steps};
use testkit::turns::{Bytes, OnVolume, Plan, Step, Turn};
use testkit::{Manifest, guest, must};
use vfs::VolumeOptions;

/// Kinds whose nodes, directories or areas differ.
const KINDS: [&str; 7] = [
    "plain",
    "attributes",
    "large_inline_xattrs",
    "no_inline",
    "large_nat_bitmap",
    "written_in_order",
    "large_sections",
];
const TURNS: u64 = 4;

/// An empty image of a kind.
type Image = (&'static Kind, PathBuf);

/// Changes an image by a turn of this library.
fn change(image: &Path, turn: &Turn) {
    let mut ours = OnVolume::open(image);
    ours.run(&turn.whole());
    ours.close();
}

/// Checks that fsck.f2fs finds no errors in the images, and that Linux sees what the library sees.
fn judge(images: &[Image], what: &str) {
    let ours: Vec<Manifest> = images.iter().map(|(_, image)| Manifest::of_image(image)).collect();
    let of_guest = f2fs::list_all(images);
    for (number, (kind, image)) in images.iter().enumerate() {
        f2fs::check_by_both(image);
        // Linux reports preallocated blocks behind data as data.
        let comparable = |manifest: &Manifest| {
            manifest.clone().map(|_, _, fact, value| (fact != "data").then(|| value.to_owned()))
        };
        let what = format!("{}, {what}: our reading", kind.name);
        let [ours, of_guest] = [&ours[number], &of_guest[number]].map(comparable);
        ours.assert_equal(&what, &of_guest, "that of Linux");
    }
}

fn turns(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let image = |name: &&str| {
        let kind = Kind::named(name);
        let image = folder.path().join(name);
        kind.make(&image, kind.megabytes);
        (kind, image)
    };
    let images: Vec<Image> = KINDS.iter().map(image).collect();
    let mut plan = Plan::new(images[0].0.tree(), seed);
    for number in 0..TURNS {
        let by_guest = (seed + number) % 2 == 0;
        let turn = plan.turn(by_guest);
        if by_guest {
            f2fs::change_all(&images, &turn.whole());
        } else {
            images.iter().for_each(|(_, image)| change(image, &turn));
        }
        judge(&images, &format!("seed {seed}, turn {number}"));
    }
}

/// Copies images at the end of a turn of this library, without closing the volume. Checks that
/// Linux recovers what the library does.
fn broken_off(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let image = |name: &&str| {
        let kind = Kind::named(name);
        let image = folder.path().join(name);
        kind.make(&image, kind.megabytes);
        (kind, image)
    };
    let mut images: Vec<Image> = KINDS.iter().map(image).collect();
    let kinds = [Steps::Data, Steps::Moves, Steps::Orphans, Steps::Names][seed as usize % 4];
    let turn = f2fs::interrupted_turn(seed, kinds);
    for (_, image) in &mut images {
        let mut ours = OnVolume::open(image);
        ours.run(&turn.synced);
        ours.sync();
        ours.run(&turn.after);
        // Closing the volume writes everything back.
        let broken_off = image.with_extension("broken_off");
        must(std::fs::copy(&*image, &broken_off), broken_off.display());
        ours.close();
        *image = broken_off;
    }
    let ours: Vec<Manifest> = images.iter().map(|(_, image)| Manifest::of_image(image)).collect();
    // Linux refuses some of these images without recovery.
    let checkpoint = |(_, image): &Image| {
        let volume = VolumeOptions::new().no_recovery(true).open(image);
        Manifest::of_volume(&must(volume, image.display()))
    };
    let checkpoints: Vec<Manifest> = images.iter().map(checkpoint).collect();
    let of_guest = f2fs::list_all(&images);
    for (number, (kind, image)) in images.iter().enumerate() {
        let (before, after) = (&checkpoints[number], &of_guest[number]);
        let changes = before.differences("the checkpoint", after, "Linux");
        assert!(!changes.is_empty(), "{}: seed {seed} needs no recovery", kind.name);
        f2fs::check_recovered(&ours[number], before, after);
        f2fs::check_by_both(image);
    }
}

/// Has Linux and the library pin a file each, and overwrite both. Their blocks stay.
fn pinned() {
    let folder = must(TempDir::new(), "a folder");
    let images: Vec<Image> = ["plain", "attributes", "large_sections"]
        .map(|name| {
            let (kind, image) = (Kind::named(name), folder.path().join(name));
            kind.make(&image, 256);
            (kind, image)
        })
        .into();
    let mut by_guest = true;
    let mut run = |steps: &[Step], what: &str| {
        if by_guest {
            f2fs::change_all(&images, steps);
        } else {
            for (_, image) in &images {
                let mut ours = OnVolume::open(image);
                ours.run(steps);
                ours.close();
            }
        }
        judge(&images, what);
        by_guest = !by_guest;
    };
    let write = |path: &str, at: u64, seed: u64, length: usize| {
        Step::Write(path.to_owned(), at, Bytes { seed, length })
    };
    let make = |path: &str, seed: u64| {
        vec![Step::Pin(path.to_owned(), 3 << 20), write(path, 0, seed, 2 << 20)]
    };
    let names = ["by_linux", "by_library"];
    run(&make(names[0], 1), "Linux has pinned a file");
    run(&make(names[1], 2), "the library has pinned a file");
    let extents = || {
        let of_image = |(_, image): &Image| {
            let manifest = Manifest::of_image(image);
            names.map(|name| manifest.fact(name, "extents").map(str::to_owned))
        };
        images.iter().map(of_image).collect::<Vec<_>>()
    };
    let before = extents();
    assert!(before.iter().flatten().all(Option::is_some), "{before:?}");
    for turn in 0..4 {
        let steps: Vec<Step> = names
            .iter()
            .flat_map(|name| {
                let at = 4096 * 7 + 1000 * turn;
                let synced = Step::Sync((*name).to_owned());
                [write(name, at, 10 + turn, 300_000), synced, write(name, 2 << 20, turn, 50_000)]
            })
            .collect();
        run(&steps, &format!("turn {turn}"));
        assert_eq!(extents(), before, "turn {turn}: blocks of pinned files have moved");
    }
}

/// Has the library give a directory a project, in which Linux creates inodes.
fn projects() {
    let folder = must(TempDir::new(), "a folder");
    let image = folder.path().join("image");
    let kind = Kind::named("project");
    kind.make(&image, 64);
    let images = [(kind, image)];
    let make = |name: &str| {
        let at = |path: &str| format!("top/{name}{path}");
        vec![
            Step::Mkdir(at("")),
            Step::Fifo(at("/fifo")),
            Step::Write(at("/file"), 0, Bytes { seed: 1, length: 10_000 }),
            Step::Sync(at("/file")),
            Step::Rename(at("/file"), format!("top/of {name}")),
        ]
    };
    let mut ours = OnVolume::open(&images[0].1);
    ours.run(&[Step::Mkdir("top".to_owned()), Step::SetProject("top".to_owned(), 42)]);
    ours.run(&make("library"));
    ours.close();
    judge(&images, "a project by the library");
    f2fs::change_all(&images, &make("linux"));
    judge(&images, "a project, and inodes by Linux");
    let manifest = Manifest::of_image(&images[0].1);
    for name in ["top/of library", "top/of linux", "top/linux"] {
        assert_eq!(manifest.fact(name, "project"), Some("42"), "{name}");
    }
}

/// Changes a volume of 4 TiB, the checkpoints of which have blocks of their own for the bitmap of
/// the segment information table. User-mode Linux does not have the memory to mount it.
fn checkpoint_payload() {
    let folder = must(TempDir::new(), "a folder");
    let image = folder.path().join("image");
    let kind = Kind::named("plain");
    kind.make(&image, 4 << 20);
    let device = must(device::open(&image, device::OpenDevice::default()), image.display());
    let superblock = must(::f2fs::Superblock::read(&device), "the superblock");
    assert_eq!(superblock.geometry.checkpoint_payload, 2);
    drop(device);
    let turn = Plan::new(kind.tree(), 1).turn(false);
    // Each of the two packs is written.
    let mut ours = OnVolume::open(&image);
    ours.run(&turn.synced);
    ours.sync();
    ours.run(&turn.after);
    ours.sync();
    let written = Manifest::of_volume(ours.volume());
    ours.close();
    f2fs::check_by_fsck(&image);
    // Files without a name are deleted when the volume is closed.
    let comparable = |manifest: Manifest| {
        manifest.map(|name, _, _, value| (name != "(volume)").then(|| value.to_owned()))
    };
    let [read, written] = [Manifest::of_image(&image), written].map(comparable);
    read.assert_equal("read again", &written, "before it was closed");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for seed in 1..=2 {
        trials.push(Trial::test(format!("turns_{seed}_leave_clean_volumes"), move || {
            turns(seed);
            Ok(())
        }));
    }
    for seed in 1..=4 {
        trials.push(Trial::test(format!("linux_recovers_broken_off_turn_{seed}"), move || {
            broken_off(seed);
            Ok(())
        }));
    }
    trials.push(Trial::test("linux_and_the_library_overwrite_pinned_files_in_place", || {
        pinned();
        Ok(())
    }));
    trials.push(Trial::test("linux_and_the_library_see_the_same_projects", || {
        projects();
        Ok(())
    }));
    trials.push(Trial::test("the_library_writes_checkpoints_with_a_payload", || {
        checkpoint_payload();
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit();
}
