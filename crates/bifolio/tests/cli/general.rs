//! General behaviour of the commands: targets, failures and exit statuses, names on terminals and
//! in JSON, partitions, and trees with cycles.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use crate::support::{Image, bifolio, json, run_ok, run_ok_bytes, run_with_status, shell};
use testkit::command::output;
use testkit::{Mke2fs, must};

const SMALL: &str = "mkdir dir; echo hello > dir/file; ln -s file dir/link; echo > top";

#[test]
fn an_image_alone_means_its_root_and_names_may_contain_colons() {
    let image =
        Image::from_script("ext4", 1024, &format!("{SMALL}; mkdir 'dir/a:'; echo x > dir/a:/b"));
    let plain = image.path.display().to_string();
    assert_eq!(run_ok(&["ls", &plain]), "dir\nlost+found\ntop\n");
    assert_eq!(run_ok(&["ls", &image.at("/")]), run_ok(&["ls", &plain]));
    assert_eq!(run_ok(&["cat", &image.at("/dir/a:/b")]), "x\n");
    let odd = image.beside("my:/disk:1.img");
    shell(image.folder.path(), "mkdir my:; cp image my:/disk:1.img");
    assert_eq!(run_ok(&["cat", &format!("{}:/dir/file", odd.display())]), "hello\n");
    assert_eq!(run_ok(&["ls", &odd.display().to_string()]), run_ok(&["ls", &plain]));
    assert_eq!(run_ok(&["cat", &image.at("/dir/../dir/./link")]), "hello\n");
}

#[test]
fn failures_have_a_path_an_error_and_advice() {
    let image = Image::from_script("ext4", 1024, SMALL);
    let name = image.path.display();
    let check = |arguments: &[&str], status: i32, expected: &str| {
        let result = run_with_status(arguments, status);
        let text = String::from_utf8_lossy(&result.stderr).into_owned();
        assert!(text.starts_with(&format!("bifolio: {expected}")), "{text}");
        assert!(!text.contains("panicked") && text.lines().count() == 1, "{text}");
    };
    check(&["cat", &image.at("/none")], 1, &format!("{name}:/none: no such file or directory"));
    check(&["cat", &image.at("/dir")], 1, &format!("{name}:/dir: is a directory"));
    check(&["ls", &image.at("/top/x")], 1, &format!("{name}:/top/x: not a directory"));
    check(&["ls", "/nowhere.img"], 1, "/nowhere.img: cannot open: No such file or directory");
    check(&["ls", "/dev/null"], 1, "/dev/null: is neither a regular file nor a block device");
    check(&["ls", "/"], 1, "/: is neither a regular file nor a block device");
    let empty = image.beside("empty");
    must(fs::write(&empty, vec![0; 1 << 20]), "empty");
    let empty = empty.display().to_string();
    let blank = format!("{empty}: no known file system found: the image has only zeroes; `mke2fs");
    check(&["ls", &empty], 1, &blank);
    check(&["info", &empty], 1, &blank);
    check(&["ls", ""], 1, "the name of the image is empty");
    check(&["rm", "-r", &image.at("/")], 2, &format!("{name}: the root directory of an image"));
    let joined = format!("{name}/dir/file");
    let advice = format!(
        "{joined}: cannot open: Not a directory; write a path in an image as \
                          IMAGE:/PATH: {name}:/dir/file"
    );
    check(&["cat", &joined], 1, &advice);
    for command in ["ls", "stat", "du", "tree", "fiemap"] {
        // The other target is still shown.
        let both = run_with_status(&[command, &image.at("/none"), &image.at("/dir")], 1);
        assert!(!both.stdout.is_empty(), "{command}");
    }
    // clap reports invalid command lines with its own status.
    for arguments in [
        &["ls"][..],
        &["nothing"],
        &["ls", "--offset", "x", "i"],
        &["ls", "--partition", "0", "i"],
        &["ls", "--folio-order-max", "10", "i"],
        &["ls", "--partition", "1", "--offset", "1M", "i"],
        &["ls", "-0", "-l", "i"],
        &["cp", "i:/"],
        &["find", &image.at("/"), "-nonsense"],
        &[],
    ] {
        run_with_status(arguments, 2);
    }
}

