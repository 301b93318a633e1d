//! The expressions of `find`, and their evaluation. Not here: parsing them (`parse`).

use std::ops::ControlFlow;

use base::attributes::{Attributes, DirCursor, FileType, Timestamp};
use base::{InodeNumber, Result};
use vfs::Node;

use super::glob::Glob;

/// An expression. No deeper than the parser lets it be.
#[derive(Clone, PartialEq, Debug)]
pub enum Expression {
    /// All hold; those after one that does not are not looked at.
    All(Vec<Expression>),
    /// One holds; those after it are not looked at.
    Any(Vec<Expression>),
    /// It does not hold.
    Not(Box<Expression>),
    /// A fact about the node.
    Test(Test),
    /// Something to do; holds.
    Action(Action),
    /// Holds, and the directory is not entered.
    Prune,
    /// Holds, and the search ends.
    Quit,
}

/// An action on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Write its path.
    Print,
    /// Write its path and a zero byte.
    PrintNull,
    /// Write a line like those of `ls -l`.
    List,
}

/// A number to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    /// `N`
    Exactly(u64),
    /// `+N`
    MoreThan(u64),
    /// `-N`
    LessThan(u64),
}

impl Number {
    fn holds(self, value: i128) -> bool {
        match self {
            Self::Exactly(number) => value == i128::from(number),
            Self::MoreThan(number) => value > i128::from(number),
            Self::LessThan(number) => value < i128::from(number),
        }
    }
}

/// One of an inode's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Last access.
    Accessed,
    /// Last change of the inode.
    Changed,
    /// Last change of the contents.
    Modified,
}

impl Moment {
    /// This time of an inode.
    pub fn of(self, attributes: &Attributes) -> Timestamp {
        match self {
            Self::Accessed => attributes.accessed,
            Self::Changed => attributes.changed,
            Self::Modified => attributes.modified,
        }
    }
}

/// The unit of an age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgeUnit {
    /// Whole days that have passed.
    Days,
    /// Minutes, one begun counting as one.
    Minutes,
}

/// How permissions compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permissions {
    /// They are these.
    Exactly(u16),
    /// They have all of these.
    All(u16),
    /// They have one of these, or none are asked for.
    Any(u16),
}

/// A fact about a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Test {
    /// Always or never holds.
    Constant(bool),
    /// The last name of the path.
    Name(Glob),
    /// The whole path.
    Path(Glob),
    /// The target of a symbolic link.
    LinkTarget(Glob),
    /// One of these types.
    Type(Vec<FileType>),
    /// The size in units of so many bytes, rounded up.
    Size(Number, u64),
    /// How long ago one of the times was.
    Age(Moment, AgeUnit, Number),
    /// The contents or inode changed, or were read, after this.
    Newer(Moment, Timestamp),
    /// The permissions.
    Permissions(Permissions),
    /// The owner.
    Uid(Number),
    /// The group.
    Gid(Number),
    /// The inode number.
    Inode(Number),
    /// The number of names.
    Links(Number),
    /// This very inode.
    Same(InodeNumber),
    /// An empty file or directory.
    Empty,
    /// An extended attribute of such a name.
    Xattr(Glob),
}

/// A node that is looked at.
#[derive(Debug)]
pub struct Context<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// The last name of it.
    pub name: &'a [u8],
    /// The node.
    pub node: &'a Node,
    /// Its attributes.
    pub attributes: Attributes,
    /// The time that ages are counted from.
    pub now: Timestamp,
}

/// The outcome of an evaluation.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The actions, in order.
    pub actions: Vec<Action>,
    /// Whether to stay out of the directory.
    pub prune: bool,
    /// Whether to end.
    pub quit: bool,
}

