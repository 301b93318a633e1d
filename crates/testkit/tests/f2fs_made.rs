//! Volumes of our own making, with blocks of 4 and 16 KiB, in all layouts: the library and kernels
//! change them by turns, and the library reads the same as the kernel. With blocks of 16 KiB, a
//! block of the summary area has one summary (Linux 6.7 to 6.18) or several (since 6.19). Linux 7.3
//! mounts both.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base::BlockSize;
use device::OpenDevice;
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::make::{self, MakeOptions};
use testkit::guest::{self, Job, Machine, Task};
use testkit::tree::TreeOptions;
use testkit::turns::{Bytes, OnVolume, Plan, Step, Turn};
use testkit::{Manifest, f2fs, must};

/// A layout of volumes.
struct Layout {
    name: &'static str,
    /// Mount options.
    mount: &'static str,
    /// Changes the options of a volume.
    adjust: fn(&mut MakeOptions),
}

const EXTRA_ATTR: u32 = 0x8;
const INODE_CHECKSUM: u32 = 0x20;
const FLEXIBLE_INLINE_XATTR: u32 = 0x40;
const INODE_CRTIME: u32 = 0x100;
const LOST_FOUND: u32 = 0x200;
const SB_CHECKSUM: u32 = 0x800;
const COMPRESSION: u32 = 0x2000;
const PACKED_SSA: u32 = 0x1_0000;
const ATTRIBUTES: u32 =
    EXTRA_ATTR | INODE_CHECKSUM | FLEXIBLE_INLINE_XATTR | INODE_CRTIME | SB_CHECKSUM | LOST_FOUND;

/// The layouts for both block sizes.
const LAYOUTS: &[Layout] = &[
    Layout { name: "compact", mount: "", adjust: |_| {} },
    Layout {
        name: "normal",
        mount: "",
        adjust: |options| {
            options.features = ATTRIBUTES;
            options.compact_summaries = false;
        },
    },
    Layout {
        name: "large_nat_bitmap",
        mount: "compress_algorithm=zstd,compress_extension=*",
        adjust: |options| {
            options.features = EXTRA_ATTR | COMPRESSION;
            options.large_nat_bitmap = true;
        },
    },
];
/// Those with several summaries in a block, which need blocks larger than a summary.
const PACKED: &[Layout] = &[
    Layout { name: "packed_compact", mount: "", adjust: |options| options.features = PACKED_SSA },
    Layout {
        name: "packed_normal",
        mount: "",
        adjust: |options| {
            options.features = PACKED_SSA | ATTRIBUTES;
            options.compact_summaries = false;
        },
    },
    Layout {
        name: "packed_sections",
        mount: "",
        adjust: |options| {
            options.features = PACKED_SSA;
            options.segments_per_section = 2;
            options.sections_per_zone = 2;
            options.bytes *= 2;
        },
    },
];

/// A block size, and the machine with pages of this size.
struct Size {
    shift: u32,
    machine: Machine,
    megabytes: u64,
    layouts: &'static [&'static [Layout]],
}

const SIZES: [Size; 2] = [
    Size { shift: 12, machine: Machine::UserMode, megabytes: 256, layouts: &[LAYOUTS] },
    Size {
        shift: 14,
        machine: Machine::EmulatedF2fs16k,
        megabytes: 1024,
        layouts: &[LAYOUTS, PACKED],
    },
];

impl Size {
    fn block_size(&self) -> BlockSize {
        BlockSize::from_shift(self.shift).expect("a block size")
    }

    fn options(&self, layout: &Layout) -> MakeOptions {
        let mut options = MakeOptions::new(self.block_size(), self.megabytes << 20);
        options.label = layout.name;
        (layout.adjust)(&mut options);
        options
    }

    /// Returns options for changes with files up to so many blocks.
    fn tree(&self, blocks: u64) -> TreeOptions {
        let mut tree = TreeOptions::new(self.block_size().bytes());
        tree.file_size_max = blocks * u64::from(self.block_size().bytes());
        tree.inline_data = true;
        tree
    }
}

