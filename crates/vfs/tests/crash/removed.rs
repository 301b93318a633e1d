//! A file that is written and synced after names in its directory were removed, as a database is
//! after its journal. A cut that leaves contents which were written after a name was removed does
//! not leave the name. Only f2fs, which overwrites no such data in place, promises this; on ext4,
//! fdatasync of existing blocks commits nothing.

use base::FileOffset;
use testkit::Random;
use testkit::crash::{History, Kind, Pace, Recorded, RecordedRun, Snapshot};
use vfs::{
    AtomicWrite, Credentials, File, MapAccess, MapSync, Privileges, RenameFlags, RwFlags, Volume,
    WriteAt, WriteSync,
};

use crate::common::{WRITE, bytes, store};
use crate::planted::{Bug, Planted};
use crate::stage::open;

const FILE: &str = "/d/file";
const BLOCK: usize = 4096;
const BLOCKS: u64 = 4;
const SECTOR: usize = 512;

/// The removal of a name, and the version of the file that was written after it.
#[derive(Debug)]
struct Removal {
    path: String,
    /// The contents of the file that had the name. `None` for a directory.
    contents: Option<Vec<u8>>,
    version: usize,
    /// The point at which the version was synced.
    synced: usize,
}

pub struct Removed {
    run: RecordedRun,
    removals: Vec<Removal>,
}

impl Removed {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, steps: usize) -> Self {
        let planted = Planted::new(bug);
        let Recorded { recorder, disks } =
            kind.record(Pace::AtOnce, |device| planted.device(device));
        let volume = open(&disks, bug, seed);
        let mut random = Random(seed);
        let file = make_file(&volume, seed);
        volume.sync().unwrap();
        let begun = recorder.point();
        let mut removals = Vec::new();
        for version in 1..=steps {
            let (path, contents) = make_name(&volume, version, &mut random);
            if bug != Bug::LateRemoval {
                remove(&volume, &path, contents.is_none(), &mut random);
            }
            write_and_sync(&file, version, &mut random);
            let synced = recorder.point();
            if bug == Bug::LateRemoval {
                remove(&volume, &path, contents.is_none(), &mut random);
            }
            removals.push(Removal { path, contents, version, synced });
        }
        Self { run: RecordedRun::new(kind, &recorder, begun), removals }
    }
}

/// Makes the file. With some seeds, it has had other names.
fn make_file(volume: &Volume, seed: u64) -> File {
    volume.create_dir("/d").unwrap();
    volume.create_dir("/other").unwrap();
    let first = if seed % 3 == 0 { FILE } else { "/other/file" };
    volume.write(first, contents(0, BLOCKS as usize)).unwrap();
    match seed % 3 {
        0 => {}
        1 => volume.rename(first, FILE).unwrap(),
        // The inode stores the name that was added last.
        _ => {
            volume.hard_link(first, FILE).unwrap();
            volume.hard_link(FILE, "/other/link").unwrap();
            volume.remove_file("/other/link").unwrap();
            volume.remove_file(first).unwrap();
        }
    }
    volume.resolve(FILE.as_bytes(), vfs::Follow::No).unwrap().open_for(WRITE).unwrap()
}

/// Returns blocks of a version. Each sector has its number.
fn contents(version: usize, blocks: usize) -> Vec<u8> {
    let mut sector = format!("version {version:08} ").into_bytes();
    sector.resize(SECTOR, b'.');
    sector.repeat(blocks * BLOCK / SECTOR)
}

/// Returns the version in a sector.
fn version_of(sector: &[u8]) -> Result<usize, String> {
    let text = String::from_utf8_lossy(sector);
    let number = text.strip_prefix("version ").and_then(|rest| rest.get(..8)?.parse().ok());
    number.ok_or_else(|| format!("a sector of the file begins with {:?}", text.get(..20)))
}

