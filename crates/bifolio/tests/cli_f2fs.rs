//! f2fs images on the command line, with blocks of 4 KiB and of 16 KiB.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use base::BlockSize;
use support::{Image, bifolio, json, run_ok, run_with_status, shell};
use testkit::command::{output, run};
use testkit::f2fs::hostile::{self, damage_chain};
use testkit::f2fs::make::{self, MakeOptions};
use testkit::must;

const LOST_FOUND: u32 = 0x200;
const SB_CHECKSUM: u32 = 0x800;
const PACKED_SSA: u32 = 0x1_0000;
const KIB_16: u32 = 14;

/// Makes an image with blocks of 16 KiB and a directory.
fn with_large_blocks() -> Image {
    let image = Image::empty();
    let size = BlockSize::from_shift(KIB_16).expect("a block size");
    let mut options = MakeOptions::new(size, 1 << 30);
    options.features = LOST_FOUND | SB_CHECKSUM | PACKED_SSA;
    options.label = "größer";
    make::make_file(&image.path, &options);
    image
}

#[test]
fn an_image_with_blocks_of_16_kib_is_described_listed_and_copied() {
    let image = with_large_blocks();
    let path = image.path.display().to_string();
    let info = &json(&["info", "--json", &path])[0];
    assert_eq!(info["format"], "f2fs");
    assert_eq!(info["label"], "größer");
    assert_eq!(info["details"]["block_size"], 16_384);
    assert_eq!(info["details"]["inodes_used"], 2);
    let features = serde_json::json!(["lost_found", "sb_checksum", "packed_ssa"]);
    assert_eq!(info["features"], features);
    assert_eq!(run_ok(&["ls", &path]), "lost+found\n");

    let copied = image.beside("copied");
    must(fs::create_dir(&copied), copied.display());
    run_ok(&["cp", "-a", &format!("{path}:/"), &copied.display().to_string()]);
    let metadata = must(copied.join("lost+found").metadata(), "the copied directory");
    assert!(metadata.is_dir());
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o700);
}

#[test]
fn the_second_superblock_of_an_image_with_blocks_of_16_kib_replaces_a_damaged_one() {
    let image = with_large_blocks();
    let path = image.path.display().to_string();
    let file = must(File::options().write(true).open(&image.path), &path);
    // In the label, which the checksum covers.
    must(file.write_all_at(&[0xFF], 1024 + 124), "a byte of the first superblock");
    let listed = output(bifolio().args(["ls", &path]));
    assert!(listed.status.success(), "{}", listed.text());
    assert!(listed.text().contains("first superblock is damaged"), "{}", listed.text());
    assert!(listed.text().contains("lost+found\n"), "{}", listed.text());
}

#[test]
fn files_that_sload_has_put_into_an_image_are_copied_out_of_it() {
    let image = Image::empty();
    let folder = image.folder.path();
    shell(
        folder,
        "mkdir -p source/a/b out; seq 300000 > source/a/numbers; ln -s ../numbers source/a/b/link; \
         : > source/empty; truncate -s 256M image",
    );
    run(Command::new("mkfs.f2fs").args(["-q", "-t", "0"]).arg(&image.path));
    run(Command::new("sload.f2fs").arg("-P").arg("-f").arg(folder.join("source")).arg(&image.path));
    let [from, to] = [&image.path, &image.beside("out")].map(|path| path.display().to_string());
    run_ok(&["cp", "-a", &format!("{from}:/"), &to]);
    shell(folder, "diff --recursive --no-dereference source out");
}

#[test]
fn gc_makes_scattered_free_space_contiguous_and_changes_no_file() {
    let image = Image::empty();
    let folder = image.folder.path();
    shell(
        folder,
        "mkdir source out; for i in $(seq 300); do seq $((i * 20000)) $((i * 20000 + 20000)) > source/$i; done; \
         truncate -s 128M image",
    );
    run(Command::new("mkfs.f2fs").args(["-q", "-t", "0"]).arg(&image.path));
    run(Command::new("sload.f2fs").arg("-P").arg("-f").arg(folder.join("source")).arg(&image.path));
    let path = image.path.display().to_string();
    let removed: Vec<u32> = (1..=300).filter(|number| number % 3 > 0).collect();
    let paths: Vec<String> = removed.iter().map(|number| image.at(&format!("/{number}"))).collect();
    let mut arguments = vec!["rm"];
    arguments.extend(paths.iter().map(String::as_str));
    run_ok(&arguments);
    removed.iter().for_each(|number| {
        let file = folder.join("source").join(number.to_string());
        must(fs::remove_file(&file), file.display());
    });
    let cleaned = &json(&["gc", "--json", "--discard", &path])[0];
    let count = |name: &str| must(cleaned[name].as_u64().ok_or("no number"), name);
    let (before, after) = (count("free_segments_before"), count("free_segments_after"));
    assert!(after > before + 4 && count("blocks_moved") > 0, "{cleaned}");
    let again = run_ok(&["gc", &path]);
    assert!(again.contains(&format!("{path}: ")) && again.ends_with("blocks moved\n"), "{again}");
    testkit::f2fs::check_by_both(&image.path);
    run_ok(&["cp", "-a", &format!("{path}:/"), &image.beside("out").display().to_string()]);
    shell(folder, "diff --recursive source out");
}

#[test]
fn gc_refuses_images_of_other_formats() {
    let image = Image::by_kernel("");
    let said = run_with_status(&["gc", image.path.to_str().expect("a name")], 1);
    assert!(said.text().contains("is not an f2fs image; `bifolio defrag`"), "{}", said.text());
}

#[test]
fn an_image_whose_synced_files_are_damaged_is_read_without_them_on_demand() {
    let image = Image::empty();
    let path = image.path.display().to_string();
    let (_, mut bytes) = hostile::images().find(|(name, _)| *name == "unchecked").expect("cut off");
    must(fs::write(&image.path, &bytes), &path);
    assert!(run_ok(&["ls", &format!("{path}:/small")]).contains("new1\n"));

    damage_chain(&mut bytes);
    must(fs::write(&image.path, &bytes), &path);
    let listed = output(bifolio().args(["ls", &format!("{path}:/small")]));
    assert!(!listed.status.success(), "{}", listed.text());
    let advice = "use --no-recovery to read it without them";
    assert!(listed.text().contains(advice), "{}", listed.text());
    let names = run_ok(&["ls", "--no-recovery", &format!("{path}:/small")]);
    assert!(names.contains("12\n") && !names.contains("new1\n"), "{names}");
}
