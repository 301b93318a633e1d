//! Parser of `find` expressions.

use std::time::{SystemTime, UNIX_EPOCH};

use base::attributes::{FileType, Timestamp};
use vfs::{Follow, Volume};

use super::expression::{Action, AgeUnit, Expression, Moment, Number, Permissions, Test};
use super::glob::Glob;
use crate::console::failure::{Failure, Result, Status};
use crate::format::text;

/// Maximum nesting of parentheses and negations.
const NESTING_MAX: usize = 200;
/// Maximum number of bytes that are read of /etc/passwd or /etc/group in the image.
const ACCOUNTS_BYTES_MAX: usize = 4 << 20;

/// A query.
#[derive(Debug)]
pub struct Query {
    /// The tests and actions.
    pub expression: Expression,
    /// The minimum number of levels below the start.
    pub depth_min: usize,
    /// The maximum number of levels below the start.
    pub depth_max: Option<usize>,
    /// The current time.
    pub now: Timestamp,
}

/// Access to the image for tests that need it when they are parsed.
pub trait Lookup {
    /// Returns the attributes of the inode at a path.
    fn attributes(&self, path: &[u8]) -> base::Result<base::attributes::Attributes>;
    /// Returns the contents of a small file, and only the beginning of a large file.
    fn contents(&self, path: &[u8]) -> base::Result<Vec<u8>>;
}

impl Lookup for Volume {
    fn attributes(&self, path: &[u8]) -> base::Result<base::attributes::Attributes> {
        Ok(self.resolve(path, Follow::No)?.attributes())
    }

    fn contents(&self, path: &[u8]) -> base::Result<Vec<u8>> {
        let node = self.resolve(path, Follow::Yes)?;
        let length = usize::try_from(node.attributes().size).unwrap_or(usize::MAX);
        let mut contents = vec![0; length.min(ACCOUNTS_BYTES_MAX)];
        let length = node.open()?.read_at(&mut contents, 0)?;
        contents.truncate(length);
        Ok(contents)
    }
}

/// Parses the words of an expression.
pub fn parse(words: &[Vec<u8>], lookup: &impl Lookup) -> Result<Query> {
    let mut parser = Parser { words, lookup, nesting: 0, depth_min: 0, depth_max: None };
    let mut expression = match words {
        [] => Expression::All(Vec::new()),
        _ => parser.any()?,
    };
    if let Some(word) = parser.words.first() {
        return Err(usage(word, "is unexpected here; see `bifolio help find`"));
    }
    if !expression.has_action() {
        expression = Expression::All(vec![expression, Expression::Action(Action::Print)]);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp {
        seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: now.subsec_nanos(),
    };
    let Parser { depth_min, depth_max, .. } = parser;
    Ok(Query { expression, depth_min, depth_max, now })
}

struct Parser<'a, L> {
    words: &'a [Vec<u8>],
    lookup: &'a L,
    nesting: usize,
    depth_min: usize,
    depth_max: Option<usize>,
}

