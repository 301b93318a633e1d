//! The filter on system calls (seccomp): those that a process may make that reads an image.

use seccompiler::{
    BackendError as Error, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule,
};

use super::{Needs, Trees};

/// `IORING_REGISTER_ENABLE_RINGS`: the only operation of `io_uring_register` that is allowed.
pub const ENABLE_RINGS: u8 = 12;

/// The system calls that every process needs to serve or to print, to read the image, for memory
/// and threads, and to end in order.
const ALLOWED: &[libc::c_long] = &[
    // Open files.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    // Waits.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mincore,
    // Threads.
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The commands of fcntl that every process needs, beside `DUPLICATE`. Others can make the kernel
/// send signals to processes of the same user, or let a log file be overwritten (by dropping
/// O_APPEND).
const ALLOWED_FCNTL: [libc::c_int; 3] = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL];
/// The command of fcntl for another descriptor of a file.
const DUPLICATE: libc::c_int = libc::F_DUPFD_CLOEXEC;

/// The flags of clone(2) for a thread of the C library. With others, it would be a process, or in
/// other namespaces.
const THREAD_FLAGS: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// A flag without effect, which musl sets, too.
const MUSL_FLAGS: libc::c_int = libc::CLONE_DETACHED;

/// The advice of madvise that is refused. MADV_HWPOISON and MADV_SOFT_OFFLINE make memory of the
/// host fail, also that of other processes, which Linux allows to processes with CAP_SYS_ADMIN.
/// MADV_MERGEABLE shares equal pages with other processes, so that the time of a write tells what
/// they contain. MADV_REMOVE punches holes in mapped files.
const REFUSED_ADVICE: [libc::c_int; 4] =
    [libc::MADV_HWPOISON, libc::MADV_SOFT_OFFLINE, libc::MADV_MERGEABLE, libc::MADV_REMOVE];

/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID: libc::mode_t = libc::S_ISUID | libc::S_ISGID;

/// The further system calls for messages from the guard, and for leaving the standard streams.
/// Messages to the guard go through sendto, without an address.
const ALLOWED_WITH_GUARD: &[libc::c_long] = &[
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_dup3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
];

/// The further system calls that writing to the image needs.
const ALLOWED_TO_WRITE: &[libc::c_long] = &[
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    // The host's name, for multiple-mount protection.
    libc::SYS_uname,
];

/// The further system calls that rings need. The rings accept only commands to the connection of
/// the mount, and further rings cannot be created.
const ALLOWED_WITH_RINGS: &[libc::c_long] = &[libc::SYS_io_uring_enter];

/// The further system calls for reading trees of the host. They get no file outside of the trees
/// open.
const ALLOWED_WITH_SOURCES: &[libc::c_long] = &[
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
];
/// The further system calls for attributes of files that are read.
const ALLOWED_WITH_SOURCE_ATTRIBUTES: &[libc::c_long] =
    &[libc::SYS_llistxattr, libc::SYS_lgetxattr, libc::SYS_flistxattr, libc::SYS_fgetxattr];

/// The further system calls for creating files in a tree of the host.
const ALLOWED_WITH_COPIES: &[libc::c_long] = &[
    libc::SYS_pwrite64,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_newfstatat,
];
/// The further system calls for creating files that take a mode, as their third argument. openat
/// and fchmod are others.
const ALLOWED_WITH_MODE: [libc::c_long; 2] = [libc::SYS_mkdirat, libc::SYS_mknodat];
/// The further system calls for attributes of files that are created.
const ALLOWED_WITH_COPY_ATTRIBUTES: &[libc::c_long] =
    &[libc::SYS_fchdir, libc::SYS_lsetxattr, libc::SYS_lremovexattr];
/// Those of them that take a descriptor first, which may not be one of a standard stream. fchmod is
/// another one.
const ALLOWED_WITH_OPEN_COPIES: [libc::c_long; 5] = [
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
];
/// The requests of ioctl for a progress bar: whether a file is a terminal, and its size. TCGETS and
/// TIOCGWINSZ, whose types in `libc` differ between C libraries.
const TERMINAL_REQUESTS: [u64; 2] = [0x5401, 0x5413];

/// Makes all other system calls fail with ENOSYS, which the C library can handle.
pub fn filter(needs: &Needs<'_>) -> Result<(), String> {
    apply(needs).map_err(|error| error.to_string())
}

