//! Repetition of system calls that signals interrupt.

use rustix::io::Errno;

/// Calls `call` again as long as a signal interrupts it.
pub fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
