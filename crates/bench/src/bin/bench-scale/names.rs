//! Series of the library about names: names in a directory, names of one file, and open files
//! without a name.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use device::{OpenDevice, Part};
use vfs::{Creation, Credentials, Node, RenameFlags, Volume, VolumeOptions};

use crate::cost::Costs;
use crate::tree::SparseImage;

/// The maximum number of names of one inode. The format permits 65,000.
const LINKS_MAX: u64 = 60_000;

/// Opens a volume for writing.
pub fn open(image: &Path) -> Volume {
    let options = OpenDevice { part: Part::Whole, read_only: false, ..OpenDevice::default() };
    let device = device::open(image, options).expect("the image");
    let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    Volume::open_device(device, &options).expect("a sound volume")
}

/// Creates a file.
pub fn create(volume: &Volume, directory: &Arc<Node>, name: &[u8]) -> Arc<Node> {
    let what = Creation::of(FileType::Regular, 0o644);
    volume.create_in(directory, name, &what, &Credentials::ROOT).expect("a new file")
}

/// Measures the names in one directory.
pub fn names(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    let name = |number: u64| format!("name-{number}").into_bytes();
    let each = |work: &dyn Fn(u64)| (0..size).for_each(work);
    let sync = |volume: &Volume| volume.sync().expect("a sync");
    costs.measure("create", size, || {
        each(&|number| drop(create(&volume, &root, &name(number))));
        sync(&volume);
    });
    costs.measure("close", size, || volume.close().expect("a sound volume"));
    drop((root, volume));
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    let list = || {
        let mut count = 0;
        let emit = &mut |_: base::attributes::DirEntry<'_>| {
            count += 1;
            ControlFlow::Continue(())
        };
        root.read_dir(DirCursor::default(), emit).expect("a directory");
        assert!(count > size);
    };
    costs.measure("list", size, list);
    let look_up = |number| drop(volume.lookup(&root, &name(number)).expect("a name"));
    costs.measure("look up", size, || each(&look_up));
    let rename = |number: u64| {
        let new = format!("new-{number}").into_bytes();
        let (from, to) = ((&root, &name(number)[..]), (&root, &new[..]));
        let flags = RenameFlags::default();
        volume.rename_in(from, to, flags, &Credentials::ROOT).expect("a rename");
    };
    costs.measure("rename", size, || {
        each(&rename);
        sync(&volume);
    });
    let unlink = |number: u64| {
        let name = format!("new-{number}").into_bytes();
        volume.unlink(&root, &name, &Credentials::ROOT).expect("a removed name");
    };
    costs.measure("unlink", size, || {
        each(&unlink);
        sync(&volume);
    });
    volume.close().expect("a sound volume");
}

/// Measures the names of one file.
pub fn links(size: u64, costs: &mut Costs) {
    let size = size.min(LINKS_MAX);
    let image = SparseImage::make(1000, 0);
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    let file = create(&volume, &root, b"file");
    let name = |number: u64| format!("link-{number}").into_bytes();
    let each = |work: &dyn Fn(u64)| (0..size).for_each(work);
    let link = |number| volume.link(&root, &name(number), &file).expect("a link");
    costs.measure("link", size, || each(&link));
    let unlink =
        |number| volume.unlink(&root, &name(number), &Credentials::ROOT).expect("a removed name");
    costs.measure("unlink", size, || each(&unlink));
    volume.close().expect("a sound volume");
}

/// Measures files that were removed while they were open, and their recovery after a crash.
pub fn orphans(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    let name = |number: u64| format!("name-{number}").into_bytes();
    let files: Vec<Arc<Node>> =
        (0..size).map(|number| create(&volume, &root, &name(number))).collect();
    let unlink =
        |number| volume.unlink(&root, &name(number), &Credentials::ROOT).expect("a removed name");
    costs.measure("unlink open", size, || {
        (0..size).for_each(unlink);
        volume.sync().expect("a sync");
    });
    let crashed = image.path().with_file_name("crashed");
    std::fs::copy(image.path(), &crashed).expect("a copy");
    // Closes the files in an order that is neither ascending nor descending.
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    for (number, file) in files.into_iter().enumerate() {
        if number % 2 == 0 { even.push(file) } else { odd.push(file) }
    }
    costs.measure("close", size, || {
        drop((even, odd));
        volume.sync().expect("a sync");
    });
    volume.close().expect("a sound volume");
    let recovered = costs.measure("recover", size, || open(&crashed));
    recovered.close().expect("a sound volume");
}
