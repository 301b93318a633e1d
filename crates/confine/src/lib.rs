//! Confinement of the calling process: no access to files, the network and other processes, and no
//! privileges. Open files stay open. The process must not have other threads yet. A process that
//! copies trees of the host ([`Trees`]) keeps access to them, and the capabilities for that.
//!
//! There are several layers, and each is applied and verified by itself:
//!
//! - `privileges.rs`: another user, no capabilities, none by way of programs, no debugger
//! - `files.rs`: Landlock, and another root directory
//! - `limits.rs`: limits of resources
//! - `system_calls.rs`: a filter on system calls
//! - `proof.rs`: what the kernel says about the process in /proc
//!
//! A layer that is missing is an error, unless the policy leaves it out, or the process has no
//! right to it (`rights.rs`). `no_landlock.rs` tells why a host has no Landlock.
//!
//! The guard of a mount, which never reads the image, has some of them, too ([`confine_guard`]).
//!
//! `inherited.rs` closes the files that the process has got from the one that started it.

#![deny(unsafe_code)]

mod files;
mod inherited;
mod limits;
mod no_landlock;
mod privileges;
mod proof;
mod rights;
mod system_calls;
mod trees;

use std::fmt;

pub use files::Tree;
pub use inherited::{Inherited, leave_input};
pub use limits::{FILES_MAX, Resources, raise_file_limit};
pub use proof::Proof;
pub use rights::Rights;
pub use system_calls::ENABLE_RINGS;
pub use trees::Trees;

/// A layer of the confinement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Layer {
    /// The user and group nobody instead of root.
    User,
    /// No capabilities.
    Capabilities,
    /// Programs gain no privileges when they are executed, and no other process of the same user
    /// can read the memory. Landlock and the filter on system calls need it.
    NoNewPrivileges,
    /// No files by their paths, no network connections, no signals to other processes.
    Landlock,
    /// The directory that gets the copies is the root directory (chroot), if the process keeps
    /// capabilities.
    Chroot,
    /// Limits of memory, open files, processes and the sizes of files.
    Limits,
    /// The system calls that a server needs, and no others.
    SystemCalls,
}

impl Layer {
    /// All layers, in the order in which they are applied.
    pub const ALL: [Self; 7] = [
        Self::NoNewPrivileges,
        Self::User,
        Self::Landlock,
        // It needs a capability.
        Self::Chroot,
        Self::Capabilities,
        Self::Limits,
        Self::SystemCalls,
    ];

    /// Returns the name of the layer on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Capabilities => "capabilities",
            Self::NoNewPrivileges => "no-new-privs",
            Self::Landlock => "landlock",
            Self::Chroot => "chroot",
            Self::Limits => "limits",
            Self::SystemCalls => "seccomp",
        }
    }

    /// Returns the layer with this name on the command line.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layer| layer.name() == name)
    }

    /// Returns what still holds without the layer, for a process that accesses no trees of the
    /// host.
    fn without(self) -> &'static str {
        match self {
            Self::User | Self::Capabilities | Self::NoNewPrivileges => {
                "Landlock and the filter on system calls would still deny access to files, the network and other processes"
            }
            Self::Landlock => {
                "the filter on system calls would still deny opening files, connecting, and signals to other processes"
            }
            Self::Chroot => trees::without(self),
            Self::Limits => "the size of the cache would still be limited",
            Self::SystemCalls => {
                "Landlock and the user nobody would still deny access to files and the network"
            }
        }
    }
}

/// The layers that confine a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Confinement {
    /// A bit for each layer.
    layers: u8,
}

impl Confinement {
    /// All layers.
    pub const FULL: Self = Self { layers: u8::MAX };
    /// No layer.
    pub const NONE: Self = Self { layers: 0 };

    /// Returns the confinement without a layer.
    #[must_use]
    pub fn without(self, layer: Layer) -> Self {
        Self { layers: self.layers & !(1 << layer as u8) }
    }

    /// Returns the confinement by the layers that both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { layers: self.layers & other.layers }
    }

    /// Returns whether the process is confined by a layer.
    pub fn has(self, layer: Layer) -> bool {
        self.layers & 1 << layer as u8 != 0
    }

    /// Returns whether there is any layer.
    pub fn is_any(self) -> bool {
        Layer::ALL.into_iter().any(|layer| self.has(layer))
    }
}

