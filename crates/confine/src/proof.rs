//! The proof of a confinement: what the kernel says about the process in /proc.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use rustix::process::{geteuid, getuid};
use rustix::thread::{
    CapabilitySet, SecureComputingMode, capabilities, no_new_privs, secure_computing_mode,
};

use super::Layer;

/// The maximum of what the program maps before it opens a volume, in bytes. For limits where /proc does not tell.
const MAPPED_BYTES_MAX: u64 = 1 << 30;
/// The maximum size of the file, in bytes.
const STATUS_BYTES_MAX: usize = 16 << 10;

/// The file with the process's status, opened while it could be.
#[derive(Debug)]
pub struct Proof {
    status: Result<File, String>,
    /// Whether the kernel is asked by system calls if there is no such file.
    asks: bool,
}

impl Proof {
    /// Opens the calling process's status.
    pub fn open() -> Self {
        let path = "/proc/self/status";
        let status = File::open(path).map_err(|error| format!("{path}: {error}"));
        Self { status, asks: false }
    }

    /// Opens the calling process's status, or asks the kernel by system calls where /proc is not mounted.
    pub fn open_or_ask() -> Self {
        Self { asks: true, ..Self::open() }
    }

    /// Checks that a layer is in force, of a process that keeps the capabilities `kept`, and that this is its only thread,
    /// since others would keep their privileges. Returns what is not.
    pub fn verify(&self, layer: Layer, kept: CapabilitySet) -> Result<(), String> {
        if self.must_ask() {
            return ask(layer, kept);
        }
        let kept = format!("{:016x}", kept.bits());
        let kept = kept.as_str();
        let status = self.read()?;
        require(&status, "Threads:", &["1"])?;
        let facts: &[(&str, &[&str])] = match layer {
            Layer::NoNewPrivileges => &[("NoNewPrivs:", &["1"])],
            Layer::User => return require_user(&status),
            Layer::Capabilities => &[
                ("CapInh:", &[NO_CAPABILITIES]),
                ("CapPrm:", &[kept]),
                ("CapEff:", &[kept]),
                ("CapAmb:", &[NO_CAPABILITIES]),
            ],
            Layer::SystemCalls => &[("Seccomp:", &["2"])],
            // `files` and `limits` verify them: /proc does not show one, and the kernel returns the others.
            Layer::Landlock | Layer::Root | Layer::Limits => &[],
        };
        facts.iter().try_for_each(|(name, expected)| require(&status, name, expected))
    }

    /// Returns how much of the address space is mapped, in bytes.
    pub fn mapped_bytes(&self) -> Result<u64, String> {
        if self.must_ask() {
            return Ok(MAPPED_BYTES_MAX);
        }
        let status = self.read()?;
        let words = words_of(&status, "VmSize:")?;
        let kibibytes = words.first().and_then(|word| word.parse::<u64>().ok());
        Ok(kibibytes.ok_or("/proc shows no size of the address space")? << 10)
    }

    fn must_ask(&self) -> bool {
        self.asks && self.status.is_err()
    }

    fn read(&self) -> Result<String, String> {
        let file =
            self.status.as_ref().map_err(|error| format!("it cannot be verified: {error}"))?;
        let mut bytes = vec![0; STATUS_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0);
        let length = length.map_err(|error| format!("it cannot be verified: /proc: {error}"))?;
        bytes.truncate(length);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Asks the kernel by a system call whether a layer is in force. Returns what is not.
fn ask(layer: Layer, kept: CapabilitySet) -> Result<(), String> {
    let is_applied = match layer {
        Layer::NoNewPrivileges => no_new_privs(),
        Layer::User => Ok(!getuid().is_root() && !geteuid().is_root()),
        Layer::Capabilities => capabilities(None).map(|sets| {
            [sets.effective, sets.permitted] == [kept, kept] && sets.inheritable.is_empty()
        }),
        Layer::SystemCalls => match secure_computing_mode() {
            // The filter does not allow the question.
            Err(Errno::NOSYS) => Ok(true),
            mode => mode.map(|mode| mode == SecureComputingMode::Filter),
        },
        Layer::Landlock | Layer::Root | Layer::Limits => Ok(true),
    };
    match is_applied {
        Ok(true) => Ok(()),
        Ok(false) => Err("the kernel says that it is not in force".to_owned()),
        Err(errno) => Err(format!("it cannot be verified: {errno}")),
    }
}

/// An empty set of capabilities, in /proc.
const NO_CAPABILITIES: &str = "0000000000000000";

/// Checks that no user of the process is root.
fn require_user(status: &str) -> Result<(), String> {
    let users = words_of(status, "Uid:")?;
    if users.contains(&"0") { Err(format!("/proc shows Uid: {}", users.join(" "))) } else { Ok(()) }
}

/// Checks that the line `name` has the words `expected`.
fn require(status: &str, name: &str, expected: &[&str]) -> Result<(), String> {
    let words = words_of(status, name)?;
    if words == expected { Ok(()) } else { Err(format!("/proc shows {name} {}", words.join(" "))) }
}

fn words_of<'s>(status: &'s str, name: &str) -> Result<Vec<&'s str>, String> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.ok_or(format!("/proc does not show {name}"))?.split_whitespace().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_compared_with_the_status() {
        let status = "Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t1\t1\t1\t1\nGroups:\t\nNoNewPrivs:\t1\n";
        assert_eq!(require(status, "NoNewPrivs:", &["1"]), Ok(()));
        assert!(require(status, "NoNewPrivs:", &["0"]).unwrap_err().contains("NoNewPrivs: 1"));
        assert!(require(status, "Seccomp:", &["2"]).unwrap_err().contains("Seccomp:"));
        assert!(require_user(status).unwrap_err().contains("Uid: 0"));
    }

    #[test]
    fn a_process_with_other_threads_is_not_confined() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        let refused = Proof::open().verify(Layer::Limits, CapabilitySet::empty()).unwrap_err();
        assert!(refused.contains("Threads:"), "{refused}");
        drop(end);
        assert!(other.join().unwrap().is_err());
    }

    #[test]
    fn without_proc_nothing_is_verified() {
        let proof = Proof { status: Err("/proc/self/status: missing".to_owned()), asks: false };
        let none = CapabilitySet::empty();
        assert!(proof.verify(Layer::SystemCalls, none).unwrap_err().contains("missing"));
        // The kernel can be asked. The test has no filter.
        let proof = Proof { asks: true, ..proof };
        assert!(proof.verify(Layer::SystemCalls, none).unwrap_err().contains("not in force"));
    }
}
