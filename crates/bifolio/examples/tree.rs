//! Lists everything in an image: modes, sizes and paths, and the targets of symbolic links.
use std::env;
use std::io::{self, Write};
use std::path::Path;

use bifolio::{Volume, VolumeOptions};

fn main() -> io::Result<()> {
    let image = env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: tree IMAGE"))?;
    let volume = VolumeOptions::new().open(image)?;
    list(&volume, Path::new("/"), &mut io::stdout().lock())
}

fn list(volume: &Volume, directory: &Path, out: &mut impl Write) -> io::Result<()> {
    for entry in volume.read_dir(directory)? {
        let entry = entry?;
        let (path, attributes) = (entry.path(), entry.metadata()?);
        write!(out, "{:06o} {:>10} {}", attributes.mode(), attributes.size, path.display())?;
        if attributes.is_symlink() {
            write!(out, " -> {}", volume.read_link(&path)?.display())?;
        }
        writeln!(out)?;
        if attributes.is_dir() {
            list(volume, &path, out)?;
        }
    }
    Ok(())
}
