//! What a copy did not preserve, because the host does not support it, the user has no privilege,
//! or did not ask for what gives rights on the host. This is counted, and reported once at the end
//! of the copy.

use std::collections::BTreeMap;
use std::io;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::console::failure::host_error;
use crate::format::text;

/// Maximum number of kinds that are counted on their own: an image can have any number of names.
const KINDS_MAX: usize = 64;

/// What was not preserved.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// The owner or group.
    Owner,
    /// The set-user-ID or set-group-ID bit. A file with another owner must not have it.
    SetId,
    /// Extended attributes with this name, or with this prefix and `*`.
    Xattr(Vec<u8>),
    /// Capabilities that a program gets.
    Capabilities,
    /// Device files.
    Devices,
    /// Owners and permissions of directories that existed.
    Existing,
}

/// Why something was not preserved.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// It gives rights on the host, and the user did not ask for it.
    GivesRights,
    /// Others may rely on the attributes that the directory has.
    Existed,
    /// The error of the host with this number.
    Host(i32),
}

impl From<Errno> for Reason {
    fn from(error: Errno) -> Self {
        Self::Host(error.raw_os_error())
    }
}

/// Counts of what was not preserved, by reason.
#[derive(Debug, Default)]
pub struct Losses {
    counts: Mutex<BTreeMap<(Loss, Reason), Count>>,
}

#[derive(Debug)]
struct Count {
    files: u64,
    first: Vec<u8>,
}

impl Losses {
    /// Counts what was not preserved of the file at `path` in the image.
    pub fn add(&self, loss: Loss, reason: impl Into<Reason>, path: &[u8]) {
        let mut counts = self.counts.lock();
        let mut kind = (loss, reason.into());
        if counts.len() >= KINDS_MAX && !counts.contains_key(&kind) {
            kind.0 = Loss::Xattr(b"*".to_vec());
        }
        let count = counts.entry(kind);
        count.or_insert_with(|| Count { files: 0, first: path.to_vec() }).files += 1;
    }

    /// Returns the lines of the report. The flag of a line is true for a failure, and false for a
    /// lack of privilege.
    pub fn lines(&self) -> Vec<(String, bool)> {
        let counts = self.counts.lock();
        counts
            .iter()
            .map(|((loss, reason), count)| {
                let Count { files, first } = count;
                let (what, first) = (loss.describe(*files), text::escape(first));
                let (reason, is_failure) = reason.describe(loss);
                (format!("{what}, the first is {first}: {reason}"), is_failure)
            })
            .collect()
    }
}

impl Loss {
    /// Returns what was not preserved of so many files.
    fn describe(&self, files: u64) -> String {
        let (s, was) = if files == 1 { ("", "was") } else { ("s", "were") };
        let name = match self {
            Self::Devices => return format!("{files} device file{s} {was} not copied"),
            Self::Existing => {
                let directories = if files == 1 { "directory" } else { "directories" };
                return format!("{files} existing {directories} kept other owners or permissions");
            }
            Self::Owner => "owners".to_owned(),
            Self::SetId => "set-user-ID and set-group-ID bits".to_owned(),
            Self::Xattr(names) => format!("attributes {}", text::escape(names)),
            Self::Capabilities => "capabilities".to_owned(),
        };
        format!("{name} of {files} file{s} were not preserved")
    }

    /// Returns what a user needs to preserve it. Root of a container may lack a capability.
    fn privilege(&self) -> &'static str {
        match self {
            Self::Owner => "only root with CAP_CHOWN can preserve them",
            Self::SetId => "only root with CAP_FSETID can preserve them",
            Self::Capabilities => "only root with CAP_SETFCAP can preserve them",
            Self::Devices => "only root with CAP_MKNOD outside of user namespaces can create them",
            Self::Xattr(_) => {
                "only root with CAP_SYS_ADMIN outside of user namespaces can preserve them"
            }
            Self::Existing => "only root with CAP_FOWNER can change them",
        }
    }
}

impl Reason {
    /// Returns the reason of a loss with advice, and whether it is a failure.
    fn describe(self, loss: &Loss) -> (String, bool) {
        let error = match self {
            Self::GivesRights => {
                let text =
                    "copies would give rights on the host; use --privileged if you trust the image";
                return (text.to_owned(), false);
            }
            Self::Existed => {
                let text = "directories that exist are not changed (a copy that was killed leaves some with mode 0700)";
                return (text.to_owned(), false);
            }
            Self::Host(error) => Errno::from_raw_os_error(error),
        };
        let is_privilege = is_privilege(error);
        let advice = match error {
            Errno::INVAL if is_privilege => "the user namespace may not map the ids",
            _ if is_privilege => loss.privilege(),
            Errno::NOSPC | Errno::TOOBIG | Errno::RANGE => {
                "they are larger than the file system of the destination can store beside the others, or it is full"
            }
            _ => "the file system of the destination does not support them",
        };
        (format!("{}; {advice}", host_error(&io::Error::from(error))), !is_privilege)
    }
}

/// Returns whether the error means a lack of privilege. In user namespaces, unmapped owners cause
/// EINVAL.
pub fn is_privilege(reason: Errno) -> bool {
    matches!(reason, Errno::PERM | Errno::ACCESS | Errno::INVAL)
}
