//! INIT: negotiation of the version, features and limits.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::protocol::{
    InHeader, InitFlags, InitIn, InitInExtension, InitOut, MAJOR, MINOR, MINOR_MIN,
};
use crate::reply::{Answer, Outcome, Reply};
use crate::server::Server;

/// The maximum length of one READ or WRITE, in bytes. Longer transfers were not faster.
pub const TRANSFER_BYTES_MAX: u32 = 1024 * 1024;
/// The default of [`ServerOptions::max_background`](crate::ServerOptions::max_background).
pub const MAX_BACKGROUND: u16 = 256;
/// The number of background requests from which on the kernel delays new ones.
const CONGESTION_THRESHOLD: u16 = 48;

/// The features that the server accepts: those with which measurements were best. ATOMIC_O_TRUNC is
/// missing: with it, the kernel truncates files before it checks whether they are being executed.
const WANTED: InitFlags = InitFlags(
    InitFlags::ASYNC_READ.0
        | InitFlags::BIG_WRITES.0
        | InitFlags::AUTO_INVAL_DATA.0
        | InitFlags::DO_READDIRPLUS.0
        | InitFlags::READDIRPLUS_AUTO.0
        | InitFlags::ASYNC_DIO.0
        | InitFlags::PARALLEL_DIROPS.0
        | InitFlags::POSIX_ACL.0
        | InitFlags::ABORT_ERROR.0
        | InitFlags::MAX_PAGES.0
        | InitFlags::CACHE_SYMLINKS.0
        | InitFlags::NO_OPENDIR_SUPPORT.0
        | InitFlags::HANDLE_KILLPRIV_V2.0
        | InitFlags::INIT_EXT.0
        | InitFlags::DIRECT_IO_ALLOW_MMAP.0
        | InitFlags::EXPORT_SUPPORT.0,
);

/// The features for writable volumes. No other program changes the files, so the kernel's cached
/// data stays valid when their times change.
const WANTED_TO_WRITE: InitFlags = InitFlags(
    WANTED.0 & !InitFlags::AUTO_INVAL_DATA.0
        | InitFlags::EXPLICIT_INVAL_DATA.0
        | InitFlags::DONT_MASK.0
        | InitFlags::SETXATTR_EXT.0,
);

/// The outcome of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The minor version that both sides speak.
    pub minor: u32,
    /// The features in force.
    pub flags: InitFlags,
}

/// An error of the negotiation: the kernel's protocol is too old.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the kernel speaks version {major}.{minor} of the FUSE protocol; at least \
     {MAJOR}.{MINOR_MIN} (Linux 5.4) is needed"
)]
pub struct InitRefused {
    /// The kernel's major version.
    pub major: u32,
    /// The kernel's minor version.
    pub minor: u32,
}

impl Server {
    /// INIT.
    pub(crate) fn init(
        &self,
        _header: &InHeader,
        init: &InitIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        tracing::debug!("INIT of version {}.{}", init.major, init.minor);
        match negotiate(init, rest, self.wanted(), self.options.page_bytes) {
            Ok((mut out, negotiated)) => {
                out.time_granularity = self.volume().time_granularity();
                out.max_background = self.options.max_background;
                // A kernel with a newer major version sends a second INIT with ours, and nothing is
                // agreed on before.
                if let Some(negotiated) = negotiated {
                    let _ = self.negotiated.set(Ok(negotiated));
                }
                reply.push(&out)?;
                Ok(Answer::Payload)
            }
            Err(refused) => {
                let _ = self.negotiated.set(Err(refused));
                Err(Errno::PROTO.into())
            }
        }
    }

    /// Returns the features that the server accepts.
    fn wanted(&self) -> InitFlags {
        let mut wanted = WANTED;
        if self.may_write() {
            wanted = WANTED_TO_WRITE;
            if self.options.writeback_cache {
                wanted = wanted | InitFlags::WRITEBACK_CACHE;
            }
        }
        if self.accepts_io_uring.load(Ordering::Relaxed) {
            wanted = wanted | InitFlags::OVER_IO_URING;
        }
        if self.options.idmapped {
            wanted = wanted | InitFlags::ALLOW_IDMAP;
        }
        if self.options.owners.caller_is_root {
            // With POSIX_ACL, the kernel checks access even on a mount without
            // `default_permissions`.
            wanted = wanted.without(InitFlags::POSIX_ACL);
        }
        wanted
    }

