//! Changes an inode, or each one in a tree. Not here: which change.

use std::sync::Arc;

use base::Error;
use vfs::{Node, Volume};

use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::target::Target;
use crate::walk::{self, Order, Stop, Then, Visitor};
use crate::writing::Writing;

/// Calls `change` for `node`, which is at the target's path, and for everything in it if
/// `recursive`. What fails is reported as a failure of `action`.
pub fn change(
    (target, volume): (&Target, &Volume),
    node: Arc<Node>,
    recursive: bool,
    action: &str,
    (writing, console): (&Writing<'_>, &mut Console),
    change: impl FnMut(&Node) -> Result<(), Error>,
) -> Result<()> {
    let mut changer = Changer { target, action, writing, console, recursive, change };
    walk::walk(volume, node, &target.path, Order::Inode, &mut changer)
}

struct Changer<'a, C> {
    target: &'a Target,
    action: &'a str,
    writing: &'a Writing<'a>,
    console: &'a mut Console,
    recursive: bool,
    change: C,
}

impl<C: FnMut(&Node) -> Result<(), Error>> Visitor for Changer<'_, C> {
    fn arrive(&mut self, stop: &Stop<'_>) -> Result<Then> {
        self.writing.check_interrupted()?;
        if let Err(error) = (self.change)(stop.node) {
            let subject = self.target.subject(stop.path);
            self.console.report(&Failure::action(subject.as_slice(), self.action, &error));
        }
        Ok(if self.recursive { Then::Enter } else { Then::Skip })
    }

    fn leave(&mut self, _stop: &Stop<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()> {
        self.console.report(&self.target.failure(path, error));
        Ok(())
    }
}
