//! The proof of a confinement: what the kernel says about the process in /proc.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, dumpable_behavior, getegid, geteuid, getgid, getgroups, getpriority_process,
    getuid,
};
use rustix::thread::{CapabilitySet, capabilities, capability_is_in_bounding_set, no_new_privs};

use super::rights::{Rights, UserParts};
use super::{Layer, privileges};

/// The maximum of what the program maps before it opens a volume, in bytes. For limits where /proc
/// does not tell.
const MAPPED_BYTES_MAX: u64 = 1 << 30;
/// The number of bytes that are read of /proc/self/status.
const STATUS_BYTES_MAX: usize = 16 << 10;

/// The file with the process's status, opened while it could be.
#[derive(Debug)]
pub struct Proof {
    status: Result<File, String>,
    /// The list of the kernel's security modules, if the host shows it.
    modules: Option<File>,
    /// What the process has the right to.
    pub(crate) rights: Rights,
    /// Whether the kernel is asked by system calls if there is no such file.
    asks: bool,
}

/// What must be true of a process once its layers are applied.
#[derive(Debug)]
pub struct Expected {
    /// The capabilities that it keeps.
    kept: CapabilitySet,
    /// The parts of the layer `user`. `None` if it was not root.
    pub(crate) user: Option<UserParts>,
    /// Whether it can empty the bounding set.
    empties_bounding: bool,
    /// The number of filters on system calls that it had. `None` if the kernel does not show it.
    filters: Option<u64>,
}

impl Proof {
    /// Opens the calling process's status.
    pub fn open() -> Self {
        let path = "/proc/self/status";
        let status = File::open(path).map_err(|error| format!("{path}: {error}"));
        let modules = File::open("/sys/kernel/security/lsm").ok();
        Self { status, modules, rights: Rights::of_process(), asks: false }
    }

    /// Opens the calling process's status, or asks the kernel by system calls where /proc is not
    /// mounted.
    pub fn open_or_ask() -> Self {
        Self { asks: true, ..Self::open() }
    }

    /// Returns what must be true of a process that keeps the capabilities `kept`, once its layers
    /// are applied. To be called before that.
    pub(crate) fn expect(&self, kept: CapabilitySet) -> Expected {
        let rights = &self.rights;
        Expected {
            kept,
            user: rights.is_root.then(|| rights.user_parts()),
            empties_bounding: rights.may_empty_bounding_set(),
            filters: self.filters(),
        }
    }

    /// Checks that a layer is in force, and that this is the process's only thread, since others
    /// would keep their privileges. Returns what is not.
    pub fn verify(&self, layer: Layer, expected: &Expected) -> Result<(), String> {
        match layer {
            Layer::NoNewPrivileges => require_no_dumps()?,
            Layer::User if expected.user.is_some() => require_no_dumps()?,
            Layer::SystemCalls => require_refusals()?,
            _ => {}
        }
        if self.must_ask() {
            return ask(layer, expected);
        }
        let kept = format!("{:016x}", expected.kept.bits());
        let kept = kept.as_str();
        let status = self.read()?;
        require(&status, "Threads:", &["1"])?;
        let is_bound = match layer {
            Layer::Capabilities => true,
            Layer::User => expected.user.is_some(),
            _ => false,
        };
        if is_bound && expected.empties_bounding {
            require(&status, "CapBnd:", &[NO_CAPABILITIES])?;
        }
        let facts: &[(&str, &[&str])] = match layer {
            Layer::NoNewPrivileges => &[("NoNewPrivs:", &["1"])],
            Layer::User => {
                return expected
                    .user
                    .map_or_else(|| require_user(&status), |parts| require_nobody(&status, parts));
            }
            Layer::Capabilities => &[
                ("CapInh:", &[NO_CAPABILITIES]),
                ("CapPrm:", &[kept]),
                ("CapEff:", &[kept]),
                ("CapAmb:", &[NO_CAPABILITIES]),
            ],
            Layer::SystemCalls => return require_filter(&status, expected.filters),
            // `files` and `limits` verify them: /proc does not show one, and the kernel returns the
            // others.
            Layer::Landlock | Layer::Chroot | Layer::Limits => &[],
        };
        facts.iter().try_for_each(|(name, expected)| require(&status, name, expected))
    }

    /// [`verify`](Self::verify) for a guard, which may have fewer capabilities than `expected`.
    pub fn verify_guard(&self, layer: Layer, expected: &Expected) -> Result<(), String> {
        if layer != Layer::Capabilities {
            return self.verify(layer, expected);
        }
        let status = self.read()?;
        require(&status, "Threads:", &["1"])?;
        require_capabilities_within(&status, expected)
    }

