//! Expressions of `find` and their evaluation. Not here: the parser (`parse`).

use std::ops::ControlFlow;

use base::attributes::{Attributes, DirCursor, FileType, Timestamp};
use base::{InodeNumber, Result};
use vfs::Node;

use super::glob::Glob;

/// An expression. The parser limits its depth.
#[derive(Clone, PartialEq, Debug)]
pub enum Expression {
    /// True if all parts are true. Parts after a false one are not evaluated.
    All(Vec<Expression>),
    /// True if one part is true. Parts after it are not evaluated.
    Any(Vec<Expression>),
    /// True if the part is false.
    Not(Box<Expression>),
    /// A test of the node.
    Test(Test),
    /// An action. True.
    Action(Action),
    /// True. The directory is not entered.
    Prune,
    /// True. The search ends.
    Quit,
}

/// Action on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Print the path and a line break.
    Print,
    /// Print the path and a NUL byte.
    PrintNull,
    /// Print a line in the format of `ls -l`.
    List,
}

/// Comparison with a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Number {
    /// `N`.
    Exactly(u64),
    /// `+N`.
    MoreThan(u64),
    /// `-N`.
    LessThan(u64),
}

impl Number {
    fn matches(self, value: i128) -> bool {
        match self {
            Self::Exactly(number) => value == i128::from(number),
            Self::MoreThan(number) => value > i128::from(number),
            Self::LessThan(number) => value < i128::from(number),
        }
    }
}

/// One of the times of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The last access.
    Accessed,
    /// The last change of the inode.
    Changed,
    /// The last change of the contents.
    Modified,
}

impl Moment {
    /// Returns this time of an inode.
    pub fn of(self, attributes: &Attributes) -> Timestamp {
        match self {
            Self::Accessed => attributes.accessed,
            Self::Changed => attributes.changed,
            Self::Modified => attributes.modified,
        }
    }
}

/// Unit of an age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgeUnit {
    /// Days, rounded down.
    Days,
    /// Minutes, rounded up.
    Minutes,
}

/// Comparison of permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permissions {
    /// Equal to these bits.
    Exactly(u16),
    /// All of these bits are set.
    All(u16),
    /// One of these bits is set, or there are none.
    Any(u16),
}

/// Test of a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Test {
    /// Always true or always false.
    Constant(bool),
    /// The last name of the path.
    Name(Glob),
    /// The whole path.
    Path(Glob),
    /// The target of a symbolic link.
    LinkTarget(Glob),
    /// The type is one of these.
    Type(Vec<FileType>),
    /// The size in units of the given number of bytes, rounded up.
    Size(Number, u64),
    /// The age of one of the times.
    Age(Moment, AgeUnit, Number),
    /// One of the times is later than this.
    Newer(Moment, Timestamp),
    /// The permissions.
    Permissions(Permissions),
    /// The owner.
    Uid(Number),
    /// The group.
    Gid(Number),
    /// The inode number.
    Inode(Number),
    /// The number of hard links.
    Links(Number),
    /// The inode is this one.
    Same(InodeNumber),
    /// An empty file or directory.
    Empty,
    /// The name of an extended attribute.
    Xattr(Glob),
}

/// Node for which an expression is evaluated.
#[derive(Debug)]
pub struct Context<'a> {
    /// The path of the node.
    pub path: &'a [u8],
    /// The last name of the path.
    pub name: &'a [u8],
    /// The node.
    pub node: &'a Node,
    /// The attributes of the node.
    pub attributes: Attributes,
    /// The current time.
    pub now: Timestamp,
}

/// Outcome of an evaluation.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The actions, in order.
    pub actions: Vec<Action>,
    /// Whether the directory is not entered.
    pub prune: bool,
    /// Whether the search ends.
    pub quit: bool,
}

impl Expression {
    /// Returns whether the expression is true for the node. Adds its actions to `outcome`.
    pub fn evaluate(&self, context: &Context<'_>, outcome: &mut Outcome) -> Result<bool> {
        match self {
            Self::All(parts) => {
                for part in parts {
                    // After -quit, nothing else is evaluated.
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
            Self::Test(test) => test.matches(context),
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

    /// Returns whether the expression has an action.
    pub fn has_action(&self) -> bool {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().any(Self::has_action),
            Self::Not(part) => part.has_action(),
            Self::Action(_) | Self::Quit => true,
            Self::Test(_) | Self::Prune => false,
        }
    }
}

impl Test {
    fn matches(&self, context: &Context<'_>) -> Result<bool> {
        let attributes = &context.attributes;
        Ok(match self {
            Self::Constant(value) => *value,
            Self::Name(glob) => glob.matches(context.name),
            Self::Path(glob) => glob.matches(context.path),
            Self::LinkTarget(glob) => {
                attributes.kind == FileType::Symlink && glob.matches(&context.node.read_link()?)
            }
            Self::Type(kinds) => kinds.contains(&attributes.kind),
            Self::Size(number, unit) => {
                number.matches(attributes.size.div_ceil((*unit).max(1)).into())
            }
            Self::Age(moment, unit, number) => {
                number.matches(age(context.now, moment.of(attributes), *unit))
            }
            Self::Newer(moment, than) => moment.of(attributes) > *than,
            Self::Permissions(wanted) => match *wanted {
                Permissions::Exactly(bits) => attributes.permissions == bits,
                Permissions::All(bits) => attributes.permissions & bits == bits,
                Permissions::Any(bits) => bits == 0 || attributes.permissions & bits != 0,
            },
            Self::Uid(number) => number.matches(attributes.uid.into()),
            Self::Gid(number) => number.matches(attributes.gid.into()),
            Self::Inode(number) => number.matches(attributes.inode.0.into()),
            Self::Links(number) => number.matches(attributes.links.into()),
            Self::Same(inode) => attributes.inode == *inode,
            Self::Empty => is_empty(context.node, attributes)?,
            Self::Xattr(glob) => context.node.list_xattrs()?.iter().any(|name| glob.matches(name)),
        })
    }
}

/// Returns the last name of a path. The last name of `/` is the slash.
pub fn last_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(1, |last| last + 1);
    let path = path.get(..end).unwrap_or(path);
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) if end > 1 => path.get(slash + 1..).unwrap_or_default(),
        _ => path,
    }
}

/// Returns the number of units from `then` to `now`. Negative for a time in the future.
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
    fn the_last_name_is_that_of_basename() {
        for (path, name) in
            [("/", "/"), ("/a", "a"), ("/a/b", "b"), ("/a/b/", "b"), ("//", "/"), ("/a//", "a")]
        {
            assert_eq!(last_name(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }

    #[test]
    fn ages_round_days_down_and_minutes_up() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        assert_eq!(age(at(86_400), at(0), AgeUnit::Days), 1);
        assert_eq!(age(at(86_399), at(0), AgeUnit::Days), 0);
        assert_eq!(age(at(0), at(1), AgeUnit::Days), -1);
        assert_eq!(age(at(60), at(0), AgeUnit::Minutes), 1);
        assert_eq!(age(at(61), at(0), AgeUnit::Minutes), 2);
        assert_eq!(age(at(i64::MIN), at(i64::MAX), AgeUnit::Minutes), -307_445_734_561_825_860);
    }
}
