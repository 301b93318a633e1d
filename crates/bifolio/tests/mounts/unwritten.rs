//! Data that is not written back yet, in the kernel or in the volume. It must be visible to
//! programs that search for holes, count blocks, copy, punch holes and read directly.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use crate::mounting::Fixture;
use crate::mounting::direct_and_mapped::{Mapped, open_direct, read_direct};
use rustix::fs::{FallocateFlags, SeekFrom};
use testkit::command::{output, run};
use testkit::{check_by_e2fsck, private_mounts, wait_until};

const LENGTH: usize = 4 << 20;
const AT: usize = 2_000_000;
const DATA: &[u8] = b"hello";

/// Runs `work` on mounts with and without the writeback cache of the kernel.
fn on_both(work: impl Fn(&Path, &str)) {
    private_mounts();
    for options in ["rw,nowriteback", "rw,writeback"] {
        let fixture = Fixture::with_tree();
        let mount = fixture.mount(&["-o", options]);
        work(mount.path(), options);
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
    }
}

/// Creates a file that is one hole.
fn create_sparse(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(LENGTH as u64).unwrap();
    // Caches the attributes in the kernel, as an archiver does.
    assert_eq!(fs::metadata(path).unwrap().len(), LENGTH as u64);
    file
}

fn seek(file: &File, to: SeekFrom) -> Option<u64> {
    rustix::fs::seek(file, to).ok()
}

/// Checks that programs that skip holes copy all data of `path`.
fn check_copies(path: &Path, case: &str) {
    let expected = fs::read(path).unwrap();
    assert_eq!(&expected[AT..][..DATA.len()], DATA, "{case}");
    let folder = tempfile::TempDir::new().unwrap();
    run(Command::new("cp").args(["--sparse=auto", "--reflink=never"]).arg(path).arg(folder.path()));
    let name = path.file_name().unwrap();
    assert!(fs::read(folder.path().join(name)).unwrap() == expected, "cp: {case}");
    let archive = folder.path().join("archive");
    let parent = path.parent().unwrap();
    run(Command::new("tar").arg("-Scf").arg(&archive).arg("-C").arg(parent).arg(name));
    let unpacked = output(Command::new("tar").arg("-xOf").arg(&archive)).stdout;
    assert!(unpacked == expected, "tar: {case}");
}

/// Checks that holes are reported as holes.
fn check_holes(path: &Path, case: &str) {
    let file = File::open(path).unwrap();
    let data = seek(&file, SeekFrom::Data(0)).unwrap();
    assert!(data > 0 && data <= AT as u64, "{case}: data at {data}");
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Some(0), "{case}");
    let end = seek(&file, SeekFrom::Hole(AT as u64)).unwrap();
    assert!(end > AT as u64 && end < LENGTH as u64, "{case}: a hole at {end}");
    assert_eq!(seek(&file, SeekFrom::Data(LENGTH as u64 - 4096)), None, "{case}");
}

#[test]
fn sparse_copies_contain_unwritten_data() {
    on_both(|mount, options| {
        let path = mount.join("closed");
        drop(create_sparse(&path));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(DATA, AT as u64).unwrap();
        drop(file);
        check_copies(&path, &format!("{options}, closed"));
        check_holes(&path, &format!("{options}, closed"));

        let path = mount.join("open");
        let file = create_sparse(&path);
        file.write_all_at(DATA, AT as u64).unwrap();
        check_copies(&path, &format!("{options}, open"));
        // Before the first write through a second descriptor, the attributes in the kernel are as
        // old as possible.
        let late = OpenOptions::new().write(true).open(&path).unwrap();
        late.write_all_at(DATA, 100_000).unwrap();
        check_holes(&path, &format!("{options}, open"));
        assert!(seek(&file, SeekFrom::Data(0)).unwrap() <= 100_000);
        drop(file);
        check_copies(&path, &format!("{options}, open, then closed"));
    });
}

#[test]
fn sparse_copies_contain_data_stored_in_a_mapping() {
    on_both(|mount, options| {
        let path = mount.join("mapped");
        drop(create_sparse(&path));
        wait_until("a file without data to have no block", || {
            fs::metadata(&path).unwrap().blocks() == 0
        });
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapped = Mapped::new(&file, LENGTH);
        mapped.store(AT, DATA);
        check_copies(&path, &format!("{options}, mapped"));
        mapped.store(AT / 2, DATA);
        drop(file);
        check_copies(&path, &format!("{options}, mapped, the file closed"));
        check_holes(&path, &format!("{options}, mapped, the file closed"));
        let reader = File::open(&path).unwrap();
        assert!(seek(&reader, SeekFrom::Data(0)).unwrap() <= AT as u64 / 2);
        mapped.store(300_000, DATA);
        assert!(seek(&reader, SeekFrom::Hole(299_008)).unwrap() >= 300_005, "{options}");
        drop(mapped);
        check_copies(&path, &format!("{options}, not mapped any more"));
    });
}