fn apply(needs: &Needs<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let writing = if needs.writable { ALLOWED_TO_WRITE } else { &[] };
    let with_rings = if needs.rings { ALLOWED_WITH_RINGS } else { &[] };
    let with_guard = if needs.guard { ALLOWED_WITH_GUARD } else { &[] };
    let (trees, attributes): (&[_], &[_]) = match needs.trees {
        Trees::None => (&[], &[]),
        Trees::Read { attributes: false, .. } => (ALLOWED_WITH_SOURCES, &[]),
        Trees::Read { .. } => (ALLOWED_WITH_SOURCES, ALLOWED_WITH_SOURCE_ATTRIBUTES),
        Trees::Create { attributes: false, .. } => (ALLOWED_WITH_COPIES, &[]),
        Trees::Create { .. } => (ALLOWED_WITH_COPIES, ALLOWED_WITH_COPY_ATTRIBUTES),
    };
    let with_trees = trees.iter().chain(attributes);
    let allowed = ALLOWED.iter().chain(writing).chain(with_rings).chain(with_guard);
    let allowed = allowed.chain(with_trees);
    let mut rules: Vec<(i64, Vec<SeccompRule>)> = allowed.map(|&call| (call, Vec::new())).collect();
    if needs.rings {
        let enable = masked(1, u64::from(u32::MAX), ENABLE_RINGS.into())?;
        rules.push((libc::SYS_io_uring_register, vec![enable]));
    }
    if needs.guard {
        // No descriptors, and no address: a socket may be a standard stream, from which messages
        // could go anywhere.
        rules.push((libc::SYS_sendto, vec![masked(4, u64::MAX, 0)?]));
    }
    rules.extend(host_files(&needs.trees)?);
    rules.extend(descriptors(needs)?);
    // Memory, but no executable memory, and none of a file that is a standard stream. Memory
    // without a file has the descriptor -1.
    let not_executable = condition(2, libc::PROT_EXEC as u64, 0)?;
    let mapped = vec![not_executable.clone(), no_stream_at(4)?];
    rules.push((libc::SYS_mmap, vec![SeccompRule::new(mapped)?]));
    rules.push((libc::SYS_mprotect, vec![SeccompRule::new(vec![not_executable])?]));
    let advice = REFUSED_ADVICE.map(|advice| {
        let (length, operator) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne);
        SeccompCondition::new(2, length, operator, advice as u64)
    });
    let advice = advice.into_iter().collect::<Result<_, _>>()?;
    rules.push((libc::SYS_madvise, vec![SeccompRule::new(advice)?]));
    // Threads, but no processes. The C library tries clone3 first, which is refused, since a filter
    // cannot see its flags.
    let flags = [THREAD_FLAGS, THREAD_FLAGS | MUSL_FLAGS];
    let threads = flags.map(|flags| masked(0, u64::MAX, flags as u64));
    rules.push((libc::SYS_clone, threads.into_iter().collect::<Result<_, _>>()?));
    // The processors of the calling thread only.
    rules.push((libc::SYS_sched_setaffinity, vec![masked(0, u64::from(u32::MAX), 0)?]));
    // Signals, but only to this process (for abort).
    let own = rustix::process::getpid().as_raw_nonzero().get() as u64;
    rules.push((libc::SYS_tgkill, vec![masked(0, u64::from(u32::MAX), own)?]));
    // The names of threads.
    let name = libc::PR_SET_NAME as u64;
    rules.push((libc::SYS_prctl, vec![masked(0, u64::from(u32::MAX), name)?]));
    let filter = SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::Errno(libc::ENOSYS as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter_all_threads(&program)?;
    Ok(())
}

