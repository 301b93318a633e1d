//! `bifolio cp` out of an image: copies equal the originals as the kernel shows them, and files
//! outside of the destination are not changed.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use crate::support::{Image, bifolio, run_ok, run_with_status, shell};
use testkit::command::output;
use testkit::tree::{TreeOptions, populate};
use testkit::{LoopMount, Manifest, Mke2fs, must, private_mounts, wait_until};

/// Removes the facts that can differ between two file systems with the same tree.
fn comparable(manifest: Manifest) -> Manifest {
    const OWN: [&str; 9] = [
        "inode",
        "blocks",
        "changed",
        "created",
        "flags",
        "generation",
        "project",
        "extents",
        "block size",
    ];
    manifest.map(|name, mode, fact, value| {
        let is_own = OWN.contains(&fact) || (fact == "size" && mode.starts_with("04"));
        (name != "(volume)" && !is_own).then(|| value.to_owned())
    })
}

#[test]
fn an_archive_copy_equals_the_kernels_mount() {
    private_mounts();
    let image = Image::empty();
    Mke2fs::new("ext4", 4096).make(&image.path, None);
    let mount = LoopMount::new(&image.path, "ext4", "rw");
    populate(mount.path(), &TreeOptions::new(4096));
    mount.unmount();
    let original = LoopMount::new(&image.path, "ext4", "ro");
    let expected = comparable(Manifest::of_host(original.path()));

    let copy = image.beside("copy.img");
    Mke2fs::new("ext4", 4096).make(&copy, None);
    let copy = LoopMount::new(&copy, "ext4", "rw");
    let into = copy.path().display().to_string();
    run_ok(&["cp", "-a", "--privileged", &image.at("/"), &into]);
    let found = comparable(Manifest::of_host(copy.path()));
    assert!(found.len() > 1000, "{}", found.len());
    // The attributes of directories that exist are not set.
    let without_times = |manifest: Manifest, is_old: fn(&str, &str) -> bool| {
        manifest.map(|name, mode, fact, value| {
            let is_time = ["accessed", "modified"].contains(&fact);
            (!is_time || !is_old(name, mode)).then(|| value.to_owned())
        })
    };
    let existed = |name: &str, _: &str| [".", "lost+found"].contains(&name);
    let found = without_times(found, existed);
    found.assert_equal("the copy", &without_times(expected.clone(), existed), "the kernel");

    // A copy over a copy changes nothing.
    run_ok(&["cp", "-a", "--privileged", &image.at("/"), &into]);
    let is_directory = |_: &str, mode: &str| mode.starts_with("04");
    let again = without_times(comparable(Manifest::of_host(copy.path())), is_directory);
    again.assert_equal("the second copy", &without_times(expected, is_directory), "the kernel");
    assert_eq!(leftovers(copy.path()), "");
}

#[test]
fn copies_out_of_every_block_size_equal_their_source() {
    let fill = "mkdir -p a/b; for i in $(seq 200); do echo $i > a/file$i; done; ln -s file1 a/link
        head -c 3000000 /dev/urandom > a/b/large; truncate -s 50M sparse; chmod 640 a/file7
        printf x | dd of=sparse bs=1 seek=30M conv=notrunc 2>/dev/null; chown 12:34 a/file8
        touch -d '2001-02-03 04:05:06' a/file9; setfattr -n user.x -v y a/file10; : > empty";
    for (format, block_size) in [
        ("ext2", 1024),
        ("ext3", 2048),
        ("ext4", 8192),
        ("ext4", 16384),
        ("ext4", 32768),
        ("ext4", 65536),
    ] {
        let image = Image::from_script(format, block_size, fill);
        let out = image.beside("out").display().to_string();
        run_ok(&["cp", "-a", &image.at("/"), &out]);
        let facts = "find . -path ./lost+found -prune -o \\( -type d -printf '%P %M %U %G\\n' \\) \
            -o -printf '%P %M %U %G %s %Ts %l\\n' | sort; getfattr -Rd .";
        let script = format!(
            "diff -r --no-dereference -x lost+found source out
            cd out; ({facts}) > ../out.facts; cd ../source; ({facts}) > ../source.facts; cd ..
            cmp source.facts out.facts; [ $(du -k out/sparse | cut -f1) -lt 200 ]"
        );
        shell(image.folder.path(), &script);
    }
}

