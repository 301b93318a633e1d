//! Series of the library about files: extents, attributes, and open, dirty and synced files.

use std::ops::ControlFlow;

use base::FileOffset;
use base::attributes::XattrMode;
use vfs::{OpenMode, Privileges};

use crate::cost::Costs;
use crate::names::{create, open};
use crate::tree::{FILE_BYTES, SparseImage};

const WRITE: OpenMode = OpenMode { write: true, append: false };

/// Measures the extents of one file, with a hole after each.
pub fn extents(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(1000, size * 8192);
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    let node = create(&volume, &root, b"file");
    let file = node.open_for(WRITE).expect("a file");
    costs.measure("write", size, || {
        for number in 0..size {
            let at = FileOffset(number * 8192);
            file.write_at(&[7; 4096], at.0).expect("a write");
        }
        file.sync_all().expect("a sync");
    });
    drop((file, node, root));
    volume.close().expect("a sound volume");
    drop(volume);
    let volume = open(&image.path());
    let node = volume.resolve(b"/file", vfs::Follow::Yes).expect("the file");
    costs.measure("map", size, || {
        let mut count = 0;
        let emit = &mut |_| {
            count += 1;
            ControlFlow::Continue(())
        };
        node.extents(FileOffset(0)..FileOffset(u64::MAX), emit).expect("a map");
        assert_eq!(count, size);
    });
    let file = node.open_for(WRITE).expect("a file");
    costs.measure("read", size, || {
        let mut block = [0; 4096];
        for number in 0..size {
            file.read_at(&mut block, number * 8192).expect("a block");
        }
    });
    costs.measure("truncate", size, || {
        node.set_size(0, Privileges::Keep).expect("a truncation");
        file.sync_all().expect("a sync");
    });
    drop(file);
    volume.close().expect("a sound volume");
}

/// Measures files with an attribute block of their own, and with a shared one.
pub fn xattrs(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    let nodes: Vec<_> = (0..size)
        .map(|number| create(&volume, &root, format!("name-{number}").as_bytes()))
        .collect();
    let set = |row: &str, value: &dyn Fn(usize) -> Vec<u8>, costs: &mut Costs| {
        costs.measure(row, size, || {
            for (number, node) in nodes.iter().enumerate() {
                let (value, mode) = (value(number), XattrMode::Either);
                node.set_xattr(b"user.a", &value, mode, Privileges::Keep).expect("room");
            }
            volume.sync().expect("a sync");
        });
    };
    set("own value", &|number| format!("{number:>500}").into_bytes(), costs);
    set("shared value", &|_| vec![7; 500], costs);
    costs.measure("remove", size, || {
        nodes.iter().for_each(|node| node.remove_xattr(b"user.a").expect("an attribute"));
        volume.sync().expect("a sync");
    });
    drop(nodes);
    volume.close().expect("a sound volume");
}

/// Measures files that are all open and dirty at the same time.
pub fn open_files(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    let files = costs.measure("create, write, sync", size, || {
        let file = |number| {
            let node = create(&volume, &root, format!("name-{number}").as_bytes());
            let file = node.open_for(WRITE).expect("a file");
            file.write_at(&[7; FILE_BYTES], 0).expect("a write");
            file
        };
        let files = (0..size).map(file).collect::<Vec<_>>();
        volume.sync().expect("a sync");
        files
    });
    costs.measure("write again, sync", size, || {
        for file in &files {
            file.write_at(&[8; FILE_BYTES], 0).expect("a write");
        }
        volume.sync().expect("a sync");
    });
    costs.measure("close", size, || drop(files));
    volume.close().expect("a sound volume");
}

/// Measures new files that are synced one by one, so that each makes a transaction that waits for a
/// checkpoint.
pub fn fsyncs(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let volume = open(&image.path());
    let root = volume.root().expect("a root");
    costs.measure("create, write, fsync", size, || {
        for number in 0..size {
            let node = create(&volume, &root, format!("name-{number}").as_bytes());
            let file = node.open_for(WRITE).expect("a file");
            file.write_at(&[7; FILE_BYTES], 0).expect("a write");
            file.sync_all().expect("a sync");
        }
    });
    costs.measure("close", size, || volume.close().expect("a sound volume"));
}
