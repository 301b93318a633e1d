//! Images that are not whole volumes: Android sparse images, which are read as they are; other
//! containers and contents, which are refused with the next step; and images that have lost their
//! end or their beginning.

use crate::support;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::{Image, bifolio, run_ok, run_with_status, shell};
use testkit::command::output;
use testkit::must;

const TREE: &str = "mkdir dir; echo hello > dir/file; ln -s file dir/link; seq 200000 > numbers; head -c 1M \
                    /dev/urandom > random; truncate -s 3M hole; yes | head -c 2M > pattern";

/// Returns what several commands print about an image, without its name.
fn printed(image: &Path) -> String {
    let name = image.display().to_string();
    let calls: [&[&str]; 8] = [
        &["info"],
        &["tree", "-a"],
        &["ls", "-l"],
        &["stat"],
        &["df"],
        &["check"],
        &["find"],
        &["tar"],
    ];
    let print = |arguments: &&[&str]| match arguments[0] {
        "tar" => shell(
            image.parent().expect("a folder"),
            &format!(
                "'{}' cp -a '{name}:/' out && (cd out && find . -type f | sort | xargs sha256sum); rm -r out",
                bifolio().get_program().to_string_lossy()
            ),
        ),
        _ => run_ok(&[arguments, &[name.as_str()][..]].concat()).replace(&name, "IMAGE"),
    };
    calls.iter().map(print).collect()
}

