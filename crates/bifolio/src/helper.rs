//! Mount helpers: `mount.bifolio` translates calls of mount(8) to `bifolio mount`, and
//! `umount.bifolio` those of umount(8) to `bifolio umount`. `mount.fuse` of libfuse calls bifolio
//! as a helper, too: `bifolio SOURCE DIRECTORY -o OPTIONS`. Not here: mounting.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use fuse::{OptionError, Remount, split_option};

use crate::cli::Cli;
use crate::commands::umount::umount;
use crate::console::Console;
use crate::console::failure::{Failure, Result, Status};
use crate::mount_options::Options;
use crate::mount_options::table::{self, Disposition, Formats, Found};

/// Names under which mount(8) finds this helper: for the type in fstab, and for the types in
/// /proc/mounts.
const NAMES: [&str; 3] = ["mount.bifolio", "mount.fuse.bifolio", "mount.fuseblk.bifolio"];

/// Names under which umount(8) finds this helper: for the types in /proc/mounts.
const UMOUNT_NAMES: [&str; 3] = ["umount.bifolio", "umount.fuse.bifolio", "umount.fuseblk.bifolio"];

/// Action that mount(8) requests.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Call {
    /// Mount with this command line.
    Mount(Vec<OsString>),
    /// Only check the options (`-f`).
    Pretend,
    /// Change the options of the mount on a directory.
    Remount(PathBuf, Remount),
}

/// Returns whether the program was called by the name of the helper.
pub fn is_called(program: &OsStr) -> bool {
    let name = Path::new(program).file_name();
    name.is_some_and(|name| NAMES.iter().chain(&UMOUNT_NAMES).any(|helper| name == *helper))
}

/// Returns whether the program was called as the helper of umount(8).
fn is_umount(program: &OsStr) -> bool {
    let name = Path::new(program).file_name();
    name.is_some_and(|name| UMOUNT_NAMES.iter().any(|helper| name == *helper))
}

/// Returns whether the program was called by `mount.fuse`, which mount(8) starts for FUSE types
/// that have no helper of their own.
pub fn is_called_by_fuse(arguments: &[OsString]) -> bool {
    let [source, _, option, _] = arguments else { return false };
    let is_command =
        || source == "help" || Cli::command().find_subcommand(source.as_os_str()).is_some();
    option == "-o" && !source.as_bytes().starts_with(b"-") && !is_command()
}

/// Runs the helper by which the program was called. Returns an exit status that mount(8) defines.
pub fn main(program: &OsStr, arguments: &[OsString]) -> ExitCode {
    let mut console = Console::standard(false);
    let outcome = match is_umount(program) {
        true => run_umount(arguments, &mut console),
        false => run(arguments, &mut console),
    };
    ExitCode::from(match console.finish(outcome) {
        Status::Success => 0,
        Status::Usage => 1,
        _ => 32,
    })
}

fn run(arguments: &[OsString], console: &mut Console) -> Result<()> {
    let refused = |reason: String| Failure::new("mount.bifolio", reason).usage();
    match parse(arguments).map_err(refused)? {
        Call::Pretend => Ok(()),
        Call::Remount(directory, remount) => fuse::remount(&directory, remount)
            .map_err(|error| Failure::new(&*directory, error.to_string())),
        Call::Mount(line) => {
            let cli = Cli::try_parse_from(line);
            let cli = cli.map_err(|error| refused(error.to_string().trim_end().to_owned()))?;
            cli.command.run(console)
        }
    }
}

/// Unmounts as `DIRECTORY [-flnrv] [-t TYPE]` says (umount(8)).
fn run_umount(arguments: &[OsString], console: &mut Console) -> Result<()> {
    let refused = |reason: &str| Failure::new("umount.bifolio", reason).usage();
    let mut directories = Vec::new();
    let mut is_lazy = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(flags) = argument.as_bytes().strip_prefix(b"-") else {
            directories.push(argument.clone());
            continue;
        };
        for (at, flag) in flags.iter().enumerate() {
            match flag {
                // Only the server can end the wait for its data, so nothing is forced.
                b'f' | b'n' | b'r' | b'v' => {}
                b't' => {
                    if flags[at + 1..].is_empty() {
                        rest.next();
                    }
                    break;
                }
                b'l' => is_lazy = true,
                _ => return Err(refused(&format!("unknown option -{}", char::from(*flag)))),
            }
        }
    }
    let [directory] = &*directories else {
        return Err(refused("expected DIRECTORY [-flnrv] [-t TYPE]"));
    };
    if is_lazy {
        return fuse::umount_lazily(directory.as_ref())
            .map_err(|error| Failure::new(Path::new(directory), error.to_string()));
    }
    umount(directory.as_ref(), console);
    Ok(())
}

