//! Types, permissions and inode flags as text.

use base::attributes::FileType;

/// Returns the letter of a type in `ls -l`.
pub fn type_letter(kind: FileType) -> char {
    match kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    }
}

/// Returns a type in the words of stat(1).
pub fn type_words(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharacterDevice => "character special file",
        FileType::BlockDevice => "block special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Returns a type as a word for scripts.
pub fn type_key(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharacterDevice => "character_device",
        FileType::BlockDevice => "block_device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Formats type and permissions as in `ls -l`, such as `drwxr-xr-t`.
pub fn mode_text(kind: FileType, permissions: u16) -> String {
    let mut text = String::with_capacity(10);
    text.push(type_letter(kind));
    // For owner, group and others: the shift, and the bit that replaces the letter x.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = permissions >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, permissions & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Inode flags in the order of `lsattr`: bit, letter, name.
const FLAGS: [(u32, char, &str); 22] = [
    (0x0000_0001, 's', "secure_deletion"),
    (0x0000_0002, 'u', "undelete"),
    (0x0000_0008, 'S', "synchronous"),
    (0x0001_0000, 'D', "synchronous_directory"),
    (0x0000_0010, 'i', "immutable"),
    (0x0000_0020, 'a', "append_only"),
    (0x0000_0040, 'd', "no_dump"),
    (0x0000_0080, 'A', "no_access_time"),
    (0x0000_0004, 'c', "compressed"),
    (0x0000_0800, 'E', "encrypted"),
    (0x0000_4000, 'j', "journaled_data"),
    (0x0000_1000, 'I', "indexed_directory"),
    (0x0000_8000, 't', "no_tail"),
    (0x0002_0000, 'T', "top_directory"),
    (0x0008_0000, 'e', "extents"),
    (0x0080_0000, 'C', "no_copy_on_write"),
    (0x0200_0000, 'x', "direct_access"),
    (0x4000_0000, 'F', "casefolded"),
    (0x1000_0000, 'N', "inline_data"),
    (0x2000_0000, 'P', "project_inherit"),
    (0x0010_0000, 'V', "verity"),
    (0x0000_0400, 'm', "no_compression"),
];

/// Formats inode flags as in `lsattr`.
pub fn flag_letters(flags: u32) -> String {
    FLAGS.iter().map(|&(bit, letter, _)| if flags & bit != 0 { letter } else { '-' }).collect()
}

/// Returns the inode flag of a letter of `lsattr`.
pub fn flag(letter: char) -> Option<u32> {
    FLAGS.iter().find(|(_, known, _)| *known == letter).map(|(bit, ..)| *bit)
}

/// Returns the names of the inode flags that are set.
pub fn flag_names(flags: u32) -> Vec<&'static str> {
    FLAGS.iter().filter(|(bit, ..)| flags & bit != 0).map(|&(.., name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_format_of_ls() {
        for (kind, permissions, expected) in [
            (FileType::Regular, 0o644, "-rw-r--r--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Directory, 0o1776, "drwxrwxrwT"),
            (FileType::Regular, 0o6755, "-rwsr-sr-x"),
            (FileType::Regular, 0o6644, "-rwSr-Sr--"),
            (FileType::Symlink, 0o777, "lrwxrwxrwx"),
            (FileType::CharacterDevice, 0o600, "crw-------"),
            (FileType::Fifo, 0, "p---------"),
        ] {
            assert_eq!(mode_text(kind, permissions), expected);
        }
    }

    #[test]
    fn flags_have_the_format_of_lsattr() {
        assert_eq!(flag_letters(0x0008_0000), "--------------e-------");
        assert_eq!(flag_letters(0x10 | 0x40), "----i-d---------------");
        assert_eq!(flag_names(0x1008_0000), ["extents", "inline_data"]);
    }
}
