//! The transport over /dev/fuse: one message per read and per write, and the threads that do it.

mod channel;
mod crew;
mod desk;

pub use channel::{Channel, End};
pub use crew::{Crew, THREADS_DEFAULT};
pub use desk::shake_hands;
