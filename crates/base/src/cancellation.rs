//! Cancellation of the request that a thread serves. Not here: the reasons for a cancellation, and
//! the waits. Long waits while a volume is opened have a callback of their own
//! ([`wait_callback`](crate::wait_callback)).
//!
//! A wait that can be cancelled wakes every [`CHECK_EVERY`], and ends if [`check`] fails. Most
//! waits cannot be cancelled, since their callers would leave a change incomplete.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::{Error, Result};

/// The interval at which a wait that can be cancelled calls [`check`].
pub const CHECK_EVERY: Duration = Duration::from_millis(50);

type IsCancelled = Box<dyn Fn() -> bool>;

thread_local! {
    static IS_CANCELLED: RefCell<Option<IsCancelled>> = const { RefCell::new(None) };
}

/// Fails if the request that this thread serves was cancelled. Cheap in threads that serve none.
///
/// # Errors
///
/// [`Error::Interrupted`].
pub fn check() -> Result<()> {
    let is_cancelled =
        IS_CANCELLED.with_borrow(|function| function.as_ref().is_some_and(|function| function()));
    if is_cancelled { Err(Error::Interrupted) } else { Ok(()) }
}

/// Makes [`check`] in this thread call `is_cancelled`, until the result is dropped.
#[must_use]
pub fn cancel_when(is_cancelled: impl Fn() -> bool + 'static) -> Cancellable {
    IS_CANCELLED.set(Some(Box::new(is_cancelled)));
    Cancellable { _not_send: PhantomData }
}

/// A guard that ends the effect of [`cancel_when`] when it is dropped.
pub struct Cancellable {
    _not_send: PhantomData<*const ()>,
}

impl fmt::Debug for Cancellable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cancellable")
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        IS_CANCELLED.set(None);
    }
}

/// Makes [`check`] in this thread succeed, until the result is dropped: the thread ends what it has
/// begun.
#[must_use]
pub fn suspend() -> Suspended {
    Suspended { is_cancelled: IS_CANCELLED.take(), _not_send: PhantomData }
}

/// A guard that ends the effect of [`suspend`] when it is dropped.
pub struct Suspended {
    is_cancelled: Option<IsCancelled>,
    _not_send: PhantomData<*const ()>,
}

impl fmt::Debug for Suspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Suspended")
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        IS_CANCELLED.set(self.is_cancelled.take());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn only_the_thread_with_a_cancelled_request_is_interrupted() {
        let is_cancelled = Rc::new(Cell::new(false));
        let shared = Rc::clone(&is_cancelled);
        let cancellable = cancel_when(move || shared.get());
        assert_eq!(check(), Ok(()));
        is_cancelled.set(true);
        assert_eq!(check(), Err(Error::Interrupted));
        assert_eq!(std::thread::spawn(check).join().unwrap(), Ok(()));
        drop(cancellable);
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn a_thread_that_suspends_cancellation_is_interrupted_afterwards() {
        let cancellable = cancel_when(|| true);
        let suspended = suspend();
        assert_eq!(check(), Ok(()));
        drop(suspended);
        assert_eq!(check(), Err(Error::Interrupted));
        drop(cancellable);
        assert_eq!(check(), Ok(()));
        drop(suspend());
        assert_eq!(check(), Ok(()));
    }
}
