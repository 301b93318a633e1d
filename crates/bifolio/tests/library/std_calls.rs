//! The calls with names of the standard library, compared with the standard library's on the host.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use bifolio::{
    AccessOptions, AccessTimes, AttributeChange, Credentials, DirectIo, Error, FileOffset, Follow,
    MapAccess, Privileges, Problem, RenameFlags, Timestamp, Volume, VolumeOptions,
};
use rustix::io::Errno;
use testkit::command::run;
use testkit::{Mke2fs, Random, check_by_e2fsck};

/// Paths for calls that change files.
const PATHS: [&str; 9] = ["a", "b", "d", "d/a", "d/e", "d/e/a", "a/b", "missing/x", "link"];
/// Paths for calls that read.
const ALL_PATHS: [&str; 13] =
    ["a", "b", "d", "d/a", "d/e", "d/e/a", "a/b", "missing/x", "link", ".", "d/", "d/..", "d/../b"];
const TARGETS: [&str; 5] = ["a", "d", "d/e", "nowhere", "link"];

/// Options for opening a file: those of this library and the standard library's.
fn options(bits: u64) -> (bifolio::OpenOptions, fs::OpenOptions) {
    let is_set = |bit: u32| bits >> bit & 1 == 1;
    let (mut ours, mut theirs) = (bifolio::OpenOptions::new(), fs::OpenOptions::new());
    ours.read(is_set(0)).write(is_set(1)).append(is_set(2)).truncate(is_set(3));
    ours.create(is_set(4)).create_new(is_set(5)).mode(0o640);
    theirs.read(is_set(0)).write(is_set(1)).append(is_set(2)).truncate(is_set(3));
    theirs.create(is_set(4)).create_new(is_set(5)).mode(0o640);
    (ours, theirs)
}

/// Reads a file and writes to it, even if it was not opened for that. Returns a description of the
/// results.
fn use_file(mut file: impl Read + Write + Seek) -> io::Result<String> {
    let mut contents = String::new();
    let read = comparable(file.read_to_string(&mut contents));
    let written = comparable(file.write_all(b"written"));
    Ok(format!("{read:?} {contents:?}, {written:?}, then at {}", file.stream_position()?))
}

fn describe(mode: u32, size: u64, links: u64) -> String {
    match mode & 0o170_000 {
        // Sizes and links of directories are the file system's.
        0o040_000 => format!("{mode:o}"),
        _ => format!("{mode:o} {size} {links}"),
    }
}

fn of_host(metadata: &fs::Metadata) -> String {
    describe(metadata.mode(), metadata.len(), metadata.nlink())
}

fn of_volume(attributes: &bifolio::Attributes) -> String {
    assert_eq!(attributes.is_dir(), attributes.file_type().is_dir());
    describe(attributes.mode(), attributes.len(), attributes.links.into())
}

/// A call, with the numbers that choose its arguments.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: u64,
    path: &'static str,
    other: &'static str,
    target: &'static str,
    bits: u64,
}

