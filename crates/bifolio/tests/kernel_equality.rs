//! Images filled by the running kernel, read by bifolio and by the kernel.

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::{KINDS, Kind, LoopMount, Manifest, must, tree};

fn main() {
    let arguments = Arguments::from_args();
    let trials = KINDS.iter().flat_map(|kind| {
        [1024, 2048, 4096].map(|block_size| {
            Trial::test(format!("{}_{block_size}_reads_as_by_the_kernel", kind.name), move || {
                check(kind, block_size);
                Ok(())
            })
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// Creates and fills an image, and compares its contents as read by the kernel and by bifolio.
fn check(kind: &Kind, block_size: u32) {
    testkit::private_mounts();
    let folder = must(TempDir::new(), "a folder");
    let image = folder.path().join("image");
    kind.make(block_size, &image);

    let mount = LoopMount::new(&image, "ext4", "rw");
    tree::populate(mount.path(), &kind.tree(block_size));
    mount.unmount();
    let mount = LoopMount::new(&image, "ext4", "ro");
    let theirs = Manifest::of_host(mount.path());
    mount.unmount();
    assert!(theirs.len() > 1000, "only {} names", theirs.len());

    Manifest::of_image(&image).assert_equal("bifolio", &theirs, "the kernel");
}
