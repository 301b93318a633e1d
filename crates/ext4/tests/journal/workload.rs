//! A writer that fills a journal with changes of all kinds.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, XattrFlags};
use testkit::Random;

/// The kinds of operations that a writer may use.
#[derive(Clone, Copy, Debug)]
pub struct Operations {
    /// Extended attributes and preallocation, for which Linux writes full transactions instead of
    /// fast commits.
    pub attributes: bool,
    /// Creating directories.
    pub directories: bool,
    /// Creating and removing directories with hundreds of names.
    pub crowds: bool,
    /// Unlinking files that stay open.
    pub orphans: bool,
    /// Creating symbolic links, which have the same effect as attributes.
    pub symlinks: bool,
}

impl Operations {
    pub const ALL: Self =
        Self { attributes: true, directories: true, crowds: true, orphans: true, symlinks: true };
}

/// A writer that changes files below `top` at random.
pub struct Writer {
    top: PathBuf,
    random: Random,
    operations: Operations,
    /// The names that exist. A name is missing here, or too many, if an operation failed partly.
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    held: Vec<File>,
    seed: u64,
    made: u64,
}

impl Writer {
    pub fn new(top: &Path, seed: u64, operations: Operations) -> Self {
        Self {
            top: top.to_owned(),
            random: Random(seed),
            operations,
            files: Vec::new(),
            directories: vec![top.to_owned()],
            held: Vec::new(),
            seed,
            made: 0,
        }
    }

    /// Makes `changes` changes. Returns earlier if `stop` is set, or if the file system is shut
    /// down.
    pub fn run(&mut self, changes: u64, stop: &AtomicBool) {
        let _ = fs::create_dir_all(&self.top);
        for _ in 0..changes {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = self.change() {
                // The errors of a shutdown: EIO, EROFS, ESHUTDOWN. Other errors are expected: the
                // volume may be full, and an earlier operation may have failed partly.
                if matches!(error.raw_os_error(), Some(5 | 30 | 108)) {
                    return;
                }
            }
        }
    }

    /// Creates and commits a directory with many names, in which later operations create further
    /// names.
    pub fn prepare(&mut self) -> io::Result<()> {
        let path = self.top.join("many");
        if !path.exists() {
            fs::create_dir_all(&path)?;
            for number in 0..400 {
                File::create(path.join(format!("{number}-{}", "p".repeat(60))))?;
            }
        }
        self.directories.push(path);
        rustix::fs::syncfs(File::open(&self.top)?)?;
        Ok(())
    }

