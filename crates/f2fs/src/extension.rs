//! Extensions of file names. Not here: what they decide (`temperature.rs`, `compress/new.rs`).

/// Returns whether `extension` comes after a dot in a name, but for one at its start. Anything may follow it, as the suffix
/// of a download does. The cases of letters may differ.
pub(crate) fn begins_one(name: &[u8], extension: &[u8]) -> bool {
    !extension.is_empty() && rests(name, extension).next().is_some()
}

/// Returns whether `extension` is one of a name. Others may follow it. The cases of letters may differ.
pub(crate) fn is_one(name: &[u8], extension: &[u8]) -> bool {
    rests(name, extension).any(|rest| rest.first().is_none_or(|byte| *byte == b'.'))
}

/// Returns what follows `extension` in a name, for each dot before it, but for one at the start.
fn rests<'n>(name: &'n [u8], extension: &[u8]) -> impl Iterator<Item = &'n [u8]> {
    let starts = name.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'.');
    starts.filter_map(move |(dot, _)| {
        let (start, rest) = name[dot + 1..].split_at_checked(extension.len())?;
        start.eq_ignore_ascii_case(extension).then_some(rest)
    })
}