fn leftovers(folder: &Path) -> String {
    shell(folder, "find . -name '.bifolio-*'")
}

#[test]
fn destinations_have_the_meaning_of_cp() {
    let image = Image::from_script(
        "ext4",
        1024,
        "mkdir -p dir/sub; echo file > dir/file; echo other > dir/sub/other; ln -s file dir/link",
    );
    let out = image.beside("out");
    must(fs::create_dir(&out), "out");
    let path = |name: &str| out.join(name).display().to_string();
    let exists = |name: &str| out.join(name).exists();
    let out_path = out.display().to_string();

    run_ok(&["cp", &image.at("/dir/file"), &out_path]);
    assert!(exists("file"));
    run_ok(&["cp", &image.at("/dir/file"), &path("renamed")]);
    assert_eq!(must(fs::read(out.join("renamed")), "renamed"), b"file\n");
    run_ok(&["cp", &image.at("/dir/link"), &path("followed")]);
    assert!(out.join("followed").is_file() && !out.join("followed").is_symlink());
    run_ok(&["cp", "-r", &image.at("/dir"), &out_path]);
    assert!(exists("dir/sub/other") && out.join("dir/link").is_symlink());
    run_ok(&["cp", "-r", &image.at("/dir"), &path("new")]);
    assert!(exists("new/sub/other"));
    run_ok(&["cp", "-r", &image.at("/dir"), &path("new")]);
    assert!(exists("new/dir/sub/other"));
    run_ok(&["cp", "-rT", &image.at("/dir/sub"), &path("new")]);
    assert!(exists("new/other"));
    run_ok(&["cp", "-r", &image.at("/dir/sub/."), &path("contents")]);
    assert!(exists("contents/other"));
    must(fs::create_dir(out.join("several")), "several");
    run_ok(&["cp", &image.at("/dir/file"), &image.at("/dir/sub/other"), &path("several")]);
    assert!(exists("several/file") && exists("several/other"));

    let left_out = run_with_status(&["cp", &image.at("/dir"), &path("nothing")], 1);
    assert!(left_out.text().contains("`cp -r` and `cp -a` copy it"), "{}", left_out.text());
    assert!(!exists("nothing"));
    run_with_status(&["cp", &image.at("/dir/file"), &image.at("/dir"), &path("missing")], 1);
    run_ok(&["cp", &image.at("/dir/file"), &image.at("/dir/new")]);
    assert_eq!(run_ok(&["cat", &image.at("/dir/new")]), "file\n");
    run_with_status(&["cp", &image.at("/dir/file"), &path("no/such/folder")], 1);
    run_with_status(&["cp", &image.at("/none"), &out_path], 1);
}

#[test]
fn a_plain_copy_applies_the_umask_and_drops_set_id_bits() {
    let image =
        Image::from_script("ext4", 1024, "echo x > file; chmod 6777 file; mkdir -m 2777 dir");
    let out = image.beside("out").display().to_string();
    let script = format!(
        "umask 027; {} cp -r {} {out}",
        bifolio().get_program().to_string_lossy(),
        image.at("/")
    );
    shell(image.folder.path(), &script);
    let mode = |name: &str| {
        must(fs::metadata(image.beside("out").join(name)), name).permissions().mode() & 0o7777
    };
    assert_eq!((mode("file"), mode("dir")), (0o750, 0o750));
}

