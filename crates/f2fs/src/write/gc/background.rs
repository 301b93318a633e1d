//! When a volume is cleaned in the background. Not here: the cleaning.

/// What the next call of the cleaning in the background does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Background {
    /// Nothing, since the volume has changed since the last call.
    Waits,
    /// It looks for a section to clean.
    Cleans,
    /// Nothing: the last look has found nothing to gain, and nothing has changed since.
    Rests,
}

impl Background {
    /// Records a change of the volume.
    pub(crate) fn note_change(&mut self) {
        *self = Self::Waits;
    }

    /// Records a checkpoint, after which there may be more to gain.
    pub(crate) fn note_checkpoint(&mut self) {
        if *self == Self::Rests {
            *self = Self::Cleans;
        }
    }

    /// Begins a call. Returns whether it looks for a section.
    pub(crate) fn begin(&mut self) -> bool {
        let cleans = *self == Self::Cleans;
        if *self == Self::Waits {
            *self = Self::Cleans;
        }
        cleans
    }

    /// Records that there was nothing to gain.
    pub(crate) fn rest(&mut self) {
        *self = Self::Rests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls the cleaning several times. Returns how often it looks for a section, if `count` are
    /// to be gained.
    fn looks(background: &mut Background, count: usize) -> usize {
        let mut looks = 0;
        for _ in 0..20 {
            if background.begin() {
                looks += 1;
                if looks > count {
                    background.rest();
                }
            }
        }
        looks
    }

    #[test]
    fn an_idle_volume_is_looked_at_once_after_the_last_gain() {
        let mut background = Background::Waits;
        assert_eq!(looks(&mut background, 5), 6);
        assert_eq!(looks(&mut background, 5), 0);
        background.note_change();
        assert_eq!(looks(&mut background, 0), 1);
        background.note_checkpoint();
        assert_eq!(looks(&mut background, 0), 1);
        assert_eq!(looks(&mut background, 0), 0);
    }

    #[test]
    fn a_volume_that_changes_between_calls_is_not_looked_at() {
        let mut background = Background::Waits;
        for _ in 0..20 {
            assert!(!background.begin());
            background.note_change();
            background.note_checkpoint();
        }
        assert!(!background.begin());
        assert!(background.begin());
    }
}
