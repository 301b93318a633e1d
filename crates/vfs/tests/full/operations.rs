//! Operations that may need space.

use std::sync::Arc;

use base::attributes::{AttributeChange, FileType};
use base::{FileOffset, Result};
use vfs::{
    Creation, Credentials, Fallocate, Follow, Node, OpenMode, Privileges, RenameFlags, Volume,
    XattrMode,
};

pub const WRITE: OpenMode = OpenMode { write: true, append: false };
const ROOT: &Credentials = &Credentials::ROOT;

/// An operation that may fail with `NoSpace`.
pub struct Operation {
    pub name: &'static str,
    pub run: fn(&Volume) -> Result<()>,
    /// Whether a failed operation may change times of files, as a write does.
    pub may_touch: bool,
}

const fn names(name: &'static str, run: fn(&Volume) -> Result<()>) -> Operation {
    Operation { name, run, may_touch: false }
}

const fn data(name: &'static str, run: fn(&Volume) -> Result<()>) -> Operation {
    Operation { name, run, may_touch: true }
}

/// Returns a name of the maximum length.
pub fn name(start: &str) -> String {
    format!("{start:x<255}")
}

/// Returns an ACL with `users` named users.
pub fn acl(users: u32) -> Vec<u8> {
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let mut value = 2_u32.to_le_bytes().to_vec();
    value.extend(entry(1, 7, u32::MAX));
    (0..users).for_each(|user| value.extend(entry(2, 6, 1000 + user)));
    for (tag, permissions) in [(4, 5), (0x10, 7), (0x20, 1)] {
        value.extend(entry(tag, permissions, u32::MAX));
    }
    value
}

fn at(volume: &Volume, path: &str) -> Arc<Node> {
    volume.resolve(path.as_bytes(), Follow::No).unwrap()
}

fn create(volume: &Volume, directory: &str, what: &Creation<'_>) -> Result<()> {
    let path = format!("/{directory}/{}", name("new"));
    volume.create_at(path.as_bytes(), what, ROOT).map(drop)
}

fn create_one(volume: &Volume, directory: &str, kind: FileType) -> Result<()> {
    create(volume, directory, &Creation::of(kind, 0o755))
}

fn long_link(volume: &Volume, directory: &str) -> Result<()> {
    create(volume, directory, &Creation::symlink(&[b't'; 500]))
}

fn short_link(volume: &Volume, directory: &str) -> Result<()> {
    create(volume, directory, &Creation::symlink(b"short"))
}

fn create_unnamed(volume: &Volume, directory: &str) -> Result<()> {
    let creation = Creation::of(FileType::Regular, 0o644);
    volume.create_unnamed(&at(volume, directory), &creation, ROOT).map(drop)
}

fn link_unnamed(volume: &Volume, directory: &str) -> Result<()> {
    let creation = Creation::of(FileType::Regular, 0o644);
    let node = volume.create_unnamed(&at(volume, "/"), &creation, ROOT)?;
    volume.link(&at(volume, directory), name("new").as_bytes(), &node)
}

fn link(volume: &Volume, directory: &str) -> Result<()> {
    volume.link_at(b"/other", format!("/{directory}/{}", name("new")).as_bytes())
}

fn rename(volume: &Volume, from: &str, directory: &str, flags: RenameFlags) -> Result<()> {
    let to = format!("/{directory}/{}", name("new"));
    volume.rename_at(from.as_bytes(), to.as_bytes(), flags, ROOT)
}

fn set_xattr(volume: &Volume, path: &str, name: &[u8], value: &[u8]) -> Result<()> {
    at(volume, path).set_xattr(name, value, XattrMode::Either, Privileges::Keep)
}