    /// Returns whether a feature is in force.
    pub(crate) fn agreed_on(&self, feature: InitFlags) -> bool {
        matches!(self.negotiated(), Some(Ok(negotiated)) if negotiated.flags.contains(feature))
    }
}

/// Returns the answer to the kernel's offer, and the outcome if the negotiation is complete.
fn negotiate(
    init: &InitIn,
    rest: &[u8],
    wanted: InitFlags,
    page_bytes: usize,
) -> Result<(InitOut, Option<Negotiated>), InitRefused> {
    let mut out = InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: init.max_readahead.min(TRANSFER_BYTES_MAX),
        flags: 0,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTION_THRESHOLD,
        max_write: TRANSFER_BYTES_MAX,
        time_granularity: 1,
        max_pages: (TRANSFER_BYTES_MAX as usize / page_bytes.max(4096)) as u16,
        map_alignment: 0,
        flags2: 0,
        max_stack_depth: 0,
        request_timeout: 0,
        unused: [0; 11],
    };
    if init.major > MAJOR {
        return Ok((out, None));
    }
    if init.major < MAJOR || init.minor < MINOR_MIN {
        return Err(InitRefused { major: init.major, minor: init.minor });
    }
    let mut offered = InitFlags(u64::from(init.flags));
    if offered.contains(InitFlags::INIT_EXT) {
        if let Ok((extension, _)) = InitInExtension::read_from_prefix(rest) {
            offered = offered | InitFlags(u64::from(extension.flags2) << 32);
        }
    }
    let flags = offered & wanted;
    out.flags = flags.0 as u32;
    out.flags2 = (flags.0 >> 32) as u32;
    Ok((out, Some(Negotiated { minor: init.minor.min(MINOR), flags })))
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn offer(major: u32, minor: u32, flags: u64) -> (InitIn, Vec<u8>) {
        let init = InitIn { major, minor, max_readahead: 131_072, flags: flags as u32 };
        let extension = InitInExtension { flags2: (flags >> 32) as u32, unused: [0; 11] };
        (init, extension.as_bytes().to_vec())
    }

    #[test]
    fn only_offered_features_are_accepted() {
        let (init, rest) = offer(7, 45, u64::MAX);
        let (out, negotiated) = negotiate(&init, &rest, WANTED, 4096).unwrap();
        assert_eq!(negotiated, Some(Negotiated { minor: 45, flags: WANTED }));
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, WANTED.0);
        assert_eq!((out.major, out.minor, out.max_readahead), (7, 45, 131_072));

        let (init, rest) = offer(7, 31, InitFlags::ASYNC_READ.0 | InitFlags::OVER_IO_URING.0);
        let (out, negotiated) = negotiate(&init, &rest, WANTED, 4096).unwrap();
        assert_eq!((out.flags, out.flags2), (1, 0));
        assert_eq!(negotiated.unwrap().minor, 31);
        let pages = |bytes| negotiate(&init, &rest, WANTED, bytes).unwrap().0.max_pages;
        assert_eq!((pages(4096), pages(65_536)), (256, 16));
    }

    #[test]
    fn the_upper_half_of_the_flags_is_read_only_with_init_ext() {
        let high = InitFlags::DIRECT_IO_ALLOW_MMAP;
        let (init, rest) = offer(7, 45, high.0);
        assert_eq!(negotiate(&init, &rest, WANTED, 4096).unwrap().0.flags2, 0);
        let (init, rest) = offer(7, 45, high.0 | InitFlags::INIT_EXT.0);
        assert_eq!(negotiate(&init, &rest, WANTED, 4096).unwrap().0.flags2, 1 << 4);
        assert_eq!(negotiate(&init, &[], WANTED, 4096).unwrap().0.flags2, 0);
    }

    #[test]
    fn old_kernels_are_refused_and_newer_major_versions_negotiate_again() {
        for (major, minor) in [(7, 30), (7, 0), (6, 99), (0, 0)] {
            let (init, rest) = offer(major, minor, 0);
            assert_eq!(
                negotiate(&init, &rest, WANTED, 4096).unwrap_err(),
                InitRefused { major, minor }
            );
        }
        let (init, rest) = offer(8, 0, u64::MAX);
        let (out, negotiated) = negotiate(&init, &rest, WANTED, 4096).unwrap();
        assert_eq!((out.major, out.flags, negotiated), (7, 0, None));
    }
}
