//! Environment variables that make tests longer, or choose what they do.

use std::ops::Range;

/// Returns the number in an environment variable, if it is set.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// Returns the factor for the length of long random tests (`BIFOLIO_SOAK_FACTOR`).
pub fn soak_factor() -> u64 {
    number("BIFOLIO_SOAK_FACTOR").unwrap_or(1)
}

/// Returns `count` seeds, times the [`soak_factor`], from `BIFOLIO_TEST_SEED` on.
pub fn seeds(count: u64) -> Range<u64> {
    let first = number("BIFOLIO_TEST_SEED").unwrap_or(0);
    first..first + count * soak_factor()
}
