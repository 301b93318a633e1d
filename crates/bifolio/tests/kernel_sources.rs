//! Images of all block sizes that `mke2fs -d` fills from a folder: their contents equal the folder.

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::tree::Source;
use testkit::{LoopMount, Manifest, Mke2fs, must};

fn main() {
    let arguments = Arguments::from_args();
    let formats = [("ext4", ""), ("ext2", ""), ("ext4", "-O inline_data"), ("ext4", "-I 128")];
    let trials = formats.into_iter().flat_map(|(format, options)| {
        [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536].map(|block_size| {
            let name = format!("{format}{}", options.replace(['-', ' '], "_"));
            Trial::test(format!("{name}_{block_size}_equals_its_source"), move || {
                check(format, options, block_size);
                Ok(())
            })
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn check(format: &'static str, options: &str, block_size: u32) {
    testkit::private_mounts();
    let folder = must(TempDir::new(), "a folder");
    let source = Source::new(folder.path(), block_size);
    let image = folder.path().join("image");
    Mke2fs::new(format, block_size).with(options).make(&image, Some(&source.path()));
    let ours = Manifest::of_image(&image);
    let expected = copied_facts(Manifest::of_host(&source.path()));
    assert!(expected.len() > 1000, "only {} names", expected.len());
    copied_facts(ours.clone()).assert_equal("bifolio", &expected, "the source");

    if block_size <= 4096 {
        let mount = LoopMount::new(&image, "ext4", "ro");
        ours.assert_equal("bifolio", &Manifest::of_host(mount.path()), "the kernel");
    }
}

/// Returns the facts that `mke2fs -d` copies.
fn copied_facts(manifest: Manifest) -> Manifest {
    // mke2fs drops a hole at the end of a file if it first stored the data inline.
    let manifest = manifest.without_tree("lost+found").without_tree("sparse/hole-last");
    manifest.without_tree("(volume)").map(|name, mode, fact, value| {
        let [directory, symlink] = ["04", "12"].map(|kind| mode.starts_with(kind));
        match fact {
            "mode" | "owner" | "contents" | "target" | "device" => Some(value),
            "size" if !directory => Some(value),
            // mke2fs creates an inode for each name of a symbolic link, and lost+found in the root
            // directory.
            "links" if !symlink && name != "." => Some(value),
            // Older versions store whole seconds in 32 bits. The root directory is modified last.
            "modified" if !name.starts_with("times/") && name != "." => value.split(' ').next(),
            _ if fact.starts_with("xattr ") => Some(value),
            _ => None,
        }
        .map(str::to_owned)
    })
}
