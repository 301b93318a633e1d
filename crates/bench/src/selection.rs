//! Selection of rows and sides by the command line.

use std::process::ExitCode;
use std::sync::Mutex;

/// All rows and sides, unless the command line names some.
pub struct Selection {
    sides: Choice,
    rows: Choice,
}

/// Chosen names, and the names that there are.
struct Choice {
    /// The names, or parts of names, that the command line has.
    chosen: Vec<String>,
    /// The names that the benchmark has asked for.
    known: Mutex<Vec<String>>,
}

impl Choice {
    fn new(chosen: Vec<String>) -> Self {
        Self { chosen, known: Mutex::default() }
    }

    /// Returns whether `name` is chosen.
    fn has(&self, name: &str, is: impl Fn(&str, &str) -> bool) -> bool {
        let mut known = self.known.lock().expect("no panic");
        if !known.iter().any(|other| other == name) {
            known.push(name.to_owned());
        }
        self.chosen.is_empty() || self.chosen.iter().any(|chosen| is(name, chosen))
    }

    /// Returns a complaint if a chosen name was none of those that the benchmark has asked for.
    fn complaint(&self, kind: &str, is: impl Fn(&str, &str) -> bool) -> Option<String> {
        let known = self.known.lock().expect("no panic");
        let is_missing = |chosen: &&String| !known.iter().any(|name| is(name, chosen));
        let missing: Vec<_> = self.chosen.iter().filter(is_missing).cloned().collect();
        if missing.is_empty() {
            return None;
        }
        Some(format!("no {kind}: {}; there are: {}", missing.join(", "), known.join(", ")))
    }
}

fn is_row(name: &str, chosen: &str) -> bool {
    name.contains(chosen)
}

fn is_side(name: &str, chosen: &str) -> bool {
    name == chosen
}

impl Selection {
    /// Returns the selection of a command line: `side=NAME` chooses a side, anything else all rows whose names contain
    /// it.
    pub fn new(arguments: impl Iterator<Item = String>) -> Self {
        let (mut sides, mut rows) = (Vec::new(), Vec::new());
        for argument in arguments {
            match argument.strip_prefix("side=") {
                Some(side) => sides.push(side.to_owned()),
                None => rows.push(argument),
            }
        }
        Self { sides: Choice::new(sides), rows: Choice::new(rows) }
    }

    /// Returns whether a side takes part.
    pub fn has_side(&self, name: &str) -> bool {
        self.sides.has(name, is_side)
    }

    /// Returns whether a row is measured.
    pub fn has_row(&self, name: &str) -> bool {
        self.rows.has(name, is_row)
    }

    /// Ends the benchmark. Fails, and prints the names that there are, if the command line names a row or a side that
    /// the benchmark does not have.
    #[must_use]
    #[allow(clippy::print_stderr, reason = "for the caller of the benchmark")]
    pub fn finish(&self) -> ExitCode {
        let complaints = self.complaints();
        for complaint in &complaints {
            eprintln!("error: {complaint}");
        }
        if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn complaints(&self) -> Vec<String> {
        let sides = self.sides.complaint("side", is_side);
        let rows = self.rows.complaint("row", is_row);
        sides.into_iter().chain(rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the complaints about a command line, and the rows measured.
    fn select(line: &str) -> (Vec<String>, Vec<&'static str>) {
        let selection = Selection::new(line.split_whitespace().map(str::to_owned));
        assert!(selection.has_side("ours") || line.contains("side="));
        selection.has_side("kernel");
        let rows = ["series 4K", "series 1M", "trees"];
        let measured = rows.into_iter().filter(|row| selection.has_row(row)).collect();
        (selection.complaints(), measured)
    }

    #[test]
    fn parts_of_names_choose_rows() {
        assert_eq!(select(""), (vec![], vec!["series 4K", "series 1M", "trees"]));
        assert_eq!(select("series side=ours"), (vec![], vec!["series 4K", "series 1M"]));
        assert_eq!(select("4K trees"), (vec![], vec!["series 4K", "trees"]));
    }

    #[test]
    fn rows_and_sides_that_do_not_exist_are_named_with_those_that_do() {
        let row = "no row: 2M, x; there are: series 4K, series 1M, trees".to_owned();
        assert_eq!(select("2M x"), (vec![row], vec![]));
        let row = "no row: 2M; there are: series 4K, series 1M, trees".to_owned();
        assert_eq!(select("2M trees"), (vec![row], vec!["trees"]));
        let side = "no side: our; there are: ours, kernel".to_owned();
        assert_eq!(select("side=our trees"), (vec![side], vec!["trees"]));
    }
}