    /// Syncs every file, and so commits all names.
    pub fn sync_files(&mut self) {
        for file in &self.files {
            if let Ok(file) = File::open(file) {
                let _ = file.sync_all();
            }
        }
        // The removal of names is committed only together with another change.
        if let Ok(file) = File::create(self.top.join("last")) {
            let _ = file.sync_all();
        }
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        // A quarter of the data looks like control blocks of the journal.
        if self.random.below(4) == 0 {
            let mut bytes = vec![0; length as usize];
            for chunk in bytes.chunks_exact_mut(1024) {
                chunk[..8].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 2]);
            }
            return bytes;
        }
        let seed = self.random.draw();
        (0..length).map(|at| (seed.wrapping_add(at).wrapping_mul(0x2545_F491) >> 7) as u8).collect()
    }

    fn any_file(&mut self) -> PathBuf {
        let at = self.random.below(self.files.len().max(1) as u64) as usize;
        self.files.get(at).cloned().unwrap_or_else(|| self.top.join("none"))
    }

    fn new_name(&mut self) -> PathBuf {
        self.made += 1;
        let at = self.random.below(self.directories.len() as u64) as usize;
        let length = 1 + self.random.below(60) as usize;
        let name = format!("{}-{}-{}", self.seed, self.made, "n".repeat(length));
        self.directories[at].join(name)
    }

    fn remove_name(&mut self, path: &Path) {
        self.files.retain(|file| file != path);
    }

    fn change(&mut self) -> io::Result<()> {
        match self.random.below(24) {
            0..=5 => self.create(),
            6..=8 => self.append(),
            9..=10 => self.overwrite(),
            11..=12 => self.truncate(),
            13..=14 => self.rename(),
            15..=17 => self.unlink(),
            18 => self.link(),
            19 if self.operations.directories => self.make_directory(),
            20 if self.operations.crowds => self.crowd(),
            21 if self.operations.attributes => self.attribute(),
            22 if self.operations.attributes => self.allocate(),
            23 if self.operations.orphans => self.orphan(),
            _ => self.sync(),
        }
    }

    fn create(&mut self) -> io::Result<()> {
        let path = self.new_name();
        self.files.push(path.clone());
        if self.random.below(8) == 0 && self.operations.symlinks {
            let length = 1 + self.random.below(120) as usize;
            return symlink("t".repeat(length), path);
        }
        let length = match self.random.below(4) {
            0 => self.random.below(200),
            1 => 50_000 + self.random.below(300_000),
            _ => self.random.below(20_000),
        };
        let mut file = File::create(path)?;
        file.write_all(&self.bytes(length))?;
        if self.random.below(3) == 0 { file.sync_all() } else { Ok(()) }
    }

    fn append(&mut self) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(self.any_file())?;
        let length = self.random.below(30_000);
        file.write_all(&self.bytes(length))?;
        file.sync_all()
    }

    fn overwrite(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.any_file())?;
        let (at, length) = (self.random.below(400_000), self.random.below(9000));
        file.write_all_at(&self.bytes(length), at)
    }

    fn truncate(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.any_file())?;
        let length = file.metadata()?.len();
        file.set_len(self.random.below(length + 5000))
    }

    fn rename(&mut self) -> io::Result<()> {
        let from = self.any_file();
        let to = if self.random.below(3) == 0 { self.any_file() } else { self.new_name() };
        fs::rename(&from, &to)?;
        // A rename between two names of one file does nothing.
        if fs::symlink_metadata(&from).is_err() {
            self.remove_name(&from);
        }
        self.remove_name(&to);
        self.files.push(to);
        Ok(())
    }

    fn unlink(&mut self) -> io::Result<()> {
        let path = self.any_file();
        self.remove_name(&path);
        fs::remove_file(path)
    }

    fn link(&mut self) -> io::Result<()> {
        let (from, to) = (self.any_file(), self.new_name());
        fs::hard_link(from, &to)?;
        self.files.push(to);
        Ok(())
    }

    fn make_directory(&mut self) -> io::Result<()> {
        let path = self.new_name();
        fs::create_dir(&path)?;
        if self.directories.len() < 20 {
            self.directories.push(path);
        }
        Ok(())
    }

    /// Creates a directory of many blocks, and mostly removes it again. Its blocks are revoked, and
    /// are then used for data.
    fn crowd(&mut self) -> io::Result<()> {
        self.made += 1;
        let path = self.top.join(format!("crowd-{}-{}", self.seed, self.made));
        fs::create_dir(&path)?;
        for number in 0..100 + self.random.below(200) {
            File::create(path.join(format!("{number}-{}", "x".repeat(80))))?;
        }
        if self.random.below(2) == 0 {
            self.sync()?;
        }
        if self.random.below(4) == 0 {
            return Ok(());
        }
        fs::remove_dir_all(path)?;
        let path = self.new_name();
        let mut file = File::create(&path)?;
        self.files.push(path);
        file.write_all(&self.bytes(60_000))?;
        file.sync_all()
    }

    fn attribute(&mut self) -> io::Result<()> {
        let path = self.any_file();
        let name = format!("user.{}", self.random.below(4));
        let length = if self.random.below(2) == 0 { 20 } else { self.random.below(700) };
        let value = self.bytes(length);
        rustix::fs::lsetxattr(path, name, &value, XattrFlags::empty())?;
        Ok(())
    }

    fn allocate(&mut self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.any_file())?;
        let flags = match self.random.below(3) {
            0 => FallocateFlags::empty(),
            1 => FallocateFlags::KEEP_SIZE,
            _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        let (at, length) = (self.random.below(300_000), 1 + self.random.below(100_000));
        rustix::fs::fallocate(&file, flags, at, length)?;
        Ok(())
    }

    /// Unlinks a file that stays open, so that it keeps its blocks without a name.
    fn orphan(&mut self) -> io::Result<()> {
        if self.held.len() > 8 {
            let at = self.random.below(self.held.len() as u64) as usize;
            drop(self.held.swap_remove(at));
        }
        let path = self.any_file();
        let file = OpenOptions::new().append(true).open(&path)?;
        self.held.push(file);
        self.remove_name(&path);
        fs::remove_file(path)
    }

    fn sync(&mut self) -> io::Result<()> {
        File::open(self.any_file())?.sync_all()
    }
}
