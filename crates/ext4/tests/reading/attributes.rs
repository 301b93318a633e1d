//! Tests of reading extended attributes, ACLs and symbolic links that mke2fs copied from a tree, or
//! that the kernel or debugfs wrote. The host's view is expected.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Image, Scratch, run};
use base::{Error, InodeNumber};
use ext4::{Inode, ROOT_INODE, Volume};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use testkit::{LoopMount, private_mounts};

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns the attributes of a file as the host reads them.
fn read_by_host(path: &Path) -> Attributes {
    let mut names = vec![0; 65536];
    let length = llistxattr(path, &mut names[..]).unwrap();
    names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 65536];
            let length = lgetxattr(path, CString::new(name).unwrap(), &mut value[..]).unwrap();
            (name.to_vec(), value[..length].to_vec())
        })
        .collect()
}

fn read_by_us(inode: &Inode) -> Attributes {
    let names = inode.list_xattrs().unwrap();
    let count = names.len();
    let all: Attributes =
        names.into_iter().map(|name| (name.clone(), inode.get_xattr(&name).unwrap())).collect();
    assert_eq!(all.len(), count, "a name twice");
    all
}

fn open(volume: &Arc<Volume>, path: &str) -> Inode {
    let names = path.split('/').filter(|name| !name.is_empty());
    let root = volume.inode(ROOT_INODE).unwrap();
    names.fold(root, |inode, name| volume.inode(inode.lookup(name.as_bytes()).unwrap()).unwrap())
}

#[track_caller]
fn set(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("setting {name} on {}: {error}", path.display()));
}

/// Creates files with attributes of all kinds. Some fit in an inode, some need a block.
fn decorate(tree: &Path) {
    for (file, size) in [("small", 10), ("large", 900)] {
        let path = tree.join(file);
        std::fs::write(&path, b"x").unwrap();
        set(&path, "user.name", &vec![b'v'; size]);
        set(&path, "user.empty", b"");
        set(&path, "user.näme", b"\0binary\xFF");
        set(&path, "trusted.thing", b"secret");
        set(&path, "security.label", b"context");
    }
    let folder = tree.join("folder");
    std::fs::create_dir(&folder).unwrap();
    for acl in ["u::rwx,u:1000:r-x,g::r--,g:77:rwx,m::rwx,o::---", "d:u::rwx,d:g::r-x,d:o::r--"] {
        run(Command::new("setfacl").args(["-m", acl]).arg(&folder));
    }
    std::os::unix::fs::symlink("target", tree.join("link")).unwrap();
    set(&tree.join("link"), "trusted.of_link", b"1");
}

const DECORATED: [&str; 5] = ["", "small", "large", "folder", "link"];

#[test]
fn attributes_that_mke2fs_copies_are_read_as_in_the_tree() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    std::fs::create_dir(&tree).unwrap();
    decorate(&tree);
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "65536"],
        &["-t", "ext4", "-I", "128"],
        &["-t", "ext4", "-I", "1024", "-O", "inline_data"],
        &["-t", "ext4", "-O", "metadata_csum_seed"],
        &["-t", "ext2"],
        &["-t", "ext4", "-O", "ea_inode"],
    ] {
        let image = Image::make(16, &[options, &["-d", tree.to_str().unwrap()]].concat());
        let volume = image.open();
        for path in DECORATED {
            assert_eq!(read_by_us(&open(&volume, path)), read_by_host(&tree.join(path)), "{path}");
        }
        assert_eq!(open(&volume, "small").get_xattr(b"user.other"), Err(Error::NoAttribute));
        assert_eq!(open(&volume, "small").get_xattr(b"system.data"), Err(Error::NoAttribute));
        assert_eq!(open(&volume, "link").read_link().unwrap(), b"target");
    }
}

