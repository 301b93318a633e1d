//! An image that is damaged again and again, without copies of the whole. For images of any format.

use std::ops::Range;
use std::sync::Arc;

use crate::Choose;

/// The maximum number of damaged fields.
const DAMAGES_MAX: u64 = 3;

/// Damage to an image.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The damage in words.
    pub description: String,
    /// The bytes that may have changed.
    pub changed: Vec<Range<usize>>,
}

/// A valid image whose structures are known.
pub trait Damageable {
    /// Returns the name of the image, for messages.
    fn name(&self) -> &str;

    /// Returns the valid image.
    fn bytes(&self) -> &[u8];

    /// Changes a field of `image`, a copy of the valid image.
    fn damage<C: Choose>(&self, image: &mut [u8], choose: &mut C) -> Damage;
}

/// A valid image, and a copy of it that is damaged.
#[derive(Debug)]
pub struct Subject<S> {
    valid: S,
    copy: Arc<Vec<u8>>,
}

impl<S: Damageable> Subject<S> {
    /// Returns a subject whose copy is not damaged.
    pub fn new(valid: S) -> Self {
        let copy = Arc::new(valid.bytes().to_vec());
        Self { valid, copy }
    }

    /// Returns the name of the image, for messages.
    pub fn name(&self) -> &str {
        self.valid.name()
    }

    /// Returns the valid image.
    pub fn valid(&self) -> &S {
        &self.valid
    }

    /// Damages up to three fields of the copy, and calls `run` with the copy, a description of the
    /// damage, and the rest of the choices. Then mends the copy. Panics if `run` has left a
    /// reference to the copy.
    pub fn run<C: Choose>(&mut self, mut choose: C, run: impl FnOnce(&Arc<Vec<u8>>, String, C)) {
        let count = choose.below(DAMAGES_MAX + 1);
        let bytes = Arc::get_mut(&mut self.copy).expect("no volume is open");
        let damages: Vec<Damage> =
            (0..count).map(|_| self.valid.damage(bytes, &mut choose)).collect();
        let described: Vec<_> = damages.iter().map(|damage| &*damage.description).collect();
        let description = format!("{}: {}", self.valid.name(), described.join("; "));
        run(&self.copy, description, choose);
        let bytes = Arc::get_mut(&mut self.copy).expect("no volume is open");
        for range in damages.into_iter().flat_map(|damage| damage.changed) {
            bytes[range.clone()].copy_from_slice(&self.valid.bytes()[range]);
        }
    }
}
