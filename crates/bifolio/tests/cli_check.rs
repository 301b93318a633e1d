//! The limits and the progress of `bifolio check`.

mod support;

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{Image, bifolio, json, run_with_status};
use testkit::Mke2fs;

/// The number of groups of the damaged image.
const GROUPS: usize = 4096;
/// The bytes of a group descriptor.
const DESCRIPTOR: usize = 64;

/// Returns an image whose groups are all damaged, except for the first one: more findings than fit in a pipe.
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
    let found = json(&["check", "--json", "--max-findings", "1", "--timeout", "1000", &sound]);
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
