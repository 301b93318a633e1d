//! Manifests: descriptions of trees of files as text facts, and their comparison. Two readers of
//! one image must have equal manifests. Not here: reading the facts (`host`, `volume`).

pub(crate) mod digest;
pub(crate) mod host;
pub(crate) mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The maximum number of differences in a message. The rest is only counted.
const SHOWN_MAX: usize = 40;

/// The number of characters of a value in a message, around the first difference.
const CONTEXT: usize = 80;

/// Facts about one name: values by fact.
pub(crate) type Facts = BTreeMap<String, String>;

/// The facts about all names of a tree. Names are paths from the top, or "." for the top itself,
/// with unprintable bytes escaped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    entries: BTreeMap<String, Facts>,
}

/// The value of a fact that Linux cannot determine. It is equal to all other values, and to none.
const NO_ANSWER: &str = "(no answer)";

/// The name for the facts about the whole volume.
pub(crate) const VOLUME: &str = "(volume)";

impl Manifest {
    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the value of a fact about a name.
    pub fn fact(&self, name: &str, fact: &str) -> Option<&str> {
        self.entries.get(name)?.get(fact).map(String::as_str)
    }

    /// Returns the number of names for which the fact's value `is_counted`.
    pub fn count(&self, fact: &str, is_counted: impl Fn(&str) -> bool) -> usize {
        self.entries
            .values()
            .filter(|facts| facts.get(fact).is_some_and(|value| is_counted(value)))
            .count()
    }

    /// Replaces each value by `change(name, mode, fact, value)`, or removes the fact if that is
    /// `None`. The mode is that of the name, in octal with its type.
    pub fn map(mut self, change: impl Fn(&str, &str, &str, &str) -> Option<String>) -> Self {
        for (name, facts) in &mut self.entries {
            let mode = facts.get("mode").cloned().unwrap_or_default();
            *facts = std::mem::take(facts)
                .into_iter()
                .filter_map(|(fact, value)| {
                    let value = change(name, &mode, &fact, &value)?;
                    Some((fact, value))
                })
                .collect();
        }
        self
    }

    /// Removes a name and all names below it.
    pub fn without_tree(mut self, top: &str) -> Self {
        let below = format!("{top}/");
        self.entries.retain(|name, _| name != top && !name.starts_with(&below));
        self
    }

    /// Returns the names for which both manifests have the fact, with different values.
    pub fn names_that_differ<'m>(&'m self, other: &Self, fact: &str) -> Vec<&'m str> {
        let differs = |name: &&str| {
            let facts = [self.fact(name, fact), other.fact(name, fact)];
            facts.iter().all(Option::is_some) && differ(facts)
        };
        self.entries.keys().map(String::as_str).filter(differs).collect()
    }

    /// Returns the differences, as a line for each.
    pub fn differences(&self, our_name: &str, other: &Self, other_name: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let names: BTreeSet<&String> = self.entries.keys().chain(other.entries.keys()).collect();
        for name in names {
            match (self.entries.get(name), other.entries.get(name)) {
                (Some(_), None) => lines.push(format!("{name}: only {our_name} has it")),
                (None, Some(_)) => lines.push(format!("{name}: only {other_name} has it")),
                (Some(left), Some(right)) => {
                    compare(name, (our_name, left), (other_name, right), &mut lines);
                }
                (None, None) => {}
            }
        }
        lines
    }

    /// Panics with the differences if there are any.
    #[track_caller]
    pub fn assert_equal(&self, our_name: &str, other: &Self, other_name: &str) {
        let lines = self.differences(our_name, other, other_name);
        if !lines.is_empty() {
            let shown = lines[..lines.len().min(SHOWN_MAX)].join("\n  ");
            panic!("{} differences between {our_name} and {other_name}:\n  {shown}", lines.len());
        }
    }

    fn insert(&mut self, name: &[u8], facts: Facts) {
        let name = if name.is_empty() { ".".to_owned() } else { escape(name) };
        let before = self.entries.insert(name.clone(), facts);
        assert!(before.is_none(), "{name} is listed twice");
    }
}

/// Returns whether two values of a fact differ, or only one of them exists.
fn differ(values: [Option<&str>; 2]) -> bool {
    values[0] != values[1] && !values.contains(&Some(NO_ANSWER))
}

