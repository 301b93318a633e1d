//! Long random sequences of system calls on a mount of bifolio and on the kernel's ext4. Each call
//! has the same outcome on both, and the trees are equal at the end. BIFOLIO_SEED sets the seed,
//! and BIFOLIO_SOAK_FACTOR multiplies the length.
#![allow(clippy::print_stdout, reason = "prints the seed")]

mod mounting;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mounting::Fixture;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, StatxFlags, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use testkit::{LoopMount, Manifest, Mke2fs, Random, check_by_e2fsck, private_mounts, soak_factor};

/// Number of calls.
const CALLS: u64 = 4000;
const SEED: u64 = 17;
/// Maximum number of open files.
const OPEN_MAX: usize = 4;
/// Inode flags for inline data and extents.
const INLINE_OR_EXTENTS: u32 = 0x1008_0000;

/// Random choice of calls and arguments.
struct Choice(Random);

impl Choice {
    fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns a random path. Paths repeat often.
    fn path(&mut self) -> PathBuf {
        // In a large directory, so that it gets a hash index.
        if self.below(4) == 0 {
            return format!("many/a-name-of-some-length-{:050}", self.below(400)).into();
        }
        let mut path = PathBuf::new();
        for _ in 0..self.pick(&[1, 1, 2, 2, 2, 3]) {
            path.push(self.pick(&["a", "b", "c", "d"]));
        }
        path
    }

    fn data(&mut self) -> Vec<u8> {
        let length = self.pick(&[1, 10, 900, 4096, 5000, 20_000, 70_000]);
        let first = self.below(256) as u8;
        (0..length).map(|at: usize| first.wrapping_add((at / 7) as u8)).collect()
    }

    fn offset(&mut self) -> u64 {
        let unit = self.pick(&[1, 512, 4096, 30_000]);
        self.below(60) * unit
    }
}

