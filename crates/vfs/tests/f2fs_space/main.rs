//! The space of f2fs volumes: when there is none, and cleaning. The judges are a model of each
//! file, fsck.f2fs, and the library's own check.

mod background;
mod chosen;
mod clean;
mod defragment;
mod dirty_folios;
mod discards;
mod full;
mod model;
mod node_logs;
mod overwrites;
mod pinned;
mod reads;
mod room;
mod waits;
