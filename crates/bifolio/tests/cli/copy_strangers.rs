//! `bifolio cp` out of a stranger's image: nothing gets rights on the host, nothing is lost without
//! a word, and the size of the copy is watched.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};

use crate::support::{Image, bifolio, run_ok, run_with_status, shell};
use rustix::fs::{Gid, Uid, inotify};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use testkit::command::output;
use testkit::must;

/// The user who owns the destination of some copies.
const STRANGER: u32 = 1234;

/// Runs a command that succeeds, and returns what it printed.
fn warnings(arguments: &[&str]) -> String {
    run_with_status(arguments, 0).text()
}

fn mode(path: &Path) -> u32 {
    must(fs::metadata(path), path.display()).permissions().mode() & 0o7777
}

#[test]
fn rights_on_the_host_are_copied_on_request_only() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir dir; chmod 2775 dir; echo x > dir/program; cp dir/program other
         chown 12:34 dir/program; chmod 6755 dir/program; setfattr -n user.x -v y dir/program
         setcap cap_net_raw+ep other; mknod null c 1 3; mknod dir/disk b 7 0; mkfifo pipe
         setfattr -n security.SMACK64EXEC -v _ other; setfattr -n security.selinux -v y other
         setfattr -n trusted.overlay.opaque -v y dir; setfattr -n trusted.x -v y pipe",
    );
    let out = image.beside("out");
    let text = warnings(&["cp", "-a", &image.at("/"), &out.display().to_string()]);
    for line in [
        "set-user-ID and set-group-ID bits of 2 files were not preserved, the first is /dir",
        "capabilities of 1 file were not preserved, the first is /other: copies would",
        "attributes security.* of 1 file were not preserved, the first is /other: copies would",
        "attributes trusted.* of 2 files were not preserved, the first is /",
        "2 device files were not copied, the first is /",
        "use --privileged if you trust the image",
    ] {
        assert!(text.contains(line) && text.contains("warning: "), "{line}: {text}");
    }
    let program = out.join("dir/program");
    let found = must(program.metadata(), "program");
    assert_eq!((found.uid(), found.gid(), mode(&program)), (12, 34, 0o755));
    assert_eq!(mode(&out.join("dir")), 0o775);
    assert!(!out.join("null").exists() && !out.join("dir/disk").exists());
    assert!(out.join("pipe").exists());
    assert_eq!(shell(&out, "getcap other").trim(), "");
    assert_eq!(shell(&out, "getfattr -dm '^(security|trusted)' other dir pipe"), "");
    assert!(shell(&out, "getfattr -n user.x dir/program").contains("user.x=\"y\""));

    // Without -a, too.
    let plain = image.beside("plain");
    let text = warnings(&["cp", "-r", &image.at("/"), &plain.display().to_string()]);
    assert!(text.contains("2 device files were not copied"), "{text}");
    assert!(!plain.join("null").exists());

    let all = image.beside("all");
    let text = warnings(&["cp", "-a", "--privileged", &image.at("/"), &all.display().to_string()]);
    assert_eq!(text, "");
    assert_eq!((mode(&all.join("dir/program")), mode(&all.join("dir"))), (0o6755, 0o2775));
    assert_eq!(shell(&all, "getcap other").trim(), "other cap_net_raw=ep");
    let labels = shell(&all, "getfattr -dm '^(security.S|security.se|trusted)' other dir pipe");
    for label in ["SMACK64EXEC=\"_", "selinux=\"y", "trusted.overlay.opaque=\"y", "trusted.x=\"y"] {
        assert!(labels.contains(label), "{label}: {labels}");
    }
    assert_eq!(shell(&all, "stat -c %t:%T null dir/disk"), "1:3\n7:0\n");
}

