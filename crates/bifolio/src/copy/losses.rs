//! What a copy could not keep because the host or the user's rights do not allow it: counted, and
//! said once at the end instead of for every file.

use std::collections::BTreeMap;
use std::io;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::failure::host_error;
use crate::format::text;

/// Something that was not kept.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// The owner or group.
    Owner,
    /// The set-user-ID or set-group-ID bit, which must not be there with another owner.
    SetId,
    /// An extended attribute whose name begins so.
    Xattr(Vec<u8>),
}

/// Counts of what was lost, by reason.
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
    /// Counts one, at `path` in the image.
    pub fn add(&self, loss: Loss, reason: Errno, path: &[u8]) {
        let key = (loss, reason.raw_os_error());
        let mut counts = self.counts.lock();
        counts.entry(key).or_insert_with(|| Count { files: 0, first: path.to_vec() }).files += 1;
    }

    /// What to tell: each as a line, and whether it is more than missing privilege.
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
                    true => "run as root to keep them",
                    false => "the file system of the destination cannot hold them",
                };
                let s = if *files == 1 { "" } else { "s" };
                let first = text::escape(first);
                let reason = host_error(&io::Error::from(reason));
                let line = format!(
                    "{what} of {files} file{s} were not kept, first of {first}: {reason}; {advice}"
                );
                (line, !is_privilege)
            })
            .collect()
    }
}

/// Whether an error means that root could do it. Within user namespaces, owners that are not mapped
/// give EINVAL.
pub fn is_privilege(reason: Errno) -> bool {
    matches!(reason, Errno::PERM | Errno::ACCESS | Errno::INVAL)
}
