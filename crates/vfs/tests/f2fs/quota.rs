//! Quota files of f2fs: they say what each owner, group and project uses, whatever changes that,
//! after a recovery, and on a full volume. The judges are fsck.f2fs in two versions, and the
//! library's own check.

use std::fs;
use std::path::Path;

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, FileOffset};
use tempfile::TempDir;
use testkit::Random;
use testkit::f2fs::{Kind, Tools, check_by_both, set_checkpoint_flags};
use vfs::{
    Creation, Credentials, Fallocate, Follow, OpenMode, Privileges, RenameFlags, Volume,
    VolumeOptions,
};

const ROOT: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };
/// The flag of a checkpoint with quota files that need repair.
const NEEDS_REPAIR: u32 = 0x800;

/// A volume in an image with all quota files.
struct Fixture {
    folder: TempDir,
    volume: Volume,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Kind::named("project").make(&image, 64);
        Self { volume: open(&image), folder }
    }

    /// Checks a copy of the image, as a power cut would leave it now.
    fn check(&self) {
        let copy = self.folder.path().join("copy");
        fs::copy(self.folder.path().join("image"), &copy).unwrap();
        check_by_both(&copy);
        // The recovery is charged, too.
        open(&copy).close().unwrap();
        check_by_both(&copy);
    }

    /// Checks the state that a checkpoint makes durable now.
    fn sync_and_check(&self) {
        self.volume.sync().unwrap();
        self.check();
    }

    /// Closes the volume, and checks the image.
    fn close(self) {
        self.volume.close().unwrap();
        drop(self.volume);
        check_by_both(&self.folder.path().join("image"));
    }
}

fn open(image: &Path) -> Volume {
    VolumeOptions::new().writable(true).cache_bytes_max(8 << 20).open(image).unwrap()
}

fn write(volume: &Volume, path: &str, length: usize) -> Result<(), Error> {
    let file = match volume.resolve(path.as_bytes(), Follow::No) {
        Ok(file) => file,
        Err(_) => volume.create_file(path.as_bytes(), 0o644, ROOT)?,
    };
    file.open_for(WRITE)?.write_all_at(&vec![7; length], 0).map_err(|_| Error::NoSpace)
}

fn own(volume: &Volume, path: &str, uid: u32, gid: u32) -> Result<(), Error> {
    let change = AttributeChange { uid: Some(uid), gid: Some(gid), ..AttributeChange::default() };
    volume.resolve(path.as_bytes(), Follow::No)?.set_attributes(&change, ROOT)
}

fn set_project(volume: &Volume, path: &str, project: u32) {
    volume.resolve(path.as_bytes(), Follow::No).unwrap().set_project(project, ROOT).unwrap();
}

fn sync(volume: &Volume, path: &str) {
    let file = volume.resolve(path.as_bytes(), Follow::No).unwrap();
    file.open_for(WRITE).unwrap().sync_all().unwrap();
}

#[test]
fn usage_follows_files_and_their_blocks() {
    let fixture = Fixture::new();
    let volume = &fixture.volume;
    volume.mkdir(b"/d", 0o755, ROOT).unwrap();
    own(volume, "/d", 5, 6).unwrap();
    for number in 0..60 {
        volume.create_file(format!("/d/{number}").as_bytes(), 0o644, ROOT).unwrap();
    }
    for (name, length) in [("/a", 5000), ("/b", 6 << 20), ("/c", 100)] {
        write(volume, name, length).unwrap();
        own(volume, name, 1000, 2000).unwrap();
    }
    let target = [b't'; 4000];
    volume.create_at(b"/long", &Creation::symlink(&target), ROOT).unwrap();
    fixture.sync_and_check();
    let resolve = |path: &[u8]| volume.resolve(path, Follow::No).unwrap();
    resolve(b"/b").set_size(5 << 20, Privileges::Keep).unwrap();
    fixture.sync_and_check();
    let change = |mode, range: std::ops::Range<u64>| {
        let file = resolve(b"/b").open_for(WRITE).unwrap();
        file.fallocate(mode, FileOffset(range.start)..FileOffset(range.end), Privileges::Keep)
            .unwrap();
    };
    change(Fallocate::PunchHole, 8192..1 << 20);
    change(Fallocate::Allocate { keep_size: true }, 7 << 20..9 << 20);
    change(Fallocate::CollapseRange, 2 << 20..3 << 20);
    fixture.sync_and_check();
    resolve(b"/c").set_xattr(b"user.x", &[1; 3000], XattrMode::Either, Privileges::Keep).unwrap();
    fixture.sync_and_check();
    resolve(b"/c").remove_xattr(b"user.x").unwrap();
    fixture.sync_and_check();
    volume.link_at(b"/c", b"/d/link").unwrap();
    volume.remove(b"/c", ROOT).unwrap();
    volume.rename_at(b"/a", b"/d/7", RenameFlags::default(), ROOT).unwrap();
    // An inode without a name is charged until its last use.
    let open_file = resolve(b"/b").open_for(WRITE).unwrap();
    volume.remove(b"/b", ROOT).unwrap();
    let root = volume.resolve(b"/", Follow::No).unwrap();
    let unnamed =
        volume.create_unnamed(&root, &Creation::of(FileType::Regular, 0o600), ROOT).unwrap();
    fixture.sync_and_check();
    drop((open_file, unnamed, root));
    fixture.sync_and_check();
    for number in 0..60 {
        volume.remove(format!("/d/{number}").as_bytes(), ROOT).unwrap();
    }
    fixture.close();
}