impl Expression {
    /// Returns whether the expression holds for the node. Adds its actions to `outcome`.
    pub fn evaluate(&self, context: &Context<'_>, outcome: &mut Outcome) -> Result<bool> {
        match self {
            Self::All(parts) => {
                for part in parts {
                    // After -quit nothing more is done.
                    if outcome.quit || !part.evaluate(context, outcome)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(parts) => {
                for part in parts {
                    if outcome.quit || part.evaluate(context, outcome)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Not(part) => Ok(!part.evaluate(context, outcome)?),
            Self::Test(test) => test.holds(context),
            Self::Action(action) => {
                outcome.actions.push(*action);
                Ok(true)
            }
            Self::Prune => {
                outcome.prune = true;
                Ok(true)
            }
            Self::Quit => {
                outcome.quit = true;
                Ok(true)
            }
        }
    }

    /// Returns whether there is something in it that writes.
    pub fn acts(&self) -> bool {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().any(Self::acts),
            Self::Not(part) => part.acts(),
            Self::Action(_) | Self::Quit => true,
            Self::Test(_) | Self::Prune => false,
        }
    }
}

impl Test {
    fn holds(&self, context: &Context<'_>) -> Result<bool> {
        let of = &context.attributes;
        Ok(match self {
            Self::Constant(holds) => *holds,
            Self::Name(glob) => glob.matches(context.name),
            Self::Path(glob) => glob.matches(context.path),
            Self::LinkTarget(glob) => {
                of.kind == FileType::Symlink && glob.matches(&context.node.read_link()?)
            }
            Self::Type(kinds) => kinds.contains(&of.kind),
            Self::Size(number, unit) => number.holds(of.size.div_ceil((*unit).max(1)).into()),
            Self::Age(moment, unit, number) => number.holds(age(context.now, moment.of(of), *unit)),
            Self::Newer(moment, than) => moment.of(of) > *than,
            Self::Permissions(wanted) => match *wanted {
                Permissions::Exactly(bits) => of.permissions == bits,
                Permissions::All(bits) => of.permissions & bits == bits,
                Permissions::Any(bits) => bits == 0 || of.permissions & bits != 0,
            },
            Self::Uid(number) => number.holds(of.uid.into()),
            Self::Gid(number) => number.holds(of.gid.into()),
            Self::Inode(number) => number.holds(of.inode.0.into()),
            Self::Links(number) => number.holds(of.links.into()),
            Self::Same(inode) => of.inode == *inode,
            Self::Empty => is_empty(context.node, of)?,
            Self::Xattr(glob) => context.node.list_xattrs()?.iter().any(|name| glob.matches(name)),
        })
    }
}

/// Returns the last name of a path; of `/`, the slash.
pub fn last_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(1, |last| last + 1);
    let path = path.get(..end).unwrap_or(path);
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) if end > 1 => path.get(slash + 1..).unwrap_or_default(),
        _ => path,
    }
}

/// Returns the units from `then` to now; negative for a time in the future.
fn age(now: Timestamp, then: Timestamp, unit: AgeUnit) -> i128 {
    const SECOND: i128 = 1_000_000_000;
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * SECOND + i128::from(time.nanoseconds);
    let passed = nanoseconds(now) - nanoseconds(then);
    match unit {
        AgeUnit::Days => passed.div_euclid(86_400 * SECOND),
        AgeUnit::Minutes => -(-passed).div_euclid(60 * SECOND),
    }
}

fn is_empty(node: &Node, attributes: &Attributes) -> Result<bool> {
    match attributes.kind {
        FileType::Regular => Ok(attributes.size == 0),
        FileType::Directory => {
            let mut empty = true;
            node.read_dir(DirCursor::default(), &mut |entry| {
                empty = matches!(entry.name, b"." | b"..");
                if empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok(empty)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_is_what_basename_gives() {
        for (path, name) in
            [("/", "/"), ("/a", "a"), ("/a/b", "b"), ("/a/b/", "b"), ("//", "/"), ("/a//", "a")]
        {
            assert_eq!(last_name(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }

    #[test]
    fn ages_count_whole_days_and_begun_minutes() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        assert_eq!(age(at(86_400), at(0), AgeUnit::Days), 1);
        assert_eq!(age(at(86_399), at(0), AgeUnit::Days), 0);
        assert_eq!(age(at(0), at(1), AgeUnit::Days), -1);
        assert_eq!(age(at(60), at(0), AgeUnit::Minutes), 1);
        assert_eq!(age(at(61), at(0), AgeUnit::Minutes), 2);
        assert_eq!(age(at(i64::MIN), at(i64::MAX), AgeUnit::Minutes), -307_445_734_561_825_860);
    }
}
