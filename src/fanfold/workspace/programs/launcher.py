"""The sandbox launcher: a small program that applies the sandbox to itself and becomes the command.

Run as `python -I -S launcher.py SPEC COMMAND…`, or in a fork of a process that has loaded it. That process
parses the request (`prepare`), and the fork performs it (`become`). A fork must copy the memory pages that it
writes, and Python writes to every object it reads. So the fork does as little as possible. It uses only the
standard library. SPEC is JSON (see `sandbox`). It fails closed: if a restriction cannot be applied, it exits
with status 126 and a message on stderr.

The optional handle `status_fd` is a file in which the reaper reads whether the command was executed. The
command itself never has that handle. So its output or status can never look like a failure of the sandbox.

The order matters: the cgroup before any fork, namespaces before paths are opened, limits before the rules
(which may close /proc), rules before the filter (which forbids the creation of rules).

Handles: the next program inherits only the three standard streams. A wrapper also gets the handles in its
command line, and closes them before it starts the command. A bubblewrap without `--ro-bind-fd` gets paths,
and no handle of a folder.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import stat
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
SECCOMP_MODE_FILTER = 2
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2
CLOSE_RANGE, CLOSE_RANGE_CLOEXEC = 436, 4
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
LAST_CAP = 63
REFUSED = 126


class SandboxRefused(Exception):
    """A part of the sandbox could not be applied."""


class Program(ctypes.Structure):
    """A filter in the format of prctl."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


libc = ctypes.CDLL(None, use_errno=True)
Attributes = ctypes.c_uint64 * 3
Rule = ctypes.c_char * 12


class PreparedStart(NamedTuple):
    """A start that is prepared as far as possible before the process of the command exists."""

    spec: dict[str, Any]
    command: list[str]
    code: bytes
    """The system-call filter."""
    passed: dict[str, str]
    """The environment of the next program."""
    inside: bytes
    """Arguments for the wrapper with the command's variables, which the wrapper itself must not have."""


def prepare(words: list[str], variables: Mapping[str, str]) -> PreparedStart:
    """Parse the request; see `become`."""
    spec: dict[str, Any] = json.loads(words[0])
    passed = environment(spec["environment"], spec["given"], variables)
    inside = given(spec["given"], variables) | spec["set"]
    flags = b""
    if spec["wrapper"]:
        flags = b"".join(os.fsencode(word) + b"\0" for pair in inside.items() for word in ("--setenv", *pair))
    else:
        passed |= inside
    return PreparedStart(spec, words[1:], base64.b64decode(spec["filter"]), passed, flags)


def checked(result: int, what: str) -> int:
    if result < 0:
        raise SandboxRefused(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def inherit_no_handles() -> None:
    """Mark every handle except the standard streams as not inherited."""
    if libc.syscall(CLOSE_RANGE, 3, ctypes.c_uint(~0), CLOSE_RANGE_CLOEXEC) == 0:
        return
    for name in os.listdir("/proc/self/fd"):  # kernels before 5.11
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:
            pass  # the handle of this listing


def join_cgroups(files: list[str]) -> None:
    for file in files:
        handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        os.write(handle, b"0")
        os.close(handle)


def enter(namespaces: list[str]) -> None:
    handles = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in namespaces]
    for handle, kind in zip(handles, (CLONE_NEWUSER, CLONE_NEWNS), strict=True):
        checked(libc.setns(handle, kind), "enter the workspace")


def stand_apart(place: str) -> None:
    """Hide overlays of other workspaces, whose end would stop bubblewrap, and protect ours from unmounts."""
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) != 0:
        return
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "stand apart")
    own = os.fsencode(place)
    for line in read_whole("/proc/self/mountinfo").split(b"\n"):
        if b" - overlay fanfold " in line and (path := unescaped(line.split()[4])) != own:
            libc.umount2(path, MNT_DETACH)


def read_whole(file: str) -> bytes:
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    parts: list[bytes] = []
    while part := os.read(handle, 1 << 16):
        parts.append(part)
    os.close(handle)
    return b"".join(parts)


def escaped(path: bytes) -> bytes:
    r"""Return a path in the format of the kernel's mount table.

    >>> escaped(b"/a b")
    b'/a\\040b'
    """
    for byte in b"\\ \t\n":
        path = path.replace(bytes([byte]), b"\\%03o" % byte)
    return path


def unescaped(path: bytes) -> bytes:
    r"""Return the path of an entry in the kernel's mount table.

    >>> unescaped(rb"/a\040b\134c")
    b'/a b\\c'
    """
    first, *parts = path.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts)


