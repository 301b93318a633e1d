#!/usr/bin/python3.13 -SB
"""The guest's side on machines that do not run the test program: the same as agent.rs, from the same orders, with the
same results. The bytes of the steps are in a file, since this machine is too slow to make them. Not here: filling
images with the tree of all features."""

import ctypes
import errno
import json
import os
import struct
import sys
import time

LIBC = ctypes.CDLL("libc.so.6", use_errno=True)
XXHASH = ctypes.CDLL("libxxhash.so.0")
XXHASH.XXH64_createState.restype = ctypes.c_void_p
XXHASH.XXH64_digest.restype = ctypes.c_uint64
HASHER = ctypes.c_void_p(XXHASH.XXH64_createState())
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100
MS_RDONLY, MS_NOATIME = 1, 1024
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
RENAME_EXCHANGE = 2
STATX_WANTED, STATX_BTIME = 0xFFF, 0x800
SYS_FINIT_MODULE = 273
FS_IOC_GETFLAGS, FS_IOC_GETVERSION, FS_IOC_FSGETXATTR, FS_IOC_FIEMAP = (
    0x80086601, 0x80087601, 0x801C581F, 0xC020660B)
FIEMAP_LAST, FIEMAP_INLINE, FIEMAP_UNWRITTEN = 1, 0x200, 0x800
# As in digest.rs.
PIECE, READ_WHOLE_MAX = 256 << 10, 64 << 20


def call(result, *about):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), *about)
    return result


def number(value):
    return ctypes.c_long(value)


# Changes, as in turns/on_host.rs.