fn write(volume: &Volume, path: &str, at_byte: u64, bytes: usize) -> Result<()> {
    let file = at(volume, path).open_for(WRITE)?;
    let done = file.write_at(&vec![9; bytes], at_byte);
    let synced = file.sync_all();
    assert!(done.is_err() || synced.is_ok(), "{path}: accepted data: {synced:?}");
    done.and(synced.map(|()| 0)).map(drop)
}

fn fallocate(volume: &Volume, mode: Fallocate, start: u64, length: u64) -> Result<()> {
    let file = at(volume, "/file").open_for(WRITE)?;
    let range = FileOffset(start)..FileOffset(start + length);
    let done = file.fallocate(mode, range, Privileges::Keep);
    file.sync_all()?;
    done
}

fn change(volume: &Volume, path: &str, change: AttributeChange) -> Result<()> {
    at(volume, path).set_attributes(&change, ROOT)
}

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..PLAIN };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };

/// The operations for volumes that store values of attributes in inodes.
pub const OPERATIONS_ON_VALUES: &[Operation] = &[
    names("attribute of several blocks", |v| set_xattr(v, "/other", b"user.x", &[5; 3000])),
    names("attribute of several blocks in place of an ACL", |v| {
        set_xattr(v, "/with-acl", b"system.posix_acl_access", &acl(400))
    }),
];

/// The operations that need no space.
pub const REMOVALS: [&str; 7] = [
    "unlink",
    "unlink with an ACL",
    "rmdir",
    "truncate to less",
    "truncate to nothing",
    "truncate a small file to less",
    "truncate a small file to nothing",
];

/// The operations that files with block maps do not offer.
pub const REFUSED_WITH_BLOCK_MAPS: &[&str] =
    &["allocate", "allocate past the end", "zero a range", "collapse a range", "insert a range"];

