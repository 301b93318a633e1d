//! Numbers that look random, and are the same for the same seed.

/// A source of numbers, by its state.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ (self.0 >> 17 & 0xFFFF)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len() as u64) as usize) }
    }

    /// An element that is taken out.
    pub fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        let length = from.len() as u64;
        (length > 0).then(|| from.swap_remove(self.below(length) as usize))
    }
}
