//! Landlock: no access to files by their paths, no connections, no signals to other processes.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Denies every access that the kernel's Landlock controls: there is no rule that allows any. Older kernels control less;
/// the filter on system calls denies the rest.
pub fn restrict() -> Result<(), String> {
    let status = restrict_self().map_err(|error| error.to_string())?;
    match status {
        RulesetStatus::FullyEnforced => {}
        RulesetStatus::PartiallyEnforced => tracing::info!(
            "the kernel's Landlock controls not all accesses (before Linux 6.12, no signals); the filter on system \
             calls denies the others"
        ),
        RulesetStatus::NotEnforced => {
            return Err(
                "the kernel has no Landlock, or it is switched off (it needs Linux 5.13 and `landlock` in `lsm=`)"
                    .to_owned(),
            );
        }
    }
    // /proc does not show Landlock's restrictions, so one is tried.
    match rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    {
        Err(Errno::ACCESS) => Ok(()),
        Ok(_) => Err("the root directory can still be read".to_owned()),
        Err(errno) => Err(format!("opening the root directory fails for another reason: {errno}")),
    }
}

fn restrict_self() -> Result<RulesetStatus, landlock::RulesetError> {
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
