//! Comparison of the consistency check with e2fsck: clean volumes of all kinds have no findings,
//! and on damaged volumes the check has findings if e2fsck has.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base::Error;
use common::{Image, Scratch, number_after, open, open_device_for_writing, run};
use testkit::{LoopMount, Random, private_mounts};

/// Returns the findings of the check as text.
fn findings(bytes: Vec<u8>) -> Vec<String> {
    let volume = match open(bytes) {
        Ok(volume) => volume,
        Err(error) => return vec![error.to_string()],
    };
    let mut findings = Vec::new();
    let summary = volume.check(&mut |error: Error| {
        findings.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert!(summary.is_complete);
    assert_eq!(summary.findings, findings.len() as u64);
    findings
}

/// Returns the output of `e2fsck -fn`; `None` if it finds nothing.
fn e2fsck(path: &Path) -> Option<String> {
    let output = Command::new("e2fsck")
        .args(["-fn"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .expect("e2fsck must be installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code() != Some(0)).then_some(text)
}

/// Creates a tree with names of all lengths, links, sparse and fragmented files.
fn tree(scratch: &Scratch) -> std::path::PathBuf {
    let tree = scratch.path("tree");
    for folder in ["", "few", "few/deep", "few/deep/deeper", "many", "empty"] {
        std::fs::create_dir(tree.join(folder)).unwrap();
    }
    for n in 0..600 {
        std::fs::write(tree.join(format!("many/{n}{}", "-".repeat(n % 100))), b"").unwrap();
    }
    for (name, size) in [("tiny", 20), ("small", 130), ("page", 4096), ("large", 700_001)] {
        let data: Vec<u8> = (0..size).map(|n: u32| (n / 3) as u8).collect();
        std::fs::write(tree.join("few").join(name), data).unwrap();
    }
    std::fs::hard_link(tree.join("few/tiny"), tree.join("few/deep/same")).unwrap();
    let sparse = std::fs::File::create(tree.join("few/sparse")).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"end", 3_000_000).unwrap();
    for length in [1, 59, 60, 200, 900] {
        let target = "t".repeat(length);
        std::os::unix::fs::symlink(target, tree.join(format!("few/link{length}"))).unwrap();
    }
    tree
}

/// Checks that neither e2fsck nor the check has findings.
#[track_caller]
fn check_clean(image: &Image, what: &str) {
    assert_eq!(e2fsck(&image.path), None, "{what}");
    assert_eq!(findings(image.bytes()), Vec::<String>::new(), "{what}");
}

/// Lets e2fsck repair the image.
fn repair(image: &Image, how: &str) {
    let output = Command::new("e2fsck").arg(how).arg(&image.path).output().unwrap();
    assert!(output.status.code().unwrap() <= 1, "{output:?}");
}

#[test]
fn volumes_of_mke2fs_have_no_findings() {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    for (megabytes, options) in [
        (16, "-t ext2"),
        (16, "-t ext2 -r 0"),
        (16, "-t ext2 -b 1024 -O ^sparse_super,^filetype,^dir_index,^resize_inode"),
        (32, "-t ext3 -b 1024"),
        (32, "-t ext3 -b 2048 -I 128"),
        (64, "-t ext4"),
        (64, "-t ext4 -b 1024"),
        (64, "-t ext4 -b 1024 -g 1024 -N 4096"),
        (64, "-t ext4 -b 65536"),
        (64, "-t ext4 -b 8192 -O inline_data,ea_inode"),
        (64, "-t ext4 -O ^metadata_csum,uninit_bg"),
        (64, "-t ext4 -O ^metadata_csum,^uninit_bg,^flex_bg"),
        (64, "-t ext4 -O metadata_csum_seed,orphan_file,inline_data"),
        (64, "-t ext4 -O bigalloc -C 16384"),
        (64, "-t ext4 -b 1024 -O bigalloc -C 8192"),
        (64, "-t ext4 -O bigalloc,inline_data,ea_inode -C 65536"),
        (64, "-t ext4 -b 1024 -O meta_bg,^resize_inode"),
        (64, "-t ext4 -b 1024 -O meta_bg,^resize_inode,^64bit -g 256"),
        (64, "-t ext4 -O sparse_super2,^has_journal"),
        (64, "-t ext4 -O sparse_super2,^resize_inode -g 2048"),
        (64, "-t ext4 -O quota,project -E quotatype=usrquota:grpquota:prjquota"),
        (64, "-t ext4 -O mmp,large_dir,casefold,encrypt,verity"),
        (64, "-t ext4 -O ^resize_inode -I 1024 -i 4096"),
        (64, "-t ext4 -G 4 -g 1024 -N 2048"),
        (64, "-t ext4 -b 1024 -E resize=500000"),
    ] {
        let mut all: Vec<&str> = options.split(' ').collect();
        all.extend(["-d", tree.to_str().unwrap()]);
        let image = Image::make(megabytes, &all);
        if options.contains("quota") {
            // mke2fs does not count the files that it copies.
            repair(&image, "-fy");
        }
        check_clean(&image, options);
    }
}

#[test]
fn features_that_only_the_first_superblock_has_are_no_findings() {
    let image = Image::make(32, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    image.debugfs_write("feature ea_inode large_dir inline_data\n");
    check_clean(&image, "more features");
}

#[test]
fn indexes_of_e2fsck_have_no_findings() {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    for options in [
        "-t ext3 -b 1024",
        "-t ext4 -b 1024",
        "-t ext4 -O ^metadata_csum,^flex_bg",
        "-t ext4 -b 65536",
        "-t ext4 -O casefold",
    ] {
        for algorithm in ["legacy", "half_md4", "tea"] {
            let mut all: Vec<&str> = options.split(' ').collect();
            all.extend(["-d", tree.to_str().unwrap()]);
            let image = Image::make(64, &all);
            let hash = format!("hash_alg={algorithm}");
            run(Command::new("tune2fs").args(["-E", &hash]).arg(&image.path));
            repair(&image, "-fyD");
            check_clean(&image, &format!("{options} {algorithm}"));
        }
    }
}

/// Runs a script that creates, grows, shrinks, punches and removes files, and sets attributes.
fn churn(folder: &Path) {
    let script = r#"
        set -e
        cd "$1"
        mkdir -p a/b/c many
        for n in $(seq 1 1200); do : > "many/$n-with-a-name-that-takes-some-room-in-its-block"; done
        for n in $(seq 1 3 1200); do rm "many/$n-with-a-name-that-takes-some-room-in-its-block"; done
        for n in $(seq 1 40); do
            dd if=/dev/urandom of=a/f$n bs=7000 count=$n status=none
            setfattr -n user.small -v "value $n" a/f$n
            setfattr -n user.middle -v "$(printf '%0500d' $n)" a/f$n
            ln a/f$n a/b/l$n
            ln -s ../f$n a/b/s$n
        done
        for n in $(seq 2 2 40); do rm a/f$n; done
        for n in $(seq 1 4 40); do truncate -s 5000 a/f$n; done
        fallocate -l 3M a/prealloc 2>/dev/null || true
        fallocate -n -l 1M -o 5M a/prealloc 2>/dev/null || true
        for n in $(seq 0 30); do fallocate -p -o $((n * 65536)) -l 16384 a/prealloc 2>/dev/null || true; done
        mkfifo a/fifo; mknod a/device c 5 1; mknod a/block b 8 300
        ln -s "$(printf '%0300d' 1)" a/long
        setfacl -m u:1000:rwx,d:g:77:r-x a/b 2>/dev/null || true
        mv a/b a/c; mkdir a/b a/gone; rmdir a/gone
        truncate -s 40M a/sparse; dd if=/dev/urandom of=a/sparse bs=4096 seek=9000 count=3 conv=notrunc status=none
        sync
    "#;
    run(Command::new("sh").args(["-c", script, "sh"]).arg(folder));
}

#[test]
fn volumes_that_the_kernel_has_changed_have_no_findings() {
    private_mounts();
    for options in [
        "-t ext2 -b 1024",
        "-t ext3 -b 1024",
        "-t ext4",
        "-t ext4 -b 1024 -O inline_data,ea_inode -I 256",
        "-t ext4 -b 2048 -O ^metadata_csum,uninit_bg",
        "-t ext4 -O bigalloc -C 16384",
        "-t ext4 -O metadata_csum_seed,orphan_file,inline_data,ea_inode",
        "-t ext4 -O large_dir,verity -b 1024",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode",
    ] {
        let image = Image::make(96, &options.split(' ').collect::<Vec<_>>());
        let mount = LoopMount::new(&image.path, "ext4", "user_xattr,acl");
        churn(mount.path());
        if options.contains("ea_inode") {
            let value = image.scratch.write("value", &[b'v'; 40_000]);
            let script = format!(
                "for f in f1 f3 f5; do setfattr -n user.big -v \"$(cat {})\" {}/a/$f; done",
                value.display(),
                mount.path().display()
            );
            run(Command::new("sh").args(["-c", &script]));
        }
        mount.unmount();
        check_clean(&image, options);
    }
}

/// Creates an image to be damaged, with a file for each kind of structure.
fn damageable(options: &str) -> Image {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    let mut all: Vec<&str> = options.split(' ').collect();
    all.extend(["-d", tree.to_str().unwrap()]);
    let image = Image::make(20, &all);
    let value = scratch.path("value");
    std::fs::write(&value, [b'v'; 700]).unwrap();
    image.debugfs_write(&format!(
        "ea_set few/large user.small one\nea_set -f {} few/large user.middle\n\
         ea_set few/page user.small two\nmkdir loop\nmkdir loop/inner\n",
        value.display()
    ));
    repair(&image, "-fyD");
    assert_eq!(e2fsck(&image.path), None);
    image
}

/// Damages copies of the image. If e2fsck has findings, the check must have some, too.
#[expect(clippy::print_stdout, reason = "shown when the test fails")]
fn check_damage(image: &Image, damages: &[&str]) {
    let bytes = image.bytes();
    let (mut missed, mut found) = (Vec::new(), 0);
    for damage in damages {
        std::fs::write(&image.path, &bytes).unwrap();
        let commands = damage.replace(';', "\n") + "\n";
        image.debugfs_write(&commands);
        let (theirs, ours) = (e2fsck(&image.path), findings(image.bytes()));
        match (theirs, ours.is_empty()) {
            (Some(theirs), true) => missed.push(format!("{damage}: missed {theirs}")),
            (None, false) => println!("{damage}: more than e2fsck finds: {ours:?}"),
            (theirs, _) => found += usize::from(theirs.is_some()),
        }
    }
    std::fs::write(&image.path, &bytes).unwrap();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    // Some commands damage nothing on some volumes.
    assert!(found > damages.len() * 3 / 4, "only {found} of {} are damages", damages.len());
}

const DAMAGES: &[&str] = &[
    // Inodes.
    "sif few/tiny links_count 5",
    "sif few/tiny links_count 1",
    "sif few/tiny links_count 0",
    "sif few/tiny mode 0",
    "sif few/tiny mode 0010644",
    "sif few/tiny mode 0040755",
    "sif few/tiny mode 0120777",
    "sif few mode 0100644",
    "sif few/link60 mode 0100644",
    "sif few/large size 1000",
    "sif few/large size 900000000",
    "sif few/large size 99999999999999",
    "sif few size 5000",
    "sif few size 0",
    "sif few/link60 size 3",
    "sif few/link200 size 100",
    "sif few/link1 size 0",
    "sif few/large blocks 2",
    "sif few blocks 0",
    "sif few/tiny dtime 20200101",
    "sif few/large dtime 5",
    "sif few/tiny flags 0x1000",
    "sif few flags 0",
    "sif many flags 0",
    "sif few/large flags 0",
    "sif few/large flags 0x10080000",
    "sif few/tiny flags 0x280000",
    "sif few/tiny file_acl 3",
    "sif few/tiny file_acl 99999999",
    "clri few/tiny",
    "clri few",
    "clri <2>",
    "clri <7>",
    "clri <8>",
    "clri <11>",
    "freei few/tiny",
    "seti <3000>",
    "kill_file few/large",
    "kill_file few",
    // Names.
    "unlink few/tiny",
    "unlink few/large",
    "unlink few/link60",
    "unlink few/deep",
    "unlink few",
    "unlink lost+found",
    "ln few/tiny few/again",
    "ln few/deep few/again",
    "ln few/deep empty/again",
    "ln <2> empty/root",
    "ln <8> empty/journal",
    "ln <1> empty/bad",
    "ln <3000> empty/unused",
    "unlink loop;ln <LOOP> <INNER>/x",
    // Blocks.
    "freeb 2000 30",
    "setb 9000",
    "setb 9000 100",
    "freeb BLOCK",
    "sif few/large block[0] 0",
    "sif few/large block[1] 99999",
    "sif few/large block[5] 77",
    "sif few/large block[8] 70",
    "sif few/page block[5] 99999999",
    "sif few/page block[5] BLOCK",
    "sif few/page block[0] BLOCK",
    "sif few/page block[12] 99999999",
    "sif few/page block[12] BLOCK",
    "punch few/large 1 2",
    "punch many 1 2",
    // Counts.
    "ssv free_blocks_count 5",
    "ssv free_inodes_count 5",
    "ssv last_orphan 12",
    "ssv last_orphan 3000",
    "ssv r_blocks_count 99999999",
    "ssv rev_level 2",
    "ssv rev_level 0x40000001",
    "feature ^has_journal;ssv journal_inum 0;ssv journal_uuid 5b8a2f0e-1d3c-4e5f-8a9b-0c1d2e3f4a5b",
    "feature orphan_file",
    "feature mmp",
    "feature casefold;ssv encoding 0",
    "feature casefold;ssv encoding 2",
    "sif <7> size 0",
    "set_bg 0 free_blocks_count 5",
    "set_bg 0 free_inodes_count 5",
    "set_bg 0 used_dirs_count 55",
    "set_bg 0 itable_unused 5",
    "set_bg 0 flags 7",
    "set_bg 0 flags 1",
    "set_bg 1 flags 0",
    "set_bg 0 block_bitmap 99",
    "set_bg 0 inode_bitmap 99",
    "set_bg 0 inode_table 99",
    "set_bg 0 inode_table 99999999",
    "set_bg 0 checksum 5;dirty",
    // Special inodes.
    "sif <8> size 0",
    "sif <8> mode 0040755",
    "sif <8> links_count 0",
    "sif <8> block[3] 0",
    "sif <7> block[DIND] 0",
    "sif <7> block[0] 77",
    "sif <7> blocks 1",
    "sif <7> mode 0040755",
    "sif <2> mode 0100644",
    "sif <2> links_count 1",
    // Directory blocks.
    "zap_block -f few -o 0 -l 1 -p 5 0",
    "zap_block -f few -o 4 -l 2 -p 0 0",
    "zap_block -f few -o 8 -l 1 -p 65 0",
    "zap_block -f few -o 12 -l 1 -p 3 0",
    "zap_block -f few -o 20 -l 1 -p 65 0",
    "zap_block -f few -o 24 -l 1 -p 2 0",
    "zap_block -f few -o 24 -l 1 -p 8 0",
    "zap_block -f few -o 24 -l 4 -p 255 0",
    "zap_block -f few -o 28 -l 1 -p 255 0",
    "zap_block -f few -o 30 -l 1 -p 200 0",
    "zap_block -f few -o 31 -l 1 -p 4 0",
    "zap_block -f few -o 32 -l 1 -p 47 0",
    "zap_block -f few -o 32 -l 1 -p 0 0",
    "zap_block -f few -p 0 0",
    "zap_block -f few -p 255 0",
    // Indexes.
    "zap_block -f many -o 24 -l 1 -p 1 0",
    "zap_block -f many -o 28 -l 1 -p 9 0",
    "zap_block -f many -o 29 -l 1 -p 9 0",
    "zap_block -f many -o 30 -l 1 -p 5 0",
    "zap_block -f many -o 32 -l 1 -p 5 0",
    "zap_block -f many -o 34 -l 1 -p 0 0",
    "zap_block -f many -o 34 -l 1 -p 3 0",
    "zap_block -f many -o 36 -l 1 -p 2 0",
    "zap_block -f many -o 36 -l 1 -p 250 0",
    "zap_block -f many -o 40 -l 4 -p 255 0",
    "zap_block -f many -o 40 -l 4 -p 0 0",
    "zap_block -f many -o 44 -l 1 -p 1 0",
    "zap_block -f many -o 8 -l 1 -p 126 1",
    "zap_block -f many -o 8 -l 1 -p 126 2",
    "zap_block -f many -p 0 3",
    // Inline directories, on volumes that have them.
    "sif empty block[0] 99",
    "sif empty block[0] 0",
    "sif few/deep block[0] 99999999",
    "sif few/deep block[1] 77",
    "sif few/deep block[2] 7",
    "sif few/deep size 61",
    "sif few/small size 5000",
    "sif few/link60 flags 0",
    // Attributes.
    "zap_block -o 0 -l 1 -p 1 ACL",
    "zap_block -o 4 -l 1 -p 7 ACL",
    "zap_block -o 8 -l 1 -p 7 ACL",
    "zap_block -o 32 -l 1 -p 200 ACL",
    "zap_block -o 34 -l 2 -p 255 ACL",
    "zap_block -o 34 -l 2 -p 0 ACL",
    "zap_block -o 36 -l 4 -p 7 ACL",
    "zap_block -o 40 -l 4 -p 255 ACL",
    "zap_block -o 44 -l 4 -p 255 ACL",
    "zap_block -o 48 -l 1 -p 65 ACL",
    "zap_block -o 900 -l 9 -p 65 ACL",
    "zap_block -p 0 ACL",
    "sif few/page file_acl ACL",
    "sif few/page file_acl ACL;sif few/page blocks 2",
    // Bitmaps.
    "zap_block -o 0 -l 9 -p 0 BBM",
    "zap_block -o 40 -l 9 -p 255 BBM",
    "zap_block -o 1020 -l 4 -p 0 BBM",
    "zap_block -o 0 -l 9 -p 0 IBM",
    "zap_block -o 40 -l 9 -p 255 IBM",
    "zap_block -o 1020 -l 4 -p 0 IBM",
    // Features.
    "sif few/large size 3000000000;feature -large_file",
    // The journal.
    "zap_block -f <8> -o 0 -l 4 -p 0 0",
    "zap_block -f <8> -o 12 -l 4 -p 0 0",
    "zap_block -f <8> -o 16 -l 4 -p 255 0",
];

fn damage_all(options: &str) {
    let image = damageable(options);
    let number = |path: &str| {
        let text = image.debugfs(&format!("stat {path}"));
        let text = text.split("Inode: ").nth(1).unwrap();
        text.split_whitespace().next().unwrap().to_owned()
    };
    let blocks = image.debugfs("blocks few/large");
    let block = blocks.split_whitespace().nth(1).unwrap_or("3000");
    let (outer, inner) = (number("loop"), number("loop/inner"));
    let stat = image.debugfs("stat few/large");
    let acl = stat.split("File ACL: ").nth(1).unwrap().split_whitespace().next().unwrap();
    let groups = image.dumpe2fs(&[]);
    let after = |what: &str| number_after(&groups, what).unwrap().to_string();
    let (block_bitmap, inode_bitmap) = (after("Block bitmap at"), after("Inode bitmap at"));
    let damages: Vec<String> = DAMAGES
        .iter()
        .map(|damage| {
            [
                ("BLOCK", block),
                ("LOOP", &outer),
                ("INNER", &inner),
                ("ACL", acl),
                ("BBM", &block_bitmap),
                ("IBM", &inode_bitmap),
            ]
            .into_iter()
            .fold((*damage).to_owned(), |damage, (name, value)| damage.replace(name, value))
        })
        .collect();
    check_damage(&image, &damages.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn damage_to_checksummed_volumes_is_found() {
    damage_all("-t ext4 -b 1024 -O ^inline_data");
}

#[test]
fn damage_to_volumes_with_block_maps_is_found() {
    damage_all("-t ext3 -b 1024 -I 128");
}

#[test]
fn damage_to_volumes_without_checksums_is_found() {
    damage_all("-t ext4 -O ^metadata_csum,^uninit_bg,inline_data,ea_inode,orphan_file");
}

#[test]
fn damage_to_volumes_with_clusters_is_found() {
    damage_all("-t ext4 -b 1024 -O bigalloc,^metadata_csum -C 4096");
}

/// Flips bits of pointers in the blocks of the resize inode, also behind those in use.
#[test]
fn damage_to_the_resize_inode_is_found() {
    for (options, block_size) in [
        ("-t ext2 -b 1024 -O ^dir_index", 1024),
        ("-t ext4 -b 1024 -g 1024", 1024),
        ("-t ext4 -b 4096 -g 1024", 4096),
    ] {
        let image = Image::make(20, &options.split(' ').collect::<Vec<_>>());
        let blocks = image.debugfs("blocks <7>");
        // The block of the second level, and blocks of the first.
        let blocks: Vec<usize> =
            blocks.split_whitespace().take(3).map(|number| number.parse().unwrap()).collect();
        let (bytes, mut found) = (image.bytes(), 0);
        for (index, slot) in (0..block_size / 4).step_by(block_size / 64).enumerate() {
            let at = blocks[index % blocks.len()] * block_size + 4 * slot;
            let mut damaged = bytes.clone();
            damaged[at + index % 4] ^= 1 << (index % 8);
            std::fs::write(&image.path, &damaged).unwrap();
            let theirs = e2fsck(&image.path);
            let ours = findings(damaged);
            assert!(theirs.is_none() || !ours.is_empty(), "{options}: {at}: missed {theirs:?}");
            found += usize::from(theirs.is_some());
        }
        assert!(found > 4, "{options}: only {found}");
    }
}

#[test]
fn damage_to_extent_trees_is_found() {
    private_mounts();
    let image = Image::make(96, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let mount = LoopMount::new(&image.path, "ext4", "user_xattr,acl");
    churn(mount.path());
    mount.unmount();
    let tree = image.debugfs("ex -n a/prealloc");
    // A line has "level/levels entry/entries first - last block length". The first node below the
    // root is chosen.
    let node = tree.lines().find(|line| line.contains(" 0/ ")).unwrap();
    let node = node.split_whitespace().nth(7).unwrap();
    let other = image.debugfs("blocks a/f1");
    let other: u32 = other.split_whitespace().next().unwrap().parse().unwrap();
    let [low, high, ..] = other.to_le_bytes();
    let damages: Vec<String> = [
        "zap_block -o 0 -l 1 -p 1 NODE",
        "zap_block -o 2 -l 1 -p 0 NODE",
        "zap_block -o 2 -l 2 -p 255 NODE",
        "zap_block -o 4 -l 1 -p 255 NODE",
        "zap_block -o 4 -l 2 -p 255 NODE",
        "zap_block -o 6 -l 1 -p 1 NODE",
        "zap_block -o 12 -l 1 -p 3 NODE",
        "zap_block -o 12 -l 4 -p 255 NODE",
        "zap_block -o 16 -l 2 -p 0 NODE",
        "zap_block -o 16 -l 2 -p 127 NODE",
        "zap_block -o 18 -l 2 -p 255 NODE",
        "zap_block -o 20 -l 4 -p 255 NODE",
        "zap_block -o 20 -l 1 -p LOW NODE;zap_block -o 21 -l 1 -p HIGH NODE",
        "zap_block -o 24 -l 4 -p 0 NODE",
        "zap_block -p 0 NODE",
        "sif a/prealloc block[4] 99999999",
        "sif a/prealloc block[4] OTHER",
        "sif a/prealloc block[0] 0xF30B",
        "sif a/prealloc block[1] 3",
        "sif a/prealloc block[1] 0x60004",
        "sif a/f1 block[4] NODE",
        "sif a/f1 block[5] NODE",
        "freeb NODE",
    ]
    .into_iter()
    .map(|damage| {
        [("NODE", node), ("LOW", &low.to_string()), ("HIGH", &high.to_string())]
            .into_iter()
            .chain([("OTHER", other.to_string().as_str())])
            .fold(damage.to_owned(), |damage, (name, value)| damage.replace(name, value))
    })
    .collect();
    check_damage(&image, &damages.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn damage_to_attribute_inodes_and_the_orphan_file_is_found() {
    let options = ["-t", "ext4", "-O", "ea_inode,orphan_file"];
    let image = Image::make(32, &options);
    let value = image.scratch.write("value", &[b'v'; 4096]);
    let file = image.scratch.write("file", b"data");
    image.debugfs_write(&format!(
        "write {0} file\nea_set -f {1} file user.big\nwrite {0} other\n",
        file.display(),
        value.display()
    ));
    repair(&image, "-fy");
    check_clean(&image, "an attribute in an inode");
    let orphans = number_after(&image.dumpe2fs(&["-h"]), "Orphan file inode:").unwrap().to_string();
    let holder = (12..40)
        .find(|inode| image.debugfs(&format!("stat <{inode}>")).contains("Flags: 0x280000"))
        .unwrap();
    let damages: Vec<String> = [
        "sif <HOLDER> version 7",
        "sif <HOLDER> ctime 5",
        "sif <HOLDER> atime 5",
        "sif <HOLDER> size 4000",
        "sif <HOLDER> flags 0x80000",
        "sif <HOLDER> mode 0040755",
        "sif <HOLDER> links_count 0",
        "clri <HOLDER>",
        "ln <HOLDER> name",
        "ea_rm other user.none;ea_set other user.x y;ea_rm file user.big",
        "unlink file",
        "clri file;unlink file",
        "sif <ORPHANS> mode 0040755",
        "sif <ORPHANS> links_count 0",
        "ln <ORPHANS> name",
        "zap_block -f <ORPHANS> -o 0 -l 1 -p 12 0",
        "zap_block -f <ORPHANS> -o 4088 -l 1 -p 0 0",
        "zap_block -f <ORPHANS> -o 4092 -l 1 -p 0 1",
        "clri <ORPHANS>",
    ]
    .into_iter()
    .map(|damage| damage.replace("HOLDER", &holder.to_string()).replace("ORPHANS", &orphans))
    .collect();
    check_damage(&image, &damages.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn the_check_of_a_damaged_volume_ends_soon() {
    for (options, first_seed) in [
        ("-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg", 1),
        ("-t ext4 -O ^metadata_csum,^uninit_bg,inline_data,ea_inode -I 512", 1000),
        ("-t ext3 -b 1024 -I 128", 2000),
        ("-t ext4 -b 1024 -O bigalloc,^metadata_csum -C 4096", 3000),
        ("-t ext4", 4000),
    ] {
        let image = damageable(options);
        let bytes = image.bytes();
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        for seed in first_seed..first_seed + 40_u64 {
            // Structures are at the start. Bytes that are zero there are seldom read.
            let mut random = Random(seed);
            let mut random = move |below: usize| random.below(below as u64) as usize;
            let mut damaged = bytes.clone();
            for _ in 0..1 << random(9) {
                let at = 2048 + random(used.min(3 << 20));
                let length = 1 << random(6);
                let value = [0, 0xFF, random(256) as u8][random(3)];
                for byte in damaged.iter_mut().skip(at).take(length).filter(|byte| **byte != 0) {
                    *byte = value;
                }
            }
            let start = Instant::now();
            findings(damaged);
            let took = start.elapsed();
            assert!(took < Duration::from_secs(20), "{options}, seed {seed}: {took:?}");
        }
    }
}

/// Fields of the superblock that contradict the features, or name inodes with another use.
#[test]
fn contradictions_in_the_superblock_are_found() {
    // If the second part is true, the kernel does not mount the volume, so that it is not opened
    // for writing either.
    const UUID: &str = "ssv journal_uuid 11111111-1111-1111-1111-111111111111";
    for (options, damages) in [
        (
            "-t ext4 -b 1024 -O orphan_file -J size=1",
            &[
                ("ssv log_cluster_size 2", true),
                ("ssv journal_inum 7", true),
                ("ssv journal_inum 12", true),
                ("ssv journal_inum 9", true),
                (UUID, false),
                ("ssv usr_quota_inum 2", false),
                ("ssv grp_quota_inum 2", false),
                ("ssv prj_quota_inum 2", false),
                ("ssv prj_quota_inum 7", false),
            ][..],
        ),
        (
            "-t ext4 -b 1024 -J size=1",
            &[("ssv orphan_file_inum 7", false), ("ssv journal_inum 100", false)],
        ),
        ("-t ext2", &[("feature needs_recovery", false)]),
    ] {
        let image = Image::make(16, &options.split(' ').collect::<Vec<_>>());
        let bytes = image.bytes();
        assert!(findings(bytes.clone()).is_empty(), "{options}");
        for (damage, is_refused) in damages {
            std::fs::write(&image.path, &bytes).unwrap();
            image.debugfs_write(&format!("{damage}\n"));
            assert!(e2fsck(&image.path).is_some(), "{options}: {damage}");
            assert!(!findings(image.bytes()).is_empty(), "{options}: {damage}");
            if *is_refused {
                let opened = open_device_for_writing(image.device(false));
                assert!(matches!(opened, Err(Error::Corrupt(_))), "{options}: {damage}");
            }
        }
    }
}
