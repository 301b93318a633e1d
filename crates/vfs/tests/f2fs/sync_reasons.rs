//! fsync on f2fs says why it writes a checkpoint, and does not write one without a reason.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{BlockSize, Result};
use device::FileDevice;
use testkit::f2fs::make::{MakeOptions, make_file};
use tracing::field::{Field, Visit};
use tracing::span;
use vfs::{Credentials, File, Follow, Node, OpenOptions, Volume, VolumeOptions, XattrMode};

/// The features: extra attributes and compression.
const FEATURES: u32 = 0x2008;
/// The flag of compressed files.
const COMPRESSED: u32 = 4;
/// The number of nodes in the longest chain.
const CHAIN_NODES: u64 = 4096;

/// Keeps the reasons of the checkpoints that fsync has written in this thread.
#[derive(Clone, Default)]
struct Reasons(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Reasons {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().contains("fsync")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Visitor(self));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Visitor<'a>(&'a Reasons);

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "reason" {
            self.0.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

/// Returns the reasons for which `work` writes checkpoints.
fn reasons_of(work: impl FnOnce()) -> Vec<String> {
    let reasons = Reasons::default();
    tracing::subscriber::with_default(reasons.clone(), work);
    let found = reasons.0.lock().unwrap();
    found.clone()
}

/// Opens a new volume of 64 MiB with a directory and two files, and a checkpoint. Nothing is
/// committed in the background.
fn volume() -> Volume {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = MakeOptions {
        features: FEATURES,
        ..MakeOptions::new(BlockSize::from_shift(12).unwrap(), 64 << 20)
    };
    make_file(&image, &options);
    let commit_interval = Duration::from_secs(3600);
    let options = VolumeOptions { writable: true, commit_interval, ..VolumeOptions::default() };
    let device = Arc::new(FileDevice::open(&image, false).unwrap());
    let volume = Volume::open_device(device, &options).unwrap();
    volume.create_dir("/d").unwrap();
    for path in ["/d/file", "/d/other"] {
        volume.create(path).unwrap().write_all_at(&[1; 5000], 0).unwrap();
    }
    volume.sync().unwrap();
    volume
}

/// A change of a volume. Returns the node that is synced afterwards.
type Change = fn(&Volume) -> Result<Arc<Node>>;

fn opened(volume: &Volume, path: &str) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(volume, path)
}

fn appended(volume: &Volume, path: &str) -> Result<Arc<Node>> {
    let file = opened(volume, path)?;
    file.write_all_at(&[2; 3000], 5000)?;
    node(&file)
}

fn node(file: &File) -> Result<Arc<Node>> {
    Ok(Arc::clone(file.node()))
}

const CHANGES: &[(&str, Change)] = &[
    ("", |volume| appended(volume, "/d/file")),
    ("", |volume| {
        let file = volume.create("/d/new")?;
        file.write_all_at(&[3; 100], 0)?;
        node(&file)
    }),
    ("not a regular file", |volume| {
        volume.create("/d/new")?;
        volume.resolve(b"/d", Follow::No)
    }),
    ("several hard links", |volume| {
        volume.hard_link("/d/file", "/link")?;
        appended(volume, "/d/file")
    }),
    ("a compressed file", |volume| {
        let file = volume.create("/d/new")?;
        file.node().set_flags(COMPRESSED, &Credentials::ROOT)?;
        file.write_all_at(&[3; 100], 0)?;
        node(&file)
    }),
    ("a change that a chain has no record of", |volume| {
        let file = opened(volume, "/d/file")?;
        // Behind the addresses of the inode, so that there is another node.
        file.write_all_at(&[3; 100], 8 << 20)?;
        volume.sync()?;
        file.set_len(100)?;
        node(&file)
    }),
    ("a name in its directory was removed", |volume| {
        volume.remove_file("/d/other")?;
        appended(volume, "/d/file")
    }),
    ("a change that a chain has no record of", |volume| {
        volume.rename("/d/other", "/d/file")?;
        node(&opened(volume, "/d/file")?)
    }),
    ("earlier changes of names are not durable", |volume| {
        volume.create("/first")?;
        node(&volume.create("/d/second")?)
    }),
    ("its directory has a change that a chain has no record of", |volume| {
        volume.set_xattr("/d", "user.name", b"value", XattrMode::default())?;
        node(&volume.create("/d/new")?)
    }),
    ("the chain is long", |volume| {
        let file = opened(volume, "/d/file")?;
        for at in 0..CHAIN_NODES {
            file.set_len(5000 + at)?;
            file.sync_all()?;
        }
        file.set_len(1)?;
        node(&file)
    }),
];

#[test]
fn a_checkpoint_of_fsync_has_a_reason() {
    for (number, (expected, change)) in CHANGES.iter().enumerate() {
        let volume = volume();
        let mut changed = None;
        let before = reasons_of(|| changed = Some(change(&volume).unwrap()));
        assert_eq!(before, [""; 0], "change {number}");
        let node = changed.expect("the change has ended");
        let found = reasons_of(|| node.sync(false).unwrap());
        assert_eq!(found.concat(), *expected, "change {number}");
        // The next sync has nothing left to do.
        assert_eq!(reasons_of(|| node.sync(false).unwrap()), [""; 0], "change {number}");
        drop(node);
        volume.close().unwrap();
    }
}
