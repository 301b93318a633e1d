//! The limits and the progress of `bifolio check`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{Image, bifolio, json, run_with_status, shell};
use testkit::Mke2fs;
use testkit::command::run;

/// The number of groups of the damaged image.
const GROUPS: usize = 4096;
/// The bytes of a group descriptor.
const DESCRIPTOR: usize = 64;

/// Returns an image whose groups are all damaged, except for the first one: more findings than fit
/// in a pipe.
fn damaged() -> Image {
    let image = Image::empty();
    let recipe = Mke2fs::new("ext4", 1024).with("-O 64bit,^has_journal,^resize_inode");
    Mke2fs { size: GROUPS as u64 * (8 << 20), ..recipe }.make(&image.path, None);
    let file = File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&vec![0; (GROUPS - 1) * DESCRIPTOR], 2048 + DESCRIPTOR as u64).unwrap();
    image
}

fn name(image: &Image) -> String {
    image.path.display().to_string()
}

#[test]
fn a_check_stops_at_the_maximum_number_of_findings() {
    let image = damaged();
    let name = name(&image);
    let all = run_with_status(&["check", &name], 4).text();
    assert!(all.lines().count() >= GROUPS, "{} lines", all.lines().count());
    let found = run_with_status(&["check", "--max-findings", "3", &name], 4);
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(all.starts_with(&lines[..3].join("\n")), "{text}");
    assert_eq!(lines[3], "3 inconsistencies (stopped by --max-findings: there may be more)");
    let found = run_with_status(&["check", "--json", "--max-findings", "3", &name], 4);
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["findings"].as_array().map(Vec::len), Some(3));
    assert_eq!((&found["is_complete"], &found["is_consistent"]), (&false.into(), &false.into()));
    run_with_status(&["check", "--max-findings", "0", &name], 2);
    run_with_status(&["check", "--timeout", "0", &name], 2);

    let sound = Image::from_script("ext4", 4096, "echo x > file");
    let sound = sound.path.display().to_string();
    let found = json(&[
        "check",
        "--json",
        "--max-findings",
        "1",
        "--timeout",
        "18446744073709551615",
        &sound,
    ]);
    assert_eq!((&found["is_complete"], &found["is_consistent"]), (&true.into(), &true.into()));
}

/// Starts a check whose output is not read for some time, so that the pipe is full.
fn start_slow(arguments: &[&str], name: &str, errors: Stdio) -> Child {
    let mut command = bifolio();
    command.arg("check").args(arguments).arg(name);
    let child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    child
}

/// Returns the rest of the output and the exit status.
fn finish(mut child: Child) -> (String, Option<i32>) {
    let mut text = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_to_string(&mut text).unwrap();
    (text, child.wait().unwrap().code())
}

#[test]
fn a_check_stops_after_the_timeout_and_prints_what_was_found() {
    let image = damaged();
    let (text, status) = finish(start_slow(&["--timeout", "1"], &name(&image), Stdio::inherit()));
    let last = text.lines().last().unwrap();
    assert!(last.ends_with(" inconsistencies so far (stopped by --timeout)"), "{last}");
    let count = text.lines().count();
    assert_eq!(last.split(' ').next(), Some((count - 1).to_string().as_str()));
    assert!((10..GROUPS).contains(&count), "{count} lines");
    assert_eq!(status, Some(8));
}

#[test]
fn progress_is_shown_on_a_terminal_only() {
    let image = damaged();
    let [ours, theirs] = testkit::open_terminal();
    let (text, status) = finish(start_slow(&[], &name(&image), theirs.into()));
    assert_eq!(status, Some(4));
    assert!(!text.contains('\u{1b}'), "progress on standard output");
    let mut shown = Vec::new();
    // Fails with EIO after the last byte, since the other side is closed.
    let _ = File::from(ours).read_to_end(&mut shown);
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains("checking ") && shown.contains('%'), "{shown:?}");
    assert!(shown.ends_with("\r\u{1b}[K"), "the line stays: {shown:?}");

    let mut child = start_slow(&[], &name(&image), Stdio::piped());
    let mut errors = child.stderr.take().unwrap();
    let (_, status) = finish(child);
    assert_eq!(status, Some(4));
    let mut shown = String::new();
    errors.read_to_string(&mut shown).unwrap();
    assert_eq!(shown, "", "progress in a pipe");
}