/// What a process needs beside its open files.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// Whether the image is open for writing.
    pub writable: bool,
    /// Whether open files may get any size: standard output, which the user may have directed to a
    /// file.
    pub output: bool,
    /// Whether there are rings, created already, that threads will enable and use.
    pub rings: bool,
    /// Whether the process exchanges messages with a guard, over sockets that are open.
    pub guard: bool,
    /// The resources that the process may use.
    pub resources: Resources,
    /// The trees of the host that it accesses.
    pub trees: Trees<'a>,
}

/// Layers that could not be applied.
#[derive(Debug)]
pub struct ConfineError {
    /// The process that is not confined.
    process: &'static str,
    /// The layers, why each is missing, and what still holds without it.
    missing: Vec<(Layer, String, &'static str)>,
}

impl fmt::Display for ConfineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot confine {}", self.process)?;
        for (layer, reason, without) in &self.missing {
            let name = layer.name();
            write!(f, "; {name}: {reason} (with --no-confine={name}, {without})")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfineError {}

/// The process that [`confine`] confines.
const READER: &str = "the process that reads the image";
/// The process that [`confine_guard`] confines.
const GUARD: &str = "the guard of the mount";
/// What still holds without a layer of the guard.
const WITHOUT_GUARD_LAYER: &str =
    "the guard, which never reads the image, would keep privileges that it does not need";

/// What is weaker on the host than on others, although every layer is applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OldLandlock {
    /// Whether the filter on system calls denies what Landlock does not control.
    is_filtered: bool,
}

impl OldLandlock {
    /// Returns whether the filter on system calls denies what Landlock does not control, so that
    /// nothing is weaker.
    pub fn is_made_up_for(self) -> bool {
        self.is_filtered
    }
}

impl fmt::Display for OldLandlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the kernel's Landlock does not control all accesses (before Linux 6.12, no signals)",
        )?;
        f.write_str(match self.is_filtered {
            true => "; the filter on system calls denies the others",
            false => ", and there is no filter on system calls to deny the others",
        })
    }
}

/// What is weaker than on other hosts, although no layer has failed.
#[derive(Debug, Default)]
pub struct Weaker {
    /// What an old kernel does not control.
    pub old_landlock: Option<OldLandlock>,
    /// What the process has no right to.
    pub without_rights: Option<WithoutRights>,
}

/// The layers, or parts of them, that a process misses because it has no right to them.
#[derive(Debug)]
pub struct WithoutRights {
    /// The layers, and what is missing of each.
    missing: Vec<(Layer, String)>,
}

impl fmt::Display for WithoutRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{READER} has no right to a part of its confinement")?;
        self.missing.iter().try_for_each(|(layer, what)| write!(f, "; {}: {what}", layer.name()))
    }
}

