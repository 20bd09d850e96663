"""Sees every system call of a process that changes files, and may kill the process before any of them.

A fork asks to be traced when it comes to what is of interest (`begin`). From there on the kernel stops it
before each system call that can change a file, whatever function of whatever library made it, so nothing can
be overlooked. A filter of system calls keeps all others fast. Programs the fork starts inherit the filter;
they are let go on. Needs Linux 5.3, and a machine that lets a process trace its own children.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

_TRACEME, _CONT, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 7, 0x4200, 0x420E
_OPTIONS = 0x02 | 0x04 | 0x08 | 0x10 | 0x80 | 0x100000  # forks, clones, programs, filters; killed when we end
_FILTERED = 7
_NO_NEW_PRIVILEGES, _SET_FILTER = (38, 1), (22, 2)
_ALL = 0x40000000  # wait for threads too
_LOAD, _EQUAL, _ANY_BIT, _ANSWER = 0x20, 0x15, 0x45, 0x06
_MAKING = os.O_CREAT | os.O_TRUNC
_CLONING = (0x40049409, 0x4020940D)

# How to read the arguments: f is an open file, p a path, d a folder and a path in it, - anything else.
_CHANGING = {
    "open": "p", "openat": "d", "openat2": "d", "creat": "p",
    "write": "f", "writev": "f", "pwrite64": "f", "pwritev": "f", "pwritev2": "f", "sendfile": "f",
    "copy_file_range": "--f", "ioctl": "f", "truncate": "p", "ftruncate": "f", "fallocate": "f",
    "rename": "pp", "renameat": "dd", "renameat2": "dd", "link": "pp", "linkat": "dd",
    "symlink": "pp", "symlinkat": "pd", "unlink": "p", "unlinkat": "d", "rmdir": "p",
    "mkdir": "p", "mkdirat": "d", "mknod": "p", "mknodat": "d",
    "chmod": "p", "fchmod": "f", "fchmodat": "d", "fchmodat2": "d",
    "chown": "p", "fchown": "f", "lchown": "p", "fchownat": "d",
    "utime": "p", "utimes": "p", "utimensat": "d", "futimesat": "d",
    "setxattr": "p", "lsetxattr": "p", "fsetxattr": "f",
    "removexattr": "p", "lremovexattr": "p", "fremovexattr": "f",
    "fsync": "f", "fdatasync": "f", "sync": "", "syncfs": "f", "sync_file_range": "f",
    "mount": "pp", "umount2": "p",
}  # fmt: skip
_NUMBERS = {
    "x86_64": {
        2: "open", 257: "openat", 437: "openat2", 85: "creat", 1: "write", 20: "writev", 18: "pwrite64",
        296: "pwritev", 328: "pwritev2", 40: "sendfile", 326: "copy_file_range", 16: "ioctl", 76: "truncate",
        77: "ftruncate", 285: "fallocate", 82: "rename", 264: "renameat", 316: "renameat2", 86: "link",
        265: "linkat", 88: "symlink", 266: "symlinkat", 87: "unlink", 263: "unlinkat", 84: "rmdir",
        83: "mkdir", 258: "mkdirat", 133: "mknod", 259: "mknodat", 90: "chmod", 91: "fchmod",
        268: "fchmodat", 452: "fchmodat2", 92: "chown", 93: "fchown", 94: "lchown", 260: "fchownat",
        132: "utime", 235: "utimes", 280: "utimensat", 261: "futimesat", 188: "setxattr",
        189: "lsetxattr", 190: "fsetxattr", 197: "removexattr", 198: "lremovexattr",
        199: "fremovexattr", 74: "fsync", 75: "fdatasync", 162: "sync", 306: "syncfs",
        277: "sync_file_range", 165: "mount", 166: "umount2",
    },
    "aarch64": {
        56: "openat", 437: "openat2", 64: "write", 66: "writev", 68: "pwrite64", 70: "pwritev",
        287: "pwritev2", 71: "sendfile", 285: "copy_file_range", 29: "ioctl", 45: "truncate", 46: "ftruncate",
        47: "fallocate", 38: "renameat", 276: "renameat2", 37: "linkat", 36: "symlinkat",
        35: "unlinkat", 34: "mkdirat", 33: "mknodat", 52: "fchmod", 53: "fchmodat", 452: "fchmodat2",
        55: "fchown", 54: "fchownat", 88: "utimensat", 5: "setxattr", 6: "lsetxattr", 7: "fsetxattr",
        14: "removexattr", 15: "lremovexattr", 16: "fremovexattr", 82: "fsync", 83: "fdatasync",
        81: "sync", 267: "syncfs", 84: "sync_file_range", 40: "mount", 39: "umount2",
    },
}  # fmt: skip


class Call(NamedTuple):
    """A system call about to be made, and the paths it names."""

    name: str
    paths: tuple[str, ...]


Judge = Callable[[Callable[[], Call]], bool]
"""Is given a way to look at the call, since that takes longer than the call."""


def begin() -> None:
    """Called by what is traced: look at what I do from here on."""
    ptrace(_TRACEME)
    os.kill(os.getpid(), signal.SIGSTOP)
    known = numbers()
    (opening,) = (number for number, name in known.items() if name == "openat")
    rest = sorted(number for number in known if number != opening)
    last = len(rest)
    code = [
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 2, opening),
        (_LOAD, 0, 0, 16 + 2 * 8),  # how it is to be opened: most only read
        (_ANY_BIT, last + 1, last, _MAKING),
        *((_EQUAL, last - at, 0, number) for at, number in enumerate(rest)),
        (_ANSWER, 0, 0, 0x7FFF0000),  # let it
        (_ANSWER, 0, 0, 0x7FF00000),  # stop
    ]
    _install(code)


def stop_at(watched: Iterable[int]) -> None:
    """Called by what is traced: stop me at each of these calls, whatever its arguments."""
    listed = sorted(watched)
    last = len(listed)
    code = [
        (_LOAD, 0, 0, 0),
        *((_EQUAL, last - at, 0, number) for at, number in enumerate(listed)),
        (_ANSWER, 0, 0, 0x7FFF0000),  # let it
        (_ANSWER, 0, 0, 0x7FF00000),  # stop
    ]
    _install(code)


def numbers() -> dict[int, str]:
    """The calls that change files, by their numbers on this processor."""
    return _NUMBERS[platform.machine()]


def _install(code: list[tuple[int, int, int, int]]) -> None:
    packed = b"".join(struct.pack("=HBBI", *line) for line in code)
    kept = ctypes.create_string_buffer(packed)
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(kept)))
    checked(libc().prctl(*_NO_NEW_PRIVILEGES, 0, 0, 0))
    checked(libc().prctl(*_SET_FILTER, ctypes.c_void_p(ctypes.addressof(program)), 0, 0))


def trace(work: Callable[[], object], judge: Judge) -> bool:
    """Do something in a fork; whether it was killed, because `judge` said so of a call about to be made."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSTOPPED(status), "what was to be traced never began"
    ptrace(_SETOPTIONS, pid, 0, _OPTIONS)
    ptrace(_CONT, pid)
    known = {pid}
    while True:
        who, status = os.waitpid(-1, _ALL)
        if not os.WIFSTOPPED(status):
            known.discard(who)
            if who == pid:
                break
            continue
        deliver = os.WSTOPSIG(status)
        if status >> 16 or who not in known:  # an event, or the first stop of what it started
            known.add(who)
            deliver = 0
        if who == pid and status >> 16 == _FILTERED:
            call = _call_of(pid)
            if call is not None and judge(call):
                for one in known:
                    os.kill(one, signal.SIGKILL)  # the kernel does not begin the call of a dying process
                while known:
                    known.discard(os.waitpid(-1, _ALL)[0])
                return True
        ptrace(_CONT, who, 0, deliver)
    assert os.WIFEXITED(status), f"ended by signal {os.WTERMSIG(status)}"
    assert os.WEXITSTATUS(status) == 0, "what was to be traced failed"
    return False


