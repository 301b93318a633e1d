//! Shell patterns on bytes, as in fnmatch(3): `*`, `?`, `[…]` and the backslash.
//! They match all characters, also `/` and a leading dot.

/// A pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob {
    pattern: Vec<u8>,
    ignore_case: bool,
}

impl Glob {
    /// Creates a pattern. `ignore_case` applies to ASCII letters.
    pub fn new(pattern: &[u8], ignore_case: bool) -> Self {
        Self { pattern: pattern.to_vec(), ignore_case }
    }

    /// Returns whether the pattern matches all of `text`.
    pub fn matches(&self, text: &[u8]) -> bool {
        let (mut pattern, mut rest) = (self.pattern.as_slice(), text);
        // If a character does not match, the search continues after the last star, one character
        // later. Earlier stars are not tried again, so the time is bounded by the product of both
        // lengths.
        let mut retry: Option<(&[u8], &[u8])> = None;
        loop {
            if let [b'*', after @ ..] = pattern {
                (pattern, retry) = (after, Some((after, rest)));
                continue;
            }
            if pattern.is_empty() && rest.is_empty() {
                return true;
            }
            if let Some((after_pattern, after_rest)) = self.match_one(pattern, rest) {
                (pattern, rest) = (after_pattern, after_rest);
                continue;
            }
            let Some((after_star, from)) = retry else { return false };
            let Some(later) = from.get(character_bytes(from)..).filter(|_| !from.is_empty()) else {
                return false;
            };
            (pattern, rest, retry) = (after_star, later, Some((after_star, later)));
        }
    }

    /// Matches one element of the pattern with one character. Returns the rest of both.
    fn match_one<'p, 't>(&self, pattern: &'p [u8], text: &'t [u8]) -> Option<(&'p [u8], &'t [u8])> {
        let &byte = text.first()?;
        match pattern {
            [b'?', after @ ..] => Some((after, text.get(character_bytes(text)..)?)),
            [b'[', class @ ..] => {
                match match_bracket(class, self.fold(byte), |byte| self.fold(byte)) {
                    Some((contains, after)) => contains.then_some((after, &text[1..])),
                    None => (byte == b'[').then_some((class, &text[1..])),
                }
            }
            [b'\\', literal, after @ ..] | [literal, after @ ..] => {
                (self.fold(*literal) == self.fold(byte)).then_some((after, &text[1..]))
            }
            [] => None,
        }
    }

    fn fold(&self, byte: u8) -> u8 {
        if self.ignore_case { byte.to_ascii_lowercase() } else { byte }
    }
}

/// Returns the length of the first character. A byte that is not UTF-8 is a character.
fn character_bytes(text: &[u8]) -> usize {
    let head = text.get(..4).unwrap_or(text);
    let chunk = head.utf8_chunks().next();
    chunk.and_then(|chunk| chunk.valid().chars().next()).map_or(1, char::len_utf8)
}

/// Returns whether the bracket expression at the start of `pattern`, after its opening bracket,
/// contains `byte`, and the rest of the pattern. Returns `None` without a closing bracket: the
/// opening bracket is then an ordinary character.
fn match_bracket(pattern: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut contains = false;
    let mut first = true;
    loop {
        match rest {
            [b']', after @ ..] if !first => return Some((contains != negated, after)),
            [b'[', b':', after @ ..] => {
                let end = after.windows(2).position(|pair| pair == b":]")?;
                contains |= is_in_class(&after[..end], byte);
                rest = &after[end + 2..];
            }
            [low, b'-', high, after @ ..] if *high != b']' => {
                contains |= (fold(*low)..=fold(*high)).contains(&byte);
                rest = after;
            }
            [b'\\', literal, after @ ..] | [literal, after @ ..] => {
                contains |= fold(*literal) == byte;
                rest = after;
            }
            [] => return None,
        }
        first = false;
    }
}

fn is_in_class(class: &[u8], byte: u8) -> bool {
    match class {
        b"alpha" => byte.is_ascii_alphabetic(),
        b"digit" => byte.is_ascii_digit(),
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"upper" => byte.is_ascii_uppercase(),
        b"lower" => byte.is_ascii_lowercase(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"punct" => byte.is_ascii_punctuation(),
        b"cntrl" => byte.is_ascii_control(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"graph" => byte.is_ascii_graphic(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let glob = Glob::new(pattern.as_bytes(), false);
        for text in matching {
            assert!(glob.matches(text.as_bytes()), "{pattern} should match {text}");
        }
        for text in others {
            assert!(!glob.matches(text.as_bytes()), "{pattern} should not match {text}");
        }
    }

    #[test]
    fn patterns_match_as_in_the_shell() {
        check("", &[""], &["a"]);
        check("*", &["", "a", ".hidden", "a/b"], &[]);
        check("*.rs", &["main.rs", ".rs"], &["main.rs~", "rs"]);
        check("a*b*c", &["abc", "aXbYc", "abbcc"], &["abcd", "acb"]);
        check("?", &["a", "ä", "€"], &["", "ab"]);
        check("[a-c]x", &["ax", "cx"], &["dx", "x"]);
        check("[!a-c]", &["d", "]"], &["a", ""]);
        check("[]a]", &["]", "a"], &["b"]);
        check("[a-]", &["a", "-"], &["b"]);
        check("[[:digit:][:upper:]]", &["7", "Q"], &["q"]);
        check("[", &["["], &["a"]);
        check("[ab", &["[ab"], &["a"]);
        check(r"\*\[", &["*["], &["a["]);
        check(r"a\", &[r"a\"], &["a"]);
    }

    #[test]
    fn bytes_that_are_not_utf8_match_one_by_one() {
        let glob = Glob::new(b"??\xff", false);
        assert!(glob.matches(b"\xe9\x80\xff"));
        assert!(Glob::new(b"ABC[d-f]", true).matches(b"aBcE"));
    }

    #[test]
    fn many_stars_do_not_take_long() {
        let glob = Glob::new(&b"*a".repeat(50), false);
        assert!(!glob.matches(&b"a".repeat(40).into_iter().chain(*b"b").collect::<Vec<_>>()));
        assert!(glob.matches(&b"a".repeat(5000)));
    }
}
