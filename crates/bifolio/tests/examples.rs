//! The programs in `examples/`, run on images.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use testkit::command::{output, run};
use testkit::{Mke2fs, Random, check_by_e2fsck};

/// A call of an example, which cargo builds together with the tests.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "{}: `cargo build --examples` builds it", program.display());
    Command::new(program)
}

#[test]
fn a_copy_into_an_image_and_out_of_it_has_the_same_contents() {
    let folder = tempfile::tempdir().unwrap();
    let [image, source, copy] = ["disk.img", "source", "copy"].map(|name| folder.path().join(name));
    Mke2fs::new("ext4", 4096).make(&image, None);
    let mut random = Random(7);
    let contents: Vec<u8> = (0..3_000_001).map(|_| random.draw() as u8).collect();
    std::fs::write(&source, &contents).unwrap();

    run(example("copy").arg("in").args([&source, &image]).arg("/file"));
    check_by_e2fsck(&image);
    run(example("copy").arg("out").arg(&image).arg("/file").arg(&copy));
    assert!(std::fs::read(&copy).unwrap() == contents);

    // Neither side overwrites a file.
    std::fs::write(&source, b"other").unwrap();
    let again = output(example("copy").arg("in").args([&source, &image]).arg("/file"));
    assert!(!again.status.success() && again.text().contains("AlreadyExists"), "{}", again.text());
    let again = output(example("copy").arg("out").arg(&image).arg("/file").arg(&copy));
    assert!(!again.status.success() && again.text().contains("AlreadyExists"), "{}", again.text());
    check_by_e2fsck(&image);
    let volume = bifolio::VolumeOptions::new().open(&image).unwrap();
    assert!(volume.read("/file").unwrap() == contents);
    assert!(std::fs::read(&copy).unwrap() == contents);
}

#[test]
fn a_tree_is_listed_with_all_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let [image, source] = ["disk.img", "source"].map(|name| folder.path().join(name));
    std::fs::create_dir_all(source.join("d/e")).unwrap();
    std::fs::write(source.join("d/e/file"), b"12345").unwrap();
    symlink("d/e", source.join("link")).unwrap();
    Mke2fs::new("ext4", 4096).make(&image, Some(&source));

    let listed = String::from_utf8(run(example("tree").arg(&image))).unwrap();
    let mut lines: Vec<&str> = listed.lines().collect();
    lines.sort_by_key(|line| line.split_whitespace().nth(2).map(PathBuf::from));
    let line = |path: &str| {
        let ends = |line: &&&str| line.split_whitespace().nth(2) == Some(path);
        lines.iter().find(ends).unwrap_or_else(|| panic!("no {path} in:\n{listed}"))
    };
    assert!(line("/d/e/file").starts_with("100644          5 "), "{listed}");
    assert!(line("/d/e").starts_with("040755 "), "{listed}");
    assert!(line("/link").starts_with("120777 ") && line("/link").ends_with(" -> d/e"), "{listed}");
    // Those, /d and /lost+found.
    assert_eq!(lines.len(), 5, "{listed}");
}