impl<'a, L: Lookup> Parser<'a, L> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn accept(&mut self, alternatives: [&[u8]; 2]) -> bool {
        let found = self.words.first().is_some_and(|word| alternatives.contains(&word.as_slice()));
        if found {
            self.next();
        }
        found
    }

    fn any(&mut self) -> Result<Expression> {
        let mut parts = vec![self.all()?];
        while self.accept([b"-o", b"-or"]) {
            parts.push(self.all()?);
        }
        Ok(join(parts, Expression::Any))
    }

    fn all(&mut self) -> Result<Expression> {
        let mut parts = vec![self.one()?];
        loop {
            if self.accept([b"-a", b"-and"]) {
                parts.push(self.one()?);
                continue;
            }
            match self.words.first().map(Vec::as_slice) {
                None | Some(b"-o" | b"-or" | b")") => break,
                Some(_) => parts.push(self.one()?),
            }
        }
        Ok(join(parts, Expression::All))
    }

    fn one(&mut self) -> Result<Expression> {
        let Some(word) = self.next() else {
            return Err(usage(b"expression", "ends where a test is expected"));
        };
        if !matches!(word, b"(" | b"!" | b"-not") {
            return self.primary(word);
        }
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(usage(word, "is nested too deeply"));
        }
        let expression = if word == b"(" {
            let inner = self.any()?;
            if self.next() != Some(b")") {
                return Err(usage(word, "has no closing parenthesis"));
            }
            inner
        } else {
            Expression::Not(Box::new(self.one()?))
        };
        self.nesting -= 1;
        Ok(expression)
    }

    fn primary(&mut self, word: &'a [u8]) -> Result<Expression> {
        let test = match word {
            b"-print" => return Ok(Expression::Action(Action::Print)),
            b"-print0" => return Ok(Expression::Action(Action::PrintNull)),
            b"-ls" => return Ok(Expression::Action(Action::List)),
            b"-prune" => return Ok(Expression::Prune),
            b"-quit" => return Ok(Expression::Quit),
            b"-maxdepth" => {
                self.depth_max = Some(self.levels(word)?);
                Test::Constant(true)
            }
            b"-mindepth" => {
                self.depth_min = self.levels(word)?;
                Test::Constant(true)
            }
            b"-true" => Test::Constant(true),
            b"-false" => Test::Constant(false),
            b"-empty" => Test::Empty,
            b"-name" | b"-iname" => Test::Name(self.glob(word)?),
            b"-path" | b"-ipath" | b"-wholename" | b"-iwholename" => Test::Path(self.glob(word)?),
            b"-lname" | b"-ilname" => Test::LinkTarget(self.glob(word)?),
            b"-xattr" => Test::Xattr(self.glob(word)?),
            b"-type" => Test::Type(self.types(word)?),
            b"-size" => self.size(word)?,
            b"-perm" => Test::Permissions(self.permissions(word)?),
            b"-uid" => Test::Uid(self.number(word)?),
            b"-gid" => Test::Gid(self.number(word)?),
            b"-inum" => Test::Inode(self.number(word)?),
            b"-links" => Test::Links(self.number(word)?),
            b"-user" => Test::Uid(self.account(word, b"/etc/passwd")?),
            b"-group" => Test::Gid(self.account(word, b"/etc/group")?),
            b"-samefile" => Test::Same(self.reference(word)?.inode),
            _ => return self.time(word),
        };
        Ok(Expression::Test(test))
    }

    fn time(&mut self, word: &'a [u8]) -> Result<Expression> {
        let test = match word {
            b"-newer" => Test::Newer(Moment::Modified, self.reference(word)?.modified),
            b"-anewer" => Test::Newer(Moment::Accessed, self.reference(word)?.modified),
            b"-cnewer" => Test::Newer(Moment::Changed, self.reference(word)?.modified),
            _ => {
                let (moment, unit) = match word {
                    b"-atime" => (Moment::Accessed, AgeUnit::Days),
                    b"-ctime" => (Moment::Changed, AgeUnit::Days),
                    b"-mtime" => (Moment::Modified, AgeUnit::Days),
                    b"-amin" => (Moment::Accessed, AgeUnit::Minutes),
                    b"-cmin" => (Moment::Changed, AgeUnit::Minutes),
                    b"-mmin" => (Moment::Modified, AgeUnit::Minutes),
                    _ if word.starts_with(b"--") => {
                        return Err(usage(
                            word,
                            "is not a test or action; options must precede the image",
                        ));
                    }
                    _ => {
                        return Err(usage(
                            word,
                            "is not a test or action; see `bifolio help find`",
                        ));
                    }
                };
                Test::Age(moment, unit, self.number(word)?)
            }
        };
        Ok(Expression::Test(test))
    }

    fn argument(&mut self, word: &[u8]) -> Result<&'a [u8]> {
        self.next().ok_or_else(|| usage(word, "needs an argument"))
    }

    fn glob(&mut self, word: &[u8]) -> Result<Glob> {
        Ok(Glob::new(self.argument(word)?, word.starts_with(b"-i")))
    }

    fn levels(&mut self, word: &[u8]) -> Result<usize> {
        let argument = self.argument(word)?;
        decimal(argument)
            .and_then(|number| usize::try_from(number).ok())
            .ok_or_else(|| usage(word, "needs a number of levels"))
    }

    fn number(&mut self, word: &[u8]) -> Result<Number> {
        let argument = self.argument(word)?;
        number(argument).ok_or_else(|| usage(word, "needs N, +N or -N"))
    }

    fn types(&mut self, word: &[u8]) -> Result<Vec<FileType>> {
        let argument = self.argument(word)?;
        let kind = |letter: &[u8]| {
            Some(match letter {
                b"f" => FileType::Regular,
                b"d" => FileType::Directory,
                b"l" => FileType::Symlink,
                b"c" => FileType::CharacterDevice,
                b"b" => FileType::BlockDevice,
                b"p" => FileType::Fifo,
                b"s" => FileType::Socket,
                _ => return None,
            })
        };
        let kinds: Option<Vec<_>> = argument.split(|&byte| byte == b',').map(kind).collect();
        kinds.ok_or_else(|| usage(word, "needs letters out of f,d,l,c,b,p,s, separated by commas"))
    }

    fn size(&mut self, word: &[u8]) -> Result<Test> {
        let argument = self.argument(word)?;
        let (digits, unit) = match argument {
            [digits @ .., b'c'] => (digits, 1),
            [digits @ .., b'w'] => (digits, 2),
            [digits @ .., b'b'] => (digits, 512),
            [digits @ .., b'k'] => (digits, 1 << 10),
            [digits @ .., b'M'] => (digits, 1 << 20),
            [digits @ .., b'G'] => (digits, 1 << 30),
            digits => (digits, 512),
        };
        let number = number(digits).ok_or_else(|| usage(word, "needs [+-]N[cwbkMG]"))?;
        Ok(Test::Size(number, unit))
    }

    fn permissions(&mut self, word: &[u8]) -> Result<Permissions> {
        let argument = self.argument(word)?;
        let (make, mode): (fn(u16) -> Permissions, _) = match argument {
            [b'-', mode @ ..] => (Permissions::All, mode),
            [b'/', mode @ ..] => (Permissions::Any, mode),
            mode => (Permissions::Exactly, mode),
        };
        let bits = mode_bits(mode);
        bits.map(make).ok_or_else(|| usage(word, "needs a mode such as 644, -u+w or /111"))
    }

    /// Parses a user or group: a number, or a name in `file` of the image.
    fn account(&mut self, word: &[u8], file: &[u8]) -> Result<Number> {
        let argument = self.argument(word)?;
        if let Some(number) = number(argument) {
            return Ok(number);
        }
        let accounts = self.lookup.contents(file);
        let accounts = accounts.map_err(|error| Failure::library(file, &error))?;
        let id = accounts.split(|&byte| byte == b'\n').find_map(|line| {
            let mut fields = line.split(|&byte| byte == b':');
            let name = fields.next()?;
            (name == argument).then(|| decimal(fields.nth(1)?))?
        });
        id.map(Number::Exactly).ok_or_else(|| {
            let advice =
                "give the number; names are those of the image's /etc/passwd and /etc/group";
            let failure = usage(argument, "is not a user or group of the image");
            failure.advise(advice).with_status(Status::Failed)
        })
    }

    fn reference(&mut self, word: &[u8]) -> Result<base::attributes::Attributes> {
        let path = self.argument(word)?;
        // The path may have the image before it, as in other arguments.
        let start = path.windows(2).rposition(|pair| pair == b":/").map_or(0, |colon| colon + 1);
        let path = if path.starts_with(b"/") { path } else { path.get(start..).unwrap_or(path) };
        self.lookup.attributes(path).map_err(|error| Failure::library(path, &error))
    }
}