    /// Returns the number of filters on system calls. `None` if the kernel does not show it (before
    /// Linux 5.9).
    fn filters(&self) -> Option<u64> {
        filters_in(&self.read().ok()?)
    }

    /// Returns whether the process had a filter on system calls before it confined itself, or it is
    /// unknown. To be called before the layer `seccomp` is applied.
    pub(crate) fn was_filtered(&self) -> bool {
        self.read().map_or(true, |status| require(&status, "Seccomp:", &["0"]).is_err())
    }

    /// Returns the names of the kernel's security modules, separated by commas. `None` if the host
    /// does not show them.
    pub(crate) fn security_modules(&self) -> Option<String> {
        let mut bytes = vec![0; STATUS_BYTES_MAX];
        let length = self.modules.as_ref()?.read_at(&mut bytes, 0).ok()?;
        bytes.truncate(length);
        String::from_utf8(bytes).ok()
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

/// Asks the kernel by system calls whether a layer is in force. Returns what is not.
fn ask(layer: Layer, expected: &Expected) -> Result<(), String> {
    let kept = expected.kept;
    let is_applied = match layer {
        Layer::NoNewPrivileges => no_new_privs(),
        Layer::User if expected.user.is_some() => is_nobody(expected),
        Layer::User => Ok(!getuid().is_root() && !geteuid().is_root()),
        Layer::Capabilities => capabilities(None).and_then(|sets| {
            let has_others = [sets.effective, sets.permitted] != [kept, kept];
            let may_inherit = !sets.inheritable.is_empty();
            let is_bound = !expected.empties_bounding || is_bounding_set_empty()?;
            Ok(!has_others && !may_inherit && is_bound)
        }),
        // A system call was refused. The filter does not allow further questions.
        Layer::SystemCalls => Ok(true),
        Layer::Landlock | Layer::Chroot | Layer::Limits => Ok(true),
    };
    match is_applied {
        Ok(true) => Ok(()),
        Ok(false) => Err("the kernel says that it is not in force".to_owned()),
        Err(errno) => Err(format!("it cannot be verified: {errno}")),
    }
}

/// Returns whether the process's user and group are nobody, and it has no other groups and an empty
/// bounding set, as far as that is expected.
fn is_nobody(expected: &Expected) -> Result<bool, Errno> {
    let Some(parts) = expected.user else { return Ok(true) };
    let are_nobody = |ids: [u32; 2]| ids.iter().all(|id| *id == privileges::NOBODY);
    let has_user = !parts.user || are_nobody([getuid(), geteuid()].map(Uid::as_raw));
    let has_group = !parts.group || are_nobody([getgid(), getegid()].map(Gid::as_raw));
    let has_no_groups = !parts.groups || getgroups()?.is_empty();
    let is_bound = !expected.empties_bounding || is_bounding_set_empty()?;
    Ok(has_user && has_group && has_no_groups && is_bound)
}

fn is_bounding_set_empty() -> Result<bool, Errno> {
    for number in 0..u64::BITS {
        match capability_is_in_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(false) => {}
            Ok(true) => return Ok(false),
            // There are no further ones.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Checks that other processes of the user cannot trace this one.
fn require_no_dumps() -> Result<(), String> {
    match dumpable_behavior() {
        Ok(DumpableBehavior::NotDumpable) => Ok(()),
        Ok(_) => Err("other processes of the user can still trace it".to_owned()),
        Err(errno) => Err(format!("it cannot be verified: dumpable: {errno}")),
    }
}

/// Checks that a system call which nothing else refuses fails as the filter says. It returns no
/// process's number: in a PID namespace, numbers from outside of it are 0, which rustix does not
/// expect.
fn require_refusals() -> Result<(), String> {
    match getpriority_process(None) {
        Err(Errno::NOSYS) => Ok(()),
        Ok(_) => Err("getpriority is still allowed".to_owned()),
        Err(errno) => Err(format!("getpriority fails for another reason: {errno}")),
    }
}

/// The number of the user and the group nobody, as /proc shows it.
const NOBODY: &str = "65534";
/// An empty set of capabilities, in /proc.
const NO_CAPABILITIES: &str = "0000000000000000";

/// Checks that the process has no other capabilities than those that it keeps, and can get none.
fn require_capabilities_within(status: &str, expected: &Expected) -> Result<(), String> {
    if expected.empties_bounding {
        require(status, "CapBnd:", &[NO_CAPABILITIES])?;
    }
    require(status, "CapInh:", &[NO_CAPABILITIES])?;
    require(status, "CapAmb:", &[NO_CAPABILITIES])?;
    for name in ["CapPrm:", "CapEff:"] {
        let words = words_of(status, name)?;
        let found = words.first().and_then(|word| u64::from_str_radix(word, 16).ok());
        if found.is_none_or(|found| found & !expected.kept.bits() != 0) {
            return Err(format!("/proc shows {name} {}", words.join(" ")));
        }
    }
    Ok(())
}

/// Checks that the process is nobody, as far as `parts` say.
fn require_nobody(status: &str, parts: UserParts) -> Result<(), String> {
    for (is_part, name, expected) in [
        (parts.user, "Uid:", &[NOBODY; 4][..]),
        (parts.group, "Gid:", &[NOBODY; 4]),
        (parts.groups, "Groups:", &[]),
    ] {
        if is_part {
            require(status, name, expected)?;
        }
    }
    Ok(())
}

/// Checks that no user of the process is root.
fn require_user(status: &str) -> Result<(), String> {
    let users = words_of(status, "Uid:")?;
    if users.contains(&"0") { Err(format!("/proc shows Uid: {}", users.join(" "))) } else { Ok(()) }
}

/// Checks that there is a filter on system calls, and one more than `before`.
fn require_filter(status: &str, before: Option<u64>) -> Result<(), String> {
    require(status, "Seccomp:", &["2"])?;
    match (before, filters_in(status)) {
        (Some(before), Some(now)) if now <= before => {
            Err(format!("/proc shows Seccomp_filters: {now}, as before"))
        }
        _ => Ok(()),
    }
}

fn filters_in(status: &str) -> Option<u64> {
    words_of(status, "Seccomp_filters:").ok()?.first()?.parse().ok()
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

    const EXPECTED: Expected = Expected {
        kept: CapabilitySet::empty(),
        user: Some(UserParts { user: true, group: true, groups: true }),
        empties_bounding: true,
        filters: None,
    };

    #[test]
    fn only_the_parts_of_nobody_that_a_process_has_a_right_to_are_required() {
        let status = "Uid:\t0\t0\t0\t0\nGid:\t65534\t65534\t65534\t65534\nGroups:\t7\n";
        let check = |user, group, groups| {
            require_nobody(status, UserParts { user, group, groups }).err().unwrap_or_default()
        };
        assert_eq!(check(false, true, false), "");
        assert!(check(true, true, false).contains("Uid: 0"));
        assert!(check(false, true, true).contains("Groups: 7"));
    }

    #[test]
    fn a_guard_may_have_fewer_capabilities_than_it_needs_but_no_others() {
        let check = |held: u64, bounding: u64, empties_bounding| {
            let status = format!(
                "CapInh:\t{:016x}\nCapPrm:\t{held:016x}\nCapEff:\t{:016x}\nCapBnd:\t{bounding:016x}\nCapAmb:\t{:016x}\n",
                0, 0, 0
            );
            let expected = Expected { kept: privileges::GUARD, empties_bounding, ..EXPECTED };
            require_capabilities_within(&status, &expected)
        };
        let needed = privileges::GUARD.bits();
        assert_eq!(check(needed, 0, true), Ok(()));
        // In a container, which has taken some from root, and the right to change the bounding set.
        let sys_admin = CapabilitySet::SYS_ADMIN.bits();
        assert_eq!(check(sys_admin, sys_admin, false), Ok(()));
        assert!(check(needed | 1, 0, true).unwrap_err().contains("CapPrm:"));
        assert!(check(needed, 1, true).unwrap_err().contains("CapBnd:"));
        assert!(check(u64::MAX, 0, true).is_err());
    }

    #[test]
    fn a_filter_of_the_host_is_not_taken_for_the_processs_own() {
        let status = "Seccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(require_filter(status, Some(0)), Ok(()));
        assert!(require_filter(status, Some(1)).unwrap_err().contains("as before"));
        // An older kernel.
        assert_eq!(require_filter("Seccomp:\t2\n", None), Ok(()));
        assert!(require_refusals().unwrap_err().contains("getpriority is still allowed"));
    }

    #[test]
    fn a_process_with_other_threads_is_not_confined() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || ended.recv());
        let refused = Proof::open().verify(Layer::Limits, &EXPECTED).unwrap_err();
        assert!(refused.contains("Threads:"), "{refused}");
        drop(end);
        assert!(other.join().unwrap().is_err());
    }

    #[test]
    fn without_proc_nothing_is_verified() {
        let status = Err("/proc/self/status: missing".to_owned());
        let proof = Proof { status, modules: None, rights: Rights::of_process(), asks: false };
        let refused = |proof: &Proof| proof.verify(Layer::Capabilities, &EXPECTED).unwrap_err();
        assert!(refused(&proof).contains("missing"));
        // The kernel can be asked. The test can get capabilities by way of programs.
        let proof = Proof { asks: true, ..proof };
        assert!(refused(&proof).contains("not in force"));
    }
}