#[test]
fn data_that_extends_a_file_in_the_kernel_is_not_a_hole() {
    on_both(|mount, options| {
        let path = mount.join("grows");
        fs::write(&path, "").unwrap();
        wait_until("a file without data to have no block", || {
            fs::metadata(&path).unwrap().blocks() == 0
        });
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(DATA, AT as u64).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.len(), (AT + DATA.len()) as u64);
        assert!(found.blocks() > 0, "{options}");
        let reader = File::open(&path).unwrap();
        assert_eq!(seek(&reader, SeekFrom::Hole(AT as u64)), Some((AT + DATA.len()) as u64));
        assert_eq!(seek(&reader, SeekFrom::Data(AT as u64)), Some(AT as u64));
        check_copies(&path, options);
    });
}

#[test]
fn reserved_space_counts_as_allocated() {
    on_both(|mount, options| {
        let path = mount.join("counted");
        fs::write(&path, vec![1; 1_000_000]).unwrap();
        let before_sync = fs::metadata(&path).unwrap().blocks();
        File::open(&path).unwrap().sync_all().unwrap();
        // Makes the kernel refresh its attributes.
        drop(OpenOptions::new().append(true).open(&path).unwrap());
        fs::set_permissions(&path, fs::metadata(&path).unwrap().permissions()).unwrap();
        let synced = fs::metadata(&path).unwrap().blocks();
        assert_eq!((before_sync, synced), (1960, 1960), "{options}");
    });
}

#[test]
fn server_side_copies_contain_data_stored_in_a_mapping() {
    on_both(|mount, options| {
        let (from, to) = (create_sparse(&mount.join("from")), create_sparse(&mount.join("to")));
        let (source, target) = (Mapped::new(&from, LENGTH), Mapped::new(&to, LENGTH));
        source.store(AT, DATA);
        target.store(AT, b"older");
        target.store(AT + DATA.len(), b"beside");
        let (mut here, mut there) = (AT as u64, AT as u64);
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut here), &to, Some(&mut there), DATA.len());
        assert_eq!(copied, Ok(DATA.len()), "{options}");
        assert_eq!(target.load(AT, 11), b"hellobeside", "{options}");
        drop(target);
        let found = fs::read(mount.join("to")).unwrap();
        assert_eq!(&found[AT..][..11], b"hellobeside", "{options}");
    });
}

#[test]
fn data_stored_in_a_mapping_is_read_punched_and_truncated() {
    on_both(|mount, options| {
        let path = mount.join("mapped");
        let file = create_sparse(&path);
        let mapped = Mapped::new(&file, LENGTH);
        mapped.store(8192, DATA);
        let direct = open_direct(&path);
        assert_eq!(&read_direct(&direct, 8192, 4096).unwrap()[..5], DATA, "{options}");

        for (number, flags) in
            [FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE]
                .into_iter()
                .enumerate()
        {
            let at = 40_960 + number * 40_960;
            mapped.store(at, &[7; 12_288]);
            rustix::fs::fallocate(&file, flags, at as u64 + 1_000, 10_000).unwrap();
            let mut expected = vec![7; 12_288];
            expected[1_000..11_000].fill(0);
            assert_eq!(mapped.load(at, 12_288), expected, "{options}, {flags:?}");
            assert_eq!(read_direct(&direct, at as u64, 12_288).unwrap(), expected, "{options}");
        }

        mapped.store(AT, &[9; 100]);
        file.set_len(AT as u64 + 50).unwrap();
        file.set_len(LENGTH as u64).unwrap();
        let mut expected = vec![9; 50];
        expected.resize(100, 0);
        assert_eq!(mapped.load(AT, 100), expected, "{options}");
        drop(mapped);
        assert_eq!(fs::read(&path).unwrap()[AT..][..100], expected[..], "{options}");
    });
}

#[test]
fn space_can_be_allocated_under_data_stored_in_a_mapping() {
    on_both(|mount, options| {
        let path = mount.join("mapped");
        let file = create_sparse(&path);
        let mapped = Mapped::new(&file, LENGTH);
        mapped.store(AT, DATA);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LENGTH as u64).unwrap();
        assert_eq!(mapped.load(AT, 5), DATA, "{options}");
        check_copies(&path, options);
        drop(mapped);
        check_copies(&path, options);
    });
}
