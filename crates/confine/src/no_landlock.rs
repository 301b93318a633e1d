//! Why the host has no Landlock: the kernel, its command line, or a filter on system calls such as
//! a container's.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::system::uname;

use super::Proof;

/// The flag of `landlock_create_ruleset` that asks for the version.
const CREATE_RULESET_VERSION: u32 = 1;
/// The first version of Linux that has Landlock.
const FIRST_LINUX: (u32, u32) = (5, 13);

/// What to allow in the host's filter.
const CALLS: &str = "landlock_create_ruleset, landlock_add_rule and landlock_restrict_self";

/// Returns why the kernel enforces no Landlock, by the error of the call that asks for its version.
pub fn reason(proof: &Proof) -> String {
    let release = uname().release().to_string_lossy().into_owned();
    // With a list of modules, the kernel says whether Landlock is there. Without it (containers
    // often have none), a kernel that is new enough has it, unless it was built without; a filter
    // then decides.
    let has = match proof.security_modules() {
        Some(modules) => modules.trim().split(',').any(|name| name == "landlock"),
        None => version_of(&release) >= Some(FIRST_LINUX) && proof.was_filtered(),
    };
    explain(ask_for_version(), has)
}

/// Returns the reason why a call of Landlock was refused, although the kernel has Landlock.
pub fn reason_of_refusal(error: &str, has_no_new_privileges: bool) -> String {
    match has_no_new_privileges {
        true => format!("{error}: {}", filtered("an error")),
        false => format!("{error}: it needs the layer no-new-privs"),
    }
}

/// Asks for the version of Landlock. Returns the error.
fn ask_for_version() -> Option<Errno> {
    let call = libc::SYS_landlock_create_ruleset;
    // SAFETY: with this flag, the call takes no memory and only returns a number.
    let version =
        unsafe { libc::syscall(call, std::ptr::null::<u8>(), 0_usize, CREATE_RULESET_VERSION) };
    let failed = || Errno::from_io_error(&std::io::Error::last_os_error());
    if version < 0 { failed().or(Some(Errno::PERM)) } else { None }
}

fn explain(error: Option<Errno>, has_landlock: bool) -> String {
    match error {
        Some(Errno::OPNOTSUPP) => {
            "Landlock is switched off since the kernel was started: `landlock` is missing in `lsm=` (EOPNOTSUPP)".to_owned()
        }
        Some(Errno::NOSYS) if !has_landlock => {
            "the kernel has no Landlock (ENOSYS; it needs Linux 5.13 and `landlock` in `lsm=`)"
                .to_owned()
        }
        Some(Errno::NOSYS) => filtered("ENOSYS"),
        Some(Errno::PERM) => filtered("EPERM"),
        Some(errno) => filtered(&errno.to_string()),
        None => "the kernel enforces no Landlock".to_owned(),
    }
}

/// Returns the text for a host whose filter answers with `error`.
fn filtered(error: &str) -> String {
    format!(
        "the kernel has Landlock, but a filter on system calls, such as a container's, refuses its calls ({error}); \
         to keep the layer, allow {CALLS} there"
    )
}

/// Returns the first two numbers of a release of Linux.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_call_tells_who_refuses_it() {
        for (error, has_landlock, part) in [
            (Errno::OPNOTSUPP, true, "missing in `lsm=` (EOPNOTSUPP)"),
            (Errno::NOSYS, false, "the kernel has no Landlock (ENOSYS"),
            (Errno::NOSYS, true, "such as a container's, refuses its calls (ENOSYS)"),
            (Errno::PERM, true, "such as a container's, refuses its calls (EPERM)"),
            // A filter hides the list of modules, too.
            (Errno::PERM, false, "such as a container's, refuses its calls (EPERM)"),
        ] {
            let text = explain(Some(error), has_landlock);
            assert!(text.contains(part), "{error:?}, {has_landlock}: {text}");
        }
    }

    #[test]
    fn releases_of_linux_are_compared_by_their_numbers() {
        assert_eq!(version_of("6.12.0-rc3+"), Some((6, 12)));
        assert_eq!(version_of("5.13-generic"), Some((5, 13)));
        assert_eq!(version_of("linux"), None);
        assert!(version_of("5.9.1") < Some(FIRST_LINUX) && version_of("10.0") > Some(FIRST_LINUX));
    }
}