/// Parses `SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`.
fn parse(arguments: &[OsString]) -> Result<Call, String> {
    let mut paths = Vec::new();
    let mut lists = Vec::new();
    let mut sloppy = false;
    let mut pretend = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(flags) = argument.as_bytes().strip_prefix(b"-").filter(|flags| !flags.is_empty())
        else {
            paths.push(argument);
            continue;
        };
        for (at, flag) in flags.iter().enumerate() {
            match flag {
                b's' => sloppy = true,
                b'f' => pretend = true,
                b'n' | b'v' => {}
                b'o' | b't' | b'N' => {
                    let attached = &flags[at + 1..];
                    let value = match attached {
                        [] => rest.next().map(|value| value.as_bytes()),
                        attached => Some(attached),
                    };
                    let value =
                        value.ok_or(format!("option -{} needs a value", char::from(*flag)))?;
                    match flag {
                        b'o' => lists.push(String::from_utf8_lossy(value).into_owned()),
                        b'N' => return Err(
                            "option -N is not supported: other mount namespaces cannot be entered"
                                .to_owned(),
                        ),
                        _ => {}
                    }
                    break;
                }
                _ => return Err(format!("unknown option -{}", char::from(*flag))),
            }
        }
    }
    let [source, directory] = paths[..] else {
        return Err("expected SOURCE DIRECTORY [-sfnv] [-o OPTIONS]".to_owned());
    };
    let list = lists.join(",");
    let call = translate(source, directory, &list, sloppy)?;
    Ok(if pretend { Call::Pretend } else { call })
}

fn translate(source: &OsStr, directory: &OsStr, list: &str, sloppy: bool) -> Result<Call, String> {
    let options: Vec<&str> = list.split(',').filter(|option| !option.is_empty()).collect();
    if options.contains(&"remount") {
        return Ok(Call::Remount(directory.into(), remount(&options)));
    }
    let mut mount_options = defaults(&options, rustix::process::geteuid().is_root());
    let mut line: Vec<OsString> = vec!["bifolio".into(), "mount".into()];
    for option in options {
        let (name, value) = split_option(option);
        let found = table::find(name, value);
        if let Ok(Found { disposition: Disposition::Flag(flag), .. }) = found {
            line.push(value.map_or(flag.into(), |value| format!("{flag}={value}").into()));
            continue;
        }
        // Those of Linux's formats are passed on, and compared with the volume's.
        let is_dropped = matches!(
            found,
            Ok(Found { disposition: Disposition::Accepted(_), formats: Formats::All })
        );
        match Options::default().add(option) {
            Err(OptionError::Unknown(_)) if sloppy => {}
            Err(error) => return Err(error.to_string()),
            Ok(()) if is_dropped => {}
            Ok(()) => mount_options.push(option),
        }
    }
    line.push("-o".into());
    line.push(mount_options.join(",").into());
    line.push("--".into());
    // A colon and a slash in the source are part of its name.
    line.push(whole_image(source));
    line.push(directory.into());
    Ok(Call::Mount(line))
}

/// Returns the defaults of file systems in the kernel: writable and, for root, with access for all
/// users, set-user-ID bits and device files. mount(8) passes `nosuid` and `nodev` on, also where
/// `user` and the like imply them, but not `suid` and `dev`.
fn defaults(options: &[&str], is_root: bool) -> Vec<&'static str> {
    let is_for_users =
        |option: &&str| matches!(split_option(option).0, "user" | "users" | "owner" | "group");
    match is_root {
        true if !options.iter().any(is_for_users) => vec!["rw", "allow_other", "suid", "dev"],
        true => vec!["rw", "allow_other"],
        false => vec!["rw"],
    }
}

/// Returns the argument of `bifolio mount` for the whole image with this name.
fn whole_image(source: &OsStr) -> OsString {
    OsString::from_vec([source.as_bytes(), b":/"].concat())
}

