//! Metadata of hard links in archives. As with GNU tar and bsdtar, a link without data keeps the
//! metadata of its file, and one with data sets them, as the last member of the file.

use base::Error;
use base::attributes::{FileType, Timestamp};
use vfs::Node;

use super::losses::Lost;
use super::metadata::describe;
use crate::archive::Member;
use crate::format::acl;

const REASON: &str = "the hard link has another value than its file, which keeps its own";

/// Counts the metadata of a hard link without data that differs from those of its file. The time of
/// the last access is left out, since archivers change it when they read the file for its first
/// name.
pub fn count_differences(member: &Member, file: &Node, lost: Lost<'_>) {
    let attributes = file.attributes();
    // The mode of a link with a list may have the permissions of the group in place of the mask.
    let mode_bits = match (attributes.kind, member.xattrs.contains(acl::ACCESS)) {
        (FileType::Symlink, _) => 0,
        (_, true) => 0o7000,
        (_, false) => 0o7777,
    };
    let differences = [
        ("the owner", attributes.uid != member.uid),
        ("the group", attributes.gid != member.gid),
        ("the mode", (attributes.permissions ^ member.permissions) & mode_bits != 0),
        ("the modification time", !is_stored_as(member.modified, attributes.modified)),
    ];
    for (what, _) in differences.into_iter().filter(|(_, differs)| *differs) {
        lost.add(what.as_bytes(), REASON);
    }
    for (name, value) in member.xattrs.own() {
        let is_same = match file.get_xattr(name) {
            Ok(found) => is_same_value(name, &found, value),
            // The volume has such a list as the mode alone.
            Err(Error::NoAttribute) => {
                name == acl::ACCESS && acl::is_mode(value, attributes.permissions)
            }
            Err(_) => false,
        };
        if !is_same {
            lost.add(&describe(name), REASON);
        }
    }
}

/// Returns whether a volume may have stored the time `wanted` as `stored`: small inodes have whole
/// seconds.
fn is_stored_as(wanted: Timestamp, stored: Timestamp) -> bool {
    wanted.seconds == stored.seconds && [0, wanted.nanoseconds].contains(&stored.nanoseconds)
}

fn is_same_value(name: &[u8], found: &[u8], value: &[u8]) -> bool {
    let is_acl = acl::ATTRIBUTES.iter().any(|(acl, _)| name == *acl);
    found == value || is_acl && acl::are_same(found, value)
}
