//! Encrypted files of f2fs, written in every way, and on a full volume. The judges are a model, the
//! device, which must have no plaintext, and fsck.f2fs. Power cuts are in `crash`.

use std::sync::Arc;

use base::{Error, FileOffset};
use device::MemoryDevice;
use testkit::f2fs::{Kind, check_by_both, encrypt_root};
use testkit::{Random, encryption};
use vfs::{
    Credentials, File, MapAccess, MapSync, Privileges, RwFlags, Volume, VolumeOptions, WriteAt,
    WriteSync,
};

use crate::common::{WRITE, bytes, file, load, make, store};

const UNCACHED: RwFlags = RwFlags { dontcache: true, append: false, sync: WriteSync::None };
const BLOCK: usize = 4096;
/// The largest size of a file, in bytes.
const SIZE_MAX: usize = 1 << 20;
/// All data begins with it, in each unit of 64 bytes.
const MARK: &[u8; 16] = b"never on a disk!";

/// Returns a device with an empty volume whose root directory is encrypted.
fn device() -> Arc<MemoryDevice> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Kind::named("encrypt").make(&path, 64);
    let mut image = std::fs::read(&path).unwrap();
    encrypt_root(&mut image, encryption::policy("v2"));
    Arc::new(MemoryDevice::new(image))
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = 8 << 20;
    options.keys = Arc::new(encryption::master_keys());
    Volume::open_device(Arc::clone(device) as _, &options).unwrap()
}

/// Closes the volume. Panics if there is plaintext on the device, or fsck.f2fs finds an error.
fn close(device: &MemoryDevice, volume: Volume) {
    volume.close().unwrap();
    drop(volume);
    let image = device.snapshot();
    let plain = image.chunks(64).position(|part| part.starts_with(MARK));
    assert_eq!(plain, None, "data is not encrypted");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, image).unwrap();
    check_by_both(&path);
}

/// Returns data for the bytes from `at` on, which is a multiple of 64.
fn data(at: usize, length: usize, version: u64) -> Vec<u8> {
    let unit = |unit: usize| {
        let mut bytes = [0; 64];
        bytes[..16].copy_from_slice(MARK);
        bytes[16..24].copy_from_slice(&version.to_le_bytes());
        bytes[24..32].copy_from_slice(&(unit as u64).to_le_bytes());
        bytes
    };
    (at / 64..(at + length).div_ceil(64)).flat_map(unit).take(length).collect()
}

/// Writes a random range in a random way, also to the model.
fn write(file: &File, model: &mut Vec<u8>, version: u64, random: &mut Random) {
    let at = random.below((model.len().min(SIZE_MAX / 2) + 1) as u64) as usize / BLOCK * BLOCK;
    let blocks = 1 + random.below(40) as usize;
    let way = random.below(5);
    // A store cannot make a file larger.
    let length = if way == 0 { (blocks * BLOCK).min(model.len() - at) } else { blocks * BLOCK };
    let new = data(at, length, version);
    let place = WriteAt::Offset(FileOffset(at as u64));
    let keep = Privileges::Keep;
    match way {
        0 if length == 0 => return,
        0 => {
            let range = bytes(at as u64..(at + length) as u64);
            let map = file.map(range, MapAccess::ReadWrite).unwrap();
            store(&map, 0, &new);
            if random.below(2) == 0 {
                map.sync(0..length, MapSync::Sync).unwrap();
            }
        }
        1 => assert_eq!(file.write_direct(place, &new, keep, WriteSync::None), Ok(length)),
        2 => assert_eq!(file.write_with(place, &new, keep, UNCACHED), Ok(length)),
        _ => assert_eq!(file.write_with(place, &new, keep, RwFlags::default()), Ok(length)),
    }
    model.resize(model.len().max(at + length), 0);
    model[at..at + length].copy_from_slice(&new);
}

/// Reads the file in every way.
fn check(file: &File, model: &[u8]) {
    let start = FileOffset(0);
    let mut found = vec![0; model.len()];
    assert_eq!(file.read_direct(start, &mut found), Ok(model.len()));
    assert!(found == model, "read directly");
    for flags in [UNCACHED, RwFlags::default()] {
        found.fill(0);
        assert_eq!(file.read_with(start, &mut found, flags), Ok(model.len()));
        assert!(found == model, "{flags:?}");
    }
    let range = 0..model.len() as u64;
    let map = file.map(bytes(range.clone()), MapAccess::Read).unwrap();
    assert!(load(&map, &range) == model, "loaded");
}

#[test]
fn files_that_are_written_in_every_way_have_their_contents() {
    let device = device();
    let mut random = Random(7);
    let mut models = [Vec::new(), Vec::new(), Vec::new()];
    let names = ["a", "b", "c"];
    let volume = open(&device);
    names.iter().for_each(|name| drop(make(&volume, name)));
    close(&device, volume);
    for round in 0..6 {
        let volume = open(&device);
        for step in 0..40 {
            let index = random.below(3) as usize;
            let file = file(&volume, names[index]);
            write(&file, &mut models[index], round * 100 + step, &mut random);
            if random.below(4) == 0 {
                file.sync_all().unwrap();
            }
        }
        for (name, model) in names.iter().zip(&models) {
            check(&file(&volume, name), model);
        }
        close(&device, volume);
        let volume = open(&device);
        for (name, model) in names.iter().zip(&models) {
            check(&file(&volume, name), model);
        }
        close(&device, volume);
    }
}

#[test]
fn data_that_was_written_to_a_full_volume_is_kept() {
    let device = device();
    let volume = open(&device);
    let mut models = Vec::new();
    let mut failures = 0;
    'files: for number in 0.. {
        let name = format!("file {number}");
        let path = format!("/{name}");
        let node = volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT);
        let Ok(node) = node else { break };
        let file = node.open_for(WRITE).unwrap();
        models.push((name, Vec::new()));
        for step in 0..24 {
            let (_, model) = models.last_mut().unwrap();
            let (at, length) = (model.len(), 10 * BLOCK);
            let new = data(at, length, number);
            let written = if step % 2 == 0 {
                file.write_at(&new, at as u64)
            } else {
                let place = WriteAt::Offset(FileOffset(at as u64));
                file.write_direct(place, &new, Privileges::Keep, WriteSync::None)
            };
            match written {
                Ok(written) => model.extend_from_slice(&new[..written]),
                Err(Error::NoSpace | Error::NoInodes) => {
                    failures += 1;
                    if failures == 3 {
                        break 'files;
                    }
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(failures > 0);
    // Overwriting needs no more space than there is for cleaning.
    let (name, model) = &mut models[0];
    let new = data(0, model.len(), 999);
    file(&volume, name).write_all_at(&new, 0).unwrap();
    *model = new;
    volume.sync().unwrap();
    close(&device, volume);
    let volume = open(&device);
    for (name, model) in &models {
        let mut found = vec![0; model.len()];
        file(&volume, name).read_exact_at(&mut found, 0).unwrap();
        assert!(found == *model, "{name}");
    }
    close(&device, volume);
}
