//! Lets a thread's owner know that the thread is about to wait for a device, so that other work can
//! be given to another thread first. Not here: any waiting.

use std::cell::RefCell;
use std::fmt;

type Listener = Box<dyn Fn()>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Called by the I/O path before each submission or wait that can take as long as a device takes.
/// Costs next to nothing where nobody listens.
#[inline]
pub fn about_to_wait() {
    LISTENER.with(|listener| {
        // A listener that itself comes here is not called again.
        if let Ok(listener) = listener.try_borrow_mut() {
            if let Some(listener) = &*listener {
                listener();
            }
        }
    });
}

/// Has `listener` called whenever this thread is about to wait, until the result is dropped.
#[must_use]
pub fn listen(listener: impl Fn() + 'static) -> Listening {
    LISTENER.set(Some(Box::new(listener)));
    Listening { _not_send: std::marker::PhantomData }
}

/// Keeps a listener in place.
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
    fn only_the_thread_that_listens_is_told_and_only_while_it_does() {
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