fn join(mut parts: Vec<Expression>, many: fn(Vec<Expression>) -> Expression) -> Expression {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        Some(last) => {
            parts.push(last);
            many(parts)
        }
        None => many(parts),
    }
}

fn usage(word: &[u8], what: &str) -> Failure {
    let word = text::escape(word);
    Failure::new("find", format!("{word} {what}")).with_status(Status::Usage)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

fn number(text: &[u8]) -> Option<Number> {
    match text {
        [b'+', digits @ ..] => decimal(digits).map(Number::MoreThan),
        [b'-', digits @ ..] => decimal(digits).map(Number::LessThan),
        digits => decimal(digits).map(Number::Exactly),
    }
}

/// Parses a mode in octal, or in letters as in chmod(1), applied to no permissions.
fn mode_bits(text: &[u8]) -> Option<u16> {
    if text.first().is_some_and(u8::is_ascii_digit) {
        let text = std::str::from_utf8(text).ok()?;
        return u16::from_str_radix(text, 8).ok().filter(|&bits| bits <= 0o7777);
    }
    text.split(|&byte| byte == b',').try_fold(0, clause_bits)
}

/// Applies a clause such as `ug+rw` to `mode`.
fn clause_bits(mode: u16, clause: &[u8]) -> Option<u16> {
    let operator = clause.iter().position(|byte| matches!(byte, b'+' | b'-' | b'='))?;
    let (class_letters, rest) = clause.split_at(operator);
    let (&operator, letters) = rest.split_first()?;
    // The permission bits of the classes, and the set-user-ID, set-group-ID or sticky bit that
    // belongs to them.
    let mut classes = 0;
    for letter in if class_letters.is_empty() { b"a" } else { class_letters } {
        classes |= match letter {
            b'u' => 0o4700,
            b'g' => 0o2070,
            b'o' => 0o1007,
            b'a' => 0o7777,
            _ => return None,
        };
    }
    let mut bits = 0;
    for letter in letters {
        bits |= match letter {
            b'r' => classes & 0o444,
            b'w' => classes & 0o222,
            b'x' => classes & 0o111,
            b's' => classes & 0o6000,
            b't' => 0o1000,
            _ => return None,
        };
    }
    Some(match operator {
        b'+' => mode | bits,
        b'-' => mode & !bits,
        _ => mode & !classes | bits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FakeImage;

    impl Lookup for FakeImage {
        fn attributes(&self, _: &[u8]) -> base::Result<base::attributes::Attributes> {
            Err(base::Error::NotFound)
        }

        fn contents(&self, path: &[u8]) -> base::Result<Vec<u8>> {
            assert_eq!(path, b"/etc/passwd");
            Ok(b"root:x:0:0::/:/bin/sh\nann:x:1001:7::/:/bin/sh\nbroken\n".to_vec())
        }
    }

    fn parsed(line: &str) -> Result<Query> {
        let words: Vec<_> = line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        parse(&words, &FakeImage)
    }

    fn test(test: Test) -> Expression {
        Expression::Test(test)
    }

    #[test]
    fn and_has_precedence_over_or_and_print_is_the_default_action() {
        let name = |pattern: &str| test(Test::Name(Glob::new(pattern.as_bytes(), false)));
        let expression = parsed("-name a -name b -o ! -name c").unwrap().expression;
        let inner = Expression::Any(vec![
            Expression::All(vec![name("a"), name("b")]),
            Expression::Not(Box::new(name("c"))),
        ]);
        let print = Expression::Action(Action::Print);
        assert_eq!(expression, Expression::All(vec![inner, print]));
        let expression = parsed("( -name a -o -name b ) -a -print0").unwrap().expression;
        let inner = Expression::Any(vec![name("a"), name("b")]);
        let print = Expression::Action(Action::PrintNull);
        assert_eq!(expression, Expression::All(vec![inner, print]));
    }

    #[test]
    fn tests_parse_their_arguments() {
        let only = |line: &str| match parsed(line).unwrap().expression {
            Expression::All(mut parts) if parts.len() == 2 => parts.remove(0),
            other => panic!("{other:?}"),
        };
        assert_eq!(only("-size +2k"), test(Test::Size(Number::MoreThan(2), 1024)));
        assert_eq!(only("-size 7"), test(Test::Size(Number::Exactly(7), 512)));
        assert_eq!(only("-user ann"), test(Test::Uid(Number::Exactly(1001))));
        assert_eq!(only("-user 12"), test(Test::Uid(Number::Exactly(12))));
        assert_eq!(only("-type f,l"), test(Test::Type(vec![FileType::Regular, FileType::Symlink])));
        assert_eq!(
            only("-mmin -5"),
            test(Test::Age(Moment::Modified, AgeUnit::Minutes, Number::LessThan(5)))
        );
        assert_eq!(only("-perm /222"), test(Test::Permissions(Permissions::Any(0o222))));
        let query = parsed("-mindepth 1 -maxdepth 3").unwrap();
        assert_eq!((query.depth_min, query.depth_max), (1, Some(3)));
    }

    #[test]
    fn modes_are_parsed_as_in_chmod() {
        for (text, bits) in [
            ("644", 0o644),
            ("7777", 0o7777),
            ("u+w", 0o200),
            ("a=r,u+w", 0o644),
            ("+x", 0o111),
            ("u+s", 0o4000),
            ("ug=rwx,g-w", 0o750),
            ("o+t", 0o1000),
        ] {
            assert_eq!(mode_bits(text.as_bytes()), Some(bits), "{text}");
        }
        for bad in ["", "9", "10000", "u", "z+w", "u+q"] {
            assert_eq!(mode_bits(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn invalid_expressions_are_usage_failures() {
        let deep = "( ".repeat(1000);
        for line in [
            "-name",
            "-nome x",
            ")",
            "(",
            "( -true",
            "-true )",
            "-o",
            "-true -o",
            "!",
            "-size x",
            "-size 5q",
            "-type z",
            "-perm 999",
            "-links",
            "-maxdepth -1",
            "--json",
            &deep,
        ] {
            let failure = parsed(line).map(|query| query.expression).unwrap_err();
            assert_eq!(failure.status(), Status::Usage, "{line}");
        }
        assert_eq!(parsed("-user bob").map(|_| ()).unwrap_err().status(), Status::Failed);
    }
}
