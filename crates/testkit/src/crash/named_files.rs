//! Files whose names do not change, with the promised contents. Not here: files that are created,
//! renamed or removed (`promises.rs`).

use super::file_history::FileHistory;
use super::kinds::Kind;
use super::snapshot::Snapshot;

/// Files in the root directory, and the operations that changed them.
#[derive(Debug)]
pub struct NamedFiles {
    names: &'static [&'static str],
    histories: Vec<FileHistory>,
    /// The point of the recording before each operation, and the index of the file that it changed.
    touched: Vec<(usize, usize)>,
    has_journal: bool,
}

impl NamedFiles {
    /// Creates the model of files on a volume of `kind`. `names` and `histories` are in the same
    /// order.
    pub fn new(
        kind: &Kind,
        names: &'static [&'static str],
        histories: Vec<FileHistory>,
        touched: Vec<(usize, usize)>,
    ) -> Self {
        Self { names, histories, touched, has_journal: kind.has_journal() }
    }

    /// Fails with a description if the files break a promise after a cut at `point`. Without a
    /// journal, only files that were not changed since their sync are promised.
    pub fn check(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.check_promised(point, found, |index, synced| {
            let is_touched =
                |&(at, touched): &(usize, usize)| touched == index && (synced..point).contains(&at);
            self.has_journal || !self.touched.iter().any(is_touched)
        })
    }

    /// Fails with a description if the files break a promise, even if they were changed since their
    /// sync.
    pub fn check_all(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.check_promised(point, found, |_, _| true)
    }

    /// Checks the files for which `is_promised` returns true. Its arguments are the file's index
    /// and the point of its last sync.
    fn check_promised(
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
