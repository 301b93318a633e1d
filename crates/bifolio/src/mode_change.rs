//! Modes as `chmod` takes them: in octal digits, or as changes in letters.

use std::str::FromStr;

const READ: u16 = 0o444;
const WRITE: u16 = 0o222;
const EXECUTE: u16 = 0o111;
const SET_ID: u16 = 0o6000;
const STICKY: u16 = 0o1000;
const ALL: u16 = 0o7777;

/// How to get new permissions from old ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModeChange {
    steps: Vec<Step>,
}

/// What a change is applied to.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The permissions before.
    pub permissions: u16,
    /// Whether it is a directory: those keep their set-ID bits unless these are named.
    pub is_directory: bool,
    /// The bits that are left alone where nobody is named, as in `+w`.
    pub umask: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    operator: Operator,
    /// The bits of those that are named; `None` where nobody is.
    whom: Option<u16>,
    what: What,
    /// The bits that are named themselves.
    named: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// These bits; and, if so, execution where it makes sense.
    Bits(u16, bool),
    /// What the owner (6), the group (3) or others (0) have, by the shift of their bits.
    CopyOf(u16),
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("expected a mode such as 755, u+x or go=r,u=rw, not {text:?}");
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return octal(text).map(|step| Self { steps: vec![step] }).ok_or_else(error);
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            symbolic(clause, &mut steps).ok_or_else(error)?;
        }
        Ok(Self { steps })
    }
}

impl ModeChange {
    /// The permissions afterwards.
    pub fn apply(&self, subject: Subject) -> u16 {
        self.steps.iter().fold(subject.permissions & ALL, |now, step| step.apply(now, subject))
    }
}

impl Step {
    fn apply(&self, now: u16, subject: Subject) -> u16 {
        let kept = if subject.is_directory { SET_ID & !self.named } else { 0 };
        let bits = match self.what {
            What::Bits(bits, true) if subject.is_directory || now & EXECUTE != 0 => bits | EXECUTE,
            What::Bits(bits, _) => bits,
            What::CopyOf(shift) => (now >> shift & 7) * 0o111,
        };
        let bits = bits & self.whom.unwrap_or(!subject.umask) & !kept;
        match self.operator {
            Operator::Add => now | bits,
            Operator::Remove => now & !bits,
            Operator::Set => now & (kept | ALL & !self.whom.unwrap_or(ALL)) | bits,
        }
    }
}

fn octal(text: &str) -> Option<Step> {
    let digits = text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let bits = u16::from_str_radix(text, 8).ok().filter(|&bits| digits && bits <= ALL)?;
    // So many digits speak of the set-ID bits even where these are zero.
    let named = if text.len() > 4 { ALL } else { bits };
    Some(Step { operator: Operator::Set, whom: Some(ALL), what: What::Bits(bits, false), named })
}

/// Reads one clause: whom, then one change or several.
fn symbolic(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let start = clause.find(['+', '-', '='])?;
    let mut whom = None;
    for letter in clause[..start].chars() {
        let bits = match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => ALL,
            _ => return None,
        };
        whom = Some(whom.unwrap_or(0) | bits);
    }
    let mut rest = &clause[start..];
    while let Some(sign) = rest.chars().next() {
        let operator = match sign {
            '+' => Operator::Add,
            '-' => Operator::Remove,
            _ => Operator::Set,
        };
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |end| end + 1);
        let (what, bits) = permissions(&rest[1..end])?;
        steps.push(Step { operator, whom, what, named: bits & whom.unwrap_or(ALL) });
        rest = &rest[end..];
    }
    Some(())
}

/// What a change gives or takes, and the bits that it names.
fn permissions(letters: &str) -> Option<(What, u16)> {
    let shift = match letters {
        "u" => Some(6),
        "g" => Some(3),
        "o" => Some(0),
        _ => None,
    };
    if let Some(shift) = shift {
        return Some((What::CopyOf(shift), 0));
    }
    let (mut bits, mut where_sensible) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= READ,
            'w' => bits |= WRITE,
            'x' => bits |= EXECUTE,
            'X' => where_sensible = true,
            's' => bits |= SET_ID,
            't' => bits |= STICKY,
            _ => return None,
        }
    }
    Some((What::Bits(bits, where_sensible), bits))
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
    fn modes_are_what_chmod_makes_of_them() {
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
    fn nonsense_is_no_mode() {
        for mode in ["", "8", "77777", "0x1", "7 7", "u", "u+y", "u+x,", "z+x", "u+ug", "-1"] {
            assert!(mode.parse::<ModeChange>().is_err(), "{mode}");
        }
    }
}