#[test]
fn arguments_that_would_have_no_effect_are_refused() {
    let image = Image::from_script("ext4", 1024, SMALL);
    let out = image.beside("out").display().to_string();
    let (dir, file) = (image.at("/dir"), image.at("/dir/file"));
    for (arguments, expected) in [
        (&["info", &dir][..], "without a path in it"),
        (&["df", &dir], "without a path in it"),
        (&["gc", &dir], "without a path in it"),
        (&["check", &dir], "without a path in it"),
        (&["mount", &dir, &out], "without a path in it"),
        (&["cp", "--max-bytes", "1", "/etc/hostname", &dir], "--max-bytes: applies only"),
        (&["cp", "--max-files", "1", "/etc/hostname", &dir], "--max-files: applies only"),
        (&["cp", "-a", "--privileged", "/etc/hostname", &dir], "--privileged: applies only"),
        (&["cp", "--owner", "1", &file, &out], "--owner, --group: apply only"),
    ] {
        let result = run_with_status(arguments, 2);
        let text = String::from_utf8_lossy(&result.stderr).into_owned();
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    assert!(!image.beside("out").exists(), "a refused command has made a file");
}

#[test]
fn image_options_are_applied() {
    let image = Image::from_script("ext4", 1024, SMALL);
    for options in [
        &["--folio-order-max", "0", "--cache-size", "16M"][..],
        &["--folio-order-max", "9", "--no-recovery"],
    ] {
        let mut arguments = vec!["cat"];
        arguments.extend(options);
        let target = image.at("/dir/file");
        arguments.push(&target);
        assert_eq!(run_ok(&arguments), "hello\n");
    }
    shell(image.folder.path(), "(head -c 12345 /dev/zero; cat image) > shifted");
    let shifted = format!("{}:/dir/file", image.beside("shifted").display());
    assert_eq!(run_ok(&["cat", "--offset", "12345", &shifted]), "hello\n");
    run_with_status(&["cat", &shifted], 1);
    run_with_status(&["cat", "--offset", "9T", &shifted], 1);
}

#[test]
fn partitions_are_listed_and_opened() {
    let image = Image::from_script("ext4", 1024, SMALL);
    let script = r#"
        truncate -s 200M disk
        printf 'label: gpt\nsize=10M, name="boot"\nsize=64M, name="root"\n' | sfdisk -q disk
        start=$(sfdisk -d disk | sed -n 's/^disk2 : start= *\([0-9]*\),.*/\1/p')
        dd if=image of=disk bs=512 seek=$start conv=notrunc 2>/dev/null
        echo $((start * 512))"#;
    let offset = shell(image.folder.path(), script);
    let offset = offset.trim();
    let disk = image.beside("disk").display().to_string();
    let text = run_ok(&["info", &disk]);
    assert!(text.contains("--partition 2") && text.contains("boot"), "{text}");
    let found = json(&["info", "--json", &disk]);
    let parts = found[0]["partitions"].as_array().expect("partitions");
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[1]["offset"].to_string(), offset);
    assert_eq!(parts[1]["volume"]["format"], "ext4");
    let file = format!("{disk}:/dir/file");
    assert_eq!(run_ok(&["cat", "--partition", "2", &file]), "hello\n");
    assert_eq!(run_ok(&["cat", "--offset", offset, &file]), "hello\n");
    run_with_status(&["cat", "--partition", "1", &file], 1);
    run_with_status(&["cat", "--partition", "7", &file], 1);
    let result = run_with_status(&["cat", &file], 1);
    assert!(result.text().contains("choose a partition with --partition"), "{}", result.text());
}

