//! Users and groups of an image, by the files /etc/passwd and /etc/group in it. Names of the host
//! are not used: its users are not those of the image.

use std::str::FromStr;

use base::Error;
use base::InodeNumber;
use base::attributes::{FileType, Timestamp};
use base::text;
use vfs::{Follow, Volume};

use crate::archive::Name;
use crate::console::failure::{Failure, Result};

/// Maximum size of a file with users or groups.
const BYTES_MAX: u64 = 16 << 20;

const USERS: &[u8] = b"/etc/passwd";
const GROUPS: &[u8] = b"/etc/group";

/// A user or group on a command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Account {
    /// By number.
    Number(u32),
    /// By name.
    Name(String),
}

impl FromStr for Account {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("expected a number, or the name of a user or group of the image".to_owned());
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            if text.starts_with(['-', '+']) || text.contains([':', '/']) {
                return Err(format!("expected a number, or a name of the image, not {text:?}"));
            }
            return Ok(Self::Name(text.to_owned()));
        }
        // u32::MAX is -1, which means "unchanged" in chown(2).
        let number = text.parse().ok().filter(|&number| number != u32::MAX);
        number.map(Self::Number).ok_or_else(|| format!("the number {text} is too large"))
    }
}

impl Account {
    /// Returns the number of this user. Errors: `volume` has no user with the name.
    pub fn user(&self, volume: &Volume) -> Result<u32> {
        self.number(volume, |name| Name::User(name.into()), "user", "-u")
    }

    /// Returns the number of this group. Errors: `volume` has no group with the name.
    pub fn group(&self, volume: &Volume) -> Result<u32> {
        self.number(volume, |name| Name::Group(name.into()), "group", "-g")
    }

    /// Returns the number of the group that this user has in /etc/passwd. Errors: `volume` has no
    /// user with the name.
    pub fn login_group(&self, volume: &Volume) -> Result<u32> {
        let mut accounts = Accounts::default();
        accounts.update(volume);
        let found = match self {
            Self::Number(_) => None,
            Self::Name(name) => accounts.login_group(name.as_bytes()),
        };
        match found {
            Some(group) => Ok(group),
            // Names the file.
            None => self.user(volume).and_then(|user| {
                let text = format!("has no group, by {} of the image", text::escape(USERS));
                Err(Failure::new(user.to_string().as_str(), text).advise("give the group"))
            }),
        }
    }

    fn number(
        &self,
        volume: &Volume,
        name_of: impl FnOnce(&str) -> Name,
        kind: &str,
        option: &str,
    ) -> Result<u32> {
        let name = match self {
            Self::Number(number) => return Ok(*number),
            Self::Name(name) => name,
        };
        let mut accounts = Accounts::default();
        accounts.update(volume);
        let found = accounts.number(&name_of(name));
        found.ok_or_else(|| {
            let file = if kind == "user" { USERS } else { GROUPS };
            let text = format!("is no {kind} of the image, by its {}", text::escape(file));
            let advice = format!(
                "give the number; that of this host's {kind} is $(id {option} {})",
                text::escape(name.as_bytes())
            );
            Failure::new(name.as_str(), text).advise(advice)
        })
    }
}

/// The users and groups of an image.
#[derive(Debug, Default)]
pub struct Accounts {
    users: Option<Read>,
    groups: Option<Read>,
}

/// The accounts of a file, and what tells its contents from later ones.
#[derive(Debug)]
struct Read {
    version: (InodeNumber, Timestamp, u64),
    lines: Lines,
}

impl Accounts {
    /// Reads the files if they have changed. A file that cannot be read has no accounts.
    pub fn update(&mut self, volume: &Volume) {
        for (read, path) in [(&mut self.users, USERS), (&mut self.groups, GROUPS)] {
            if update(read, volume, path).is_err() {
                *read = None;
            }
        }
    }

    /// Returns the number of the group on the line of a user.
    fn login_group(&self, user: &[u8]) -> Option<u32> {
        let line = self.users.as_ref().and_then(|read| read.lines.line_of(user));
        match line {
            Some(line) => number_in(line, 3),
            None => (user == b"root").then_some(0),
        }
    }

    /// Returns the number of a user or group. `None` if there was none with the name at the last
    /// update.
    pub fn number(&self, name: &Name) -> Option<u32> {
        let (read, name) = match name {
            Name::User(name) => (&self.users, name),
            Name::Group(name) => (&self.groups, name),
        };
        let found = read.as_ref().and_then(|read| read.lines.find(name));
        // Every system has this one.
        found.or_else(|| (name == b"root").then_some(0))
    }
}

