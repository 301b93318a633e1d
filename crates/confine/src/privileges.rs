//! Privileges: another user than root, no capabilities, none by way of programs, and no debugger of
//! the same user.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::Trees;
use super::rights::{Rights, UserParts};

/// The user and group that root becomes: nobody.
pub(crate) const NOBODY: u32 = 65_534;

/// Forbids privileges by way of programs, and debuggers that have the same user.
pub fn forbid_new() -> Result<(), String> {
    set_no_new_privs(true).map_err(|errno| format!("no_new_privs: {errno}"))?;
    forbid_dumps()
}

/// Keeps other processes of the user from tracing this one, and from reading its memory.
fn forbid_dumps() -> Result<(), String> {
    let not_dumpable = DumpableBehavior::NotDumpable;
    set_dumpable_behavior(not_dumpable).map_err(|errno| format!("dumpable: {errno}"))
}

/// Changes root to an ordinary user without further groups, as far as `parts` say that it has the
/// right to. Does nothing for other users. Takes those out of `parts` which the user namespace
/// turns out not to have.
pub fn become_nobody(rights: &Rights, parts: &mut UserParts) -> Result<(), String> {
    if !rights.is_root {
        return Ok(());
    }
    // While there still is the right to do so. Other users cannot raise what the set has, since
    // programs give them no privileges.
    if rights.may_empty_bounding_set() {
        empty_bounding_set().map_err(|errno| format!("the bounding set: {errno}"))?;
    }
    let user = rustix::fs::Uid::from_raw(NOBODY);
    let group = rustix::fs::Gid::from_raw(NOBODY);
    if parts.groups {
        set_thread_groups(&[]).map_err(|errno| format!("setgroups: {errno}"))?;
    }
    if parts.group {
        parts.group = change("setresgid", set_thread_res_gid(group, group, group))?;
    }
    if parts.user {
        parts.user = change("setresuid", set_thread_res_uid(user, user, user))?;
    }
    // The change of the user may have made the process dumpable again.
    forbid_dumps()
}

/// Returns whether an id was changed. It was not if the user namespace does not have it, which is
/// unknown before where /proc is not mounted.
fn change(call: &str, changed: Result<(), Errno>) -> Result<bool, String> {
    match changed {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(format!("{call}: {errno}")),
    }
}

/// Removes all capabilities that the kernel knows from the bounding set.
fn empty_bounding_set() -> Result<(), Errno> {
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // There are no further ones.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Returns the capabilities of the process that it needs for trees of the host. Only root has any.
pub fn capabilities_for(trees: &Trees<'_>) -> CapabilitySet {
    let mut needed = match trees {
        Trees::None => CapabilitySet::empty(),
        // Attributes of the namespace trusted, and most of security.
        Trees::Read { attributes: true, .. } => {
            CapabilitySet::DAC_READ_SEARCH | CapabilitySet::SYS_ADMIN
        }
        Trees::Read { .. } => CapabilitySet::DAC_READ_SEARCH,
        Trees::Create { attributes, privileged, .. } => {
            // A file of another user is replaced, perhaps in a directory with the sticky bit.
            let mut needed = CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
            if *attributes {
                needed |= CapabilitySet::CHOWN;
            }
            if *privileged {
                needed |= CapabilitySet::MKNOD;
            }
            if *attributes && *privileged {
                // Attributes of the namespace trusted, and most of security.
                needed |= CapabilitySet::SYS_ADMIN;
                needed |= CapabilitySet::FSETID | CapabilitySet::SETFCAP;
            }
            needed
        }
    };
    let had = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    if needed.contains(CapabilitySet::DAC_READ_SEARCH)
        && !had.contains(CapabilitySet::DAC_READ_SEARCH)
    {
        // It is the only right to read the files of others that root has in many containers.
        // Landlock still denies writing them.
        needed |= CapabilitySet::DAC_OVERRIDE;
    }
    had & needed
}

/// Drops all capabilities but `kept`.
pub fn keep_capabilities(kept: CapabilitySet) -> Result<(), String> {
    // The change of the user has emptied it before it took this right.
    if capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SETPCAP)) {
        empty_bounding_set().map_err(|errno| format!("the bounding set: {errno}"))?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    set_capabilities(None, sets).map_err(|errno| format!("capset: {errno}"))?;
    // They are empty with the others, on kernels that have them.
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(format!("the ambient set: {errno}")),
    }
}

/// The capabilities that a guard needs to mount and unmount, to find the way to the mount point,
/// and for signals to the server and questions about clients.
pub(crate) const GUARD: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_PTRACE);

/// Returns whether the process is root's guard, which mounts without a program that gets privileges
/// when it is executed.
pub fn is_roots_guard() -> bool {
    let may_mount = || capabilities(None).map(|s| s.effective.contains(CapabilitySet::SYS_ADMIN));
    geteuid().is_root() && may_mount().unwrap_or(true)
}

/// Drops all capabilities of root's guard but those that it needs.
pub fn limit_guard() -> Result<(), String> {
    let sets = capabilities(None).map_err(|errno| format!("capget: {errno}"))?;
    keep_capabilities(sets.effective & GUARD)
}
