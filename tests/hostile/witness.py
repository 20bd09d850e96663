"""Sees what a command and all it starts opens, looks at, changes, connects to and executes: no call is
overlooked.

A filter of system calls, inherited by every process, stops each of them at each call that names a file, an
address or a program; the kernel then says what the call really reached (`/proc/PID/fd`), through whatever
links. What runs inside a sandbox is seen no further: `tests/workspace/test_sandbox.py` is about that.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.workspace import tracing
from tests.workspace.tracing import checked, libc, ptrace, read_memory, text_at, where

_TRACEME, _CONT, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 7, 24, 0x4200, 0x420E
_OPTIONS = 0x01 | 0x02 | 0x04 | 0x08 | 0x10 | 0x80 | 0x100000
"""Calls told apart from signals; forks, clones, programs, filters; killed when we end."""
_FILTERED = 7
_ALL = 0x40000000
_NUMBERS = {
    "x86_64": {
        59: "execve", 322: "execveat", 42: "connect", 44: "sendto", 46: "sendmsg", 49: "bind",
        307: "sendmmsg",
    },
    "aarch64": {
        221: "execve", 281: "execveat", 203: "connect", 206: "sendto", 211: "sendmsg", 200: "bind",
        269: "sendmmsg",
    },
}  # fmt: skip
_LOOKS = {
    "x86_64": {
        4: "stat", 6: "lstat", 262: "newfstatat", 332: "statx", 21: "access", 269: "faccessat",
        439: "faccessat2", 89: "readlink", 267: "readlinkat", 191: "getxattr", 192: "lgetxattr",
        194: "listxattr", 195: "llistxattr", 464: "getxattrat", 465: "listxattrat", 137: "statfs",
        80: "chdir", 303: "name_to_handle_at", 254: "inotify_add_watch", 468: "file_getattr",
    },
    "aarch64": {
        79: "newfstatat", 291: "statx", 48: "faccessat", 439: "faccessat2", 78: "readlinkat", 8: "getxattr",
        9: "lgetxattr", 11: "listxattr", 12: "llistxattr", 464: "getxattrat", 465: "listxattrat",
        43: "statfs", 49: "chdir", 264: "name_to_handle_at", 27: "inotify_add_watch", 468: "file_getattr",
    },
}  # fmt: skip
"""Calls that open nothing and still learn something of what a path names."""
_AT = {
    "newfstatat": 3, "statx": 2, "faccessat": -1, "faccessat2": 3, "readlinkat": -1, "name_to_handle_at": 4,
    "getxattrat": 2, "listxattrat": 2, "file_getattr": 4,
}  # fmt: skip
"""Those that name a folder too, and which argument holds their flags."""
_OF_LINKS = ("lstat", "readlink", "readlinkat", "lgetxattr", "llistxattr", "name_to_handle_at")
_NOT_FOLLOWED = 0x100
_UNSEEN = {
    "x86_64": {425: "io_uring_setup", 304: "open_by_handle_at", 428: "open_tree", 463: "setxattrat",
               466: "removexattrat", 469: "file_setattr"},
    "aarch64": {425: "io_uring_setup", 265: "open_by_handle_at", 428: "open_tree", 463: "setxattrat",
                466: "removexattrat", 469: "file_setattr"},
}  # fmt: skip
"""Calls whose work is not followed here: none of ours makes one, and who does is told."""
_FILES = frozenset(
    "open openat openat2 creat truncate rename renameat renameat2 link linkat symlink symlinkat unlink"
    " unlinkat rmdir mkdir mkdirat mknod mknodat chmod fchmodat fchmodat2 chown lchown fchownat utime utimes"
    " utimensat futimesat setxattr lsetxattr removexattr lremovexattr mount umount2".split()
)
_OPENING = ("open", "openat", "openat2", "creat")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Seen(NamedTuple):
    """`deed`: read, look, write, run, connect or bind; `what`: a path, a program, an address."""

    deed: str
    what: str
    call: str


class Watched(NamedTuple):
    status: int
    out: str
    err: str
    seen: list[Seen]


def calls() -> dict[int, str]:
    """The calls that are looked at, by number."""
    found = {number: name for number, name in tracing.numbers().items() if name in _FILES}
    machine = platform.machine()
    return found | _NUMBERS[machine] | _LOOKS[machine] | _UNSEEN[machine]


def watch(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str], said: Path, uid: int | None = None
) -> Watched:
    """Run a command to the end of everything it starts; `said` is a folder for what it prints. Root can have
    somebody else run it."""
    pid = os.fork()
    if pid == 0:
        try:
            _become(argv, cwd, environment, said, os.geteuid() if uid is None else uid)
        finally:
            os._exit(127)
    os.waitpid(pid, 0)
    ptrace(_SETOPTIONS, pid, 0, _OPTIONS)
    ptrace(_CONT, pid)
    witness = _Witness(pid)
    status = witness.follow()
    out, err = ((said / name).read_text(errors="replace") for name in ("out", "err"))
    return Watched(os.waitstatus_to_exitcode(status), out, err, witness.seen)


def _become(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], said: Path, uid: int) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, 256)
    os.chdir(cwd)
    ptrace(_TRACEME)
    os.kill(os.getpid(), signal.SIGSTOP)
    tracing.stop_at(calls())
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execve(argv[0], list(argv), dict(environment))


class _Witness:
    """The loop over everything that happens to the processes."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._known = {first}
        self._confined: set[int] = set()
        self._servers: set[int] = set()
        """Fork servers; what they fork are keepers, and what those fork are commands."""
        self._keepers: set[int] = set()
        self._commands: set[int] = set()
        self._opening: dict[int, tuple[str, str, bool]] = {}
        self.seen: list[Seen] = []

    def follow(self) -> int:
        ended = 0
        while self._known:
            who, status = os.waitpid(-1, _ALL)
            if not os.WIFSTOPPED(status):
                self._known.discard(who)
                self._opening.pop(who, None)
                if who == self._first:
                    ended = status
                continue
            ptrace(*self._next(who, status))
        return ended

    def _next(self, who: int, status: int) -> tuple[int, int, int, int]:
        """How a stopped process goes on."""
        event, signalled = status >> 16, os.WSTOPSIG(status)
        if who not in self._known:  # the first stop of what another one started
            self._known.add(who)
            if _parent(who) in self._confined:
                self._confined.add(who)
            return _CONT, who, 0, 0
        if signalled == signal.SIGTRAP | 0x80:  # a call ended
            self._end_opening(who)
            return _CONT, who, 0, 0
        if event == _FILTERED and self._note(who):
            return _SYSCALL, who, 0, 0
        if event in (1, 2, 3) and who in self._confined:
            self._confined.add(_message(who))
        elif event in (1, 2, 3) and who in self._servers:
            self._keepers.add(_message(who))
        elif event in (1, 2, 3) and who in self._keepers:
            self._commands.add(_message(who))
        return _CONT, who, 0, 0 if event else signalled

    def _note(self, who: int) -> bool:
        """Look at a call about to be made; whether its end is of interest."""
        if who in self._commands and _gains_nothing(who):
            self._confined.add(who)  # from here on the launcher puts the sandbox up in it
        if who in self._confined:
            return False
        number, arguments = _call(who)
        name = calls()[number]
        if name in _OPENING:
            wants, path = _opening(who, name, arguments)
            self._opening[who] = (name, path, wants)
            return True
        if name in ("execve", "execveat"):
            program = text_at(who, arguments[0 if name == "execve" else 1])
            self.seen.append(Seen("run", _absolute(who, program), name))
            words = _words(who, arguments[1 if name == "execve" else 2])
            if os.path.basename(program) == "bwrap" or any(map(_is_launcher, words)):
                self._confined.add(who)
            elif any(word.endswith("/fork_server_process.py") for word in words):
                self._servers.add(who)
        else:
            self.seen += _deeds(who, number, name, arguments)
        return False

    def _end_opening(self, who: int) -> None:
        name, path, writes = self._opening.pop(who, ("", "", False))
        told = ctypes.create_string_buffer(88)
        ptrace(_GET_SYSCALL_INFO, who, 88, ctypes.addressof(told))
        (result,) = struct.unpack_from("=24xq", told.raw)
        if result >= 0:
            self.seen.append(Seen("write" if writes else "read", where(who, result), name))
        elif writes:
            self.seen.append(Seen("write", _settled(who, _absolute(who, path)), f"{name}, refused"))


