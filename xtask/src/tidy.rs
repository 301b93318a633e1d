//! Style rules that are checked line by line. Not here: the rules of rustfmt and clippy.

use std::fs;
use std::path::{Path, PathBuf};

/// The maximum number of lines of a source file. A longer one does more than one job.
const LINES_MAX: usize = 700;

/// The maximum width of a line of comment, as of code (`rustfmt.toml`).
const COMMENT_WIDTH_MAX: usize = 100;

/// Names of files and folders without sources.
const SKIPPED: &[&str] = &[".git", ".cache", "target", "corpus", "artifacts"];

/// Crates that may have unsafe code. All others forbid it.
const MAY_BE_UNSAFE: &[&str] = &["confine", "device", "fuse", "iomap", "pagecache", "testkit"];

/// Texts that no source may contain, with the reasons. Split, so that this file does not contain
/// them either.
const BANNED: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "do it, or file it"),
    (concat!("FIX", "ME"), "fix it, or file it"),
    (concat!("dbg", "!("), "left over from debugging"),
    (concat!("todo", "!("), "unfinished code"),
    (concat!("unimple", "mented!("), "unfinished code"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("arti", "factory"), "a host of one machine's package registry"),
];

/// The only registry that locked crates may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Returns a line for each violation in the repository.
pub fn complaints(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect(root, &mut files);
    files.sort();
    let mut complaints = Vec::new();
    for path in files {
        let Ok(content) = fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let mut found = check(&name, &content);
        if name.ends_with(".md") {
            found.extend(crate::docs::check(root, &name, &content));
        }
        complaints.extend(found.into_iter().map(|problem| format!("{name}: {problem}")));
    }
    complaints
}

/// Adds all files below `folder`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
            continue;
        }
        let kind = entry.file_type().ok();
        if kind.is_some_and(|kind| kind.is_file()) {
            files.push(entry.path());
        } else if kind.is_some_and(|kind| kind.is_dir()) {
            collect(&entry.path(), files);
        }
    }
}

/// Returns the violations in a file.
fn check(name: &str, content: &str) -> Vec<String> {
    if name == "Cargo.lock" {
        return check_lock(content);
    }
    let mut problems = Vec::new();
    if !content.is_empty() && !content.ends_with('\n') {
        problems.push("no newline at the end".to_owned());
    }
    for (number, line) in (1..).zip(content.lines()) {
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(format!("line {number} ends with white space"));
        }
        for (banned, why) in BANNED {
            if line.contains(banned) {
                problems.push(format!("line {number} contains `{banned}`: {why}"));
            }
        }
    }
    if name.ends_with(".rs") {
        check_rust(name, content, &mut problems);
    }
    if name.ends_with("/Cargo.toml")
        && !name.starts_with("fuzz/")
        && !content.contains("[lints]\nworkspace = true\n")
    {
        problems.push("does not use the workspace's lints".to_owned());
    }
    problems
}

fn check_rust(name: &str, content: &str, problems: &mut Vec<String>) {
    if !content.starts_with("//! ") {
        problems.push("does not begin with a `//!` line that describes its one job".to_owned());
    }
    let is_wide = |line: &str| {
        // Tables and drawings cannot be wrapped.
        let is_drawn = line.trim_start().contains("   ") || line.contains(" | ");
        line.trim_start().starts_with("//") && !is_drawn && line.chars().count() > COMMENT_WIDTH_MAX
    };
    for (number, _) in (1..).zip(content.lines()).filter(|row| is_wide(row.1)) {
        problems.push(format!("line {number} is wider than {COMMENT_WIDTH_MAX} columns"));
    }
    let lines = content.lines().count();
    if lines > LINES_MAX {
        problems.push(format!("{lines} lines, more than {LINES_MAX}: split it by its jobs"));
    }
    let crate_name = match name.split('/').collect::<Vec<_>>()[..] {
        ["crates", crate_name, "src", "lib.rs" | "main.rs"] => crate_name,
        ["xtask", "src", "main.rs"] => "xtask",
        _ => return,
    };
    if !MAY_BE_UNSAFE.contains(&crate_name) && !content.contains("#![forbid(unsafe_code)]") {
        problems.push("does not forbid unsafe code".to_owned());
    }
}

fn check_lock(content: &str) -> Vec<String> {
    content
        .lines()
        .filter(|line| line.starts_with("source = ") && !line.contains(REGISTRY))
        .map(|line| format!("a crate that is not from crates.io: {line}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "//! One job.\n#![forbid(unsafe_code)]\n";

    #[test]
    fn tidy_sources_pass() {
        assert_eq!(check("crates/base/src/lib.rs", GOOD), Vec::<String>::new());
        assert_eq!(check("README.md", "Text.\n"), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        let long = format!("{GOOD}{}", "\n".repeat(LINES_MAX));
        for (name, content) in [
            ("crates/base/src/lib.rs", "#![forbid(unsafe_code)]\n"),
            ("crates/base/src/lib.rs", "//! One job.\n"),
            ("crates/base/src/units.rs", "//! One job.\nfn f() {} \n"),
            ("crates/base/src/units.rs", "//! One job."),
            ("crates/base/src/units.rs", concat!("//! One job.\n// TO", "DO: later\n")),
            ("crates/base/src/units.rs", &long),
            (
                "crates/base/src/units.rs",
                &format!("//! One job.\n/// {}\n", "word ".repeat(20) + "w"),
            ),
            ("crates/base/Cargo.toml", "[package]\n"),
            ("Cargo.lock", "source = \"registry+https://example.org/index\"\n"),
        ] {
            assert_eq!(check(name, content).len(), 1, "{name}: {content:?}");
        }
    }
}
