//! Operation codes (`enum fuse_opcode`).

macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// An operation. The names are the kernel's.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the kernel's names, documented in fuse(4) and fuse.h")]
        pub enum Opcode { $($name = $number,)* }

        impl Opcode {
            /// All known operations.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the operation with a number, if it is known.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    SymLink = 6,
    MkNod = 8,
    MkDir = 9,
    Unlink = 10,
    RmDir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    Fsync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    Init = 26,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FsyncDir = 30,
    GetLk = 31,
    SetLk = 32,
    SetLkW = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    Fallocate = 43,
    ReadDirPlus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SetupMapping = 48,
    RemoveMapping = 49,
    SyncFs = 50,
    TmpFile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}