#[test]
fn info_equals_dumpe2fs() {
    let image = Image::empty();
    let mut recipe = Mke2fs::new("ext4", 2048).with(
        "-L label -U 01234567-89ab-cdef-0123-456789abcdef -O quota,project,metadata_csum_seed",
    );
    recipe.size = 64 << 20;
    recipe.make(&image.path, None);
    let found = &json(&["info", "--json", &image.path.display().to_string()])[0];
    let theirs = shell(image.folder.path(), "dumpe2fs -h image 2>/dev/null");
    let fact = |name: &str| {
        let line = theirs.lines().find(|line| line.starts_with(name)).expect(name);
        line.split_once(':').expect(name).1.trim().to_owned()
    };
    assert_eq!(found["format"], "ext4");
    assert_eq!(found["label"], fact("Filesystem volume name").as_str());
    assert_eq!(found["uuid"], fact("Filesystem UUID").as_str());
    let mut features: Vec<_> = found["features"]
        .as_array()
        .expect("features")
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    features.sort_unstable();
    let theirs = fact("Filesystem features");
    let mut theirs: Vec<_> = theirs.split_whitespace().collect();
    theirs.sort_unstable();
    assert_eq!(features, theirs);
    assert_eq!(found["details"]["block_size"], 2048);
    assert_eq!(found["details"]["inodes"].to_string(), fact("Inode count"));
    let text = run_ok(&["info", &image.path.display().to_string()]);
    assert!(text.contains("UUID: 01234567-89ab-cdef-0123-456789abcdef"), "{text}");
}

#[test]
fn names_that_are_not_text_are_exact_in_json_and_escaped_in_text() {
    let image =
        Image::from_script("ext4", 1024, r"echo > $'caf\xe9\n\x1b[31m'; ln -s $'t\xff' link");
    let found = json(&["ls", "--json", &image.at("/")]);
    let entry = &found[0];
    assert_eq!(entry["name"], "caf\u{fffd}\n\u{1b}[31m");
    assert_eq!(entry["name_bytes"], "636166e90a1b5b33316d");
    assert_eq!(entry["path_bytes"], "2f636166e90a1b5b33316d");
    assert_eq!((&found[1]["target_bytes"], found[1].get("name_bytes")), (&"74ff".into(), None));
    // With --raw and -print0, names are not escaped, and in a pipe, they are.
    let root = &image.at("/");
    let raw = b"/caf\xe9\n\x1b[31m\n";
    assert_eq!(run_ok_bytes(&["--raw", "find", root, "-name", "caf*"]), raw);
    assert_eq!(run_ok_bytes(&["find", "--raw", root, "-name", "caf*"]), raw);
    let null = b"/caf\xe9\n\x1b[31m\0";
    assert_eq!(run_ok_bytes(&["find", root, "-name", "caf*", "-print0"]), null);
    assert_eq!(run_ok(&["find", root, "-name", "caf*"]), "/caf\\351\\n\\033[31m\n");
    assert_eq!(run_ok_bytes(&["ls", "--raw", root]), b"caf\xe9\n\x1b[31m\nlink\nlost+found\n");
    assert_eq!(run_ok(&["ls", root]), "caf\\351\\n\\033[31m\nlink\nlost+found\n");
    let program = env!("CARGO_BIN_EXE_bifolio");
    for command in ["ls -l", "tree", "find", "du -a"] {
        let line = format!("{program} {command} image");
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).current_dir(image.folder.path());
        let text = output(&mut script);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(text.contains(r"caf\351\n\033[31m"), "{command}: {text:?}");
        assert!(!text.contains('\u{1b}'), "{command}: {text:?}");
    }
    // Names in messages are always escaped.
    let mut command = bifolio();
    let path = [image.at("/").as_bytes(), b"\x1b]0;title\x07"].concat();
    let result = output(command.arg("cat").arg(std::ffi::OsStr::from_bytes(&path)));
    assert!(result.text().contains(r"/\033]0;title\007: no such file"), "{}", result.text());
}

