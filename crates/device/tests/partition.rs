//! Tests of partition tables that `sfdisk` creates, and of damaged ones.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base::checksum::crc32_le;
use base::{Corrupt, DeviceOffset, Error, Problem, Unsupported};
use device::partition::{PartitionTable, SectorSize, TableKind};
use device::{BlockDevice, MemoryDevice, OpenDevice, Part, SharedDevice, open};
use proptest::prelude::*;
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;

/// Runs a program with this input and returns its output.
fn output(program: &str, arguments: &[&str], input: &str) -> String {
    use std::io::Write;
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn sfdisk(path: &str, script: &str) -> String {
    output("sfdisk", &["--quiet", "--wipe=never", "--no-tell-kernel", "--no-reread", path], script);
    output("sfdisk", &["--dump", path], "")
}

/// A partition as (number, first sector, sectors, name).
type Entry = (u32, u64, u64, String);

/// Returns the entries in an `sfdisk` dump, without extended partitions, which contain no data
/// themselves.
fn dumped(path: &str, dump: &str) -> Vec<Entry> {
    let value = |line: &str, key: &str| {
        let (_, after) = line.split_once(key)?;
        Some(after.split(',').next().unwrap_or(after).trim().trim_matches('"').to_owned())
    };
    let lines = dump.lines().filter(|line| line.starts_with(path) && !line.contains("type=5"));
    lines
        .map(|line| {
            let number = line[path.len()..].split(':').next().unwrap().trim();
            let number = number.trim_start_matches('p').parse().unwrap();
            let start = value(line, "start=").unwrap().parse().unwrap();
            let size = value(line, "size=").unwrap().parse().unwrap();
            (number, start, size, value(line, "name=").unwrap_or_default())
        })
        .collect()
}

fn entries(table: &PartitionTable) -> Vec<Entry> {
    let entries = table.partitions.iter();
    entries.map(|one| (one.number, one.first_sector, one.sectors, one.name.clone())).collect()
}

fn image(size: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(size).unwrap();
    file
}

/// A loop device with sectors of 4096 bytes, for programs that query the sector size.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Self {
        let path = image.to_str().unwrap();
        let arguments = ["--find", "--show", "--sector-size", "4096", path];
        Self(output("losetup", &arguments, "").trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        output("losetup", &["--detach", &self.0], "");
    }
}

/// Creates a table by `script` with each sector size, and compares the partitions that `sfdisk` and
/// this crate read.
fn check(script: &str, kind: TableKind, count: usize) {
    for size in SectorSize::ALL {
        let file = image(512 * MIB);
        let path = file.path().to_str().unwrap();
        let expected = match size {
            SectorSize::B512 => dumped(path, &sfdisk(path, script)),
            SectorSize::B4096 => {
                let disk = Loop::new(file.path());
                let expected = dumped(&disk.0, &sfdisk(&disk.0, script));
                // A disk reports its sector size.
                let last = expected.last().unwrap();
                let part = Part::Partition(last.0);
                let opened = open(Path::new(&disk.0), OpenDevice { part, ..Default::default() });
                assert_eq!(opened.unwrap().size(), last.2 * 4096);
                expected
            }
        };
        assert_eq!(expected.len(), count, "{expected:?}");
        for (number, start, _, _) in &expected {
            let mark = [*number as u8; 512];
            file.as_file().write_all_at(&mark, start * size.bytes()).unwrap();
        }
        let whole = open(file.path(), OpenDevice::default()).unwrap();
        let table = PartitionTable::read(&*whole, None).unwrap();
        assert_eq!((table.kind, table.sector_size), (kind, size));
        assert_eq!(entries(&table), expected);
        for (number, _, sectors, _) in expected {
            let part = Part::Partition(number);
            let opened = open(file.path(), OpenDevice { part, ..Default::default() }).unwrap();
            assert_eq!(opened.size(), sectors * size.bytes());
            let mut seen = [0; 512];
            opened.read_at(DeviceOffset(0), &mut seen).unwrap();
            assert_eq!(seen, [number as u8; 512]);
        }
    }
}

#[test]
fn gpt_partitions_agree_with_sfdisk() {
    let script = "label: gpt\nsize=10M, name=\"first one\"\nsize=20M, type=swap\n\
                  start=90000, size=1000, name=\"the third: 3\"\n";
    check(script, TableKind::Gpt, 3);
}

