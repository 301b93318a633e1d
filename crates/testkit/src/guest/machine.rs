//! The machines that guests run on: their disks, kernel modules and boot. Not here: what a guest
//! does.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Pid;
use rustix::system::RebootCommand;
use serde::{Deserialize, Serialize};

use crate::host::command::{self, Output};
use crate::must;

/// The time after which a guest is killed. Long, since guests are slow, maybe on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(900);

/// The maximum time between two calls to watch a guest.
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// The size of a guest's memory.
const MEMORY: &str = "2G";

/// Parameters of an emulated kernel that leave out slow work which no file system notices: tests of
/// ciphers, security modules, and programming the timer for each event.
const FASTER: &str = "cryptomgr.notests lsm= highres=off";

/// As [`FASTER`], for the model `pc`: no interpretation of ACPI tables, and no tests of the timer,
/// which fail on busy machines.
const FASTER_ON_PC: &str = "acpi=off no_timer_check tsc=reliable";

/// A machine that runs Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Machine {
    /// Emulated by qemu, which boots in about five seconds. Its ext4 has blocks larger than a page,
    /// and it has no f2fs.
    Emulated,
    /// Emulated by qemu, which boots in about ten seconds, with a kernel that has f2fs with all
    /// features, and no ext4.
    EmulatedF2fs,
    /// Emulated by qemu: an arm64 with pages of 16 KiB, which boots in about ten seconds. Its f2fs
    /// has blocks of 16 KiB. It does not run the test program, but a script with the same jobs,
    /// except for [`Job::Fill`](super::Job::Fill).
    EmulatedF2fs16k,
    /// A process: user-mode Linux, which boots in about a second. It has f2fs, but no blocks larger
    /// than a page, no compression, encryption, verity or casefolding.
    UserMode,
}

/// A disk of a machine.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) image: PathBuf,
    /// The file for a log of all writes.
    pub(super) log: Option<PathBuf>,
}

impl Machine {
    /// Returns the path of disk `number` in the guest.
    pub(super) fn disk(self, number: usize) -> String {
        let letter = char::from(b'a' + u8::try_from(number).expect("few disks"));
        assert!(number < self.disks_max(), "too many disks");
        match self {
            Self::Emulated | Self::EmulatedF2fs | Self::EmulatedF2fs16k => {
                format!("/dev/vd{letter}")
            }
            Self::UserMode => format!("/dev/ubd{letter}"),
        }
    }

    /// Returns the maximum number of disks, with that for the results.
    pub(super) fn disks_max(self) -> usize {
        match self {
            Self::Emulated | Self::EmulatedF2fs | Self::EmulatedF2fs16k => 26,
            Self::UserMode => 16,
        }
    }