/// The name of a file that compression makes smaller.
const COMPRESSIBLE: &str = "compressible";

/// Returns steps that make a file with a few bytes in each of its blocks, and an incomplete last
/// cluster.
fn compressible(block: u64) -> Vec<Step> {
    let write = |number: u64| {
        let bytes = Bytes { seed: number, length: 10 };
        Step::Write(COMPRESSIBLE.to_owned(), number * block, bytes)
    };
    (0..18).map(write).collect()
}

/// The names of files that are preallocated by the library, and then written in part.
const PREALLOCATED: &str = "preallocated";

/// Returns steps that preallocate a file, and write two of its blocks and the second half of a
/// third one.
fn preallocated(block: u64) -> Vec<Step> {
    let name = || PREALLOCATED.to_owned();
    let write =
        |at: u64, length: u64| Step::Write(name(), at, Bytes { seed: at, length: length as usize });
    let (middle, end) = (20 * block, 40 * block + block / 2);
    vec![
        write(0, 1),
        Step::Allocate(name(), 0, 50 * block),
        write(middle, 2 * block),
        write(end, block / 2),
        Step::Sync(name()),
    ]
}

/// Returns steps that make more inodes than a block of the node address table has entries.
fn many() -> Vec<Step> {
    let fifo = |number: u32| Step::Fifo(format!("many/{number}"));
    std::iter::once(Step::Mkdir("many".to_owned())).chain((0..2000).map(fifo)).collect()
}

/// Changes an image by a turn of the library, and closes it halfway. The check finds nothing.
fn change(image: &Path, turn: &Turn) {
    for steps in [&turn.synced, &turn.after] {
        let mut ours = OnVolume::open(image);
        ours.run(steps);
        ours.close();
        let device = must(device::open(image, OpenDevice::default()), image.display());
        assert_eq!(f2fs::findings(device), [""; 0], "{}", image.display());
    }
}

/// The images of one size after the library and then a guest have changed them, and the guest's
/// lists before and after its changes.
struct Changed {
    folder: TempDir,
    images: Vec<PathBuf>,
    listed: Vec<Vec<Manifest>>,
    /// What the library read before.
    made: Vec<Manifest>,
    /// The turns of the library that follow.
    next: Vec<Turn>,
}

impl Changed {
    fn new(size: &Size) -> Self {
        let folder = must(TempDir::new(), "a folder");
        let layouts: Vec<&Layout> = size.layouts.iter().copied().flatten().collect();
        let image = |layout: &&Layout| {
            let image = folder.path().join(layout.name);
            make::make_file(&image, &size.options(layout));
            image
        };
        let images: Vec<PathBuf> = layouts.iter().map(image).collect();
        let trees = (1..).zip(&layouts).map(|(seed, layout)| {
            // Only the first volume has files with nodes of all levels, since the emulated kernel
            // is slow to list their extents.
            let per_node = u64::from(size.block_size().bytes() - 24) / 4;
            let blocks = if seed == 1 { per_node.pow(3) } else { 3 * per_node };
            let mut tree = size.tree(blocks);
            // Holes cannot be made in compressed files.
            tree.preallocate = layout.mount.is_empty();
            Plan::new(tree, seed)
        });
        let mut plans: Vec<Plan> = trees.collect();
        for (plan, image) in plans.iter_mut().zip(&images) {
            let mut turn = plan.turn(false);
            turn.after.extend(preallocated(size.block_size().bytes().into()));
            change(image, &turn);
            if size.machine == Machine::UserMode {
                f2fs::check_by_fsck(image);
            }
        }
        let made = images.iter().map(|image| Manifest::of_image(image)).collect();
        let task = |((plan, layout), image): ((&mut Plan, &&Layout), &PathBuf)| {
            let mut steps = plan.turn(true).whole();
            if !layout.mount.is_empty() {
                steps.extend(compressible(size.block_size().bytes().into()));
            }
            Task {
                image: image.clone(),
                format: "f2fs",
                options: layout.mount.to_owned(),
                job: Job::Change(steps),
                log: None,
            }
        };
        let tasks: Vec<Task> = plans.iter_mut().zip(&layouts).zip(&images).map(task).collect();
        let listed = guest::run_on(size.machine, &tasks);
        let next = plans.iter_mut().map(|plan| {
            let mut turn = plan.turn(false);
            turn.after.extend(many());
            turn
        });
        let next = next.collect();
        Self { folder, images, listed, made, next }
    }
}

