//! Case folding of names, as Linux does it: decomposition (NFD), full case folding, and no ignorable characters, with
//! the characters of Unicode 12.1.
//! Not here: comparison, and hashes.
//!
//! Linux folds and decomposes each character by itself, and then puts combining marks in order. The standard's order
//! of these steps differs for U+0345. Unicode keeps foldings and decompositions of assigned characters, so the tables
//! of any later version give the same results for the characters of 12.1. A name with other characters is not valid.
//!
//! Source: kernel documentation, `filesystems/f2fs.rst` and `admin-guide/ext4.rst`, "case-insensitive".

use caseless::Caseless;
use smallvec::SmallVec;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

use super::NAME_BYTES_MAX;
use super::assigned::is_assigned;

/// The longest folded name. Linux folds into a buffer of 255 bytes, which also holds a terminator.
const FOLDED_BYTES_MAX: usize = NAME_BYTES_MAX - 1;

/// The ranges of Default_Ignorable_Code_Point in Unicode 12.1.
const IGNORABLE: [(char, char); 17] = [
    ('\u{AD}', '\u{AD}'),
    ('\u{34F}', '\u{34F}'),
    ('\u{61C}', '\u{61C}'),
    ('\u{115F}', '\u{1160}'),
    ('\u{17B4}', '\u{17B5}'),
    ('\u{180B}', '\u{180E}'),
    ('\u{200B}', '\u{200F}'),
    ('\u{202A}', '\u{202E}'),
    ('\u{2060}', '\u{206F}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{FE00}', '\u{FE0F}'),
    ('\u{FEFF}', '\u{FEFF}'),
    ('\u{FFA0}', '\u{FFA0}'),
    ('\u{FFF0}', '\u{FFF8}'),
    ('\u{1BCA0}', '\u{1BCA3}'),
    ('\u{1D173}', '\u{1D17A}'),
    ('\u{E0000}', '\u{E0FFF}'),
];

/// Returns the folded form of a name. Names with the same form are the same name to a directory that ignores case.
/// `None` if the name is not valid Unicode, or its folded form is empty or too long: then it is only equal to itself.
pub(super) fn fold(name: &[u8]) -> Option<Vec<u8>> {
    let mut folded = Folded::default();
    for character in std::str::from_utf8(name).ok()?.chars() {
        if !is_assigned(character) {
            return None;
        }
        if is_ignorable(character) {
            // Marks stay on their side of a character that is left out.
            folded.end_marks();
        } else {
            expand(character, &mut |character| folded.push(character));
        }
    }
    folded.end_marks();
    let bytes = folded.text.into_bytes();
    (1..=FOLDED_BYTES_MAX).contains(&bytes.len()).then_some(bytes)
}

fn is_ignorable(character: char) -> bool {
    IGNORABLE.iter().any(|&(first, last)| (first..=last).contains(&character))
}

/// Folds and decomposes `character` until nothing changes. The recursion ends, since both are finite: Unicode's tables
/// have no cycles.
fn expand(character: char, push: &mut dyn FnMut(char)) {
    let folded: SmallVec<[char; 3]> = std::iter::once(character).default_case_fold().collect();
    if *folded != [character] {
        folded.into_iter().for_each(|character| expand(character, push));
        return;
    }
    decompose_canonical(character, |part| match part {
        part if part == character => push(part),
        part => expand(part, push),
    });
}

/// A folded text, and the marks that follow it in an order that is not known yet.
#[derive(Default)]
struct Folded {
    text: String,
    /// Combining marks, with their combining class.
    marks: SmallVec<[(u8, char); 4]>,
}

impl Folded {
    fn push(&mut self, character: char) {
        match canonical_combining_class(character) {
            0 => {
                self.end_marks();
                self.text.push(character);
            }
            class => self.marks.push((class, character)),
        }
    }

    /// Appends the marks in the order of their classes. Marks of the same class keep their order.
    fn end_marks(&mut self) {
        self.marks.sort_by_key(|&(class, _)| class);
        self.text.extend(self.marks.drain(..).map(|(_, mark)| mark));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: &str) {
        let folded = fold(name.as_bytes()).map(|folded| String::from_utf8(folded).unwrap());
        assert_eq!(folded.as_deref(), Some(expected), "{name:?}");
    }

    #[test]
    fn letters_are_folded_and_decomposed() {
        check("README.txt", "readme.txt");
        check("Straße", "strasse");
        check("\u{1E9E}", "ss");
        check("É", "e\u{301}");
        check("\u{130}", "i\u{307}");
        check("ΌΣΟΣ", "ο\u{301}σοσ");
        check("\u{FB03}", "ffi");
        check("한", "\u{1112}\u{1161}\u{11AB}");
        check("\u{212B}", "a\u{30A}");
    }

    #[test]
    fn marks_are_ordered_by_class_up_to_the_next_letter() {
        check("q\u{307}\u{323}", "q\u{323}\u{307}");
        check("q\u{307}\u{301}", "q\u{307}\u{301}");
        check("q\u{307}\u{34F}\u{323}", "q\u{307}\u{323}");
        check("\u{307}\u{323}", "\u{323}\u{307}");
    }

    #[test]
    fn the_iota_below_a_letter_becomes_a_letter_before_marks_are_ordered() {
        check("\u{1FB3}\u{301}", "\u{3B1}\u{3B9}\u{301}");
        check("\u{345}\u{301}", "\u{3B9}\u{301}");
    }

    #[test]
    fn ignorable_characters_are_left_out() {
        check("a\u{200D}b\u{AD}", "ab");
        assert_eq!(fold("\u{200D}".as_bytes()), None, "the folded form is empty");
    }

    #[test]
    fn names_that_are_not_unicode_or_too_long_have_no_folded_form() {
        for name in [&b"a\xFF"[..], b"\xED\xA0\x80", b"\xC0\x80", "\u{1FAC0}".as_bytes(), b""] {
            assert_eq!(fold(name), None, "{name:?}");
        }
        // Unassigned, though ignorable.
        assert_eq!(fold("\u{E0FFF}".as_bytes()), None);
        assert_eq!(fold(&[b'A'; 254]).unwrap(), [b'a'; 254]);
        assert_eq!(fold(&[b'A'; 255]), None);
    }
}