def open_beneath(top: str, path: str) -> int | None:
    """Open a path beneath a folder; None if it is missing or contains a link."""
    try:
        handle = os.open(top, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    found = open_below(handle, path)
    if found != handle:
        os.close(handle)
    return found


def open_below(top: int, path: str) -> int | None:
    """Open a path beneath an open folder, which stays open; None as in `open_beneath`."""
    handle = top
    try:
        for name in filter(None, path.split("/")):
            above, handle = handle, os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            if above != top:
                os.close(above)
        if not stat.S_ISLNK(os.fstat(handle).st_mode):
            return handle
    except OSError:
        pass
    if handle != top:
        os.close(handle)
    return None


def bound(words: list[Any], by_handle: bool) -> list[str]:
    """Return the wrapper's arguments, with all mounted paths opened."""
    found: list[str] = []
    tops: dict[str, int | None] = {}
    for word in words:
        if isinstance(word, str):
            found.append(word)
            continue
        if (name := word["top"]) not in tops:
            tops[name] = open_beneath(name, "")
        top = tops[name]
        handle = None if top is None else open_below(top, word["path"])
        if handle is None:
            continue
        if handle == top:
            handle = os.dup(handle)
        os.set_inheritable(handle, by_handle)
        how = "--ro-bind" if word["read_only"] else "--bind"
        source = [f"{how}-fd", str(handle)] if by_handle else [how, os.readlink(f"/proc/self/fd/{handle}")]
        found += [*source, word["inside"]]
    return found


def limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        if name == "NPROC" and os.getuid() == 0:
            continue  # does not apply to root; a cgroup does
        most = value + own_tasks() if name == "NPROC" else value
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(number, (most, most))


def own_tasks() -> int:
    """Count the tasks of this user: the kernel's limit includes all of them."""
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
    """Apply Landlock rules to this process."""
    sizes = {"fs": 8, "net": 16, "scoped": 24}
    attributes = Attributes(rules["fs"], rules["net"], rules["scoped"])
    size = sizes["scoped" if rules["scoped"] else "net" if rules["net"] else "fs"]
    ruleset = checked(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), "Landlock")
    for top, path, access in rules["paths"]:
        handle = open_beneath(top, path)
        if handle is None:
            continue  # a missing path needs no rule, nor does a link: only the rules for its target apply
        rights = access if stat.S_ISDIR(os.fstat(handle).st_mode) else access & rules["files"]
        rule = Rule.from_buffer_copy(rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder))
        checked(libc.syscall(ADD_RULE, ruleset, 1, rule, 0), f"Landlock for {top}/{path}")
        os.close(handle)
    checked(libc.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def filter_calls(code: bytes) -> None:
    program = Program(len(code) // 8, code)
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def environment(names: list[str], prefix: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on the allow-list; a name that ends in * is a prefix."""
    starts = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: value
        for name, value in variables.items()
        if (name in names or (starts and name.startswith(starts))) and not name.startswith(prefix)
    }


def given(prefix: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the step, which no program in between uses because of their prefix."""
    found = {name[len(prefix) :]: value for name, value in variables.items() if name.startswith(prefix)}
    found.pop("FANFOLD_SESSION", None)  # identifies the session of the process
    return found


def handed(data: bytes) -> str:
    """Return a handle from which the next program reads `data`."""
    handle = os.memfd_create("handed", 0)
    os.write(handle, data)
    os.lseek(handle, 0, os.SEEK_SET)
    return str(handle)


def main(prepared: PreparedStart, status_fd: int) -> None:
    spec, code = prepared.spec, prepared.code
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    inherit_no_handles()
    join_cgroups(spec["cgroups"])
    if spec["namespaces"]:
        enter(spec["namespaces"])
    elif spec["wrapper"]:
        stand_apart(spec["place"])
    limit(spec["limits"])
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
    if wrapper:
        wrapper[1:1] = ["--args", handed(prepared.inside)]
        if status_fd >= 0:
            os.write(status_fd, b"w\n")
            os.set_inheritable(status_fd, True)
            wrapper[1:1] = ["--json-status-fd", str(status_fd)]
    program = (wrapper or prepared.command)[0]
    try:
        execute = os.execve if "/" in program else os.execvpe
        execute(program, [*wrapper, *prepared.command], prepared.passed)
    except OSError as error:
        error.filename = program  # the requested program, not the last path that was tried
        raise


def become(prepared: PreparedStart, status_fd: int = -1) -> None:
    """Apply the sandbox to this process and become the command; never returns."""
    status = REFUSED
    try:
        main(prepared, status_fd)
    except SandboxRefused as refused:
        sys.stderr.write(f"sandbox: {refused}\n")
    except OSError as error:
        sys.stderr.write(f"sandbox: {error.filename or prepared.command[:1]}: {error.strerror}\n")
        status = 127 if isinstance(error, FileNotFoundError) else REFUSED
    finally:
        if status_fd >= 0:
            os.write(status_fd, b"s\n")
        sys.stderr.flush()
        os._exit(status)


def warm_up() -> None:
    """Resolve functions of the C library once, instead of in every fork."""
    for name in ("prctl", "setns", "unshare", "mount", "umount2", "capset", "syscall"):
        getattr(libc, name)


if __name__ == "__main__":
    become(prepare(sys.argv[1:], os.environ))
