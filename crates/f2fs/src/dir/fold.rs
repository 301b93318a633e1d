//! Case folding of names, as Linux does it: decomposition (NFD), full case folding, and no
//! ignorable characters, with the characters of Unicode 12.1. Not here: comparison, and hashes.
//!
//! Linux folds and decomposes each character by itself, and then puts combining marks in order. The
//! standard's order of these steps differs for U+0345. Unicode keeps foldings and decompositions of
//! assigned characters, so the tables of any later version give the same results for the characters
//! of 12.1. Other characters stay as they are.
//!
//! Source: kernel documentation, `filesystems/f2fs.rst` and `admin-guide/ext4.rst`,
//! "case-insensitive".

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

/// Returns the folded form of a name. Names with the same form are the same name to a directory
/// that ignores case. `None` if the name is not valid Unicode, or its folded form is empty or too
/// long: then it is only equal to itself.
pub(super) fn fold(name: &[u8]) -> Option<Vec<u8>> {
    let mut folded = Folded::default();
    for character in std::str::from_utf8(name).ok()?.chars() {
        if is_ignorable(character) {
            // Marks stay on their side of a character that is left out.
            folded.end_marks();
        } else if is_assigned(character) {
            expand(character, &mut |character| folded.push(character));
        } else {
            folded.push_letter(character);
        }
    }
    folded.end_marks();
    let bytes = folded.text.into_bytes();
    (1..=FOLDED_BYTES_MAX).contains(&bytes.len()).then_some(bytes)
}

fn is_ignorable(character: char) -> bool {
    IGNORABLE.iter().any(|&(first, last)| (first..=last).contains(&character))
}

/// Folds and decomposes `character` until nothing changes. The recursion ends, since both are
/// finite: Unicode's tables have no cycles.
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
            0 => self.push_letter(character),
            class => self.marks.push((class, character)),
        }
    }

    /// Appends a character that is no combining mark.
    fn push_letter(&mut self, character: char) {
        self.end_marks();
        self.text.push(character);
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
    fn characters_of_later_versions_stay_as_they_are() {
        // A capital letter of 14.0, a combining mark of 13.0.
        check("A\u{2C2F}", "a\u{2C2F}");
        check("\u{301}\u{1AC0}\u{323}", "\u{301}\u{1AC0}\u{323}");
        check("A\u{E0FFF}", "a");
    }

    #[test]
    fn names_that_are_not_unicode_or_too_long_have_no_folded_form() {
        for name in [&b"a\xFF"[..], b"\xED\xA0\x80", b"\xC0\x80", b""] {
            assert_eq!(fold(name), None, "{name:?}");
        }
        assert_eq!(fold(&[b'A'; 254]).unwrap(), [b'a'; 254]);
        assert_eq!(fold(&[b'A'; 255]), None);
    }

    /// Checks the hash of a folded name. `expected` is what fsck.f2fs computes for the name in a
    /// directory that ignores case.
    #[track_caller]
    fn check_hash(name: &str, expected: u32) {
        let folded = fold(name.as_bytes()).unwrap();
        assert_eq!(super::super::hash::name_hash(&folded), expected, "{name:?}");
    }

    #[test]
    fn hashes_of_folded_names_equal_those_of_fsck() {
        check_hash("README.txt", 0xBF91_66DE);
        check_hash("Straße", 0xD6E5_379A);
        check_hash("\u{1E9E}", 0xFE0D_6840);
        check_hash("É", 0x023B_852C);
        check_hash("\u{130}x", 0x0582_C6F4);
        check_hash("ΌΣΟΣ", 0x1B6D_3C20);
        check_hash("\u{FB03}", 0xFEDF_18DD);
        check_hash("한", 0x031D_012C);
        check_hash("q\u{307}\u{323}", 0xB6F5_9F99);
        check_hash("q\u{307}\u{34F}\u{323}", 0x9AD0_0852);
        check_hash("\u{1FB3}\u{301}", 0xDF95_3CD3);
        check_hash("\u{345}\u{301}", 0x0CC5_561C);
        check_hash("a\u{200D}b\u{AD}", 0xD27D_8659);
        check_hash("A\u{378}", 0xA365_4C39);
    }
}
