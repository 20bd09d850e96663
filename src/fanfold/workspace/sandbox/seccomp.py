"""The system-call filter of the sandbox, assembled by hand: a few dozen instructions, no library.

Rules
* A list of what is refused, not of what is allowed: programs of every kind run inside. Refused is what
  reaches the kernel rather than the work: mounting, namespaces, modules, keys, raw clocks, io_uring
  (which would pass by filters), typing into a terminal, and every family of sockets but the common ones.
  AF_VSOCK would reach a hypervisor past any network namespace.
* `clone3` hides its flags from filters, so it does not exist inside; programs fall back to `clone`.
* Under Landlock alone there are no mounts to hide behind. Refused too: changing modes, owners, attributes
  (Landlock does not see these), IPC that is shared with the outside, watching folders, and sockets in the
  file system. Pairs of sockets are allowed where they stay with each other: one half of a pair for datagrams
  can be sent from to any socket that has a name.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Mapping
from functools import cache

_LOAD, _JEQ, _JGE, _JSET, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NEW_NAMESPACES = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_X32 = 0x40000000
_SOCKET_KIND = 0xF
_PAIRED = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_KIND = 0xC000FF00
_SETS_ATTRIBUTES = (0x40006600, 0x40005800)
"""Requests that a file be marked (immutable, append-only …): Landlock lets them through wherever a file may
be read."""

_SINCE_5 = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443, "fchmodat2": 452, "setxattrat": 463,
    "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip
_X86_64 = {
    "socket": 41, "socketpair": 53, "clone": 56, "ioctl": 16, "mount": 165, "umount2": 166,
    "pivot_root": 155, "chroot": 161,
    "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
    "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "nfsservctl": 180, "acct": 163,
    "settimeofday": 164, "adjtimex": 159, "clock_settime": 227, "clock_adjtime": 305, "kexec_load": 246,
    "kexec_file_load": 320, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "setns": 308,
    "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "finit_module": 313, "bpf": 321, "userfaultfd": 323, "syslog": 103, "vhangup": 153, "kcmp": 312,
    "lookup_dcookie": 212, "uselib": 134, "_sysctl": 156, "chmod": 90, "fchmod": 91, "fchmodat": 268,
    "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "setxattr": 188, "lsetxattr": 189,
    "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "shmget": 29,
    "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220, "msgget": 68,
    "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "prlimit64": 302,
    "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
    "setpriority": 141, "ioprio_set": 251, "migrate_pages": 256, "move_pages": 279, "inotify_add_watch": 254,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "socketpair": 199, "clone": 220, "ioctl": 29, "mount": 40, "umount2": 39,
    "pivot_root": 41, "chroot": 51,
    "swapon": 224, "swapoff": 225, "reboot": 142, "sethostname": 161, "setdomainname": 162,
    "init_module": 105, "delete_module": 106, "quotactl": 60, "nfsservctl": 42, "acct": 89,
    "settimeofday": 170, "adjtimex": 171, "clock_settime": 112, "clock_adjtime": 266, "kexec_load": 104,
    "kexec_file_load": 294, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "setns": 268,
    "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
    "finit_module": 273, "bpf": 280, "userfaultfd": 282, "syslog": 116, "vhangup": 58, "kcmp": 272,
    "lookup_dcookie": 18, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "setxattr": 5,
    "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190, "semctl": 191, "semtimedop": 192,
    "semop": 193, "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "mq_open": 180,
    "mq_unlink": 181, "prlimit64": 261, "sched_setaffinity": 122, "sched_setscheduler": 119,
    "sched_setparam": 118, "sched_setattr": 274, "setpriority": 140, "ioprio_set": 30, "migrate_pages": 238,
    "move_pages": 239, "inotify_add_watch": 27,
}  # fmt: skip
_MACHINES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _AARCH64),
}
_ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
_OF_OTHERS = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0,
    "migrate_pages": 0, "move_pages": 0, "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip
"""Calls that change another process of the same user, by which argument names it: only 0, oneself, is allowed
where no pid namespace hides the others."""
_SPECIAL = ("socket", "socketpair", "clone", "ioctl", *_ABSENT, *_OF_OTHERS)
_LANDLOCK_ONLY = frozenset(
    """chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr setxattrat
    file_setattr removexattr lremovexattr fremovexattr removexattrat shmget shmat shmctl semget semop semctl
    semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink inotify_add_watch""".split()
)


def is_available() -> bool:
    """Whether this machine's system calls are known here."""
    return platform.machine() in _MACHINES


@cache
def assemble(*, alone: bool, network: bool) -> bytes:
    """The filter as the kernel takes it; `alone` when no namespaces stand behind it."""
    arch, own = _MACHINES[platform.machine()]
    numbers = {**own, **_SINCE_5}
    families = [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]
    if alone:
        families = families[1:] if network else []
    code = [(_LOAD, 0, 0, _ARCH), (_JEQ, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if platform.machine() == "x86_64":
        code += [(_JGE, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for name, number in numbers.items():
        if name not in _SPECIAL and (alone or name not in _LANDLOCK_ONLY):
            code += [(_JEQ, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    for name in _ABSENT:
        code += [(_JEQ, 0, 1, numbers[name]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _case(numbers["clone"], _ARG0, [(_JSET, 0, 1, _NEW_NAMESPACES), *_refuse(errno.EPERM)])
    typing = [(_JEQ, 1, 0, _TIOCSTI), (_JEQ, 0, 1, _TIOCLINUX), *_refuse(errno.EPERM)]
    marking = [
        (_AND, 0, 0, _KIND),
        *(line for kind in _SETS_ATTRIBUTES for line in ((_JEQ, 0, 1, kind), *_refuse(errno.EPERM))),
    ]
    code += _case(numbers["ioctl"], _ARG1, [*typing, *(marking if alone else ())])
    allowed = [line for family in families for line in ((_JEQ, 0, 1, int(family)), (_RETURN, 0, 0, _ALLOW))]
    code += _case(numbers["socket"], _ARG0, [*allowed, *_refuse(errno.EPERM)])
    if alone:
        paired = [line for kind in _PAIRED for line in ((_JEQ, 0, 1, int(kind)), (_RETURN, 0, 0, _ALLOW))]
        code += _case(
            numbers["socketpair"], _ARG1, [(_AND, 0, 0, _SOCKET_KIND), *paired, *_refuse(errno.EPERM)]
        )
        for name, argument in _OF_OTHERS.items():
            body = [(_JEQ, 1, 0, 0), *_refuse(errno.EPERM)]
            code += _case(numbers[name], _ARG0 + 8 * argument, body)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def _refuse(number: int) -> list[tuple[int, int, int, int]]:
    return [(_RETURN, 0, 0, _ERRNO | number)]


def _case(
    number: int, argument: int, body: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """For one system call, look at an argument; what the body does not decide is allowed."""
    whole = [(_LOAD, 0, 0, argument), *body, (_RETURN, 0, 0, _ALLOW)]
    return [(_JEQ, 0, len(whole), number), *whole]
