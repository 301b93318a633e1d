//! Tests of setting and removing extended attributes, judged by e2fsck, debugfs and the kernel.

use crate::common;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Image, TIME, new_inode, open_for_writing, run};
use base::Error;
use base::attributes::{AttributeChange, FileType, Timestamp, XattrMode};
use ext4::{Inode, ROOT_INODE, Volume};
use fs::NewInode;
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};
use testkit::{LoopMount, Random, private_mounts};

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;
type Tree = BTreeMap<String, Attributes>;

const XATTR_BYTES_MAX: usize = 64 << 10;
const UNCHANGED: AttributeChange = AttributeChange {
    permissions: None,
    uid: None,
    gid: None,
    accessed: None,
    modified: None,
    changed: None,
};

fn inode(volume: &Arc<Volume>, name: &str) -> Inode {
    let root = volume.inode(ROOT_INODE).unwrap();
    volume.inode(root.lookup(name.as_bytes()).unwrap()).unwrap()
}

const FILES: [&str; 6] = ["a", "b", "c", "folder", "link", "inline"];

fn fill(folder: &Path) {
    for name in ["a", "b", "c"] {
        std::fs::write(folder.join(name), name.repeat(5000)).unwrap();
    }
    std::fs::create_dir(folder.join("folder")).unwrap();
    std::fs::write(folder.join("folder/file"), b"x").unwrap();
    std::os::unix::fs::symlink("target", folder.join("link")).unwrap();
    std::fs::write(folder.join("inline"), [7; 100]).unwrap();
}

/// Kinds of volumes, and whether the running kernel mounts them.
const KINDS: &[(&str, bool)] = &[
    ("-t ext4 -b 1024", true),
    ("-t ext4 -b 4096 -I 1024 -O inline_data", true),
    ("-t ext4 -b 4096 -I 128 -O ^metadata_csum,uninit_bg,^has_journal", true),
    ("-t ext4 -b 1024 -O ea_inode", true),
    ("-t ext4 -b 4096 -O ea_inode,inline_data,metadata_csum_seed", true),
    ("-t ext4 -b 4096 -O bigalloc,ea_inode -C 16384", true),
    ("-t ext2 -b 2048 -I 256 -O ^ext_attr", true),
    ("-t ext3 -b 1024 -I 128", true),
    ("-t ext4 -b 65536", false),
    ("-t ext4 -b 65536 -I 4096 -O ea_inode", false),
];

/// Returns the attributes of the files on a mounted volume, as the host reads them.
fn read_by_host(folder: &Path) -> Tree {
    let of_file = |name: &&str| {
        let path = folder.join(name);
        let mut names = vec![0; XATTR_BYTES_MAX];
        let length = llistxattr(&path, &mut names[..]).unwrap();
        let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let values = names.map(|name| {
            let mut value = vec![0; XATTR_BYTES_MAX];
            let length = lgetxattr(&path, CString::new(name).unwrap(), &mut value[..]).unwrap();
            (name.to_vec(), value[..length].to_vec())
        });
        ((*name).to_owned(), values.collect())
    };
    FILES.iter().map(of_file).collect()
}

fn read_by_us(volume: &Arc<Volume>) -> Tree {
    let of_file = |name: &&str| {
        let inode = inode(volume, name);
        let names = inode.list_xattrs().unwrap();
        let count = names.len();
        let all: Attributes =
            names.into_iter().map(|it| (it.clone(), inode.get_xattr(&it).unwrap())).collect();
        assert_eq!(all.len(), count, "a name twice");
        ((*name).to_owned(), all)
    };
    FILES.iter().map(of_file).collect()
}