/// Makes a file or a directory beside the file, and syncs it or not.
fn make_name(volume: &Volume, version: usize, random: &mut Random) -> (String, Option<Vec<u8>>) {
    let path = format!("/d/name{version}");
    if random.below(6) == 0 {
        volume.create_dir(&path).unwrap();
        return (path, None);
    }
    let contents = format!("journal of version {version}").into_bytes();
    let file = volume.create_new(&path).unwrap();
    file.write_all_at(&contents, 0).unwrap();
    match random.below(3) {
        0 => {}
        1 => file.sync_all().unwrap(),
        _ => volume.sync().unwrap(),
    }
    (path, Some(contents))
}

/// Removes a name, or gives it to another file.
fn remove(volume: &Volume, path: &str, is_directory: bool, random: &mut Random) {
    let other = path.replace("/d/", "/other/");
    if is_directory {
        return match random.below(2) {
            0 => volume.remove_dir(path).unwrap(),
            _ => volume.rename(path, &other).unwrap(),
        };
    }
    match random.below(7) {
        0 => volume.rename(path, &other).unwrap(),
        1 => volume.rename(path, format!("{path}.renamed")).unwrap(),
        2 => {
            volume.write(&other, b"another file").unwrap();
            volume.rename(&other, path).unwrap();
        }
        3 => {
            volume.write(&other, b"another file").unwrap();
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            volume.rename_at(path.as_bytes(), other.as_bytes(), flags, &Credentials::ROOT).unwrap();
        }
        4 => {
            volume.hard_link(path, &other).unwrap();
            volume.remove_file(path).unwrap();
        }
        _ => volume.remove_file(path).unwrap(),
    }
}

/// Writes a version to a part of the file, and makes it durable.
fn write_and_sync(file: &File, version: usize, random: &mut Random) {
    let first = random.below(BLOCKS);
    let count = 1 + random.below(BLOCKS - first) as usize;
    let (at, data) = (first * BLOCK as u64, contents(version, count));
    let place = WriteAt::Offset(FileOffset(at));
    let keep = Privileges::Keep;
    let with = |flags| assert_eq!(file.write_with(place, &data, keep, flags), Ok(data.len()));
    match random.below(8) {
        0 => {
            with(RwFlags::default());
            file.sync_all().unwrap();
        }
        1 => {
            with(RwFlags::default());
            file.sync_data().unwrap();
        }
        2 => with(RwFlags { sync: WriteSync::Data, ..RwFlags::default() }),
        3 => {
            with(RwFlags { dontcache: true, ..RwFlags::default() });
            file.sync_data().unwrap();
        }
        4 => {
            let written = file.write_direct(place, &data, keep, WriteSync::Data);
            assert_eq!(written, Ok(data.len()));
        }
        5 => {
            let size = BLOCKS * BLOCK as u64;
            let map = file.map(bytes(0..size), MapAccess::ReadWrite).unwrap();
            store(&map, at, &data);
            map.sync(0..size as usize, MapSync::Sync).unwrap();
        }
        _ => {
            file.atomic_start(AtomicWrite::Update).unwrap();
            with(RwFlags::default());
            file.atomic_commit().unwrap();
        }
    }
}

impl History for Removed {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        let versions = found.file(FILE)?.chunks(SECTOR).map(version_of);
        let version = versions.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0);
        let synced = self.removals.iter().filter(|removal| removal.synced <= point);
        let synced = synced.map(|removal| removal.version).max().unwrap_or(0);
        if version < synced {
            return Err(format!("the file has version {version}, but {synced} was synced"));
        }
        let removed = self.removals.iter().filter(|removal| removal.version <= version);
        for Removal { path, contents, version: before, .. } in removed {
            let has_name = match contents {
                Some(contents) => found.file(path).is_ok_and(|found| found == contents),
                None => found.tree.contains_key(path),
            };
            if has_name {
                return Err(format!(
                    "{path} was removed before version {before} was written, but it exists beside version {version}"
                ));
            }
        }
        Ok(())
    }
}