#[test]
fn usage_moves_to_the_new_owner_group_and_project() {
    let fixture = Fixture::new();
    let volume = &fixture.volume;
    let mut random = Random(3);
    let mut any_id = || match random.below(3) {
        0 => random.below(20) as u32,
        1 => random.below(1 << 32) as u32,
        _ => (random.below(1 << 8) as u32) << 24,
    };
    for round in 0..3 {
        for number in 0..60 {
            let path = format!("/{number}");
            write(volume, &path, number * 300).unwrap();
            own(volume, &path, any_id(), any_id()).unwrap();
            set_project(volume, &path, any_id());
            if round == 1 && number % 2 == 0 {
                sync(volume, &path);
            }
        }
        // First without, and then with a checkpoint.
        fixture.check();
        fixture.sync_and_check();
    }
    for number in 0..60 {
        own(volume, &format!("/{number}"), 0, 0).unwrap();
    }
    fixture.close();
}

#[test]
fn what_was_synced_is_charged_by_the_recovery() {
    let fixture = Fixture::new();
    let volume = &fixture.volume;
    write(volume, "/old", 200_000).unwrap();
    write(volume, "/removed", 50_000).unwrap();
    volume.sync().unwrap();
    for number in 1..40_u32 {
        let path = format!("/{number}");
        write(volume, &path, 10_000 * (number as usize % 3)).unwrap();
        own(volume, &path, number << 16, number << 9).unwrap();
        set_project(volume, &path, number << 20);
        sync(volume, &path);
    }
    let old = volume.resolve(b"/old", Follow::No).unwrap();
    old.set_size(9000, Privileges::Keep).unwrap();
    own(volume, "/old", 77, 78).unwrap();
    sync(volume, "/old");
    let before = volume.info().details.clone();
    fixture.check();
    // The copy was recovered from the chain of synced nodes, not from a checkpoint.
    let version = |details: &[(&'static str, base::attributes::Detail)]| {
        let found = details.iter().find(|(name, _)| *name == "checkpoint_version");
        format!("{:?}", found.unwrap().1)
    };
    assert_eq!(version(&before), version(&volume.info().details));
    let copy = open(&fixture.folder.path().join("copy"));
    let recovered = copy.resolve(b"/39", Follow::No).unwrap().attributes();
    assert_eq!((recovered.uid, recovered.project), (39 << 16, Some(39 << 20)));
    assert_eq!(copy.resolve(b"/old", Follow::No).unwrap().attributes().uid, 77);
    copy.close().unwrap();
    drop(old);
    fixture.close();
}

#[test]
fn a_full_volume_keeps_its_usage() {
    let fixture = Fixture::new();
    let volume = &fixture.volume;
    let mut count = 0_u32;
    // Each owner takes new blocks of the quota files.
    let error = loop {
        let path = format!("/{count}");
        let made = write(volume, &path, 40_000).and_then(|()| {
            own(volume, &path, count.wrapping_mul(0x0101_0101), !count)?;
            volume.resolve(path.as_bytes(), Follow::No)?.set_project(count << 8, ROOT)
        });
        match made {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::NoSpace);
    assert!(count > 100, "{count}");
    fixture.sync_and_check();
    for number in 0..count {
        volume.remove(format!("/{number}").as_bytes(), ROOT).unwrap();
    }
    fixture.sync_and_check();
    write(volume, "/again", 1 << 20).unwrap();
    fixture.close();
}

#[test]
fn cleaning_moves_blocks_of_quota_files() {
    let fixture = Fixture::new();
    let volume = &fixture.volume;
    for round in 0..4_u32 {
        for number in 0..200_u32 {
            let path = format!("/{number}");
            write(volume, &path, 60_000).unwrap();
            own(volume, &path, number.wrapping_mul(round << 20), number << 10).unwrap();
            if number % 10 == 0 {
                volume.sync().unwrap();
            }
        }
        for number in (0..200_u32).filter(|number| number % 7 > 0) {
            volume.remove(format!("/{number}").as_bytes(), ROOT).unwrap();
        }
        volume.sync().unwrap();
        let cleaned = volume.clean().unwrap();
        assert!(cleaned.free_after > cleaned.free_before, "{cleaned:?}");
        fixture.sync_and_check();
    }
    fixture.close();
}

/// Returns the byte of the first quota file with this magic number.
fn quota_file(image: &[u8], magic: u32) -> usize {
    let mut start = [0; 8];
    start[..4].copy_from_slice(&magic.to_le_bytes());
    start[4] = 1;
    let found = image.chunks(4096).position(|block| block.starts_with(&start));
    found.expect("a quota file") * 4096
}

/// Changes a volume whose quota files need repair, and has fsck.f2fs repair them.
fn change_and_repair(image: &Path) {
    let volume = open(image);
    write(&volume, "/f", 100_000).unwrap();
    own(&volume, "/f", 8, 9).unwrap();
    volume.sync().unwrap();
    volume.resolve(b"/f", Follow::No).unwrap().set_size(5000, Privileges::Keep).unwrap();
    volume.close().unwrap();
    drop(volume);
    let info = format!("{:?}", VolumeOptions::new().open(image).unwrap().info().details);
    assert!(info.contains("quota check needed"), "{info}");
    let repaired = Tools::V1_16.command("fsck.f2fs").arg("-f").arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(text.contains("Fixing Quota file"), "{text}");
    check_by_both(image);
    let volume = open(image);
    write(&volume, "/g", 50_000).unwrap();
    own(&volume, "/g", 8, 10).unwrap();
    volume.close().unwrap();
    drop(volume);
    check_by_both(image);
}

#[test]
fn damaged_quota_files_do_not_prevent_changes() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    // The magic number, and the id of the first entry.
    for (byte, value) in [(0, 0x12), (5 * 1024 + 16, 5)] {
        Kind::named("project").make(&image, 64);
        let mut bytes = fs::read(&image).unwrap();
        let at = quota_file(&bytes, 0xD9C0_1927) + byte;
        bytes[at] = value;
        fs::write(&image, bytes).unwrap();
        change_and_repair(&image);
    }
}

#[test]
fn damaged_quota_files_do_not_prevent_a_recovery() {
    let fixture = Fixture::new();
    fixture.volume.sync().unwrap();
    write(&fixture.volume, "/synced", 30_000).unwrap();
    sync(&fixture.volume, "/synced");
    let mut bytes = fs::read(fixture.folder.path().join("image")).unwrap();
    let at = quota_file(&bytes, 0xD9C0_1F11);
    bytes[at] ^= 1;
    let copy = fixture.folder.path().join("copy");
    fs::write(&copy, bytes).unwrap();
    let volume = VolumeOptions::new().open(&copy).unwrap();
    assert!(volume.resolve(b"/synced", Follow::No).is_ok());
    let info = format!("{:?}", volume.info().details);
    assert!(info.contains("quota_failure"), "{info}");
    drop(volume);
    change_and_repair(&copy);
    fixture.close();
}

#[test]
fn quota_files_that_need_repair_are_left_to_fsck() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Kind::named("project").make(&image, 64);
    set_checkpoint_flags(&image, NEEDS_REPAIR);
    change_and_repair(&image);
}