#[test]
fn hard_links_of_all_types_stay_hard_links() {
    private_mounts();
    let image = Image::by_kernel(
        "mkdir a b; head -c 3000000 /dev/urandom > a/one; ln a/one b/two; ln a/one three
         mkfifo a/pipe; ln a/pipe b/pipe; ln -s x a/link; ln a/link b/link",
    );
    let out = image.beside("out");
    run_ok(&["cp", "-a", "-j", "3", &image.at("/"), &out.display().to_string()]);
    let too_many = ["cp", "-a", "-j", "4294967296", &image.at("/"), &out.display().to_string()];
    run_with_status(&too_many, 2);
    let inode = |name: &str| must(fs::symlink_metadata(out.join(name)), name).ino();
    assert_eq!(inode("a/one"), inode("b/two"));
    assert_eq!(inode("a/one"), inode("three"));
    assert_eq!(inode("a/pipe"), inode("b/pipe"));
    assert_eq!(inode("a/link"), inode("b/link"));
    assert!(must(fs::metadata(out.join("a/pipe")), "pipe").file_type().is_fifo());
    shell(image.folder.path(), "cmp out/a/one out/three");
    // Without -a, they are separate files.
    run_ok(&["cp", "-r", &image.at("/"), &image.beside("apart").display().to_string()]);
    assert_eq!(must(fs::metadata(image.beside("apart").join("three")), "three").nlink(), 1);
}

#[test]
fn copies_do_not_inherit_acls_of_the_destination() {
    let image =
        Image::from_script("ext4", 1024, "mkdir dir; echo x > dir/file; chmod 640 dir/file");
    let out = image.beside("out");
    must(fs::create_dir(&out), "out");
    shell(&out, "setfacl -d -m u:77:rwx .");
    run_ok(&["cp", "-a", &image.at("/dir"), &out.display().to_string()]);
    let lists = shell(&out, "getfacl -cp dir dir/file");
    assert!(!lists.contains("77"), "{lists}");
    let mode = must(fs::metadata(out.join("dir/file")), "file").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o640);
}

#[test]
fn symbolic_links_in_the_destination_are_not_followed() {
    let image =
        Image::from_script("ext4", 1024, "mkdir dir; echo evil > dir/file; echo evil > top");
    let (out, outside) = (image.beside("out"), image.beside("outside"));
    for folder in [&out, &outside] {
        must(fs::create_dir(folder), folder.display());
    }
    shell(
        image.folder.path(),
        "echo good > outside/top; ln -s ../outside out/dir; ln -s ../outside/top out/top",
    );
    let result = run_with_status(&["cp", "-a", &image.at("/"), &out.display().to_string()], 1);
    assert!(result.text().contains("/dir: cannot create the copy"), "{}", result.text());
    assert_eq!(must(fs::read_to_string(outside.join("top")), "top"), "good\n");
    assert!(!outside.join("file").exists());
    // A symbolic link with the name of a copied file is replaced, as any other file.
    assert_eq!(must(fs::read_to_string(out.join("top")), "top"), "evil\n");
    assert!(!out.join("top").is_symlink());
}

#[test]
fn names_that_are_paths_are_refused_and_other_files_are_copied() {
    let image = Image::from_script(
        "ext4",
        1024,
        "mkdir slash dots after; echo x > slash/aXXbXXetc; echo x > after/good
         mkdir dots/XX; echo x > dots/XX/inner; echo y > dots/good",
    );
    // The image has no checksums, because they would not match the changed names.
    shell(
        image.folder.path(),
        r"tune2fs -O ^metadata_csum image >/dev/null 2>&1
          e2fsck -fy image >/dev/null 2>&1 || true
          sed -i 's/aXXbXXetc/..\/b\/.etc/g; s/\x02\x02XX/\x02\x02../g' image",
    );
    let out = image.beside("out");
    let result = run_with_status(&["cp", "-a", &image.at("/"), &out.display().to_string()], 1);
    assert!(result.text().contains("/slash: corrupt directory entry"), "{}", result.text());
    assert!(out.join("dots/good").exists() && out.join("after/good").exists());
    let elsewhere = shell(image.folder.path(), "find . -name .etc -o -name inner");
    assert_eq!(elsewhere, "./source/dots/XX/inner\n");
}

