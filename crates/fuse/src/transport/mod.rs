//! How requests come and answers go: over /dev/fuse, one message per read and per write, or through
//! rings of io_uring; and the threads that serve.

mod affinity;
mod busy_poll;
mod channel;
mod contention;
mod crew;
mod desk;
mod interval;
mod invalidator;
mod post;
mod ring;
mod waits;

pub use affinity::Affinity;
pub use busy_poll::{BusyPoll, Wakeful};
pub use channel::{Channel, End};
pub use contention::Contention;
pub use crew::{Crew, THREADS_DEFAULT};
pub use desk::shake_hands;
pub use invalidator::Invalidator;
pub use ring::{ENABLE_RINGS, NoRings, RingCrew, Rings};
