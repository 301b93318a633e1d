//! Images in containers: Android sparse images, which are read as they are, and others, which are refused with the
//! command that converts them.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{Image, bifolio, run_ok, run_with_status, shell};
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
        // The magic number of a sparse image, alone and with a valid header for one block without a chunk.
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
