//! Per-thread right to root-reserved blocks. As in the kernel, it is a property of the thread, so
//! that functions between the caller and the allocator need no argument for it. Not here: which
//! users are root on a volume, and how many blocks are reserved.

use std::cell::Cell;
use std::marker::PhantomData;

/// A right to reserved blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveAccess {
    /// No right to reserved blocks.
    None,
    /// The right to the blocks that are reserved for root.
    Root,
}

thread_local! {
    /// Root by default: a program that opens an image may use all of it.
    static ACCESS: Cell<ReserveAccess> = const { Cell::new(ReserveAccess::Root) };
}

/// Returns the access of this thread to reserved blocks. It is [`ReserveAccess::Root`] unless
/// [`set_reserve_access`] has changed it.
pub fn reserve_access() -> ReserveAccess {
    ACCESS.get()
}

/// Sets the access of this thread to reserved blocks, until the result is dropped. Nested guards
/// must be dropped in reverse order.
#[must_use]
pub fn set_reserve_access(access: ReserveAccess) -> ReserveAccessGuard {
    ReserveAccessGuard { before: ACCESS.replace(access), _not_send: PhantomData }
}

/// A guard that restores the thread's previous access when it is dropped.
#[derive(Debug)]
pub struct ReserveAccessGuard {
    before: ReserveAccess,
    _not_send: PhantomData<*const ()>,
}

impl Drop for ReserveAccessGuard {
    fn drop(&mut self) {
        ACCESS.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_privilege_lasts_until_its_guard_is_dropped() {
        assert_eq!(reserve_access(), ReserveAccess::Root);
        let outer = set_reserve_access(ReserveAccess::None);
        assert_eq!(reserve_access(), ReserveAccess::None);
        let inner = set_reserve_access(ReserveAccess::Root);
        assert_eq!(reserve_access(), ReserveAccess::Root);
        drop(inner);
        assert_eq!(reserve_access(), ReserveAccess::None);
        assert_eq!(std::thread::spawn(reserve_access).join().unwrap(), ReserveAccess::Root);
        drop(outer);
        assert_eq!(reserve_access(), ReserveAccess::Root);
    }
}
