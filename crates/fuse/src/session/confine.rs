//! Confines the calling process, before it has other threads: no file, no network, no process but
//! itself, no privilege. What it has open stays open.
//!
//! Several layers, since each may be missing from a kernel: another user without capabilities,
//! Landlock, and a filter on system calls. What a kernel lacks is logged, not fatal.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::transport::ENABLE_RINGS;

/// The user and group that root becomes: nobody.
const NOBODY: u32 = 65_534;

/// What a server needs besides what all of them do.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The image is open for writing.
    pub writable: bool,
    /// There are rings, made already, which threads will use.
    pub rings: bool,
}

/// Gives up everything that serving does not need.
pub fn confine(needs: Needs) {
    if let Err(error) = drop_privileges() {
        tracing::warn!("cannot drop privileges: {error}");
    }
    match restrict_files() {
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => {}
        Ok(RulesetStatus::NotEnforced) => tracing::info!("the kernel has no Landlock"),
        Err(error) => tracing::warn!("cannot set up Landlock: {error}"),
    }
    if let Err(error) = filter_system_calls(needs) {
        tracing::warn!("cannot filter system calls: {error}");
    }
}

fn drop_privileges() -> rustix::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (rustix::fs::Uid::from_raw(NOBODY), rustix::fs::Gid::from_raw(NOBODY));
        // Not where this user is not mapped (user namespaces): the capabilities go all the same.
        let _ = rustix::thread::set_thread_groups(&[])
            .and_then(|()| rustix::thread::set_thread_res_gid(group, group, group))
            .and_then(|()| rustix::thread::set_thread_res_uid(user, user, user));
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)
}

/// Denies every access that Landlock knows of: there is no rule that allows any.
fn restrict_files() -> Result<RulesetStatus, landlock::RulesetError> {
    let abi = ABI::V6;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// What serving, reading the image, memory, threads and an orderly end need.
const ALLOWED: &[libc::c_long] = &[
    // What is open.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_flock,
    libc::SYS_dup3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    // Waiting, and talking to the guard.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
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
    // Time and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The commands of fcntl that serving needs. Others have the kernel send signals to processes of the same user.
const ALLOWED_FCNTL: [libc::c_int; 5] =
    [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];

/// What writing to an open image needs besides.
const ALLOWED_TO_WRITE: &[libc::c_long] = &[
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    // The host's name, for multiple-mount protection.
    libc::SYS_uname,
];

/// What using rings needs besides. They pass nothing on but what travels over /dev/fuse, and no others
/// can be made.
const ALLOWED_WITH_RINGS: &[libc::c_long] = &[libc::SYS_io_uring_enter];

/// Everything else gets ENOSYS, to which the C library has an answer: it does without.
fn filter_system_calls(needs: Needs) -> Result<(), Box<dyn std::error::Error>> {
    let writing = if needs.writable { ALLOWED_TO_WRITE } else { &[] };
    let with_rings = if needs.rings { ALLOWED_WITH_RINGS } else { &[] };
    let allowed = ALLOWED.iter().chain(writing).chain(with_rings);
    let mut rules: Vec<(i64, Vec<SeccompRule>)> = allowed.map(|&call| (call, Vec::new())).collect();
    if needs.rings {
        let enable = masked(1, u64::from(u32::MAX), ENABLE_RINGS.into())?;
        rules.push((libc::SYS_io_uring_register, vec![enable]));
    }
    let commands = ALLOWED_FCNTL.map(|command| masked(1, u64::from(u32::MAX), command as u64));
    rules.push((libc::SYS_fcntl, commands.into_iter().collect::<Result<_, _>>()?));
    // Memory, but none that can be executed.
    let not_executable = masked(2, libc::PROT_EXEC as u64, 0)?;
    rules.push((libc::SYS_mmap, vec![not_executable.clone()]));
    rules.push((libc::SYS_mprotect, vec![not_executable]));
    // Threads, but no processes. The C library asks by clone3 first, whose flags no filter can see.
    let thread = libc::CLONE_THREAD as u64;
    rules.push((libc::SYS_clone, vec![masked(0, thread, thread)?]));
    // The processors of the calling thread.
    rules.push((libc::SYS_sched_setaffinity, vec![masked(0, u64::from(u32::MAX), 0)?]));
    // Signals, but only to this process (abort).
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

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    let operator = SeccompCmpOp::MaskedEq(mask);
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)?;
    SeccompRule::new(vec![condition])
}
