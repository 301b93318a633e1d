//! Series of the command: copying trees of many files into images and out of them, listing,
//! checking and removing them.

use std::process::Command;

use bench::mount::bifolio;

use crate::cost::Costs;
use crate::tree::{Shape, SparseImage, Tree, succeed};

/// Measures a tree with all files in one directory.
pub fn one_directory(size: u64, costs: &mut Costs) {
    tree(size, Shape::One, costs);
}

/// Measures a tree with a hundred files in each directory.
pub fn many_directories(size: u64, costs: &mut Costs) {
    tree(size, Shape::Many, costs);
}

/// Measures single commands with many paths as arguments.
pub fn commands(size: u64, costs: &mut Costs) {
    // The host limits the number of arguments.
    let size = size.min(10_000);
    let image = SparseImage::make(size, 0);
    let paths = || (0..size).map(|number| image.target(&format!("/d{number}")));
    costs.measure("mkdir", size, || succeed(Command::new(bifolio()).arg("mkdir").args(paths())));
    costs.measure("rm", size, || succeed(Command::new(bifolio()).args(["rm", "-r"]).args(paths())));
}

fn tree(size: u64, shape: Shape, costs: &mut Costs) {
    let tree = Tree::make(size, shape);
    let archive = tree.archive();
    let image = SparseImage::make(size, 0);
    let top = image.target("/tree");
    let mut run = |row: &str, arguments: &[&str]| {
        costs.measure(row, size, || succeed(Command::new(bifolio()).args(arguments)));
    };
    let [archive, source] = [&archive, &tree.path()].map(|path| path.display().to_string());
    run("tar in", &["tar", &archive, &image.target("/")]);
    run("ls -lR", &["ls", "-lR", &top]);
    run("find", &["find", &top, "-type", "f"]);
    run("du", &["du", "-s", &top]);
    run("check", &["check", &image.path().display().to_string()]);
    run("cp -a out", &["cp", "-a", &top, &image.out().display().to_string()]);
    std::fs::remove_dir_all(image.out()).expect("a removed copy");
    run("rm -r", &["rm", "-r", &top]);
    run("cp -a in", &["cp", "-a", &source, &top]);
    testkit::check_by_e2fsck(&image.path());
}
