//! The mount options that a volume has of its own, and that have no effect here.
//! Not here: those that have (`ext4/superblock/default_options.rs`).

use fuse::split_option;
use vfs::DefaultOptions;

use super::table::{self, Disposition};

/// Returns a warning that names the default options of a volume that have no effect, and are not
/// those of the table that change nothing. `given` are the names of options of the command line,
/// which override them.
pub fn warning(defaults: &DefaultOptions, given: &[String]) -> Option<String> {
    let is_without_effect = |option: &&String| {
        let (name, value) = split_option(option);
        let is_accepted = table::find(name, value).is_ok_and(|found| {
            found.formats.has("ext4") && matches!(found.disposition, Disposition::Accepted(_))
        });
        !is_accepted && !given.iter().any(|given| is_about_the_same(given, name))
    };
    let names: Vec<String> = defaults
        .others
        .iter()
        .filter(is_without_effect)
        .map(|option| format!("`{option}`"))
        .collect();
    let (noun, verb, which) = match names.len() {
        0 => return None,
        1 => ("default mount option", "has", "it"),
        _ => ("default mount options", "have", "them"),
    };
    let names = names.join(", ");
    Some(format!(
        "the {noun} {names} of the volume {verb} no effect here; `tune2fs` (-o and -E mount_opts=) changes {which}"
    ))
}

/// Returns whether two names differ at most in the prefix `no`.
fn is_about_the_same(one: &str, other: &str) -> bool {
    let stem = |name| str::strip_prefix(name, "no").unwrap_or(name).to_owned();
    stem(one) == stem(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warn(others: &[&str], given: &[&str]) -> Option<String> {
        let owned =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
        let defaults = DefaultOptions { bsd_groups: true, others: owned(others) };
        warning(&defaults, &owned(given))
    }

    #[test]
    fn only_options_without_effect_are_named_unless_the_command_line_overrides_them() {
        assert_eq!(warn(&["acl", "user_xattr", "data=ordered", "block_validity"], &[]), None);
        let warning = warn(&["acl", "nobarrier", "data=journal", "frob"], &[]).unwrap();
        assert!(warning.contains("`nobarrier`, `data=journal`, `frob` of"), "{warning}");
        let warning = warn(&["nodelalloc"], &["ro"]).unwrap();
        assert!(warning.contains("option `nodelalloc` of the volume has"), "{warning}");
        assert_eq!(warn(&["nodelalloc", "data=journal"], &["delalloc", "data"]), None);
    }
}
