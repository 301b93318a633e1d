//! JSON output for scripts.
//!
//! Names are bytes, but JSON strings are Unicode. A name that is not UTF-8 is written as a string
//! with replacement characters. Its bytes follow in hexadecimal, under the same key with the suffix
//! `_bytes`.

use std::io::{self, Write};

use base::attributes::{Attributes, DeviceNumber, FileType, Timestamp};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::ser::Formatter;

use super::mode;
use super::xattr::hex;
use crate::console::Console;
use crate::console::failure::Result;
use base::text::needs_escape;

/// Bytes under a key, for `#[serde(flatten)]`.
pub struct Bytes<'a> {
    key: Keys,
    bytes: &'a [u8],
}

/// Key for text, and key for bytes that are not UTF-8.
type Keys = (&'static str, &'static str);

/// Keys for the name of a directory entry.
pub const NAME: Keys = ("name", "name_bytes");
/// Keys for a path in the image.
pub const PATH: Keys = ("path", "path_bytes");
/// Keys for the target of a symbolic link.
pub const TARGET: Keys = ("target", "target_bytes");
/// Keys for the value of an extended attribute.
pub const VALUE: Keys = ("value", "value_bytes");
/// Keys for the label of a volume.
pub const LABEL: Keys = ("label", "label_bytes");
/// Keys for the path of the image.
pub const IMAGE: Keys = ("image", "image_bytes");

/// Returns `bytes` under `key`.
pub fn bytes(key: Keys, bytes: &[u8]) -> Bytes<'_> {
    Bytes { key, bytes }
}

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = String::from_utf8_lossy(self.bytes);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.key.0, &text)?;
        if matches!(text, std::borrow::Cow::Owned(_)) {
            map.serialize_entry(self.key.1, &hex(self.bytes))?;
        }
        map.end()
    }
}

/// Point in time.
#[derive(serde::Serialize)]
pub struct Time {
    seconds: i64,
    nanoseconds: u32,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

/// Device of a special file.
#[derive(serde::Serialize)]
struct Device {
    major: u32,
    minor: u32,
}

/// All attributes of an inode.
#[derive(serde::Serialize)]
pub struct Inode {
    inode: u64,
    r#type: &'static str,
    /// Type and permissions as a number, as in `st_mode`.
    mode: u32,
    /// Permissions in octal.
    permissions: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    /// Bytes on the device.
    allocated: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    accessed: Time,
    modified: Time,
    changed: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Time>,
    generation: u32,
    flags: Vec<&'static str>,
    /// All flags as a number.
    flag_bits: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<u32>,
}

impl From<&Attributes> for Inode {
    fn from(attributes: &Attributes) -> Self {
        let DeviceNumber { major, minor } = attributes.device;
        let is_device =
            matches!(attributes.kind, FileType::CharacterDevice | FileType::BlockDevice);
        Self {
            inode: attributes.inode.0,
            r#type: mode::type_key(attributes.kind),
            mode: attributes.mode(),
            permissions: format!("{:04o}", attributes.permissions),
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            allocated: attributes.blocks.saturating_mul(512),
            device: is_device.then_some(Device { major, minor }),
            accessed: attributes.accessed.into(),
            modified: attributes.modified.into(),
            changed: attributes.changed.into(),
            created: attributes.created.map(Time::from),
            generation: attributes.generation,
            flags: mode::flag_names(attributes.flags),
            flag_bits: attributes.flags,
            project: attributes.project,
        }
    }
}

/// Array that is written element by element, with one line for each element.
pub struct Array {
    elements: u64,
}

impl Array {
    /// Begins an array.
    pub fn begin(console: &mut Console) -> Result<Self> {
        console.print('[')?;
        Ok(Self { elements: 0 })
    }

    /// Adds an element.
    pub fn push(&mut self, console: &mut Console, value: &impl Serialize) -> Result<()> {
        self.separate(console)?;
        console.print_json(value)
    }

    /// Begins an object that is written in parts: the members of `head`, of which there is at least
    /// one, and an array `key`.
    pub fn begin_object(
        &mut self,
        console: &mut Console,
        head: &impl Serialize,
        key: &str,
    ) -> Result<List> {
        self.separate(console)?;
        console.print(format_args!("{{{},\"{key}\":[", members(head)))?;
        Ok(List { elements: 0 })
    }

    fn separate(&mut self, console: &mut Console) -> Result<()> {
        console.print(if self.elements == 0 { "\n" } else { ",\n" })?;
        self.elements += 1;
        Ok(())
    }

    /// Ends the array.
    pub fn end(self, console: &mut Console) -> Result<()> {
        console.print(if self.elements == 0 { "]\n" } else { "\n]\n" })
    }
}

/// Array at the end of an object, which is written element by element.
pub struct List {
    elements: u64,
}

impl List {
    /// Adds an element.
    pub fn push(&mut self, console: &mut Console, value: &impl Serialize) -> Result<()> {
        if self.elements > 0 {
            console.print(',')?;
        }
        self.elements += 1;
        console.print_json(value)
    }

    /// Ends the array, and the object, which also gets the members of `tail`, if there are any.
    pub fn end(self, console: &mut Console, tail: &impl Serialize) -> Result<()> {
        match members(tail).as_str() {
            "" => console.print("]}"),
            members => console.print(format_args!("],{members}}}")),
        }
    }
}

/// Serializes the members of a struct.
fn members(value: &impl Serialize) -> String {
    let text = text(value);
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    inner.unwrap_or_default().to_owned()
}

/// Serializes a value.
pub fn text(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    // Serializing these types to memory cannot fail, and JSON is text.
    write(&mut out, value)
        .map_or_else(|_| String::new(), |()| String::from_utf8(out).unwrap_or_default())
}

/// Writes a value.
pub fn write(out: &mut impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(out, Escaped))
}

/// The compact format, with escapes also for characters above ASCII that control a terminal.
struct Escaped;

impl Formatter for Escaped {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, char)) = rest.char_indices().find(|&(_, char)| needs_escape(char)) {
            out.write_all(&rest.as_bytes()[..at])?;
            for unit in char.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = &rest[at + char.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize)]
    struct Named<'a> {
        #[serde(flatten)]
        name: Bytes<'a>,
        size: u64,
    }

    #[test]
    fn names_that_are_not_text_keep_their_bytes() {
        let line = |name: &[u8]| text(&Named { name: bytes(NAME, name), size: 1 });
        assert_eq!(line(b"a\"b\n"), r#"{"name":"a\"b\n","size":1}"#);
        assert_eq!(
            line(b"caf\xe9"),
            format!(r#"{{"name":"caf{}","name_bytes":"636166e9","size":1}}"#, '\u{fffd}')
        );
        let name = "a\u{9b}2J\u{7f}\u{202e}\u{1f600}\\";
        let written = line(name.as_bytes());
        assert_eq!(written, r#"{"name":"a\u009b2J\u007f\u202e😀\\","size":1}"#);
        let read: serde_json::Value = serde_json::from_str(&written).unwrap();
        assert_eq!(read["name"], name);
    }
}
