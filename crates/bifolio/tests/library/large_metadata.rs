//! Files with little on the device and much to show: maps that repeat blocks, and extended
//! attributes. The memory of the commands that show them is bounded.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use crate::support::listed::memory;
use crate::support::{Image, bifolio, run_with_status, shell};
use bifolio::{Creation, Credentials, FileType, Privileges, VolumeOptions, XattrMode};
use testkit::Mke2fs;

const BLOCK: u64 = 4096;
/// The number of block numbers in a block of a map.
const POINTERS: usize = 1024;
/// The memory that a command may take, in bytes.
const MEMORY_MAX: u64 = 48 << 20;
/// The number of attributes.
const NAMES: usize = 1200;
/// The number of extents, or bytes of values, after which the memory of a command is read.
const EXTENTS_SHOWN: usize = 2_000_000;

/// An image of a file "f" whose block map has a billion extents in three blocks: each of them has
/// the same number in all places, and the last one has two numbers in turns.
fn repeating_map() -> Image {
    let image = Image::empty();
    let recipe = Mke2fs::new("ext3", BLOCK as u32).with("-N 64 -O ^has_journal,^resize_inode");
    Mke2fs { size: 4 << 20, ..recipe }.make(&image.path, None);
    let debugfs = |commands: &str| {
        let script = format!("printf '%b' '{commands}' | debugfs -w -f /dev/stdin image 2>&1");
        shell(image.folder.path(), &script)
    };
    // A file of five blocks, the numbers of which are not zero.
    shell(image.folder.path(), "head -c 20480 /dev/urandom > file");
    debugfs("write file f\\nquit\\n");
    let blocks = shell(image.folder.path(), "debugfs -R 'blocks /f' image 2>/dev/null");
    let blocks: Vec<u32> = blocks.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let device = File::options().write(true).open(&image.path).unwrap();
    let fill = |block: u32, numbers: [u32; 2]| {
        let bytes: Vec<u8> =
            numbers.iter().cycle().take(POINTERS).flat_map(|n| n.to_le_bytes()).collect();
        device.write_all_at(&bytes, u64::from(block) * BLOCK).unwrap();
    };
    let [top, middle, bottom, data, other] = blocks[..] else { panic!("{blocks:?}") };
    fill(top, [middle; 2]);
    fill(middle, [bottom; 2]);
    fill(bottom, [data, other + 1]);
    debugfs(&format!("sif /f block[TIND] {top}\\nsif /f size 0x40000000000\\nquit\\n"));
    image
}

/// An image of a file "f" with [`NAMES`] extended attributes, all of which have the value that is
/// returned, of 64 KiB.
fn many_values() -> (Image, Vec<u8>) {
    let image = Image::empty();
    let recipe = Mke2fs::new("ext4", 65536).with("-N 2048 -O ea_inode,^has_journal");
    Mke2fs { size: 128 << 20, ..recipe }.make(&image.path, None);
    let volume = VolumeOptions::new().writable(true).open(&image.path).unwrap();
    let creation = Creation::of(FileType::Regular, 0o644);
    let root = volume.root().unwrap();
    let file = volume.create_in(&root, b"f", &creation, &Credentials::ROOT).unwrap();
    let value = vec![0xff; 65_536];
    for number in 0..NAMES {
        let name = format!("user.{number:04}");
        file.set_xattr(name.as_bytes(), &value, XattrMode::Either, Privileges::Keep).unwrap();
    }
    volume.close().unwrap();
    (image, value)
}

#[test]
fn values_of_attributes_are_printed_one_by_one_and_json_has_a_limit() {
    // Together, they have 75 MiB.
    let (image, value) = many_values();
    let shown = (64 << 20) / value.len();
    for (arguments, hex_digits) in
        [(&["stat"][..], NAMES * 131_072), (&["stat", "--json"], shown * 131_072)]
    {
        let memory = memory_after(&image.at("/f"), arguments, hex_digits);
        println!("{arguments:?}: {} MiB", memory >> 20);
        assert!(memory < MEMORY_MAX, "{arguments:?}: {memory}");
    }
    let result = run_with_status(&["stat", "--json", &image.at("/f")], 1);
    let parsed: serde_json::Value = serde_json::from_slice(&result.stdout).unwrap();
    assert_eq!(parsed[0]["xattrs"].as_array().unwrap().len(), shown);
    assert_eq!(parsed[0]["xattrs_left_out"], NAMES - shown);
    let errors = String::from_utf8_lossy(&result.stderr);
    assert!(errors.contains("176 extended attributes were left out"), "{errors}");
}

/// Runs a command, and ends it when it has printed `bytes` bytes. Returns its maximum memory in
/// use, in bytes.
fn memory_after(target: &str, arguments: &[&str], bytes: usize) -> u64 {
    let mut command = bifolio();
    command.args(arguments).args(["--cache-size", "8M"]).arg(target);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut printed = 0;
    while printed < bytes {
        let read = output.read(&mut buffer).unwrap();
        assert!(read > 0, "{arguments:?} has ended after {printed} bytes");
        printed += read;
    }
    let memory = memory(child.id()).unwrap();
    // The pipe is closed, which ends the command.
    drop(output);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(141), "{arguments:?}");
    memory
}

#[test]
fn extents_of_a_map_that_repeats_blocks_are_printed_as_they_come() {
    let image = repeating_map();
    // A line has about 80 bytes.
    for arguments in [&["fiemap"][..], &["fiemap", "--json"]] {
        let memory = memory_after(&image.at("/f"), arguments, EXTENTS_SHOWN * 60);
        println!("{arguments:?}: {} MiB", memory >> 20);
        assert!(memory < MEMORY_MAX, "{arguments:?}: {memory}");
    }
}
