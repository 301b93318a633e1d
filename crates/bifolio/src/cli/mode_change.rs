//! Modes in the format of chmod(1): octal digits or symbolic changes.

use std::str::FromStr;

const READ: u16 = 0o444;
const WRITE: u16 = 0o222;
const EXECUTE: u16 = 0o111;
const SET_ID: u16 = 0o6000;
const STICKY: u16 = 0o1000;
const ALL: u16 = 0o7777;

/// Change of permissions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModeChange {
    clauses: Vec<Clause>,
}

/// File or directory that is changed.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The permissions before.
    pub permissions: u16,
    /// Whether it is a directory. Directories keep their set-ID bits unless the mode names them.
    pub is_directory: bool,
    /// The bits that are not changed if the mode names no classes, as in `+w`.
    pub umask: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Clause {
    operator: Operator,
    /// The bits of the classes of users that the clause names. `None` if it names none.
    classes: Option<u16>,
    value: Value,
    /// The bits that the clause names.
    named: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    /// These bits. The flag is set for `X`: execution of directories and executable files.
    Bits(u16, bool),
    /// The bits of the owner (6), the group (3) or others (0), by the shift of their bits.
    CopyOf(u16),
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("expected a mode such as 755, u+x or go=r,u=rw, not {text:?}");
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return octal(text).map(|clause| Self { clauses: vec![clause] }).ok_or_else(error);
        }
        let mut clauses = Vec::new();
        for clause in text.split(',') {
            symbolic(clause, &mut clauses).ok_or_else(error)?;
        }
        Ok(Self { clauses })
    }
}

impl ModeChange {
    /// Returns the new permissions of `subject`.
    pub fn apply(&self, subject: Subject) -> u16 {
        let before = subject.permissions & ALL;
        self.clauses.iter().fold(before, |current, clause| clause.apply(current, subject))
    }
}

impl Clause {
    fn apply(&self, current: u16, subject: Subject) -> u16 {
        let kept = if subject.is_directory { SET_ID & !self.named } else { 0 };
        let bits = match self.value {
            Value::Bits(bits, true) if subject.is_directory || current & EXECUTE != 0 => {
                bits | EXECUTE
            }
            Value::Bits(bits, _) => bits,
            Value::CopyOf(shift) => (current >> shift & 7) * 0o111,
        };
        let bits = bits & self.classes.unwrap_or(!subject.umask) & !kept;
        match self.operator {
            Operator::Add => current | bits,
            Operator::Remove => current & !bits,
            Operator::Set => current & (kept | ALL & !self.classes.unwrap_or(ALL)) | bits,
        }
    }
}

fn octal(text: &str) -> Option<Clause> {
    let digits = text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let bits = u16::from_str_radix(text, 8).ok().filter(|&bits| digits && bits <= ALL)?;
    // As in coreutils, more than four digits also name the set-ID bits that are zero.
    let named = if text.len() > 4 { ALL } else { bits };
    let value = Value::Bits(bits, false);
    Some(Clause { operator: Operator::Set, classes: Some(ALL), value, named })
}

/// Parses the classes and then one or more operations, such as `ug+r-w`.
fn symbolic(clause: &str, clauses: &mut Vec<Clause>) -> Option<()> {
    let start = clause.find(['+', '-', '='])?;
    let mut classes = None;
    for letter in clause[..start].chars() {
        let bits = match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => ALL,
            _ => return None,
        };
        classes = Some(classes.unwrap_or(0) | bits);
    }
    let mut rest = &clause[start..];
    while let Some(sign) = rest.chars().next() {
        let operator = match sign {
            '+' => Operator::Add,
            '-' => Operator::Remove,
            _ => Operator::Set,
        };
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |end| end + 1);
        let (value, bits) = permissions(&rest[1..end])?;
        clauses.push(Clause { operator, classes, value, named: bits & classes.unwrap_or(ALL) });
        rest = &rest[end..];
    }
    Some(())
}

/// Parses the permissions of an operation. Returns them, and the bits that they name.
fn permissions(letters: &str) -> Option<(Value, u16)> {
    let shift = match letters {
        "u" => Some(6),
        "g" => Some(3),
        "o" => Some(0),
        _ => None,
    };
    if let Some(shift) = shift {
        return Some((Value::CopyOf(shift), 0));
    }
    let mut bits = 0;
    let mut conditional_execute = false;
    for letter in letters.chars() {
        match letter {
            'r' => bits |= READ,
            'w' => bits |= WRITE,
            'x' => bits |= EXECUTE,
            'X' => conditional_execute = true,
            's' => bits |= SET_ID,
            't' => bits |= STICKY,
            _ => return None,
        }
    }
    Some((Value::Bits(bits, conditional_execute), bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mode: &str, before: u16, of_file: u16, of_directory: u16) {
        let change: ModeChange = mode.parse().expect(mode);
        for (is_directory, after) in [(false, of_file), (true, of_directory)] {
            let subject = Subject { permissions: before, is_directory, umask: 0o022 };
            let found = change.apply(subject);
            assert_eq!(found, after, "{mode} of {before:o}: {found:o}, not {after:o}");
        }
    }

    #[test]
    fn modes_change_as_in_chmod() {
        check("755", 0o644, 0o755, 0o755);
        check("4755", 0o644, 0o4755, 0o4755);
        check("755", 0o6644, 0o755, 0o6755);
        check("00755", 0o6644, 0o755, 0o755);
        check("0", 0o7777, 0, 0o6000);
        check("u+x", 0o644, 0o744, 0o744);
        check("+x", 0o600, 0o711, 0o711);
        check("+w", 0o444, 0o644, 0o644);
        check("-w", 0o666, 0o466, 0o466);
        check("a+w", 0o444, 0o666, 0o666);
        check("go=", 0o777, 0o700, 0o700);
        check("=r", 0o777, 0o444, 0o444);
        check("u=rwx,g=rx,o=", 0o7022, 0o750, 0o6750);
        check("u=rws", 0o2070, 0o6670, 0o6670);
        check("o+t,g+s,u+s", 0o644, 0o7644, 0o7644);
        check("o+s", 0o644, 0o644, 0o644);
        check("a+X", 0o644, 0o644, 0o755);
        check("a+X", 0o744, 0o755, 0o755);
        check("g=u,o=g", 0o640, 0o666, 0o666);
        check("u=rw+x-r", 0o000, 0o300, 0o300);
        check("g-s", 0o2755, 0o755, 0o755);
        check("a-s", 0o6755, 0o755, 0o755);
        check("=", 0o777, 0, 0);
    }

    #[test]
    fn invalid_modes_are_refused() {
        for mode in ["", "8", "77777", "0x1", "7 7", "u", "u+y", "u+x,", "z+x", "u+ug", "-1"] {
            assert!(mode.parse::<ModeChange>().is_err(), "{mode}");
        }
    }
}
