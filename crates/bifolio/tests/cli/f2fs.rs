//! f2fs images on the command line, with blocks of 4 KiB and of 16 KiB.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use crate::support::{Image, bifolio, json, run_ok, run_with_status, shell};
use base::BlockSize;
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

/// Makes an image of 128 MiB by mkfs.f2fs, and puts a file into it. Returns the image, and its
/// name.
fn with_file() -> (Image, String) {
    let image = Image::empty();
    let path = image.path.display().to_string();
    shell(image.folder.path(), "truncate -s 128M image; echo first > first; echo last > last");
    run(Command::new("mkfs.f2fs").args(["-q", "-t", "0"]).arg(&image.path));
    run_ok(&["cp", &image.beside("first").display().to_string(), &image.at("/first")]);
    (image, path)
}

#[test]
fn a_damaged_last_checkpoint_is_used_with_a_warning_and_repaired_by_the_next_change() {
    const BLOCK: usize = 4096;
    let (image, path) = with_file();
    run_ok(&["cp", &image.beside("last").display().to_string(), &image.at("/last")]);
    let bytes = must(fs::read(&image.path), &path);
    let word = |at: usize| must(bytes[at..].first_chunk().ok_or("short"), "a word").to_owned();
    let first = u32::from_le_bytes(word(1024 + 76)) as usize * BLOCK;
    let starts = [first, first + 512 * BLOCK];
    let version =
        |start: usize| (u32::from_le_bytes(word(start + 4)), u32::from_le_bytes(word(start)));
    let last = must(starts.into_iter().max_by_key(|start| version(*start)).ok_or("none"), "a pack");
    let file = must(File::options().write(true).open(&image.path), &path);
    must(file.write_all_at(&[0; BLOCK], last as u64), "the first block");

    let warning =
        format!("bifolio: warning: {path}: the first block of the last checkpoint is damaged");
    for (command, at) in
        [("ls", path.clone()), ("cat", image.at("/last")), ("stat", image.at("/first"))]
    {
        let said = output(bifolio().args([command, &at]));
        assert!(said.status.success() && said.text().contains(&warning), "{}", said.text());
    }
    assert!(output(bifolio().args(["cat", &image.at("/last")])).text().contains("last\n"));
    let found = run_with_status(&["check", &path], 4).text();
    let expected = format!("corrupt checkpoint at block {}: ", last / BLOCK);
    assert!(found.contains(&expected) && found.contains("1 inconsistency"), "{found}");
    let state = &json(&["info", "--json", &path])[0]["details"]["checkpoint_packs"];
    assert!(state.as_str().is_some_and(|state| state.contains("first block")), "{state}");

    // With a damaged journal, too.
    let journal = last + BLOCK + 512 * 7;
    must(file.write_all_at(&[0xFF; 2], journal as u64), "a number of entries");
    let said = run_with_status(&["mkdir", &image.at("/new")], 1).text();
    assert!(said.contains("corrupt later checkpoint"), "{said}");
    assert!(said.contains("a mount by Linux for writing gives up the later one"), "{said}");
    must(file.write_all_at(&[0; 2], journal as u64), "a number of entries");

    let said = run_with_status(&["mkdir", &image.at("/new")], 0).text();
    assert!(said.contains("the block has been restored"), "{said}");
    testkit::f2fs::check_by_both(&image.path);
    let names = output(bifolio().args(["ls", &path]));
    assert_eq!(names.text(), "first\nlast\nnew\n");
    run_ok(&["check", &path]);
}

#[test]
fn files_of_a_volume_whose_root_directory_is_damaged_are_named_by_their_numbers() {
    const BLOCK: usize = 4096;
    let (image, path) = with_file();
    let number = run_ok(&["stat", "--json", &image.at("/first")]);
    let number = must(serde_json::from_str::<serde_json::Value>(&number), "JSON");
    let number = must(number[0]["inode"].as_u64().ok_or(number), "the number of the inode");
    let valid = must(fs::read(&image.path), &path);
    // The node 3 of the inode 3.
    let is_root = |block: &&[u8]| block[BLOCK - 24..][..8] == [3, 0, 0, 0, 3, 0, 0, 0];
    let roots = (0..).zip(valid.chunks(BLOCK)).filter(|(_, block)| is_root(block));
    let roots: Vec<usize> = roots.map(|(at, _)| at * BLOCK).collect();
    let footer = BLOCK - 24;
    let mode = 0;
    let inline_flags = 3;
    for (at, value) in [(footer, 9), (mode, 0), (inline_flags, 0xFF)] {
        let mut damaged = valid.clone();
        roots.iter().for_each(|root| damaged[root + at..][..2].fill(value));
        must(fs::write(&image.path, &damaged), &path);
        for options in [&[][..], &["--incomplete"]] {
            for (command, at) in [("ls", path.clone()), ("cat", image.at("/first"))] {
                let said = run_with_status(&[&[command], options, &[&at]].concat(), 1).text();
                let advice = "name inodes by their numbers, as IMAGE:<N>";
                assert!(said.contains(advice), "byte {at}: {said}");
            }
            let named = format!("{path}:<{number}>");
            let read = run_ok(&[&["cat"], options, &[&named]].concat());
            assert_eq!(read, "first\n");
        }
    }
    // Without the root directory, and all behind it.
    must(fs::write(&image.path, &valid[..roots[0]]), &path);
    let said = run_with_status(&["ls", "--incomplete", &path], 1).text();
    assert!(said.contains("IMAGE:<N>"), "{said}");
}