/// Checks that the volume is consistent, and that we, and the host or debugfs, read these
/// attributes.
#[track_caller]
fn judge(image: &Image, expected: &Tree, is_mountable: bool, what: &str) {
    image.check_by_e2fsck();
    let volume = image.open();
    let mut findings = Vec::new();
    volume.check(&mut |error| {
        findings.push(error.to_string());
        ControlFlow::Continue(())
    });
    assert!(findings.is_empty(), "{what}: {findings:?}");
    assert!(read_by_us(&volume) == *expected, "{what}: read back");
    if is_mountable {
        let mount = LoopMount::new(&image.path, "ext4", "acl,user_xattr");
        let found = read_by_host(mount.path());
        for name in FILES {
            let sizes = |tree: &Tree| -> Vec<(String, usize)> {
                let all = tree[name].iter();
                all.map(|(it, value)| (String::from_utf8_lossy(it).into(), value.len())).collect()
            };
            let (ours, theirs) = (sizes(expected), sizes(&found));
            assert!(found[name] == expected[name], "{what}, {name}: {ours:?}, host: {theirs:?}");
        }
        assert_eq!(std::fs::read(mount.path().join("inline")).unwrap(), [7; 100]);
        assert_eq!(std::fs::read_dir(mount.path().join("folder")).unwrap().count(), 1);
        mount.unmount();
        image.check_by_e2fsck();
        return;
    }
    for (file, attributes) in expected {
        for (name, value) in attributes {
            let name = String::from_utf8(name.clone()).unwrap();
            let got = image.scratch.path("value");
            image.debugfs(&format!("ea_get -f {} /{file} {name}", got.display()));
            assert!(std::fs::read(&got).unwrap() == *value, "{what}, {file}: {name}");
        }
    }
}

/// Returns a random size of any order of magnitude, often small.
fn size(random: &mut Random) -> usize {
    match random.below(8) {
        0 => 0,
        1 | 2 => random.below(16) as usize,
        3 | 4 => random.below(120) as usize,
        5 => random.below(1000) as usize,
        6 => random.below(5000) as usize,
        _ => random.below(XATTR_BYTES_MAX as u64 + 1) as usize,
    }
}

/// Returns a random name that the host can read: it shows no "user." attributes of symbolic links.
fn name(random: &mut Random, file: &str) -> String {
    let prefixes = ["trusted.", "security.", "user."];
    let prefix = prefixes[random.below(if file == "link" { 2 } else { 3 }) as usize];
    let length = if random.below(10) == 0 { 200 } else { 1 + random.below(4) };
    format!("{prefix}{}{}", "n".repeat(length as usize), random.below(4))
}

/// Sets and removes random attributes. An attribute that there is no room for must be unchanged.
fn change_at_random(volume: &Arc<Volume>, tree: &mut Tree, seed: u64, steps: u32) {
    let mut random = Random(seed);
    // All files are used, since each has room for a part of the attributes only.
    let inodes: Vec<Inode> = FILES.iter().map(|name| inode(volume, name)).collect();
    let mut refused = 0;
    for step in 0..steps {
        let which = random.below(FILES.len() as u64) as usize;
        let attributes = tree.get_mut(FILES[which]).unwrap();
        let name = name(&mut random, FILES[which]).into_bytes();
        if random.below(3) == 0 {
            let removed = inodes[which].remove_xattr(&name, &UNCHANGED);
            let expected = attributes.remove(&name).map(|_| ()).ok_or(Error::NoAttribute);
            assert_eq!(removed, expected, "step {step}");
            continue;
        }
        let value = vec![random.below(256) as u8; size(&mut random)];
        match inodes[which].set_xattr(&name, &value, XattrMode::Either, &UNCHANGED) {
            Ok(()) => {
                attributes.insert(name, value);
            }
            Err(Error::NoSpace) => refused += 1,
            Err(error) => panic!("step {step}: {error}"),
        }
    }
    assert!(refused < steps / 2, "{refused} of {steps} refused");
}

#[test]
fn the_host_and_debugfs_read_the_attributes_that_were_set_and_not_removed() {
    private_mounts();
    for (seed, (options, is_mountable)) in KINDS.iter().enumerate() {
        let image = Image::filled(32, options, fill);
        let mut tree: Tree = FILES.iter().map(|&name| (name.to_owned(), BTreeMap::new())).collect();
        for round in 0..3 {
            let volume = open_for_writing(&image);
            change_at_random(&volume, &mut tree, seed as u64 * 100 + round, 60);
            assert!(read_by_us(&volume) == tree, "{options}");
            volume.close().unwrap();
            drop(volume);
            judge(&image, &tree, *is_mountable, &format!("{options}, round {round}"));
        }
        // When all attributes are removed, none of their blocks remains.
        let volume = open_for_writing(&image);
        for (file, attributes) in &mut tree {
            for (name, _) in std::mem::take(attributes) {
                inode(&volume, file).remove_xattr(&name, &UNCHANGED).unwrap();
            }
        }
        volume.close().unwrap();
        drop(volume);
        judge(&image, &tree, *is_mountable, options);
        assert!(image.debugfs("stat /a").contains("File ACL: 0"), "{options}");
    }
}

