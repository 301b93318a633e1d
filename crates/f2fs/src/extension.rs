//! Extensions of file names. Not here: what they decide (`temperature.rs`, `compress/new.rs`).

/// Returns whether a dot of a name, other than one at its start, is followed by `extension`,
/// whatever comes then. Ignores case.
pub(crate) fn begins_one(name: &[u8], extension: &[u8]) -> bool {
    !extension.is_empty() && rests(name, extension).next().is_some()
}

/// Returns whether a dot of a name, other than one at its start, is followed by `extension`, and
/// this by the end or another dot. Ignores case.
pub(crate) fn is_one(name: &[u8], extension: &[u8]) -> bool {
    rests(name, extension).any(|rest| rest.first().is_none_or(|byte| *byte == b'.'))
}

/// Returns what comes after each such dot and `extension`.
fn rests<'n>(name: &'n [u8], extension: &[u8]) -> impl Iterator<Item = &'n [u8]> {
    let starts = name.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'.');
    starts.filter_map(move |(dot, _)| {
        let (start, rest) = name[dot + 1..].split_at_checked(extension.len())?;
        start.eq_ignore_ascii_case(extension).then_some(rest)
    })
}
