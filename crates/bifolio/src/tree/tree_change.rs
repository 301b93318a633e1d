//! Application of one change to a file, or to all files of a tree. Not here: the change (`chmod`,
//! `chown`).

use std::sync::Arc;

use base::Error;
use vfs::{Node, Volume};

use crate::console::Console;
use crate::console::failure::{Failure, Result};
use crate::images::target::Target;
use crate::images::writing::Writing;
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

/// Calls `change` for `node`, which is at the path of `target`. If `recursive`, also calls it for
/// all nodes below. Reports errors as failures of `action`.
pub fn change(
    (target, volume): (&Target, &Volume),
    node: Arc<Node>,
    recursive: bool,
    action: &str,
    (writing, console): (&Writing, &mut Console),
    change: impl FnMut(&Node) -> Result<(), Error>,
) -> Result<()> {
    let mut changer = Changer { target, action, writing, console, recursive, change };
    walk::walk(volume, node, &target.path, Order::Inode, &mut changer)
}

struct Changer<'a, C> {
    target: &'a Target,
    action: &'a str,
    writing: &'a Writing,
    console: &'a mut Console,
    recursive: bool,
    change: C,
}

impl<C: FnMut(&Node) -> Result<(), Error>> Visitor for Changer<'_, C> {
    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        self.writing.check_interrupted()?;
        if let Err(error) = (self.change)(visit.node) {
            let subject = self.target.subject(visit.path);
            self.console.report(&Failure::action(subject.as_slice(), self.action, &error));
        }
        Ok(if self.recursive { Flow::Enter } else { Flow::Skip })
    }

    fn leave(&mut self, _visit: &Visit<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self, path: &[u8], error: &Error) -> Result<()> {
        self.console.report(&self.target.failure(path, error));
        Ok(())
    }
}
