//! Signal handlers that let a command stop cleanly.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fuse::END_SIGNALS;

use crate::console::failure::{Failure, Result, Status};

/// Installs signal handlers. The first signal that requests the end sets the returned flag; a
/// second one exits at once. Other signals are ignored.
pub fn catch() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    install(&interrupted)
        .map_err(|error| Failure::host("", "cannot install signal handlers", &error))?;
    Ok(interrupted)
}

fn install(interrupted: &Arc<AtomicBool>) -> io::Result<()> {
    let code = Status::Interrupted.code().into();
    for signal in END_SIGNALS {
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(interrupted))?;
    }
    fuse::ignore_other_signals()
}
