//! Notification that a thread is about to wait for a device or for another thread, so that its
//! other work can go to another thread first. Not here: the waits.

use std::cell::RefCell;
use std::fmt;

type Listener = Box<dyn Fn()>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Calls this thread's listener, if there is one. The I/O path calls this before each submission or
/// wait that can take as long as device I/O. Cheap without a listener.
#[inline]
pub fn about_to_wait() {
    LISTENER.with(|listener| {
        // The borrow fails if the listener itself calls this. It is not called again then.
        if let Ok(listener) = listener.try_borrow_mut() {
            if let Some(listener) = &*listener {
                listener();
            }
        }
    });
}

/// Sets a listener that is called whenever this thread is about to wait, until the result is
/// dropped.
#[must_use]
pub fn listen(listener: impl Fn() + 'static) -> Listening {
    LISTENER.set(Some(Box::new(listener)));
    Listening { _not_send: std::marker::PhantomData }
}

/// A guard that removes the listener when it is dropped.
pub struct Listening {
    _not_send: std::marker::PhantomData<*const ()>,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listening")
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENER.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_listener_is_called_for_its_thread_only_and_until_it_is_removed() {
        let calls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&calls);
        let listening = listen(move || {
            counted.set(counted.get() + 1);
            about_to_wait();
        });
        about_to_wait();
        std::thread::spawn(about_to_wait).join().unwrap();
        assert_eq!(calls.get(), 1);
        drop(listening);
        about_to_wait();
        assert_eq!(calls.get(), 1);
    }
}
