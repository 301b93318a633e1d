//! Encrypted trees that the kernel wrote, against the decryption of what is on the device.
//! Not here: modes that not all kernels have.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use base::{BlockSize, FileOffset, InodeNumber};
use fscrypt::{Context, Keys, Names, NoKeyName, Owner, Policy, stored_target};
use support::RawVolume;
use testkit::{LoopMount, Mke2fs, encryption, private_mounts};

const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";
const BLOCK: BlockSize = BlockSize::from_shift(12).unwrap();

/// Lengths of names on both sides of the limits of padding and of names without the key.
const NAME_LENGTHS: [usize; 9] = [1, 15, 16, 17, 100, 149, 150, 200, 255];

/// A tree of one directory under a policy: names and contents of files, names and targets of
/// symbolic links.
struct Tree {
    policy: Policy,
    folder: &'static str,
    files: BTreeMap<String, Vec<u8>>,
    links: BTreeMap<String, String>,
}

impl Tree {
    fn new(folder: &'static str, policy: Policy) -> Self {
        let name = |letter: &str, length: usize| letter.repeat(length);
        let data = |length: usize| (0..length).map(|at| (at / 7) as u8).collect();
        let files = NAME_LENGTHS.iter().map(|&length| (name("f", length), data(length * 97)));
        let links = [1, 14, 40, 58, 61, 500, 4000].map(|length| {
            let target = name("t/", length / 2) + &name("u", length % 2);
            (format!("link {length}"), target)
        });
        Self { policy, folder, files: files.collect(), links: links.into() }
    }

    /// Has the kernel write the tree.
    fn write(&self, top: &Path) {
        let folder = top.join(self.folder);
        fs::create_dir(&folder).expect("a folder");
        encryption::set_encryption_policy(File::open(&folder).expect("a folder"), &self.policy)
            .unwrap_or_else(|error| panic!("{}: {error}", self.folder));
        for (name, data) in &self.files {
            fs::write(folder.join(name), data)
                .unwrap_or_else(|error| panic!("{}: {name}: {error}", self.folder));
        }
        for (name, target) in &self.links {
            symlink(target, folder.join(name)).expect("a link");
        }
    }

    /// Checks that the decrypted names, contents and targets on the device are those of the tree,
    /// and that the kernel's names without the key, which are in `shown`, are those of the stored
    /// names.
    fn check(&self, volume: &RawVolume, keys: &Keys, shown: &Shown) {
        let context_of = |number: u64| {
            let stored = Context { policy: self.policy, nonce: [0; 16] }.to_bytes();
            let context = volume.find(number, &stored[..stored.len() - 16], stored.len());
            let context = Context::parse(&context, InodeNumber(number)).expect("a context");
            assert_eq!(context.policy, self.policy);
            context
        };
        let owner = |number: u64| Owner {
            inode: InodeNumber(number),
            uuid: core::array::from_fn(|at| at as u8 * 0x11),
            block_size: BLOCK,
        };
        let names_of = |number: u64| -> Names {
            let names = keys.names(&context_of(number), &owner(number));
            names.expect("supported").expect("a key")
        };

        let names = names_of(shown.folder);
        let mut found = 0;
        for (number, stored) in volume.entries(shown.folder) {
            let name = String::from_utf8(names.decrypt(&stored).expect("a name")).expect("text");
            assert_eq!(names.encrypt(name.as_bytes()), Ok(stored.clone()));
            let no_key = &shown.names[&number];
            let decoded = NoKeyName::decode(no_key.as_bytes()).expect("a name without the key");
            assert!(decoded.matches(&stored), "{name}");
            assert_eq!(&NoKeyName::new(decoded.dirhash(), &stored).encode(), no_key);
            if let Some(target) = self.links.get(&name) {
                let stored = volume.target(number);
                assert_eq!(names_of(number).decrypt_target(&stored), Ok(target.clone().into()));
                let encrypted = names_of(number).encrypt_target(target.as_bytes(), 4095);
                assert_eq!(encrypted, Ok(stored.clone()));
                let stored = stored_target(&stored, InodeNumber(number)).expect("a target");
                assert_eq!(NoKeyName::new([0; 2], stored).encode(), shown.targets[&number]);
            } else {
                let contents = keys.contents(&context_of(number), &owner(number));
                let contents = contents.expect("supported").expect("a key");
                let mut data = volume.blocks(number);
                let encrypted = data.clone();
                contents.decrypt(FileOffset(0), &mut data).expect("a short file");
                let expected = &self.files[&name];
                assert_eq!(&data[..expected.len()], expected, "{name}");
                assert!(data[expected.len()..].iter().all(|&byte| byte == 0), "{name}");
                contents.encrypt(FileOffset(0), &mut data).expect("a short file");
                assert_eq!(data, encrypted);
            }
            found += 1;
        }
        assert_eq!(found, self.files.len() + self.links.len(), "{}", self.folder);
    }
}

/// What the kernel shows of a tree without the key, by inode numbers.
struct Shown {
    folder: u64,
    names: BTreeMap<u64, String>,
    targets: BTreeMap<u64, String>,
}

impl Shown {
    fn new(folder: &Path) -> Self {
        let mut shown = Self {
            folder: fs::metadata(folder).expect("a folder").ino(),
            names: BTreeMap::new(),
            targets: BTreeMap::new(),
        };
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("found again");
            let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
            shown.names.insert(metadata.ino(), name);
            if metadata.is_symlink() {
                let target = fs::read_link(&path).expect("a target");
                let target = target.to_str().expect("text").to_owned();
                shown.targets.insert(metadata.ino(), target);
            }
        }
        shown
    }
}

#[test]
fn the_kernel_s_files_are_decrypted_under_all_policies_with_xts() {
    private_mounts();
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    let mke2fs = Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) };
    mke2fs.with("-O encrypt,stable_inodes -U").with(UUID).make(&image, None);

    let policies = encryption::policies();
    let trees = policies.into_iter().map(|(folder, policy)| Tree::new(folder, policy));
    let trees: Vec<Tree> = trees.collect();
    let mount = LoopMount::new(&image, "ext4", "");
    // The kernel finds the keys of policies by identifiers of its own.
    encryption::add_master_keys(mount.path());
    for tree in &trees {
        tree.write(mount.path());
    }
    mount.unmount();

    let mount = LoopMount::new(&image, "ext4", "ro");
    let shown: Vec<Shown> =
        trees.iter().map(|tree| Shown::new(&mount.path().join(tree.folder))).collect();
    mount.unmount();

    let (volume, keys) = (RawVolume::new(&image), encryption::master_keys());
    for (tree, shown) in trees.iter().zip(&shown) {
        tree.check(&volume, &keys, shown);
    }
}
