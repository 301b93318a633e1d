//! The comparison of a quota file with what the inodes of each id use, for consistency checks.

use std::collections::BTreeMap;

use base::{Location, Problem};

use super::Usage;
use crate::Report;

const STRUCTURE: &str = "quota file";

/// Reports the differences between the usage that a quota file has, and that of the inodes found,
/// by their ids. An id that uses nothing needs no entry.
pub fn compare_usage(
    report: &mut Report<'_>,
    location: Location,
    stored: &BTreeMap<u32, Usage>,
    used: &BTreeMap<u32, Usage>,
) {
    if used.keys().any(|id| !stored.contains_key(id)) {
        let problem = Problem::Missing("entry of an id that owns inodes");
        report.corrupt(STRUCTURE, location, problem);
    }
    for (id, stored) in stored {
        let used = used.get(id).copied().unwrap_or_default();
        for (field, found, expected) in [
            ("space in use by an id", stored.bytes, used.bytes),
            ("number of inodes of an id", stored.inodes, used.inodes),
        ] {
            report.compare(STRUCTURE, location, field, found, expected);
        }
    }
}