fn update(read: &mut Option<Read>, volume: &Volume, path: &[u8]) -> Result<(), Error> {
    let node = volume.resolve(path, Follow::Yes)?;
    let attributes = node.attributes();
    if attributes.kind != FileType::Regular || attributes.size > BYTES_MAX {
        return Err(Error::FileTooLarge);
    }
    let version = (attributes.inode, attributes.changed, attributes.size);
    if read.as_ref().is_some_and(|read| read.version == version) {
        return Ok(());
    }
    let mut contents = vec![0; usize::try_from(attributes.size).unwrap_or_default()];
    let file = node.open()?.without_access_time();
    // Not read again for each name, either, if it cannot be read.
    let contents = file.read_exact_at(&mut contents, 0).map(|()| contents).unwrap_or_default();
    *read = Some(Read { version, lines: Lines::new(contents) });
    Ok(())
}

/// The lines of a file in the form of /etc/passwd, sorted by their names. An index takes less
/// memory than a map of names, of which [`BYTES_MAX`] can have millions.
#[derive(Debug, Default)]
struct Lines {
    contents: Vec<u8>,
    /// Where the lines that have a number begin. Among lines of one name, only the first one is
    /// used.
    starts: Vec<u32>,
}

impl Lines {
    fn new(contents: Vec<u8>) -> Self {
        let mut starts = Vec::new();
        let mut at = 0;
        for line in contents.split(|&byte| byte == b'\n') {
            starts.extend(u32::try_from(at).ok().filter(|_| number_on(line).is_some()));
            at += line.len() + 1;
        }
        let mut lines = Self { contents, starts };
        let mut starts = std::mem::take(&mut lines.starts);
        // Keeps the order of lines of one name.
        starts.sort_by_key(|&start| name_on(lines.line(start)));
        lines.starts = starts;
        lines
    }

    /// Returns the number of the first line with `name`.
    fn find(&self, name: &[u8]) -> Option<u32> {
        self.line_of(name).and_then(number_on)
    }

    /// Returns the first line with `name`.
    fn line_of(&self, name: &[u8]) -> Option<&[u8]> {
        let first = self.starts.partition_point(|&start| name_on(self.line(start)) < name);
        let line = self.line(*self.starts.get(first)?);
        (name_on(line) == name).then_some(line)
    }

    fn line(&self, start: u32) -> &[u8] {
        let rest = self.contents.get(start as usize..).unwrap_or_default();
        rest.split(|&byte| byte == b'\n').next().unwrap_or_default()
    }
}

fn name_on(line: &[u8]) -> &[u8] {
    line.split(|&byte| byte == b':').next().unwrap_or_default()
}

/// Returns the third field of a line.
fn number_on(line: &[u8]) -> Option<u32> {
    number_in(line, 2)
}

/// Returns the number in a field of a line; the first field is 0.
fn number_in(line: &[u8], field: usize) -> Option<u32> {
    let number = line.split(|&byte| byte == b':').nth(field)?;
    text::decimal(number).filter(|&number| number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_the_form_of_passwd() {
        let lines = Lines::new(
            b"root:x:0:0:root:/root:/bin/sh\nann:x:1001:5::/:\nbad:x:y\n:x:7\nsign:x:+5:\n\nann:x:9:\n\
              max:x:4294967295:\nlast:x:6"
                .to_vec(),
        );
        assert_eq!(lines.find(b"ann"), Some(1001));
        assert_eq!(lines.find(b"last"), Some(6));
        for none in [&b"bad"[..], b"an", b"annn", b"x", b"sign", b"max", b"zz", b"A"] {
            assert_eq!(lines.find(none), None, "{}", text::escape(none));
        }
        assert_eq!(Lines::default().find(b"ann"), None);
    }

    #[test]
    fn accounts_are_numbers_or_names() {
        assert_eq!("12".parse(), Ok(Account::Number(12)));
        assert_eq!("ann".parse(), Ok(Account::Name("ann".to_owned())));
        for bad in ["", "-1", "+1", "4294967295", "99999999999", "a:b", "a/b"] {
            assert!(bad.parse::<Account>().is_err(), "{bad}");
        }
    }
}
