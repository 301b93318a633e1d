//! Lists all files in an image: modes, sizes and paths, and the targets of symbolic links.
use std::collections::HashSet;
use std::env;
use std::io::{self, Write};
use std::path::PathBuf;

use bifolio::VolumeOptions;

fn main() -> io::Result<()> {
    let image = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: tree IMAGE"))?;
    let volume = VolumeOptions::new().open(image)?;
    let mut out = io::stdout().lock();
    // An image may be of any depth, and a damaged one may have a directory in itself: each is
    // listed once.
    let mut directories = vec![PathBuf::from("/")];
    let mut listed = HashSet::from([volume.metadata("/")?.inode]);
    while let Some(directory) = directories.pop() {
        for entry in volume.read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            let attributes = entry.metadata()?;
            // Names are any bytes. `Debug` escapes control characters, which a terminal would obey.
            write!(out, "{:06o} {:>10} {path:?}", attributes.mode(), attributes.len())?;
            if attributes.is_symlink() {
                write!(out, " -> {:?}", volume.read_link(&path)?)?;
            }
            writeln!(out)?;
            if attributes.is_dir() && listed.insert(attributes.inode) {
                directories.push(path);
            }
        }
    }
    Ok(())
}