/// Returns an ext4 image with the files that `script` makes, after requests of debugfs.
fn changed_by_debugfs(script: &str, requests: &str) -> Image {
    let image = Image::from_script("ext4", 4096, script);
    std::fs::write(image.beside("requests"), requests).unwrap();
    let requests = image.beside("requests");
    run(Command::new("debugfs").arg("-w").arg("-f").arg(requests).arg(&image.path));
    image
}

/// Returns the findings of a check that must find something, as text and as JSON.
fn found(image: &Image, arguments: &[&str]) -> (String, Vec<serde_json::Value>) {
    let name = name(image);
    let text = run_with_status(&[&["check"], arguments, &[&name]].concat(), 4);
    assert_eq!(String::from_utf8_lossy(&text.stderr), "");
    let text = String::from_utf8(text.stdout).unwrap();
    let json = run_with_status(&[&["check", "--json"], arguments, &[&name]].concat(), 4);
    let mut json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let serde_json::Value::Array(findings) = json["findings"].take() else { panic!("{json}") };
    (text, findings)
}

#[test]
fn findings_of_ext4_name_the_paths_of_inodes_and_entries() {
    let script = "mkdir -p etc/d/e; echo > etc/passwd; echo > etc/d/e/f";
    let requests = "clri /etc/passwd\nsif /etc/d/e/f links_count 9\nsif /etc/d links_count 7\n\
                    sif / links_count 9\n";
    let image = changed_by_debugfs(script, requests);
    let (text, findings) = found(&image, &[]);
    for line in [
        "(/etc/passwd), file block 0, block ",
        "(/etc/d/e/f): link count is 9, but must be 1\n",
        "(/etc/d): link count is 7, but must be 3\n",
        "corrupt inode at inode 2 (/): link count is 9, but must be 4\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let begins = "corrupt directory entry at inode ";
    let entry = text.lines().find(|line| line.starts_with(begins)).unwrap();
    assert!(entry.contains("(/etc/passwd), file block 0, block "), "{entry}");
    assert!(entry.contains(": the entry names inode "), "{entry}");
    assert!(entry.ends_with(", which is free"), "{entry}");
    let paths: Vec<_> = findings.iter().filter_map(|finding| finding["path"].as_str()).collect();
    for path in ["/etc/passwd", "/etc/d/e/f", "/etc/d", "/"] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
}

#[test]
fn paths_in_findings_are_escaped_and_complete() {
    let image = Image::from_script("ext4", 4096, "mkdir d; ln -s x $'d/a\\nb\\xff(\\e'");
    let inode = &json(&["find", "--json", &image.at("/d"), "-type", "l"])[0]["inode"];
    let request = format!("sif <{inode}> links_count 2");
    run(Command::new("debugfs").arg("-w").arg("-R").arg(request).arg(&image.path));
    let (text, findings) = found(&image, &[]);
    assert!(text.contains(r"(/d/a\nb\377(\033): link count is 2, but must be 1"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(findings[0]["path"], "/d/a\nb\u{fffd}(\u{1b}");
    assert_eq!(findings[0]["path_bytes"], "2f642f610a62ff281b");
}

#[test]
fn findings_of_f2fs_name_the_paths_of_inodes_and_entries() {
    let image = Image::empty();
    let folder = image.folder.path();
    shell(folder, "mkdir -p source/a/b; echo > source/a/b/unique-name; truncate -s 64M image");
    run(Command::new("mkfs.f2fs").args(["-q", "-t", "0"]).arg(&image.path));
    run(Command::new("sload.f2fs").arg("-f").arg(folder.join("source")).arg(&image.path));
    let mut bytes = std::fs::read(&image.path).unwrap();
    // The inode has the link count at byte 12, the length of its name at byte 88, then its name.
    let mut inodes = bytes
        .chunks_exact_mut(4096)
        .filter(|block| block[88..].starts_with(b"\x0b\0\0\0unique-name"));
    inodes.next().unwrap()[12] = 7;
    std::fs::write(&image.path, &bytes).unwrap();
    let (text, findings) = found(&image, &[]);
    assert!(text.contains(" (/a/b/unique-name)"), "{text}");
    assert!(text.contains(": link count is 7, but must be 1\n"), "{text}");
    assert_eq!(findings[0]["path"], "/a/b/unique-name");
}

#[test]
fn many_findings_have_paths_and_end_at_their_maximum() {
    let script = "mkdir d; cd d; for i in $(seq 2000); do : > file$i; done";
    let requests: String =
        (1..=2000).map(|number| format!("sif /d/file{number} links_count 3\n")).collect();
    let image = changed_by_debugfs(script, &requests);
    let (text, findings) = found(&image, &[]);
    for number in 1..=2000 {
        assert!(text.contains(&format!(" (/d/file{number}): link count is 3")), "{number}");
    }
    assert_eq!(findings.len(), 2000);
    let (text, _) = found(&image, &["--max-findings", "300"]);
    assert_eq!(text.lines().filter(|line| line.contains(" (/d/file")).count(), 300, "{text}");
    assert_eq!(text.lines().count(), 301);
}

#[test]
fn a_loop_of_directories_ends_the_search_and_inodes_outside_of_the_tree_have_no_path() {
    let script = "mkdir -p a/b/c gone; : > a/b/c/f; : > gone/f";
    let requests = "sif /a/b/c/f links_count 4\nsif /gone/f links_count 5\n\
                    ln /a /a/b/c/loop\nunlink /gone\n";
    let image = changed_by_debugfs(script, requests);
    let (text, _) = found(&image, &[]);
    assert!(text.contains("(/a/b/c/f): link count is 4"), "{text}");
    let outside = text.lines().find(|line| line.contains("link count is 5")).unwrap();
    assert!(!outside.contains('('), "{outside}");
}

#[test]
fn a_block_that_is_marked_free_names_the_file_that_has_it() {
    let script = "mkdir d; head -c 40k /dev/zero | tr '\\0' x > d/file; setfattr -n user.k -v $(printf 'v%.0s' {1..900}) d";
    let image = Image::from_script("ext4", 4096, script);
    let extents = json(&["fiemap", "--json", &image.at("/d/file")]);
    let block = extents[0]["extents"][0]["physical"].as_u64().unwrap() / 4096 + 3;
    let request = format!("freeb {block} 2");
    run(Command::new("debugfs").arg("-w").arg("-R").arg(request).arg(&image.path));
    let (text, findings) = found(&image, &[]);
    let line = format!(" (/d/file), block {block}: in use, but marked free (2 in a row)");
    assert!(text.contains(&line), "{text}");
    let path = findings.iter().find(|finding| finding["block"] == block).unwrap();
    assert_eq!(path["path"], "/d/file", "{path}");
}

#[test]
fn free_counts_of_the_superblock_are_compared_on_volumes_that_were_closed() {
    let image = Image::from_script("ext4", 4096, "echo x > file");
    for (field, name) in [("free_blocks_count", "block"), ("free_inodes_count", "inode")] {
        let copy = Image::empty();
        std::fs::copy(&image.path, &copy.path).unwrap();
        let request = format!("ssv {field} 17");
        run(Command::new("debugfs").arg("-w").arg("-R").arg(request).arg(&copy.path));
        let (text, _) = found(&copy, &[]);
        let line =
            format!("corrupt superblock at byte 1024: free {name} count is 17, but must be ");
        assert!(text.starts_with(&line) && text.lines().count() == 2, "{text}");
        // The kernel updates them when the volume is closed: its log may be newer.
        run(Command::new("debugfs").args(["-w", "-R", "feature needs_recovery"]).arg(&copy.path));
        run_with_status(&["check", &copy.path.display().to_string()], 0);
    }
    // A cluster that the end of the volume cuts counts as a whole one.
    for size in ["16389K", "30001K"] {
        let image = Image::empty();
        let script = format!(
            "mke2fs -q -F -t ext4 -b 1024 -O bigalloc -C 8192 image {size} 2>/dev/null; e2fsck -fn image"
        );
        shell(image.folder.path(), &script);
        run_with_status(&["check", &name(&image)], 0);
    }
}
