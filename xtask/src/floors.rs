//! The floors of the formats' modules, and the check of their imports.

use std::path::Path;

use crate::modules::{self, Imports};

/// The floors of a crate, the lowest one first.
type Floors = &'static [&'static str];

/// The modules of ext4 from the lowest to the highest. A module may import only those that stand
/// before it. Files that stand lower than their folder have an entry of their own.
const EXT4: Floors = &[
    // Layouts, and the log on disk.
    "ondisk",
    "features",
    "ranks",
    "clock",
    "jbd2",
    // The shape of a volume.
    "layout",
    "superblock",
    "inode::times",
    "inode::record",
    // What all parts share.
    "core",
    // Where data is.
    "mmp",
    "block_validity",
    "xattr::name",
    "xattr::entries",
    "extent",
    "indirect",
    "map_walk",
    "journal_map",
    "system_zones",
    // Changes, and free space.
    "journal",
    "orphans::list",
    "orphans::numbers",
    "orphans::block",
    "orphans::set",
    "alloc",
    // The volume, which composes them.
    "volume",
    // Operations.
    "inode",
    "map_write",
    "orphans",
    "xattr",
    "encryption",
    "dir",
    "namespace",
    "data",
    // Recovery and opening.
    "fast_commit",
    "recovery",
    "open",
    // What other crates call.
    "check",
    "file_system",
];

/// The modules of f2fs, likewise.
const F2FS: Floors = &[
    // Layouts, and pure code over bytes.
    "ondisk",
    "features",
    "extension",
    "ranks",
    "dir",
    "xattr",
    "temperature",
    // The shape of a volume.
    "geometry",
    "superblock",
    "checkpoint",
    "compress",
    // Nodes, and what all parts share.
    "nat",
    "node",
    "overlay",
    "residents",
    "core",
    // Where data is.
    "inode",
    "summaries",
    "sit",
    // Changes, and free space.
    "edit",
    "quota",
    "recovery",
    "write",
    // The volume, which composes them.
    "format",
    "volume",
    // Operations.
    "live",
    "info",
    // What other crates call.
    "file_system",
    "check",
];

/// Returns a line for each violation.
pub fn complaints(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, floors) in [("ext4", EXT4), ("f2fs", F2FS)] {
        let imports = modules::imports(&root.join("crates").join(name).join("src"));
        let found = check(floors, &imports);
        complaints.extend(found.into_iter().map(|complaint| format!("{name}: {complaint}")));
    }
    complaints
}

/// Returns the floor of a module: the place of the entry that names it, or else of that of its
/// folder.
fn floor_of(floors: Floors, module: &str) -> Option<usize> {
    let mut name = module;
    loop {
        if let Some(floor) = floors.iter().position(|entry| *entry == name) {
            return Some(floor);
        }
        name = name.rsplit_once("::")?.0;
    }
}

/// Returns a line for each import from a higher floor, each module without a floor, and each floor
/// without a module.
fn check(floors: Floors, imports: &Imports) -> Vec<String> {
    let mut complaints = Vec::new();
    for (module, imported) in imports {
        let Some(floor) = floor_of(floors, module) else {
            complaints.push(format!("{module} has no floor in xtask/src/floors.rs"));
            continue;
        };
        let is_higher = |import: &&String| floor_of(floors, import).is_some_and(|at| at > floor);
        complaints.extend(imported.iter().filter(is_higher).map(|import| {
            format!("{module} -> {import}: not on a lower floor, see xtask/src/floors.rs")
        }));
    }
    let has_no_module = |entry: &&&str| !imports.contains_key(**entry);
    let empty = floors.iter().filter(has_no_module);
    complaints.extend(empty.map(|entry| format!("{entry}: a floor without a module")));
    complaints
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const FLOORS: Floors = &["ondisk", "inode::record", "core", "inode"];

    fn check_sources(sources: &[(&str, &str)]) -> Vec<String> {
        let sources: BTreeMap<String, String> =
            sources.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        check(FLOORS, &modules::of_sources(&sources))
    }

    #[test]
    fn the_formats_import_only_lower_floors() {
        assert_eq!(complaints(crate::root()), Vec::<String>::new());
    }

    #[test]
    fn imports_of_higher_floors_and_modules_without_a_floor_are_found() {
        let sound = [
            ("ondisk", ""),
            ("inode::record", "use crate::ondisk::Raw;"),
            ("core", "use crate::inode::record::Record;"),
            ("inode", "use crate::core::Core;\nuse crate::inode::map::Map;"),
            ("inode::map", "use super::Inode;"),
        ];
        assert!(check_sources(&sound).is_empty());
        for (module, source) in [
            ("ondisk", "use crate::core::Core;"),
            ("core", "use crate::inode::Inode;"),
            ("core", "fn f() -> crate::inode::map::Map {}"),
            ("inode::record", "use super::Inode;"),
            ("new", ""),
        ] {
            let mut planted: BTreeMap<&str, &str> = sound.into();
            planted.insert(module, source);
            let found = check_sources(&Vec::from_iter(planted));
            assert_eq!(found.len(), 1, "{module}: {source}: {found:?}");
        }
        assert_eq!(check_sources(&sound[..3]).len(), 1, "a floor without a module");
    }
}