#[test]
fn attributes_that_the_kernel_wrote_can_be_changed() {
    private_mounts();
    for (options, is_mountable) in KINDS {
        if !is_mountable {
            continue;
        }
        let image = Image::filled(32, options, fill);
        let mount = LoopMount::new(&image.path, "ext4", "acl,user_xattr");
        // Blocks and value inodes that several files share.
        for file in FILES {
            // The first attribute fills the inode, if that has the usual size.
            for (name, size) in
                [("trusted.b", 56), ("trusted.a", 300), ("security.c", 200), ("security.d", 20)]
            {
                let path = mount.path().join(file);
                lsetxattr(&path, name, &vec![b'v'; size], XattrFlags::empty()).unwrap();
            }
            if options.contains("ea_inode") {
                for size in [5000, 60_000] {
                    let (path, name) = (mount.path().join(file), format!("trusted.of {size}"));
                    lsetxattr(&path, name, &vec![b'l'; size], XattrFlags::empty()).unwrap();
                }
            }
        }
        let mut tree = read_by_host(mount.path());
        mount.unmount();
        for round in 0..2 {
            let volume = open_for_writing(&image);
            assert!(read_by_us(&volume) == tree, "{options}");
            if round == 0 {
                let file = inode(&volume, "a");
                file.remove_xattr(b"trusted.a", &UNCHANGED).unwrap();
                tree.get_mut("a").unwrap().remove(&b"trusted.a"[..]);
                let file = inode(&volume, "folder");
                let name = b"security.c";
                file.set_xattr(name, b"other", XattrMode::Replace, &UNCHANGED).unwrap();
                tree.get_mut("folder").unwrap().insert(name.to_vec(), b"other".to_vec());
            } else {
                change_at_random(&volume, &mut tree, 7, 60);
                for file in FILES {
                    for (name, _) in std::mem::take(tree.get_mut(file).unwrap()) {
                        inode(&volume, file).remove_xattr(&name, &UNCHANGED).unwrap();
                    }
                }
            }
            volume.close().unwrap();
            drop(volume);
            judge(&image, &tree, true, &format!("{options}, round {round}"));
        }
    }
}

