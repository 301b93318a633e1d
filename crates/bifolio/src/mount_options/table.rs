//! The table of mount options: those of Linux's ext4 and f2fs, of mount(8) and fstab, and of
//! bifolio, with what becomes of each. The parser, the help and the manual page are made from it.
//! Not here: the values of options that are honoured.
//!
//! An option is written as in the manual: `name`, `name=VALUE` for any value, `name=N` for a
//! number, `name=1..5` for one of these numbers, `name=one|two` for one of these words,
//! `name[=VALUE]` if the value can be left out, and `name*` for all options that begin so.

use super::{ext4, f2fs, generic};

/// The formats that have an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Formats {
    /// Every format: options of mount(8), of the kernel for all file systems, and of bifolio.
    All,
    /// ext2, ext3 and ext4.
    Ext4,
    /// f2fs.
    F2fs,
    /// Both of them, in the same way.
    Both,
}

impl Formats {
    /// Returns whether a volume of the format `name` can have the option.
    pub fn has(self, name: &str) -> bool {
        match self {
            Self::All | Self::Both => true,
            Self::Ext4 => name.starts_with("ext"),
            Self::F2fs => name == "f2fs",
        }
    }

    /// Returns the name in messages and in the manual.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Ext4 => "ext4",
            Self::F2fs => "f2fs",
            Self::Both => "ext4, f2fs",
        }
    }
}

/// What becomes of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// It has its effect, which the help describes.
    Honoured,
    /// It is accepted, and changes nothing, for this reason.
    Accepted(&'static str),
    /// It is refused, for this reason.
    Refused(&'static str),
    /// `mount.bifolio` passes it on as this option of the command.
    Flag(&'static str),
}

/// One option, or options that have all but the name in common.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The options.
    pub options: &'static [&'static str],
    /// The formats that have them.
    pub formats: Formats,
    /// What becomes of them.
    pub disposition: Disposition,
}

/// What a row says about an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The formats that have it.
    pub formats: Formats,
    /// What becomes of it.
    pub disposition: Disposition,
}

/// A problem of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotFound {
    /// There is no option with this name.
    Name,
    /// The option takes other values: this is what they are.
    Value(String),
}

/// Returns all rows.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [generic::ROWS, ext4::ROWS, f2fs::ROWS].into_iter().flatten()
}

/// Looks an option up. A value that no row has is left to the parser of the option if one honours
/// the name.
pub fn find(name: &str, value: Option<&str>) -> Result<Found, NotFound> {
    let mut others = Vec::new();
    let mut honoured = None;
    for row in rows() {
        for option in row.options {
            let pattern = Pattern::parse(option);
            if !pattern.has_name(name) {
                continue;
            }
            let found = Found { formats: row.formats, disposition: row.disposition };
            if pattern.has_value(value) {
                return Ok(found);
            }
            if row.disposition == Disposition::Honoured {
                honoured = Some(found);
            }
            others.push(pattern.expected());
        }
    }
    match (honoured, others.as_slice()) {
        (Some(found), _) => Ok(found),
        (None, []) => Err(NotFound::Name),
        (None, others) => Err(NotFound::Value(format!("must be {}", others.join(" or ")))),
    }
}

/// An option as the table writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pattern<'a> {
    option: &'a str,
    name: &'a str,
    /// The values, if it takes any.
    values: Option<&'a str>,
    /// Whether the value can be left out.
    is_optional: bool,
    /// Whether the name only begins so.
    is_prefix: bool,
}

impl<'a> Pattern<'a> {
    fn parse(option: &'a str) -> Self {
        let is_prefix = option.ends_with('*');
        let (name, values, is_optional) = match option.split_once("[=") {
            Some((name, values)) => (name, Some(values.trim_end_matches(']')), true),
            None => match option.split_once('=') {
                Some((name, values)) => (name, Some(values), false),
                None => (option.trim_end_matches('*'), None, false),
            },
        };
        Self { option, name, values, is_optional, is_prefix }
    }

    fn has_name(&self, name: &str) -> bool {
        if self.is_prefix { name.starts_with(self.name) } else { name == self.name }
    }

    fn has_value(&self, value: Option<&str>) -> bool {
        let (Some(values), Some(value)) = (self.values, value) else {
            return self.is_prefix
                || value.is_none() && (self.values.is_none() || self.is_optional);
        };
        values.split('|').any(|one| match one {
            "N" => value.parse::<u32>().is_ok(),
            _ => match (one.strip_suffix("VALUE"), one.split_once("..")) {
                (Some(begin), _) => value.strip_prefix(begin).is_some_and(|rest| !rest.is_empty()),
                (None, Some((first, last))) => is_within(value, first, last),
                (None, None) => value == one,
            },
        })
    }

