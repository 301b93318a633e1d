//! The same calls on a mount of bifolio and on a mount of the kernel's ext4.

use std::path::Path;

use rustix::io::Errno;
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts};

use super::Fixture;

/// Results of calls, one line each.
#[derive(Default)]
pub struct Notes(pub Vec<String>);

impl Notes {
    pub fn note<T: std::fmt::Debug>(
        &mut self,
        call: impl std::fmt::Display,
        result: Result<T, Errno>,
    ) {
        let result = match result {
            Ok(value) => format!("{value:?}"),
            Err(errno) => format!("fails: {}", std::io::Error::from(errno)),
        };
        self.0.push(format!("{call}: {result}"));
    }
}

/// Runs `calls` on a mount of bifolio and on a mount of the kernel. Their notes must be equal.
pub fn side_by_side(calls: impl Fn(&Path, &mut Notes)) {
    side_by_side_on(|_| (), calls);
}

/// Runs `calls` as [`side_by_side`] does, on images that `prepare` changes first.
pub fn side_by_side_on(prepare: impl Fn(&Path), calls: impl Fn(&Path, &mut Notes)) {
    side_by_side_with("rw,suid,dev,allow_other", prepare, calls);
}

/// Runs `calls` as [`side_by_side_on`] does, with other mount options for bifolio.
pub fn side_by_side_with(
    options: &str,
    prepare: impl Fn(&Path),
    calls: impl Fn(&Path, &mut Notes),
) {
    private_mounts();
    let fixture = Fixture::new();
    let image = Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) };
    image.make(&fixture.image, None);
    prepare(&fixture.image);
    let kernels_image = fixture.folder.path().join("kernels.img");
    image.make(&kernels_image, None);
    prepare(&kernels_image);
    let kernels = LoopMount::new(&kernels_image, "ext4", "rw");
    let mut expected = Notes::default();
    calls(kernels.path(), &mut expected);
    kernels.unmount();

    let mount = fixture.mount(&["-o", options]);
    let mut ours = Notes::default();
    calls(mount.path(), &mut ours);
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
    let differences: Vec<_> = ours.0.iter().zip(&expected.0).filter(|(a, b)| a != b).collect();
    assert!(differences.is_empty(), "{options}: ours, the kernel's: {differences:#?}");
    assert_eq!(ours.0.len(), expected.0.len());
}
