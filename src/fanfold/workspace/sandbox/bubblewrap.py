"""The command line of bubblewrap for a policy.

Inside: `/` read-only; own user, pid, ipc, uts and cgroup namespaces, the network's unless allowed; fresh
/proc and /dev; what is not the system's own is empty except programs, and writable only where programs keep
temporary things; the workspace at the project's own path; in it `.git` and dependency folders read-only from
the parent, and an empty `.fanfold`.

A word of the command line is text, or a `Bind` that the launcher opens and hands over by its handle.
"""

from __future__ import annotations

import errno
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import TypeAlias

from fanfold.kernel.sets.protected import OWNERS
from fanfold.workspace.artifacts import INSIDE
from fanfold.workspace.files.programs import find_program
from fanfold.workspace.sandbox import covered
from fanfold.workspace.sandbox.outside import Outside, is_within
from fanfold.workspace.sandbox.policy import Bind, Policy, programs

Word: TypeAlias = str | Bind

_KERNEL = tuple("sys sysrq-trigger irq bus fs acpi scsi mtrr dynamic_debug driver asound".split())
"""Parts of /proc through which the whole machine is set, writable for whoever is root outside."""
TRIAL_S = 120.0
"""A busy machine may take long to show what it can do, and must not be taken for one that cannot."""
TRIALS = 3
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_KILLED = 128
"""How a program ends that was killed: with this or more, or with less than nothing."""
_CLOSED_ALREADY = ("/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Of these, what bubblewrap closes by itself where it could be written to; each mount has its price."""


@cache
def program(project: Path) -> str | None:
    """Where bubblewrap is; never in the project."""
    return find_program("bwrap", project)


@cache
def _options(project: Path) -> str:
    found = program(project)
    if found is None:
        return ""
    return tried([found, "--help"]).stdout


def tried(command: list[str]) -> subprocess.CompletedProcess[str]:
    """How a trial ended that shows what there is here; raises what `subprocess` does.

    One that was killed, or got no process or memory, only met a bad moment: it is tried again, since nobody
    is to be confined less for that.
    """
    for left in reversed(range(TRIALS)):
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S, check=False)
        except OSError as error:
            if error.errno not in _SCARCE or not left:
                raise
            continue
        if 0 <= ended.returncode < _KILLED or not left:
            return ended
    raise AssertionError("the last trial counts")


def namespaces(project: Path, network: bool) -> list[str]:
    """What is unshared, and that nothing more can be from inside."""
    found = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        found.append("--unshare-net")
    if "--disable-userns" in _options(project):
        found.append("--disable-userns")
    # Root would keep its capabilities inside, and stays the owner of the kernel's settings in any case.
    return [*found, "--cap-drop", "ALL", "--die-with-parent", "--new-session"]


def takes_handles(project: Path) -> bool:
    """Whether this bubblewrap binds what is behind a handle; older ones are given the path of it."""
    return "--ro-bind-fd" in _options(project)


def arguments(policy: Policy, outside: Outside) -> list[Word]:
    """Everything up to the command; the program is told to start in the project."""
    found: list[Word] = [program(policy.project) or "bwrap", *namespaces(policy.project, policy.network)]
    found += [word for path, target in outside.links for word in ("--symlink", target, path)]
    found += [Bind(path, "/", path[1:]) for path in outside.seen if path != "/sys"]
    found += ["--dev", "/dev", "--proc", "/proc"]
    for part in (f"/proc/{name}" for name in _KERNEL):
        if not (part in _CLOSED_ALREADY and os.access(part, os.W_OK)):
            found += ["--ro-bind-try", part, part]
    for folder in outside.hidden:
        found += [*_sized(policy), "--tmpfs", folder] if folder in outside.scratch else ["--dir", folder]
    home = str(policy.home)
    if any(is_within(home, folder) for folder in outside.hidden):
        found += ["--dir", home]  # programs expect their home to exist
    if policy.rooms.home is not None:
        found.append(Bind(home, str(policy.rooms.home), read_only=False))
    if policy.rooms.artifacts is not None:
        found.append(Bind(INSIDE, str(policy.rooms.artifacts), read_only=False))
    for path in (*programs(policy, outside.hidden), *policy.rooms.also):
        found += ["--ro-bind-try", str(path), str(path)]
    if policy.network:
        found += _name_service(outside.hidden)
    found.append(Bind(str(policy.project), str(policy.place), read_only=policy.read_only))
    found += [*bound_in(policy), *covered.words(policy, _sized(policy))]
    if "/sys" in outside.seen:
        found.append(Bind("/sys", "/", "sys"))  # last: the mounts in it would be read again for each of ours
    found += ["--remount-ro", "/"]
    return [*found, "--chdir", str(policy.project), "--"]


def _sized(policy: Policy) -> list[str]:
    return ["--size", str(policy.limits.max_scratch_bytes)] if "--size" in _options(policy.project) else []


def bound_in(policy: Policy) -> list[Word]:
    """What of the parent appears in the workspace, read-only."""
    found: list[Word] = []
    project, place = str(policy.project), str(policy.place)
    for path in sorted(policy.points):
        inside = f"{project}/{path}"
        name = path.rpartition("/")[2]
        if path == ".fanfold":
            found += ["--tmpfs", inside, "--remount-ro", inside]
        elif name == ".git" or not policy.shared:
            found.append(Bind(inside, project, path))
    found += [Bind(folder, folder) for folder in policy.repositories]
    others = (name for name in OWNERS if name not in (".git", ".fanfold"))
    return [*found, *(Bind(f"{project}/{name}", place, name) for name in others)]


def _name_service(hidden: tuple[str, ...]) -> list[str]:
    """Names are looked up through a file that some systems keep among run-time folders."""
    real = os.path.realpath("/etc/resolv.conf")
    return ["--ro-bind-try", real, real] if any(is_within(real, one) for one in hidden) else []
