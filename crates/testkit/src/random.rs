//! Numbers that look random, for tests that do things at random and are to do the same again.

/// The numbers that follow from a seed, which is not zero.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        // Xorshift
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
