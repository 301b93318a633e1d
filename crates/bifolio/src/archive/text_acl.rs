//! POSIX access control lists in the text of archives: `user::rwx,user:NAME:r-x:UID,...`, also with
//! one entry on each line. Not here: the numbers of names, text for people (`format::acl`).

use base::text;

use crate::format::acl::{self, Entry, GROUP, GROUP_OWNER, MASK, OTHER, USER, USER_OWNER};

/// Maximum number of entries, as in a value of 64 KiB.
const ENTRIES_MAX: usize = 8191;

/// The user or group of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// The user with this name.
    User(Vec<u8>),
    /// The group with this name.
    Group(Vec<u8>),
}

/// Access control list, of which some names may have no number.
#[derive(Clone, Debug)]
pub struct TextAcl {
    entries: Vec<Entry>,
    /// Entries without a number: their permissions and names.
    named: Vec<(u16, Name)>,
    /// The text of entries for users and groups in an unknown form.
    unknown: Vec<Vec<u8>>,
}

impl TextAcl {
    /// Parses a list. Returns `None` if the text is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut acl = Self { entries: Vec::new(), named: Vec::new(), unknown: Vec::new() };
        for entry in entries(text) {
            let fields = fields(entry);
            let is_named = matches!(
                fields[..],
                [b"user" | b"u" | b"group" | b"g", name, ..] if !name.is_empty()
            );
            match acl.add(&fields) {
                None if is_named => acl.unknown.push(entry.to_vec()),
                added => added?,
            }
        }
        let count = acl.entries.len() + acl.named.len() + acl.unknown.len();
        (count <= ENTRIES_MAX && !acl.entries.is_empty()).then_some(acl)
    }

    /// Returns the permissions of the owning group in a text that is no list. `None` if it has no
    /// such entry.
    pub fn owning_group(text: &[u8]) -> Option<u16> {
        entries(text).find_map(|entry| match fields(entry)[..] {
            [b"group" | b"g", b"", permissions] => parse_permissions(permissions),
            _ => None,
        })
    }

    /// Adds the entry with these fields. Returns `None` if they are none.
    fn add(&mut self, fields: &[&[u8]]) -> Option<()> {
        let (name, permissions, number) = match *fields {
            // As Solaris writes it.
            [_, permissions] => (&b""[..], permissions, None),
            [_, name, permissions] => (name, permissions, None),
            [_, name, permissions, number] => (name, permissions, Some(number)),
            _ => return None,
        };
        let permissions = parse_permissions(permissions)?;
        let owned = |tag, id| Entry { tag, permissions, id };
        let entry = match (*fields.first()?, name.is_empty()) {
            (b"user" | b"u", true) => owned(USER_OWNER, u32::MAX),
            (b"group" | b"g", true) => owned(GROUP_OWNER, u32::MAX),
            (b"mask" | b"m", true) => owned(MASK, u32::MAX),
            (b"other" | b"o", true) => owned(OTHER, u32::MAX),
            (kind @ (b"user" | b"u" | b"group" | b"g"), false) => {
                let is_user = kind.starts_with(b"u");
                let number = number.filter(|number| !number.is_empty()).unwrap_or(name);
                match parse_number(number) {
                    Some(id) => owned(if is_user { USER } else { GROUP }, id),
                    None => {
                        let name = unescape(name);
                        let name = if is_user { Name::User(name) } else { Name::Group(name) };
                        self.named.push((permissions, name));
                        return Some(());
                    }
                }
            }
            _ => return None,
        };
        self.entries.push(entry);
        Some(())
    }

    /// Returns the text of entries in an unknown form, which the value leaves out.
    pub fn unknown(&self) -> &[Vec<u8>] {
        &self.unknown
    }

    /// Returns whether [`value`](Self::value) asks for numbers of names.
    pub fn has_names(&self) -> bool {
        !self.named.is_empty()
    }

    /// Returns the value of the extended attribute. `number` finds the number of a name; entries
    /// without one are left out.
    pub fn value(self, mut number: impl FnMut(&Name) -> Option<u32>) -> Vec<u8> {
        let Self { mut entries, named, .. } = self;
        for (permissions, name) in named {
            let tag = if matches!(name, Name::User(_)) { USER } else { GROUP };
            entries.extend(number(&name).map(|id| Entry { tag, permissions, id }));
        }
        acl::complete(&mut entries);
        acl::value(&entries)
    }
}

/// Returns the entries of a list.
fn entries(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|&byte| byte == b'\n');
    let entries = lines.flat_map(|line| without_comment(line).split(|&byte| byte == b','));
    entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty())
}

/// Returns the fields of an entry, without the mark of a default list.
fn fields(entry: &[u8]) -> Vec<&[u8]> {
    let mut fields: Vec<&[u8]> =
        entry.split(|&byte| byte == b':').map(<[u8]>::trim_ascii).collect();
    if matches!(fields.first(), Some(&b"default" | &b"d")) {
        fields.remove(0);
    }
    fields
}

/// Returns a line without its comment. Within a word, such as a name, the number sign begins none.
fn without_comment(line: &[u8]) -> &[u8] {
    let mut before = b' ';
    let comment = line.iter().position(|&byte| {
        let follows_blank = std::mem::replace(&mut before, byte).is_ascii_whitespace();
        byte == b'#' && follows_blank
    });
    comment.and_then(|comment| line.get(..comment)).unwrap_or(line)
}

