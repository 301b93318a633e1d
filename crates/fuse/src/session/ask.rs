//! A question about an image that is answered before there is a server: by a confined child process, which ends then. So
//! what a server gets can depend on the contents of the image, and nothing but the answer comes from a process that has
//! parsed them.

use std::time::Duration;

use super::process::{self, Side};
use super::{namespace, retry};
use crate::{Confinement, Inherited};

/// The time for which an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The memory that the child may map.
const MEMORY_MAX: u64 = 1 << 30;

/// Returns two numbers that `find` returns in a child process, confined by `confinement`. Returns `None` if there is no
/// answer. The child closes the `inherited` files.
///
/// This function **forks**: no other thread may be running.
pub fn ask(
    confinement: Confinement,
    inherited: &Inherited,
    find: impl FnOnce() -> Option<[u64; 2]>,
) -> Option<[u64; 2]> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
    let child = match process::fork().ok()? {
        Side::Child => {
            inherited.close();
            drop(reader);
            if let Some(answer) = confine_child(confinement).and_then(|()| find()) {
                let bytes = answer.map(u64::to_ne_bytes).concat();
                let _ = rustix::io::write(&writer, &bytes);
            }
            std::process::exit(0);
        }
        Side::Parent(child) => child,
    };
    drop(writer);
    let mut bytes = [[0; size_of::<u64>()]; 2];
    let found = child.wait_within::<base::Error>(TIMEOUT);
    let read = retry(|| rustix::io::read(&reader, bytes.as_flattened_mut()));
    let is_whole = found.is_ok() && read == Ok(bytes.as_flattened().len());
    is_whole.then(|| bytes.map(u64::from_ne_bytes))
}

/// Confines the child to open files. Returns `None` if that fails: the server fails, too, and reports why.
fn confine_child(confinement: Confinement) -> Option<()> {
    if !confinement.is_any() {
        return Some(());
    }
    process::clear_environment();
    process::leave_directory();
    confine::leave_input().ok()?;
    let proof = confine::Proof::open();
    if let Err(errno) = namespace::leave() {
        tracing::debug!("cannot move the child to its own mount namespace: {errno}");
    }
    namespace::leave_others();
    let needs = confine::Needs {
        writable: false,
        output: true,
        rings: false,
        guard: false,
        resources: confine::Resources { memory_max: MEMORY_MAX, files_max: confine::FILES_MAX },
        trees: confine::Trees::None,
    };
    confine::confine(confinement, needs, &proof).ok()
}
