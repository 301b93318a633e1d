//! Signal handlers that let a command stop cleanly.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Result, Status};

/// Installs signal handlers. The first signal sets the returned flag; a second signal exits at once.
pub fn catch() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let code = Status::Interrupted.code().into();
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&interrupted))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&interrupted)))
            .map_err(|error| Failure::host("", "cannot install signal handlers", &error))?;
    }
    Ok(interrupted)
}