/// Returns the options to change. mount(8) does not pass `suid`, `dev` and `exec` on: it leaves out
/// their opposites of the options of the mount that it passes. It has passed those if the list has
/// one that only the kernel's mount table has.
fn remount(options: &[&str]) -> Remount {
    let mut remount = Remount::default();
    if options.iter().any(|option| split_option(option).0 == "user_id") {
        (remount.suid, remount.dev, remount.exec) = (Some(true), Some(true), Some(true));
    }
    for option in options {
        match *option {
            "bind" => remount.only_mount = true,
            "ro" => remount.writable = Some(false),
            "rw" => remount.writable = Some(true),
            "suid" => remount.suid = Some(true),
            "nosuid" => remount.suid = Some(false),
            "dev" => remount.dev = Some(true),
            "nodev" => remount.dev = Some(false),
            "exec" => remount.exec = Some(true),
            "noexec" => remount.exec = Some(false),
            // Ignored: mount(8) passes all options of fstab, or of the mount.
            _ => {}
        }
    }
    remount
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Result<Call, String> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&arguments)
    }

    fn line(arguments: &str) -> String {
        match call(arguments) {
            Ok(Call::Mount(line)) => {
                let line = line.join(OsStr::new(" ")).into_string().unwrap();
                line.replace(",allow_other", "").replace(",suid,dev", "")
            }
            other => panic!("{arguments}: {other:?}"),
        }
    }

    #[test]
    fn the_names_of_helpers_are_known() {
        assert!(is_called("/sbin/mount.bifolio".as_ref()));
        assert!(is_called("mount.fuseblk.bifolio".as_ref()));
        assert!(is_called("umount.fuse.bifolio".as_ref()));
        assert!(is_umount("/sbin/umount.fuseblk.bifolio".as_ref()));
        assert!(!is_umount("/sbin/mount.bifolio".as_ref()));
        assert!(!is_called("/usr/bin/bifolio".as_ref()));
    }

    #[test]
    fn calls_by_mount_fuse_are_told_from_commands() {
        let is_called = |line: &str| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            is_called_by_fuse(&arguments)
        };
        assert!(is_called("/i /d -o ro,dev,suid"));
        // The name of a mount (`fsname`) is no path.
        assert!(is_called("name /d -o rw,nosuid,nodev,remount,ro"));
        for line in ["mount /d -o ro", "help /d -o ro", "find /d -o ro", "--raw /d -o ro", "-"] {
            assert!(!is_called(line), "{line}");
        }
        for line in ["lss /i", "lss /i -l /d", "/i /d", "/i /d -o", "/i /d -o ro /e", ""] {
            assert!(!is_called(line), "{line}");
        }
    }

    #[test]
    fn calls_of_mount_become_command_lines() {
        assert_eq!(line("/i /d"), "bifolio mount -o rw -- /i:/ /d");
        assert_eq!(line("/i /d -o ro"), "bifolio mount -o rw,ro -- /i:/ /d");
        assert_eq!(
            line("/i /d -nv -t bifolio -o rw,nosuid,offset=1024,commit=7,log=/l,loop=/dev/loop7"),
            "bifolio mount --offset=1024 --log=/l -o rw,rw,nosuid,commit=7,loop=/dev/loop7 -- /i:/ /d"
        );
        // Options for mount(8) and systemd, and options that describe what bifolio always does.
        assert_eq!(
            line(
                "-o user,noauto,nofail,_netdev,x-systemd.automount,comment=a,\
                 loud,data=ordered,barrier=1,acl /i /d -s -o ro,noload,frobnicate"
            ),
            "bifolio mount -o rw,data=ordered,barrier=1,acl,ro,noload -- /i:/ /d"
        );
        // Options that override others.
        let list = "rw,sync,dirsync,lazytime,defaults,async,nodirsync,nolazytime";
        let passed = list.replace(",defaults", "");
        assert_eq!(
            line(&format!("/i /d -o {list}")),
            format!("bifolio mount -o rw,{passed} -- /i:/ /d")
        );
    }

    #[test]
    fn root_gets_set_user_id_bits_and_devices_unless_users_may_mount() {
        let root = |options: &[&str]| defaults(options, true).join(",");
        assert_eq!(root(&["noatime"]), "rw,allow_other,suid,dev");
        for option in ["user", "user=guest", "users", "owner", "group"] {
            assert_eq!(root(&[option]), "rw,allow_other", "{option}");
        }
        assert_eq!(defaults(&[], false), ["rw"]);
    }

    #[test]
    fn unsupported_options_are_refused_with_a_reason() {
        for (line, complaint) in [
            (
                "/i /d -o data=journal",
                "mount option `data=journal`: journaling of file data is not",
            ),
            ("/i /d -o rw,nobarrier", "mount option `nobarrier`: flushes of the device cache"),
            ("/i /d -o bsddf=1", "mount option `bsddf` must be `bsddf`"),
            ("/i /d -o threads=", "mount option `threads` must be `threads=VALUE`"),
            ("/i /d -o frobnicate", "unknown mount option `frobnicate`"),
            ("/i /d -N 7", "option -N is not supported: other mount namespaces"),
            ("/i /d -o", "option -o needs a value"),
            ("/i /d -x", "unknown option -x"),
            ("/i", "expected SOURCE DIRECTORY"),
        ] {
            let refused = call(line).unwrap_err();
            assert!(refused.starts_with(complaint), "{line}: {refused}");
        }
    }

    #[test]
    fn remounts_and_dry_runs_mount_nothing() {
        assert_eq!(call("/i /d -f -o rw"), Ok(Call::Pretend));
        let remount = Remount { writable: Some(false), suid: Some(false), ..Remount::default() };
        assert_eq!(call("/i /d -o rw,nosuid,remount,ro"), Ok(Call::Remount("/d".into(), remount)));
        // With the options of the mount, those that are left out are cleared.
        let remount = Remount { dev: Some(true), exec: Some(true), ..remount };
        assert_eq!(
            call("/i /d -o rw,nosuid,user_id=0,remount,ro"),
            Ok(Call::Remount("/d".into(), remount))
        );
        let remount = Remount { only_mount: true, writable: Some(false), ..Remount::default() };
        assert_eq!(call("/i /d -o remount,bind,ro"), Ok(Call::Remount("/d".into(), remount)));
    }
}