/// Calls a command that must fail with `status` and one line that begins with `expected`.
#[track_caller]
fn refused(arguments: &[&str], status: i32, expected: &str) {
    let result = run_with_status(arguments, status);
    let text = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(text.starts_with(&format!("bifolio: {expected}")), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_sparse_image_equals_the_raw_image_that_simg2img_makes_of_it() {
    for block_size in [1024, 4096] {
        let image = Image::from_script("ext4", block_size, TREE);
        let script = "img2simg image sparse; simg2img sparse raw; sha256sum sparse";
        let before = shell(image.folder.path(), script);
        let (sparse, raw) = (image.beside("sparse"), image.beside("raw"));
        assert_eq!(printed(&sparse), printed(&raw));
        assert_eq!(shell(image.folder.path(), "sha256sum sparse"), before);
        let manifest = testkit::Manifest::of_image;
        assert_eq!(manifest(&sparse), manifest(&raw));
        // All bytes, and not only those of files.
        let options = device::OpenDevice::default();
        let device = must(device::open(&sparse, options), "the sparse image");
        let mut bytes = vec![0; device.size() as usize];
        must(device.read_at(base::DeviceOffset(0), &mut bytes), "all bytes");
        assert!(bytes == must(fs::read(&raw), "the raw image"));
    }
}

#[test]
fn partitions_of_a_sparse_image_are_listed_and_opened() {
    let image = Image::from_script("ext4", 4096, TREE);
    let script = r#"
        truncate -s 100M disk
        printf 'label: gpt\nstart=2048, size=10M, name="boot"\nname="root"\n' | sfdisk -q disk
        start=$(sfdisk -d disk | sed -n 's/^disk2 : start= *\([0-9]*\),.*/\1/p')
        dd if=image of=disk bs=512 seek=$start conv=notrunc 2>/dev/null
        img2simg disk sparse
        echo $((start * 512))"#;
    let offset = shell(image.folder.path(), script);
    let sparse = image.beside("sparse").display().to_string();
    let disk = image.beside("disk").display().to_string();
    assert_eq!(run_ok(&["info", &sparse]).replace("sparse", "disk"), run_ok(&["info", &disk]));
    let file = format!("{sparse}:/dir/file");
    assert_eq!(run_ok(&["cat", "--partition", "2", &file]), "hello\n");
    assert_eq!(run_ok(&["cat", "--offset", offset.trim(), &file]), "hello\n");
}

#[test]
fn a_sparse_image_is_not_written() {
    let image = Image::from_script("ext4", 4096, TREE);
    let before = shell(image.folder.path(), "img2simg image sparse; mkdir mnt; sha256sum sparse");
    let name = image.beside("sparse").display().to_string();
    let mount = image.beside("mnt").display().to_string();
    let expected = format!(
        "{name}: the image is an Android sparse image, which can only be read; `simg2img IN OUT` converts it to a \
         raw image\n"
    );
    refused(&["mkdir", &format!("{name}:/new")], 1, &expected);
    refused(&["rm", &format!("{name}:/dir/file")], 1, &expected);
    refused(&["mount", "-o", "rw", &name, &mount], 1, &expected);
    assert_eq!(shell(image.folder.path(), "sha256sum sparse"), before);
}

#[test]
fn pieces_of_a_split_sparse_image_are_refused() {
    let image = Image::from_script("ext4", 4096, TREE);
    shell(image.folder.path(), "img2simg image sparse; simg2simg sparse piece 2000000; rm sparse");
    let name = image.beside("piece.1").display().to_string();
    let expected = format!(
        "{name}: the image is an Android sparse image without a beginning, as the parts of a split one are; `simg2img \
         IN1 IN2 ... OUT` converts it to a raw image\n"
    );
    refused(&["ls", &name], 1, &expected);
    refused(&["check", &name], 8, &expected);
    shell(image.folder.path(), "simg2img $(ls -v piece.*) OUT");
    assert_eq!(printed(&image.beside("OUT")), printed(&image.path));
}

#[test]
fn a_damaged_sparse_image_is_reported() {
    let image = Image::from_script("ext4", 4096, TREE);
    shell(image.folder.path(), "img2simg image sparse");
    let path = image.beside("sparse");
    let name = path.display().to_string();
    let file = must(fs::File::options().write(true).open(&path), "the sparse image");
    must(file.write_all_at(&[0xff], 16), "the number of blocks");
    let expected =
        format!("{name}: corrupt sparse image header at byte 0: blocks of all chunks is ");
    refused(&["ls", &name], 1, &expected);
}

#[test]
fn other_containers_are_refused_with_the_command_that_converts_them() {
    let image = Image::from_script("ext4", 4096, TREE);
    let qemu = "qemu-img convert -O raw IN OUT";
    let containers = [
        ("qemu-img convert -O qcow2 image IN", "in the format qcow2", qemu),
        ("qemu-img convert -O vmdk image IN", "in the format VMDK", qemu),
        ("qemu-img convert -O vdi image IN", "in the format VDI", qemu),
        ("qemu-img convert -O vpc image IN", "in the format VHD", qemu),
        ("qemu-img convert -O vhdx image IN", "in the format VHDX", qemu),
        ("zstd -q image -o IN", "compressed with zstd", "zstd -d IN -o OUT"),
        ("gzip -c image > IN", "compressed with gzip", "gzip -dc IN > OUT"),
        ("lz4 -q image IN", "compressed with lz4", "lz4 -d IN OUT"),
        ("xz -0 -c image > IN", "compressed with xz", "xz -dc IN > OUT"),
        ("bzip2 -c image > IN", "compressed with bzip2", "bzip2 -dc IN > OUT"),
    ];
    let reference = printed(&image.path);
    for (make, description, command) in containers {
        shell(image.folder.path(), &format!("rm -f IN OUT; {make}"));
        let name = image.beside("IN").display().to_string();
        let expected =
            format!("{name}: the image is {description}; `{command}` converts it to a raw image\n");
        refused(&["ls", &name], 1, &expected);
        refused(&["info", &name], 1, &expected);
        refused(&["check", &name], 8, &expected);
        refused(&["ls", "--partition", "1", &name], 1, &expected);
        refused(&["mkdir", &format!("{name}:/new")], 1, &expected);
        // The command is correct. A container may round the size of the image up.
        shell(image.folder.path(), &format!("{command} 2>/dev/null"));
        assert_eq!(printed(&image.beside("OUT")), reference, "{command}");
    }
    shell(image.folder.path(), "printf '' | gzip > IN");
    let name = image.beside("IN").display().to_string();
    refused(&["ls", &name], 1, &format!("{name}: the image is compressed with gzip; "));
}

#[test]
fn a_raw_image_that_begins_like_a_container_opens() {
    let image = Image::from_script("ext4", 4096, TREE);
    let name = image.path.display().to_string();
    let file = must(fs::File::options().write(true).open(&image.path), "the image");
    let beginnings: [&[u8]; 4] = [
        &[0x1f, 0x8b, 0x08],
        b"QFI\xfb",
        // The magic number of a sparse image, alone and with a valid header for one block without a
        // chunk.
        &[0x3a, 0xff, 0x26, 0xed],
        &[
            0x3a, 0xff, 0x26, 0xed, 1, 0, 0, 0, 28, 0, 12, 0, 0, 16, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0,
        ],
    ];
    for beginning in beginnings {
        must(file.write_all_at(beginning, 0), "the boot block");
        assert_eq!(run_ok(&["cat", &format!("{name}:/dir/file")]), "hello\n");
        run_ok(&["mkdir", &format!("{name}:/new")]);
        run_ok(&["rm", "-r", &format!("{name}:/new")]);
    }
    assert!(output(bifolio().args(["check", &name])).status.success());
}

/// Makes a 64 MiB file `IN` in `folder` with `bytes` at `offset`.
fn with_bytes(folder: &Path, offset: u64, bytes: &[u8]) {
    let file = must(fs::File::create(folder.join("IN")), "IN");
    must(file.set_len(64 << 20), "the size of IN");
    must(file.write_all_at(bytes, offset), "the bytes of IN");
}

/// Returns the boot sector of a FAT file system, with the mark of a boot record and no partitions.
fn fat() -> Vec<u8> {
    let mut sector = vec![0; 512];
    sector[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
    sector[3..11].copy_from_slice(b"mkfs.fat");
    sector[11..22].copy_from_slice(&[0, 2, 4, 4, 0, 2, 0, 2, 0, 0, 0xf8]);
    sector[22..26].copy_from_slice(&[0x80, 0, 32, 0]);
    sector[32..36].copy_from_slice(&0x2_0000_u32.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[test]
fn other_contents_are_named_with_the_next_step() {
    let image = Image::empty();
    let folder = image.folder.path();
    let name = image.beside("IN").display().to_string();
    let check = |what: &str, step: &str| {
        for command in ["ls", "info"] {
            let text = run_with_status(&[command, &name], 1).text();
            let expected = format!("{name}: contains {what}, which bifolio does not read; ");
            assert!(text.contains(&expected) && text.contains(step), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    };
    with_bytes(folder, 0, &fat());
    check("a FAT file system", "mcopy");
    with_bytes(folder, 0, b"LUKS\xba\xbe\x00\x02");
    check("a LUKS2 encrypted volume", "cryptsetup open");
    with_bytes(folder, 512, b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0LVM2 001");
    check("an LVM2 physical volume", "vgchange");
    shell(folder, "rm IN; truncate -s 400M IN; mkfs.xfs -q IN");
    check("an XFS file system", "mount");
    shell(folder, "rm IN; truncate -s 64M IN; mkswap IN >/dev/null 2>&1");
    check("swap space", "no files");
    shell(folder, "rm IN; echo x > x; tar -cf IN x");
    check("a tar archive", "bifolio tar");
    for (script, expected) in [
        ("rm IN; truncate -s 0 IN", "the image is empty (0 bytes)"),
        ("truncate -s 64M IN", "the image has only zeroes; `mke2fs"),
        ("rm IN; head -c 5M /dev/urandom > IN", "begins with random bytes"),
    ] {
        shell(folder, script);
        let text = run_with_status(&["ls", &name], 1).text();
        assert!(text.contains(expected) && !text.contains("--partition"), "{text}");
    }
}

/// Writes `bytes` at `at`, and truncates the file to `size`, or extends it.
fn write_at(path: &Path, size: u64, at: u64, bytes: &[u8]) {
    let file = must(fs::File::options().write(true).open(path), path.display());
    must(file.set_len(size), "the size");
    must(file.write_all_at(bytes, at), "the bytes");
}

/// Metadata of md 1.0, as far as they are looked at.
const MD_1_0: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0];

/// Metadata at the end of a device: a distance from its end, the bytes, and the name of what the
/// device is a member of.
fn memberships(end: u64) -> Vec<(u64, Vec<u8>, &'static str)> {
    let drbd = |magic: u32| [&[0; 60], &magic.to_be_bytes()[..]].concat();
    let old = (end & !0xffff) - 0x1_0000;
    let words = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
    vec![
        ((end - 8192) & !0xfff, MD_1_0.to_vec(), "a member of a Linux RAID (md 1.0)"),
        (old, words([0xa92b_4efc, 0, 90]), "a member of a Linux RAID (md 0.90)"),
        (
            old,
            words([0xa92b_4efc_u32.swap_bytes(), 0, 0x5a00_0000]),
            "a member of a Linux RAID (md 0.90)",
        ),
        ((end & !0xfff) - 4096, drbd(0x8374_026b), "a backing device of DRBD"),
        ((end & !0xfff) - 4096, drbd(0x8374_026c), "a backing device of DRBD"),
        ((end & !0xfff) - 4096, drbd(0x8374_026d), "a backing device of DRBD"),
        (
            end - 1024,
            b"Intel Raid ISM Cfg Sig. 1.0.00".to_vec(),
            "a member of an Intel Matrix RAID",
        ),
        (end - 512, vec![0xde, 0x11, 0xde, 0x11], "a member of a DDF RAID"),
    ]
}

/// A mirror with its superblock at the end has a file system at its beginning, which Linux mounts
/// only as a part of the mirror.
#[test]
fn a_member_of_a_raid_or_of_drbd_is_read_but_not_written() {
    for format in ["ext4", "f2fs"] {
        let image = match format {
            "ext4" => Image::from_script("ext4", 4096, "echo hello > file"),
            _ => Image::empty(),
        };
        if format == "f2fs" {
            shell(image.folder.path(), "truncate -s 64M image; mkfs.f2fs -q image");
            must(fs::write(image.beside("file"), "hello\n"), "a file");
            run_ok(&["put", &image.beside("file").display().to_string(), &image.at("/file")]);
        }
        let size = must(fs::metadata(&image.path), "the size").len();
        let end = size + (1 << 20);
        let host = image.beside("host").display().to_string();
        must(fs::write(&host, "new"), "a file");
        let path = image.path.display().to_string();
        for (at, bytes, name) in memberships(end) {
            write_at(&image.path, end, at, &bytes);
            assert_eq!(run_ok(&["cat", &image.at("/file")]), "hello\n");
            let text = run_with_status(&["put", &host, &image.at("/new")], 1).text();
            assert!(text.contains(name) && text.contains("wipefs -a -t"), "{text}");
            let info = run_ok(&["info", &path]);
            assert!(info.contains(&format!("\nDevice: {name}, ")), "{info}");
            assert_eq!(support::json(&["info", "--json", &path])[0]["device"], name);
            write_at(&image.path, end, at, &vec![0; bytes.len()]);
        }
        // The way out of the messages, by the program that they name.
        for (at, bytes, name) in
            memberships(end).into_iter().filter(|(.., name)| name.contains("DRBD"))
        {
            write_at(&image.path, end, at, &bytes);
            let text = run_with_status(&["put", &host, &image.at("/new")], 1).text();
            let way_out = text.split_once("wipefs").expect(name).1.split('`').next();
            let script = format!("wipefs{}", way_out.expect(name).replace("IMAGE", "image"));
            shell(image.folder.path(), &script);
            run_ok(&["put", &host, &image.at("/new")]);
            run_ok(&["rm", &image.at("/new")]);
            assert!(!run_ok(&["info", &path]).contains("Device:"));
        }
        // Metadata in the file system are left from an earlier use.
        for (at, bytes, _) in memberships(size).into_iter().filter(|_| format == "ext4") {
            let mut before = vec![0; bytes.len()];
            let file = must(fs::File::open(&image.path), "the image");
            must(file.read_exact_at(&mut before, at), "the bytes before");
            write_at(&image.path, size, at, &bytes);
            run_ok(&["put", &host, &image.at("/new")]);
            run_ok(&["rm", &image.at("/new")]);
            write_at(&image.path, size, at, &before);
        }
    }
}

/// The disk is the member, and not its partition.
#[test]
fn a_part_of_a_member_is_read_but_not_written() {
    let image = Image::empty();
    let disk = image.beside("disk").display().to_string();
    let host = image.beside("host").display().to_string();
    must(fs::write(&host, "new"), "a file");
    // The second one begins at no multiple of 64 KiB, nor of 4 KiB.
    let script = "truncate -s 34M disk; printf 'start=2048, size=30720\\nstart=32775, size=34000\\n' | sfdisk -q disk; \
        mke2fs -q -F -E offset=1048576 disk 15M; mke2fs -q -F -E offset=$((32775 * 512)) disk 16M";
    shell(image.folder.path(), script);
    let end = (34 << 20) + 512;
    for (at, bytes, name) in memberships(end) {
        write_at(&image.beside("disk"), end, at, &bytes);
        for part in
            [["--partition", "1"], ["--partition", "2"], ["--offset", "1M"], ["--offset", "32775s"]]
        {
            run_ok(&["ls", part[0], part[1], &disk]);
            let at = format!("{disk}:/new");
            let text = run_with_status(&["put", part[0], part[1], &host, &at], 1).text();
            assert!(text.contains(name), "{part:?}: {text}");
            let info = run_ok(&["info", part[0], part[1], &disk]);
            assert!(info.contains(name), "{part:?}: {info}");
        }
        let listed = run_ok(&["info", &disk]);
        assert_eq!(listed.matches(&format!("ext2 on {name}")).count(), 2, "{listed}");
        write_at(&image.beside("disk"), end, at, &vec![0; bytes.len()]);
    }
    run_ok(&["put", "--offset", "32775s", &host, &format!("{disk}:/new")]);
}

/// The hash tree behind a file system of Android has the contents before a change.
#[test]
fn changes_of_a_volume_with_a_footer_of_verified_boot_are_warned_of_once() {
    let image = Image::from_script("ext4", 4096, "echo hello > file");
    let path = image.path.display().to_string();
    let size = must(fs::metadata(&image.path), "the size").len();
    let warned = |arguments: &[&str]| {
        let done = run_with_status(arguments, 0);
        String::from_utf8_lossy(&done.stderr).matches("footer of Android Verified Boot").count()
    };
    let [a, b] = ["/a", "/b"].map(|name| image.at(name));
    write_at(&image.path, size + 8192, size + 8192 - 64, b"AVBf\0\0\0\x01");
    assert_eq!(warned(&["mkdir", &a, &b]), 1);
    assert_eq!(warned(&["ls", &path]), 0);
    assert_eq!(warned(&["check", &path]), 0);
    // The same bytes that are not at the end, or are data.
    write_at(&image.path, size + 8192 + 64, size + 8192, &[0; 64]);
    assert_eq!(warned(&["rm", "-r", &a]), 0);
    write_at(&image.path, size, size - 64, b"AVBf\0\0\0\x01");
    assert_eq!(warned(&["rm", "-r", &b]), 0);
}

#[test]
fn a_damaged_table_is_named_by_all_commands_and_before_changes() {
    let image = Image::empty();
    let disk = image.beside("disk").display().to_string();
    let host = image.beside("host").display().to_string();
    must(fs::write(&host, "new"), "a file");
    let script = "truncate -s 34M disk; printf 'label: gpt\\nstart=2048, size=30M\\n' | sfdisk -q disk; \
        mke2fs -q -F -E offset=1048576 disk 30M";
    shell(image.folder.path(), script);
    let at = |name: &str| format!("{disk}:/{name}");
    let warned = |arguments: &[&str]| {
        let done = run_with_status(arguments, 0);
        String::from_utf8_lossy(&done.stderr).matches("partition table is damaged").count()
    };
    let put = ["put", "--partition", "1", &host, &at("new")];
    assert_eq!(warned(&put), 0);
    // The first header.
    write_at(&image.beside("disk"), 34 << 20, 512 + 16, &[0xff; 4]);
    assert_eq!(warned(&put), 1);
    assert_eq!(warned(&["mkdir", "--partition", "1", &at("a"), &at("b")]), 1);
    assert_eq!(warned(&["ls", "--partition", "1", &disk]), 0);
    // And the other one, so that there are no partitions.
    write_at(&image.beside("disk"), 34 << 20, (34 << 20) - 512 + 16, &[0xff; 4]);
    let expected = format!("bifolio: {disk}: corrupt GPT header at byte 512: ");
    for (command, status) in [("info", 1), ("ls", 1), ("check", 8), ("mkdir", 1)] {
        let target = if command == "mkdir" { at("c") } else { disk.clone() };
        let text = run_with_status(&[command, &target], status).text();
        assert!(text.contains(expected.trim_start_matches("bifolio: ")), "{command}: {text}");
        assert!(text.contains("use --offset BYTES"), "{command}: {text}");
        assert!(!text.contains("no known file system"), "{command}: {text}");
    }
    run_ok(&["ls", "--offset", "1M", &disk]);
}

#[test]
fn a_file_system_that_has_lost_all_superblocks_is_looked_for_elsewhere() {
    let image = Image::empty();
    let path = image.path.display().to_string();
    let beginnings = ["if=/dev/zero bs=1M count=1", "if=/dev/zero bs=1K count=2 seek=1"];
    for beginning in beginnings {
        // One group has no copy of the superblock.
        let script = format!(
            "rm -f image; truncate -s 8M image; mke2fs -q -F -b 4096 image; printf x | dd of=image conv=notrunc \
             status=none; dd {beginning} of=image conv=notrunc status=none"
        );
        shell(image.folder.path(), &script);
        let texts = ["info", "ls", "check"].map(|command| {
            let status = if command == "check" { 8 } else { 1 };
            run_with_status(&[command, &path], status).text()
        });
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
        assert!(texts[0].contains("use --offset BYTES"), "{}", texts[0]);
        assert!(!texts[0].contains("--superblock"), "{}", texts[0]);
    }
}

#[test]
fn contents_of_partitions_are_named_and_partitions_are_proposed_once() {
    let image = Image::empty();
    let folder = image.folder.path();
    let disk = image.beside("disk").display().to_string();
    must(fs::write(folder.join("fat"), fat()), "fat");
    let script = "truncate -s 100M disk; printf 'label: dos\\nstart=2048, size=20M\\nsize=20M\\nsize=20M\\n' | \
        sfdisk -q disk; dd if=fat of=disk bs=512 seek=2048 conv=notrunc status=none";
    shell(folder, script);
    let text = run_ok(&["info", &disk]);
    assert!(text.contains("a FAT file system") && text.contains("zeroes"), "{text}");
    let text = run_with_status(&["ls", &disk], 1).text();
    assert!(text.contains("a partition table (MBR) with 1, 2, 3; choose a partition"), "{text}");
    for part in [["--partition", "1"], ["--offset", "0x100000"], ["--offset", "2048s"]] {
        let text = run_with_status(&["ls", part[0], part[1], &disk], 1).text();
        assert!(text.contains("contains a FAT file system"), "{text}");
        assert!(!text.contains("--partition"), "{text}");
    }
}

/// Returns the file with the highest place in the image, and the bytes of that place.
fn last_file(image: &str, names: &[String]) -> (String, std::ops::Range<u64>) {
    let ranges = names.iter().map(|name| {
        let found = support::json(&["fiemap", "--json", &format!("{image}:/{name}")]);
        let extents = found[0]["extents"].as_array().expect("extents").clone();
        let extent = extents.last().expect("an extent");
        let number = |key: &str| extent[key].as_u64().expect("a number");
        let start = number("physical");
        (name.clone(), start..start + number("length"))
    });
    ranges.max_by_key(|(_, range)| range.start).expect("a file")
}

/// Cuts the end of an image off, in the middle of the file with the highest place. What is left
/// must be read with `--incomplete`, and with that only.
fn check_cut(image: &Image, options: &[&str], start: u64) {
    let (folder, path) = (image.folder.path(), image.beside("cut").display().to_string());
    let names: Vec<String> = (0..8).map(|number| format!("f{number}")).collect();
    let whole = image.path.display().to_string();
    let (last, range) = last_file(&whole, &names);
    let cut = range.start + (range.end - range.start) / 2 / 4096 * 4096;
    shell(folder, &format!("truncate -s {} cut", start + cut));
    let run = |arguments: &[&str], status: i32| {
        let all = [&arguments[..1], options, &arguments[1..]].concat();
        run_with_status(&all, status)
    };
    let refused = run(&["ls", &path], 1).text();
    assert!(refused.contains("use --incomplete"), "{refused}");

    let listed = run(&["ls", "--incomplete", &path], 0).text();
    assert!(names.iter().all(|name| listed.contains(name)), "{listed}");
    assert!(listed.contains("the image is incomplete: it lacks the last "), "{listed}");
    let read = run(&["cat", "--incomplete", &format!("{path}:/{last}")], 1);
    let contents = must(fs::read(folder.join("source").join(&last)), "the file");
    let present = read.stdout.len();
    assert!(present > 0 && contents.starts_with(&read.stdout), "{present} bytes");
    let said = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(said.contains(&format!("/{last}: cannot read from byte {present} on: ")), "{said}");

    let copies = image.beside("copied").display().to_string();
    must(fs::create_dir(&copies), &copies);
    let copied = run(&["cp", "-a", "--incomplete", &format!("{path}:/."), &copies], 1);
    let said = String::from_utf8_lossy(&copied.stderr).into_owned();
    assert!(said.contains(&format!("/{last}: the copy lacks ")), "{said}");
    let same = names.iter().filter(|name| {
        let equal = fs::read(folder.join("source").join(name)).ok()
            == fs::read(folder.join("copied").join(name)).ok();
        **name != last && equal
    });
    assert_eq!(same.count(), names.len() - 1, "{said}");
    let partial = must(fs::read(folder.join("copied").join(&last)), "the copy");
    assert!(partial.len() == contents.len() && partial[..present] == contents[..present]);
    shell(folder, "rm -r copied");

    let before = shell(folder, "sha256sum cut");
    run(&["rm", "--incomplete", &format!("{path}:/f0")], 2);
    run(&["rm", &format!("{path}:/f0")], 1);
    run(&["mount", "-o", "rw", "--incomplete", &path, "source"], 2);
    let all = [&["check"], options, &["--incomplete", &path]].concat();
    let checked = output(bifolio().args(&all));
    assert!(checked.text().contains("corrupt volume: needs "), "{}", checked.text());
    assert!(matches!(checked.status.code(), Some(4 | 8)), "{}", checked.status);
    assert_eq!(shell(folder, "sha256sum cut"), before);
}

const FILES: &str = "for i in 0 1 2 3 4 5 6 7; do head -c 1M /dev/urandom > f$i; done";

#[test]
fn an_image_that_was_cut_off_is_read_as_far_as_it_goes() {
    let image = Image::from_script("ext4", 4096, FILES);
    shell(image.folder.path(), "cp image cut");
    check_cut(&image, &[], 0);

    let image = Image::empty();
    must(fs::create_dir(image.beside("source")), "source");
    shell(&image.beside("source"), FILES);
    shell(image.folder.path(), "truncate -s 100M image; mkfs.f2fs -q image");
    let (source, root) = (image.beside("source/.").display().to_string(), image.at("/"));
    run_ok(&["cp", "-a", &source, &root]);
    shell(image.folder.path(), "cp image cut");
    check_cut(&image, &[], 0);
}

/// Groups of 2^24 blocks of 64 KiB, by bigalloc.
#[test]
fn an_image_that_claims_more_bytes_than_any_file_has_is_refused() {
    let image = Image::from_script("ext4", 1024, "mkdir dir");
    let script = "mke2fs -q -F -t ext4 -O 64bit,bigalloc,^metadata_csum,^has_journal,^resize_inode \
                  -b 65536 -C 16M -N 16 huge 512M 2>/dev/null";
    shell(image.folder.path(), script);
    let path = image.beside("huge");
    let huge = must(fs::OpenOptions::new().read(true).write(true).open(&path), "huge");
    let mut superblock = [0; 1024];
    must(huge.read_exact_at(&mut superblock, 1024), "the superblock");
    let field = |at: usize| u32::from_le_bytes(superblock[at..at + 4].try_into().expect("4 bytes"));
    // s_blocks_per_group and s_inodes_per_group.
    let (blocks, inodes) = (u64::from(field(0x20)), field(0x28));
    let groups = (1_u64 << 63) / (blocks << 16) + 2;
    let (blocks, inodes) = (groups * blocks, groups as u32 * inodes);
    // s_inodes_count, s_blocks_count_lo and s_blocks_count_hi.
    for (at, value) in [(0, inodes), (4, blocks as u32), (0x150, (blocks >> 32) as u32)] {
        must(huge.write_all_at(&value.to_le_bytes(), 1024 + at), "a field");
    }
    let path = path.display().to_string();
    let expected = format!("{path}: not supported: a volume of 2^63 bytes or more");
    for command in ["ls", "info", "tree"] {
        refused(&[command, "--incomplete", &path], 1, &expected);
    }
}

#[test]
fn a_partition_that_is_larger_than_the_disk_is_read_as_far_as_it_goes() {
    let image = Image::from_script("ext4", 4096, FILES);
    let script = r#"
        truncate -s 100M cut
        printf 'label: gpt\nstart=2048, size=64M\n' | sfdisk -q cut
        dd if=image of=cut bs=1M seek=1 conv=notrunc status=none
        cp cut headless; dd if=/dev/zero of=headless bs=512 count=40 conv=notrunc status=none"#;
    shell(image.folder.path(), script);
    // The backup of the table is enough.
    let headless = image.beside("headless").display().to_string();
    assert!(run_ok(&["ls", "--partition", "1", &headless]).contains("f7"));
    check_cut(&image, &["--partition", "1"], 1 << 20);
    let info = run_with_status(&["info", &image.beside("cut").display().to_string()], 0).text();
    assert!(info.contains("partition entry"), "{info}");
}

/// Makes an image of files with their numbers, and zeroes the first MiB. Prints a number and its
/// inode, of a file that was not there.
const BEHEADED: &str = r#"
    rm -rf source image; mkdir source; truncate -s SIZE image
    for i in $(seq 300); do (yes $i || true) | head -c 30000 > source/$i; done
    [ BLOCK != 1024 ] || rm source/[3]*
    mke2fs -q -F -t ext4 -b BLOCK OPTIONS -d source image 2>/dev/null
    per_group=$(dumpe2fs -h image 2>/dev/null | sed -n 's/^Inodes per group: *//p')
    for i in $(cd source; ls); do
        inode=$(debugfs -R "stat /$i" image 2>/dev/null | sed -n 's/^Inode: \([0-9]*\).*/\1/p')
        block=$(debugfs -R "blocks /$i" image 2>/dev/null | awk '{ print $1 }')
        [ $inode -le $per_group ] || [ $((block * BLOCK)) -lt 2000000 ] || break
    done
    dd if=/dev/zero of=image bs=1M count=1 conv=notrunc status=none
    echo $i $inode"#;

#[test]
fn an_image_without_its_beginning_is_read_by_a_copy_of_the_superblock() {
    for (block, size, options) in [
        ("1024", "300M", "-O ^flex_bg -N 320"),
        ("1024", "300M", "-O ^flex_bg,meta_bg,^resize_inode -N 320"),
        ("1024", "300M", "-O ^flex_bg,sparse_super2 -N 320"),
        ("1024", "300M", "-O ^flex_bg,bigalloc,^resize_inode -C 4096 -N 320"),
        ("4096", "300M", "-O ^flex_bg -N 320"),
        ("65536", "9G", "-O ^flex_bg -N 768"),
    ] {
        let image = Image::empty();
        let script = BEHEADED.replace("SIZE", size).replace("BLOCK", block);
        let printed = shell(image.folder.path(), &script.replace("OPTIONS", options));
        let (name, inode) = printed.trim().split_once(' ').expect("a file and its inode");
        let refused = run_with_status(&["ls", &image.path.display().to_string()], 1).text();
        let advice = refused.split("use --superblock ").nth(1);
        let advice = advice.unwrap_or_else(|| panic!("{options}: {refused}"));
        let mut words = advice.split_whitespace();
        let (copy, size) = (words.next().expect("a block"), words.nth(1).expect("a size"));
        let target = image.at(&format!("<{inode}>"));
        let arguments = ["cat", "--superblock", copy, "--block-size", size, &target];
        let read = run_with_status(&arguments, 0).stdout;
        let source = must(fs::read(image.beside("source").join(name)), "the file");
        assert!(read == source, "{options}: file {name}, inode {inode}");
    }
}

#[test]
fn an_inode_number_names_a_file_in_commands_that_read() {
    let ext4 = Image::from_script("ext4", 4096, TREE);
    let f2fs = Image::empty();
    shell(f2fs.folder.path(), "truncate -s 64M image; mkfs.f2fs -q image");
    let (source, root) = (ext4.beside("source/.").display().to_string(), f2fs.at("/"));
    run_ok(&["cp", "-a", &source, &root]);
    for image in [ext4, f2fs] {
        let stat = support::json(&["stat", "--json", &image.at("/dir/file")]);
        let number = stat[0]["inode"].as_u64().expect("a number");
        let target = image.at(&format!("<{number}>"));
        assert_eq!(run_ok(&["cat", &target]), "hello\n");
        run_ok(&["stat", &target]);
        run_ok(&["fiemap", &target]);
        let copy = image.beside("copy").display().to_string();
        run_ok(&["cp", &target, &copy]);
        assert_eq!(must(fs::read_to_string(&copy), "the copy"), "hello\n");
        let name = image.path.display();
        let stat = support::json(&["stat", "--json", &image.at("/dir")]);
        let directory = format!("{name}:<{}>", stat[0]["inode"].as_u64().expect("a number"));
        assert!(run_ok(&["ls", &directory]).contains("file"));
        let found = run_ok(&["find", &directory, "-name", "file"]);
        assert_eq!(found, format!("{}/file\n", directory.rsplit(':').next().expect("a path")));
        let free = run_with_status(&["cat", &format!("{name}:<2000>")], 1).text();
        assert!(free.contains(":<2000>: inode 2000 is not in use"), "{free}");
        for outside in ["0", "4294967295", "99999999999999999999"] {
            let text = run_with_status(&["cat", &format!("{name}:<{outside}>")], 1).text();
            assert!(text.contains("inode") && !text.contains("bifolio check"), "{text}");
        }
        let refused = run_with_status(&["rm", &target], 2).text();
        assert!(refused.contains("only commands that read"), "{refused}");
        assert_eq!(run_ok(&["cat", &target]), "hello\n");
    }
}