#[test]
fn attributes_that_overlays_and_containers_trust_are_copied_on_request_only() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir dir; echo x > file; setfacl -m u:5:r file; setfattr -n user.overlayed -v kept file
         setfattr -n user.containers.other -v kept file; setfattr -n user.virtfs -v kept file
         for name in overlay.opaque overlay.redirect fuseoverlayfs.override_stat virtfs.uid \
             containers.override_stat; do setfattr -n user.$name -v y dir file; done",
    );
    let folder = image.folder.path();
    shell(folder, "debugfs -w -R 'ea_set /file system.other y' image 2>&1");
    let attributes = |name: &str| shell(&image.beside(name), "getfattr -dm- dir file");
    let out = |name| image.beside(name).display().to_string();
    let text = warnings(&["cp", "-a", &image.at("/"), &out("out")]);
    let trusted = ["user.overlay.*", "user.fuseoverlayfs.*", "user.virtfs.*"];
    for names in trusted.into_iter().chain(["user.containers.override_stat"]) {
        let line = format!("attributes {names} of 2 files were not preserved, the first is /");
        assert!(text.contains(&line), "{line}: {text}");
    }
    let line = "attributes system.* of 1 file were not preserved, the first is /file: copies would";
    assert!(text.contains(line), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
    let found = attributes("out");
    assert_eq!(found.matches("=\"y\"").count(), 0, "{found}");
    assert_eq!(found.matches("=\"kept\"").count(), 3, "{found}");
    assert!(shell(&image.beside("out"), "getfacl -n file").contains("user:5:r"), "{found}");
    // The host has no attribute `system.other`.
    let all = ["cp", "-a", "--privileged", &image.at("/"), &out("all")];
    assert!(run_with_status(&all, 1).text().contains("attributes system.* of 1 file"));
    assert_eq!(attributes("all").matches("=\"y\"").count(), 10);
}

#[test]
fn a_second_file_of_the_same_name_is_reported() {
    let image = Image::from_script(
        "ext2",
        1024,
        "mkdir dir; echo first > dir/name-one; echo second > dir/name-two; echo third > dir/other",
    );
    let mut bytes = must(fs::read(&image.path), "image");
    let at = bytes.windows(8).position(|window| window == b"name-two").expect("the entry");
    bytes[at..at + 8].copy_from_slice(b"name-one");
    must(fs::write(&image.path, bytes), "image");
    let out = image.beside("out");
    let arguments = ["cp", "-a", &image.at("/dir"), &out.display().to_string()];
    let result = run_with_status(&arguments, 1);
    let text = "/dir/name-one: is a name that its directory has twice; only the first file was";
    assert!(result.text().contains(text), "{}", result.text());
    assert_eq!(shell(&out, "cat name-one other"), "first\nthird\n");
    // A second copy replaces the first one.
    run_with_status(&["cp", "-aT", &image.at("/dir"), &out.display().to_string()], 1);
    assert_eq!(shell(&out, "cat name-one other"), "first\nthird\n");
}

#[test]
fn copies_end_at_the_limits_that_were_chosen() {
    let image = Image::from_script(
        "ext2",
        4096,
        "mkdir dir; cd dir; for i in $(seq 8); do head -c 2000000 /dev/urandom > file$i; done",
    );
    let out = |name| image.beside(name).display().to_string();
    for (option, most, name) in
        [("--max-bytes=5M", 3, "bytes"), ("--max-files=4", 3, "files"), ("--max-files=0", 0, "no")]
    {
        let result = run_with_status(&["cp", "-a", option, &image.at("/dir"), &out(name)], 1);
        let (option, _) = option.split_once('=').expect("an option");
        let text = format!("the copy has reached {option}; the rest was not copied");
        assert!(result.text().contains(&text), "{}", result.text());
        let copied = fs::read_dir(image.beside(name)).map_or(0, |entries| entries.count());
        assert!(copied <= most, "{copied} files with {option}");
    }
    run_ok(&["cp", "-a", "--max-bytes=16M", "--max-files=9", &image.at("/dir"), &out("all")]);
    assert_eq!(fs::read_dir(image.beside("all")).map_or(0, |entries| entries.count()), 8);
}

