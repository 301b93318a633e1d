//! The selection of rows and sides on the command line.

use std::process::ExitCode;
use std::sync::Mutex;

/// The selected rows and sides: all, unless the command line chooses some.
pub struct Selection {
    sides: Choice,
    rows: Choice,
}

/// The chosen names, and all names.
struct Choice {
    /// The names or parts of names on the command line.
    chosen: Vec<String>,
    /// The names that the benchmark has passed to `has`.
    known: Mutex<Vec<String>>,
}

impl Choice {
    fn new(chosen: Vec<String>) -> Self {
        Self { chosen, known: Mutex::default() }
    }

    /// Returns whether `name` is chosen. `matches` compares it with an argument.
    fn has(&self, name: &str, matches: impl Fn(&str, &str) -> bool) -> bool {
        let mut known = self.known.lock().expect("no panic");
        if !known.iter().any(|other| other == name) {
            known.push(name.to_owned());
        }
        self.chosen.is_empty() || self.chosen.iter().any(|chosen| matches(name, chosen))
    }

    /// Returns an error message if a chosen name matches nothing in the benchmark.
    fn error(&self, kind: &str, matches: impl Fn(&str, &str) -> bool) -> Option<String> {
        let known = self.known.lock().expect("no panic");
        let is_missing = |chosen: &&String| !known.iter().any(|name| matches(name, chosen));
        let missing: Vec<_> = self.chosen.iter().filter(is_missing).cloned().collect();
        if missing.is_empty() {
            return None;
        }
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Some(format!("no {kind} matches {}; {kind}s: {known}", missing.join(", ")))
    }
}

fn matches_row(name: &str, chosen: &str) -> bool {
    name.contains(chosen)
}

fn matches_side(name: &str, chosen: &str) -> bool {
    name == chosen
}

impl Selection {
    /// Parses a command line. `side=NAME` chooses a side. All other arguments choose the rows whose
    /// names contain them.
    pub fn new(arguments: impl Iterator<Item = String>) -> Self {
        let mut sides = Vec::new();
        let mut rows = Vec::new();
        for argument in arguments {
            match argument.strip_prefix("side=") {
                Some(side) => sides.push(side.to_owned()),
                None => rows.push(argument),
            }
        }
        Self { sides: Choice::new(sides), rows: Choice::new(rows) }
    }

    /// Returns whether a side is selected.
    pub fn has_side(&self, name: &str) -> bool {
        self.sides.has(name, matches_side)
    }

    /// Returns whether a row is selected.
    pub fn has_row(&self, name: &str) -> bool {
        self.rows.has(name, matches_row)
    }

    /// Returns the exit code of the benchmark. If an argument matches no row or side, prints the
    /// existing names and returns a failure.
    #[must_use]
    #[allow(clippy::print_stderr, reason = "the message is for the user")]
    pub fn finish(&self) -> ExitCode {
        let errors = self.errors();
        for error in &errors {
            eprintln!("error: {error}");
        }
        if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn errors(&self) -> Vec<String> {
        let sides = self.sides.error("side", matches_side);
        let rows = self.rows.error("row", matches_row);
        sides.into_iter().chain(rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error messages for a command line, and the selected rows.
    fn select(line: &str) -> (Vec<String>, Vec<&'static str>) {
        let selection = Selection::new(line.split_whitespace().map(str::to_owned));
        assert!(selection.has_side("ours") || line.contains("side="));
        selection.has_side("kernel");
        let rows = ["series 4K", "series 1M", "trees"];
        let measured = rows.into_iter().filter(|row| selection.has_row(row)).collect();
        (selection.errors(), measured)
    }

    #[test]
    fn parts_of_names_choose_rows() {
        assert_eq!(select(""), (vec![], vec!["series 4K", "series 1M", "trees"]));
        assert_eq!(select("series side=ours"), (vec![], vec!["series 4K", "series 1M"]));
        assert_eq!(select("4K trees"), (vec![], vec!["series 4K", "trees"]));
    }

    #[test]
    fn the_error_for_a_missing_row_or_side_lists_the_existing_rows_or_sides() {
        let row = "no row matches 2M, x; rows: series 4K, series 1M, trees".to_owned();
        assert_eq!(select("2M x"), (vec![row], vec![]));
        let row = "no row matches 2M; rows: series 4K, series 1M, trees".to_owned();
        assert_eq!(select("2M trees"), (vec![row], vec!["trees"]));
        let side = "no side matches our; sides: ours, kernel".to_owned();
        assert_eq!(select("side=our trees"), (vec![side], vec!["trees"]));
        let without_sides = Selection::new(["side=ours".to_owned()].into_iter());
        assert_eq!(without_sides.errors(), ["no side matches ours; sides: none"]);
    }
}
