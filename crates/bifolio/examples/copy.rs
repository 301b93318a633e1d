//! Copies a file of the host into an image, or one out of it, with `std::io::copy`. Overwrites
//! nothing.
use std::env;
use std::fs::File;
use std::io;

use bifolio::VolumeOptions;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["in", host_path, image, path] => copy_in(host_path, image, path),
        ["out", image, path, host_path] => copy_out(image, path, host_path),
        _ => Err(io::Error::other("usage: copy in FILE IMAGE PATH, or copy out IMAGE PATH FILE")),
    }
}

fn copy_in(host_path: &str, image: &str, path: &str) -> io::Result<()> {
    let mut source = File::open(host_path)?;
    let volume = VolumeOptions::new().writable(true).open(image)?;
    let target = volume.create_new(path).map_err(io::Error::from);
    let copied = target.and_then(|mut target| io::copy(&mut source, &mut target));
    // Also after an error, so that the image is left clean. If this succeeds, the copy is durable.
    volume.close()?;
    copied.map(drop)
}

fn copy_out(image: &str, path: &str, host_path: &str) -> io::Result<()> {
    let volume = VolumeOptions::new().open(image)?;
    let mut source = volume.open(path)?;
    io::copy(&mut source, &mut File::create_new(host_path)?).map(drop)
}