#[test]
fn files_that_do_not_fit_are_reported_and_removed() {
    private_mounts();
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir d; head -c 20000000 /dev/urandom > d/large; echo small > d/small",
    );
    let small = image.beside("small.img");
    let mut recipe = Mke2fs::new("ext4", 4096);
    recipe.size = 8 << 20;
    recipe.make(&small, None);
    let small = LoopMount::new(&small, "ext4", "rw");
    let into = small.path().display().to_string();
    let result = run_with_status(&["cp", "-a", &image.at("/d"), &into], 1);
    assert!(result.text().contains("/d/large: cannot write the copy: No space left"));
    assert!(result.text().contains("free space at the destination"), "{}", result.text());
    assert!(small.path().join("d/small").exists() && !small.path().join("d/large").exists());
    assert_eq!(leftovers(small.path()), "");
}

#[test]
fn users_other_than_root_get_warnings_for_privileged_attributes() {
    let image = Image::from_script(
        "ext4",
        1024,
        "mkdir dir; echo x > dir/file; chown 12:34 dir/file; chmod 4755 dir/file
         mknod null c 1 3; setfattr -n trusted.x -v y dir; setfattr -n user.x -v y dir; mkfifo pipe",
    );
    let out = image.beside("out");
    must(fs::create_dir(&out), "out");
    // The program may be in a directory that only root can enter.
    let program = image.beside("bifolio");
    must(fs::copy(bifolio().get_program(), &program), "copying the program");
    shell(image.folder.path(), "chmod 755 . bifolio; chmod 644 image; chown 65534:65534 out");
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&program);
    let result = output(command.args([
        "cp",
        "-a",
        "--privileged",
        &image.at("/"),
        &out.display().to_string(),
    ]));
    let text = result.text();
    assert_eq!(result.status.code(), Some(1), "{text}");
    let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap_or_default();
    for warning in ["owners of", "trusted.*", "set-user-ID"] {
        assert!(line(warning).contains("warning: "), "{warning}: {text}");
    }
    // The user has asked for it.
    let device = line("null: character special file was not copied: ");
    assert!(!device.is_empty() && !device.contains("warning: "), "{text}");
    let file = must(fs::metadata(out.join("dir/file")), "file");
    assert_eq!((file.uid(), file.permissions().mode() & 0o7777), (65534, 0o755));
    assert!(!out.join("null").exists() && out.join("pipe").exists());
    assert!(shell(&out, "getfattr -n user.x dir").contains("user.x=\"y\""));
}

#[test]
fn root_without_capabilities_over_files_of_others_preserves_what_it_can() {
    let image = Image::from_script(
        "ext4",
        1024,
        "mkdir dir; echo x > dir/file; setfattr -n user.x -v y dir/file dir
         setfacl -m u:7:r dir/file; chown 12:34 dir/file dir; chmod 1750 dir
         setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 dir/file; chmod 2640 dir/file; touch -d '2001-02-03 04:05:06.7' dir/file dir",
    );
    let facts = "stat -c '%n %U %G %a %y' dir dir/file; getfattr -d -m - -e hex dir dir/file";
    let out = image.beside("out");
    must(fs::create_dir(&out), "out");
    run_ok(&["cp", "-a", "--privileged", &image.at("/dir"), &out.display().to_string()]);
    let expected = shell(&out, facts);
    for fact in ["user.x", "security.capability", "posix_acl_access", "2640", "1750"] {
        assert!(expected.contains(fact), "{fact}: {expected}");
    }
    let check = |without: &str, expected: &str, status: i32, messages: &[&str]| {
        let into = image.beside(without);
        must(fs::create_dir(&into), "a folder");
        let mut command = std::process::Command::new("setpriv");
        command.args([&format!("--bounding-set={without}"), "--"]).arg(bifolio().get_program());
        command.args(["cp", "-a", "--privileged", &image.at("/dir")]).arg(&into);
        let copied = output(&mut command);
        let text = copied.text();
        assert_eq!(shell(&into, facts), expected, "{without}: {text}");
        assert_eq!(copied.status.code(), Some(status), "{without}: {text}");
        assert_eq!(text.lines().count(), messages.len(), "{without}: {text}");
        for message in messages {
            assert!(text.contains(message), "{without}: {message}: {text}");
        }
    };
    check("-dac_override,-dac_read_search", &expected, 0, &[]);
    // Only the owner can set the bit, and a change of the owner removes it.
    let without_bit = expected.replace(" 2640 ", " 640 ");
    let bits = "set-group-ID bits of 1 file were not preserved";
    check("-dac_override,-fowner", &without_bit, 0, &[bits]);
    let messages = [bits, "capabilities of 1 file were not"];
    let is_kept = |line: &&str| !line.starts_with("security.capability=");
    let without_both: Vec<_> = without_bit.lines().filter(is_kept).collect();
    check("-fsetid,-setfcap", &format!("{}\n", without_both.join("\n")), 0, &messages);
}