/// The operations for all volumes.
pub const OPERATIONS: &[Operation] = &[
    names("create in a directory with room", |v| create_one(v, "one", FileType::Regular)),
    names("create in a full directory", |v| create_one(v, "full", FileType::Regular)),
    names("create in an index", |v| create_one(v, "indexed", FileType::Regular)),
    names("create inline", |v| create_one(v, "small-directory", FileType::Regular)),
    names("create under an ACL", |v| create_one(v, "acl", FileType::Regular)),
    names("mkdir in a directory with room", |v| create_one(v, "one", FileType::Directory)),
    names("mkdir in a full directory", |v| create_one(v, "full", FileType::Directory)),
    names("mkdir in an index", |v| create_one(v, "indexed", FileType::Directory)),
    names("mkdir inline", |v| create_one(v, "small-directory", FileType::Directory)),
    names("mkdir under an ACL", |v| create_one(v, "acl", FileType::Directory)),
    names("mknod in a directory with room", |v| create_one(v, "one", FileType::Fifo)),
    names("mknod in a full directory", |v| create_one(v, "full", FileType::CharacterDevice)),
    names("mknod under an ACL", |v| create_one(v, "acl", FileType::Socket)),
    names("short link", |v| short_link(v, "one")),
    names("short link in a full directory", |v| short_link(v, "full")),
    names("long link", |v| long_link(v, "one")),
    names("long link in a full directory", |v| long_link(v, "full")),
    names("long link in an index", |v| long_link(v, "indexed")),
    names("long link inline", |v| long_link(v, "small-directory")),
    names("unnamed file", |v| create_unnamed(v, "/one")),
    names("unnamed file under an ACL", |v| create_unnamed(v, "/acl")),
    names("name for an unnamed file", |v| link_unnamed(v, "/full")),
    names("link in a directory with room", |v| link(v, "one")),
    names("link in a full directory", |v| link(v, "full")),
    names("link in an index", |v| link(v, "indexed")),
    names("link inline", |v| link(v, "small-directory")),
    names("rename into a full directory", |v| rename(v, "/other", "full", PLAIN)),
    names("rename into an index", |v| rename(v, "/other", "indexed", PLAIN)),
    names("rename inline", |v| rename(v, "/other", "small-directory", PLAIN)),
    names("rename a directory", |v| rename(v, "/one/directory", "full", PLAIN)),
    names("rename with a whiteout", |v| rename(v, "/other", "one", WHITEOUT)),
    names("rename into a full directory with a whiteout", |v| {
        rename(v, "/other", "full", WHITEOUT)
    }),
    names("rename under an ACL with a whiteout", |v| {
        v.rename_at(b"/two/file", b"/acl/x", WHITEOUT, ROOT)
    }),
    names("rename to replace", |v| v.rename_at(b"/other", b"/two/file", PLAIN, ROOT)),
    names("rename to replace with a whiteout", |v| {
        v.rename_at(b"/other", b"/two/file", WHITEOUT, ROOT)
    }),
    names("exchange", |v| v.rename_at(b"/one/directory", b"/two/file", EXCHANGE, ROOT)),
    names("unlink", |v| v.remove(b"/file", ROOT)),
    names("unlink with an ACL", |v| v.remove(b"/with-acl", ROOT)),
    names("rmdir", |v| v.remove(b"/one/directory", ROOT)),
    names("attribute", |v| set_xattr(v, "/other", b"user.x", &[5; 500])),
    names("larger attribute", |v| set_xattr(v, "/other", b"user.x", &[5; 900])),
    names("default ACL", |v| set_xattr(v, "/one", b"system.posix_acl_default", &acl(30))),
    names("ACL", |v| set_xattr(v, "/other", b"system.posix_acl_access", &acl(30))),
    names("ACL in place of another", |v| {
        set_xattr(v, "/with-acl", b"system.posix_acl_access", &acl(31))
    }),
    names("attribute beside an ACL", |v| set_xattr(v, "/with-acl", b"user.x", &[5; 300])),
    names("chmod with an ACL", |v| {
        change(v, "/with-acl", AttributeChange { permissions: Some(0o640), ..Default::default() })
    }),
    names("chown with an ACL", |v| {
        change(v, "/with-acl", AttributeChange { uid: Some(77), ..Default::default() })
    }),
    data("write to a hole", |v| write(v, "/file", 64 << 10, 3000)),
    data("write to an empty file", |v| write(v, "/other", 0, 1)),
    data("write far away", |v| write(v, "/other", 5 << 20, 1)),
    data("write to a small file", |v| write(v, "/small", 10, 3000)),
    data("truncate to less", |v| at(v, "/file").set_size(140_000, Privileges::Keep)),
    data("truncate to more", |v| at(v, "/file").set_size(5 << 20, Privileges::Keep)),
    data("truncate a small file to less", |v| at(v, "/small").set_size(5, Privileges::Keep)),
    data("truncate a small file to nothing", |v| at(v, "/small").set_size(0, Privileges::Keep)),
    data("truncate a small file to more", |v| at(v, "/small").set_size(100, Privileges::Keep)),
    data("truncate a small file to much more", |v| {
        at(v, "/small").set_size(1 << 20, Privileges::Keep)
    }),
    data("truncate to nothing", |v| at(v, "/file").set_size(0, Privileges::Keep)),
    data("allocate", |v| fallocate(v, Fallocate::Allocate { keep_size: false }, 16 << 10, 8 << 10)),
    data("allocate past the end", |v| {
        fallocate(v, Fallocate::Allocate { keep_size: true }, 3 << 20, 1 << 10)
    }),
    data("punch a hole", |v| fallocate(v, Fallocate::PunchHole, 1 << 10, 2 << 10)),
    data("zero a range", |v| {
        fallocate(v, Fallocate::ZeroRange { keep_size: true }, 1 << 10, 8 << 10)
    }),
    data("collapse a range", |v| fallocate(v, Fallocate::CollapseRange, 64 << 10, 64 << 10)),
    data("insert a range", |v| fallocate(v, Fallocate::InsertRange, 16 << 10, 64 << 10)),
];
