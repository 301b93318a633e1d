//! The choice of the section that is cleaned next. Not here: the cleaning.

use std::cmp::Reverse;

use crate::write::segments::section_use::Section;

/// How a victim is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::write) enum Policy {
    /// The section with the fewest blocks in use: the cheapest way to a free section.
    Greedy,
    /// The section with the greatest ratio of what is gained, for how long, to what is moved: (1 -
    /// u) × age / (1 + u). A section with old data is cleaned earlier, since it would gain little
    /// by waiting. Source: Rosenblum and Ousterhout, "The Design and Implementation of a
    /// Log-Structured File System", 1991, 3.6.
    CostBenefit {
        /// The time now, in seconds since the volume was made.
        now: u64,
    },
}

/// Returns the best section to clean. Sections without blocks in use need no cleaning, and full
/// ones gain nothing.
pub(in crate::write) fn choose(
    sections: impl Iterator<Item = Section>,
    policy: Policy,
) -> Option<Section> {
    let candidates = sections.filter(|section| section.used > 0 && section.used < section.blocks);
    match policy {
        Policy::Greedy => candidates.min_by_key(|section| (section.used, section.written)),
        Policy::CostBenefit { now } => {
            candidates.max_by_key(|section| (benefit(section, now), Reverse(section.number)))
        }
    }
}

/// Returns the benefit of cleaning a section, per cost, in 1/65,536.
fn benefit(section: &Section, now: u64) -> u128 {
    // A section that was written at this moment has an age, too, so that the use decides between
    // new ones.
    let age = u128::from(now.saturating_sub(section.written)) + 1;
    let free = u128::from(section.blocks - section.used);
    let cost = u128::from(section.blocks + section.used);
    ((age * free) << 16) / cost
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn section(number: u32, used: u64, written: u64) -> Section {
        Section { number, used, blocks: 512, written }
    }

    fn chosen(sections: &[Section], policy: Policy) -> Option<u32> {
        choose(sections.iter().copied(), policy).map(|section| section.number)
    }

    #[test]
    fn empty_and_full_sections_are_never_chosen() {
        let sections = [section(0, 0, 0), section(1, 512, 0)];
        assert_eq!(chosen(&sections, Policy::Greedy), None);
        assert_eq!(chosen(&sections, Policy::CostBenefit { now: 1000 }), None);
        assert_eq!(chosen(&[], Policy::Greedy), None);
    }

    #[test]
    fn greedy_takes_the_emptiest_and_among_equals_the_oldest() {
        let sections =
            [section(0, 100, 5), section(1, 99, 9), section(2, 99, 8), section(3, 511, 0)];
        assert_eq!(chosen(&sections, Policy::Greedy), Some(2));
    }

    #[test]
    fn cost_benefit_prefers_old_data_to_emptier_new_sections() {
        let sections = [section(0, 300, 0), section(1, 200, 9_900)];
        assert_eq!(chosen(&sections, Policy::CostBenefit { now: 10_000 }), Some(0));
        let sections = [section(0, 300, 9_900), section(1, 200, 9_900)];
        assert_eq!(chosen(&sections, Policy::CostBenefit { now: 10_000 }), Some(1));
    }

    #[test]
    fn times_in_the_future_count_as_now() {
        let sections = [section(0, 300, u64::MAX), section(1, 200, 50)];
        assert_eq!(chosen(&sections, Policy::CostBenefit { now: 40 }), Some(1));
    }

    proptest! {
        #[test]
        fn the_choice_is_the_best_of_a_plain_model(
            raw in prop::collection::vec((0_u64..=512, 0_u64..5000), 0..40),
            now in 0_u64..6000,
        ) {
            let sections: Vec<_> =
                (0..).zip(&raw).map(|(number, (used, written))| section(number, *used, *written)).collect();
            let gains = |section: &&Section| (1..512).contains(&section.used);
            let least = sections.iter().filter(gains).map(|section| section.used).min();
            let greedy = choose(sections.iter().copied(), Policy::Greedy);
            prop_assert_eq!(greedy.map(|section| section.used), least);
            let score = |section: &Section| {
                let used = section.used as f64 / 512.0;
                (now.saturating_sub(section.written) + 1) as f64 * (1.0 - used) / (1.0 + used)
            };
            let best = sections.iter().filter(gains).map(score).fold(0.0, f64::max);
            let found = choose(sections.iter().copied(), Policy::CostBenefit { now });
            prop_assert_eq!(found.is_some(), least.is_some());
            if let Some(found) = found {
                prop_assert!((score(&found) - best).abs() <= best / 10_000.0 + 0.001);
            }
        }
    }
}
