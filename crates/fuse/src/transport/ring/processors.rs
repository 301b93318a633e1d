//! The number of queues, and the number of entries in each.

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

/// The maximum number of entries. It bounds the memory: an entry takes 1 MiB and 4 KiB.
pub const ENTRIES_MAX: usize = 512;
/// The minimum number of entries in a queue, so that other requests are served while one waits for
/// the device.
const ENTRIES_MIN: usize = 4;

const FOLDER: &str = "/sys/devices/system/cpu";

/// The host's processors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Processors {
    /// The number of processors that can ever be online. The kernel has a queue for each.
    possible: usize,
    /// The numbers of the processors that are online.
    online: Vec<usize>,
}

impl Processors {
    /// Returns the processors of this host.
    pub fn of_host() -> io::Result<Self> {
        let list = |name| {
            let text = std::fs::read_to_string(Path::new(FOLDER).join(name))?;
            parse(text.trim()).ok_or_else(|| io::Error::other(format!("{FOLDER}/{name}: {text}")))
        };
        Ok(Self { possible: list("possible")?.len(), online: list("online")? })
    }

    /// Returns the queue of each entry, for at least `threads` entries. Each queue of an online
    /// processor gets the same number, and each other queue gets one. Returns `None` if there would
    /// be more than [`ENTRIES_MAX`].
    pub fn entries(&self, threads: NonZeroUsize) -> Option<Vec<u16>> {
        let share = threads.get().div_ceil(self.online.len().max(1));
        let each = share.max(ENTRIES_MIN.min(threads.get()));
        let mut queues = Vec::new();
        for queue in 0..self.possible {
            let count = if self.online.contains(&queue) { each } else { 1 };
            queues.extend(std::iter::repeat_n(u16::try_from(queue).ok()?, count));
            if queues.len() > ENTRIES_MAX {
                return None;
            }
        }
        Some(queues)
    }
}

/// Parses a list of ranges such as "0-2,5".
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.parse().ok()?;
        let last: usize = last.parse().ok()?;
        if last > 65_535 || first > last {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(possible: usize, online: &str, threads: usize) -> Option<Vec<u16>> {
        let processors = Processors { possible, online: parse(online).unwrap() };
        processors.entries(NonZeroUsize::new(threads).unwrap())
    }

    #[test]
    fn lists_of_processors_are_parsed() {
        assert_eq!(parse("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse("0"), Some(vec![0]));
        for broken in ["", "a", "1-", "2-1", "0-4294967295", "0,,1"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn every_queue_has_an_entry_and_online_queues_share_the_threads() {
        assert_eq!(entries(2, "0-1", 5), Some(vec![0, 0, 0, 0, 1, 1, 1, 1]));
        assert_eq!(entries(2, "0-1", 10).unwrap().len(), 10);
        assert_eq!(entries(2, "0-1", 1), Some(vec![0, 1]));
        assert_eq!(entries(4, "0,2", 4), Some(vec![0, 0, 0, 0, 1, 2, 2, 2, 2, 3]));
        assert_eq!(entries(64, "0-63", 16).unwrap().len(), 256);
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!(entries(2, "0-1", ENTRIES_MAX).unwrap().len(), ENTRIES_MAX);
        assert_eq!(entries(2, "0-1", ENTRIES_MAX + 1), None);
        assert_eq!(entries(1024, "0-3", 16), None);
    }
}
