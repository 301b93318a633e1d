//! Options of mount(8), fstab and the kernel's VFS, and those of bifolio itself.

use super::table::Disposition::{Accepted, Flag, Honoured, Refused};
use super::table::Formats::All;
use super::table::Row;

const fn row(options: &'static [&'static str], disposition: super::table::Disposition) -> Row {
    Row { options, formats: All, disposition }
}

/// The rows of these options.
pub const ROWS: &[Row] = &[
    row(&["ro", "rw"], Honoured),
    row(&["suid", "nosuid", "dev", "nodev", "exec", "noexec"], Honoured),
    row(&["allow_other", "noallow_other"], Honoured),
    row(&["sync", "async", "dirsync", "nodirsync"], Honoured),
    row(&["atime", "noatime", "relatime", "norelatime", "strictatime", "nostrictatime"], Honoured),
    row(&["diratime", "nodiratime", "lazytime", "nolazytime"], Honoured),
    row(&["fsname=VALUE", "owner=image|mapped", "uidmap=VALUE", "gidmap=VALUE"], Honoured),
    row(&["idmap", "noidmap", "loop", "loop=VALUE", "noloop"], Honoured),
    row(&["commit=N", "errors=continue|remount-ro|panic", "discard", "nodiscard"], Honoured),
    row(&["auto_da_alloc[=N]", "noauto_da_alloc"], Honoured),
    row(&["writeback", "nowriteback", "uncached", "nouncached"], Honoured),
    row(&["io_uring=auto|off|on", "low_latency", "nolow_latency"], Honoured),
    row(&["no_confine[=VALUE]"], Honoured),
    row(&["norecovery"], Honoured),
    row(&["incomplete"], Flag("--incomplete")),
    row(&["superblock=VALUE"], Flag("--superblock")),
    row(&["block_size=VALUE"], Flag("--block-size")),
    row(&["partition=VALUE"], Flag("--partition")),
    row(&["offset=VALUE"], Flag("--offset")),
    row(&["journal_path=VALUE"], Flag("--journal")),
    row(&["log=VALUE"], Flag("--log")),
    row(&["threads=VALUE"], Flag("--threads")),
    row(&["cache_size=VALUE"], Flag("--cache-size")),
    row(
        &["defaults", "default_permissions"],
        Accepted("only owner= decides whether the kernel checks access"),
    ),
    row(
        &["auto", "noauto", "nofail", "_netdev", "x-*", "X-*", "comment=VALUE"],
        Accepted("for mount(8), fstab and systemd"),
    ),
    row(
        &["user[=VALUE]", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"],
        Accepted("for mount(8), which decides who may mount"),
    ),
    row(&["helper=VALUE", "uhelper=VALUE"], Accepted("for umount(8)")),
    row(
        &["silent", "loud"],
        Accepted("for messages of the kernel, which come from the server here"),
    ),
    row(&["nomand", "symfollow"], Accepted("as every mount")),
    row(
        &["iversion", "noiversion", "i_version", "noi_version"],
        Accepted("versions of inodes are always counted, as Linux does without the option"),
    ),
    row(&["sizelimit=0"], Accepted("the volume's own size counts, and partition= limits it")),
    row(
        &[
            "user_id=N",
            "group_id=N",
            "blksize=N",
            "max_read=N",
            "rootmode=N",
            "subtype=VALUE",
            "seclabel",
        ],
        Accepted("shown in /proc/mounts, and set by the mount itself"),
    ),
    row(&["mand"], Refused("mandatory locks are not supported by Linux any more")),
    row(
        &["nosymfollow"],
        Refused(
            "it is not passed on to the kernel; set it by `mount -o remount,bind,nosymfollow DIRECTORY`",
        ),
    ),
    row(
        &["remount"],
        Refused("use `mount -o remount,... DIRECTORY`, with the links that this page names"),
    ),
    row(
        &[
            "bind",
            "rbind",
            "move",
            "shared",
            "rshared",
            "private",
            "rprivate",
            "slave",
            "rslave",
            "unbindable",
            "runbindable",
        ],
        Refused("for mounts that exist: use mount(8) without a type"),
    ),
    row(
        &["sizelimit=VALUE"],
        Refused("the length of a part cannot be given; partition= chooses one"),
    ),
    row(
        &["encryption=VALUE"],
        Refused("loop devices do not encrypt; open the volume by cryptsetup"),
    ),
    row(
        &["context=VALUE", "fscontext=VALUE", "defcontext=VALUE", "rootcontext=VALUE"],
        Refused(
            "one SELinux label for a whole mount is not supported; the policy of the host labels it",
        ),
    ),
    row(
        &[
            "smackfsdef=VALUE",
            "smackfsfloor=VALUE",
            "smackfshat=VALUE",
            "smackfsroot=VALUE",
            "smackfstransmute=VALUE",
        ],
        Refused(
            "one Smack label for a whole mount is not supported; the policy of the host labels it",
        ),
    ),
    row(
        &["uid=VALUE", "gid=VALUE"],
        Refused(
            "files have the owners that are in the image; owner=mapped, uidmap= and gidmap= show others",
        ),
    ),
    row(
        &["umask=VALUE", "dmask=VALUE", "fmask=VALUE"],
        Refused(
            "files have the permissions that are in the image; owner=mapped lets the user access all",
        ),
    ),
    row(
        &["utf8[=VALUE]", "iocharset=VALUE", "codepage=VALUE", "nls=VALUE"],
        Refused("names are the bytes that are in the image"),
    ),
];
