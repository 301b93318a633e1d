//! A FUSE server for volumes: protocol, operations, transport over /dev/fuse, mounting.
//! Not here: any format, any file-system logic beyond the translation to `vfs`.
#![forbid(unsafe_code)]

pub mod protocol;

mod node_table;
mod operations;
mod reply;
mod request;
mod server;
mod transport;

pub use operations::{InitRefused, Negotiated};
pub use reply::{Answer, Contents, Reply};
pub use request::Request;
pub use server::{Server, ServerOptions};
pub use transport::{Channel, Crew, End, THREADS_DEFAULT};
