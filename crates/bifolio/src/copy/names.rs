//! The names of a directory and of those above it. Directories share the names of their parents, so
//! that all names in memory take as much as the directories, and not the square of the depth.

use std::sync::Arc;

/// The name of a directory, and those of the directories above it, below the one in which a copy
/// starts.
#[derive(Debug)]
pub struct Names {
    /// The names of the parent. `None` for the start of the copy, which has no name.
    parent: Option<Arc<Names>>,
    name: Vec<u8>,
}

impl Names {
    /// Returns the names of the directory `name` in a parent.
    pub fn below(parent: Option<&Arc<Self>>, name: &[u8]) -> Arc<Self> {
        Arc::new(Self { parent: parent.map(Arc::clone), name: name.to_vec() })
    }

    /// Returns the names in the order of a path.
    pub fn path(names: Option<&Arc<Self>>) -> Vec<&[u8]> {
        let mut here = names.map(|names| &**names);
        let mut path = Vec::new();
        while let Some(names) = here {
            path.push(names.name.as_slice());
            here = names.parent.as_deref();
        }
        path.reverse();
        path
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // Without recursion, for which a deep tree would have too many levels.
        let mut parent = self.parent.take();
        while let Some(mut last) = parent.and_then(Arc::into_inner) {
            parent = last.parent.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_and_in_the_order_of_a_path() {
        let outer = Names::below(None, b"a");
        let [b, c] = [&b"b"[..], b"c"].map(|name| Names::below(Some(&outer), name));
        assert_eq!(Names::path(Some(&b)), [b"a", b"b"]);
        drop((outer, b));
        assert_eq!(Names::path(Some(&c)), [b"a", b"c"]);
        assert!(Names::path(None).is_empty());
    }

    #[test]
    fn a_deep_chain_is_dropped_without_recursion() {
        let mut names = Names::below(None, b"a");
        for _ in 0..100_000 {
            names = Names::below(Some(&names), b"a");
        }
        let dropped = std::thread::Builder::new().stack_size(64 << 10).spawn(|| drop(names));
        dropped.expect("a thread").join().expect("no overflow");
    }
}
