//! `bifolio mknod`.

use base::Error;
use base::attributes::{AttributeChange, DeviceNumber, FileType};
use clap::{Args, ValueEnum};
use vfs::{Creation, Volume};

use crate::cli::mode_change::{ModeChange, Subject};
use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::{ImageOptions, Target};
use crate::images::writing::{Ownership, change_targets};

/// Permissions of new files, before the umask.
const PERMISSIONS: u16 = 0o666;
/// The largest numbers that inodes have.
const MAJOR_MAX: u32 = (1 << 12) - 1;
const MINOR_MAX: u32 = (1 << 20) - 1;

/// The arguments of `bifolio mknod`.
#[derive(Args)]
pub struct Arguments {
    /// Set the mode of the file, as in chmod; ignores the umask
    #[arg(short, long, allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    #[command(flatten)]
    ownership: Ownership,
    /// File to create
    #[arg(value_name = "IMAGE:/PATH", value_parser = Target::parser())]
    target: Target,
    /// Type of the file
    #[arg(value_name = "TYPE")]
    kind: Kind,
    /// Number of the device's driver: decimal, 0x and hexadecimal, or 0 and octal
    #[arg(value_name = "MAJOR", value_parser = parse_number)]
    major: Option<u32>,
    /// Number of the device
    #[arg(value_name = "MINOR", value_parser = parse_number)]
    minor: Option<u32>,
    #[command(flatten)]
    image: ImageOptions,
}

/// Type of a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    /// Block device
    #[value(name = "b")]
    Block,
    /// Character device
    #[value(name = "c", alias = "u")]
    Character,
    /// Named pipe
    #[value(name = "p")]
    Pipe,
    /// Socket
    #[value(name = "s")]
    Socket,
}

impl From<Kind> for FileType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Block => Self::BlockDevice,
            Kind::Character => Self::CharacterDevice,
            Kind::Pipe => Self::Fifo,
            Kind::Socket => Self::Socket,
        }
    }
}

fn parse_number(text: &str) -> Result<u32, String> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    let number = u32::from_str_radix(digits, radix).ok().filter(|_| is_number);
    number.ok_or_else(|| "expected a number".to_owned())
}

/// Creates the file.
pub fn run(arguments: Arguments, console: &mut Console) -> Result<()> {
    let device = device(&arguments)?;
    let targets = std::slice::from_ref(&arguments.target);
    change_targets(&arguments.image, targets, console, |target, writing, _| {
        let volume = writing.get(target)?;
        create(&arguments, device, &volume, writing.umask)
    })
}

fn device(arguments: &Arguments) -> Result<DeviceNumber> {
    let usage = |text: &str| Err(Failure::new(&arguments.target, text).usage());
    match (arguments.kind, arguments.major, arguments.minor) {
        (Kind::Pipe | Kind::Socket, None, None) => Ok(DeviceNumber::default()),
        (Kind::Pipe | Kind::Socket, ..) => usage("only devices have numbers"),
        (_, Some(major), Some(minor)) if major > MAJOR_MAX || minor > MINOR_MAX => {
            usage("the numbers of devices are 4095 and 1048575 at most")
        }
        (_, Some(major), Some(minor)) => Ok(DeviceNumber { major, minor }),
        _ => usage("a device needs MAJOR and MINOR"),
    }
}

fn create(arguments: &Arguments, device: DeviceNumber, volume: &Volume, umask: u16) -> Result<()> {
    let target = &arguments.target;
    let by = arguments.ownership.credentials(volume)?;
    let (directory, name) = target.parent_and_name(volume)?;
    let failure = |error: Error| Failure::action(target, "cannot create", &error);
    let mode = arguments
        .mode
        .as_ref()
        .map(|mode| mode.apply(Subject { permissions: PERMISSIONS, is_directory: false, umask }));
    // Other users cannot open the file before it has its final mode.
    let creation = match mode {
        Some(_) => Creation::of(arguments.kind.into(), 0o600),
        None => Creation { umask, ..Creation::of(arguments.kind.into(), PERMISSIONS) },
    };
    let creation = Creation { device, ..creation };
    let node = volume.create_in(&directory, &name, &creation, &by).map_err(failure)?;
    if mode.is_some() {
        let change = AttributeChange { permissions: mode, ..AttributeChange::default() };
        node.set_attributes(&change, &by).map_err(failure)?;
    }
    Ok(())
}
