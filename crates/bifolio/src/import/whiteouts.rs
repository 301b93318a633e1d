//! Whiteouts of layers (OCI image specification) that an archive has, which are not unpacked as
//! files.

use std::path::Path;

use crate::console::failure::Failure;
use crate::format::text;

/// The start of the names of members that say which files of lower layers are removed.
const WHITEOUT: &[u8] = b".wh.";

/// Counts of members that were not unpacked.
#[derive(Debug, Default)]
pub struct Whiteouts {
    /// The number of whiteouts.
    whiteouts: u64,
    /// The number of members below directories that are named as whiteouts.
    below: u64,
    /// The path of the first of all.
    first: Vec<u8>,
}

impl Whiteouts {
    /// Counts the member at `path` if it is a whiteout, or below one. Returns whether it is.
    pub fn add(&mut self, path: &[u8]) -> bool {
        let mut names =
            path.rsplit(|&byte| byte == b'/').skip_while(|name| matches!(name, [] | [b'.']));
        let is_whiteout = |name: &[u8]| name.starts_with(WHITEOUT);
        let count = match names.next() {
            Some(last) if is_whiteout(last) => &mut self.whiteouts,
            _ if names.any(is_whiteout) => &mut self.below,
            _ => return false,
        };
        *count += 1;
        if self.first.is_empty() {
            self.first = path.to_vec();
        }
        true
    }

    /// Returns the failure to unpack all of the archive at `archive`. `None` if there were no such
    /// members.
    pub fn failure(&self, archive: &Path) -> Option<Failure> {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let whiteouts = || format!("{} whiteout{}", self.whiteouts, plural(self.whiteouts));
        let below = || format!("{} member{} below whiteouts", self.below, plural(self.below));
        let what = match (self.whiteouts, self.below) {
            (0, 0) => return None,
            (_, 0) => whiteouts(),
            (0, _) => below(),
            _ => format!("{} and {}", whiteouts(), below()),
        };
        let was = if self.whiteouts + self.below == 1 { "was" } else { "were" };
        let text = format!(
            "{what} {was} not unpacked, the first is {}: the archive is a layer that removes files of other layers",
            text::escape(&self.first)
        );
        let advice = "remove these files with `bifolio rm`, or use --keep-whiteouts to unpack whiteouts as files";
        Some(Failure::new(archive, text).advise(advice))
    }
}
