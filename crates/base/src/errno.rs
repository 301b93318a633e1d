//! The table of error numbers, and the conversion to `std::io::Error`.

use std::io;

use rustix::io::Errno;

use crate::error::{Error, HostError, Unsupported};

/// The host's error number for a thread that cannot be started.
pub(crate) const AGAIN: i32 = Errno::AGAIN.raw_os_error();

impl Error {
    /// Returns the error number that a system call would return.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::Io(_) | Self::Lost(_) | Self::Panicked(_) => Errno::IO,
            // What Linux file systems return for a corrupt structure ("structure needs cleaning").
            Self::Corrupt(_) => Errno::UCLEAN,
            Self::Unsupported(Unsupported::Encrypted(_)) => Errno::NOKEY,
            Self::Unsupported(_) => Errno::OPNOTSUPP,
            Self::Host(HostError { errno: Some(errno), .. }) => return *errno,
            Self::Host(_) => Errno::IO,
            Self::Open { errno, .. } | Self::ThreadSpawn { errno } => return *errno,
            Self::InUse { .. } => Errno::BUSY,
            Self::NotFound | Self::NoPartition { .. } => Errno::NOENT,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::WrongType(_) | Self::InvalidArgument(_) => Errno::INVAL,
            Self::NotOpenFor(_) => Errno::BADF,
            Self::InvalidUtf8 => Errno::ILSEQ,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::SymlinkLoop => Errno::LOOP,
            Self::NoAttribute => Errno::NODATA,
            Self::NoSuchOffset | Self::UnexpectedEof => Errno::NXIO,
            Self::ReadOnly | Self::ShutDown(_) => Errno::ROFS,
            Self::Exists => Errno::EXIST,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::WouldBlock => Errno::AGAIN,
            Self::NoSpace | Self::NoInodes => Errno::NOSPC,
            Self::TooManyLinks => Errno::MLINK,
            Self::FileTooLarge => Errno::FBIG,
            Self::NotPermitted(_) => Errno::PERM,
            Self::OtherPolicy | Self::OtherProject => Errno::XDEV,
            Self::Interrupted => Errno::INTR,
            Self::OutOfMemory | Self::NoAddressSpace { .. } => Errno::NOMEM,
        };
        errno.raw_os_error()
    }

    /// Returns whether the text has more information than the error number.
    fn has_details(&self) -> bool {
        !matches!(
            self,
            Self::NotFound
                | Self::NotDirectory
                | Self::IsDirectory
                | Self::NameTooLong
                | Self::SymlinkLoop
                | Self::NoAttribute
                | Self::ReadOnly
                | Self::Exists
                | Self::NotEmpty
                | Self::WouldBlock
                | Self::NoSpace
                | Self::TooManyLinks
                | Self::FileTooLarge
                | Self::Interrupted
        )
    }
}

/// The conversion for callers that use `std::io`.
///
/// The [kind](io::Error::kind) is that of [`Error::errno`], except `UnexpectedEof` for
/// [`Error::UnexpectedEof`] and `InvalidData` for [`Error::InvalidUtf8`]. Errors that say no more
/// than their number, such as [`Error::NotFound`], become [`io::Error::from_raw_os_error`]. All
/// others keep their text and stay the [inner error](io::Error::get_ref), for which `raw_os_error`
/// is `None`: downcast it for the number.
///
/// ```
/// # use base::Error;
/// fn errno(error: &std::io::Error) -> Option<i32> {
///     let inner = || error.get_ref()?.downcast_ref::<Error>().map(Error::errno);
///     error.raw_os_error().or_else(inner)
/// }
///
/// assert_eq!(errno(&Error::NotFound.into()), Some(2));
/// assert_eq!(errno(&Error::InvalidArgument("a reason").into()), Some(22));
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let number = Self::from_raw_os_error(error.errno());
        match error {
            Error::UnexpectedEof => Self::new(io::ErrorKind::UnexpectedEof, error),
            Error::InvalidUtf8 => Self::new(io::ErrorKind::InvalidData, error),
            Error::Host(HostError { errno: Some(errno), .. }) => Self::from_raw_os_error(errno),
            Error::Host(HostError { kind, .. }) => Self::new(kind, error),
            error if error.has_details() => Self::new(number.kind(), error),
            _ => number,
        }
    }
}