/// The images of each size, once a test needs them. `None` if a guest failed.
static CHANGED: [OnceLock<Option<Changed>>; 2] = [OnceLock::new(), OnceLock::new()];

fn check(number: usize, layout: &Layout) {
    // A guest that failed is not booted again for its other images.
    let changed = CHANGED[number]
        .get_or_init(|| std::panic::catch_unwind(|| Changed::new(&SIZES[number])).ok());
    let changed = changed.as_ref().expect("the guest failed; see the panic above");
    let is_image = |image: &PathBuf| image.file_name().is_some_and(|name| name == layout.name);
    let image = changed.images.iter().position(is_image).expect("an image");
    let machine = SIZES[number].machine;
    let [before, after] = &changed.listed[image][..] else { panic!("two lists") };
    let path: &Path = &changed.images[image];
    let made = &changed.made[image];
    compare(made, before, "the library's turn");
    assert!(after.len() > 700, "only {} names", after.len());
    let scattered = after.count("extents", |extents| extents.contains(','));
    assert!(scattered > 2, "only {scattered} files with several extents");
    let preallocated = made.fact(PREALLOCATED, "extents").unwrap_or_default();
    assert!(preallocated.contains(UNWRITTEN), "{preallocated}");
    let ours = Manifest::of_image(path);
    if machine == Machine::EmulatedF2fs16k && !layout.mount.is_empty() {
        // Each cluster is an extent. Without compression, the file is one.
        let extents = ours.fact(COMPRESSIBLE, "extents").unwrap_or_default();
        assert_eq!(extents.split(", ").count(), 5, "clusters in {extents}");
    }
    compare(&ours, after, "the guest's turn");
    if machine == Machine::UserMode {
        f2fs::check_by_fsck(path);
    }
    change(path, &changed.next[image]);
    if machine == Machine::UserMode {
        f2fs::check_by_fsck(path);
    }
}

/// What the text of an extent has if it is preallocated.
const UNWRITTEN: &str = "unwritten";

/// Checks that the library reads what the guest does, after what `turn` says.
fn compare(ours: &Manifest, of_guest: &Manifest, turn: &str) {
    let comparable = |manifest: &Manifest| {
        manifest.clone().map(|name, _, fact, value| {
            let is_left_out = match fact {
                // Linux finds the beginning of data at blocks with an address only, and its end at
                // holes only. So data extends over the preallocated blocks behind it. Here, these
                // are holes.
                "data" => {
                    ours.fact(name, "extents").is_some_and(|extents| extents.contains(UNWRITTEN))
                }
                // One of the guests lists the extents of some files only.
                "extents" => of_guest.fact(name, fact).is_none(),
                _ => false,
            };
            (!is_left_out).then(|| value.to_owned())
        })
    };
    let [ours, of_guest] = [ours, of_guest].map(comparable);
    ours.assert_equal(&format!("ours after {turn}"), &of_guest, "the guest");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (number, size) in SIZES.iter().enumerate() {
        for layout in size.layouts.iter().copied().flatten() {
            let bytes = size.block_size().bytes();
            let name = format!("{}_with_blocks_of_{bytes}_is_changed_and_read", layout.name);
            trials.push(Trial::test(name, move || {
                check(number, layout);
                Ok(())
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Statics are never dropped.
    for changed in CHANGED.iter().filter_map(OnceLock::get).flatten() {
        let _ = std::fs::remove_dir_all(changed.folder.path());
    }
    conclusion.exit();
}