/// A call and its arguments.
#[derive(Debug)]
enum Call {
    Mkdir(PathBuf, u32),
    Mknod(PathBuf, FileType, u32, u64),
    Symlink(PathBuf, usize),
    Link(PathBuf, PathBuf),
    Unlink(PathBuf),
    Rmdir(PathBuf),
    Rename(PathBuf, PathBuf, RenameFlags),
    Chmod(PathBuf, u32),
    Chown(PathBuf, Option<u32>, Option<u32>),
    Times(PathBuf, i64, i64),
    SetXattr(PathBuf, &'static str, Vec<u8>, XattrFlags),
    RemoveXattr(PathBuf, &'static str),
    Xattrs(PathBuf),
    Flags(PathBuf, IFlags),
    Stat(PathBuf),
    List(PathBuf),
    Write(PathBuf, OFlags, u64, Vec<u8>),
    Read(PathBuf),
    Truncate(PathBuf, u64),
    Copy(PathBuf, PathBuf, u64, u64, usize),
    Unnamed(PathBuf, Option<PathBuf>, Vec<u8>),
    Open(usize, PathBuf, OFlags),
    WriteOpen(usize, u64, Vec<u8>),
    ReadOpen(usize),
    TruncateOpen(usize, u64),
    SyncOpen(usize, bool),
    Close(usize),
    SyncAll,
}

impl Call {
    fn choose(choice: &mut Choice) -> Self {
        use Call::*;
        let open = choice.below(OPEN_MAX as u64) as usize;
        let path = choice.path();
        let mode = choice.pick(&[0o644, 0o755, 0o600, 0o2755, 0o4711, 0o1777, 0o070]);
        match choice.below(100) {
            0..=9 => Mkdir(path, mode),
            10..=13 => {
                use FileType::*;
                let kind = choice.pick(&[Fifo, Socket, CharacterDevice, BlockDevice, RegularFile]);
                Mknod(path, kind, mode, rustix::fs::makedev(choice.pick(&[1, 259]), 70_000))
            }
            14..=16 => Symlink(path, choice.pick(&[1, 59, 60, 61, 1000, 4000])),
            17..=20 => Link(choice.path(), path),
            21..=27 => Unlink(path),
            28 => Rmdir(path),
            29..=40 => {
                use RenameFlags as R;
                let flags = [R::empty(), R::empty(), R::NOREPLACE, R::EXCHANGE, R::WHITEOUT];
                Rename(choice.path(), path, choice.pick(&flags))
            }
            41..=42 => Chmod(path, mode),
            43..=44 => {
                let id = |choice: &mut Choice| choice.pick(&[None, Some(0), Some(7), Some(70_000)]);
                Chown(path, id(choice), id(choice))
            }
            45..=46 => {
                Times(path, choice.below(1 << 33) as i64, choice.below(1_000_000_000) as i64)
            }
            47..=50 => {
                let value = vec![b'v'; choice.pick(&[0, 1, 40, 300, 700])];
                use XattrFlags as X;
                let flags = choice.pick(&[X::empty(), X::CREATE, X::REPLACE]);
                SetXattr(path, choice.pick(&XATTRS), value, flags)
            }
            51 => RemoveXattr(path, choice.pick(&XATTRS)),
            52 => Xattrs(path),
            53 => Flags(path, choice.pick(&[IFlags::NODUMP, IFlags::NOATIME, IFlags::empty()])),
            54..=55 => Stat(path),
            56 => List(path),
            57..=70 => {
                use OFlags as O;
                let flags = [O::empty(), O::CREATE, O::EXCL, O::TRUNC, O::APPEND, O::CREATE];
                let flags = O::CREATE | choice.pick(&flags);
                Write(path, flags, choice.offset(), choice.data())
            }
            71..=74 => Read(path),
            75..=78 => Truncate(path, choice.offset()),
            79..=82 => {
                let length = choice.pick(&[100, 5000, 200_000]);
                Copy(choice.path(), path, choice.offset(), choice.offset(), length)
            }
            83..=84 => {
                let name = (choice.below(3) > 0).then(|| choice.path());
                Unnamed(path, name, choice.data())
            }
            85..=88 => {
                use OFlags as O;
                let flags = [O::RDWR, O::RDWR | O::APPEND, O::RDWR | O::CREATE, O::RDONLY];
                Open(open, path, choice.pick(&flags))
            }
            89..=92 => WriteOpen(open, choice.offset(), choice.data()),
            93..=94 => ReadOpen(open),
            95..=96 => TruncateOpen(open, choice.offset()),
            97 => SyncOpen(open, choice.below(2) == 0),
            98 => Close(open),
            _ => SyncAll,
        }
    }
}

const XATTRS: [&str; 4] = ["user.one", "user.two", "trusted.three", "security.four"];

/// A mount, and its open files.
struct Side {
    root: PathBuf,
    open: [Option<File>; OPEN_MAX],
}

/// Formats the result of a call.
fn text<T: std::fmt::Debug>(result: Result<T, Errno>) -> String {
    format!("{result:?}")
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap()
}

impl Side {
    fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), open: Default::default() }
    }

    fn run(&mut self, call: &Call) -> String {
        use Call::*;
        let at = |path: &PathBuf| self.root.join(path);
        match call {
            Mkdir(path, mode) => text(rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode))),
            Mknod(path, kind, mode, device) => {
                let mode = Mode::from_raw_mode(*mode);
                text(rustix::fs::mknodat(CWD, at(path), *kind, mode, *device))
            }
            Symlink(path, length) => text(rustix::fs::symlink("t".repeat(*length), at(path))),
            Link(from, to) => text(rustix::fs::link(at(from), at(to))),
            Unlink(path) => text(rustix::fs::unlink(at(path))),
            Rmdir(path) => text(rustix::fs::rmdir(at(path))),
            Rename(from, to, flags) => {
                text(rustix::fs::renameat_with(CWD, at(from), CWD, at(to), *flags))
            }
            Chmod(path, mode) => text(rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode))),
            Chown(path, uid, gid) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                text(rustix::fs::chownat(CWD, at(path), uid, gid, flags))
            }
            Times(path, seconds, nanoseconds) => {
                let time = Timespec { tv_sec: *seconds, tv_nsec: *nanoseconds };
                let times = Timestamps { last_access: time, last_modification: time };
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let done = rustix::fs::utimensat(CWD, at(path), &times, flags);
                let stat = done.and_then(|()| stat(&at(path)));
                text(stat.map(|stat| {
                    [stat.stx_atime, stat.stx_mtime].map(|time| (time.tv_sec, time.tv_nsec))
                }))
            }
            SetXattr(path, name, value, flags) => {
                text(rustix::fs::lsetxattr(at(path), *name, value, *flags))
            }
            RemoveXattr(path, name) => text(rustix::fs::lremovexattr(at(path), *name)),
            Xattrs(path) => text(xattrs(&at(path))),
            Flags(path, flags) => text(set_flags(&at(path), *flags)),
            Stat(path) => text(stat(&at(path)).map(|stat| {
                // Sizes of directories depend on the format.
                let is_directory = stat.stx_mode & 0o170_000 == 0o040_000;
                let size = if is_directory { 0 } else { stat.stx_size };
                (stat.stx_mode, stat.stx_nlink, stat.stx_uid, stat.stx_gid, size)
            })),
            List(path) => text(list(&at(path))),
            Write(path, flags, offset, data) => text(
                open(&at(path), OFlags::RDWR | *flags).and_then(|file| write(&file, *offset, data)),
            ),
            Read(path) => text(open(&at(path), OFlags::RDONLY).and_then(|file| read(&file))),
            Truncate(path, size) => {
                let file = open(&at(path), OFlags::WRONLY);
                text(file.and_then(|file| rustix::fs::ftruncate(&file, *size)))
            }
            Copy(from, to, from_offset, to_offset, length) => {
                let from = open(&at(from), OFlags::RDONLY);
                let to = open(&at(to), OFlags::WRONLY | OFlags::CREATE);
                let files = from.and_then(|from| to.map(|to| (from, to)));
                text(
                    files
                        .and_then(|(from, to)| copy(&from, *from_offset, &to, *to_offset, *length)),
                )
            }
            Unnamed(directory, name, data) => {
                let name = name.as_ref().map(at);
                text(unnamed(&at(directory), name.as_deref(), data))
            }
            Open(index, path, flags) => {
                let opened = open(&at(path), *flags);
                let result = text(opened.as_ref().map(drop).map_err(|error| *error));
                self.open[*index] = opened.ok();
                result
            }
            Close(index) => text(Ok(self.open[*index].take().is_some())),
            WriteOpen(index, offset, data) => {
                self.with_open(*index, |file| write(file, *offset, data))
            }
            ReadOpen(index) => self.with_open(*index, read),
            TruncateOpen(index, size) => {
                self.with_open(*index, |file| rustix::fs::ftruncate(file, *size))
            }
            SyncOpen(index, data_only) => self.with_open(*index, |file| match data_only {
                true => rustix::fs::fdatasync(file),
                false => rustix::fs::fsync(file),
            }),
            SyncAll => text(open(&self.root, OFlags::RDONLY).and_then(rustix::fs::syncfs)),
        }
    }

    fn with_open<T: std::fmt::Debug>(
        &self,
        index: usize,
        work: impl FnOnce(&File) -> Result<T, Errno>,
    ) -> String {
        self.open[index].as_ref().map_or_else(|| "not open".to_owned(), |file| text(work(file)))
    }
}

