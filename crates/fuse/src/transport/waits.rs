//! How long requests of each kind have waited for the device, and with that whether the reader may
//! wait itself. Not here: any waiting.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Waking another thread, on another processor as a rule, takes about so long: others gain nothing
/// from it when the reader is back before.
const BRIEF: Duration = Duration::from_micros(200);
/// What is expected before anything is known: some requests go by until waits count as brief.
const UNKNOWN: Duration = Duration::from_millis(1);
/// Of the difference to a shorter wait so much is kept: one long wait is remembered for some thirty
/// brief ones, and the others wait for a reader that waits for the device as seldom as that.
const KEPT_SHARE: (u64, u64) = (7, 8);
/// Kinds that are told apart: by operation code.
const KINDS: usize = 64;

/// What is expected of each kind, in nanoseconds.
#[derive(Debug)]
pub struct Waits([AtomicU64; KINDS]);

impl Default for Waits {
    fn default() -> Self {
        Self([const { AtomicU64::new(UNKNOWN.as_nanos() as u64) }; KINDS])
    }
}

impl Waits {
    /// Whether requests with this operation code wait so briefly that nobody else need read meanwhile.
    pub fn are_brief(&self, opcode: u32) -> bool {
        self.of(opcode).load(Ordering::Relaxed) < BRIEF.as_nanos() as u64
    }

    /// Notes how long one has waited.
    pub fn note(&self, opcode: u32, waited: Duration) {
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let expected = self.of(opcode);
        let above = expected.load(Ordering::Relaxed).saturating_sub(waited);
        // Others may note at the same time: what one of them says is as good.
        let (kept, of) = KEPT_SHARE;
        expected.store(waited.saturating_add(above / of * kept), Ordering::Relaxed);
    }

    fn of(&self, opcode: u32) -> &AtomicU64 {
        &self.0[opcode as usize % KINDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes brief waits until they count as such; says how many it took.
    fn calm(waits: &Waits, opcode: u32) -> usize {
        (0..1000)
            .take_while(|_| {
                let brief = waits.are_brief(opcode);
                waits.note(opcode, Duration::from_micros(20));
                !brief
            })
            .count()
    }

    #[test]
    fn waits_are_brief_when_many_of_their_kind_were_and_a_long_one_is_remembered() {
        let waits = Waits::default();
        assert!((5..50).contains(&calm(&waits, 20)));
        assert!(!waits.are_brief(15), "kinds are told apart");
        waits.note(20, Duration::from_millis(10));
        assert!((20..60).contains(&calm(&waits, 20)));
        waits.note(20, Duration::from_secs(3600));
        assert!(calm(&waits, 20) < 400, "nothing is remembered for ever");
    }
}