#[test]
fn the_host_reads_the_acls_that_were_set() {
    private_mounts();
    let folder = tempfile::tempdir().unwrap();
    for acl in ["u::rwx,u:1000:r-x,g::r--,g:77:rwx,m::rwx,o::---", "d:u::rwx,d:g::r-x,d:o::r--"] {
        run(Command::new("setfacl").args(["-m", acl]).arg(folder.path()));
    }
    let acl = |name: &str| {
        let mut value = vec![0; 1000];
        let length = lgetxattr(folder.path(), name, &mut value[..]).unwrap();
        value[..length].to_vec()
    };
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let values = [(access, acl(access)), (default, acl(default))];
    for options in ["-t ext4 -b 1024", "-t ext4 -I 128 -b 4096"] {
        let image = Image::filled(32, options, fill);
        let volume = open_for_writing(&image);
        let mut tree: Tree = FILES.iter().map(|&name| (name.to_owned(), BTreeMap::new())).collect();
        let change = AttributeChange { permissions: Some(0o770), ..UNCHANGED };
        for (name, value) in &values {
            let set = |file: &str| {
                inode(&volume, file).set_xattr(name.as_bytes(), value, XattrMode::Create, &change)
            };
            set("folder").unwrap();
            tree.get_mut("folder").unwrap().insert(name.as_bytes().to_vec(), value.clone());
            assert!(matches!(set("link"), Err(Error::Unsupported(_))));
            if *name == default {
                assert!(matches!(set("a"), Err(Error::NotPermitted(_))));
            }
        }
        // An ACL without entries means no ACL.
        let root = volume.inode(ROOT_INODE).unwrap();
        root.set_xattr(access.as_bytes(), &values[0].1, XattrMode::Either, &UNCHANGED).unwrap();
        root.set_xattr(access.as_bytes(), &[2, 0, 0, 0], XattrMode::Either, &UNCHANGED).unwrap();
        assert!(root.list_xattrs().unwrap().is_empty());
        let bad = root.set_xattr(access.as_bytes(), &[2, 0, 0], XattrMode::Either, &UNCHANGED);
        assert!(matches!(bad, Err(Error::InvalidArgument(_))), "{bad:?}");
        volume.close().unwrap();
        drop((root, volume));
        judge(&image, &tree, true, options);
        let mount = LoopMount::new(&image.path, "ext4", "acl,user_xattr");
        let text = |folder: &Path| {
            let text = run(Command::new("getfacl").args(["-n", "-c", "-p"]).arg(folder));
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(text(&mount.path().join("folder")), text(folder.path()), "{options}");
    }
}

#[test]
fn refused_changes_change_nothing() {
    let image = Image::filled(32, "-t ext4 -b 1024 -O ^has_journal", fill);
    let volume = open_for_writing(&image);
    let file = inode(&volume, "a");
    let set =
        |name: &str, value: &[u8], mode| file.set_xattr(name.as_bytes(), value, mode, &UNCHANGED);
    set("user.there", b"value", XattrMode::Create).unwrap();
    assert_eq!(set("user.there", b"other", XattrMode::Create), Err(Error::Exists));
    assert_eq!(set("user.absent", b"other", XattrMode::Replace), Err(Error::NoAttribute));
    assert_eq!(file.remove_xattr(b"user.absent", &UNCHANGED), Err(Error::NoAttribute));
    assert_eq!(set("user.large", &[1; 1024], XattrMode::Either), Err(Error::NoSpace));
    let too_long = set("user.large", &[1; XATTR_BYTES_MAX + 1], XattrMode::Either);
    assert!(matches!(too_long, Err(Error::InvalidArgument(_))), "{too_long:?}");
    let inline_data = set("system.data", b"x", XattrMode::Either);
    assert!(matches!(inline_data, Err(Error::Unsupported(_))), "{inline_data:?}");
    volume.sync().unwrap();
    let before = image.bytes();
    let again = set("user.there", b"other", XattrMode::Create);
    assert_eq!(again, Err(Error::Exists));
    volume.sync().unwrap();
    assert!(image.bytes() == before);
    // The volume stays usable.
    set("user.there", b"other", XattrMode::Replace).unwrap();
    volume.close().unwrap();
    drop((file, volume));
    let volume = image.open();
    assert_eq!(inode(&volume, "a").get_xattr(b"user.there").unwrap(), b"other");
}

#[test]
fn attributes_change_together_with_extended_attributes() {
    let image = Image::filled(32, "-t ext4", fill);
    let volume = open_for_writing(&image);
    let file = inode(&volume, "a");
    let changed = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
    let change = AttributeChange { changed: Some(changed), permissions: Some(0o640), ..UNCHANGED };
    file.set_xattr(b"user.a", &[1; 900], XattrMode::Either, &change).unwrap();
    volume.close().unwrap();
    drop((file, volume));
    let seen = inode(&image.open(), "a").attributes();
    // Two blocks of data, one of attributes.
    assert_eq!((seen.changed, seen.permissions, seen.blocks), (changed, 0o640, 3 * 8));
}

#[test]
fn extended_attributes_are_freed_with_their_inodes() {
    private_mounts();
    for (options, is_mountable) in KINDS {
        let image = Image::filled(32, options, fill);
        let free = |image: &Image| common::number_after(&image.dumpe2fs(&["-h"]), "Free blocks:");
        let free_inodes =
            |image: &Image| common::number_after(&image.dumpe2fs(&["-h"]), "Free inodes:");
        let before = (free(&image), free_inodes(&image));
        let large = vec![7; if options.contains("ea_inode") { 60_000 } else { 700 }];
        let small: [(&[u8], &[u8]); 2] = [(b"user.a", b"1"), (b"security.b", b"context")];
        let many: [(&[u8], &[u8]); 3] =
            [(b"user.a", &[1; 100]), (b"user.large", &large), (b"trusted.b", &[2; 100])];
        let volume = open_for_writing(&image);
        let root = Arc::new(volume.inode(ROOT_INODE).unwrap());
        let mut made = Vec::new();
        for (index, xattrs) in [&small[..], &many, &[]].into_iter().enumerate() {
            let name = format!("new {index}");
            let kind = if index == 0 { FileType::Directory } else { FileType::Regular };
            let new = NewInode { xattrs, ..new_inode(kind) };
            let inode = root.create(name.as_bytes(), &new).unwrap();
            let found = inode.list_xattrs().unwrap();
            assert_eq!(found.len(), xattrs.len(), "{options}");
            for (name, value) in xattrs {
                assert_eq!(inode.get_xattr(name).unwrap(), *value);
            }
            made.push((name, inode));
        }
        volume.sync().unwrap();
        image.check_by_e2fsck();
        for (name, inode) in made {
            if inode.kind() == FileType::Directory {
                root.rmdir(name.as_bytes(), &inode, TIME).unwrap();
            } else {
                root.unlink(name.as_bytes(), &inode, TIME).unwrap();
            }
            inode.release().unwrap();
        }
        volume.close().unwrap();
        drop((root, volume));
        image.check_by_e2fsck();
        assert_eq!((free(&image), free_inodes(&image)), before, "{options}");
        if !is_mountable {
            continue;
        }
        // Blocks and value inodes that the kernel shares between files.
        let mount = LoopMount::new(&image.path, "ext4", "acl,user_xattr");
        for file in ["a", "b", "c"] {
            let size = if options.contains("ea_inode") { 60_000 } else { 400 };
            for (name, size) in [("trusted.a", 300), ("trusted.large", size)] {
                let path = mount.path().join(file);
                lsetxattr(&path, name, &vec![b'v'; size], XattrFlags::empty()).unwrap();
            }
        }
        mount.unmount();
        let volume = open_for_writing(&image);
        let root = Arc::new(volume.inode(ROOT_INODE).unwrap());
        for file in ["a", "b", "c"] {
            let inode = Arc::new(inode(&volume, file));
            root.unlink(file.as_bytes(), &inode, TIME).unwrap();
            inode.release().unwrap();
            volume.sync().unwrap();
            image.check_by_e2fsck();
        }
        volume.close().unwrap();
        drop((root, volume));
        image.check_by_e2fsck();
        assert_eq!(free_inodes(&image), before.1.map(|free| free + 3), "{options}");
    }
}

#[test]
fn a_small_journal_has_room_for_large_values() {
    private_mounts();
    let image = Image::filled(32, "-t ext4 -b 1024 -O ea_inode -J size=1", fill);
    let volume = open_for_writing(&image);
    let file = inode(&volume, "a");
    for byte in 0..20 {
        let value = vec![byte; XATTR_BYTES_MAX];
        file.set_xattr(b"user.large", &value, XattrMode::Either, &UNCHANGED).unwrap();
        assert!(file.get_xattr(b"user.large").unwrap() == value);
    }
    volume.close().unwrap();
    drop((file, volume));
    let mut tree: Tree = FILES.iter().map(|&name| (name.to_owned(), BTreeMap::new())).collect();
    let value = vec![19; XATTR_BYTES_MAX];
    tree.get_mut("a").unwrap().insert(b"user.large".to_vec(), value);
    judge(&image, &tree, true, "a small journal");
}

#[test]
fn a_full_volume_refuses_attributes_and_stays_consistent() {
    for options in ["-t ext4 -b 1024 -O ea_inode -N 64", "-t ext4 -b 1024 -I 128 -N 64"] {
        let image = Image::filled(3, options, fill);
        let volume = open_for_writing(&image);
        let inodes: Vec<Inode> = FILES.iter().map(|name| inode(&volume, name)).collect();
        let large = if options.contains("ea_inode") { 50_000 } else { 900 };
        let mut set = 0;
        let mut names = (0..200).map(|n| format!("trusted.{n}"));
        let refused = names.find_map(|name| {
            inodes.iter().find_map(|inode| {
                let value = vec![1; large];
                let result =
                    inode.set_xattr(name.as_bytes(), &value, XattrMode::Either, &UNCHANGED);
                set += 1;
                result.err()
            })
        });
        assert_eq!(refused, Some(Error::NoSpace), "{options}: {set}");
        // The volume stays usable.
        inodes[0].remove_xattr(b"trusted.0", &UNCHANGED).unwrap();
        inodes[0].set_xattr(b"trusted.0", &[2; 600], XattrMode::Create, &UNCHANGED).unwrap();
        volume.close().unwrap();
        drop((inodes, volume));
        image.check_by_e2fsck();
    }
}
