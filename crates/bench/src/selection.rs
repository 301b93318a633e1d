//! Which rows and sides the command line asks for.

/// All of them, unless something was asked for.
pub struct Selection {
    sides: Vec<String>,
    rows: Vec<String>,
}

impl Selection {
    /// From arguments: `side=NAME` for a side, anything else for rows whose names have it in them.
    pub fn new(arguments: impl Iterator<Item = String>) -> Self {
        let (mut sides, mut rows) = (Vec::new(), Vec::new());
        for argument in arguments {
            match argument.strip_prefix("side=") {
                Some(side) => sides.push(side.to_owned()),
                None => rows.push(argument),
            }
        }
        Self { sides, rows }
    }

    /// Whether a side takes part.
    pub fn has_side(&self, name: &str) -> bool {
        self.sides.is_empty() || self.sides.iter().any(|side| side == name)
    }

    /// Whether a row is measured.
    pub fn has_row(&self, name: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|row| name.contains(row.as_str()))
    }
}
