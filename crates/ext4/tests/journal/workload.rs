//! A busy writer: what keeps a journal full of everything that a journal can hold.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, XattrFlags};
use testkit::Random;

/// What a writer may use.
#[derive(Clone, Copy, Debug)]
pub struct Operations {
    /// Extended attributes and preallocation: these make Linux write full transactions instead of
    /// fast commits.
    pub attributes: bool,
    /// Directories are made and removed.
    pub directories: bool,
    /// Directories with hundreds of names come and go.
    pub crowds: bool,
    /// Files are unlinked while they are open, and stay so.
    pub orphans: bool,
    /// Symbolic links are made; these have the same effect as attributes.
    pub symlinks: bool,
}

impl Operations {
    pub const ALL: Self =
        Self { attributes: true, directories: true, crowds: true, orphans: true, symlinks: true };
}

/// Changes files below `top` at random until told to stop or until the file system is shut down.
pub struct Writer {
    top: PathBuf,
    random: Random,
    operations: Operations,
    /// Names that exist, as far as this writer knows.
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

    /// Makes `steps` changes, or fewer when told to stop. Returns once the file system fails.
    pub fn run(&mut self, steps: u64, stop: &AtomicBool) {
        let _ = fs::create_dir_all(&self.top);
        for _ in 0..steps {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = self.step() {
                // Shut down: EIO, EROFS, ESHUTDOWN. Others come of being full, or of a race
                // with an earlier step.
                if matches!(error.raw_os_error(), Some(5 | 30 | 108)) {
                    return;
                }
            }
        }
    }

    /// Makes a directory of many names, in which more will be made, and commits it.
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

    /// Commits what was written to every file, and with it every name.
    pub fn sync_files(&mut self) {
        for file in &self.files {
            if let Ok(file) = File::open(file) {
                let _ = file.sync_all();
            }
        }
        // Names that went are committed only with something else.
        if let Ok(file) = File::create(self.top.join("last")) {
            let _ = file.sync_all();
        }
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        // Now and then data that looks like a control block of the journal.
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

    fn forget(&mut self, path: &Path) {
        self.files.retain(|file| file != path);
    }

    fn step(&mut self) -> io::Result<()> {
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
        // Between two names of one file it does nothing.
        if fs::symlink_metadata(&from).is_err() {
            self.forget(&from);
        }
        self.forget(&to);
        self.files.push(to);
        Ok(())
    }

    fn unlink(&mut self) -> io::Result<()> {
        let path = self.any_file();
        self.forget(&path);
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

    /// A directory of many blocks that goes again: its blocks are revoked and then hold data.
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

    /// A file without a name that keeps its blocks for as long as it is open.
    fn orphan(&mut self) -> io::Result<()> {
        if self.held.len() > 8 {
            let at = self.random.below(self.held.len() as u64) as usize;
            drop(self.held.swap_remove(at));
        }
        let path = self.any_file();
        let file = OpenOptions::new().append(true).open(&path)?;
        self.held.push(file);
        self.forget(&path);
        fs::remove_file(path)
    }

    fn sync(&mut self) -> io::Result<()> {
        File::open(self.any_file())?.sync_all()
    }
}