@cache
def why_not() -> str:
    """Why nothing can be traced here; empty when it can."""
    if platform.machine() not in _NUMBERS:
        return f"system calls of {platform.machine()} are not known"

    def work() -> None:
        begin()
        os.rmdir("/nonexistent/fanfold")

    try:
        killed = trace(work, lambda look: "fanfold" in look().paths[0])
    except (OSError, AssertionError) as error:
        return f"this machine does not let us trace: {error}"
    return "" if killed else "tracing does not see what a process does"


def calls_of(work: Callable[[], object]) -> list[Call]:
    """Do something in a fork, and list what it changes."""
    seen: list[Call] = []

    def note(look: Callable[[], Call]) -> bool:
        seen.append(look())
        return False

    trace(work, note)
    return seen


def _call_of(pid: int) -> Callable[[], Call] | None:
    """A look at the call a stopped process is about to make, if it really changes files."""
    told = ctypes.create_string_buffer(88)
    ptrace(_GET_SYSCALL_INFO, pid, 88, ctypes.addressof(told))
    number, *arguments = struct.unpack_from("=24xQ6Q", told.raw)
    name = _NUMBERS[platform.machine()][number]
    if name == "open" and not arguments[1] & _MAKING:
        return None
    if name == "openat2" and not struct.unpack("=Q", read_memory(pid, arguments[2], 8))[0] & _MAKING:
        return None
    if name == "write" and not _is_file(pid, arguments[0]):
        return None
    if name == "ioctl" and arguments[1] not in _CLONING:
        return None
    return lambda: Call(name, tuple(paths(pid, name, arguments)))


def paths(pid: int, name: str, arguments: list[int]) -> list[str]:
    """The paths that a call names."""
    kinds = _CHANGING[name]
    found: list[str] = []
    at = 0
    for kind in kinds:
        if kind == "f":
            found.append(where(pid, arguments[at]))
        elif kind == "p":
            found.append(text_at(pid, arguments[at]))
        elif kind == "d":
            name = text_at(pid, arguments[at + 1])
            found.append(name if name.startswith("/") else f"{where(pid, arguments[at])}/{name}")
            at += 1
        at += 1
    return found


def where(pid: int, handle: int) -> str:
    handle &= 0xFFFFFFFF
    link = f"/proc/{pid}/cwd" if handle == 0xFFFFFF9C else f"/proc/{pid}/fd/{handle}"
    try:
        return os.readlink(link)
    except OSError:
        return "?"


def _is_file(pid: int, handle: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{handle}").st_mode)
    except OSError:
        return True  # not to be told: better counted than overlooked


def text_at(pid: int, address: int) -> str:
    text = b""
    while address and b"\0" not in text and len(text) < 8_192:
        page = 4_096 - (address + len(text)) % 4_096  # the next one may not be there
        text += read_memory(pid, address + len(text), page)
    return os.fsdecode(text.partition(b"\0")[0])


def read_memory(pid: int, address: int, count: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(count)


@cache
def libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return libc


def ptrace(request: int, pid: int = 0, address: int = 0, data: int = 0) -> None:
    checked(libc().ptrace(request, pid, address, data))


def checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
