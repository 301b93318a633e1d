//! Series of mounts: common programs on trees of many files, on bifolio's mount and on the running
//! kernel's.

use std::path::Path;
use std::process::Command;

use bench::mount::{Mount, Mounter};

use crate::cost::Costs;
use crate::tree::{Shape, SparseImage, Tree, succeed, sync_file_system};

/// Bifolio's mount with default options.
const OURS: Mounter = Mounter::Bifolio("rw");

/// Measures all files in one directory, on bifolio's mount.
pub fn ours_in_one(size: u64, costs: &mut Costs) {
    tree(size, Shape::One, OURS, costs);
}

/// Measures all files in one directory, on the kernel's mount.
pub fn kernel_in_one(size: u64, costs: &mut Costs) {
    tree(size, Shape::One, Mounter::Kernel, costs);
}

/// Measures a hundred files in each directory, on bifolio's mount.
pub fn ours_in_many(size: u64, costs: &mut Costs) {
    tree(size, Shape::Many, OURS, costs);
}

/// Measures a hundred files in each directory, on the kernel's mount.
pub fn kernel_in_many(size: u64, costs: &mut Costs) {
    tree(size, Shape::Many, Mounter::Kernel, costs);
}

/// Measures empty directories, on bifolio's mount.
pub fn ours_directories(size: u64, costs: &mut Costs) {
    tree(size, Shape::Directories, OURS, costs);
}

/// Measures empty directories, on the kernel's mount.
pub fn kernel_directories(size: u64, costs: &mut Costs) {
    tree(size, Shape::Directories, Mounter::Kernel, costs);
}

fn tree(size: u64, shape: Shape, mounter: Mounter, costs: &mut Costs) {
    let image = SparseImage::make(size, size * 4096);
    let mounted = || Mount::new(&image.path(), mounter);
    let source = Tree::make(size, shape);
    let archive = source.archive();
    let mount = mounted();
    let top = mount.path().join("tree");
    let untar = || {
        let mut command = Command::new("tar");
        succeed(command.arg("-xf").arg(&archive).arg("-C").arg(mount.path()));
    };
    costs.measure("tar", size, untar);
    costs.measure("sync", size, || sync_file_system(&top));
    // Unmounting drops all caches, so the next row measures reads from the image.
    drop(mount);
    let mount = mounted();
    let top = mount.path().join("tree");
    let on_top = |program: &str, arguments: &[&str]| {
        succeed(Command::new(program).args(arguments).arg(&top));
    };
    costs.measure("ls -lR, cold", size, || on_top("ls", &["-lR"]));
    costs.measure("ls -lR again", size, || on_top("ls", &["-lR"]));
    costs.measure("find", size, || on_top("find", &[]));
    costs.measure("cp out", size, || copy(&top, &image.out()));
    std::fs::remove_dir_all(image.out()).expect("a removed copy");
    costs.measure("rm -rf", size, || on_top("rm", &["-rf"]));
    costs.measure("cp in", size, || copy(&source.path(), &mount.path().join("copy")));
    drop(mount);
    testkit::check_by_e2fsck(&image.path());
}

fn copy(from: &Path, to: &Path) {
    succeed(Command::new("cp").arg("-a").arg(from).arg(to));
}
