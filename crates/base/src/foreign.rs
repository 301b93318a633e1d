//! Contents of images that the library does not read, and what to do with them. Not here: their
//! detection.

use std::fmt;

/// Contents that are known but not read: a file system, a volume of a volume manager, or an
/// archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// The contents, such as "an XFS file system".
    pub name: &'static str,
    /// The next step, as a clause. `IMAGE` stands for the image.
    pub next_step: &'static str,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "contains {}, which bifolio does not read; {}", self.name, self.next_step)
    }
}
