//! Temperatures of files: how soon their data is likely to be overwritten. Data of each temperature
//! has a log of its own, so that the blocks of a segment become free at about the same time. Not
//! here: the logs.

use crate::extension;
use crate::ondisk::node::advise;
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
        let (cold, hot) = extensions(superblock);
        match () {
            () if has_any(name, cold) => Self::Cold,
            () if has_any(name, hot) => Self::Hot,
            () => Self::Warm,
        }
    }

    /// Returns whether a name has an extension of hot files, whether or not it has one of cold
    /// files, too.
    pub(crate) fn is_hot_name(name: &[u8], superblock: &RawSuperblock) -> bool {
        has_any(name, extensions(superblock).1)
    }
}

type Extension = [u8; 8];

/// Returns the extensions of cold and of hot files.
fn extensions(superblock: &RawSuperblock) -> (&[Extension], &[Extension]) {
    let extensions = &superblock.extensions;
    let cold = (superblock.cold_extension_count.get() as usize).min(extensions.len());
    let (cold, others) = extensions.split_at(cold);
    (cold, &others[..usize::from(superblock.hot_extension_count).min(others.len())])
}

fn has_any(name: &[u8], extensions: &[Extension]) -> bool {
    extensions.iter().any(|padded| {
        let extension = padded.split(|byte| *byte == 0).next().unwrap_or_default();
        extension::begins_one(name, extension)
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
    fn cold_names_may_be_hot_ones_too() {
        let mut superblock = RawSuperblock::new_zeroed();
        superblock.cold_extension_count.set(1);
        superblock.hot_extension_count = 1;
        superblock.extensions[0][..2].copy_from_slice(b"so");
        superblock.extensions[1][..2].copy_from_slice(b"db");
        for (name, expected) in [("a.so", false), ("a.db", true), ("a.so.db", true)] {
            assert_eq!(Temperature::is_hot_name(name.as_bytes(), &superblock), expected, "{name}");
        }
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
