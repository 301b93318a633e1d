//! Small valid ext4 images, and random damage to their bytes. [`Specimen`] damages fields, and
//! mends checksums. Not here: the use of the damaged images.

use std::path::Path;
use std::process::Command;

use crate::host::command::run;
use crate::{Mke2fs, Random, must};

mod counts;
pub mod fields;
mod finish;
mod kept;
mod places;
mod specimen;
mod subject;
mod tiny;
pub mod written;

pub use counts::Counts;
pub use places::{Place, Shape};
pub use specimen::{Specimen, other_value};
pub use subject::{Damage, Damageable, Subject};
pub use tiny::{tiny, tiny_kinds};

/// A kind of small image.
#[derive(Clone, Copy, Debug)]
pub struct SmallKind {
    format: &'static str,
    block_size: u32,
    /// Arguments of mke2fs.
    arguments: &'static str,
    /// A change of the image after it was filled.
    finish: fn(&Path),
}

const fn kind(format: &'static str, block_size: u32, arguments: &'static str) -> SmallKind {
    SmallKind { format, block_size, arguments, finish: |_| () }
}

/// The kinds of small images. Together they have all structures that a walk can visit. Most have no
/// metadata checksums, since a wrong checksum would hide other damage.
pub const KINDS: &[SmallKind] = &[
    kind("ext2", 1024, ""),
    kind("ext3", 1024, "-O ^dir_index -J size=1"),
    kind("ext4", 1024, "-O ^metadata_csum,^64bit,inline_data -I 256 -J size=1"),
    kind("ext4", 1024, "-O metadata_csum,metadata_csum_seed,64bit -J size=1"),
    kind("ext4", 4096, "-O ^metadata_csum,uninit_bg,ea_inode,large_dir -J size=4"),
    kind("ext4", 4096, "-O ^metadata_csum,bigalloc,^has_journal -C 16384"),
    kind("ext4", 2048, "-O ^metadata_csum,meta_bg,^resize_inode,sparse_super2 -J size=2"),
    kind("ext4", 65_536, "-O ^metadata_csum,^has_journal"),
    kind("ext4", 1024, "-O ^metadata_csum,^64bit,fast_commit -J size=2"),
    kind("ext4", 1024, "-O ^metadata_csum,mmp -J size=1"),
    SmallKind {
        finish: finish::with_orphans,
        ..kind("ext4", 1024, "-O ^metadata_csum,orphan_file -J size=1")
    },
    SmallKind {
        finish: finish::with_deep_index,
        ..kind("ext4", 1024, "-O ^metadata_csum,large_dir,^has_journal")
    },
];

/// Creates the small image of a kind in `folder` and returns its contents.
pub fn small_image(folder: &Path, kind: SmallKind) -> Vec<u8> {
    let SmallKind { format, block_size, arguments, finish } = kind;
    let source = folder.join("source");
    if !source.exists() {
        small_tree(&source);
    }
    let image = folder.join("image");
    // 64 KiB blocks need room for their larger tables.
    let size = if block_size > 4096 { 16 << 20 } else { 6 << 20 };
    let options = Mke2fs { format, block_size, size, arguments: format!("{arguments} -N 1024") };
    options.make(&image, Some(&source));
    // Adds hashed directories, which mke2fs does not create.
    let _ = crate::host::command::output(Command::new("e2fsck").args(["-fyD"]).arg(&image));
    finish(&image);
    must(std::fs::read(&image), image.display())
}

/// Creates a small tree with many names, nested folders, links, attributes and holes.
fn small_tree(top: &Path) {
    let write = |path: &Path, bytes: &[u8]| must(std::fs::write(path, bytes), path.display());
    let many = top.join("many");
    must(std::fs::create_dir_all(&many), many.display());
    for index in 0..300 {
        write(&many.join(format!("a-name-of-some-length-{index:05}")), b"");
    }
    let mut deep = top.to_path_buf();
    for level in 0..8 {
        deep.push(format!("level{level}"));
        must(std::fs::create_dir(&deep), deep.display());
        write(&deep.join("data"), &vec![level; 3000 * usize::from(level)]);
    }
    write(&top.join("tiny"), b"inline");
    write(&top.join("large"), &vec![7; 700_000]);
    // Has so many extents that the map does not fit into the inode.
    let holes = must(std::fs::File::create(top.join("holes")), "holes");
    for index in 0..60 {
        let at = index * 128 * 1024;
        must(std::os::unix::fs::FileExt::write_all_at(&holes, b"data", at), "holes");
    }
    must(std::os::unix::fs::symlink("level0/data", top.join("short")), "short");
    must(std::os::unix::fs::symlink("./".repeat(60) + "tiny", top.join("long")), "long");
    must(std::fs::hard_link(top.join("tiny"), top.join("twin")), "twin");
    let tiny = top.join("tiny");
    run(Command::new("setfattr").args(["-n", "user.small", "-v", "value"]).arg(&tiny));
    let large = "v".repeat(900);
    run(Command::new("setfattr").args(["-n", "user.large", "-v", &large]).arg(&tiny));
    run(Command::new("setfacl").args(["-m", "u:12:rw,g:34:r"]).arg(top.join("large")));
}

/// Damages `image` by one to sixteen small changes that `seed` chooses, most of them in blocks in
/// use.
pub fn damage(image: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for _ in 0..=random.below(16) {
        let at = offset_in_use(image, &mut random);
        let length = image.len();
        match random.below(6) {
            0 => image[at] ^= 1 << random.below(8),
            1 => {
                let at = at & !3;
                let value = interesting(&mut random);
                image[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            2 => {
                let at = at & !1;
                let value = interesting(&mut random) as u16;
                image[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
            3 => {
                let block = at & !1023;
                image[block..block + 1024].fill_with(|| random.draw() as u8);
            }
            4 => {
                let from = offset_in_use(image, &mut random) & !1023;
                image.copy_within(from..from + 1024, at & !1023);
            }
            _ => {
                let count = 1 + random.below(64) as usize;
                image[at..length.min(at + count)].fill(0);
            }
        }
    }
}

/// Chooses the offset of a byte in a kilobyte whose bytes are not all equal, if a few attempts find
/// one. Unused blocks are all zeroes, and the data of the tree's files is uniform.
fn offset_in_use(image: &[u8], random: &mut Random) -> usize {
    let mut at = 0;
    for _ in 0..1024 {
        at = random.below(image.len() as u64) as usize;
        let block = at & !1023;
        if image[block..block + 1024].iter().any(|&byte| byte != image[block]) {
            break;
        }
    }
    at
}

fn interesting(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => 0,
        1 => u32::MAX,
        2 => i32::MAX as u32,
        3 => 1 << random.below(32),
        4 => (1 << random.below(32)) - 1,
        5 => random.below(64) as u32,
        6 => random.below(8192) as u32,
        _ => random.draw() as u32,
    }
}
