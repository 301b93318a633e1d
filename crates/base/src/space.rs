//! Per-thread right to root-reserved blocks. As in the kernel, it is a property of the thread, so that functions
//! between the caller and the allocator need no argument for it.
//! Not here: which users are root on a volume, and how many blocks are reserved.

use std::cell::Cell;
use std::marker::PhantomData;

/// A right to reserved blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// No right to reserved blocks.
    None,
    /// The right to the blocks that are reserved for root.
    Root,
}

thread_local! {
    /// Root by default: a program that opens an image may use all of it.
    static PRIVILEGE: Cell<Privilege> = const { Cell::new(Privilege::Root) };
}

/// Returns the privilege of this thread. It is [`Privilege::Root`] unless [`set_privilege`] has changed it.
pub fn privilege() -> Privilege {
    PRIVILEGE.get()
}

/// Sets the privilege of this thread, until the result is dropped. Nested guards must be dropped in reverse order.
#[must_use]
pub fn set_privilege(privilege: Privilege) -> PrivilegeGuard {
    PrivilegeGuard { before: PRIVILEGE.replace(privilege), _not_send: PhantomData }
}

/// A guard that restores the thread's previous privilege when it is dropped.
#[derive(Debug)]
pub struct PrivilegeGuard {
    before: Privilege,
    _not_send: PhantomData<*const ()>,
}

impl Drop for PrivilegeGuard {
    fn drop(&mut self) {
        PRIVILEGE.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_privilege_lasts_until_its_guard_is_dropped() {
        assert_eq!(privilege(), Privilege::Root);
        let outer = set_privilege(Privilege::None);
        assert_eq!(privilege(), Privilege::None);
        let inner = set_privilege(Privilege::Root);
        assert_eq!(privilege(), Privilege::Root);
        drop(inner);
        assert_eq!(privilege(), Privilege::None);
        assert_eq!(std::thread::spawn(privilege).join().unwrap(), Privilege::Root);
        drop(outer);
        assert_eq!(privilege(), Privilege::Root);
    }
}
