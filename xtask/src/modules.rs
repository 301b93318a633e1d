//! The modules of a crate and their imports, as its sources have them. Not here: the rules for them
//! (`circles.rs`, `floors.rs`).
//!
//! An import is a path that begins with `crate`, `super` or `self`. Tests are left out, and so is
//! the root of the crate, which only names the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::Path;

/// The imports of each module, by path: `inode::record`.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the imports of the crate whose sources are below `folder`.
pub fn imports(folder: &Path) -> Imports {
    let mut sources = BTreeMap::new();
    collect(folder, &mut Vec::new(), &mut sources);
    of_sources(&sources)
}

/// Adds the sources below `folder`, by module. `parents` is the path of the folder's module.
fn collect(folder: &Path, parents: &mut Vec<String>, sources: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains("test") {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            parents.push(name);
            collect(&entry.path(), parents, sources);
            parents.pop();
        } else if let Some(stem) = name.strip_suffix(".rs") {
            let own = if matches!(stem, "mod" | "lib" | "main") { None } else { Some(stem) };
            let path: Vec<&str> = parents.iter().map(String::as_str).chain(own).collect();
            let source = fs::read_to_string(entry.path()).unwrap_or_default();
            sources.insert(path.join("::"), source);
        }
    }
}

/// Returns the imports of modules with these sources. The root has an empty path.
pub fn of_sources(sources: &BTreeMap<String, String>) -> Imports {
    let mut imports = Imports::new();
    for (module, source) in sources.iter().filter(|(module, _)| !module.is_empty()) {
        let paths = paths(without_tests(source));
        let found = paths.iter().filter_map(|path| resolve(module, path, sources));
        imports.insert(module.clone(), found.filter(|found| found != module).collect());
    }
    imports
}

/// Returns the module that a path in `module` leads to, or into. `None` for the root.
fn resolve(module: &str, path: &[String], sources: &BTreeMap<String, String>) -> Option<String> {
    let mut full: Vec<&str> = module.split("::").collect();
    for segment in path {
        match segment.as_str() {
            "crate" => full.clear(),
            "super" => drop(full.pop()),
            "self" => {}
            name => full.push(name),
        }
    }
    while !full.is_empty() {
        let found = full.join("::");
        if sources.contains_key(&found) {
            return Some(found);
        }
        full.pop();
    }
    None
}

/// Returns the source before its tests.
fn without_tests(source: &str) -> &str {
    let starts = ["#[cfg(test)]\nmod ", "#[cfg(all(test"];
    let end = starts.iter().filter_map(|start| {
        // A test module in a file of its own has no body here.
        let at = source.find(start)?;
        let declaration = source[at..].split('\n').nth(1)?;
        declaration.ends_with('{').then_some(at)
    });
    &source[..end.min().unwrap_or(source.len())]
}

/// Returns the paths in `source` that begin with `crate`, `super` or `self`.
fn paths(source: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let mut tokens = tokens(source).into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            "use" => tree(&mut tokens, &[], &mut paths),
            "crate" | "super" if tokens.peek() == Some(&"::") => {
                let mut path = vec![token.to_owned()];
                while tokens.next_if_eq(&"::").is_some() {
                    path.extend(tokens.next_if(|next| is_name(next)).map(str::to_owned));
                }
                paths.push(path);
            }
            _ => {}
        }
    }
    paths.retain(|path| {
        path.first().is_some_and(|first| matches!(first.as_str(), "crate" | "super" | "self"))
    });
    paths
}

/// Adds the paths of the rest of a `use` declaration, all of which begin with `before`.
fn tree<'s>(
    tokens: &mut Peekable<impl Iterator<Item = &'s str>>,
    before: &[String],
    paths: &mut Vec<Vec<String>>,
) {
    let mut path = before.to_vec();
    while let Some(token) = tokens.next_if(|next| !matches!(*next, ";" | "," | "}")) {
        match token {
            "{" => {
                while tokens.peek().is_some_and(|next| !matches!(*next, "}" | ";")) {
                    tree(tokens, &path, paths);
                    tokens.next_if_eq(&",");
                }
                tokens.next_if_eq(&"}");
                return;
            }
            "as" => drop(tokens.next()),
            name if is_name(name) => path.push(name.to_owned()),
            _ => {}
        }
    }
    paths.push(path);
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphanumeric() || first == '_')
}

/// Returns the names, double colons and other characters of `source`, without comments and white
/// space.
fn tokens(source: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    for line in source.lines() {
        let mut rest = line.split("//").next().unwrap_or_default().trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_name(rest) {
                let ends = |next: char| !next.is_alphanumeric() && next != '_';
                rest.find(ends).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(&rest[..length]);
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_found_in_declarations_and_paths_but_not_in_comments_and_tests() {
        let source = "
            use std::fmt; // crate::nothing
            pub(crate) use super::{sibling::{Type as Other, part::{self, *}}, Item};
            use crate::folio;
            fn call() -> crate::path::Value { super::function() }
            #[cfg(test)]
            mod tests;
            use self::child::Child;
#[cfg(test)]
mod tests {
    use crate::only_in_tests;
}
";
        let found = paths(without_tests(source));
        let found: Vec<String> = found.iter().map(|path| path.join("::")).collect();
        assert_eq!(
            found,
            [
                "super::sibling::Type",
                "super::sibling::part::self",
                "super::sibling::part",
                "super::Item",
                "crate::folio",
                "crate::path::Value",
                "super::function",
                "self::child::Child",
            ]
        );
    }

    #[test]
    fn paths_lead_to_the_nearest_module() {
        let names = ["", "a", "a::b", "a::c", "d"];
        let sources = names.map(|name| (name.to_owned(), String::new())).into();
        let resolve = |module: &str, path: &str| {
            let path: Vec<String> = path.split("::").map(str::to_owned).collect();
            resolve(module, &path, &sources)
        };
        assert_eq!(resolve("a::b", "super::c::Type"), Some("a::c".to_owned()));
        assert_eq!(resolve("a::b", "super::Type"), Some("a".to_owned()));
        assert_eq!(resolve("a", "self::b::Type"), Some("a::b".to_owned()));
        assert_eq!(resolve("a::b", "crate::d"), Some("d".to_owned()));
        assert_eq!(resolve("a::b", "crate::ROOT"), None);
    }
}