impl Call {
    fn random(random: &mut Random) -> Self {
        let number = random.below(18);
        let paths: &[&str] = if number < 9 { &ALL_PATHS } else { &PATHS };
        let pick = |random: &mut Random, from: &[&'static str]| *random.pick(from).unwrap();
        Self {
            number,
            path: pick(random, paths),
            other: pick(random, &PATHS),
            target: pick(random, &TARGETS),
            bits: random.below(64),
        }
    }

    fn on_host(&self, root: &Path) -> io::Result<String> {
        let (path, other) = (root.join(self.path), root.join(self.other));
        let done = |()| String::new();
        match self.number {
            0 => fs::metadata(path).map(|metadata| of_host(&metadata)),
            1 => fs::symlink_metadata(path).map(|metadata| of_host(&metadata)),
            2 => path.try_exists().map(|exists| exists.to_string()),
            3 => {
                let names = fs::read_dir(&path)?.map(|entry| {
                    let entry = entry?;
                    assert_eq!(entry.path(), path.join(entry.file_name()));
                    let metadata = entry.metadata()?;
                    assert_eq!(entry.file_type()?, metadata.file_type());
                    Ok(format!("{:?} {}", entry.file_name(), of_host(&metadata)))
                });
                sorted(names)
            }
            4 => fs::create_dir(path).map(done),
            5 => fs::create_dir_all(path).map(done),
            6 => fs::read_link(path).map(|target| format!("{target:?}")),
            7 | 8 => {
                let file = options(self.bits).1.open(path)?;
                match file.metadata()?.is_dir() {
                    // The kernel opens directories, too.
                    true => Err(ErrorKind::IsADirectory.into()),
                    false => use_file(file),
                }
            }
            9 if self.bits % 2 == 0 => fs::read_to_string(path),
            9 => fs::read(path).map(|contents| format!("{contents:?}")),
            10 => fs::write(path, vec![b'w'; self.bits as usize]).map(done),
            11 => fs::remove_file(path).map(done),
            12 => fs::remove_dir(path).map(done),
            13 => fs::remove_dir_all(path).map(done),
            14 => fs::rename(path, other).map(done),
            15 => fs::hard_link(path, other).map(done),
            16 => std::os::unix::fs::symlink(self.target, path).map(done),
            _ => fs::set_permissions(path, self.permissions()).map(done),
        }
    }

    fn on_volume(&self, volume: &Volume) -> io::Result<String> {
        let (path, other) = (self.path, self.other);
        let done = |()| String::new();
        let result = match self.number {
            0 => volume.metadata(path).map(|attributes| of_volume(&attributes)),
            1 => volume.symlink_metadata(path).map(|attributes| of_volume(&attributes)),
            2 => volume.exists(path).map(|exists| exists.to_string()),
            3 => {
                let names = volume.read_dir(path)?.map(|entry| {
                    let entry = entry?;
                    assert_eq!(entry.path(), Path::new(path).join(entry.file_name()));
                    let attributes = entry.metadata()?;
                    assert_eq!(entry.file_type()?, attributes.kind);
                    assert_eq!(entry.inode(), attributes.inode);
                    Ok(format!("{:?} {}", entry.file_name(), of_volume(&attributes)))
                });
                return sorted(names);
            }
            4 => volume.create_dir(path).map(done),
            5 => volume.create_dir_all(path).map(done),
            6 => volume.read_link(path).map(|target| format!("{target:?}")),
            7 | 8 => {
                return use_file(&options(self.bits).0.open(volume, path)?);
            }
            9 if self.bits % 2 == 0 => volume.read_to_string(path),
            9 => volume.read(path).map(|contents| format!("{contents:?}")),
            10 => volume.write(path, vec![b'w'; self.bits as usize]).map(done),
            11 => volume.remove_file(path).map(done),
            12 => volume.remove_dir(path).map(done),
            13 => volume.remove_dir_all(path).map(done),
            14 => volume.rename(path, other).map(done),
            15 => volume.hard_link(path, other).map(done),
            16 => volume.symlink(self.target, path).map(done),
            _ => volume.set_permissions(path, self.permissions()).map(done),
        };
        Ok(result?)
    }

    fn permissions(&self) -> Permissions {
        Permissions::from_mode(0o600 + self.bits as u32)
    }
}

fn sorted(lines: impl Iterator<Item = io::Result<String>>) -> io::Result<String> {
    let mut lines = lines.collect::<io::Result<Vec<String>>>()?;
    lines.sort();
    Ok(lines.join("\n"))
}

/// Returns the error number, which errors with a text have inside.
fn errno(error: &io::Error) -> Errno {
    let inner = || error.get_ref()?.downcast_ref::<Error>().map(Error::errno);
    Errno::from_raw_os_error(error.raw_os_error().or_else(inner).unwrap())
}

/// Returns the parts of a result that must be the same on both sides.
fn comparable<T>(result: io::Result<T>) -> Result<T, ErrorKind> {
    result.map_err(|error| error.kind())
}

/// An empty volume for writing, and its image in a folder of its own.
fn empty_volume() -> (tempfile::TempDir, PathBuf, Volume) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    let mut recipe = Mke2fs::new("ext4", 1024);
    recipe.size = 32 << 20;
    recipe.make(&image, None);
    let volume = VolumeOptions::new().writable(true).cache_bytes_max(8 << 20).open(&image).unwrap();
    (folder, image, volume)
}