#[test]
fn all_entries_of_a_long_gpt_are_read() {
    let mut script = "label: gpt\ntable-length: 400\n".to_owned();
    for number in [7, 300, 400] {
        script.push_str(&format!("{number}: size=4M\n"));
    }
    check(&script, TableKind::Gpt, 3);
}

#[test]
fn logical_partitions_agree_with_sfdisk() {
    let script = "label: dos\nsize=10M\nsize=150M, type=5\nsize=5M, type=82\n\
                  size=10M\nsize=20M\nsize=30M\n";
    check(script, TableKind::Mbr, 5);
}

/// The contents of a disk, for the tables that tests create by hand.
struct Disk(Vec<u8>);

/// The position of the checksum in a GPT header.
const CHECKSUM: std::ops::Range<usize> = 16..20;

impl Disk {
    fn blank(sectors: usize) -> Self {
        Self(vec![0; sectors * 512])
    }

    /// Returns a disk of 2 MiB with a GPT by sfdisk that has two partitions.
    fn gpt() -> Self {
        let file = image(2 * MIB);
        sfdisk(
            file.path().to_str().unwrap(),
            "label: gpt\nfirst-lba: 34\nstart=40, size=100\nstart=200, size=30\n",
        );
        Self(std::fs::read(file.path()).unwrap())
    }

