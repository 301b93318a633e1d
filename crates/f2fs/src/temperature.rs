//! Temperatures of files: how soon their data is likely to be overwritten. Data of each temperature has a log of its own,
//! so that the blocks of a segment become free at about the same time.
//! Not here: the logs.

use crate::inode::record::advise;
use crate::ondisk::superblock::RawSuperblock;

/// How soon data is likely to be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Temperature {
    Hot,
    Warm,
    Cold,
}

impl Temperature {
    /// Returns the temperature that an inode's advice flags say.
    pub(crate) fn of_advice(bits: u8) -> Self {
        if bits & advise::COLD != 0 {
            Self::Cold
        } else if bits & advise::HOT != 0 {
            Self::Hot
        } else {
            Self::Warm
        }
    }

    /// Returns the advice flag of this temperature.
    pub(crate) fn advice(self) -> u8 {
        match self {
            Self::Hot => advise::HOT,
            Self::Warm => 0,
            Self::Cold => advise::COLD,
        }
    }

    /// Returns the temperature of a new file, by the superblock's lists of file name extensions.
    pub(crate) fn of_name(name: &[u8], superblock: &RawSuperblock) -> Self {
        let cold = superblock.cold_extension_count.get() as usize;
        let hot = usize::from(superblock.hot_extension_count);
        let extensions = superblock.extensions.iter().take(cold.saturating_add(hot));
        let found = extensions.into_iter().position(|padded| {
            let extension = padded.split(|byte| *byte == 0).next().unwrap_or_default();
            has_extension(name, extension)
        });
        match found {
            Some(index) if index < cold => Self::Cold,
            Some(_) => Self::Hot,
            None => Self::Warm,
        }
    }
}

/// Returns whether `extension` comes after a dot in a name, but for one at its start. Anything may follow it, as the suffix
/// of a download does. The cases of letters may differ.
fn has_extension(name: &[u8], extension: &[u8]) -> bool {
    let starts = name.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'.');
    let mut rests = starts.map(|(dot, _)| &name[dot + 1..]);
    !extension.is_empty()
        && rests.any(|rest| {
            rest.get(..extension.len()).is_some_and(|start| start.eq_ignore_ascii_case(extension))
        })
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn check(name: &str, expected: Temperature) {
        let mut superblock = RawSuperblock::new_zeroed();
        superblock.cold_extension_count.set(2);
        superblock.hot_extension_count = 1;
        superblock.extensions[0][..3].copy_from_slice(b"mp4");
        superblock.extensions[1] = *b"download";
        superblock.extensions[2][..2].copy_from_slice(b"db");
        superblock.extensions[3][..3].copy_from_slice(b"txt");
        assert_eq!(Temperature::of_name(name.as_bytes(), &superblock), expected, "{name}");
    }

    #[test]
    fn extensions_decide_wherever_they_are() {
        check("film.mp4", Temperature::Cold);
        check("FILM.Mp4", Temperature::Cold);
        check("film.mp4.part", Temperature::Cold);
        check("film.download", Temperature::Cold);
        check("data.db", Temperature::Hot);
        check("data.db-journal", Temperature::Hot);
        // Cold extensions come first.
        check("data.db.mp4", Temperature::Cold);
    }

    #[test]
    fn other_names_are_warm() {
        for name in [".mp4", "mp4", "film.mp", "film.", "film", "filmmp4", "a.txt", "", "."] {
            check(name, Temperature::Warm);
        }
    }

    #[test]
    fn counts_past_the_list_and_empty_entries_are_harmless() {
        let mut superblock = RawSuperblock::new_zeroed();
        superblock.cold_extension_count.set(u32::MAX);
        superblock.hot_extension_count = u8::MAX;
        assert_eq!(Temperature::of_name(b"a.b", &superblock), Temperature::Warm);
        superblock.extensions[63] = *b"eightchr";
        assert_eq!(Temperature::of_name(b"a.eightchr", &superblock), Temperature::Cold);
    }
}
