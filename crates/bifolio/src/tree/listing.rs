//! Lines in the format of `ls -l` and `find -ls`.

use base::InodeNumber;
use base::attributes::{Attributes, FileType};
use vfs::Node;

use crate::format::{acl, mode, size, time};

/// Widths of the columns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    inode: usize,
    links: usize,
    uid: usize,
    gid: usize,
    size: usize,
    /// Whether sizes have unit suffixes.
    pub human: bool,
}

impl Columns {
    /// Returns default widths, for lines that are written before all lines are known.
    pub fn for_stream() -> Self {
        Self { inode: 9, links: 3, uid: 5, gid: 5, size: 8, human: false }
    }

    /// Widens the columns so that the line of this inode fits.
    pub fn fit(&mut self, inode: InodeNumber, attributes: Option<&Attributes>) {
        self.inode = self.inode.max(inode.to_string().len());
        if let Some(attributes) = attributes {
            self.links = self.links.max(attributes.links.to_string().len());
            self.uid = self.uid.max(attributes.uid.to_string().len());
            self.gid = self.gid.max(attributes.gid.to_string().len());
            self.size = self.size.max(self.size_text(attributes).len());
        }
    }

    /// Formats the inode number, followed by a space.
    pub fn inode(&self, inode: InodeNumber) -> String {
        format!("{inode:>width$} ", inode = inode.0, width = self.inode)
    }

    /// Formats the part of a line before the name, followed by a space. `has_acl` is `None` if that
    /// cannot be read.
    pub fn long(&self, attributes: &Attributes, has_acl: Option<bool>) -> String {
        format!(
            "{mode}{acl} {links:>links_width$} {uid:<uid_width$} {gid:<gid_width$} \
             {size:>size_width$} {time} ",
            mode = mode::mode_text(attributes.kind, attributes.permissions),
            acl = has_acl.map_or('?', |has_acl| if has_acl { '+' } else { ' ' }),
            links = attributes.links,
            links_width = self.links,
            uid = attributes.uid,
            uid_width = self.uid,
            gid = attributes.gid,
            gid_width = self.gid,
            size = self.size_text(attributes),
            size_width = self.size,
            time = time::minutes(attributes.modified),
        )
    }

    /// Formats the line of an inode that cannot be read, like [`long`](Self::long).
    pub fn unknown(&self, kind: Option<FileType>) -> String {
        let letter = kind.map_or('?', mode::type_letter);
        let [links, uid, gid, size] = [self.links, self.uid, self.gid, self.size];
        format!(
            "{letter}?????????  {:>links$} {:<uid$} {:<gid$} {:>size$} {:>16} ",
            '?', '?', '?', '?', '?'
        )
    }

    fn size_text(&self, attributes: &Attributes) -> String {
        match attributes.kind {
            FileType::CharacterDevice | FileType::BlockDevice => {
                format!("{}, {}", attributes.device.major, attributes.device.minor)
            }
            _ if self.human => size::human(attributes.size),
            _ => attributes.size.to_string(),
        }
    }
}

/// Returns whether the node has an access control list.
pub fn has_acl(node: &Node) -> base::Result<bool> {
    let names = node.list_xattrs()?;
    Ok(names.iter().any(|name| acl::ATTRIBUTES.iter().any(|(acl, _)| name == acl)))
}

/// Returns the target of a symbolic link, and `None` for other nodes.
pub fn link_target(node: &Node) -> base::Result<Option<Vec<u8>>> {
    match node.kind() {
        FileType::Symlink => node.read_link().map(Some),
        _ => Ok(None),
    }
}