#[test]
fn an_interrupted_copy_leaves_no_partial_files() {
    let image = Image::from_script(
        "ext4",
        4096,
        "for i in $(seq 12); do head -c 3000000 /dev/urandom > file$i; done",
    );
    let out = image.beside("out");
    let mut interrupted = 0;
    for files in (0..12).chain(0..12) {
        let mut child = must(
            bifolio().args(["cp", "-a", "-j", "2", &image.at("/")]).arg(&out).spawn(),
            "bifolio cp",
        );
        // Some files are complete or being written.
        wait_until("files in the copy", || {
            let found = fs::read_dir(&out).map_or(0, Iterator::count);
            found > files || must(child.try_wait(), "wait").is_some()
        });
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::INT,
        );
        let status = must(child.wait(), "wait");
        // The signal can arrive before the handler is installed, during the copy, or after it.
        let early = std::os::unix::process::ExitStatusExt::signal(&status) == Some(2);
        assert!(early || matches!(status.code(), Some(0 | 130)), "{status:?}");
        interrupted += u32::from(status.code() == Some(130));
        if out.exists() {
            shell(
                image.folder.path(),
                "for f in out/*; do [ -f \"$f\" ] || continue; cmp \"$f\" source/\"${f#out/}\"; done",
            );
            if !early {
                assert_eq!(leftovers(&out), "");
            }
            must(fs::remove_dir_all(&out), "out");
        }
        if interrupted == 3 {
            break;
        }
    }
    assert!(interrupted > 0, "no copy was interrupted in time");
}

#[test]
fn a_copy_does_not_replace_the_source_image() {
    let image = Image::from_script("ext4", 1024, "echo x > image; mkdir d; echo y > d/file");
    let (path, folder) = (image.path.display().to_string(), image.folder.path().display());
    let before = must(fs::read(&image.path), "the image");
    for destination in [&path, &folder.to_string()] {
        let result = run_with_status(&["cp", &image.at("/image"), destination], 2);
        assert!(result.text().contains("is the source image"), "{}", result.text());
    }
    run_with_status(&["cp", &image.at("/d/file"), &path], 2);
    run_with_status(&["cp", "-r", "-T", &image.at("/d"), &path], 2);
    // The same for one of several files, with a name from the image.
    let result = run_with_status(&["cp", "-r", &image.at("/"), &folder.to_string()], 1);
    assert!(result.text().contains("would replace the source image"), "{}", result.text());
    assert!(image.beside("d/file").exists());
    assert!(must(fs::read(&image.path), "the image") == before, "the image changed");
    run_ok(&["cp", &image.at("/d/file"), &format!("{folder}/file")]);
}

#[test]
fn deep_trees_are_copied() {
    private_mounts();
    let image = Image::by_kernel(
        "p=.; for i in $(seq 1200); do p=$p/d; done; mkdir -p $p; echo deep > $p/file",
    );
    let out = image.beside("out").display().to_string();
    run_ok(&["cp", "-a", &image.at("/"), &out]);
    assert_eq!(shell(image.folder.path(), "find out -name file | xargs cat"), "deep\n");
    assert_eq!(shell(image.folder.path(), "find out -type d -name d | wc -l").trim(), "1200");
}