fn stat(path: &Path) -> Result<rustix::fs::Statx, Errno> {
    rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
}

/// Opens a file. Refuses fifos and devices, because opening them may block.
fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let is_special = stat(path)
        .is_ok_and(|stat| matches!(stat.stx_mode & 0o170_000, 0o020_000 | 0o060_000 | 0o010_000));
    if is_special {
        return Err(Errno::NODEV);
    }
    let mut options = OpenOptions::new();
    let access = flags & OFlags::ACCMODE;
    options.read(access != OFlags::WRONLY).write(access != OFlags::RDONLY).mode(0o640);
    options.custom_flags((flags - OFlags::ACCMODE - OFlags::APPEND).bits() as i32);
    options.append(flags.contains(OFlags::APPEND));
    options.open(path).map_err(|error| errno(&error))
}

fn write(file: &File, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    file.write_at(data, offset).map_err(|error| errno(&error))
}

/// Reads a file. Returns the length and a digest of its contents.
fn read(file: &File) -> Result<(usize, u64), Errno> {
    let mut data = Vec::new();
    let mut part = vec![0; 1 << 20];
    loop {
        let length = file.read_at(&mut part, data.len() as u64).map_err(|error| errno(&error))?;
        if length == 0 {
            break;
        }
        data.extend_from_slice(&part[..length]);
    }
    // FNV-1a
    let hash = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Ok((data.len(), hash))
}