#[test]
fn attributes_that_the_kernel_writes_are_read_as_by_the_kernel() {
    private_mounts();
    for options in [
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode"][..],
        &["-t", "ext4", "-O", "ea_inode,inline_data", "-I", "256"],
        &["-t", "ext4", "-O", "metadata_csum_seed", "-U", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"],
        &["-t", "ext3", "-I", "128"],
    ] {
        let image = Image::make(32, options);
        let has_value_inodes = options.iter().any(|option| option.contains("ea_inode"));
        let mount = LoopMount::new(&image.path, "ext4", "acl,user_xattr");
        let folder = mount.path();
        decorate(folder);
        if has_value_inodes {
            for (n, size) in [2000, 5000, 40_000, 65_536].into_iter().enumerate() {
                let value: Vec<u8> = (0..size).map(|n: u32| (n / 8) as u8).collect();
                set(&folder.join("large"), &format!("user.big{n}"), &value);
                set(&folder.join("small"), &format!("user.big{n}"), &value);
            }
        }
        // Files with the same attributes share one block.
        for n in 0..5 {
            let path = folder.join(format!("shared{n}"));
            std::fs::write(&path, b"").unwrap();
            set(&path, "user.shared", &[b's'; 300]);
        }
        let paths = DECORATED.into_iter().map(str::to_owned);
        let expected: Vec<(String, Attributes)> = paths
            .chain((0..5).map(|n| format!("shared{n}")))
            .map(|path| (path.clone(), read_by_host(&folder.join(path))))
            .collect();
        mount.unmount();
        let volume = image.open();
        for (path, expected) in expected {
            let ours = read_by_us(&open(&volume, &path));
            assert!(
                ours == expected,
                "{options:?} {path}: {:?} {:?}",
                ours.keys(),
                expected.keys()
            );
        }
    }
}

#[test]
fn a_damaged_value_inode_is_corrupt() {
    let image = Image::make(16, &["-t", "ext4", "-O", "ea_inode"]);
    let value = image.scratch.write("value", &[b'v'; 4096]);
    let file = image.scratch.write("file", b"data");
    image.debugfs_write(&format!(
        "write {} file\nea_set -f {} file user.big\n",
        file.display(),
        value.display()
    ));
    assert_eq!(open(&image.open(), "file").get_xattr(b"user.big").unwrap(), [b'v'; 4096]);
    let (first_inode, bytes) = (InodeNumber(12), image.bytes());
    let value_inode = (first_inode.0..20)
        .find(|inode| image.debugfs(&format!("stat <{inode}>")).contains("Flags: 0x280000"))
        .expect("the inode with the value");
    for damage in [
        format!("sif <{value_inode}> flags 0x80000"),
        format!("sif <{value_inode}> size 4095"),
        format!("sif <{value_inode}> atime 0x5"),
        format!("sif <{value_inode}> mode 0120777"),
        format!("punch <{value_inode}> 0 0"),
        format!("clri <{value_inode}>"),
    ] {
        std::fs::write(&image.path, &bytes).unwrap();
        image.debugfs_write(&damage);
        let got = open(&image.open(), "file").get_xattr(b"user.big");
        assert!(matches!(got, Err(Error::Corrupt(_))), "{damage}: {got:?}");
    }
}

#[test]
fn symbolic_links_of_every_length_are_read() {
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-O", "inline_data,ea_inode"],
        &["-t", "ext2"],
        &["-t", "ext4", "-b", "65536", "-O", "ea_inode"],
    ] {
        let scratch = Scratch::new();
        let tree = scratch.path("tree");
        std::fs::create_dir(&tree).unwrap();
        let lengths = [1, 2, 58, 59, 60, 61, 100, 150, 500, 1000, 1023];
        for length in lengths {
            let target = "t".repeat(length);
            std::os::unix::fs::symlink(target, tree.join(length.to_string())).unwrap();
        }
        let image = Image::make(16, &[options, &["-d", tree.to_str().unwrap()]].concat());
        let volume = image.open();
        for length in lengths {
            let link = open(&volume, &length.to_string());
            let ours = link.read_link().unwrap();
            let host = std::fs::read_link(tree.join(length.to_string())).unwrap();
            assert_eq!(ours, host.as_os_str().as_bytes(), "{options:?} {length}");
        }
        assert!(matches!(open(&volume, "").read_link(), Err(Error::WrongType(_))));
    }
}

#[test]
fn a_link_without_a_valid_target_is_corrupt() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-O", "encrypt"]);
    let long = "l".repeat(200);
    image.debugfs_write(&format!("symlink fast target\nsymlink slow {long}\n"));
    let bytes = image.bytes();
    for (damage, link) in [
        ("sif fast size 0", "fast"),
        ("sif fast size 60", "fast"),
        ("sif fast size 5000000000", "fast"),
        ("sif slow size 1024", "slow"),
        ("sif slow size 0", "slow"),
        ("punch slow 0 0", "slow"),
    ] {
        std::fs::write(&image.path, &bytes).unwrap();
        image.debugfs_write(damage);
        let volume = image.open();
        let target = open(&volume, link).read_link();
        assert!(matches!(target, Err(Error::Corrupt(_))), "{damage}: {target:?}");
    }
    std::fs::write(&image.path, &bytes).unwrap();
    image.debugfs_write("sif fast flags 0x800\nsif slow block[IND] 0\n");
    // It is encrypted, but has no encryption context.
    let target = open(&image.open(), "fast").read_link();
    assert!(matches!(target, Err(Error::Corrupt(_))), "{target:?}");
}