/// Replaces the escapes of acl_to_text(3) in a name: a backslash and three octal digits, and two
/// backslashes.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte = digits.and_then(|digits| text::octal_byte(digits));
        let (byte, taken) = match (byte, first, after) {
            (Some(byte), ..) => (byte, 3),
            (None, b'\\', [b'\\', ..]) => (b'\\', 1),
            _ => (*first, 0),
        };
        bytes.push(byte);
        rest = after.get(taken..).unwrap_or_default();
    }
    bytes
}

fn parse_permissions(text: &[u8]) -> Option<u16> {
    text.iter().try_fold(0, |bits, letter| match letter {
        b'r' => Some(bits | 4),
        b'w' => Some(bits | 2),
        b'x' => Some(bits | 1),
        b'-' => Some(bits),
        _ => None,
    })
}

fn parse_number(text: &[u8]) -> Option<u32> {
    text::decimal(text).filter(|&number| number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, number: impl FnMut(&Name) -> Option<u32>) -> Option<Vec<String>> {
        let value = TextAcl::parse(text.as_bytes())?.value(number);
        let lines = acl::lines(&value, "").expect("a list");
        Some(
            lines
                .into_iter()
                .map(|line| line.split('\t').next().unwrap_or_default().to_owned())
                .collect(),
        )
    }

    #[test]
    fn lists_of_all_archivers_are_parsed() {
        let expected =
            ["user::rw-", "user:7:rwx", "group::r--", "group:8:--x", "mask::rwx", "other::---"];
        for text in [
            "user::rw-,user:7:rwx,group::r--,group:8:--x,mask::rwx,other::---\n",
            "group:8:--x\nuser::rw-\nuser:ann:rwx:7\ngroup::r--\nmask::rwx # all\nother::---\n",
            "u::rw,u:ann:rwx:7,g::r,g:staff:x,m::rwx,o::",
            "u::rw,u:\\+12:rwx:7,g::r,g:staff:x,m::rwx,o::",
            "user::rw-,user:a\\156n:rwx,group::r--,group:staff:--x:,mask:rwx,other:---",
            "default:user::rw-,default:user:7:rwx,default:group::r--,default:group:8:x,default:other::",
        ] {
            let number = |name: &Name| match name {
                Name::User(name) if name == b"ann" => Some(7),
                Name::Group(name) if name == b"staff" => Some(8),
                other => panic!("{other:?}"),
            };
            assert_eq!(lines(text, number).unwrap(), expected, "{text}");
        }
        // A number has no sign: this is a name.
        for name in ["+7", "-7", "\\+07"] {
            let text = format!("user::rwx,user:{name}:rwx,group::r--,mask::r-x,other::---");
            let mut asked = Vec::new();
            let number = |name: &Name| {
                asked.push(name.clone());
                None
            };
            lines(&text, number).unwrap();
            assert_eq!(asked, [Name::User(name.into())]);
        }
        // Backslashes are doubled, and a number sign within a name begins no comment.
        for (text, name) in [
            ("a\\\\b", "a\\b"),
            ("a\\\\100b", "a\\100b"),
            ("a\\134b", "a\\b"),
            ("a\\b", "a\\b"),
            ("a#b", "a#b"),
            ("#", "#"),
        ] {
            let text = format!(
                "#all\nuser::rwx # u:1:r\nuser:{text}:rwx\t#effective:r--\ngroup::r\nother::-"
            );
            let mut asked = Vec::new();
            let number = |name: &Name| {
                asked.push(name.clone());
                Some(7)
            };
            let found = lines(&text, number).unwrap();
            assert_eq!(found, ["user::rwx", "user:7:rwx", "group::r--", "mask::rwx", "other::---"]);
            assert_eq!(asked, [Name::User(name.into())]);
        }
        // Unknown users are left out.
        let text = "user::rwx,user:x:rwx,group::r--,mask::r-x,other::---";
        let expected = ["user::rwx", "group::r--", "mask::r-x", "other::---"];
        assert_eq!(lines(text, |_| None).unwrap(), expected);
    }

    #[test]
    fn other_texts_are_refused() {
        // GNU tar cuts entries at a number sign. Others are none of users and groups.
        let acl =
            TextAcl::parse(b"user::rw-\nuser:a\ngroup:b:q\ngroup::r--\nother::r--\n").unwrap();
        assert_eq!(acl.unknown(), [&b"user:a"[..], b"group:b:q"]);
        assert!(TextAcl::parse(b"user::rw-\nmask::q\ngroup::r--\nother::r--\n").is_none());
        for (text, group) in [
            ("user::rw-\ngroup::r-x\nmask::q\n", Some(5)),
            ("u::rw,g:a:rw,g::,o:q:r", Some(0)),
            ("owner@:rwx::allow,group@:rwx::allow", None),
        ] {
            assert!(TextAcl::parse(text.as_bytes()).is_none(), "{text}");
            assert_eq!(TextAcl::owning_group(text.as_bytes()), group, "{text}");
        }
        for bad in
            ["", "x", "user", "user:a:b:c:d:e", "user::q", "mask:x:rwx", "everyone@:rwx::allow"]
        {
            assert!(TextAcl::parse(bad.as_bytes()).is_none(), "{bad}");
        }
        let long = "u:1:r,".repeat(ENTRIES_MAX + 1);
        assert!(TextAcl::parse(long.as_bytes()).is_none());
    }
}