    /// Returns what the option must be, for a message.
    fn expected(&self) -> String {
        format!("`{}`", self.option)
    }
}

fn is_within(value: &str, first: &str, last: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().ok();
    match (number(value), number(first), number(last)) {
        (Some(value), Some(first), Some(last)) => (first..=last).contains(&value),
        _ => false,
    }
}

/// The width of a line of the help.
const WIDTH: usize = 78;

/// Returns the part of the help about options that are not described elsewhere in it. Its lines are
/// indented, because man pages join lines that are not indented.
pub fn help() -> String {
    let mut text = String::new();
    let is_accepted = |row: &&Row| matches!(row.disposition, Disposition::Accepted(_));
    let is_refused = |row: &&Row| matches!(row.disposition, Disposition::Refused(_));
    text.push_str(
        "\nOptions of mount(8), and of ext4 and f2fs in Linux, that are accepted and change\n\
         nothing. Those of one format are refused for a volume of the other one, as in\n\
         Linux:\n",
    );
    rows().filter(is_accepted).for_each(|row| describe(&mut text, row));
    text.push_str("\nOptions that are refused:\n");
    rows().filter(is_refused).for_each(|row| describe(&mut text, row));
    text
}

fn describe(text: &mut String, row: &Row) {
    let reason = match row.disposition {
        Disposition::Accepted(reason) | Disposition::Refused(reason) => reason,
        Disposition::Honoured | Disposition::Flag(_) => return,
    };
    let formats = match row.formats {
        Formats::All => String::new(),
        formats => format!(" ({})", formats.name()),
    };
    wrap(text, 2, &format!("{}{formats}", row.options.join(", ")));
    wrap(text, 6, &capitalized(reason));
}

/// Adds words in lines that are indented by `indent` columns.
fn wrap(text: &mut String, indent: usize, words: &str) {
    let mut column = 0;
    for word in words.split(' ') {
        let length = word.chars().count();
        if column == 0 || column + 1 + length > WIDTH {
            if column > 0 {
                text.push('\n');
            }
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

fn capitalized(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_pattern() {
        let has = |option: &str, value| Pattern::parse(option).has_value(value);
        assert!(has("bsddf", None) && !has("bsddf", Some("1")));
        assert!(has("barrier[=1]", None) && has("barrier[=1]", Some("1")));
        assert!(!has("barrier[=1]", Some("0")) && !has("stripe=N", None));
        assert!(has("stripe=N", Some("16")) && !has("stripe=N", Some("-1")));
        assert!(has("journal_ioprio=0..7", Some("7")) && !has("journal_ioprio=0..7", Some("8")));
        assert!(has("data=ordered|writeback", Some("writeback")));
        assert!(!has("usrjquota=VALUE", Some("")) && has("usrjquota=", Some("")));
        assert!(has("mode=off|off:VALUE", Some("off:7")) && !has("mode=off:VALUE", Some("off:")));
        assert!(has("x-*", Some("1")) && Pattern::parse("x-*").has_name("x-systemd.automount"));
    }

    #[test]
    fn an_option_is_in_one_row_only() {
        let mut seen = std::collections::BTreeSet::new();
        for option in rows().flat_map(|row| row.options) {
            assert!(seen.insert(option), "{option} twice");
        }
    }

    #[test]
    fn unknown_values_are_told_from_unknown_names() {
        assert_eq!(find("frobnicate", None), Err(NotFound::Name));
        let refused = find("data", Some("sorted")).unwrap_err();
        let expected = "must be `data=ordered|writeback` or `data=journal`";
        assert_eq!(refused, NotFound::Value(expected.to_owned()));
        // The parser of the option says what is wrong.
        assert_eq!(find("commit", Some("soon")).unwrap().disposition, Disposition::Honoured);
    }

    #[test]
    fn lines_of_the_help_are_indented_and_fit() {
        for line in help().lines() {
            let is_heading = line.is_empty() || line.starts_with(['O', 'n', 'L']);
            assert!(is_heading || line.starts_with("  "), "{line}");
            let is_one_word = line.trim().split(' ').count() == 1;
            assert!(line.len() <= WIDTH + 2 || is_one_word, "{line}");
        }
    }
}
