//! Volumes with encrypted files that the kernel wrote: with the key, and without it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Unsupported};
use device::OpenDevice;
use fscrypt::{Context, IvRule, KeyId, Keys, Mode, Policy};
use testkit::{
    LoopMount, Manifest, Mke2fs, add_encryption_key, private_mounts, set_encryption_policy,
};
use vfs::{Node, Volume, VolumeOptions};

const MASTER_KEY: [u8; 64] = *b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-";
const DESCRIPTOR: [u8; 8] = [0xd5; 8];

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

/// The names and targets that the kernel shows below a folder, by inode numbers.
fn shown_by_kernel(folder: &Path, shown: &mut BTreeMap<u64, (Vec<u8>, Vec<u8>)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let metadata = fs::symlink_metadata(&path).expect("found again");
        let mut target = Vec::new();
        if metadata.is_symlink() {
            let read = fs::read_link(&path).expect("a target");
            target = read.into_os_string().into_encoded_bytes();
        } else if metadata.is_dir() {
            shown_by_kernel(&path, shown);
        }
        let name = path.file_name().expect("a name").as_encoded_bytes().to_vec();
        shown.insert(metadata.ino(), (name, target));
    }
}

/// The names and targets that the library shows below a folder. Checks that lookups find the names, and that files
/// without the key cannot be read.
fn shown_by_library(
    volume: &Volume,
    folder: &Arc<Node>,
    shown: &mut BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
) {
    let mut entries = Vec::new();
    let mut emit = |entry: base::attributes::DirEntry<'_>| {
        entries.push((entry.name.to_vec(), entry.inode));
        ControlFlow::Continue(())
    };
    folder.read_dir(DirCursor::default(), &mut emit).expect("a folder");
    for (name, number) in entries {
        assert_eq!(folder.lookup(&name), Ok(number));
        if name == b"." || name == b".." {
            continue;
        }
        let node = volume.node(number).expect("an inode");
        let mut target = Vec::new();
        match node.kind() {
            FileType::Symlink => target = node.read_link().expect("a target"),
            FileType::Directory => shown_by_library(volume, &node, shown),
            _ if node.attributes().size == 0 => {}
            _ => {
                let read = node.open().and_then(|file| file.read_at(&mut [0; 10], 0));
                let refused = Unsupported::Encrypted(InodeNumber(number.0));
                assert_eq!(read, Err(Error::Unsupported(refused)));
            }
        }
        shown.insert(number.0, (name, target));
    }
}

fn open(image: &Path, keys: Keys) -> Volume {
    let device = device::open(image, OpenDevice::default()).expect("an image");
    let mut options = VolumeOptions::default();
    options.ext4.keys = Arc::new(keys);
    Volume::open_device(device, &options).expect("a volume")
}

#[test]
fn the_kernel_s_encrypted_trees_are_read_with_keys_and_shown_without() {
    private_mounts();
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    let mke2fs = Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) };
    mke2fs.with("-O encrypt,stable_inodes").make(&image, None);

    let mut keys = Keys::default();
    let identifier = keys.add(&MASTER_KEY).expect("a key");
    let descriptor = KeyId::Descriptor(DESCRIPTOR);
    keys.add_with_descriptor(DESCRIPTOR, &MASTER_KEY).expect("a key");
    let add_keys = |mount: &LoopMount| {
        let top = File::open(mount.path()).expect("a folder");
        add_encryption_key(&top, None, &MASTER_KEY).expect("encryption");
        add_encryption_key(&top, Some(DESCRIPTOR), &MASTER_KEY).expect("encryption");
    };

    let mount = LoopMount::new(&image, "ext4", "");
    add_keys(&mount);
    let mut folders = Vec::new();
    for (name, key, iv, name_padding) in [
        ("v1", descriptor, IvRule::PerFileKey, 4),
        ("v2", identifier, IvRule::PerFileKey, 32),
        ("lblk64", identifier, IvRule::InodeLblk64, 16),
        ("lblk32", identifier, IvRule::InodeLblk32, 8),
    ] {
        let (contents, names) = (Mode::Aes256Xts, Mode::Aes256Cts);
        let policy = Policy { key, contents, names, iv, name_padding, log2_data_unit_size: None };
        let mut policy = Context { policy, nonce: [0; 16] }.to_bytes();
        policy.truncate(policy.len() - 16);
        // The versions of policies are 0 and 2, those of contexts 1 and 2.
        policy[0] &= 2;
        let folder = mount.path().join(name);
        fs::create_dir(&folder).expect("a folder");
        set_encryption_policy(File::open(&folder).expect("a folder"), &policy).expect(name);
        fill(&folder);
        folders.push(name);
    }
    mount.unmount();

    let mount = LoopMount::new(&image, "ext4", "ro");
    add_keys(&mount);
    let by_kernel = Manifest::of_host(mount.path());
    mount.unmount();
    let by_library = Manifest::of_volume(&open(&image, keys));
    by_library.assert_equal("the library", &by_kernel, "the kernel");

    let mount = LoopMount::new(&image, "ext4", "ro");
    let volume = open(&image, Keys::default());
    let root = volume.root().expect("the root");
    for name in folders {
        let (mut by_kernel, mut by_library) = (BTreeMap::new(), BTreeMap::new());
        shown_by_kernel(&mount.path().join(name), &mut by_kernel);
        let number = root.lookup(name.as_bytes()).expect("a folder");
        let folder = volume.node(number).expect("an inode");
        shown_by_library(&volume, &folder, &mut by_library);
        assert_eq!(by_library, by_kernel, "{name}");
    }
    mount.unmount();
}
