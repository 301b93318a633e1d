//! Whether the reader is at a request, at which one, and whether somebody looks at that. Not here: the
//! threads (`crew`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// After so many looks at which nothing had happened, nobody looks any more.
const QUIET_LOOKS: u64 = 50;

/// The reader's post. Of those who would leave it or take it over at the same time, one succeeds.
#[derive(Debug, Default)]
pub struct Post {
    /// Odd while the reader is at a request, and never the same for two of them.
    state: AtomicU64,
    /// Somebody looks, or has been told to.
    is_watched: AtomicBool,
    /// What was seen at the last look, and at how many looks.
    seen: AtomicU64,
    quiet: AtomicU64,
}

impl Post {
    /// The reader begins to serve. Gives what it leaves with, and whether somebody looks already;
    /// if not, it has to tell somebody.
    pub fn enter(&self) -> (u64, bool) {
        // In this order, which is the other one in `rest`: one of both sees the other.
        let entered = self.state.fetch_add(1, Ordering::SeqCst) + 1;
        let is_watched = self.is_watched.load(Ordering::SeqCst);
        (entered, is_watched || self.is_watched.swap(true, Ordering::SeqCst))
    }

    /// The reader has served. False when it is the reader no more.
    pub fn leave(&self, entered: u64) -> bool {
        let next = entered + 1;
        self.state.compare_exchange(entered, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Whether somebody has to look.
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::SeqCst)
    }

    /// Looks, one thread at a time: true when the reader is at the request that it was at the last time, and
    /// with that the caller is the reader.
    pub fn take_over(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        if self.seen.swap(state, Ordering::Relaxed) != state {
            self.quiet.store(0, Ordering::Relaxed);
        } else if state % 2 == 1 {
            return self.leave(state);
        } else if self.quiet.fetch_add(1, Ordering::Relaxed) + 1 == QUIET_LOOKS {
            self.quiet.store(0, Ordering::Relaxed);
            self.rest(state);
        }
        false
    }

    /// Nobody looks any more, unless something has happened after all.
    fn rest(&self, state: u64) {
        self.is_watched.store(false, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) != state {
            self.is_watched.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_stays_with_one_request_loses_its_post_and_no_other() {
        let post = Post::default();
        let (first, was_watched) = post.enter();
        assert!(!was_watched && post.is_watched());
        assert!(!post.take_over());
        assert!(post.leave(first));
        let (second, was_watched) = post.enter();
        assert!(was_watched);
        assert!(!post.take_over() && post.take_over());
        assert!(!post.leave(second));
        let (third, _) = post.enter();
        assert!(!post.leave(second) && post.leave(third));
    }

    #[test]
    fn nobody_looks_for_long_when_nothing_comes() {
        let post = Post::default();
        let (entered, _) = post.enter();
        assert!(post.leave(entered));
        let looks = (0..1000).take_while(|_| {
            assert!(!post.take_over());
            post.is_watched()
        });
        assert!((10..100).contains(&looks.count()));
        assert!(!post.enter().1 && post.is_watched());
    }
}
