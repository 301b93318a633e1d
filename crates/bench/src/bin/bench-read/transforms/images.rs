//! Images with files that are converted when they are read: encrypted, verified, compressed.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base::FileOffset;
use device::{MemoryDevice, SharedDevice};
use iomap::FiemapExtent;
use tempfile::TempDir;
use testkit::encryption::{add_master_keys, policies, set_encryption_policy};
use testkit::f2fs::Kind;
use testkit::guest::{self, Job, Task};
use testkit::turns::{Bytes, Step};
use testkit::{LoopMount, Mke2fs, command};
use vfs::{Follow, VolumeOptions};

use crate::case::Content;
use crate::image::{FILE_BYTES, name};

/// The alignment of a Merkle tree in a file (kernel documentation of ext4, "Verity files").
const TREE_ALIGNMENT: usize = 64 << 10;

/// The size of a block.
const BLOCK: usize = 4096;

/// The number of random bytes in each block of compressible data. The others are zeroes.
const RANDOM: usize = 1850;

/// Returns a device with an image that `make` creates in a folder on tmpfs.
fn device(make: impl FnOnce(&Path, &Path)) -> SharedDevice {
    let folder = TempDir::new_in("/dev/shm").expect("a folder on tmpfs");
    let image = folder.path().join("image");
    make(folder.path(), &image);
    Arc::new(MemoryDevice::new(std::fs::read(&image).expect("the image")))
}

fn mke2fs(feature: &str) -> Mke2fs {
    let options = Mke2fs { size: 2 * FILE_BYTES, ..Mke2fs::new("ext4", BLOCK as u32) };
    options.with(&format!("-O {feature}"))
}

/// Writes the whole file of data.
fn write(path: &Path, piece: &[u8]) {
    let mut file = File::create(path).expect("a file");
    for _ in 0..FILE_BYTES / piece.len() as u64 {
        file.write_all(piece).expect("room in the image");
    }
}

/// Returns a MiB of random bytes.
fn random() -> Vec<u8> {
    testkit::tree::contents(1, 1 << 20)
}

/// Returns a device with an ext4 volume, whose file of data is below a folder with an encryption
/// policy. AES-256-XTS encrypts its contents.
pub fn encrypted() -> SharedDevice {
    device(|_, image| {
        mke2fs("encrypt").make(image, None);
        let mount = LoopMount::new(image, "ext4", "rw");
        add_master_keys(mount.path());
        let (_, policy) = policies().into_iter().find(|(name, _)| *name == "v2").expect("a policy");
        let folder = mount.path().join(ENCRYPTED);
        std::fs::create_dir(&folder).expect("a folder");
        let opened = File::open(&folder).expect("a folder");
        set_encryption_policy(&opened, &policy).expect("encryption");
        drop(opened);
        write(&folder.join(name(Content::Data)), &random());
        mount.unmount();
    })
}

/// The encrypted folder.
pub const ENCRYPTED: &str = "encrypted";

/// Returns a device with an ext4 volume, whose file of data has a Merkle tree of SHA-256.
pub fn verified() -> SharedDevice {
    device(|folder, image| {
        let source = folder.join("source");
        std::fs::create_dir(&source).expect("a folder");
        let data = source.join(name(Content::Data));
        write(&data, &random());
        let [tree, descriptor] = ["tree", "descriptor"].map(|part| folder.join(part));
        let mut fsverity = Command::new("fsverity");
        fsverity.args(["digest", "--compact"]).arg(&data);
        fsverity.arg(format!("--out-merkle-tree={}", tree.display()));
        fsverity.arg(format!("--out-descriptor={}", descriptor.display()));
        command::run(&mut fsverity);
        let descriptor = std::fs::read(descriptor).expect("a descriptor");
        let mut past_end = std::fs::read(tree).expect("a tree");
        // The descriptor begins with a block, and its length is at the end of its last block.
        past_end.resize(past_end.len().next_multiple_of(BLOCK), 0);
        past_end.extend(&descriptor);
        past_end.resize((past_end.len() + 4).next_multiple_of(BLOCK) - 4, 0);
        past_end.extend((descriptor.len() as u32).to_le_bytes());
        assert!(FILE_BYTES % TREE_ALIGNMENT as u64 == 0, "the tree follows the data at once");
        let mut file = File::options().append(true).open(&data).expect("a file");
        file.write_all(&past_end).expect("room on tmpfs");
        drop(file);
        mke2fs("verity").make(image, Some(&source));
        // Extents and verity.
        for (field, value) in [("size", FILE_BYTES.to_string()), ("flags", "0x180000".to_owned())] {
            let request = format!("sif /{} {field} {value}", name(Content::Data).display());
            command::run(Command::new("debugfs").args(["-w", "-R", &request]).arg(image));
        }
    })
}

/// Returns a cluster of data as in the compressed file.
pub fn compressible(cluster: usize) -> Vec<u8> {
    let mut data = vec![0; cluster];
    for (number, block) in (0..).zip(data.chunks_mut(BLOCK)) {
        block[..RANDOM].copy_from_slice(&testkit::tree::contents(number, RANDOM));
    }
    data
}

/// Returns a device with an f2fs volume, whose file of data a guest's Linux has compressed with
/// LZ4, in clusters of four blocks.
pub fn compressed() -> SharedDevice {
    device(|_, image| {
        let kind = Kind::named("lz4");
        kind.make(image, (FILE_BYTES >> 20) + 256);
        let file = name(Content::Data).display().to_string();
        let block = |at: u64| {
            let bytes = Bytes { seed: at, length: RANDOM };
            Step::Write(file.clone(), at, bytes)
        };
        let mut steps: Vec<Step> = (0..FILE_BYTES).step_by(BLOCK).map(block).collect();
        steps.push(Step::SetSize(file.clone(), FILE_BYTES));
        let task = Task {
            image: image.to_owned(),
            format: "f2fs",
            options: "compress_algorithm=lz4,compress_extension=*".to_owned(),
            job: Job::Change(steps),
            log: None,
        };
        guest::run_on(kind.machine, &[task]);
        let volume = VolumeOptions::new().open(image).expect("a volume");
        let node = volume.resolve(file.as_bytes(), Follow::No).expect("the file");
        let mut encoded = 0;
        let mut count = |extent: FiemapExtent| {
            encoded += if extent.flags.encoded { extent.length } else { 0 };
            ControlFlow::Continue(())
        };
        node.extents(FileOffset(0)..FileOffset(u64::MAX), &mut count).expect("extents");
        assert_eq!(encoded, FILE_BYTES, "the guest did not compress the file");
    })
}