fn compare(name: &str, left: (&str, &Facts), right: (&str, &Facts), lines: &mut Vec<String>) {
    let facts: BTreeSet<&String> = left.1.keys().chain(right.1.keys()).collect();
    for fact in facts {
        let values = [left.1.get(fact), right.1.get(fact)].map(|value| value.map(String::as_str));
        if differ(values) {
            let [a, b] = values.map(|value| value.unwrap_or("(nothing)"));
            let from = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
            let [a, b] = [a, b].map(|value| excerpt(value, from));
            lines.push(format!("{name}: {fact}: {} {a}, {} {b}", left.0, right.0));
        }
    }
}

/// Returns the part of `value` around byte `from`.
fn excerpt(value: &str, from: usize) -> String {
    let start = from.saturating_sub(CONTEXT / 2);
    let shown: String = value.chars().skip(start).take(CONTEXT).collect();
    let lead = if start > 0 { "…" } else { "" };
    let tail = if value.chars().count() > start + CONTEXT { "…" } else { "" };
    format!("{lead}{shown}{tail}")
}

/// Returns bytes as printable text. Different bytes have different texts.
pub(crate) fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Returns a short text for a value of any length.
pub(crate) fn value_text(bytes: &[u8]) -> String {
    if bytes.len() <= 256 {
        return escape(bytes);
    }
    let digest = crate::digest(bytes.len() as u64, &[], |at, buffer| {
        buffer.copy_from_slice(&bytes[at as usize..][..buffer.len()]);
    });
    format!("{} bytes, {digest}", bytes.len())
}

/// An extent of a file, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    pub(crate) unwritten: bool,
}

/// Returns extents as text. Joins adjacent ones first, since readers may split runs at different
/// positions.
pub(crate) fn extents_text(extents: &[Extent]) -> String {
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(last)
                if last.logical + last.length == extent.logical
                    && last.physical + last.length == extent.physical
                    && last.unwritten == extent.unwritten =>
            {
                last.length += extent.length;
            }
            _ => joined.push(*extent),
        }
    }
    let texts: Vec<String> = joined
        .iter()
        .map(|Extent { logical, physical, length, unwritten }| {
            let state = if *unwritten { " unwritten" } else { "" };
            format!("{logical}+{length}@{physical}{state}")
        })
        .collect();
    texts.join(", ")
}

pub(crate) fn ranges_text(ranges: &[Range<u64>]) -> String {
    let texts: Vec<String> =
        ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
    texts.join(", ")
}

pub(crate) fn time_text(seconds: i64, nanoseconds: u32) -> String {
    format!("{seconds} s + {nanoseconds} ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(facts: &[(&str, &str, &str)]) -> Manifest {
        let mut manifest = Manifest::default();
        for (name, fact, value) in facts {
            let facts = manifest.entries.entry((*name).to_owned()).or_default();
            facts.insert((*fact).to_owned(), (*value).to_owned());
        }
        manifest
    }

    #[test]
    fn differences_name_the_file_the_fact_and_both_values() {
        let left = manifest(&[("a", "size", "1"), ("b", "size", "2")]);
        let right = manifest(&[("a", "size", "3"), ("c", "size", "2")]);
        assert_eq!(
            left.differences("kernel", &right, "bifolio"),
            ["a: size: kernel 1, bifolio 3", "b: only kernel has it", "c: only bifolio has it"]
        );
        assert!(left.differences("", &left, "").is_empty());
    }

    #[test]
    fn facts_that_linux_cannot_determine_are_not_compared() {
        let left = manifest(&[("a", "data", NO_ANSWER), ("a", "size", "1"), ("b", "data", "1")]);
        let right = manifest(&[("a", "data", "2"), ("a", "size", "2"), ("b", "data", "2")]);
        assert_eq!(left.differences("l", &right, "r"), ["a: size: l 1, r 2", "b: data: l 1, r 2"]);
        assert_eq!(left.names_that_differ(&right, "data"), ["b"]);
    }

    #[test]
    fn a_missing_fact_is_a_difference_unless_it_is_removed() {
        let left = manifest(&[("a", "size", "1"), ("a", "created", "5")]);
        let right = manifest(&[("a", "size", "1")]);
        assert_eq!(left.differences("l", &right, "r").len(), 1);
        let left = left.map(|_, _, fact, value| (fact != "created").then(|| value.to_owned()));
        assert!(left.differences("l", &right, "r").is_empty());
    }

    #[test]
    fn adjacent_extents_are_joined() {
        let extent =
            |logical, physical, unwritten| Extent { logical, physical, length: 10, unwritten };
        let text = extents_text(&[
            extent(0, 100, false),
            extent(10, 110, false),
            extent(20, 120, true),
            extent(40, 130, true),
        ]);
        assert_eq!(text, "0+20@100, 20+10@120 unwritten, 40+10@130 unwritten");
    }
}