/// Returns the rules for descriptors, and for changes of sizes. Standard output and standard error
/// may be files that other programs write to, such as a log. The process can write to them, but
/// neither truncate them nor punch holes in them, nor change their attributes (`host_files`). It
/// cannot give them another number, either.
fn descriptors(needs: &Needs<'_>) -> Result<Vec<(i64, Vec<SeccompRule>)>, Error> {
    let command = |command: i32| condition(1, u64::from(u32::MAX), command as u64);
    let truncates = matches!(needs.trees, Trees::Create { .. });
    let mut controls = Vec::new();
    for allowed in ALLOWED_FCNTL {
        controls.push(SeccompRule::new(vec![command(allowed)?])?);
    }
    // The lock of a standard stream is one of the program that started this one.
    let mut rules = vec![(libc::SYS_flock, vec![SeccompRule::new(vec![no_stream()?])?])];
    if truncates {
        rules.push((libc::SYS_ftruncate, vec![SeccompRule::new(vec![no_stream()?])?]));
    }
    if needs.writable {
        // A server's standard streams are no files, or those of a mount in the foreground.
        let own = SeccompRule::new(vec![no_stream()?])?;
        let files = if needs.guard { Vec::new() } else { vec![own] };
        rules.push((libc::SYS_fallocate, files));
    }
    if !needs.guard {
        let input = descriptor(0, SeccompCmpOp::Eq, libc::STDIN_FILENO)?;
        for duplicated in [no_stream()?, input] {
            controls.push(SeccompRule::new(vec![command(DUPLICATE)?, duplicated])?);
        }
    } else {
        controls.push(SeccompRule::new(vec![command(DUPLICATE)?])?);
    }
    rules.push((libc::SYS_fcntl, controls));
    Ok(rules)
}

/// Returns the rules for opening files of trees, for reading only, or for opening directories and
/// creating files. No existing file is opened by O_PATH, which Landlock does not control. Set-ID
/// bits, by which other users would get the rights of the owner, are only set with privileges.
fn host_files(trees: &Trees<'_>) -> Result<Vec<(i64, Vec<SeccompRule>)>, Error> {
    let flags = |argument, mask: i32, value: i32| condition(argument, mask as u64, value as u64);
    match trees {
        Trees::None => Ok(Vec::new()),
        Trees::Read { .. } => {
            let changing = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH;
            let reading =
                |argument| SeccompRule::new(vec![flags(argument, changing, libc::O_RDONLY)?]);
            Ok(vec![
                (libc::SYS_openat, vec![reading(2)?]),
                #[cfg(target_arch = "x86_64")]
                (libc::SYS_open, vec![reading(1)?]),
            ])
        }
        Trees::Create { attributes, privileged, .. } => {
            let set_id = if *privileged { 0 } else { u64::from(SET_ID) };
            let directory = libc::O_ACCMODE | libc::O_CREAT | libc::O_DIRECTORY;
            let directory = flags(2, directory, libc::O_RDONLY | libc::O_DIRECTORY)?;
            let new = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_PATH;
            let new = flags(2, new, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?;
            let new = vec![new, condition(3, set_id, 0)?];
            let opened = vec![SeccompRule::new(vec![directory])?, SeccompRule::new(new)?];
            let asked = TERMINAL_REQUESTS.map(|request| masked(1, u64::from(u32::MAX), request));
            let asked = asked.into_iter().collect::<Result<_, _>>()?;
            let mut rules = vec![(libc::SYS_openat, opened), (libc::SYS_ioctl, asked)];
            for call in ALLOWED_WITH_MODE {
                rules.push((call, vec![masked(2, set_id, 0)?]));
            }
            let permissions = vec![no_stream()?, condition(1, set_id, 0)?];
            rules.push((libc::SYS_fchmod, vec![SeccompRule::new(permissions)?]));
            if *attributes {
                for call in ALLOWED_WITH_OPEN_COPIES {
                    rules.push((call, vec![SeccompRule::new(vec![no_stream()?])?]));
                }
            }
            Ok(rules)
        }
    }
}

/// Returns the condition that the first argument is no descriptor of a standard stream.
fn no_stream() -> Result<SeccompCondition, Error> {
    no_stream_at(0)
}

/// [`no_stream`] for another argument.
fn no_stream_at(argument: u8) -> Result<SeccompCondition, Error> {
    descriptor(argument, SeccompCmpOp::Gt, libc::STDERR_FILENO)
}

/// Returns a condition on an argument that is a descriptor. `AT_FDCWD` is a large number here.
fn descriptor(
    argument: u8,
    operator: SeccompCmpOp,
    number: i32,
) -> Result<SeccompCondition, Error> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, number as u64)
}

/// Returns a rule that the bits `mask` of an argument have the value `value`.
fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, Error> {
    SeccompRule::new(vec![condition(argument, mask, value)?])
}

/// Returns the condition that the bits `mask` of an argument have the value `value`.
fn condition(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, Error> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)
}
