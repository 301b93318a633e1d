//! The programs in `examples/`, run on images.

use std::os::unix::fs::symlink;
use std::path::Path;
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

/// Returns whether the image's journal has to be replayed.
fn needs_recovery(image: &Path) -> bool {
    let header = run(Command::new("dumpe2fs").arg("-h").arg(image));
    String::from_utf8_lossy(&header).contains("needs_recovery")
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
    assert!(!needs_recovery(&image), "the copy that failed did not close the volume");
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
    std::fs::write(source.join("a\n\x1b[2Jb"), b"").unwrap();
    Mke2fs::new("ext4", 4096).make(&image, Some(&source));

    let listed = String::from_utf8(run(example("tree").arg(&image))).unwrap();
    let lines: Vec<&str> = listed.lines().collect();
    let line = |path: &str| {
        let has_path = |line: &&&str| line.split_whitespace().nth(2) == Some(path);
        lines.iter().find(has_path).unwrap_or_else(|| panic!("no {path} in:\n{listed}"))
    };
    assert!(line("\"/d/e/file\"").starts_with("100644          5 "), "{listed}");
    assert!(line("\"/d/e\"").starts_with("040755 "), "{listed}");
    assert!(line("\"/link\"").starts_with("120777 "), "{listed}");
    assert!(line("\"/link\"").ends_with(" -> \"d/e\""), "{listed}");
    assert!(line(r#""/a\n\u{1b}[2Jb""#).starts_with("100644          0 "), "{listed}");
    // These, /d and /lost+found.
    assert_eq!(lines.len(), 6, "{listed}");
}

#[test]
fn a_directory_that_contains_itself_is_listed_once() {
    let folder = tempfile::tempdir().unwrap();
    let [image, source] = ["disk.img", "source"].map(|name| folder.path().join(name));
    std::fs::create_dir_all(source.join("d/e")).unwrap();
    Mke2fs::new("ext4", 4096).make(&image, Some(&source));
    run(Command::new("debugfs").args(["-w", "-R", "ln d d/e/loop"]).arg(&image));
    let listed = String::from_utf8(run(example("tree").arg(&image))).unwrap();
    let [first, second] = ["/d/e\"\n", "/d/e/loop\"\n"].map(|line| listed.matches(line).count());
    assert_eq!((first, second, listed.lines().count()), (1, 1, 4), "{listed}");
}

#[test]
fn a_first_program_writes_and_reports() {
    let folder = tempfile::tempdir().unwrap();
    let [image, message, report] =
        ["disk.img", "message", "report"].map(|name| folder.path().join(name));
    Mke2fs::new("ext4", 4096).make(&image, None);
    std::fs::write(&message, "Hello, world\n\n").unwrap();
    std::fs::set_permissions(&message, std::os::unix::fs::PermissionsExt::from_mode(0o640))
        .unwrap();

    assert_eq!(run(example("first").args([&image, &message, &report])), b"Hello, world\n");
    check_by_e2fsck(&image);
    assert_eq!(
        std::fs::read_to_string(&report).unwrap(),
        "file latest: 13 bytes, 640, 0 days old\n  user.comment = added\n"
    );
    let shown = run(Command::new("debugfs")
        .args(["-R", "ea_get /var/messages/latest user.comment"])
        .arg(&image));
    assert!(String::from_utf8_lossy(&shown).contains("added"));
    let refused = output(example("first").args([&image, &report.join("none"), &report]));
    assert!(
        !refused.status.success() && refused.text().contains("Not a directory"),
        "{}",
        refused.text()
    );
}
