//! Choices that can be repeated: by pseudo-random numbers from a seed, or by the input of a fuzzer.

pub(crate) mod changer;
pub mod exercise;

/// A source of choices.
pub trait Choose {
    /// Returns any number.
    fn draw(&mut self) -> u64;

    /// Returns a number below `end`, which must not be zero.
    fn below(&mut self, end: u64) -> u64;

    /// Returns whether all further choices would be the same.
    fn is_spent(&self) -> bool {
        false
    }

    /// Chooses an element, if there is any.
    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.below(from.len() as u64) as usize) }
    }

    /// Chooses an element and removes it, if there is any.
    fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        let length = from.len() as u64;
        (length > 0).then(|| from.swap_remove(self.below(length) as usize))
    }
}

/// A sequence of numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// Chooses an element, if there is any.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        Choose::pick(self, from)
    }

    /// Chooses an element and removes it, if there is any.
    pub fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        Choose::take(self, from)
    }
}

impl Choose for Random {
    fn draw(&mut self) -> u64 {
        Self::draw(self)
    }

    fn below(&mut self, end: u64) -> u64 {
        Self::below(self, end)
    }
}

/// The bytes of a fuzzer's input. Each choice takes as many as it needs, so that a small change of
/// the input changes few choices. After the last byte, all numbers are zero.
#[derive(Clone, Debug)]
pub struct InputBytes<'a>(pub &'a [u8]);

impl InputBytes<'_> {
    fn number(&mut self, bytes: usize) -> u64 {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        taken.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

impl Choose for InputBytes<'_> {
    fn draw(&mut self) -> u64 {
        self.number(8)
    }

    fn below(&mut self, end: u64) -> u64 {
        let bytes = match end {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 8,
        };
        self.number(bytes) % end
    }

    fn is_spent(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_take_as_many_bytes_as_they_need() {
        let mut input = InputBytes(&[1, 2, 3, 4, 5]);
        assert_eq!(input.below(10), 1);
        assert_eq!(input.below(0x1000), 0x302);
        assert!(!input.is_spent());
        assert_eq!(input.draw(), 0x0504);
        assert!(input.is_spent());
        assert_eq!((input.below(7), input.draw()), (0, 0));
    }
}
