//! What became of damaged images that were changed, over all images of a run.

use std::fmt::Debug;

use super::written::Outcome;

/// The numbers of images of a run, and those that became worse.
#[derive(Debug, Default)]
pub struct Counts {
    /// All images that were changed.
    pub images: u64,
    /// Those that opened for writing.
    pub opened: u64,
    /// Those in which the check found nothing.
    pub sound: u64,
    /// Those in which the foreign checker found nothing.
    pub clean: u64,
    /// Those in which the foreign checker found errors, and whose errors before and after were
    /// compared.
    pub compared: u64,
    /// Descriptions of those that are worse than before.
    worse: Vec<String>,
}

impl Counts {
    /// Counts an image with the `outcome` of its changes, and compares what the check has found.
    /// Returns whether it opened.
    pub fn add(&mut self, what: &str, outcome: &Outcome) -> bool {
        let has_opened = outcome.made.is_some();
        self.images += 1;
        self.opened += u64::from(has_opened);
        self.sound += u64::from(outcome.is_sound());
        self.worse_if_new(&format!("{what}: the check"), &outcome.new_findings(), &outcome.before);
        has_opened
    }

    /// Records that an image is worse if there is anything `new` that was not there `before`.
    pub fn worse_if_new<T: Debug>(&mut self, what: &str, new: &[T], before: &impl Debug) {
        if !new.is_empty() {
            self.worse.push(format!("{what}: {new:#?}, before: {before:#?}"));
        }
    }

    /// Prints the numbers.
    ///
    /// # Panics
    ///
    /// An image has become worse, or the damage has no effect or is always refused, which would not
    /// test anything.
    #[allow(clippy::print_stdout, reason = "the counts of a run")]
    pub fn report(&self) {
        let Self { images, opened, sound, clean, compared, worse } = self;
        println!(
            "{images} images, {opened} opened, {sound} sound, {clean} clean, {compared} with errors compared"
        );
        assert!(worse.is_empty(), "{} are worse:\n{}", worse.len(), worse.join("\n"));
        assert!(opened * 2 > *images && opened < images, "{opened} of {images} opened");
    }
}