/// The conversion for functions that return this library's errors and call `std::io`, too. An error
/// of this library in an `io::Error` comes out of it; all others become an [`Error::Host`].
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(error) => error,
            Err(error) => Self::Host(HostError {
                kind: error.kind(),
                errno: error.raw_os_error(),
                text: error.to_string().into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{DeviceOffset, InodeNumber, IoError, IoOperation, Location, Problem};

    /// Checks the number, the kind and the text of `error` as an `io::Error`, and whether it
    /// `is_inner` error of that.
    #[track_caller]
    fn check(error: Error, errno: Errno, kind: Option<io::ErrorKind>, is_inner: bool) {
        assert_eq!(error.errno(), errno.raw_os_error(), "{error:?}");
        let converted = io::Error::from(error.clone());
        if let Some(kind) = kind {
            assert_eq!(converted.kind(), kind, "{error:?}");
        }
        let inner = converted.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        assert_eq!(inner, is_inner.then_some(&error));
        if is_inner {
            assert_eq!(converted.to_string(), error.to_string());
        } else {
            assert_eq!(converted.raw_os_error(), Some(errno.raw_os_error()), "{error:?}");
        }
    }

    #[test]
    fn errors_without_details_become_their_number() {
        use io::ErrorKind as Kind;

        check(Error::NotFound, Errno::NOENT, Some(Kind::NotFound), false);
        check(Error::Exists, Errno::EXIST, Some(Kind::AlreadyExists), false);
        check(Error::NotDirectory, Errno::NOTDIR, Some(Kind::NotADirectory), false);
        check(Error::IsDirectory, Errno::ISDIR, Some(Kind::IsADirectory), false);
        check(Error::NotEmpty, Errno::NOTEMPTY, Some(Kind::DirectoryNotEmpty), false);
        check(Error::ReadOnly, Errno::ROFS, Some(Kind::ReadOnlyFilesystem), false);
        check(Error::NoSpace, Errno::NOSPC, Some(Kind::StorageFull), false);
        check(Error::NoInodes, Errno::NOSPC, Some(Kind::StorageFull), true);
        check(Error::FileTooLarge, Errno::FBIG, Some(Kind::FileTooLarge), false);
        check(Error::TooManyLinks, Errno::MLINK, Some(Kind::TooManyLinks), false);
        check(Error::WouldBlock, Errno::AGAIN, Some(Kind::WouldBlock), false);
        check(Error::Interrupted, Errno::INTR, Some(Kind::Interrupted), false);
        check(Error::NameTooLong, Errno::NAMETOOLONG, None, false);
        check(Error::SymlinkLoop, Errno::LOOP, None, false);
        check(Error::NoAttribute, Errno::NODATA, None, false);
    }

    #[test]
    fn errors_of_the_host_keep_their_number_kind_and_text() {
        let missing = io::Error::from_raw_os_error(Errno::NOENT.raw_os_error());
        let text = missing.to_string();
        let error = Error::from(missing);
        assert_eq!((error.errno(), error.to_string()), (Errno::NOENT.raw_os_error(), text));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);

        let error = Error::from(io::Error::new(io::ErrorKind::InvalidData, "no number"));
        let again = io::Error::from(error);
        assert_eq!(again.kind(), io::ErrorKind::InvalidData);
        assert_eq!(again.to_string(), "no number");

        let ours = Error::InvalidArgument("a reason");
        assert_eq!(Error::from(io::Error::from(ours.clone())), ours);
    }

    #[test]
    fn errors_with_details_keep_them() {
        use io::ErrorKind as Kind;

        let corrupt = Error::corrupt("inode", Location::inode(InodeNumber(12)), Problem::Cycle);
        let failed = IoError {
            operation: IoOperation::Read,
            offset: DeviceOffset(512),
            length: 512,
            errno: Errno::IO.raw_os_error(),
        };
        check(corrupt.clone(), Errno::UCLEAN, None, true);
        check(failed.into(), Errno::IO, None, true);
        check(Error::Lost(Arc::new(corrupt.clone())), Errno::IO, None, true);
        check(
            Error::ShutDown(Arc::new(corrupt)),
            Errno::ROFS,
            Some(Kind::ReadOnlyFilesystem),
            true,
        );
        check(Error::InvalidArgument("why"), Errno::INVAL, Some(Kind::InvalidInput), true);
        check(Error::NotPermitted("why"), Errno::PERM, Some(Kind::PermissionDenied), true);
        check(Error::OtherPolicy, Errno::XDEV, Some(Kind::CrossesDevices), true);
        check(Error::OtherProject, Errno::XDEV, Some(Kind::CrossesDevices), true);
        check(Unsupported::Format.into(), Errno::OPNOTSUPP, Some(Kind::Unsupported), true);
        check(Unsupported::Encrypted(InodeNumber(12)).into(), Errno::NOKEY, None, true);
        let busy = Errno::BUSY.raw_os_error();
        let refused = Error::Open { path: "disk.img".into(), errno: busy };
        check(refused, Errno::BUSY, Some(Kind::ResourceBusy), true);
        check(Error::InUse { by: "host".into() }, Errno::BUSY, Some(Kind::ResourceBusy), true);
        check(Error::OutOfMemory, Errno::NOMEM, Some(Kind::OutOfMemory), true);
        let refused = Error::NoAddressSpace { bytes_max: 1 << 30 };
        check(refused, Errno::NOMEM, Some(Kind::OutOfMemory), true);
        check(Error::UnexpectedEof, Errno::NXIO, Some(Kind::UnexpectedEof), true);
        check(Error::NoSuchOffset, Errno::NXIO, None, true);
        check(Error::NotOpenFor("reading"), Errno::BADF, None, true);
        check(Error::InvalidUtf8, Errno::ILSEQ, Some(Kind::InvalidData), true);
    }

    #[test]
    fn panics_are_io_errors_and_threads_have_the_number_of_the_host() {
        check(Error::Panicked("writeback"), Errno::IO, None, true);
        let refused = io::Error::from_raw_os_error(Errno::NOMEM.raw_os_error());
        check(Error::thread_spawn(&refused), Errno::NOMEM, Some(io::ErrorKind::OutOfMemory), true);
        let unnumbered = Error::thread_spawn(&io::Error::other("no number"));
        check(unnumbered, Errno::AGAIN, Some(io::ErrorKind::WouldBlock), true);
    }
}