fn close(volume: Volume, image: &Path) {
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(image);
}

#[test]
fn calls_by_path_do_the_same_as_those_of_std_fs() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    for seed in 0..30 {
        let (folder, image, volume) = empty_volume();
        let root = folder.path().join("root");
        // mke2fs makes this, too.
        fs::create_dir(&root).unwrap();
        fs::DirBuilder::new().mode(0o700).create(root.join("lost+found")).unwrap();
        let mut random = Random(seed);
        for step in 0..600 {
            let call = Call::random(&mut random);
            let expected = comparable(call.on_host(&root));
            let found = comparable(call.on_volume(&volume));
            assert_eq!(found, expected, "step {step} of seed {seed}: {call:?}");
        }
        close(volume, &image);
    }
}

#[test]
fn empty_paths_and_paths_with_nul_fail_as_in_std_fs() {
    let (_folder, image, volume) = empty_volume();
    let nowhere = Path::new("");
    for path in ["", "a\0b", "missing/\0"] {
        for number in 0..18 {
            for bits in 0..64 {
                // An empty path is the host's current directory for none of these calls.
                let call = Call { number, path, other: "missing/x", target: "a", bits };
                let expected = comparable(call.on_host(nowhere));
                assert_eq!(comparable(call.on_volume(&volume)), expected, "{call:?}");
            }
        }
        for number in [14, 15] {
            let call = Call { number, path: "missing/x", other: path, target: "a", bits: 0 };
            let expected = comparable(call.on_host(nowhere));
            assert_eq!(comparable(call.on_volume(&volume)), expected, "{call:?}");
        }
    }
    let refused = volume.symlink("a\0b", "link").unwrap_err();
    assert_eq!(io::Error::from(refused).kind(), ErrorKind::InvalidInput);
    close(volume, &image);
}

#[test]
fn contents_that_are_not_text_are_invalid_data() {
    let (folder, image, volume) = empty_volume();
    let path = folder.path().join("file");
    fs::write(&path, b"\xff").unwrap();
    volume.write("file", b"\xff").unwrap();
    let expected = fs::read_to_string(path).unwrap_err();
    let found = io::Error::from(volume.read_to_string("file").unwrap_err());
    assert_eq!((found.kind(), found.to_string().contains("UTF-8")), (expected.kind(), true));
    close(volume, &image);
}

