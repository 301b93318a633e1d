//! Attributes that a copy did not preserve, because the host does not support them or the user has no privilege. They
//! are counted, and reported once at the end of the copy.

use std::collections::BTreeMap;
use std::io;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::failure::host_error;
use crate::format::text;

/// Kind of attribute that was not preserved.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// The owner or group.
    Owner,
    /// The set-user-ID or set-group-ID bit. A file with another owner must not have it.
    SetId,
    /// Extended attributes with this prefix.
    Xattr(Vec<u8>),
}

/// Counts of attributes that were not preserved, by reason.
#[derive(Debug, Default)]
pub struct Losses {
    counts: Mutex<BTreeMap<(Loss, i32), Count>>,
}

#[derive(Debug)]
struct Count {
    files: u64,
    first: Vec<u8>,
}

impl Losses {
    /// Counts an attribute of the file at `path` in the image.
    pub fn add(&self, loss: Loss, reason: Errno, path: &[u8]) {
        let key = (loss, reason.raw_os_error());
        let mut counts = self.counts.lock();
        counts.entry(key).or_insert_with(|| Count { files: 0, first: path.to_vec() }).files += 1;
    }

    /// Returns the lines of the report. The flag of a line is true for a failure, and false for a lack of privilege.
    pub fn lines(&self) -> Vec<(String, bool)> {
        let counts = self.counts.lock();
        counts
            .iter()
            .map(|((loss, reason), count)| {
                let Count { files, first } = count;
                let name = match loss {
                    Loss::Owner => "owners".to_owned(),
                    Loss::SetId => "set-user-ID and set-group-ID bits".to_owned(),
                    Loss::Xattr(prefix) => format!("attributes {}*", text::escape(prefix)),
                };
                let reason = Errno::from_raw_os_error(*reason);
                let is_privilege = is_privilege(reason);
                let advice = if is_privilege {
                    "run as root to preserve them"
                } else {
                    "the file system of the destination does not support them"
                };
                let s = if *files == 1 { "" } else { "s" };
                let first = text::escape(first);
                let reason = host_error(&io::Error::from(reason));
                let line = format!(
                    "{name} of {files} file{s} were not preserved, the first is {first}: {reason}; {advice}"
                );
                (line, !is_privilege)
            })
            .collect()
    }
}

/// Returns whether the error means a lack of privilege. In user namespaces, unmapped owners cause EINVAL.
pub fn is_privilege(reason: Errno) -> bool {
    matches!(reason, Errno::PERM | Errno::ACCESS | Errno::INVAL)
}
