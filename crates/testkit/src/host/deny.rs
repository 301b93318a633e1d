//! Programs to which the host refuses system calls, as a container does.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A system call that is refused, and the error.
#[derive(Clone, Copy, Debug)]
pub struct Denied {
    /// The system call's number.
    pub call: libc::c_long,
    /// The only value of the first argument with which it is refused. `None` for all.
    pub first_argument: Option<u32>,
    /// The error. With 0, the call does nothing, and says that it has succeeded.
    pub errno: i32,
}

/// Lets the kernel refuse system calls to a program, and to those that it starts. The program keeps
/// its other privileges, so the caller must be root.
pub fn deny(command: &mut Command, denied: &[Denied]) {
    let filter = filter(denied);
    let install = move || {
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the kernel reads the program, which lives until the end of the call.
        let result = unsafe {
            let mode = libc::SECCOMP_SET_MODE_FILTER;
            libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec, this only makes a system call. The filter was allocated
    // before.
    unsafe { command.pre_exec(install) };
}

/// Makes a program, which root runs, a member of a further group.
pub fn add_group(command: &mut Command) {
    let join = || {
        let groups = [1];
        // SAFETY: the kernel reads one number.
        let result = unsafe { libc::setgroups(groups.len(), groups.as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec, this only makes a system call.
    unsafe { command.pre_exec(join) };
}

/// Makes root run a program as `user`, without further groups. To be called after [`deny`], for
/// which this user has no right. Unlike setpriv, makes no other system calls, which may be denied.
pub fn become_user(command: &mut Command, user: u32) {
    let change = move || {
        // SAFETY: the calls take numbers, and no list of groups.
        let results = unsafe {
            [
                libc::setgroups(0, std::ptr::null()),
                libc::setresgid(user, user, user),
                libc::setresuid(user, user, user),
            ]
        };
        if results == [0; 3] { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec, this only makes system calls.
    unsafe { command.pre_exec(change) };
}

/// Returns a filter for the kernel: a program that gets the number and the arguments of each call.
fn filter(denied: &[Denied]) -> Vec<libc::sock_filter> {
    /// The positions in the kernel's description of a call: of the number, and of the first
    /// argument's lower half.
    const NUMBER: u32 = 0;
    const FIRST_ARGUMENT: u32 = 16;
    let load = |at| libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: at,
    };
    let skip_unless = |value, count| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: count,
        k: value,
    };
    let end = |value| libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: value,
    };
    let mut filter = Vec::new();
    for Denied { call, first_argument, errno } in denied {
        let refuse = end(libc::SECCOMP_RET_ERRNO | *errno as u32);
        filter.push(load(NUMBER));
        match first_argument {
            None => filter.extend([skip_unless(*call as u32, 1), refuse]),
            Some(value) => filter.extend([
                skip_unless(*call as u32, 3),
                load(FIRST_ARGUMENT),
                skip_unless(*value, 1),
                refuse,
            ]),
        }
    }
    filter.push(end(libc::SECCOMP_RET_ALLOW));
    filter
}

/// The layers of the confinement that a host may refuse: the name of each on the command line, and
/// perhaps the reason.
pub const LAYERS_REFUSED: [&str; 7] = [
    "no-new-privs",
    "user",
    "capabilities",
    "landlock",
    "landlock of an old kernel",
    "limits",
    "seccomp",
];

/// Returns a refusal of all calls of a system call.
fn refused(call: libc::c_long, errno: i32) -> Denied {
    Denied { call, first_argument: None, errno }
}

/// Returns what a host refuses so that a layer of the confinement is missing, by a case of
/// [`LAYERS_REFUSED`].
pub fn refusals_of_layer(layer: &str) -> Vec<Denied> {
    let no_new_privs = Some(libc::PR_SET_NO_NEW_PRIVS as u32);
    let prctl = Denied { call: libc::SYS_prctl, first_argument: no_new_privs, errno: libc::EPERM };
    match layer {
        "no-new-privs" => vec![prctl],
        "user" => vec![refused(libc::SYS_setresuid, libc::EPERM)],
        "capabilities" => vec![refused(libc::SYS_capset, libc::EPERM)],
        "landlock" => vec![refused(libc::SYS_landlock_restrict_self, libc::EPERM)],
        "landlock of an old kernel" => {
            vec![refused(libc::SYS_landlock_create_ruleset, libc::ENOSYS)]
        }
        "limits" => {
            let calls = [libc::SYS_setrlimit, libc::SYS_prlimit64];
            calls.map(|call| refused(call, libc::EPERM)).into()
        }
        "seccomp" => vec![
            refused(libc::SYS_seccomp, libc::EPERM),
            Denied {
                call: libc::SYS_prctl,
                first_argument: Some(libc::PR_SET_SECCOMP as u32),
                errno: libc::EPERM,
            },
        ],
        _ => panic!("{layer}"),
    }
}

/// Returns what a host does not do, although it says so, for each layer of the confinement: its
/// name on the command line, and the system calls without effect.
pub fn fakes_of_layers() -> Vec<(&'static str, Vec<Denied>)> {
    let prctl = |option: i32| {
        let first_argument = Some(option as u32);
        Denied { call: libc::SYS_prctl, first_argument, errno: 0 }
    };
    vec![
        ("no-new-privs", vec![prctl(libc::PR_SET_NO_NEW_PRIVS)]),
        ("no-new-privs", vec![prctl(libc::PR_SET_DUMPABLE)]),
        ("user", vec![refused(libc::SYS_setgroups, 0)]),
        ("user", vec![refused(libc::SYS_setresgid, 0)]),
        ("user", vec![refused(libc::SYS_setresuid, 0)]),
        ("user", vec![prctl(libc::PR_CAPBSET_DROP)]),
        ("landlock", vec![refused(libc::SYS_landlock_restrict_self, 0)]),
        // A fake of capset is not among them: the change of the user drops the capabilities, too.
        ("capabilities", vec![prctl(libc::PR_CAPBSET_DROP)]),
        ("limits", [libc::SYS_setrlimit, libc::SYS_prlimit64].map(|call| refused(call, 0)).into()),
        ("seccomp", vec![refused(libc::SYS_seccomp, 0), prctl(libc::PR_SET_SECCOMP)]),
        // With a filter of the host that refuses the call by which the layer is tried.
        (
            "seccomp",
            vec![
                refused(libc::SYS_seccomp, 0),
                prctl(libc::PR_SET_SECCOMP),
                refused(libc::SYS_getpriority, libc::ENOSYS),
            ],
        ),
    ]
}
