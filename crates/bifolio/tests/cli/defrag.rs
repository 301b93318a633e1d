//! `bifolio defrag`, checked by e2fsck, and by the contents and extents that the kernel shows.

use std::fs;
use std::path::Path;

use crate::support::{Image, run_ok, run_with_status, shell};
use testkit::{LoopMount, private_mounts};

/// Creates files that grow in turns: ordinary files, a sparse file, and files that cannot be moved.
const SCRIPT: &str = "
mkdir -p d/e
grow() { dd if=/dev/urandom of=$1 bs=4k count=1 seek=$2 conv=notrunc oflag=direct status=none; }
for i in $(seq 0 60); do
    for name in a d/b d/e/c fixed swap; do grow $name $i; done
    grow sparse $((i * 5))
done
echo tail >> a
fallocate -l 64K new
ln -s a link
mkswap -q swap 2> mkswap.log
seq 1000 > whole
";

fn sums(folder: &Path) -> String {
    shell(
        folder,
        "find . -type f | sort | xargs -d '\\n' sha256sum; find . | sort | xargs stat -c '%n %s %Y %Z %i'",
    )
}

fn extents(folder: &Path, name: &str) -> u64 {
    let text = shell(folder, &format!("filefrag {name}"));
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn fragmented_files_become_contiguous_and_keep_their_contents() {
    private_mounts();
    let image = Image::by_kernel(SCRIPT);
    let mount = LoopMount::new(&image.path, "ext4", "");
    shell(mount.path(), "chattr +i fixed");
    let before = sums(mount.path());
    let moved = ["a", "d/b", "d/e/c", "sparse"];
    let kept = ["fixed", "swap"];
    let pieces: Vec<u64> =
        moved.iter().chain(&kept).map(|name| extents(mount.path(), name)).collect();
    assert!(pieces.iter().all(|&count| count > 10), "{pieces:?}");
    mount.unmount();

    let bytes = fs::read(&image.path).unwrap();
    let said = run_ok(&["defrag", "-nv", &image.at("/")]);
    assert!(fs::read(&image.path).unwrap() == bytes, "the dry run changed the image");
    assert!(said.contains("/fixed: skipped: ") && said.contains("/swap: skipped: "), "{said}");
    let directory = run_ok(&["defrag", &image.at("/d")]);
    assert_eq!(directory.lines().count(), 3, "{directory}");
    let said = run_ok(&["defrag", "-v", image.path.to_str().unwrap()]);
    for (name, why) in [("fixed", "immutable"), ("swap", "swap area")] {
        let line = said.lines().find(|line| line.contains(&format!("/{name}: skipped")));
        assert!(line.is_some_and(|line| line.contains(why)), "{said}");
    }
    assert!(said.lines().last().unwrap().contains(" 2 moved, 2 skipped"), "{said}");
    // Data with holes in between counts as one piece. How many pieces there were depends on the
    // kernel.
    let sparse = said.lines().find(|line| line.contains("/sparse: "));
    assert!(
        sparse.is_some_and(|line| line.ends_with(" pieces, score 98 -> 1 piece, score 0")),
        "{said}"
    );
    image.check_by_e2fsck();

    let mount = LoopMount::new(&image.path, "ext4", "ro");
    assert_eq!(sums(mount.path()), before);
    for name in ["a", "d/b", "d/e/c"] {
        assert_eq!(extents(mount.path(), name), 1, "{name}");
    }
    for (name, before) in kept.iter().zip(&pieces[4..]) {
        assert_eq!(extents(mount.path(), name), *before, "{name}");
    }
    mount.unmount();
    // A second run moves nothing.
    let said = run_ok(&["defrag", &image.at("/a"), &image.at("/link")]);
    assert!(
        said.starts_with("2 files examined, 0 moved, 0 skipped: 2 pieces before, 2 after\n"),
        "{said}"
    );
    run_with_status(&["defrag", &image.at("/none")], 1);
}

#[test]
fn files_with_block_maps_are_skipped_with_a_reason() {
    let script = "seq 20000 > file";
    for (format, reason) in [("ext3", "block maps"), ("ext2", "block maps")] {
        let image = Image::from_script(format, 1024, script);
        let said = run_ok(&["defrag", "-v", &image.at("/file")]);
        assert!(said.contains("skipped: ") && said.contains(reason), "{said}");
        image.check_by_e2fsck();
    }
}

#[test]
fn a_full_image_loses_nothing() {
    private_mounts();
    let image = Image::by_kernel(SCRIPT);
    let mount = LoopMount::new(&image.path, "ext4", "");
    // Leaves only a few free blocks.
    shell(
        mount.path(),
        "for size in 32M 8M 1M 64K 4K; do while fallocate -l $size f$RANDOM$RANDOM 2>/dev/null; do :; done; done; true",
    );
    let before = sums(mount.path());
    mount.unmount();
    let said = run_ok(&["defrag", "-v", &image.at("/a")]);
    assert!(said.contains("skipped: "), "{said}");
    image.check_by_e2fsck();
    let mount = LoopMount::new(&image.path, "ext4", "ro");
    assert_eq!(sums(mount.path()), before);
    mount.unmount();
}
