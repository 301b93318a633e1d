//! Images made with e2fsprogs for the tests of this crate, and what its tools say of them.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::{MemoryDevice, SharedDevice};
use ext4::{OpenOptions, Volume};
use iomap::{CacheOptions, PageCache};

/// A folder that goes with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bifolio-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, data: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, data).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An image file.
pub struct Image {
    pub scratch: Scratch,
    pub path: PathBuf,
}

impl Image {
    /// `mke2fs` with `options` on `megabytes` MiB.
    pub fn make(megabytes: u64, options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let path = scratch.path("image");
        std::fs::File::create(&path).unwrap().set_len(megabytes << 20).unwrap();
        // An own configuration, so that a distribution's defaults do not matter.
        let config = scratch.write("mke2fs.conf", MKE2FS_CONF);
        let mut command = Command::new("mke2fs");
        command.env("MKE2FS_CONFIG", config).args(["-q", "-F"]).args(options).arg(&path);
        run(command.env("E2FSPROGS_FAKE_TIME", "1600000000"));
        Self { scratch, path }
    }

    /// Runs `debugfs` commands that change the image.
    pub fn debugfs_write(&self, commands: &str) -> String {
        let script = self.scratch.write("commands", commands.as_bytes());
        run(Command::new("debugfs").arg("-w").arg("-f").arg(script).arg(&self.path))
    }

    /// What one `debugfs` command says.
    pub fn debugfs(&self, command: &str) -> String {
        run(Command::new("debugfs").args(["-R", command]).arg(&self.path))
    }

    /// A field of `dumpe2fs -h`.
    pub fn dumpe2fs(&self, field: &str) -> Option<String> {
        let text = run(Command::new("dumpe2fs").arg("-h").arg(&self.path));
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.trim().to_owned())
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    pub fn open(&self) -> Arc<Volume> {
        open(self.bytes()).unwrap()
    }
}

/// The volume in `bytes`.
pub fn open(bytes: Vec<u8>) -> base::Result<Arc<Volume>> {
    let device: SharedDevice = Arc::new(MemoryDevice::new(bytes));
    let cache = PageCache::new(CacheOptions::default())?;
    Volume::open(device, &cache, &OpenOptions::default())
}

pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("the tool must be installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{text}\n{errors}");
    text
}

pub fn have(path: &str) -> bool {
    Path::new(path).exists()
}

const MKE2FS_CONF: &[u8] = b"[defaults]
    base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
    default_mntopts = acl,user_xattr
    enable_periodic_fsck = 0
    blocksize = 4096
    inode_size = 256
    inode_ratio = 16384
[fs_types]
    ext2 = {
    }
    ext3 = {
        features = has_journal
    }
    ext4 = {
        features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
    }
";
