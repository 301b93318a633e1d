//! A question about an image that is answered before there is a server: by a confined child
//! process, which ends then. So what a server gets can depend on the contents of the image, and
//! nothing but the answer comes from a process that has parsed them.

use std::time::Duration;

use rustix::io::Errno;

use super::{SessionError, namespace, process};
use crate::child::{self, Side};
use crate::retry::retry;
use crate::{Confinement, Inherited};

/// The time for which an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The memory that the child may map.
const MEMORY_MAX: u64 = 1 << 30;

/// The answer of a child: whether there are numbers, and the numbers.
type Answer = [u64; 3];

/// Returns two numbers that `find` returns in a child process, confined by `confinement`, or `None`
/// if it has found that there are none. If `find` fails, it reports the error, and returns the
/// status with which the child ends. The child closes the `inherited` files.
///
/// This function **forks**: no other thread may be running.
///
/// # Errors
///
/// `Reported` if the child has reported an error. Others if there is no answer.
pub fn ask<E>(
    confinement: Confinement,
    inherited: &Inherited,
    find: impl FnOnce() -> Result<Option<[u64; 2]>, u8>,
) -> Result<Option<[u64; 2]>, SessionError<E>> {
    let host = |action| move |errno| SessionError::Host(action, errno);
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(host("create a pipe"))?;
    let child = match child::fork().map_err(host("fork"))? {
        Side::Child => {
            inherited.close();
            drop(reader);
            let found = confine_child(confinement).and_then(|()| find());
            let status = found.and_then(|found| {
                let answer: Answer = found.map_or([0; 3], |[first, second]| [1, first, second]);
                let bytes = answer.map(u64::to_ne_bytes).concat();
                // If there is no answer, the parent fails.
                rustix::io::write(&writer, &bytes).map(drop).map_err(|_| 1)
            });
            std::process::exit(status.err().unwrap_or(0).into());
        }
        Side::Parent(child) => child,
    };
    drop(writer);
    let mut bytes = [[0; size_of::<u64>()]; size_of::<Answer>() / size_of::<u64>()];
    child.wait_within(TIMEOUT)?;
    let length = retry(|| rustix::io::read(&reader, bytes.as_flattened_mut()));
    let length = length.map_err(host("read the answer of a child"))?;
    match bytes.map(u64::from_ne_bytes) {
        answer if length == size_of_val(&answer) => answer_of(answer),
        _ => None,
    }
    .ok_or(SessionError::Host("read the answer of a child", Errno::IO))
}

/// Returns the numbers in an answer, if it is one.
fn answer_of(answer: Answer) -> Option<Option<[u64; 2]>> {
    match answer {
        [0, ..] => Some(None),
        [1, first, second] => Some(Some([first, second])),
        _ => None,
    }
}

/// Confines the child to open files. Reports the error, and returns a status, if that fails.
fn confine_child(confinement: Confinement) -> Result<(), u8> {
    if !confinement.is_any() {
        return Ok(());
    }
    process::clear_environment();
    process::leave_directory();
    if let Err(errno) = confine::leave_input() {
        tracing::error!("cannot leave standard input: {errno}");
        return Err(1);
    }
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
    match confine::confine(confinement, needs, &proof) {
        // The server confines itself by the same layers, and warns.
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::error!("{}", SessionError::<u8>::Confine(error));
            Err(1)
        }
    }
}
