//! A first program: adds a file to an image, and reports what the image has, to a file of the host.
use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

use bifolio::{Volume, VolumeOptions, XattrMode};

/// Writes a message of the host into the image, with a comment and the host's permissions.
fn add(volume: &Volume, message: &Path) -> bifolio::Result<()> {
    // Errors of the host become errors of the library by `?`.
    let text = fs::read_to_string(message)?;
    volume.create_dir_all("/var/messages")?;
    let mut file = volume.create("/var/messages/latest")?;
    writeln!(file, "{}", text.trim_end())?;
    file.sync_all()?;
    volume.set_permissions("/var/messages/latest", fs::metadata(message)?.permissions())?;
    volume.set_xattr("/var/messages/latest", "user.comment", "added", XattrMode::default())?;
    Ok(())
}

/// Writes a line about each entry of a directory in the image.
fn report(
    volume: &Volume,
    directory: impl AsRef<Path>,
    out: &mut impl Write,
) -> std::io::Result<()> {
    for entry in volume.read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
        let kind = if entry.file_type()?.is_dir() { "directory" } else { "file" };
        let mode = metadata.permissions().mode() & 0o7777;
        let name = entry.file_name().to_string_lossy();
        writeln!(
            out,
            "{kind} {name}: {} bytes, {mode:o}, {} days old",
            metadata.len(),
            age.as_secs() / 86_400
        )?;
        for attribute in volume.list_xattrs(entry.path())? {
            let value = volume.get_xattr(entry.path(), &attribute)?;
            writeln!(out, "  {} = {}", attribute.display(), String::from_utf8_lossy(&value))?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [image, message, output] = &arguments[..] else {
        return Err("usage: first IMAGE MESSAGE OUTPUT".into());
    };
    let volume = VolumeOptions::new().writable(true).open(image)?;
    add(&volume, Path::new(message))?;
    let mut out = fs::File::create(output)?;
    report(&volume, "/var/messages", &mut out)?;
    let first = BufReader::new(volume.open("/var/messages/latest")?).lines().next();
    writeln!(io::stdout(), "{}", first.transpose()?.unwrap_or_default())?;
    volume.close()?;
    Ok(())
}
