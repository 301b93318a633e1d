//! The series of the library on the running kernel's ext4. If a cost also grows here, the format is
//! the reason, not the library.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bench::mount::{Mount, Mounter};
use rustix::fs::XattrFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cost::Costs;
use crate::tree::{FILE_BYTES, SparseImage, sync_file_system};

/// The number of descriptors that the program needs in addition to those of the measured files.
const OTHER_DESCRIPTORS: u64 = 1000;

/// Measures the names in one directory.
pub fn names(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let mount = mount_by_kernel(&image);
    let each = |work: &dyn Fn(PathBuf)| names_in(&mount, size).for_each(work);
    costs.measure("create", size, || {
        each(&|path| drop(create(&path)));
        sync(&mount);
    });
    drop(mount);
    let mount = mount_by_kernel(&image);
    let each = |work: &dyn Fn(PathBuf)| names_in(&mount, size).for_each(work);
    costs.measure("list", size, || fs::read_dir(mount.path()).expect("a directory").count());
    costs.measure("look up", size, || {
        each(&|path| {
            fs::symlink_metadata(path).expect("a name");
        });
    });
    let new = |path: &Path| path.with_extension("new");
    costs.measure("rename", size, || {
        each(&|path| fs::rename(&path, new(&path)).expect("a name"));
        sync(&mount);
    });
    costs.measure("unlink", size, || {
        each(&|path| fs::remove_file(new(&path)).expect("a name"));
        sync(&mount);
    });
}

/// Measures files that were removed while they were open.
pub fn orphans(size: u64, costs: &mut Costs) {
    let size = size.min(open_files_max().saturating_sub(OTHER_DESCRIPTORS));
    let image = SparseImage::make(size, 0);
    let mount = mount_by_kernel(&image);
    let files: Vec<File> = names_in(&mount, size).map(|path| create(&path)).collect();
    costs.measure("unlink open", size, || {
        names_in(&mount, size).for_each(|path| fs::remove_file(path).expect("a name"));
        sync(&mount);
    });
    let (even, odd): (Vec<_>, Vec<_>) =
        files.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
    costs.measure("close", size, || {
        drop((even, odd));
        sync(&mount);
    });
}

/// Measures the extents of one file, with a hole after each.
pub fn extents(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(1000, size * 8192);
    let mount = mount_by_kernel(&image);
    let file = create(&mount.path().join("file"));
    costs.measure("write", size, || {
        (0..size).for_each(|number| {
            file.write_all_at(&[7; 4096], number * 8192).expect("a write");
        });
        file.sync_all().expect("a sync");
    });
    drop((file, mount));
    let mount = mount_by_kernel(&image);
    let path = mount.path().join("file");
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the file");
    costs.measure("read", size, || {
        let mut block = [0; 4096];
        (0..size).for_each(|number| {
            file.read_exact_at(&mut block, number * 8192).expect("a block");
        });
    });
    costs.measure("truncate", size, || {
        file.set_len(0).expect("a truncation");
        file.sync_all().expect("a sync");
    });
}

/// Measures files with an attribute block of their own, and with a shared one.
pub fn xattrs(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let mount = mount_by_kernel(&image);
    names_in(&mount, size).for_each(|path| drop(create(&path)));
    let set = |row: &str, value: &dyn Fn(usize) -> Vec<u8>, costs: &mut Costs| {
        costs.measure(row, size, || {
            for (number, path) in names_in(&mount, size).enumerate() {
                let flags = XattrFlags::empty();
                rustix::fs::setxattr(path, "user.a", &value(number), flags).expect("room");
            }
            sync(&mount);
        });
    };
    set("own value", &|number| format!("{number:>500}").into_bytes(), costs);
    set("shared value", &|_| vec![7; 500], costs);
    costs.measure("remove", size, || {
        names_in(&mount, size)
            .for_each(|path| rustix::fs::removexattr(path, "user.a").expect("an attribute"));
        sync(&mount);
    });
}

/// Measures new files that are synced one by one.
pub fn fsyncs(size: u64, costs: &mut Costs) {
    let image = SparseImage::make(size, 0);
    let mount = mount_by_kernel(&image);
    costs.measure("create, write, fsync", size, || {
        for path in names_in(&mount, size) {
            let mut file = create(&path);
            file.write_all(&[7; FILE_BYTES]).expect("a write");
            file.sync_all().expect("a sync");
        }
    });
}

/// Sets the limit of this program's open files to its maximum. Returns the limit.
fn open_files_max() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("the hard limit");
    maximum.unwrap_or(u64::MAX)
}

fn mount_by_kernel(image: &SparseImage) -> Mount {
    Mount::new(&image.path(), Mounter::Kernel)
}

/// Returns the paths of `size` files in the root of `mount`.
fn names_in(mount: &Mount, size: u64) -> impl Iterator<Item = PathBuf> {
    let top = mount.path();
    (0..size).map(move |number| top.join(format!("name-{number}")))
}

fn sync(mount: &Mount) {
    sync_file_system(mount.path());
}

fn create(path: &Path) -> File {
    File::create_new(path).expect("a new file")
}
