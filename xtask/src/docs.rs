//! References of the documents: links to files, and paths of sources. Not here: links to web pages.

use std::path::Path;

/// Returns the references in `content`, a document at `name`, which lead nowhere.
pub fn check(root: &Path, name: &str, content: &str) -> Vec<String> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let links = links(content).filter(|link| !root.join(folder).join(link).exists());
    let links = links.map(|link| format!("the link to {link} leads nowhere"));
    let paths = paths(content).filter(|path| !is_source(root, path));
    links.chain(paths.map(|path| format!("there is no `{path}`"))).collect()
}

/// Returns the targets of links to files, without the sections in them.
fn links(content: &str) -> impl Iterator<Item = &str> {
    let targets = content.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let files = targets.map(|(target, _)| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains("://"))
}

/// Returns the texts in backquotes that are paths of sources or their folders: `fs/inode.rs`,
/// `ext4/data/`.
fn paths(content: &str) -> impl Iterator<Item = &str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_/.-".contains(&byte);
    let quoted = content.split('`').skip(1).step_by(2);
    quoted.filter(move |text| {
        let begins_with_crate = text.split_once('/').is_some_and(|(first, rest)| {
            let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            !rest.is_empty() && first.bytes().all(is_name)
        });
        let is_source = text.ends_with(".rs") || text.ends_with('/');
        begins_with_crate && is_source && text.bytes().all(is_plain)
    })
}

/// Returns whether `path` exists: from the top, in `crates/`, or with the sources of the crate that
/// it begins with.
fn is_source(root: &Path, path: &str) -> bool {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let crates = root.join("crates");
    [root.join(path), crates.join(path), crates.join(first).join("src").join(rest)]
        .iter()
        .any(|candidate| candidate.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_that_lead_nowhere_are_found() {
        let root = crate::root();
        let sound = "[a](../../README.md#x), [b](https://example.org/), `xtask/src/docs.rs`, `fs/inode.rs`, \
                     `ext4/tests/`, `make test`, `a/b`";
        assert_eq!(check(root, "docs/design/io.md", sound), [""; 0]);
        let damaged = "[a](README.md), `fs/no_such_file.rs`, `fs/none/`";
        let found = check(root, "docs/design/io.md", damaged);
        assert_eq!(
            found,
            [
                "the link to README.md leads nowhere",
                "there is no `fs/no_such_file.rs`",
                "there is no `fs/none/`"
            ]
        );
    }
}