#[test]
fn json_is_valid_even_after_failures() {
    let image = Image::from_script("ext4", 1024, SMALL);
    let (root, none) = (image.at("/"), image.at("/none"));
    let no_image = image.beside("none").display().to_string();
    for (command, failing) in [
        ("info", &no_image),
        ("ls", &none),
        ("tree", &none),
        ("stat", &none),
        ("du", &none),
        ("df", &no_image),
        ("fiemap", &none),
    ] {
        assert!(json(&[command, "--json", &root]).is_array(), "{command}");
        let result = output(bifolio().args([command, "--json", failing, &root]));
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&result.stdout);
        assert!(parsed.is_ok_and(|value| value.is_array()), "{command}: {}", result.text());
    }
    assert_eq!(json(&["find", "--json", &root, "-name", "nothing"]), serde_json::json!([]));
    let missing = run_with_status(&["find", "--json", &none], 1);
    assert_eq!(missing.stdout.trim_ascii(), b"[]", "{}", missing.text());
    let found = json(&["stat", "--json", &image.at("/dir/link")]);
    assert_eq!((&found[0]["type"], &found[0]["target"]), (&"symlink".into(), &"file".into()));
}

#[test]
fn a_closed_pipe_ends_the_command_without_a_message() {
    let image = Image::from_script(
        "ext4",
        4096,
        "head -c 30000000 /dev/zero > zeroes; mkdir d; cd d; touch $(seq 5000)",
    );
    for arguments in [["cat", "/zeroes"], ["find", "/"], ["ls", "/d"], ["tree", "/"], ["du", "/"]] {
        let mut command = bifolio();
        command.arg(arguments[0]).arg(image.at(arguments[1]));
        if arguments[0] == "du" {
            command.arg("-a");
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = must(child, "bifolio");
        let mut first = [0; 10];
        let mut out = child.stdout.take().expect("a pipe");
        must(out.read_exact(&mut first), "the first bytes");
        drop(out);
        let result = must(child.wait_with_output(), "wait");
        assert_eq!(String::from_utf8_lossy(&result.stderr), "", "{arguments:?}");
        // The whole output may fit in the pipe before it is closed.
        assert!(
            matches!(result.status.code(), Some(0 | 141)),
            "{arguments:?}: {:?}",
            result.status
        );
    }
    let full = shell(
        image.folder.path(),
        &format!(
            "{} cat {} > /dev/full 2> message || echo $?; cat message",
            env!("CARGO_BIN_EXE_bifolio"),
            image.at("/zeroes"),
        ),
    );
    assert!(full.starts_with("1\nbifolio: standard output: cannot write: No space left"), "{full}");
    // Of a check, that is another failure than inconsistencies.
    let image_path = image.path.display();
    for option in ["", "--json"] {
        let script = format!(
            "{} check {option} {image_path} > /dev/full 2> message || echo $?",
            env!("CARGO_BIN_EXE_bifolio")
        );
        assert_eq!(shell(image.folder.path(), &script), "8\n");
    }
}

#[test]
fn walks_through_trees_with_cycles_end() {
    let image = Image::from_script("ext4", 1024, "mkdir -p a/b; echo x > a/b/file");
    shell(image.folder.path(), "debugfs -w -R 'link a a/b/again' image >/dev/null 2>&1");
    let root = image.at("/");
    let out = image.beside("out").display().to_string();
    for arguments in [
        &["find", &root][..],
        &["tree", &root],
        &["du", "-a", &root],
        &["ls", "-R", &root],
        &["cp", "-a", &root, &out],
    ] {
        let result = run_with_status(arguments, 1);
        let text = String::from_utf8_lossy(&result.stderr).into_owned();
        assert!(text.contains("/a/b/again: corrupt directory"), "{arguments:?}: {text}");
        assert!(text.contains("leads back into itself"), "{arguments:?}: {text}");
    }
    assert_eq!(must(fs::read_to_string(image.beside("out/a/b/file")), "file"), "x\n");
    run_with_status(&["tree", "--json", &root], 1);
}

#[test]
fn entries_with_unreadable_inodes_are_listed_and_reported() {
    let image = Image::from_script(
        "ext4",
        1024,
        "mkdir d; echo a > d/gone; echo b > d/bad; echo c > d/good",
    );
    shell(
        image.folder.path(),
        "debugfs -w -R 'clri d/gone' image; debugfs -w -R 'set_inode_field d/bad mode 0' image",
    );
    let (d, out) = (image.at("/d"), image.beside("out").display().to_string());
    for arguments in [
        &["ls", "-l", &d][..],
        &["ls", "--json", &d],
        &["tree", &d],
        &["find", &d],
        &["du", "-a", &d],
        &["cp", "-r", &d, &out],
    ] {
        let result = run_with_status(arguments, 1);
        let text = result.text();
        assert!(text.contains("/d/gone: corrupt directory entry"), "{arguments:?}: {text}");
        assert!(text.contains("the inode that it names is missing"), "{arguments:?}: {text}");
        assert!(text.contains("/d/bad: corrupt inode"), "{arguments:?}: {text}");
        let shown = String::from_utf8_lossy(&result.stdout).into_owned();
        assert!(arguments[0] == "cp" || shown.contains("good"), "{arguments:?}: {shown}");
    }
    // The entry exists, so the error is not "no such file".
    let result = run_with_status(&["stat", &format!("{d}/gone")], 1);
    assert!(result.text().contains("the inode that it names is missing"), "{}", result.text());
    assert!(image.beside("out/good").exists() && !image.beside("out/bad").exists());
    assert_eq!(run_ok(&["ls", &d]), "bad\ngone\ngood\n");
}

#[test]
fn the_status_of_check_shows_whether_the_image_is_consistent() {
    let image = Image::from_script("ext4", 2048, SMALL);
    let path = image.path.display().to_string();
    let text = run_ok(&["check", &path]);
    assert!(text.starts_with("consistent: "), "{text}");
    let found = json(&["check", "--json", &path]);
    assert_eq!(
        (&found["is_consistent"], &found["findings"]),
        (&true.into(), &serde_json::json!([]))
    );
    let theirs = shell(image.folder.path(), "e2fsck -fn image 2>/dev/null | tail -1");
    assert!(theirs.contains(&format!(" {}/", found["clusters"])), "{theirs} {found}");

    shell(image.folder.path(), "debugfs -w -R 'set_inode_field dir/file links_count 7' image");
    let result = run_with_status(&["check", &path], 4);
    assert!(
        result.text().contains("link count is 7") && result.text().contains("1 inconsistency"),
        "{}",
        result.text()
    );
    let result = run_with_status(&["check", "--json", &path], 4);
    let found: serde_json::Value = must(serde_json::from_slice(&result.stdout), "JSON");
    assert_eq!(found["is_consistent"], false);
    assert!(found["findings"][0]["inode"].is_u64(), "{found}");

    // Corruption that prevents the recovery is a finding, and the rest is checked without recovery.
    shell(image.folder.path(), "debugfs -w -R 'feature needs_recovery' image");
    shell(
        image.folder.path(),
        "block=$(debugfs -R 'bmap <8> 0' image 2>/dev/null)
         printf x | dd of=image bs=1 seek=$((block * 2048 + 4)) conv=notrunc",
    );
    let result = run_with_status(&["check", &path], 4);
    for found in ["journal superblock", "link count is 7", "2 inconsistencies"] {
        assert!(result.text().contains(found), "{}", result.text());
    }

    // Corruption that prevents opening the image is a finding, too.
    shell(image.folder.path(), "printf x | dd of=image bs=1 seek=$((1024 + 0x3fc)) conv=notrunc");
    let result = run_with_status(&["check", &path], 4);
    assert!(result.text().contains("superblock"), "{}", result.text());
    run_with_status(&["check", "--json", &path], 4);
    let nothing = run_with_status(&["check", "--json", "/nowhere.img"], 8);
    assert!(nothing.stdout.is_empty(), "half an object: {}", nothing.text());
    run_with_status(&["check", "/dev/null"], 8);
    shell(image.folder.path(), "truncate -s 1M empty");
    run_with_status(&["check", &image.beside("empty").display().to_string()], 8);
    run_with_status(&["check"], 2);
}

#[test]
fn manual_pages_and_completions_cover_every_command() {
    let image = Image::empty();
    let folder = image.folder.path().display().to_string();
    run_ok(&["man", &folder]);
    let commands = [
        "info",
        "ls",
        "tree",
        "stat",
        "cat",
        "cp",
        "du",
        "df",
        "find",
        "fiemap",
        "put",
        "mkdir",
        "rm",
        "mv",
        "ln",
        "chmod",
        "chown",
        "mount",
        "completions",
    ];
    for shell in ["bash", "zsh", "fish"] {
        let script = run_ok(&["completions", shell]);
        for command in commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    for command in commands {
        let page = must(fs::read_to_string(image.beside(&format!("bifolio-{command}.1"))), command);
        assert!(page.contains(".SH OPTIONS") && page.contains(command), "{command}");
    }
    let page = must(fs::read_to_string(image.beside("bifolio.1")), "bifolio.1");
    assert!(page.contains("Exit status") && page.contains("141"), "{page}");
    assert!(run_ok(&["--help"]).contains("Exit status"));
    for command in commands {
        // The options that all commands share come last, with their own heading.
        let help = run_ok(&["help", command]);
        let (own, shared) = help.split_once("Image options:").unwrap_or((&help, ""));
        assert!(own.contains("--help"), "{help}");
        assert!(!shared.contains("--help") && !shared.contains("\n  <"), "{help}");
    }
    assert!(run_ok(&["help", "mount"]).contains("fusermount3"));
    let rendered = shell(image.folder.path(), "man -l bifolio.1 2>/dev/null | head -3 || true");
    assert!(rendered.is_empty() || rendered.contains("bifolio"), "{rendered}");
}

#[test]
fn commands_run_with_little_address_space() {
    let image = Image::from_script("ext4", 4096, SMALL);
    let program = env!("CARGO_BIN_EXE_bifolio");
    let folder = image.folder.path();
    // In KiB. The program and its libraries take a part of it.
    for limit in [60_000, 100_000, 300_000, 1_000_000, 4_000_000] {
        let limited = |command: &str| shell(folder, &format!("ulimit -v {limit}; {command}"));
        assert!(limited(&format!("{program} ls image")).contains("dir"), "{limit} KiB");
        limited(&format!("echo {limit} | {program} put - image:/put"));
        assert_eq!(limited(&format!("{program} cat image:/put")), format!("{limit}\n"));
        limited(&format!("{program} cp -a image:/ out{limit}"));
        assert_eq!(shell(folder, &format!("cat out{limit}/put")), format!("{limit}\n"));
    }
    let mut command = Command::new("sh");
    let script = format!("ulimit -v 300000; {program} ls --cache-size=2G image");
    let result = output(command.current_dir(folder).args(["-c", &script]));
    let text = "no address space for a cache of 2147483648 bytes; use a smaller --cache-size";
    assert!(result.text().contains(text), "{}", result.text());
    image.check_by_e2fsck();
}

#[test]
fn a_volume_without_free_inodes_is_not_called_full() {
    let image = Image::empty();
    let script = "mke2fs -q -F -t ext4 -N 16 image 8M 2>/dev/null; mkdir t; for i in $(seq 9); do echo $i > t/$i; done";
    shell(image.folder.path(), script);
    let expected = "no free inodes left on the volume, which has free space";
    let tree = image.beside("t/.").display().to_string();
    run_with_status(&["cp", "-a", &tree, &image.at("/")], 1);
    let made = run_with_status(&["mkdir", &image.at("/new")], 1).text();
    assert!(made.contains(expected), "{made}");
    image.check_by_e2fsck();
}

#[test]
fn a_refusal_to_write_names_the_way_out_in_commands_and_mounts() {
    let f2fs = "rm image; truncate -s 64M image; mkfs.f2fs -q -O ro,extra_attr image";
    for (script, way) in [
        ("debugfs -w -R 'feature shared_blocks' image", "e2fsck -fy -E unshare_blocks"),
        ("debugfs -w -R 'feature read-only' image", "tune2fs -O ^read-only"),
        ("debugfs -w -R 'feature quota' image", "tune2fs -O ^quota"),
        ("debugfs -w -R 'feature FEATURE_R30' image", "it can only be read"),
        ("debugfs -w -R 'ssv rev_level 2' image", "has revision 2"),
        (f2fs, "the feature `ro`"),
    ] {
        let image = Image::from_script("ext4", 4096, SMALL);
        shell(image.folder.path(), &format!("{script} 2>/dev/null; mkdir mnt"));
        let name = image.path.display().to_string();
        let put = run_with_status(&["mkdir", &image.at("/new")], 1).text();
        assert!(put.contains(way), "{put}");
        let count =
            ["only be read", "read-only for", "can be read"].map(|text| put.matches(text).count());
        assert_eq!(count, [1, 0, 0], "{put}");
        let mount = image.beside("mnt").display().to_string();
        let mounted = run_with_status(&["mount", "-o", "rw", &name, &mount], 1).text();
        assert_eq!(mounted, put);
    }
}

#[test]
fn commands_of_other_programs_point_on() {
    for (command, hint) in
        [("mkfs", "mke2fs -t ext4"), ("resize", "resize2fs"), ("getfacl", "bifolio getfattr -n")]
    {
        let text = run_with_status(&[command, "image"], 2).text();
        assert!(text.contains(hint), "{text}");
    }
}

#[test]
fn options_are_accepted_between_operands() {
    let image = Image::from_script("ext4", 1024, SMALL);
    let here = |name: &str| image.beside(name).display().to_string();
    must(fs::write(here("file"), "data"), "a file");
    run_ok(&["put", &here("file"), "--mode", "600", &image.at("/put")]);
    run_ok(&["cp", &here("file"), "-af", &image.at("/cp")]);
    run_ok(&["ln", "put", "-s", &image.at("/ln")]);
    run_ok(&["mv", &image.at("/cp"), "-nT", &image.at("/mv")]);
    run_ok(&["cp", &image.at("/dir"), "-a", &here("out")]);
    run_ok(&["cp", &here("file"), "-r", "--", &here("out"), &image.at("/dir")]);
    assert_eq!(run_ok(&["ls", &image.at("/")]), "dir\nln\nlost+found\nmv\nput\ntop\n");
    assert_eq!(run_ok(&["cat", &image.at("/mv"), "--raw", &image.at("/ln")]), "datadata");
    assert_eq!(run_ok(&["ls", &image.at("/dir/out")]), "file\nlink\n");
    for command in ["put", "cp", "ln", "mv"] {
        let missing = run_with_status(&[command, &here("file"), "-T"], 2).text();
        assert!(missing.contains("required arguments were not provided"), "{missing}");
        let unknown = run_with_status(&[command, &here("file"), "-Z", &image.at("/")], 2).text();
        assert!(unknown.contains("unexpected argument '-Z'"), "{unknown}");
        assert!(!unknown.contains("as a value"), "{unknown}");
    }
    image.check_by_e2fsck();
}

#[test]
fn mistakes_with_copies_and_attributes_are_explained() {
    let image = Image::from_script("ext4", 1024, "mkfifo pipe; : > file");
    let here = |name: &str| image.beside(name).display().to_string();
    must(fs::write(here("file"), "data"), "a file");
    for call in [&["cp"][..], &["cp", "-a"]] {
        let name = image.path.display().to_string();
        let text = run_with_status(&[call, &[&here("file"), &name]].concat(), 2).text();
        assert!(text.contains("add `:/` to its name"), "{text}");
    }
    let text = run_with_status(&["cp", &image.at("/pipe"), &image.at("/other")], 1).text();
    assert!(text.contains("is a special file") && !text.contains("put -"), "{text}");
    let large = "x".repeat(60000);
    let large = ["setfattr", "-n", "user.large", "-v", &large, &image.at("/file")];
    let text = run_with_status(&large, 1).text();
    assert!(text.contains("user.large: it does not fit beside the other attributes"), "{text}");
    image.check_by_e2fsck();
}