/// Applies the layers of `confinement`, each by itself, and verifies them by `proof`. Returns what
/// is weaker on this host, and what the process has no right to (see `rights.rs`).
pub fn confine(
    confinement: Confinement,
    needs: Needs<'_>,
    proof: &Proof,
) -> Result<Weaker, ConfineError> {
    let trees = &needs.trees;
    let rights = &proof.rights;
    let kept = privileges::capabilities_for(trees);
    let mut expected = proof.expect(kept);
    let mut failed = Vec::new();
    let mut weaker = Weaker::default();
    let mut missing = Vec::new();
    // Before Landlock denies reading /proc.
    let outside = files::find_outside(trees);
    for layer in Layer::ALL {
        if !confinement.has(layer) || !trees.needs_layer(layer, rights) {
            continue;
        }
        if layer == Layer::Chroot && !rights.may_change_root() {
            missing.push((layer, NO_CHROOT.to_owned()));
            continue;
        }
        let applied = match layer {
            Layer::NoNewPrivileges => privileges::forbid_new(),
            Layer::User => expected
                .user
                .as_mut()
                .map_or(Ok(()), |parts| privileges::become_nobody(rights, parts)),
            Layer::Landlock => files::restrict(trees, proof).map(|is_full| {
                let is_filtered = confinement.has(Layer::SystemCalls);
                weaker.old_landlock = (!is_full).then_some(OldLandlock { is_filtered });
            }),
            Layer::Chroot => files::enter(trees, outside),
            Layer::Capabilities => privileges::keep_capabilities(kept),
            Layer::Limits => limits::set(&needs, proof),
            Layer::SystemCalls => system_calls::filter(&needs),
        };
        if let Err(reason) = applied.and_then(|()| proof.verify(layer, &expected)) {
            let without = if trees.is_none() { layer.without() } else { trees::without(layer) };
            failed.push((layer, reason, without));
            continue;
        }
        let lacks = match layer {
            Layer::User => expected.user.and_then(|parts| rights.missing_of_user(parts)),
            Layer::Capabilities if rights.is_root && !rights.may_empty_bounding_set() => {
                Some(NO_BOUNDING_SET.to_owned())
            }
            Layer::Chroot if !rights.may_mount() => Some(NO_MOUNT.to_owned()),
            _ => None,
        };
        missing.extend(lacks.map(|what| (layer, what)));
    }
    if !failed.is_empty() {
        return Err(ConfineError { process: READER, missing: failed });
    }
    weaker.without_rights = (!missing.is_empty()).then_some(WithoutRights { missing });
    Ok(weaker)
}

/// What root misses without CAP_SETPCAP.
const NO_BOUNDING_SET: &str = "without CAP_SETPCAP, the bounding set is not emptied (no-new-privs still keeps programs from \
    getting privileges)";
/// What root misses without CAP_SYS_CHROOT.
const NO_CHROOT: &str = "without CAP_SYS_CHROOT, the root directory stays, so that a process that was taken over could change \
    owners, permissions and times of other files";
/// What root misses without CAP_SYS_ADMIN.
const NO_MOUNT: &str = "without CAP_SYS_ADMIN, the directory that gets the copies has no mount of its own: directories that other \
    users move out of it are not protected";

/// Applies the layers of `confinement` that root's guard of a mount can have: no privileges by way
/// of programs, and only the capabilities that it needs. Verifies by `proof` that it has no others,
/// whether or not the host has let it drop any. Does nothing for a guard without CAP_SYS_ADMIN: it
/// mounts through fusermount3, which gets privileges when it is executed. What the guard has no
/// right to, its server has no right to either, whose [`Weaker`] says so: the empty bounding set.
///
/// Returns an error if the guard has more than it needs.
pub fn confine_guard(confinement: Confinement, proof: &Proof) -> Result<(), ConfineError> {
    if !privileges::is_roots_guard() {
        return Ok(());
    }
    let expected = proof.expect(privileges::GUARD);
    let mut missing = Vec::new();
    for layer in [Layer::NoNewPrivileges, Layer::Capabilities] {
        if !confinement.has(layer) {
            continue;
        }
        let applied = match layer {
            Layer::NoNewPrivileges => privileges::forbid_new(),
            _ => privileges::limit_guard(),
        };
        if let Err(found) = proof.verify_guard(layer, &expected) {
            missing.push((layer, applied.err().unwrap_or(found), WITHOUT_GUARD_LAYER));
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(ConfineError { process: GUARD, missing }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_on_the_command_line() {
        for layer in Layer::ALL {
            assert_eq!(Layer::from_name(layer.name()), Some(layer));
            let without = Confinement::FULL.without(layer);
            assert!(!without.has(layer));
            assert!(Layer::ALL.into_iter().all(|other| other == layer || without.has(other)));
        }
        assert_eq!(Layer::from_name("all"), None);
        assert!(!Confinement::NONE.is_any());
    }

    #[test]
    fn the_error_names_each_missing_layer_and_its_option() {
        let missing = vec![
            (Layer::Landlock, "the kernel has no Landlock".to_owned(), Layer::Landlock.without()),
            (Layer::User, "Invalid argument".to_owned(), trees::without(Layer::User)),
        ];
        let text = ConfineError { process: READER, missing }.to_string();
        for part in ["--no-confine=landlock", "--no-confine=user", "no Landlock", "system calls"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