fn copy(from: &File, at: u64, to: &File, to_at: u64, length: usize) -> Result<usize, Errno> {
    let (mut at, mut to_at) = (at, to_at);
    let mut done = 0;
    // One call may copy only a part.
    while done < length {
        let left = length - done;
        match rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), left)? {
            0 => break,
            part => done += part,
        }
    }
    Ok(done)
}

fn unnamed(directory: &Path, name: Option<&Path>, data: &[u8]) -> Result<usize, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = File::from(rustix::fs::open(directory, flags, Mode::from_raw_mode(0o4750))?);
    let written = write(&file, 3, data)?;
    if let Some(name) = name {
        let here = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, here, CWD, name, AtFlags::SYMLINK_FOLLOW)?;
    }
    Ok(written)
}

fn set_flags(path: &Path, flags: IFlags) -> Result<u32, Errno> {
    let file = open(path, OFlags::RDONLY)?;
    let ours = IFlags::NODUMP | IFlags::NOATIME;
    let now = rustix::fs::ioctl_getflags(&file)?;
    rustix::fs::ioctl_setflags(&file, (now - ours) | flags)?;
    Ok((rustix::fs::ioctl_getflags(&file)? & ours).bits())
}

fn xattrs(path: &Path) -> Result<Vec<String>, Errno> {
    let mut buffer = [0; 4096];
    let length = rustix::fs::llistxattr(path, &mut buffer[..])?;
    let names = String::from_utf8_lossy(&buffer[..length]).into_owned();
    let mut all = BTreeSet::new();
    for name in names.split_terminator('\0') {
        let length = rustix::fs::lgetxattr(path, name, &mut buffer[..])?;
        all.insert(format!("{name}={}", String::from_utf8_lossy(&buffer[..length])));
    }
    Ok(all.into_iter().collect())
}

fn list(path: &Path) -> Result<BTreeSet<String>, Errno> {
    let entries = fs::read_dir(path).map_err(|error| errno(&error))?;
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(|error| errno(&error))?;
        let kind = entry.file_type().map_err(|error| errno(&error))?;
        let new = names.insert(format!("{:?} {kind:?}", entry.file_name()));
        assert!(new, "{:?} is listed twice", entry.file_name());
    }
    Ok(names)
}

/// Returns the facts that must be equal on both sides: without block addresses, times and the flags
/// `ignored`.
fn facts(root: &Path, ignored: u32) -> Manifest {
    Manifest::of_host(root).without_tree("(volume)").map(|_, mode, fact, value| {
        let is_kept = match fact {
            "mode" | "links" | "owner" | "device" | "target" | "contents" | "flags" => true,
            "size" => !mode.starts_with("04"),
            fact => fact.starts_with("xattr"),
        };
        // Whether a directory has a hash index depends on the fill of its blocks.
        let is_directory_flag = fact == "flags" && mode.starts_with("04");
        let value = match fact {
            "flags" => without_flags(value, ignored),
            _ => value.to_owned(),
        };
        (is_kept && !is_directory_flag).then_some(value)
    })
}

fn without_flags(value: &str, ignored: u32) -> String {
    let flags = value.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    format!("{:#x}", flags.unwrap_or_else(|| panic!("no flags: {value}")) & !ignored)
}

/// A volume and its mount options.
#[derive(Clone, Copy)]
struct Subject {
    format: &'static str,
    block_size: u32,
    /// Options for mke2fs.
    options: &'static str,
    /// Options for the mount.
    arguments: &'static [&'static str],
}

