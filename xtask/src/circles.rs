//! The check of circles inside crates: modules that import each other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::modules::{self, Imports};

/// The maximum number of modules in a circle. More cannot be understood, or changed, one at a time.
const CIRCLE_MAX: usize = 8;

/// Returns a line for each circle of a crate that is too large.
pub fn complaints(root: &Path) -> Vec<String> {
    let crates = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let mut folders: Vec<_> = crates.map(|entry| entry.path()).collect();
    folders.push(root.join("xtask"));
    folders.sort();
    let of_crate = |folder: &std::path::PathBuf| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        check(&name, &modules::imports(&folder.join("src")))
    };
    folders.iter().flat_map(of_crate).collect()
}

/// Returns a line for each circle of the crate `name` that is too large.
fn check(name: &str, imports: &Imports) -> Vec<String> {
    let too_large = circles(imports).into_iter().filter(|circle| circle.len() > CIRCLE_MAX);
    too_large
        .map(|circle| {
            let (count, names) = (circle.len(), Vec::from_iter(circle).join(", "));
            format!("{name}: {count} modules import each other, at most {CIRCLE_MAX} may: {names}")
        })
        .collect()
}

/// Returns the circles: the largest sets of modules of which each imports all others, directly or
/// through others.
fn circles(imports: &Imports) -> Vec<BTreeSet<&str>> {
    let mut circles = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for module in imports.keys().map(String::as_str) {
        if done.contains(module) {
            continue;
        }
        let leads_back = |other: &&str| reached(imports, other).contains(module);
        let circle: BTreeSet<&str> =
            reached(imports, module).into_iter().filter(leads_back).collect();
        done.extend(&circle);
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// Returns the modules that `from` imports, directly or through others.
fn reached<'i>(imports: &'i Imports, from: &str) -> BTreeSet<&'i str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(module) = next.pop() {
        for import in imports.get(module).into_iter().flatten() {
            if reached.insert(import.as_str()) {
                next.push(import);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns sources of `count` modules, each of which imports the next one, and the last one the
    /// first one.
    fn ring(count: usize) -> BTreeMap<String, String> {
        let source = |at: usize| format!("use crate::m{}::Type;\n", (at + 1) % count);
        (0..count).map(|at| (format!("m{at}"), source(at))).collect()
    }

    #[test]
    fn no_crate_has_a_circle_that_is_too_large() {
        assert_eq!(complaints(crate::root()), Vec::<String>::new());
    }

    #[test]
    fn a_circle_is_found_once_it_is_too_large() {
        let complaints = |count| check("planted", &modules::of_sources(&ring(count)));
        assert!(complaints(CIRCLE_MAX).is_empty());
        let found = complaints(CIRCLE_MAX + 1);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("m0, m1, m2"), "{found:?}");
    }

    #[test]
    fn modules_that_only_lead_to_a_circle_are_not_in_it() {
        let mut sources = ring(3);
        sources.insert("above".to_owned(), "use crate::m1;\n".to_owned());
        sources.insert("m1".to_owned(), "use crate::{below, m2};\n".to_owned());
        sources.insert("below".to_owned(), String::new());
        let imports = modules::of_sources(&sources);
        assert_eq!(circles(&imports), [BTreeSet::from(["m0", "m1", "m2"])]);
    }
}