    /// Marks the sector as a boot record and fills one of its four entries.
    fn entry(&mut self, sector: usize, slot: usize, kind: u8, start: u32, sectors: u32) {
        let record = &mut self.0[sector * 512..][..512];
        record[510..].copy_from_slice(&[0x55, 0xAA]);
        let entry = &mut record[446 + 16 * slot..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
    }

    /// Writes `bytes` at `at` of the first header and updates its checksum.
    fn patch_header(&mut self, at: usize, bytes: &[u8]) {
        let header = &mut self.0[512..][..92];
        header[at..at + bytes.len()].copy_from_slice(bytes);
        header[CHECKSUM].fill(0);
        let checksum = !crc32_le(!0, header);
        header[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Writes `bytes` at `at` of the 128 entries of the first header, and updates the checksums.
    fn patch_entries(&mut self, at: usize, bytes: &[u8]) {
        let entries = &mut self.0[1024..][..128 * 128];
        entries[at..at + bytes.len()].copy_from_slice(bytes);
        let checksum = !crc32_le(!0, entries);
        self.patch_header(88, &checksum.to_le_bytes());
    }

    /// Zeroes the second header, so that errors of the first one are not hidden.
    fn without_backup(mut self) -> Self {
        let last = self.0.len() - 512;
        self.0[last..].fill(0);
        self
    }

    fn device(self) -> SharedDevice {
        Arc::new(MemoryDevice::new(self.0))
    }

    fn table(self) -> Result<PartitionTable, Error> {
        PartitionTable::read(&*self.device(), None)
    }

    fn problem(self) -> (&'static str, Option<u64>, Problem) {
        match self.table() {
            Err(Error::Corrupt(corrupt)) => {
                let Corrupt { structure, location, problem, .. } = *corrupt;
                (structure, location.byte, problem)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the location and the problem of a table's damage, because of which partitions may be
/// missing.
fn damage(table: &PartitionTable) -> (&'static str, Option<u64>, Problem) {
    match table.damage.clone() {
        Some(Error::Corrupt(corrupt)) => {
            let Corrupt { structure, location, problem, .. } = *corrupt;
            (structure, location.byte, problem)
        }
        other => panic!("{other:?}"),
    }
}

fn numbers(table: &PartitionTable) -> Vec<(u32, u64, u64)> {
    table.partitions.iter().map(|one| (one.number, one.first_sector, one.sectors)).collect()
}

#[test]
fn an_image_without_a_table_is_unsupported() {
    for sectors in [0, 1, 8, 100] {
        let error = Disk::blank(sectors).table();
        assert_eq!(error, Err(Error::Unsupported(Unsupported::PartitionTable)));
    }
    let mut boot_sector = Disk::blank(8);
    boot_sector.0[..512].fill(0xE8);
    boot_sector.0[510..512].copy_from_slice(&[0x55, 0xAA]);
    assert_eq!(boot_sector.table(), Err(Error::Unsupported(Unsupported::PartitionTable)));
}

#[test]
fn the_backup_is_used_if_the_first_header_or_its_entries_are_damaged() {
    let expected = numbers(&Disk::gpt().table().unwrap());
    assert_eq!(expected, [(1, 40, 100), (2, 200, 30)]);
    for damage in [512, 512 + 60, 1024 + 3] {
        let mut disk = Disk::gpt();
        disk.0[damage] ^= 1;
        let table = disk.table().unwrap();
        assert_eq!(numbers(&table), expected, "byte {damage}");
        assert!(table.damage.is_some(), "byte {damage}");
    }
    assert_eq!(Disk::gpt().table().unwrap().damage, None);
}

#[test]
fn damage_to_both_headers_is_reported_with_its_location() {
    let mut disk = Disk::gpt().without_backup();
    disk.0[512 + 60] ^= 1;
    let (structure, byte, problem) = disk.problem();
    assert_eq!((structure, byte), ("GPT header", Some(512)));
    assert!(matches!(problem, Problem::Checksum { .. }));

    let mut disk = Disk::gpt().without_backup();
    disk.0[512..1024].fill(0);
    assert!(matches!(disk.problem().2, Problem::Missing(_)));
}

#[test]
fn sizes_in_a_gpt_header_are_bounded() {
    for entry_bytes in [0u32, 1, 127, 129, 192] {
        let mut disk = Disk::gpt().without_backup();
        disk.patch_header(84, &entry_bytes.to_le_bytes());
        let problem = disk.problem().2;
        assert!(matches!(problem, Problem::Invalid { field: "entry size", .. }), "{problem:?}");
    }
    let mut disk = Disk::gpt().without_backup();
    disk.patch_header(80, &u32::MAX.to_le_bytes());
    assert!(matches!(disk.problem().2, Problem::Range { field: "size of all entries", .. }));
    for sector in [4096 - 31, 4096, u64::MAX / 512, u64::MAX] {
        let mut disk = Disk::gpt().without_backup();
        disk.patch_header(72, &sector.to_le_bytes());
        let problem = disk.problem().2;
        assert!(matches!(problem, Problem::Range { min: 2, .. }), "{problem:?}");
    }
    for header_bytes in [0u32, 91, 513, u32::MAX] {
        let mut disk = Disk::gpt().without_backup();
        disk.patch_header(12, &header_bytes.to_le_bytes());
        assert!(matches!(disk.problem().2, Problem::Range { field: "header size", .. }));
    }
}

#[test]
fn a_damaged_entry_of_a_gpt_does_not_hide_the_others() {
    let mut disk = Disk::gpt().without_backup();
    // The first entry begins after its end.
    disk.patch_entries(32, &5000_u64.to_le_bytes());
    let table = disk.table().unwrap();
    assert_eq!(numbers(&table), [(2, 200, 30)]);
    assert_eq!(damage(&table).0, "GPT entry");
}

#[test]
fn the_error_for_a_missing_partition_lists_the_existing_ones() {
    let device = Disk::gpt().device();
    let table = PartitionTable::read(&*device, None).unwrap();
    let error = table.open(device, 3).unwrap_err();
    assert_eq!(error.to_string(), "no partition 3: the GPT partition table has 1, 2");
}

#[test]
fn a_partition_past_the_end_of_the_image_is_listed_but_not_opened() {
    let mut disk = Disk::blank(100);
    disk.entry(0, 0, 0x83, 50, 51);
    disk.entry(0, 1, 0x83, 50, 50);
    disk.entry(0, 2, 0x83, u32::MAX, u32::MAX);
    let device = disk.device();
    let table = PartitionTable::read(&*device, None).unwrap();
    assert_eq!(table.partitions.len(), 3);
    assert_eq!(table.open(Arc::clone(&device), 2).unwrap().size(), 50 * 512);
    for number in [1, 3] {
        let error = table.open(Arc::clone(&device), number).unwrap_err();
        let Error::Corrupt(corrupt) = error else { panic!("{error:?}") };
        assert_eq!(corrupt.location.byte, Some(446 + 16 * u64::from(number - 1)));
    }
}

#[test]
fn logical_partitions_count_from_their_own_record() {
    let mut disk = Disk::blank(2000);
    disk.entry(0, 1, 0x0F, 100, 1800);
    disk.entry(100, 0, 0x83, 10, 20);
    disk.entry(100, 1, 0x05, 300, 1000);
    disk.entry(400, 0, 0x83, 5, 7);
    // The last two slots are used only if they are within the extended partition.
    disk.entry(400, 2, 0x83, 50, 8);
    disk.entry(400, 3, 0x83, 50, 8000);
    assert_eq!(numbers(&disk.table().unwrap()), [(5, 110, 20), (6, 405, 7), (7, 450, 8)]);
}

#[test]
fn a_chain_that_leads_back_into_itself_is_a_cycle() {
    let mut disk = Disk::blank(2000);
    disk.entry(0, 0, 0x05, 100, 1800);
    disk.entry(0, 1, 0x83, 1950, 20);
    disk.entry(100, 0, 0x83, 10, 20);
    disk.entry(100, 1, 0x05, 300, 1000);
    disk.entry(400, 1, 0x05, 0, 1000);
    let device = disk.device();
    let table = PartitionTable::read(&*device, None).unwrap();
    let (structure, byte, problem) = damage(&table);
    assert_eq!((structure, problem), ("extended boot record", Problem::Cycle));
    assert!(byte.is_some());
    // What comes before can be used, and what may come after is not said to be absent.
    assert_eq!(numbers(&table), [(2, 1950, 20), (5, 110, 20)]);
    assert_eq!(table.open(Arc::clone(&device), 5).unwrap().size(), 20 * 512);
    assert_eq!(table.open(device, 6).unwrap_err(), table.damage.clone().unwrap());
}

#[test]
fn a_chain_of_more_partitions_than_the_host_reads_is_no_cycle() {
    let mut disk = Disk::blank(1000);
    disk.entry(0, 0, 0x05, 100, 800);
    for link in 0..300 {
        disk.entry(100 + link, 0, 0x83, 500, 1);
        disk.entry(100 + link, 1, 0x05, link as u32 + 1, 100);
    }
    let table = disk.table().unwrap();
    assert!(matches!(damage(&table).2, Problem::Range { found: 257, max: 256, .. }));
    assert_eq!(table.partitions.len(), 256);
}

#[test]
fn a_chain_that_leads_outside_is_reported_with_its_location() {
    let mut disk = Disk::blank(2000);
    disk.entry(0, 0, 0x05, 100, 1800);
    disk.entry(100, 1, 0x05, u32::MAX, 1000);
    let (_, byte, problem) = damage(&disk.table().unwrap());
    assert_eq!(byte, Some(100 * 512 + 446 + 16));
    assert!(matches!(problem, Problem::Missing(_)));
}

static GPT: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| Disk::gpt().0);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn arbitrary_boot_records_open_only_partitions_within_the_image(
        entries in prop::collection::vec((0..4usize, prop_oneof![Just(0usize), 1..64usize],
            prop_oneof![Just(5u8), Just(0x0F), Just(0xEE), any::<u8>()],
            prop_oneof![0..70u32, any::<u32>()], prop_oneof![0..70u32, any::<u32>()]), 1..20),
    ) {
        let mut disk = Disk::blank(64);
        for (slot, sector, kind, start, sectors) in entries {
            disk.entry(sector, slot, kind, start, sectors);
        }
        open_all(disk.device());
    }

    #[test]
    fn damaged_gpts_open_only_partitions_within_the_image(
        patches in prop::collection::vec((20..92usize, any::<u8>()), 0..4),
        noise in prop::collection::vec((0..4096usize, any::<u8>()), 0..4),
        backup: bool,
    ) {
        let mut disk = Disk(GPT.clone());
        for (at, byte) in noise {
            disk.0[at] = byte;
        }
        for (at, byte) in patches {
            disk.patch_header(at, &[byte]);
        }
        open_all(if backup { disk } else { disk.without_backup() }.device());
    }
}

/// Opens all partitions, and checks that those that can be opened are within the image.
fn open_all(device: SharedDevice) {
    let Ok(table) = PartitionTable::read(&*device, None) else { return };
    assert!(table.partitions.len() <= 32_768);
    for partition in &table.partitions {
        if let Ok(opened) = table.open(Arc::clone(&device), partition.number) {
            let opened: &dyn BlockDevice = &opened;
            if let Some(last) = opened.size().checked_sub(1) {
                opened.read_at(DeviceOffset(last), &mut [0]).unwrap();
            }
        }
    }
}
