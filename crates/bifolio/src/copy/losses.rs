//! Attributes that a copy could not preserve, because of the host or the user's permissions. They are counted, and
//! reported once at the end instead of for every file.

use std::collections::BTreeMap;
use std::io;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::failure::host_error;
use crate::format::text;

/// A kind of attribute that was not preserved.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// The owner or group.
    Owner,
    /// The set-user-ID or set-group-ID bit, which a file with another owner must not have.
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

    /// Returns the lines of the report, each with whether it is a failure and not only a lack of privilege.
    pub fn lines(&self) -> Vec<(String, bool)> {
        let counts = self.counts.lock();
        counts
            .iter()
            .map(|((loss, reason), count)| {
                let Count { files, first } = count;
                let what = match loss {
                    Loss::Owner => "owners".to_owned(),
                    Loss::SetId => "set-user-ID and set-group-ID bits".to_owned(),
                    Loss::Xattr(prefix) => format!("attributes {}*", text::escape(prefix)),
                };
                let reason = Errno::from_raw_os_error(*reason);
                let is_privilege = is_privilege(reason);
                let advice = match is_privilege {
                    true => "run as root to preserve them",
                    false => "the file system of the destination does not support them",
                };
                let s = if *files == 1 { "" } else { "s" };
                let first = text::escape(first);
                let reason = host_error(&io::Error::from(reason));
                let line = format!(
                    "{what} of {files} file{s} were not preserved, the first is {first}: {reason}; {advice}"
                );
                (line, !is_privilege)
            })
            .collect()
    }
}

/// Returns whether root would not get this error. In user namespaces, owners that are not mapped give EINVAL.
pub fn is_privilege(reason: Errno) -> bool {
    matches!(reason, Errno::PERM | Errno::ACCESS | Errno::INVAL)
}
