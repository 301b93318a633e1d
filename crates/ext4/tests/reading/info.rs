//! Tests of the description of a volume, judged by dumpe2fs.

use crate::common::Image;

fn detail(image: &Image, name: &str) -> Option<String> {
    let info = image.open().info();
    info.details.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
}

/// Returns the rest of the line of `dumpe2fs -h` that begins with `label`.
fn by_dumpe2fs(image: &Image, label: &str) -> String {
    let text = image.dumpe2fs(&["-h"]);
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    line.unwrap_or_else(|| panic!("{label}: {text}")).trim().to_owned()
}

#[test]
fn details_equal_those_of_dumpe2fs() {
    for options in ["-t ext4 -L name", "-t ext3 -b 1024 -L label", "-t ext4 -O fast_commit -L x"] {
        let image = Image::filled(64, options, |_| {});
        let info = image.open().info();
        assert_eq!(
            String::from_utf8(info.label).unwrap(),
            by_dumpe2fs(&image, "Filesystem volume name:")
        );
        let uuid: String = info.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(uuid, by_dumpe2fs(&image, "Filesystem UUID:").replace('-', ""));
        assert_eq!(info.features.join(" "), by_dumpe2fs(&image, "Filesystem features:"));
        for (name, label) in [
            ("state", "Filesystem state:"),
            ("blocks", "Block count:"),
            ("blocks_reserved", "Reserved block count:"),
            ("blocks_per_group", "Blocks per group:"),
            ("directory_hash", "Default directory hash:"),
        ] {
            assert_eq!(detail(&image, name), Some(by_dumpe2fs(&image, label)), "{options} {name}");
        }
        let features = by_dumpe2fs(&image, "Journal features:").replace("(none)", "");
        assert_eq!(detail(&image, "journal_features"), Some(features), "{options}");
    }
}

#[test]
fn the_format_has_the_name_of_its_newest_feature() {
    for format in ["ext2", "ext3", "ext4"] {
        let image = Image::filled(16, &format!("-t {format}"), |_| {});
        assert_eq!(image.open().info().format, format);
    }
}

#[test]
fn a_volume_with_errors_opens_and_reports_them() {
    let image = Image::filled(16, "-t ext4", |_| {});
    image.debugfs_write(
        "set_super_value state 2\nset_super_value error_count 3\n\
         set_super_value first_error_time 20200913122640\n",
    );
    assert_eq!(detail(&image, "state").unwrap(), "not clean, with errors");
    assert_eq!(detail(&image, "errors_found").unwrap(), "3");
    assert_eq!(detail(&image, "first_error").unwrap(), "2020-09-13T12:26:40Z");
}

#[test]
fn refused_features_are_reported() {
    let image = Image::filled(16, "-t ext4 -O encrypt,verity,casefold", |_| {});
    for name in ["refused", "names_matched", "encoding"] {
        assert!(detail(&image, name).is_some(), "{name}");
    }
}