#[test]
fn sources_of_one_command_are_linked_and_do_not_replace_each_other() {
    let image = Image::from_script(
        "ext4",
        4096,
        "mkdir a b; echo a > a/file; ln a/file a/hard; ln a/file b/link; echo b > b/file",
    );
    let out = image.beside("out");
    must(fs::create_dir(&out), "the directory");
    let into = out.display().to_string();
    run_ok(&["cp", "-a", &image.at("/a/file"), &image.at("/a/hard"), &image.at("/b/link"), &into]);
    let inode = |name: &str| must(fs::metadata(out.join(name)), name).ino();
    assert!(inode("file") == inode("hard") && inode("file") == inode("link"));
    shell(&out, "rm *");
    let refused = run_with_status(&["cp", &image.at("/a/file"), &image.at("/b/file"), &into], 1);
    assert!(refused.text().contains("was just copied"), "{}", refused.text());
    assert_eq!(must(fs::read(out.join("file")), "the copy"), b"a\n");
    run_ok(&["cp", "-r", &image.at("/a"), &image.at("/b"), &into]);
}

#[test]
fn special_files_are_not_replaced_and_a_link_as_the_destination_is_followed() {
    let image = Image::from_script("ext4", 4096, "echo new > file; mkdir tree; echo x > tree/pipe");
    let folder = image.folder.path();
    shell(
        folder,
        "mkfifo pipe; mknod null c 1 3; mkdir out; mkfifo out/pipe; echo old > old; ln -s old link
        ln -s nowhere dangling; ln -s pipe to-pipe",
    );
    let beside = |name: &str| image.beside(name).display().to_string();
    for name in ["pipe", "null", "to-pipe", "dangling", "missing/"] {
        run_with_status(&["cp", &image.at("/file"), &beside(name)], 1);
    }
    run_with_status(&["cp", "-r", &image.at("/tree/."), &beside("out")], 1);
    run_ok(&["cp", &image.at("/file"), &beside("link")]);
    let found =
        shell(folder, "stat -c '%n %F' pipe null out/pipe link missing dangling 2>&1 || cat old");
    let expected = "pipe fifo\nnull character special file\nout/pipe fifo\nlink symbolic link\n";
    assert!(
        found.starts_with(expected) && found.ends_with("dangling symbolic link\nnew\n"),
        "{found}"
    );
    assert!(found.contains("missing"), "{found}");
}

#[test]
fn a_copy_without_its_access_control_list_gives_a_group_no_more_rights() {
    let image = Image::from_script("ext4", 1024, "echo x > file; chmod 640 file");
    let list = "0x0200000001000600ffffffff02000700e803000004000400ffffffff10000700ffffffff20000000ffffffff";
    run_ok(&["setfattr", "-n", "system.posix_acl_access", "-v", list, &image.at("/file")]);
    let out = image.beside("out").display().to_string();
    // The user 1000 of the list does not exist in the namespace.
    let mut call = std::process::Command::new("unshare");
    call.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_bifolio"), "cp", "-a"]);
    let printed = output(call.args([&image.at("/file"), &out]));
    let text = printed.text();
    assert!(text.contains("attributes system.* of 1 file were not preserved"), "{text}");
    assert!(printed.status.success(), "{text}");
    assert_eq!(shell(image.folder.path(), "stat -c %a out"), "640\n");
}

#[test]
fn an_attribute_that_is_too_large_for_the_host_is_named() {
    private_mounts();
    let image = Image::empty();
    let mut recipe = Mke2fs::new("ext4", 65536);
    recipe.size = 256 << 20;
    recipe.make(&image.path, None);
    run_ok(&["touch", &image.at("/file")]);
    run_ok(&["setfattr", "-n", "user.big", "-v", &"v".repeat(6000), &image.at("/file")]);
    let host = Image::by_kernel("");
    let mount = LoopMount::new(&host.path, "ext4", "rw");
    let copy = mount.path().join("copy").display().to_string();
    let text = run_with_status(&["cp", "-a", &image.at("/file"), &copy], 1).text();
    assert!(text.contains("attributes user.big of 1 file were not preserved"), "{text}");
    assert!(
        text.contains("they are larger than the file system") && !text.contains("free space"),
        "{text}"
    );
    assert!(Path::new(&copy).exists());
}
