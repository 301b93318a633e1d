//! Files whose names stay, with the contents that one thread was promised. Not here: files that are created, renamed
//! or removed (`promises.rs`).

use super::file_history::FileHistory;
use super::kinds::Kind;
use super::snapshot::Snapshot;

/// Files in the root directory, and when operations touched them.
#[derive(Debug)]
pub struct NamedFiles {
    names: &'static [&'static str],
    histories: Vec<FileHistory>,
    /// Points of the recording before operations, with the index of the file that each operation touched.
    touched: Vec<(usize, usize)>,
    has_journal: bool,
}

impl NamedFiles {
    /// Files on a volume of `kind`; `names` and `histories` are in the same order.
    pub fn new(
        kind: &Kind,
        names: &'static [&'static str],
        histories: Vec<FileHistory>,
        touched: Vec<(usize, usize)>,
    ) -> Self {
        Self { names, histories, touched, has_journal: kind.has_journal() }
    }

    /// Fails with a description if the files break a promise after a cut at `point`. Without a journal, the promises
    /// are only those for files that were not changed since their sync.
    pub fn check(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.check_those(point, found, |index, synced| {
            let is_touched =
                |&(at, touched): &(usize, usize)| touched == index && (synced..point).contains(&at);
            self.has_journal || !self.touched.iter().any(is_touched)
        })
    }

    /// Fails with a description if the files break a promise, whether or not they were changed since their sync.
    pub fn check_all(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.check_those(point, found, |_, _| true)
    }

    /// Checks the files for which `is_promised` returns true, given their index and the point of their last sync.
    fn check_those(
        &self,
        point: usize,
        found: &Snapshot,
        is_promised: impl Fn(usize, usize) -> bool,
    ) -> Result<(), String> {
        for (index, (history, name)) in self.histories.iter().zip(self.names).enumerate() {
            if is_promised(index, history.synced(point)) {
                history.check_at(&format!("/{name}"), point, found)?;
            }
        }
        Ok(())
    }
}