const DEFAULT: Subject = Subject { format: "ext4", block_size: 4096, options: "", arguments: &[] };

/// Creates the initial tree. With inline_data, mke2fs stores some files inline.
fn make_tree(top: &Path) {
    for directory in ["many", "a", "b", "b/a", "b/b", "c", "c/c"] {
        fs::create_dir_all(top.join(directory)).unwrap();
    }
    for (length, name) in (0..).step_by(17).zip(["d", "a/a", "a/b", "a/c", "b/c", "c/a", "c/b"]) {
        fs::write(top.join(name), vec![b'i'; length]).unwrap();
    }
}

fn check(subject: Subject) {
    let Subject { format, block_size, options, arguments } = subject;
    private_mounts();
    let fixture = Fixture::new();
    make_tree(&fixture.source());
    let mut image = Mke2fs::new(format, block_size).with(options);
    image.size = 512 << 20;
    image.make(&fixture.image, Some(&fixture.source()));
    let kernels_image = fixture.folder.path().join("kernels.img");
    // The kernel supports no blocks larger than a page. Its image has no inline data, because this
    // kernel loses it.
    let arguments_for_kernel = image.arguments.replace("inline_data", "^inline_data");
    Mke2fs { block_size: block_size.min(4096), arguments: arguments_for_kernel, ..image }
        .make(&kernels_image, Some(&fixture.source()));

    let kernels = LoopMount::new(&kernels_image, "ext4", "rw");
    let all = [&["-o", "rw,suid,dev"], arguments].concat();
    let mount = fixture.mount(&all);
    let seed = std::env::var("BIFOLIO_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or(SEED);
    println!("BIFOLIO_SEED={seed}, {format}, blocks of {block_size} bytes, {options:?}");
    let mut choice = Choice(Random(seed));
    let mut sides = [Side::new(mount.path()), Side::new(kernels.path())];
    let mut done = 0;
    for number in 0..CALLS * soak_factor() {
        let call = Call::choose(&mut choice);
        let [ours, expected] = sides.each_mut().map(|side| side.run(&call));
        assert_eq!(ours, expected, "call {number}, seed {seed}: {call:?}");
        done += u64::from(ours.starts_with("Ok"));
    }
    assert!(done > CALLS / 4, "only {done} calls succeeded");
    drop(sides);
    let ignored = if options.contains("inline_data") { INLINE_OR_EXTENTS } else { 0 };
    let expected = facts(kernels.path(), ignored);
    assert!(expected.len() > 50, "{}", expected.len());
    facts(mount.path(), ignored).assert_equal("the mount", &expected, "the kernel's ext4");
    kernels.unmount();
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
    if block_size <= 4096 {
        let ours = LoopMount::new(&fixture.image, "ext4", "ro");
        facts(ours.path(), ignored).assert_equal("the image", &expected, "the kernel's ext4");
    } else {
        let ours = fixture.mount(&["-o", "ro"]);
        facts(ours.path(), ignored).assert_equal("the image", &expected, "the kernel's ext4");
    }
}

#[test]
fn random_calls_have_the_outcomes_of_the_kernels_ext4() {
    check(DEFAULT);
}

#[test]
fn random_calls_match_with_small_blocks_and_a_small_cache() {
    let options = "-O metadata_csum_seed,orphan_file";
    check(Subject { block_size: 1024, options, arguments: &["--cache-size", "4M"], ..DEFAULT });
}

#[test]
fn random_calls_match_with_large_blocks() {
    check(Subject { block_size: 65_536, ..DEFAULT });
}

#[test]
fn random_calls_match_on_ext3() {
    check(Subject { format: "ext3", block_size: 1024, ..DEFAULT });
}

#[test]
fn random_calls_match_with_bigalloc() {
    check(Subject { options: "-O bigalloc -C 65536", ..DEFAULT });
}

#[test]
fn random_calls_match_with_inline_data() {
    check(Subject { block_size: 2048, options: "-O inline_data", ..DEFAULT });
}

#[test]
fn random_calls_match_without_a_journal() {
    check(Subject { block_size: 2048, options: "-O ^has_journal", ..DEFAULT });
}
