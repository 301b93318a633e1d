//! Volumes with encrypted files that the kernel wrote: with the key, and without it.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use device::OpenDevice;
use fscrypt::Keys;
use testkit::{LoopMount, Manifest, Mke2fs, encryption, private_mounts};
use vfs::{Volume, VolumeOptions};

/// Number of names in a directory, enough for an index.
const NAMES: usize = 400;

/// Fills an encrypted folder with files, links, a hole, and a folder with an index.
fn fill(folder: &Path) {
    for length in [0, 1, 4095, 4096, 100_000] {
        let data: Vec<u8> = (0..length).map(|at| (at / 9) as u8).collect();
        fs::write(folder.join(format!("file {length}")), data).expect("a file");
    }
    let sparse = File::create(folder.join("sparse")).expect("a file");
    sparse.set_len(1 << 20).expect("a hole");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 500_000).expect("data");
    for length in [1, 40, 1000] {
        symlink("t".repeat(length), folder.join(format!("link {length}"))).expect("a link");
    }
    let many = folder.join("many");
    fs::create_dir(&many).expect("a folder");
    for number in 0..NAMES {
        // Some names without the key have a hash for their end.
        let name = format!("{number} {}", "n".repeat(number % 250));
        File::create(many.join(name)).expect("a file");
    }
}

fn open(image: &Path, keys: Keys) -> Volume {
    let device = device::open(image, OpenDevice::default()).expect("an image");
    let options = VolumeOptions { keys: Arc::new(keys), ..VolumeOptions::default() };
    Volume::open_device(device, &options).expect("a volume")
}

#[test]
fn the_kernel_s_encrypted_trees_are_read_with_keys_and_shown_without() {
    private_mounts();
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    let mke2fs = Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) };
    mke2fs.with("-O encrypt,stable_inodes").make(&image, None);

    let mount = LoopMount::new(&image, "ext4", "");
    encryption::add_master_keys(mount.path());
    for (name, policy) in encryption::policies() {
        let folder = mount.path().join(name);
        fs::create_dir(&folder).expect("a folder");
        let file = File::open(&folder).expect("a folder");
        encryption::set_encryption_policy(file, &policy).expect(name);
        fill(&folder);
    }
    mount.unmount();

    for has_key in [true, false] {
        let mount = LoopMount::new(&image, "ext4", "ro");
        let mut keys = Keys::default();
        if has_key {
            encryption::add_master_keys(mount.path());
            keys = encryption::master_keys();
        }
        let by_kernel = Manifest::of_host(mount.path());
        mount.unmount();
        let by_library = Manifest::of_volume(&open(&image, keys));
        by_library.assert_equal("the library", &by_kernel, "the kernel");
        // Of some thousand names, those of folders and the sizes of files are known in any case.
        assert_eq!(by_kernel.fact("v2/file 4095", "size").is_some(), has_key);
        assert!(by_kernel.count("contents", |_| true) > 0 || !has_key);
    }
}