#[test]
fn a_copy_that_is_much_larger_than_the_image_warns() {
    let image = Image::from_script(
        "ext2",
        4096,
        "head -c 1000000 /dev/urandom > file0; for i in $(seq 199); do ln file0 file$i; done",
    );
    let out = |name| image.beside(name).display().to_string();
    let warning = "the copy has more than 100 times the bytes of the image; --max-bytes limits it";
    let text = warnings(&["cp", "-r", &image.at("/"), &out("many")]);
    assert_eq!(text.matches(warning).count(), 1, "{text}");
    // With hard links, the copy has one file.
    let text = warnings(&["cp", "-a", &image.at("/"), &out("one")]);
    assert_eq!(text, "");
}

/// Renames root's files `secret-N` to each name that appears in the directory `home`, as its owner,
/// until `stop` is set. Sends a message once it watches the directory. Returns the numbers of names
/// that it saw, and of renamed files.
fn rename_secrets(home: &Path, watching: &Sender<()>, stop: &AtomicBool) -> [u32; 2] {
    let folder = must(File::open(home), "home");
    let events = must(inotify::init(inotify::CreateFlags::NONBLOCK), "inotify");
    let flags = inotify::WatchFlags::CREATE;
    must(inotify::add_watch(&events, home, flags), "a watch");
    // These system calls change the calling thread only.
    let (user, group) = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
    must(set_thread_res_gid(group, group, group), "the group");
    must(set_thread_res_uid(user, user, user), "the user");
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&events, &mut buffer);
    must(watching.send(()), "a message");
    let [mut seen, mut renamed] = [0; 2];
    while !stop.load(Ordering::Relaxed) {
        let Ok(event) = reader.next() else { continue };
        let Some(name) = event.file_name() else { continue };
        seen += 1;
        let secret = format!("secret-{renamed}");
        renamed += u32::from(rustix::fs::renameat(&folder, secret, &folder, name).is_ok());
    }
    [seen, renamed]
}

/// Copies out of an image with the files that `fill` creates, to a directory whose owner renames
/// root's files meanwhile, which `secrets` creates. Tries it several times. `lost` prints root's
/// files that have another owner. There must be none.
#[track_caller]
fn check_renaming_owner(fill: &str, secrets: &str, lost: &str) {
    let image = Image::from_script("ext4", 4096, fill);
    for attempt in 0..3 {
        let home = image.beside(&format!("home{attempt}"));
        must(fs::create_dir(&home), "home");
        shell(&home, secrets);
        must(chown(&home, Some(STRANGER), Some(STRANGER)), "home");
        let stop = AtomicBool::new(false);
        let [seen, renamed] = std::thread::scope(|scope| {
            let (watching, watched) = mpsc::channel();
            let (home, stop) = (&home, &stop);
            let stranger = scope.spawn(move || rename_secrets(home, &watching, stop));
            must(watched.recv(), "a watch");
            // The copy fails if its files are replaced.
            let result =
                output(bifolio().args(["cp", "-a", &image.at("/"), "."]).current_dir(home));
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(result.status.code(), Some(0 | 1)), "{}", result.text());
            stranger.join().expect("the thread")
        });
        let lost = shell(&home, lost);
        assert_eq!(lost, "", "root's files changed hands, {renamed} were renamed");
        assert!(seen > 0, "the stranger saw no new name");
        let owner = must(home.metadata(), "home").uid();
        assert_eq!(owner, STRANGER);
    }
}

#[test]
fn the_owner_of_the_destination_gets_no_files_of_root_for_special_files() {
    check_renaming_owner(
        "for i in $(seq 1000); do echo pipe$i; done | xargs mkfifo; chown 1234:1234 *",
        "for i in $(seq 0 1200); do : > secret-$i; done",
        "find . -type f ! -user 0",
    );
}

#[test]
fn the_owner_of_the_destination_gets_no_directories_of_root() {
    check_renaming_owner(
        "for i in $(seq 1000); do echo dir$i; done | xargs mkdir; chown 1234:1234 *",
        "mkdir $(seq -f secret-%g 0 1200); for dir in secret-*; do : > $dir/inside; done",
        "find . -name inside -printf '%h\\0' | xargs -r0 stat -c '%u %n' | sed '/^0 /d'",
    );
}