def _deeds(who: int, number: int, name: str, arguments: list[int]) -> list[Seen]:
    """What a call does that opens no file and starts no program."""
    machine = platform.machine()
    if number in _LOOKS[machine]:
        path = _looked_at(who, name, arguments)
        return [Seen("look", path, name)] if path else []
    if number in _UNSEEN[machine]:
        return [Seen("write", "what cannot be seen", name)]
    if number in _NUMBERS[machine]:
        address = _address(who, name, arguments)
        return [Seen("bind" if name == "bind" else "connect", address, name)] if address else []
    if name in ("mount", "umount2") and _has_own_mounts(who):
        return []  # nobody else sees them
    paths = tracing.paths(who, name, arguments)
    if name in ("symlink", "symlinkat"):
        paths = paths[1:]  # the first is the text of the link
    return [Seen("write", _settled(who, _absolute(who, path)), name) for path in paths]


def _has_own_mounts(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")


def _is_launcher(word: str) -> bool:
    return word.endswith("/sandbox/launcher.py")


def _call(pid: int) -> tuple[int, list[int]]:
    told = ctypes.create_string_buffer(88)
    ptrace(_GET_SYSCALL_INFO, pid, 88, ctypes.addressof(told))
    number, *arguments = struct.unpack_from("=24xQ6Q", told.raw)
    return number, arguments


def _parent(pid: int) -> int:
    return _status(pid, "PPid")


def _gains_nothing(pid: int) -> bool:
    return _status(pid, "NoNewPrivs") == 1


def _status(pid: int, what: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


def _message(pid: int) -> int:
    told = ctypes.c_ulong()
    checked(libc().ptrace(0x4201, pid, None, ctypes.addressof(told)))
    return int(told.value)


def _opening(pid: int, name: str, arguments: list[int]) -> tuple[bool, str]:
    """Whether a file is opened to be changed, and which path was given."""
    if name == "creat":
        return True, text_at(pid, arguments[0])
    if name == "open":
        return bool(arguments[1] & _WRITING), text_at(pid, arguments[0])
    given = text_at(pid, arguments[1])
    flags = arguments[2] if name == "openat" else struct.unpack("=Q", read_memory(pid, arguments[2], 8))[0]
    path = given if given.startswith("/") else f"{where(pid, arguments[0])}/{given}"
    return bool(flags & _WRITING) and not flags & os.O_PATH, path


def _words(pid: int, address: int) -> list[str]:
    found = []
    for i in range(64):
        (at,) = struct.unpack("=Q", read_memory(pid, address + 8 * i, 8))
        if not at:
            break
        found.append(text_at(pid, at))
    return found


def _address(pid: int, name: str, arguments: list[int]) -> str:
    """Where a call connects or sends to; nothing for what is connected already."""
    at, size = (arguments[4], arguments[5]) if name == "sendto" else (arguments[1], arguments[2])
    if name in ("sendmsg", "sendmmsg"):
        at, size = struct.unpack("=QI", read_memory(pid, arguments[1], 12))
    if not at or size < 2:
        return ""
    data = read_memory(pid, at, min(size, 128))
    (family,) = struct.unpack_from("=H", data)
    if family == socket.AF_UNIX:
        path = data[2:].split(b"\0", 1)[0]
        return (
            f"unix:{_settled(pid, _absolute(pid, os.fsdecode(path)))}" if path else f"abstract:{data[3:]!r}"
        )
    return f"family {family}: {data[2:].hex()}" if family not in (0, socket.AF_NETLINK) else ""


def _absolute(pid: int, path: str) -> str:
    return path if path.startswith("/") else f"{where(pid, 0xFFFFFF9C)}/{path}"


def _looked_at(pid: int, name: str, arguments: list[int]) -> str:
    """What a call looks at, through whatever links; nothing where it looks at what is open already."""
    at = 1 if name in _AT or name == "inotify_add_watch" else 0
    path = text_at(pid, arguments[at])
    if not path:
        return ""
    if name in _AT and not path.startswith("/"):
        path = f"{where(pid, arguments[0])}/{path}"
    flags = arguments[_AT[name]] if _AT.get(name, -1) > 0 else 0
    whole = _absolute(pid, path)
    if name in _OF_LINKS or flags & _NOT_FOLLOWED:
        return _settled(pid, whole)
    return os.path.realpath(_of_process(pid, whole))


def _settled(pid: int, path: str) -> str:
    """Where a name really is: its folder with every link resolved. The last part is not followed."""
    folder, name = os.path.split(_of_process(pid, path).rstrip("/"))
    return os.path.join(os.path.realpath(folder), name)


def _of_process(pid: int, path: str) -> str:
    """A path with what the kernel tells of "self" told of that process, not of this one."""
    for own in ("/proc/self/", "/proc/thread-self/"):
        if path.startswith(own):
            return f"/proc/{pid}/{path.removeprefix(own)}"
    return path
