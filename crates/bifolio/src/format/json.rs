//! What scripts read. Names are bytes and JSON strings are not: each name has a string with the
//! replacement character for what is not UTF-8, and then, beside it, all its bytes in hexadecimal
//! under the same key with `_bytes` added.

use base::attributes::{Attributes, DeviceNumber, FileType, Timestamp};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::mode;
use super::xattr::hex;
use crate::console::Console;
use crate::failure::Result;

/// Bytes under a key. Flatten it into what holds it.
pub struct Bytes<'a> {
    key: Keys,
    bytes: &'a [u8],
}

/// A key for text and the one for bytes that are not text.
type Keys = (&'static str, &'static str);

/// The keys for the name of a directory entry.
pub const NAME: Keys = ("name", "name_bytes");
/// The keys for a path in the image.
pub const PATH: Keys = ("path", "path_bytes");
/// The keys for the target of a symbolic link.
pub const TARGET: Keys = ("target", "target_bytes");
/// The keys for the value of an extended attribute.
pub const VALUE: Keys = ("value", "value_bytes");
/// The keys for the label of a volume.
pub const LABEL: Keys = ("label", "label_bytes");
/// The keys for the image's own path.
pub const IMAGE: Keys = ("image", "image_bytes");

/// `bytes` under `key`.
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

/// A point in time.
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

/// The device that a special file stands for.
#[derive(serde::Serialize)]
struct Device {
    major: u32,
    minor: u32,
}

/// Everything that `stat` knows of an inode.
#[derive(serde::Serialize)]
pub struct Inode {
    inode: u64,
    r#type: &'static str,
    /// Type and permissions as a number, as `st_mode`.
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
    fn from(of: &Attributes) -> Self {
        let DeviceNumber { major, minor } = of.device;
        let is_device = matches!(of.kind, FileType::CharacterDevice | FileType::BlockDevice);
        Self {
            inode: of.inode.0,
            r#type: mode::type_key(of.kind),
            mode: of.mode(),
            permissions: format!("{:04o}", of.permissions),
            links: of.links,
            uid: of.uid,
            gid: of.gid,
            size: of.size,
            allocated: of.blocks.saturating_mul(512),
            device: is_device.then_some(Device { major, minor }),
            accessed: of.accessed.into(),
            modified: of.modified.into(),
            changed: of.changed.into(),
            created: of.created.map(Time::from),
            generation: of.generation,
            flags: mode::flag_names(of.flags),
            flag_bits: of.flags,
            project: of.project,
        }
    }
}

/// An array, written as its elements come: one line for each.
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
        console.print(if self.elements == 0 { "\n" } else { ",\n" })?;
        self.elements += 1;
        console.print(text(value))
    }

    /// Ends it.
    pub fn end(self, console: &mut Console) -> Result<()> {
        console.print(if self.elements == 0 { "]\n" } else { "\n]\n" })
    }
}

/// A value as text.
pub fn text(value: &impl Serialize) -> String {
    // The types above serialize to memory: neither they nor a string can fail.
    serde_json::to_string(value).unwrap_or_default()
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
    }
}