#[test]
fn what_is_not_a_file_is_moved_to_the_directory_of_another_user() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir -p dir1/inside dir2; mkfifo pipe; ln -s x symlink; chmod 755 dir1 dir2",
    );
    let home = image.beside("home");
    must(fs::create_dir(&home), "home");
    must(chown(&home, Some(STRANGER), Some(STRANGER)), "home");
    let events = must(inotify::init(inotify::CreateFlags::NONBLOCK), "inotify");
    let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
    must(inotify::add_watch(&events, &home, flags), "a watch");
    let text = warnings(&["cp", "-a", &image.at("/"), &home.display().to_string()]);
    assert!(text.contains("1 existing directory kept other owners"), "{text}");
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&events, &mut buffer);
    let mut created = Vec::new();
    let mut moved = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event.file_name().expect("a name").to_string_lossy().into_owned();
        let is_directory = event.events().contains(inotify::ReadFlags::ISDIR);
        match event.events().contains(inotify::ReadFlags::CREATE) {
            true => created.push((name, is_directory)),
            false => moved.push(name),
        }
    }
    moved.sort();
    assert_eq!(moved, ["dir1", "dir2", "lost+found", "pipe", "symlink"]);
    // A file that tells who owns new files, and the place in which the others are made.
    let kinds: Vec<bool> = created.iter().map(|(_, is_directory)| *is_directory).collect();
    assert_eq!(kinds, [false, true], "{created:?}");
    assert!(created.iter().all(|(name, _)| name.starts_with(".bifolio-")), "{created:?}");
}

#[test]
fn existing_directories_keep_their_attributes() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir -p old/new; : > old/file; chown -R 12:34 .; chmod 777 . old; setfattr -n user.x -v y old
         setfacl -m u:77:rwx old; setfacl -d -m u:77:rwx old",
    );
    let out = image.beside("out");
    must(fs::create_dir(&out), "out");
    shell(&out, "mkdir old; chmod 750 . old; setfattr -n user.z -v z old");
    let facts = |names| shell(&out, &format!("stat -c '%n %u %g %a' {names}; getfattr -dm- old"));
    let before = facts(". old");
    let copy = ["cp", "-a", &image.at("/"), &out.display().to_string()];
    let text = warnings(&copy);
    let line = "2 existing directories kept other owners or permissions, the first is /";
    assert!(text.contains(line) && text.contains("warning: "), "{text}");
    assert_eq!(facts(". old"), before);
    assert!(facts("old/new old/file").starts_with("old/new 12 34 755\nold/file 12 34 644\n"));
    // Nobody misses the rest.
    shell(&out, "chmod 755 .; chown 12:34 old; chmod 777 old");
    assert_eq!(warnings(&copy), "");
}

#[test]
fn a_copy_after_one_that_was_killed_says_which_directories_are_not_complete() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir -p a/b; head -c 40000000 /dev/urandom > a/b/file; chmod 755 . a a/b",
    );
    let out = image.beside("out");
    let copy = ["cp", "-a", &image.at("/"), &out.display().to_string()];
    let is_killed = || {
        must(fs::create_dir(&out), "out");
        let mut first = must(bifolio().args(copy).spawn(), "a copy");
        while !out.join("a/b").exists() {}
        must(first.kill(), "a copy");
        !must(first.wait(), "a copy").success()
    };
    // The copy may have ended before.
    while !is_killed() {
        must(fs::remove_dir_all(&out), "out");
    }
    assert_eq!((mode(&out.join("a")), mode(&out.join("a/b"))), (0o700, 0o700));
    let text = warnings(&copy);
    assert!(text.contains("2 existing directories kept other owners or permissions"), "{text}");
    assert!(text.contains("a copy that was killed leaves some with mode 0700"), "{text}");
    assert_eq!((mode(&out.join("a")), mode(&out.join("a/b"))), (0o700, 0o700));
}
