//! The one table from errors to the host's error numbers.

use base::{Error, Unsupported};
use rustix::io::Errno;

/// The error number that a system call would give for `error`.
pub fn errno(error: &Error) -> i32 {
    let errno = match error {
        Error::Io(_) | Error::Lost(_) => Errno::IO,
        // What Linux file systems return for a corrupt structure ("structure needs cleaning").
        Error::Corrupt(_) => Errno::UCLEAN,
        Error::Unsupported(Unsupported::Encrypted(_)) => Errno::NOKEY,
        Error::Unsupported(_) => Errno::OPNOTSUPP,
        Error::Open { errno, .. } => return *errno,
        Error::InUse { .. } => Errno::BUSY,
        Error::NotFound | Error::NoPartition { .. } => Errno::NOENT,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::WrongType(_) | Error::InvalidArgument(_) => Errno::INVAL,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::SymlinkLoop => Errno::LOOP,
        Error::NoAttribute => Errno::NODATA,
        Error::NoSuchOffset => Errno::NXIO,
        Error::ReadOnly | Error::ShutDown(_) => Errno::ROFS,
        Error::Exists => Errno::EXIST,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::WouldBlock => Errno::AGAIN,
        Error::NoSpace => Errno::NOSPC,
        Error::TooManyLinks => Errno::MLINK,
        Error::FileTooLarge => Errno::FBIG,
        Error::NotPermitted(_) => Errno::PERM,
        Error::Interrupted => Errno::INTR,
        Error::OutOfMemory => Errno::NOMEM,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}
