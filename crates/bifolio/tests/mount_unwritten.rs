//! Data that the kernel or the volume has not written yet, and programs that must see it all the same: those
//! that search for holes, count blocks, copy, punch, and read directly.

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use mounting::Location;
use mounting::other_ways::{Mapped, open_direct, read_direct};
use rustix::fs::{FallocateFlags, SeekFrom};
use testkit::command::{output, run};
use testkit::{check_by_e2fsck, private_mounts, wait_until};

const LENGTH: usize = 4 << 20;
const AT: usize = 2_000_000;
const DATA: &[u8] = b"hello";

/// Does `work` on mounts on which the kernel collects writes, and does not.
fn on_both(work: impl Fn(&Path, &str)) {
    private_mounts();
    for options in ["rw,nowriteback", "rw,writeback"] {
        let place = Location::with_tree();
        let mount = place.mount(&["-o", options]);
        work(mount.path(), options);
        place.umount();
        mount.assert_gone();
        check_by_e2fsck(&place.image);
    }
}

/// A new file without data, open to read and write it.
fn sparse(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(LENGTH as u64).unwrap();
    // As an archiver does: the kernel has the file's attributes now.
    assert_eq!(fs::metadata(path).unwrap().len(), LENGTH as u64);
    file
}

fn seek(file: &File, to: SeekFrom) -> Option<u64> {
    rustix::fs::seek(file, to).ok()
}

/// Programs that leave holes out have the data of `path`.
fn copies_are_whole(path: &Path, what: &str) {
    let expected = fs::read(path).unwrap();
    assert_eq!(&expected[AT..][..DATA.len()], DATA, "{what}");
    let folder = tempfile::TempDir::new().unwrap();
    run(Command::new("cp").args(["--sparse=auto", "--reflink=never"]).arg(path).arg(folder.path()));
    let name = path.file_name().unwrap();
    assert!(fs::read(folder.path().join(name)).unwrap() == expected, "cp: {what}");
    let archive = folder.path().join("archive");
    let parent = path.parent().unwrap();
    run(Command::new("tar").arg("-Scf").arg(&archive).arg("-C").arg(parent).arg(name));
    let unpacked = output(Command::new("tar").arg("-xOf").arg(&archive)).stdout;
    assert!(unpacked == expected, "tar: {what}");
}

/// Holes are found, not only taken for data.
fn holes_are_found(path: &Path, what: &str) {
    let file = File::open(path).unwrap();
    let data = seek(&file, SeekFrom::Data(0)).unwrap();
    assert!(data > 0 && data <= AT as u64, "{what}: data at {data}");
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Some(0), "{what}");
    let end = seek(&file, SeekFrom::Hole(AT as u64)).unwrap();
    assert!(end > AT as u64 && end < LENGTH as u64, "{what}: a hole at {end}");
    assert_eq!(seek(&file, SeekFrom::Data(LENGTH as u64 - 4096)), None, "{what}");
}

#[test]
fn sparse_copies_have_what_was_just_written() {
    on_both(|mount, options| {
        let path = mount.join("closed");
        drop(sparse(&path));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(DATA, AT as u64).unwrap();
        drop(file);
        copies_are_whole(&path, &format!("{options}, closed"));
        holes_are_found(&path, &format!("{options}, closed"));

        let path = mount.join("open");
        let file = sparse(&path);
        file.write_all_at(DATA, AT as u64).unwrap();
        copies_are_whole(&path, &format!("{options}, open"));
        // The first write through a second descriptor finds the kernel's attributes as old as they get.
        let late = OpenOptions::new().write(true).open(&path).unwrap();
        late.write_all_at(DATA, 100_000).unwrap();
        holes_are_found(&path, &format!("{options}, open"));
        assert!(seek(&file, SeekFrom::Data(0)).unwrap() <= 100_000);
        drop(file);
        copies_are_whole(&path, &format!("{options}, open, then closed"));
    });
}

#[test]
fn sparse_copies_have_what_was_stored_in_a_mapping() {
    on_both(|mount, options| {
        let path = mount.join("mapped");
        drop(sparse(&path));
        wait_until("a file without data to have no block", || {
            fs::metadata(&path).unwrap().blocks() == 0
        });
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapped = Mapped::new(&file, LENGTH);
        mapped.store(AT, DATA);
        copies_are_whole(&path, &format!("{options}, mapped"));
        mapped.store(AT / 2, DATA);
        drop(file);
        copies_are_whole(&path, &format!("{options}, mapped, the file closed"));
        holes_are_found(&path, &format!("{options}, mapped, the file closed"));
        let reader = File::open(&path).unwrap();
        assert!(seek(&reader, SeekFrom::Data(0)).unwrap() <= AT as u64 / 2);
        mapped.store(300_000, DATA);
        assert!(seek(&reader, SeekFrom::Hole(299_008)).unwrap() >= 300_005, "{options}");
        drop(mapped);
        copies_are_whole(&path, &format!("{options}, not mapped any more"));
    });
}

#[test]
fn a_file_that_grows_in_the_kernel_is_no_hole() {
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
        copies_are_whole(&path, options);
    });
}

#[test]
fn space_that_is_only_reserved_counts_as_allocated() {
    on_both(|mount, options| {
        let path = mount.join("counted");
        fs::write(&path, vec![1; 1_000_000]).unwrap();
        let soon = fs::metadata(&path).unwrap().blocks();
        File::open(&path).unwrap().sync_all().unwrap();
        // Others of the kernel's attributes change when the file is opened to write it.
        drop(OpenOptions::new().append(true).open(&path).unwrap());
        fs::set_permissions(&path, fs::metadata(&path).unwrap().permissions()).unwrap();
        let synced = fs::metadata(&path).unwrap().blocks();
        assert_eq!((soon, synced), (1960, 1960), "{options}");
    });
}

#[test]
fn copies_within_the_server_have_what_was_stored_in_a_mapping() {
    on_both(|mount, options| {
        let (from, to) = (sparse(&mount.join("from")), sparse(&mount.join("to")));
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
fn what_was_stored_in_a_mapping_is_read_punched_and_cut_off_like_other_data() {
    on_both(|mount, options| {
        let path = mount.join("mapped");
        let file = sparse(&path);
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
fn space_can_be_allocated_under_what_was_stored_in_a_mapping() {
    on_both(|mount, options| {
        let path = mount.join("mapped");
        let file = sparse(&path);
        let mapped = Mapped::new(&file, LENGTH);
        mapped.store(AT, DATA);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LENGTH as u64).unwrap();
        assert_eq!(mapped.load(AT, 5), DATA, "{options}");
        copies_are_whole(&path, options);
        drop(mapped);
        copies_are_whole(&path, options);
    });
}
