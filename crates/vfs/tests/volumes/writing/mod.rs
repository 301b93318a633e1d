//! Changes of volumes, on a file system in memory that panics if the vfs breaks the contract of the
//! traits.

mod attributes;
mod data;
mod inheritance;
mod lifetimes;
mod names;
mod oracle;
mod renames;
mod rights;
mod threads;

use std::sync::Arc;

use base::attributes::FileType;
use pagecache::PageCache;
use testkit::memory::MemoryFileSystem;
use vfs::{Creation, Credentials, Follow, Node, Volume, VolumeOptions};

const ROOT: Credentials = Credentials::ROOT;

/// Creates a volume in memory with this limit of nodes.
fn volume_with(nodes_max: usize) -> (Volume, Arc<MemoryFileSystem>) {
    let file_system = MemoryFileSystem::new();
    (open(&file_system, nodes_max), file_system)
}

fn open(file_system: &Arc<MemoryFileSystem>, nodes_max: usize) -> Volume {
    let mut options = VolumeOptions { nodes_max, ..VolumeOptions::default() };
    options.cache.bytes_max = 4 << 20;
    let cache = PageCache::new(options.cache).unwrap();
    Volume::with_file_system(Arc::clone(file_system) as _, cache, &options).unwrap()
}

fn volume() -> (Volume, Arc<MemoryFileSystem>) {
    volume_with(16)
}

fn node(volume: &Volume, path: &str) -> Arc<Node> {
    volume.resolve(path.as_bytes(), Follow::No).unwrap()
}

fn mkdir(volume: &Volume, path: &str) -> Arc<Node> {
    volume.mkdir(path.as_bytes(), 0o755, &ROOT).unwrap()
}

fn create(volume: &Volume, path: &str) -> Arc<Node> {
    volume.create_file(path.as_bytes(), 0o644, &ROOT).unwrap()
}

fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Vec::new(), privileged: false }
}

fn regular(permissions: u16) -> Creation<'static> {
    Creation::of(FileType::Regular, permissions)
}
