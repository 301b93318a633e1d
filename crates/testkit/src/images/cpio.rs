//! Archives in the format "newc" of cpio, which a kernel unpacks as its first root.

use std::fmt::Write;

/// An archive that is being written.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds a folder.
    pub fn folder(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    /// Adds a file that all users may execute.
    pub fn file(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, 0o100_755, contents);
    }

    /// Returns the finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(contents.len()).expect("a file below 4 GiB");
        let name_size = name.len() as u32 + 1;
        // inode, mode, uid, gid, links, mtime, size, device ×2, special device ×2, name size, check
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = "070701".to_owned();
        for field in fields {
            let _ = write!(header, "{field:08x}");
        }
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