    /// Returns the kernel modules that the guest loads, in this order, from its root.
    pub(super) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Emulated => &["virtio_blk.ko", "quota_tree.ko", "quota_v2.ko"],
            Self::EmulatedF2fs => &[
                "virtio_blk.ko",
                "quota_tree.ko",
                "quota_v2.ko",
                "xts.ko",
                "cts.ko",
                "authenc.ko",
                "essiv.ko",
                "libchacha.ko",
                "chacha.ko",
                "libpoly1305.ko",
                "libnh.ko",
                "adiantum.ko",
                "lz4hc_compress.ko",
                "crc32-cryptoapi.ko",
                "f2fs.ko",
            ],
            Self::EmulatedF2fs16k => &[
                "virtio_mmio.ko",
                "virtio_blk.ko",
                "quota_tree.ko",
                "quota_v2.ko",
                "lz4hc_compress.ko",
                "crc32-cryptoapi.ko",
                "f2fs.ko",
            ],
            Self::UserMode => &[
                "lz4_compress.ko",
                "lz4hc_compress.ko",
                "crc32-cryptoapi.ko",
                "f2fs.ko",
                "quota_tree.ko",
                "quota_v2.ko",
            ],
        }
    }

    /// Returns whether the machine runs the test program.
    pub(super) fn is_native(self) -> bool {
        self != Self::EmulatedF2fs16k
    }

    /// Returns how the guest ends its machine.
    pub(super) fn end(self) -> RebootCommand {
        match self {
            Self::Emulated | Self::EmulatedF2fs | Self::EmulatedF2fs16k => RebootCommand::Restart,
            Self::UserMode => RebootCommand::PowerOff,
        }
    }

    /// Boots the machine with its first root and disks, and waits for its end. `scratch` is a
    /// folder for its files. Calls `watch` with its process repeatedly.
    pub(super) fn boot(
        self,
        initrd: &Path,
        disks: &[Disk],
        scratch: &Path,
        watch: &mut dyn FnMut(Pid),
    ) -> Output {
        let mut command = match self {
            Self::Emulated | Self::EmulatedF2fs | Self::EmulatedF2fs16k => {
                self.emulated(initrd, disks)
            }
            Self::UserMode => user_mode(initrd, disks, scratch),
        };
        command::output_watched(&mut command, TIME_MAX, PAUSE_MAX, watch)
    }

    /// Returns the path of a file that a script has fetched.
    pub(super) fn kernel_file(self, name: &str) -> PathBuf {
        let (folder, script) = match self {
            Self::Emulated => ("guest", "fetch-guest"),
            Self::EmulatedF2fs => ("guest-f2fs", "fetch-guest"),
            Self::EmulatedF2fs16k => ("guest-f2fs-16k", "fetch-guest"),
            Self::UserMode => ("uml", "fetch-uml"),
        };
        let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache");
        let path = cache.join(folder).join(name);
        assert!(path.exists(), "no {}: run scripts/{script}", path.display());
        path
    }

    fn emulated(self, initrd: &Path, disks: &[Disk]) -> Command {
        // Where the processor says that it copies bytes fast, Linux copies byte by byte, which is
        // slow if emulated. Signed return addresses of arm64 take two thirds of the emulation's
        // time.
        let (program, model, processor, console) = match self {
            Self::EmulatedF2fs16k => ("qemu-system-aarch64", "virt", "max,pauth=off", "ttyAMA0"),
            _ => ("qemu-system-x86_64", "pc", "max,-erms,-fsrm", "ttyS0"),
        };
        let mut qemu = Command::new(program);
        qemu.args(["-machine", model]);
        // Emulation works on every machine, unlike nested virtualization.
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", processor, "-smp", "1", "-m", MEMORY]);
        qemu.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        qemu.arg("-kernel").arg(self.kernel_file("vmlinuz")).arg("-initrd").arg(initrd);
        let mut line = format!("console={console} quiet panic=-1 rdinit=/init {FASTER}");
        if self != Self::EmulatedF2fs16k {
            line = format!("{line} {FASTER_ON_PC}");
        }
        qemu.arg("-append").arg(line);
        for disk in disks {
            let image = disk.image.display();
            let drive = match &disk.log {
                None => format!("file={image},if=virtio,format=raw,cache=unsafe"),
                Some(log) => {
                    must(File::create(log), log.display());
                    let log = log.display();
                    format!(
                        "driver=blklogwrites,file.driver=file,file.filename={image},file.cache.no-flush=on,\
                         log.driver=file,log.filename={log},log.cache.no-flush=on,if=virtio,cache=writeback"
                    )
                }
            };
            qemu.args(["-drive", &drive]);
        }
        qemu
    }
}

fn user_mode(initrd: &Path, disks: &[Disk], scratch: &Path) -> Command {
    let mut linux = Command::new(Machine::UserMode.kernel_file("linux"));
    linux.arg(format!("mem={MEMORY}")).arg(format!("initrd={}", initrd.display()));
    linux.args(["rdinit=/init", "con=null", "con0=fd:0,fd:1", "quiet", "panic=-1"]);
    // Stack traces would overwrite other messages.
    linux.arg("log_buf_len=1M");
    // Where the machine permits it, programs in the guest run with seccomp instead of ptrace:
    // system calls and page faults take two thirds of the time.
    linux.arg("seccomp=auto");
    // Otherwise, it leaves files in the user's home folder.
    linux.arg(format!("uml_dir={}/", scratch.display()));
    for (number, disk) in disks.iter().enumerate() {
        assert!(disk.log.is_none(), "user-mode Linux does not log writes");
        let path = disk.image.display().to_string();
        assert!(!path.contains([',', ':', ' ']), "user-mode Linux splits the path {path}");
        linux.arg(format!("ubd{number}={path}"));
    }
    linux
}