#[test]
fn types_of_files_have_the_queries_of_std() {
    let (_folder, image, volume) = empty_volume();
    volume.write("file", "12345").unwrap();
    volume.symlink("file", "link").unwrap();
    let types = ["/", "file", "link"].map(|path| {
        let attributes = volume.symlink_metadata(path).unwrap();
        let kind = attributes.file_type();
        [kind.is_dir(), kind.is_file(), kind.is_symlink()]
    });
    assert_eq!(types, [[true, false, false], [false, true, false], [false, false, true]]);
    assert_eq!(volume.metadata("link").unwrap().len(), 5);
    volume.open("file").unwrap().set_permissions(Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(volume.metadata("file").unwrap().mode(), 0o104711);
    close(volume, &image);
}

/// A path, and a call that accesses it.
type Access<'a> = (&'a str, &'a dyn Fn(&Volume) -> usize);

#[test]
fn calls_by_path_record_accesses_if_the_options_say_so() {
    let (_folder, image, volume) = empty_volume();
    volume.create_dir("d").unwrap();
    volume.write("d/file", "contents").unwrap();
    volume.symlink("d/file", "link").unwrap();
    close(volume, &image);
    let read_dir = |volume: &Volume| volume.read_dir("d").unwrap().count();
    let read_link = |volume: &Volume| volume.read_link("link").unwrap().as_os_str().len();
    let follow = |volume: &Volume| volume.metadata("link").unwrap().len() as usize;
    let read = |volume: &Volume| volume.read("d/file").unwrap().len();
    let calls: [Access<'_>; 4] =
        [("d", &read_dir), ("link", &read_link), ("link", &follow), ("d/file", &read)];
    for times in [AccessTimes::Never, AccessTimes::Relative, AccessTimes::Always] {
        let access = AccessOptions { times, ..AccessOptions::default() };
        let options = VolumeOptions { writable: true, access, ..VolumeOptions::default() };
        let volume = options.open(&image).unwrap();
        for (path, call) in calls {
            let start = Timestamp { seconds: 1, nanoseconds: 0 };
            let change = AttributeChange { accessed: Some(start), ..AttributeChange::default() };
            let node = volume.resolve(path.as_bytes(), Follow::No).unwrap();
            node.set_attributes(&change, &Credentials::ROOT).unwrap();
            assert!(call(&volume) > 0);
            let is_recorded = node.attributes().accessed > start;
            assert_eq!(is_recorded, times != AccessTimes::Never, "{path}, {times:?}");
        }
        close(volume, &image);
    }
}

/// One operation on an open file. Both sides have the same methods, but other errors.
macro_rules! file_operation {
    ($file:expr, $number:expr, $at:expr, $length:expr, $seed:expr) => {{
        let (file, length) = (&mut $file, $length);
        let data: Vec<u8> = (0..length).map(|index| (index as u64 + $seed) as u8).collect();
        let mut buffer = vec![0; length];
        match $number {
            0 => file.read(&mut buffer).map(|read| format!("{:?}", &buffer[..read])),
            1 => file.write(&data).map(|written| written.to_string()),
            2 => file.seek(SeekFrom::Start($at)).map(|at| at.to_string()),
            3 => file.seek(SeekFrom::End($at as i64 - 5000)).map(|at| at.to_string()),
            4 => file.seek(SeekFrom::Current($at as i64 - 5000)).map(|at| at.to_string()),
            5 => match file.read_at(&mut buffer, $at) {
                Ok(read) => Ok(format!("{:?}", &buffer[..read])),
                Err(error) => Err(error.into()),
            },
            6 => match file.read_exact_at(&mut buffer, $at) {
                Ok(()) => Ok(format!("{buffer:?}")),
                Err(error) => Err(error.into()),
            },
            7 => match file.write_at(&data, $at) {
                Ok(written) => Ok(written.to_string()),
                Err(error) => Err(error.into()),
            },
            8 => match file.write_all_at(&data, $at) {
                Ok(()) => Ok(String::new()),
                Err(error) => Err(error.into()),
            },
            9 => match file.set_len($at) {
                Ok(()) => Ok(String::new()),
                Err(error) => Err(error.into()),
            },
            10 => match file.sync_all().and_then(|()| file.sync_data()) {
                Ok(()) => Ok(String::new()),
                Err(error) => Err(error.into()),
            },
            _ => file.stream_position().map(|at| at.to_string()),
        }
    }};
}

#[test]
fn open_files_do_the_same_as_those_of_the_host() {
    // Bits of `options`: read, write or append in all combinations.
    for (seed, bits) in (0..36).zip((1..8).cycle()) {
        let (folder, image, volume) = empty_volume();
        volume.write("file", "contents").unwrap();
        fs::write(folder.path().join("file"), "contents").unwrap();
        let (ours, theirs) = options(bits);
        let mut ours = ours.open(&volume, "file").unwrap();
        let mut theirs = theirs.open(folder.path().join("file")).unwrap();
        let mut random = Random(seed);
        for step in 0..400 {
            let number = random.below(12);
            let (at, length) = (random.below(10_000), random.below(3000) as usize);
            let expected: io::Result<String> = file_operation!(theirs, number, at, length, step);
            let found: io::Result<String> = file_operation!(ours, number, at, length, step);
            let (found, expected) = (comparable(found), comparable(expected));
            // Without the bytes, which would fill the screen.
            assert!(found == expected, "step {step} of seed {seed}: operation {number} at {at}");
            assert_eq!(ours.metadata().unwrap().size, theirs.metadata().unwrap().len());
        }
        drop(ours);
        close(volume, &image);
    }
}

#[test]
fn a_file_opened_for_reading_is_not_changed() {
    let (_folder, image, volume) = empty_volume();
    volume.write("file", "contents").unwrap();
    let mut file = volume.open("file").unwrap();
    assert_eq!(errno(&file.write(b"x").unwrap_err()), Errno::BADF);
    assert!(matches!(file.set_len(0), Err(Error::InvalidArgument(_))));
    assert_eq!(volume.read("file").unwrap(), b"contents");
    drop(file);
    close(volume, &image);
}

#[test]
fn a_file_opened_for_writing_only_is_not_read() {
    let (_folder, image, volume) = empty_volume();
    let mut file = volume.create("file").unwrap();
    file.write_all(b"contents").unwrap();
    assert_eq!(errno(&file.read(&mut [0; 8]).unwrap_err()), Errno::BADF);
    let refused = Error::NotOpenFor("reading");
    assert_eq!(file.read_at(&mut [], 0), Err(refused.clone()));
    assert_eq!(file.lend(FileOffset(0), 1).map(drop), Err(refused.clone()));
    assert_eq!(file.read_direct(FileOffset(0), &mut [0; 512]), Err(refused.clone()));
    let mapped = file.map(FileOffset(0)..FileOffset(8), MapAccess::ReadWrite).map(drop);
    assert_eq!(mapped, Err(refused.clone()));
    let (sender, receiver) = std::sync::mpsc::channel();
    let done = move |_, read| sender.send(read).unwrap();
    let read = DirectIo::read(FileOffset(0), vec![0; 512], done);
    file.submit_direct(vec![read], Privileges::Keep, false);
    assert_eq!(receiver.recv().unwrap(), Err(refused.clone()));
    let target = volume.create("target").unwrap();
    let copied = file.copy_to(FileOffset(0), &target, FileOffset(0), 8, Privileges::Keep);
    assert_eq!(copied, Err(refused));
    assert_eq!(file.seek_data(FileOffset(0)), Ok(FileOffset(0)));
    drop((file, target));
    assert_eq!(volume.read("file").unwrap(), b"contents");
    close(volume, &image);
}

#[test]
fn threads_that_share_a_file_read_each_byte_once() {
    let (_folder, image, volume) = empty_volume();
    volume.write("file", vec![1; 1 << 20]).unwrap();
    let file = volume.open("file").unwrap();
    for _ in 0..20 {
        (&file).rewind().unwrap();
        let read: u64 = std::thread::scope(|scope| {
            let reader = || io::copy(&mut &file, &mut io::sink()).unwrap();
            let readers = [scope.spawn(reader), scope.spawn(reader)];
            readers.map(|reader| reader.join().unwrap()).iter().sum()
        });
        assert_eq!(read, 1 << 20);
    }
    drop(file);
    close(volume, &image);
}

#[test]
fn large_directories_are_listed_and_removed_whole() {
    let (_folder, image, volume) = empty_volume();
    volume.create_dir_all("d/e/f").unwrap();
    let mut expected: Vec<String> = (0..3000).map(|number| format!("name {number:04}")).collect();
    for name in &expected {
        volume.create_new(Path::new("d/e").join(name)).unwrap();
    }
    expected.push("f".to_owned());
    let names = volume.read_dir("d/e").unwrap();
    let names = names.map(|entry| Ok(entry?.file_name().to_str().unwrap().to_owned()));
    let mut names = names.collect::<Result<Vec<String>, Error>>().unwrap();
    names.sort();
    expected.sort();
    assert!(names == expected);
    volume.remove_dir_all("d").unwrap();
    let names = volume.read_dir("/").unwrap().map(|entry| entry.unwrap().file_name().to_owned());
    assert_eq!(names.collect::<Vec<_>>(), ["lost+found"]);
    close(volume, &image);
}

#[test]
fn a_directory_that_is_in_itself_is_not_removed_for_ever() {
    let (_folder, image, volume) = empty_volume();
    volume.create_dir_all("d/e").unwrap();
    volume.close().unwrap();
    drop(volume);
    run(Command::new("debugfs").args(["-w", "-R", "ln d d/e/loop"]).arg(&image));
    let volume = VolumeOptions::new().writable(true).open(&image).unwrap();
    let corrupt = volume.remove_dir_all("d").unwrap_err();
    let is_cycle = |error: &Error| matches!(error, Error::Corrupt(corrupt) if corrupt.problem == Problem::Cycle);
    assert!(is_cycle(&corrupt), "{corrupt:?}");
}

#[test]
fn a_directory_with_a_name_in_a_removed_one_keeps_its_contents() {
    let (_folder, image, volume) = empty_volume();
    volume.create_dir_all("d/e").unwrap();
    volume.create_dir_all("other").unwrap();
    volume.write("other/file", "kept").unwrap();
    volume.close().unwrap();
    drop(volume);
    for (target, name) in [("other", "d/e/x"), ("/", "d/y")] {
        run(Command::new("debugfs").args(["-w", "-R", &format!("ln {target} {name}")]).arg(&image));
        let volume = VolumeOptions::new().writable(true).open(&image).unwrap();
        let refused = volume.remove_dir_all("d").unwrap_err();
        assert!(matches!(refused, Error::Corrupt(_)), "{refused:?}");
        assert_eq!(volume.read("other/file").unwrap(), b"kept");
        volume.create_dir_all("d/e").unwrap();
        volume.close().unwrap();
    }
}

#[test]
fn a_path_that_ends_in_dots_removes_nothing() {
    let (_folder, image, volume) = empty_volume();
    volume.create_dir_all("d/e").unwrap();
    volume.write("d/e/file", "kept").unwrap();
    assert_eq!(volume.remove_dir_all("").unwrap_err(), Error::NotFound);
    for path in ["/", ".", "/.", "/..", "d/.", "d/..", "d/e/..", "d/e/../"] {
        let refused = volume.remove_dir_all(path);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{path}: {refused:?}");
    }
    assert_eq!(volume.read("d/e/file").unwrap(), b"kept");
    close(volume, &image);
}

#[test]
fn nodes_of_another_volume_are_refused() {
    let (_folder, image, volume) = empty_volume();
    let (_other_folder, other_image, other) = empty_volume();
    other.write("file", "contents").unwrap();
    let (root, other_root) = (volume.root().unwrap(), other.root().unwrap());
    let file = other.resolve(b"/file", Follow::Yes).unwrap();
    let refused = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
    };
    refused(volume.link(&root, b"name", &file));
    refused(volume.link(&other_root, b"name", &file));
    refused(volume.lookup(&other_root, b"file").map(drop));
    refused(volume.unlink(&other_root, b"file", &Credentials::ROOT));
    let (from, to) = ((&other_root, &b"file"[..]), (&root, &b"file"[..]));
    refused(volume.rename_in(from, to, RenameFlags::default(), &Credentials::ROOT));
    close(volume, &image);
    close(other, &other_image);
}

#[test]
fn a_missing_or_used_image_is_an_error_of_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let missing = VolumeOptions::new().open(folder.path().join("missing")).unwrap_err();
    assert_eq!(io::Error::from(missing).kind(), ErrorKind::NotFound);
    let (_folder, image, volume) = empty_volume();
    let refused = VolumeOptions::new().writable(true).open(&image).unwrap_err();
    assert_eq!(io::Error::from(refused).kind(), ErrorKind::ResourceBusy);
    close(volume, &image);
}
