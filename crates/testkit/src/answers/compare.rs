//! The comparison of two readers' answers: facts that differ, and errors of only one of them. Not
//! here: which differences are failures.

use std::collections::BTreeSet;

use super::{Answer, Answers, Failure};
use crate::hostile::written::kinds;

/// A fact that two readers give differently.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The name.
    pub name: String,
    /// The fact.
    pub fact: String,
    /// Our value, and theirs.
    pub values: [String; 2],
}

impl Difference {
    /// Returns the fact without offsets and names of attributes.
    pub fn kind(&self) -> &str {
        kind_of(&self.fact)
    }

    /// Returns the values, if both are numbers.
    pub fn numbers(&self) -> Option<[u64; 2]> {
        let [ours, theirs] = self.values.each_ref().map(|value| value.parse().ok());
        Some([ours?, theirs?])
    }
}

/// A kind of error that only one reader reports, or that both report.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Refusal {
    /// The question without offsets and names of attributes.
    pub question: String,
    /// Our error, without numbers and places, and theirs. At least one of them is `Some`.
    pub errors: [Option<String>; 2],
}

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// The number of equal facts.
    pub equal: usize,
    /// The facts that differ.
    pub differences: Vec<Difference>,
    /// The kinds of errors.
    pub refusals: BTreeSet<Refusal>,
}

/// Compares the answers of two readers about a whole image. An image that a reader does not open
/// has the failure instead.
pub fn compare_images(ours: &Answer<Answers>, theirs: &Answer<Answers>) -> Compared {
    let mut compared = Compared::default();
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => ours.compare(theirs, &mut compared),
        _ => compared.add_refusal("mount", [ours.as_ref().err(), theirs.as_ref().err()]),
    }
    compared
}

impl Answers {
    /// Compares the answers to all questions that were asked by both. Others follow from a fact
    /// that differs or is missing: names from those of their directory, contents from the size.
    fn compare(&self, other: &Self, compared: &mut Compared) {
        for (name, ours) in &self.names {
            let Some(theirs) = other.names.get(name) else { continue };
            // A file that a reader does not open has few facts.
            let opened =
                [ours, theirs].map(|facts| facts.get("open").and_then(|open| open.as_ref().err()));
            if opened.iter().any(Option::is_some) {
                compared.add_refusal("open", opened);
            }
            for (fact, our_answer) in ours {
                match (our_answer, theirs.get(fact)) {
                    (Ok(our_value), Some(Ok(their_value))) => {
                        if our_value == their_value {
                            compared.equal += 1;
                        } else {
                            let values = without_common([our_value, their_value]);
                            let (name, fact) = (name.clone(), fact.clone());
                            compared.differences.push(Difference { name, fact, values });
                        }
                    }
                    (ours, Some(theirs)) => {
                        let errors = [ours.as_ref().err(), theirs.as_ref().err()];
                        compared.add_refusal(kind_of(fact), errors);
                    }
                    (_, None) => {}
                }
            }
        }
    }
}

impl Compared {
    fn add_refusal(&mut self, question: &str, errors: [Option<&Failure>; 2]) {
        let errors = errors.map(|error| error.map(error_kind));
        self.refusals.insert(Refusal { question: question.to_owned(), errors });
    }
}

/// Returns the lines of each value that the other one does not have, if it has more than one, such
/// as a list of names.
fn without_common(values: [&str; 2]) -> [String; 2] {
    if values.iter().all(|value| !value.contains('\n')) {
        return values.map(str::to_owned);
    }
    let lines = values.map(|value| value.lines().collect::<Vec<_>>());
    [(0, 1), (1, 0)].map(|(one, other)| {
        let mut rest = lines[other].clone();
        let mut own = lines[one].clone();
        own.retain(|line| {
            let found = rest.iter().position(|other| other == line);
            found.map(|at| rest.swap_remove(at)).is_none()
        });
        own.join(", ")
    })
}

fn kind_of(fact: &str) -> &str {
    let known = ["contents", "attribute "];
    known.into_iter().find(|start| fact.starts_with(start)).map_or(fact, str::trim_end)
}

fn error_kind(failure: &Failure) -> String {
    let name = std::io::Error::from_raw_os_error(failure.errno).to_string();
    let name = name.split(" (os").next().unwrap_or_default().to_owned();
    if failure.text.is_empty() {
        return name;
    }
    kinds(std::iter::once(&*failure.text)).pop_first().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(facts: &[(&str, &str, Result<&str, i32>)]) -> Answers {
        let mut answers = Answers::default();
        for (name, fact, answer) in facts {
            let answer = answer.map(str::to_owned);
            let answer = answer.map_err(|errno| Failure { errno, text: String::new() });
            let facts = answers.names.entry((*name).to_owned()).or_default();
            facts.insert((*fact).to_owned(), answer);
        }
        answers
    }

    #[test]
    fn only_facts_that_both_give_are_compared() {
        let ours = answers(&[
            ("a", "size", Ok("1")),
            ("a", "contents at 0", Ok("x")),
            ("a", "contents at 4096", Err(5)),
            ("a", "target", Err(5)),
            ("b", "size", Ok("1")),
        ]);
        let theirs = answers(&[
            ("a", "size", Ok("1")),
            ("a", "contents at 0", Ok("y")),
            ("a", "contents at 4096", Ok("x")),
            ("a", "target", Err(117)),
        ]);
        let compared = compare_images(&Ok(ours), &Ok(theirs));
        assert_eq!(compared.equal, 1);
        let [difference] = &compared.differences[..] else { panic!("{compared:?}") };
        assert_eq!((difference.kind(), &*difference.name), ("contents", "a"));
        let refused: Vec<_> = compared
            .refusals
            .iter()
            .map(|refusal| (&*refusal.question, refusal.errors[1].is_some()))
            .collect();
        assert_eq!(refused, [("contents", false), ("target", true)]);
    }
}
