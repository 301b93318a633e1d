//! Bounds-checked typed views of raw bytes.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::error::{Error, Location, Problem, Result};

/// Returns the layout `T` at `byte` within `bytes`.
///
/// # Errors
///
/// [`Error::Corrupt`] with `structure` and `location`, if `bytes` is too short.
pub fn view_at<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &'a [u8],
    byte: usize,
    structure: &'static str,
    location: Location,
) -> Result<&'a T> {
    bytes
        .get(byte..)
        .and_then(|rest| T::ref_from_prefix(rest).ok())
        .map(|(view, _)| view)
        .ok_or_else(|| {
            Error::corrupt(
                structure,
                location.at_byte(byte as u64),
                Problem::Truncated {
                    needed: size_of::<T>() as u64,
                    available: bytes.len().saturating_sub(byte) as u64,
                },
            )
        })
}
