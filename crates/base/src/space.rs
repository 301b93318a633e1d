//! For whom a thread takes space on a volume: part of it is kept for root, and whoever else wants it
//! finds none. As in the kernel, that goes with the thread, by whatever calls it comes to an allocation.
//! Not here: who counts as root on which volume, and how much is kept.

use std::cell::Cell;
use std::marker::PhantomData;

/// What may be had besides what everybody may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// Nothing.
    None,
    /// What is kept back for root.
    Root,
}

thread_local! {
    /// Who opens an image owns it.
    static PRIVILEGE: Cell<Privilege> = const { Cell::new(Privilege::Root) };
}

/// What this thread may have: everything, unless it [acts](set_privilege) for somebody else.
pub fn privilege() -> Privilege {
    PRIVILEGE.get()
}

/// Has this thread take space as somebody does who has this privilege, until the result is dropped.
/// Those that live at the same time are dropped in the opposite order.
#[must_use]
pub fn set_privilege(privilege: Privilege) -> PrivilegeGuard {
    PrivilegeGuard { before: PRIVILEGE.replace(privilege), _not_send: PhantomData }
}

/// Keeps a privilege in place.
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
    fn a_thread_acts_for_somebody_for_as_long_as_it_says() {
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
