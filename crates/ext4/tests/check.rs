//! The check against e2fsck: nothing on clean volumes of every shape, something wherever e2fsck
//! finds something.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};

use base::Error;
use common::{Image, Scratch, open};
use testkit::{LoopMount, private_mounts};

/// What the check finds, as text.
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

/// What `e2fsck -fn` says, unless it finds nothing.
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

/// A tree with something of everything: names of all lengths, links, sparse and fragmented files.
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

/// Nothing is wrong with the image, for e2fsck and for us.
#[track_caller]
fn check_clean(image: &Image, what: &str) {
    assert_eq!(e2fsck(&image.path), None, "{what}");
    assert_eq!(findings(image.bytes()), Vec::<String>::new(), "{what}");
}

/// Lets e2fsck change what it wants to.
fn repair(image: &Image, how: &str) {
    let output = Command::new("e2fsck").arg(how).arg(&image.path).output().unwrap();
    assert!(output.status.code().unwrap() <= 1, "{output:?}");
}

#[test]
fn nothing_is_wrong_with_what_mke2fs_makes() {
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
            // mke2fs does not count what it copies.
            repair(&image, "-fy");
        }
        check_clean(&image, options);
    }
}

#[test]
fn nothing_is_wrong_with_the_indexes_that_e2fsck_makes() {
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
            common::run(Command::new("tune2fs").args(["-E", &hash]).arg(&image.path));
            repair(&image, "-fyD");
            check_clean(&image, &format!("{options} {algorithm}"));
        }
    }
}

/// What keeps a kernel busy: files that grow, shrink, get holes and attributes, and go.
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
    common::run(Command::new("sh").args(["-c", script, "sh"]).arg(folder));
}

#[test]
fn nothing_is_wrong_with_what_the_kernel_writes() {
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
            common::run(Command::new("sh").args(["-c", &script]));
        }
        mount.unmount();
        check_clean(&image, options);
    }
}
