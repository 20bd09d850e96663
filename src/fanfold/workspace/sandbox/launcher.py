"""The last thing outside: a small program that puts the sandbox around itself and becomes the command.

Run as `python -I -S launcher.py SPEC COMMAND…`, or in a fork of a process that has loaded it (`become`): it
uses the standard library alone and needs no handle from its parent. SPEC is JSON (see `sandbox`). Whatever
cannot be put in place ends it with status 126 and a sentence on stderr: it fails closed.

Order matters: the cgroup before anything can fork, namespaces before paths are opened, limits before the
rules (/proc may be closed after them), rules before the filter (it forbids what makes rules).
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import stat
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SECCOMP_MODE_FILTER = 2
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
LAST_CAP = 63
REFUSED = 126


class SandboxRefused(Exception):
    """Something of the sandbox could not be put in place."""


class Program(ctypes.Structure):
    """A filter as prctl takes it."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    if result < 0:
        raise SandboxRefused(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def join_cgroups(files: list[str]) -> None:
    for file in files:
        with open(file, "w") as group:
            group.write("0")


def enter(namespaces: list[str]) -> None:
    handles = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in namespaces]
    for handle, kind in zip(handles, (CLONE_NEWUSER, CLONE_NEWNS), strict=True):
        checked(libc.setns(handle, kind), "enter the workspace")


def stand_apart(place: str) -> None:
    """Take the layers of other workspaces out of sight, and ours out of reach of who takes theirs away.

    Root mounts them where everybody sees them, and bubblewrap gives up when one disappears under its hands.
    Where this is not possible they were not mounted in the open either.
    """
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) != 0:
        return
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "stand apart")
    with open("/proc/self/mountinfo", "rb") as mounts:
        lines = mounts.read().splitlines()
    for line in lines:
        path = line.split()[4].decode("unicode_escape").encode("latin-1")
        if b" - overlay fanfold " in line and os.fsdecode(path) != place:
            libc.umount2(path, MNT_DETACH)


def open_beneath(top: str, path: str) -> int | None:
    """A handle of what is at a path beneath a folder; None when it is not there or a link is on the way."""
    handle = -1
    try:
        handle = os.open(top, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        for name in filter(None, path.split("/")):
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = below
    except OSError:
        if handle >= 0:
            os.close(handle)
        return None
    if stat.S_ISLNK(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return handle


def bound(words: list[Any], by_handle: bool) -> list[str]:
    """The words of the wrapper, with everything that is to be bound in opened."""
    found: list[str] = []
    for word in words:
        if isinstance(word, str):
            found.append(word)
            continue
        handle = open_beneath(word["top"], word["path"])
        if handle is None:
            continue
        os.set_inheritable(handle, True)
        how = "--ro-bind" if word["read_only"] else "--bind"
        source = [f"{how}-fd", str(handle)] if by_handle else [how, os.readlink(f"/proc/self/fd/{handle}")]
        found += [*source, word["inside"]]
    return found


def limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        if name == "NPROC" and os.getuid() == 0:
            continue  # does not bind root; a cgroup does
        most = value + own_tasks() if name == "NPROC" else value
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(number, (most, most))


def own_tasks() -> int:
    """How many tasks of this user there are: the kernel's limit counts them all."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            pass
    return count


def drop_capabilities() -> None:
    for capability in range(LAST_CAP + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    checked(libc.capset(header, (ctypes.c_uint32 * 6)()), "drop capabilities")


def restrict(rules: dict[str, Any]) -> None:
    """Put Landlock's rules around this process."""
    sizes = {"fs": 8, "net": 16, "scoped": 24}
    attributes = (ctypes.c_uint64 * 3)(rules["fs"], rules["net"], rules["scoped"])
    size = sizes["scoped" if rules["scoped"] else "net" if rules["net"] else "fs"]
    ruleset = checked(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), "Landlock")
    for top, path, access in rules["paths"]:
        handle = open_beneath(top, path)
        if handle is None:
            continue  # what is not there needs no rule, and a link none: what it leads to has its own
        rights = access if stat.S_ISDIR(os.fstat(handle).st_mode) else access & rules["files"]
        rule = (ctypes.c_char * 12).from_buffer_copy(
            rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)
        )
        checked(libc.syscall(ADD_RULE, ruleset, 1, rule, 0), f"Landlock for {top}/{path}")
        os.close(handle)
    checked(libc.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def filter_calls(code: bytes) -> None:
    program = Program(len(code) // 8, code)
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def environment(names: list[str], prefix: str) -> dict[str, str]:
    """By allow-list; a name that ends in * is a beginning."""
    starts = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: value
        for name, value in os.environ.items()
        if (name in names or (starts and name.startswith(starts))) and not name.startswith(prefix)
    }


def given(prefix: str) -> dict[str, str]:
    """The variables of the step, which come under names that mean nothing to anybody on the way."""
    found = {name[len(prefix) :]: value for name, value in os.environ.items() if name.startswith(prefix)}
    found.pop("FANFOLD_SESSION", None)  # says whose process this is
    return found


def handed(data: bytes) -> str:
    """A handle that the next program reads this from."""
    handle = os.memfd_create("handed", 0)
    os.write(handle, data)
    os.lseek(handle, 0, os.SEEK_SET)
    return str(handle)


def main(spec: dict[str, Any], command: list[str]) -> None:
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    join_cgroups(spec["cgroups"])
    if spec["namespaces"]:
        enter(spec["namespaces"])
    elif spec["wrapper"]:
        stand_apart(spec["place"])
    limit(spec["limits"])
    code = base64.b64decode(spec["filter"])
    wrapper = bound(spec["wrapper"], spec["by_handle"])
    if spec["cwd"]:
        os.chdir(spec["cwd"])
    if wrapper and code:
        wrapper[1:1] = ["--seccomp", handed(code)]
    if spec["drop"]:
        drop_capabilities()
    if spec["rules"]:
        restrict(spec["rules"])
    if not wrapper and code:
        filter_calls(code)
    passed = environment(spec["environment"], spec["given"])
    inside = given(spec["given"]) | spec["set"]
    if wrapper:
        words = [word for pair in inside.items() for word in ("--setenv", *pair)]
        wrapper[1:1] = ["--args", handed(b"".join(os.fsencode(word) + b"\0" for word in words))]
    else:
        passed |= inside
    program = (wrapper or command)[0]
    try:
        os.execvpe(program, [*wrapper, *command], passed)  # noqa: S606 - no shell is what we want
    except OSError as error:
        error.filename = program  # as it was asked for, not the last place where it was looked for
        raise


def become(words: list[str]) -> None:
    """Put the sandbox up around this process and become the command; returns never."""
    try:
        main(json.loads(words[0]), words[1:])
    except SandboxRefused as refused:
        sys.stderr.write(f"sandbox: {refused}\n")
    except OSError as error:
        sys.stderr.write(f"sandbox: {error.filename or words[1:2]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else REFUSED)
    finally:
        sys.stderr.flush()
        os._exit(REFUSED)


if __name__ == "__main__":
    become(sys.argv[1:])
