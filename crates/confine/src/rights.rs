//! The rights of the process to change itself: which layers it can have at all. Not here: the
//! layers.
//!
//! The rule for every command, for the server of a mount and for its guard: a layer, or a part of
//! one, for which the process has no right is left out and named in one warning: that of the server
//! is also for its guard, which has fewer layers and the same rights. It is no error, since an
//! ordinary user has no right to it either. A layer that fails although the process has the right
//! to it is an error.

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

use super::privileges::NOBODY;

/// What the process may change about itself.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// Whether the process is root, perhaps only of its user namespace.
    pub is_root: bool,
    effective: CapabilitySet,
    /// Whether the user namespace has the user nobody.
    has_user: bool,
    /// Whether the user namespace has the group nobody.
    has_group: bool,
    /// Whether the user namespace lets its processes change their groups.
    allows_groups: bool,
}

/// The parts of the layer `user` that a process has the right to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserParts {
    /// The user nobody.
    pub user: bool,
    /// The group nobody.
    pub group: bool,
    /// No further groups.
    pub groups: bool,
}

impl Rights {
    /// Returns the rights of the calling process. What cannot be known counts as a right.
    pub fn of_process() -> Self {
        let read = |name| std::fs::read_to_string(format!("/proc/self/{name}"));
        let has = |name| read(name).map_or(true, |map| contains_nobody(&map));
        Self {
            is_root: geteuid().is_root(),
            effective: capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective),
            has_user: has("uid_map"),
            has_group: has("gid_map"),
            allows_groups: read("setgroups").map_or(true, |text| text.trim() != "deny"),
        }
    }

    fn has(&self, capability: CapabilitySet) -> bool {
        self.effective.contains(capability)
    }

    /// Returns whether the process may change its bounding set.
    pub fn may_empty_bounding_set(&self) -> bool {
        self.has(CapabilitySet::SETPCAP)
    }

    /// Returns whether the process may change its root directory.
    pub fn may_change_root(&self) -> bool {
        self.has(CapabilitySet::SYS_CHROOT)
    }

    /// Returns whether the process may mount.
    pub fn may_mount(&self) -> bool {
        self.has(CapabilitySet::SYS_ADMIN)
    }

    /// Returns which parts of the layer `user` the process may have.
    pub fn user_parts(&self) -> UserParts {
        let may_set_groups = self.has(CapabilitySet::SETGID);
        UserParts {
            user: self.has_user && self.has(CapabilitySet::SETUID),
            group: self.has_group && may_set_groups,
            groups: self.allows_groups && may_set_groups,
        }
    }

    /// Returns why root, which may have only `parts` of the layer `user`, misses the others.
    pub fn missing_of_user(&self, parts: UserParts) -> Option<String> {
        let mut reasons = Vec::new();
        if !parts.user {
            reasons.push(match self.has(CapabilitySet::SETUID) {
                true => "the user namespace has no user nobody (65534), so the process stays the user who runs it",
                false => "without CAP_SETUID, the process stays root, which has no capabilities then",
            });
        }
        if !parts.group || !parts.groups {
            reasons.push(match self.has(CapabilitySet::SETGID) {
                true => "the user namespace does not let it leave its groups",
                false => "without CAP_SETGID, it keeps its groups",
            });
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Returns whether a map of ids has the one of nobody.
fn contains_nobody(map: &str) -> bool {
    let nobody = u64::from(NOBODY);
    map.lines().any(|line| {
        let words: Vec<u64> =
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        matches!(words[..], [first, _, count] if (first..first.saturating_add(count)).contains(&nobody))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_with_all_users_have_nobody() {
        assert!(contains_nobody("         0          0 4294967295\n"));
        assert!(contains_nobody("0 1000 1\n1 100000 65536\n"));
        assert!(!contains_nobody("0 1000 1\n"));
        assert!(!contains_nobody("0 1000 1\n1 100000 65533\n"));
        assert!(!contains_nobody(""));
    }

    #[test]
    fn each_missing_right_takes_its_part_only() {
        let all = CapabilitySet::all();
        let full = Rights {
            is_root: true,
            effective: all,
            has_user: true,
            has_group: true,
            allows_groups: true,
        };
        let parts = |user, group, groups| UserParts { user, group, groups };
        for (rights, expected, reason) in [
            (full, parts(true, true, true), None),
            (
                Rights { effective: all - CapabilitySet::SETUID, ..full },
                parts(false, true, true),
                Some("CAP_SETUID"),
            ),
            (
                Rights { effective: all - CapabilitySet::SETGID, ..full },
                parts(true, false, false),
                Some("CAP_SETGID"),
            ),
            (
                Rights { has_user: false, ..full },
                parts(false, true, true),
                Some("no user nobody (65534)"),
            ),
            (
                Rights { allows_groups: false, ..full },
                parts(true, true, false),
                Some("does not let it leave its groups"),
            ),
        ] {
            assert_eq!(rights.user_parts(), expected);
            let found = rights.missing_of_user(expected);
            assert_eq!(found.is_some(), reason.is_some(), "{found:?}");
            assert!(reason.is_none_or(|reason| found.is_some_and(|text| text.contains(reason))));
        }
    }
}
