//! The layers of the workspace's crates, and the check of their dependencies.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// All crates and their layers. A crate may depend only on crates of lower layers.
const LAYERS: &[(&str, u32)] = &[
    ("bifolio-base", 0),
    ("bifolio-confine", 0),
    ("bifolio-device", 1),
    ("bifolio-pagecache", 1),
    ("bifolio-iomap", 2),
    ("bifolio-fscrypt", 3),
    ("bifolio-verity", 3),
    ("bifolio-fs", 4),
    ("bifolio-ext4", 5),
    ("bifolio-f2fs", 5),
    ("bifolio-vfs", 6),
    ("bifolio-fuse", 7),
    ("bifolio", 8),
];

/// Downward edges that are forbidden, too: transports depend on no format or device, and formats
/// use the cache only through `iomap`.
const FORBIDDEN: &[(&str, &str)] = &[
    ("bifolio-fuse", "bifolio-ext4"),
    ("bifolio-fuse", "bifolio-f2fs"),
    ("bifolio-fuse", "bifolio-device"),
    ("bifolio-ext4", "bifolio-pagecache"),
    ("bifolio-f2fs", "bifolio-pagecache"),
];

/// Crates for development. They may depend on all crates, but only tests of other crates may depend
/// on them.
const DEVELOPMENT: &[&str] = &["bifolio-testkit", "bifolio-bench", "xtask"];

/// Returns a line for each violation in the crate graph.
pub fn complaints(root: &Path) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    if !output.status.success() {
        return vec![format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr))];
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    check(&edges(&metadata))
}

/// A dependency between two crates of the workspace.
struct Edge {
    from: String,
    to: String,
    for_tests: bool,
}

/// Returns the edges between the workspace's crates. Each crate also has an edge to itself, so that
/// a crate without dependencies is known, too.
fn edges(metadata: &Value) -> Vec<Edge> {
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let mut edges = Vec::new();
    for package in packages {
        let from = text(&package["name"]);
        edges.push(Edge { from: from.clone(), to: from.clone(), for_tests: true });
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["path"].is_string() {
                edges.push(Edge {
                    from: from.clone(),
                    to: text(&dependency["name"]),
                    for_tests: dependency["kind"] == "dev",
                });
            }
        }
    }
    edges
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns a line for each violation.
fn check(edges: &[Edge]) -> Vec<String> {
    let layer = |name: &str| LAYERS.iter().find(|(known, _)| *known == name).map(|(_, at)| *at);
    let mut complaints = Vec::new();
    for Edge { from, to, for_tests } in edges {
        if DEVELOPMENT.contains(&from.as_str()) {
            continue;
        }
        let Some(from_layer) = layer(from) else {
            complaints.push(format!("{from}: has no layer in xtask/src/layers.rs"));
            continue;
        };
        if *for_tests {
            continue;
        }
        if DEVELOPMENT.contains(&to.as_str()) {
            complaints.push(format!("{from} -> {to}: only tests may use {to}"));
        } else if layer(to).is_none_or(|to_layer| to_layer >= from_layer) {
            complaints.push(format!("{from} -> {to}: not a dependency on a lower layer"));
        } else if FORBIDDEN.contains(&(from, to)) {
            complaints.push(format!("{from} -> {to}: forbidden, see xtask/src/layers.rs"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: &str, to: &str, for_tests: bool) -> Edge {
        Edge { from: from.to_owned(), to: to.to_owned(), for_tests }
    }

    #[test]
    fn the_workspace_has_only_allowed_dependencies() {
        assert_eq!(complaints(crate::root()), Vec::<String>::new());
    }

    #[test]
    fn backward_sideways_forbidden_and_unknown_edges_are_found() {
        for (from, to) in [
            ("bifolio-base", "bifolio-vfs"),
            ("bifolio-device", "bifolio-pagecache"),
            ("bifolio-fuse", "bifolio-ext4"),
            ("bifolio-vfs", "bifolio-testkit"),
            ("bifolio-new", "bifolio-base"),
        ] {
            assert_eq!(check(&[edge(from, to, false)]).len(), 1, "{from} -> {to}");
        }
    }

    #[test]
    fn downward_edges_and_edges_of_tests_pass() {
        assert!(check(&[edge("bifolio-vfs", "bifolio-ext4", false)]).is_empty());
        assert!(check(&[edge("bifolio-ext4", "bifolio-testkit", true)]).is_empty());
    }
}