class OnHost:
    """A mounted tree to be changed, and its open files whose names were removed."""

    def __init__(self, top, contents):
        self.top, self.contents, self.open = top, contents, []

    def run(self, steps):
        for step in steps:
            (kind, arguments), = step.items()
            arguments = arguments if isinstance(arguments, list) else [arguments]
            getattr(self, kind)(self.top + os.fsencode(arguments[0]), *arguments[1:])

    def close(self):
        for file in self.open:
            os.close(file)

    def sync(self):
        top = os.open(self.top, os.O_RDONLY)
        call(LIBC.syncfs(top))
        os.close(top)

    def change(self, path, flags, action):
        file = os.open(path, os.O_WRONLY | flags, 0o666)
        action(file)
        os.close(file)

    def write_all(self, file, contents, at):
        done = 0
        while done < len(contents):
            done += os.pwrite(file, contents[done:], at + done)

    def bytes(self, chosen):
        return self.contents[f"{chosen['seed']} {chosen['length']}"]

    def Mkdir(self, path):
        os.mkdir(path)

    def Fifo(self, path):
        os.mkfifo(path, 0o644)

    def Symlink(self, path, length):
        os.symlink((b"target/" * (length // 7 + 1))[:length], path)

    def Write(self, path, at, chosen):
        self.change(path, os.O_CREAT, lambda file: self.write_all(file, self.bytes(chosen), at))

    def Append(self, path, chosen):
        size = os.lstat(path).st_size
        self.change(path, 0, lambda file: self.write_all(file, self.bytes(chosen), size))

    def SetSize(self, path, size):
        os.truncate(path, size)

    def allocate(self, path, mode, at, length):
        self.change(path, 0, lambda file: call(
            LIBC.fallocate(file, FALLOC_KEEP_SIZE | mode, number(at), number(length)), path))

    def Allocate(self, path, at, length):
        self.allocate(path, 0, at, length)

    def Punch(self, path, at, length):
        self.allocate(path, FALLOC_PUNCH_HOLE, at, length)

    def Link(self, path, new):
        os.link(path, self.top + os.fsencode(new))

    def Rename(self, path, new):
        os.rename(path, self.top + os.fsencode(new))

    def Exchange(self, path, other):
        other = self.top + os.fsencode(other)
        call(LIBC.renameat2(AT_FDCWD, path, AT_FDCWD, other, RENAME_EXCHANGE), path)

    def Remove(self, path):
        try:
            os.unlink(path)
        except IsADirectoryError:
            os.rmdir(path)

    def RemoveOpen(self, path, chosen):
        file = os.open(path, os.O_WRONLY)
        os.unlink(path)
        self.write_all(file, self.bytes(chosen), 0)
        self.open.append(file)

    def SetXattr(self, path, name, chosen):
        os.setxattr(path, name, self.bytes(chosen), follow_symlinks=False)

    def RemoveXattr(self, path, name):
        os.removexattr(path, name, follow_symlinks=False)

    def SetAcl(self, path, users):
        value = self.contents[f"acl {users}"]
        os.setxattr(path, "system.posix_acl_access", value, follow_symlinks=False)

    def SetMode(self, path, permissions):
        os.chmod(path, permissions)

    def SetOwner(self, path, uid, gid):
        os.lchown(path, uid, gid)

    def Sync(self, path):
        self.change(path, 0, os.fsync)


# Facts, as in manifest/host.rs.


ESCAPED = [chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in range(256)]
for character, name in zip("\t\n\r\"'\\", "tnr\"'\\"):
    ESCAPED[ord(character)] = "\\" + name


def escape(value):
    return value.decode("latin-1").translate(ESCAPED)


def digest(size, data, read):
    XXHASH.XXH64_reset(HASHER, number(0))
    done = 0
    for start, end in [(0, size)] if size <= READ_WHOLE_MAX else data:
        at = max(start // PIECE * PIECE, done)
        while at < min(end, size):
            piece = read(at, min(PIECE, size - at))
            if piece.count(0) < len(piece):
                for part in (struct.pack("<Q", at), piece):
                    XXHASH.XXH64_update(HASHER, part, number(len(part)))
            at += len(piece)
        done = max(done, at)
    return f"{XXHASH.XXH64_digest(HASHER):016x}"


def value_text(value):
    if len(value) <= 256:
        return escape(value)
    return f"{len(value)} bytes, {digest(len(value), [], lambda at, length: value[at:at + length])}"


def statx(path):
    buffer = ctypes.create_string_buffer(256)
    call(LIBC.statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_WANTED, buffer), path)
    names = ("mask links uid gid mode inode size blocks accessed accessed_ns created created_ns "
             "changed changed_ns modified modified_ns major minor device_major device_minor")
    layout = "<I12xIIIHxxQQQ8xqI4xqI4xqI4xqI4xIIII"
    return dict(zip(names.split(), struct.unpack_from(layout, buffer)))


def ask(file, opcode, layout):
    """Returns what an ioctl fills, or None if the file system does not know it."""
    buffer = ctypes.create_string_buffer(struct.calcsize(layout))
    if LIBC.ioctl(file, number(opcode), buffer) < 0:
        return None
    return struct.unpack(layout, buffer)


def extents_text(file):
    """Returns the extents as text, with adjacent ones joined, or None."""
    count, joined, start, last = 512, [], 0, 0
    while not last & FIEMAP_LAST:
        buffer = ctypes.create_string_buffer(32 + 56 * count)
        struct.pack_into("<QQIIII", buffer, 0, start, 2**64 - 1 - start, 0, 0, count, 0)
        if LIBC.ioctl(file, number(FS_IOC_FIEMAP), buffer) < 0:
            return None
        found = struct.unpack_from("<I", buffer, 20)[0]
        if not found:
            break
        for index in range(found):
            at, physical, length, last = struct.unpack_from("<QQQ16xI", buffer, 32 + 56 * index)
            if last & FIEMAP_INLINE:
                return "inline"
            start, unwritten = at + length, bool(last & FIEMAP_UNWRITTEN)
            before = joined[-1] if joined else None
            after = before and [before[0] + before[2], before[1] + before[2], before[3]]
            if after == [at, physical, unwritten]:
                before[2] += length
            else:
                joined.append([at, physical, length, unwritten])
    return ", ".join(
        f"{at}+{length}@{physical}{' unwritten' * unwritten}"
        for at, physical, length, unwritten in joined)


def data_ranges(file, size):
    """Returns the ranges between holes, or None if Linux fails to find them."""
    ranges, at = [], 0
    while at < size:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
            at = os.lseek(file, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            if error.errno == errno.ENOENT:
                return None
            raise
        ranges.append((start, at))
    return ranges


def facts_of_open(path, stat, facts):
    flags = os.O_RDONLY | os.O_NOATIME | os.O_NONBLOCK | os.O_NOFOLLOW
    file = os.open(path, flags)
    if answer := ask(file, FS_IOC_GETFLAGS, "<Ixxxx"):
        facts["flags"] = f"{answer[0]:#x}"
    if answer := ask(file, FS_IOC_GETVERSION, "<Ixxxx"):
        facts["generation"] = str(answer[0])
    if answer := ask(file, FS_IOC_FSGETXATTR, "<12xI12x"):
        facts["project"] = str(answer[0])
    size, data = stat["size"], []
    if stat["mode"] & 0o170000 == 0o100000:
        data = data_ranges(file, size)
        facts["data"] = "(no answer)" if data is None else ", ".join(
            f"{start}..{end}" for start, end in data)
        data = [(0, min(size, 1 << 20))] if data is None else data
        facts["contents"] = digest(size, data, lambda at, length: os.pread(file, length, at))
    # Not of all files, since f2fs takes long: it looks at each address in the inode after the last extent.
    if len(data) > 1 or stat["inode"] % 4 == 0:
        if (extents := extents_text(file)) is not None:
            facts["extents"] = extents
    os.close(file)


def facts_of(path, stat):
    facts = {"mode": f"{stat['mode']:06o}", "owner": f"{stat['uid']}:{stat['gid']}"}
    for fact in ["inode", "links", "size", "blocks"]:
        facts[fact] = str(stat[fact])
    for fact in ["accessed", "modified", "changed", "created"]:
        if fact != "created" or stat["mask"] & STATX_BTIME:
            facts[fact] = f"{stat[fact]} s + {stat[fact + '_ns']} ns"
    kind = stat["mode"] & 0o170000
    if kind in (0o020000, 0o060000):
        facts["device"] = f"{stat['major']}:{stat['minor']}"
    elif kind == 0o120000:
        facts["target"] = value_text(os.readlink(path))
    elif kind in (0o100000, 0o040000):
        facts_of_open(path, stat, facts)
    for name in os.listxattr(path, follow_symlinks=False):
        value = os.getxattr(path, name, follow_symlinks=False)
        facts["xattr " + escape(os.fsencode(name))] = value_text(value)
    return facts


def manifest_of(top):
    found = os.statvfs(top)
    entries = {"(volume)": {
        "block size": str(found.f_bsize),
        "blocks": str(found.f_blocks),
        "blocks free": str(found.f_bfree),
        "blocks available": str(found.f_bavail),
        "inodes": str(found.f_files),
        "inodes free": str(found.f_ffree),
        "longest name": str(found.f_namemax),
    }}
    seen, ahead = {}, [b""]
    while ahead:
        name = ahead.pop()
        path = top + name
        stat = statx(path)
        facts = seen.get(stat["inode"]) or facts_of(path, stat)
        if stat["mode"] & 0o170000 == 0o040000:
            ahead += [name + b"/" * bool(name) + entry for entry in os.listdir(path)]
        elif stat["links"] > 1:
            seen[stat["inode"]] = facts
        entries[escape(name) if name else "."] = facts
    return {"entries": entries}


# The work, as in agent.rs.


def mount(disk, top, work, flags):
    arguments = [os.fsencode(text) for text in (disk, top, work["format"])]
    flags, options = number(flags | MS_NOATIME), os.fsencode(work["options"])
    call(LIBC.mount(*arguments, flags, options), f"mounting {disk} as {work}"[:1000])


def unmount(top):
    call(LIBC.umount2(os.fsencode(top), 0), top)


def list_disk(disk, work):
    mount(disk, "/mnt/", work, MS_RDONLY)
    manifest = manifest_of(b"/mnt/")
    unmount("/mnt/")
    return manifest


def do_job(disk, work, contents):
    before = [list_disk(disk, work)]
    if work["job"] == "List":
        return before
    (kind, job), = work["job"].items()
    top = "/mnt/"
    if kind == "BreakOff":
        top = f"/{disk.replace('/', '-')}/"
        os.mkdir(top)
    mount(disk, top, work, 0)
    kernel = OnHost(os.fsencode(top), contents)
    if kind == "Change":
        kernel.run(job)
        kernel.close()
        unmount(top)
        return before + [list_disk(disk, work)]
    if kind == "BreakOff":
        kernel.run(job["synced"])
        kernel.sync()
        kernel.run(job["after"])
        return before
    raise NotImplementedError(kind)


def read_contents():
    with open("/contents.json") as index, open("/contents", "rb") as contents:
        return {key: contents.read(length) for key, length in json.load(index)}


def main():
    # Otherwise, errors have colours.
    os.environ["NO_COLOR"] = "1"
    call(LIBC.mount(b"devtmpfs", b"/dev", b"devtmpfs", number(0), None), "mounting the devices")
    with open("/orders.json") as file:
        orders = json.load(file)
    for module in orders["modules"]:
        with open("/" + module, "rb") as file:
            call(LIBC.syscall(number(SYS_FINIT_MODULE), file.fileno(), b"", 0), module)
    contents, start, results = read_contents(), time.monotonic(), []
    disks = [f"/dev/vd{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    for disk, work in zip(disks, orders["works"]):
        print(f"{time.monotonic() - start:.1f} s: {disk}", file=sys.stderr)
        results.append(do_job(disk, work, contents))
    # No other disk is synced: jobs may have left their disks in the middle of their work.
    encoded = json.dumps(results).encode()
    with open(disks[len(results)], "r+b") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.flush()
        os.fsync(file.fileno())
    call(LIBC.reboot(0x01234567))


main()
