//! Users and groups of an image, by the files /etc/passwd and /etc/group in it. Names of the host are not used: its users are not
//! those of the image.

use std::str::FromStr;

use base::Error;
use base::InodeNumber;
use base::attributes::{FileType, Timestamp};
use vfs::{Follow, Volume};

use crate::archive::Name;
use crate::failure::{Failure, Result};
use crate::format::text;

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
        let found = Accounts::default().number(volume, &name_of(name));
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

/// The users and groups of an image. The files are read again after they have changed.
#[derive(Debug, Default)]
pub struct Accounts {
    users: Option<Read>,
    groups: Option<Read>,
}

/// The contents of a file, and what tells them from later ones.
#[derive(Debug)]
struct Read {
    version: (InodeNumber, Timestamp, u64),
    contents: Vec<u8>,
}

impl Accounts {
    /// Returns the number of a user or group. `None` if there is none with the name, or if the file cannot be read.
    pub fn number(&mut self, volume: &Volume, name: &Name) -> Option<u32> {
        let (read, path, name) = match name {
            Name::User(name) => (&mut self.users, USERS, name),
            Name::Group(name) => (&mut self.groups, GROUPS, name),
        };
        let found = contents(read, volume, path).ok().and_then(|accounts| find(accounts, name));
        // Every system has this one.
        found.or_else(|| (name == b"root").then_some(0))
    }
}

fn contents<'a>(
    read: &'a mut Option<Read>,
    volume: &Volume,
    path: &[u8],
) -> Result<&'a [u8], Error> {
    let node = volume.resolve(path, Follow::Yes)?;
    let attributes = node.attributes();
    if attributes.kind != FileType::Regular || attributes.size > BYTES_MAX {
        return Err(Error::FileTooLarge);
    }
    let version = (attributes.inode, attributes.changed, attributes.size);
    if read.as_ref().is_none_or(|read| read.version != version) {
        let mut contents = vec![0; usize::try_from(attributes.size).unwrap_or_default()];
        node.open()?.without_access_time().read_exact_at(&mut contents, 0)?;
        *read = Some(Read { version, contents });
    }
    Ok(read.as_ref().map_or(&[], |read| &read.contents))
}

/// Returns the number on the line of `name`: the third field.
fn find(accounts: &[u8], name: &[u8]) -> Option<u32> {
    accounts.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let is_found = fields.next() == Some(name);
        let number = fields.nth(1).filter(|_| is_found)?;
        std::str::from_utf8(number).ok()?.parse().ok().filter(|&number| number != u32::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_the_form_of_passwd() {
        let accounts = b"root:x:0:0:root:/root:/bin/sh\nann:x:1001:5::/:\nbad:x:y\n:x:7\n";
        assert_eq!(find(accounts, b"ann"), Some(1001));
        for none in [&b"bad"[..], b"an", b"x"] {
            assert_eq!(find(accounts, none), None);
        }
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
