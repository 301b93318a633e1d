//! Lines as `ls -l` and `find -ls` write them.

use base::InodeNumber;
use base::attributes::{Attributes, FileType};
use vfs::Node;

use crate::format::{acl, mode, size, time};

/// How wide the columns are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    inode: usize,
    links: usize,
    uid: usize,
    gid: usize,
    size: usize,
    /// Whether sizes are written with unit letters.
    pub human: bool,
}

impl Columns {
    /// Columns for lines that are written before all are known.
    pub fn for_stream() -> Self {
        Self { inode: 9, links: 3, uid: 5, gid: 5, size: 8, human: false }
    }

    /// Makes room for one more line.
    pub fn fit(&mut self, inode: InodeNumber, attributes: Option<&Attributes>) {
        self.inode = self.inode.max(inode.to_string().len());
        if let Some(of) = attributes {
            self.links = self.links.max(of.links.to_string().len());
            self.uid = self.uid.max(of.uid.to_string().len());
            self.gid = self.gid.max(of.gid.to_string().len());
            self.size = self.size.max(self.size_text(of).len());
        }
    }

    /// The inode number, with the space after it.
    pub fn inode(&self, inode: InodeNumber) -> String {
        format!("{inode:>width$} ", inode = inode.0, width = self.inode)
    }

    /// Everything before the name, with the space after it.
    pub fn long(&self, of: &Attributes, has_acl: bool) -> String {
        format!(
            "{mode}{acl} {links:>links_width$} {uid:<uid_width$} {gid:<gid_width$} \
             {size:>size_width$} {time} ",
            mode = mode::mode_text(of.kind, of.permissions),
            acl = if has_acl { '+' } else { ' ' },
            links = of.links,
            links_width = self.links,
            uid = of.uid,
            uid_width = self.uid,
            gid = of.gid,
            gid_width = self.gid,
            size = self.size_text(of),
            size_width = self.size,
            time = time::minutes(of.modified),
        )
    }

    /// In place of [`Self::long`] for an inode that cannot be read.
    pub fn unknown(&self, kind: Option<FileType>) -> String {
        let letter = kind.map_or('?', mode::type_letter);
        let [links, uid, gid, size] = [self.links, self.uid, self.gid, self.size];
        format!(
            "{letter}?????????  {:>links$} {:<uid$} {:<gid$} {:>size$} {:>16} ",
            '?', '?', '?', '?', '?'
        )
    }

    fn size_text(&self, of: &Attributes) -> String {
        match of.kind {
            FileType::CharacterDevice | FileType::BlockDevice => {
                format!("{}, {}", of.device.major, of.device.minor)
            }
            _ if self.human => size::human(of.size),
            _ => of.size.to_string(),
        }
    }
}

/// Whether the node has an access control list beyond its permissions.
pub fn has_acl(node: &Node) -> base::Result<bool> {
    let names = node.list_xattrs()?;
    Ok(names.iter().any(|name| acl::ATTRIBUTES.iter().any(|(acl, _)| name == acl)))
}

/// The target, if the node is a symbolic link.
pub fn link_target(node: &Node) -> base::Result<Option<Vec<u8>>> {
    match node.kind() {
        FileType::Symlink => node.read_link().map(Some),
        _ => Ok(None),
    }
}
