//! Extended attributes by path, with names as strings of the host.
//! Not here: attributes of nodes, with names as bytes (`node/mod.rs`, `node/change.rs`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use base::Result;
use base::attributes::XattrMode;

use crate::names::path::Follow;
use crate::node::rights::Privileges;
use crate::volume::Volume;

impl Volume {
    /// Returns the value of an extended attribute, such as `user.comment`, of the node at `path`.
    /// Errors: `NoAttribute`.
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Vec<u8>> {
        self.node_at(path.as_ref(), Follow::Yes)?.get_xattr(name.as_ref().as_bytes())
    }

    /// Returns the names of the extended attributes of the node at `path`.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        let names = self.node_at(path.as_ref(), Follow::Yes)?.list_xattrs()?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// Sets an extended attribute of the node at `path`, as root. [`XattrMode::default`] sets it
    /// whether or not it is there.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let node = self.node_at(path.as_ref(), Follow::Yes)?;
        node.set_xattr(name.as_ref().as_bytes(), value.as_ref(), mode, Privileges::Keep)
    }

    /// Removes an extended attribute of the node at `path`. Errors: `NoAttribute`.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.node_at(path.as_ref(), Follow::Yes)?.remove_xattr(name.as_ref().as_bytes())
    }
}
