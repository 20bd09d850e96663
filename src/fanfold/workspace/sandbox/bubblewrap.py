"""The command line of bubblewrap for a policy.

Inside: `/` read-only; own user, pid, ipc, uts and cgroup namespaces, the network's unless allowed; fresh
/proc and /dev; homes, temporary and run-time folders private and empty except programs; the workspace at the
project's own path; in it `.git` and dependency folders read-only from the parent, and an empty `.fanfold`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from fanfold.workspace.protected import ROLE_FOLDERS
from fanfold.workspace.sandbox.policy import Policy, hidden_folders, programs

_KERNEL = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
"""Parts of /proc through which the whole machine is set, writable for whoever is root outside."""


@cache
def program() -> str | None:
    """Where bubblewrap is."""
    return shutil.which("bwrap")


@cache
def _options() -> str:
    found = program()
    if found is None:
        return ""
    return subprocess.run([found, "--help"], capture_output=True, text=True, check=False).stdout


def namespaces(network: bool) -> list[str]:
    """What is unshared, and that nothing more can be from inside."""
    found = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        found.append("--unshare-net")
    if "--disable-userns" in _options():
        found.append("--disable-userns")
    # Root would keep its capabilities inside, and stays the owner of the kernel's settings in any case.
    return [*found, "--cap-drop", "ALL", "--die-with-parent", "--new-session"]


def arguments(policy: Policy) -> list[str]:
    """Everything up to the command; the program is told to start in the project."""
    found = [program() or "bwrap", *namespaces(policy.network)]
    found += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _KERNEL:
        found += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    hidden = hidden_folders(policy)
    for folder in hidden:
        found += [*_sized(policy), "--tmpfs", str(folder)]
    if any(policy.home.is_relative_to(folder) for folder in hidden):
        found += ["--dir", str(policy.home)]  # programs expect their home to exist
    for path in programs(policy, hidden):
        found += ["--ro-bind-try", str(path), str(path)]
    if policy.network:
        found += _name_service(hidden)
    found += ["--ro-bind" if policy.read_only else "--bind", str(policy.place), str(policy.project)]
    found += _bound_in(policy)
    return [*found, "--chdir", str(policy.project), "--"]


def _sized(policy: Policy) -> list[str]:
    return ["--size", str(policy.limits.max_scratch_bytes)] if "--size" in _options() else []


def _bound_in(policy: Policy) -> list[str]:
    """What of the parent appears in the workspace, read-only."""
    found: list[str] = []
    for path in sorted(policy.points):
        inside = str(policy.project / path)
        name = path.rpartition("/")[2]
        if path == ".fanfold":
            found += ["--tmpfs", inside, "--remount-ro", inside]
        elif name == ".git" or not policy.shared:
            found += ["--ro-bind-try", inside, inside]
            found += _elsewhere(policy, Path(inside)) if name == ".git" and not policy.points[path] else []
    for path in ROLE_FOLDERS:
        if (policy.workspace / path).is_dir():
            outer = path.partition("/")[0]
            if policy.shared and not policy.read_only and not (policy.workspace / outer).is_symlink():
                # Else it could be renamed with what is closed in it, and another put in its place.
                found += ["--bind", str(policy.place / outer), str(policy.project / outer)]
            found += ["--ro-bind", str(policy.place / path), str(policy.project / path)]
    return found


def _elsewhere(policy: Policy, file: Path) -> list[str]:
    """The folder a `.git` file names, and the repository that one belongs to, where they would be hidden."""
    try:
        words = file.read_text().partition("gitdir:")[2].strip()
    except OSError:
        return []
    folder = Path(os.path.realpath(file.parent / words))
    found: list[str] = []
    common = folder / "commondir"
    outer = Path(os.path.realpath(folder / common.read_text().strip())) if common.is_file() else folder
    for one in dict.fromkeys((outer, folder)):
        if one.is_dir() and not one.is_relative_to(policy.project):
            found += ["--ro-bind-try", str(one), str(one)]
    return found


def _name_service(hidden: list[Path]) -> list[str]:
    """Names are looked up through a file that some systems keep among run-time folders."""
    real = Path(os.path.realpath("/etc/resolv.conf"))
    return ["--ro-bind-try", str(real), str(real)] if any(real.is_relative_to(one) for one in hidden) else []
