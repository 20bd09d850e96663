"""The second level: Landlock's rules for a policy, with a system-call filter and limits.

What it cannot give is named in `levels`: the workspace is at its own path and not at the project's, processes
outside are seen (not touched), modes cannot be changed, and there are no sockets in the file system.
Landlock allows what is named and nothing else, below a folder always all of it. Where something inside must
stay closed, the rules name everything around it (`around`), and nothing new can be made beside it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from fanfold.kernel.sets.protected import OWNERS
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.workspace.sandbox.outside import Outside, around
from fanfold.workspace.sandbox.policy import Policy, programs

MIN_ABI = 3
"""Before that, a file that may only be read can be emptied."""
_CREATE_RULESET = 444
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_CHAR, _BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ | _LIST
_ON_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_DEVICES = ("null", "zero", "full", "random", "urandom")
"""No terminals: those of the user are in the same place as new ones."""


@cache
def abi() -> int:
    """The version of Landlock this kernel offers; 0 for none."""
    import ctypes

    try:
        return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1)))
    except (OSError, AttributeError):
        return 0


def _everything() -> int:
    rights = (1 << 13) - 1
    for version, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        if abi() >= version:
            rights |= right
    return rights


def scope_only() -> dict[str, object] | None:
    """No rules for files; signals and abstract sockets stay inside. What bubblewrap lacks with a network."""
    if abi() < 6:
        return None
    return {"fs": 0, "net": 0, "scoped": 1, "files": 0, "paths": []}


def rules(policy: Policy, scratch: Path, outside: Outside) -> dict[str, object]:
    """The rules of a policy as the launcher takes them: rights on what is at a path beneath a folder."""
    everything = _everything()
    writing = everything & ~(_CHAR | _BLOCK)
    paths = [_rule(path, _READING) for path in outside.around(policy.project)]
    paths += [_rule("/proc", _READING), _rule("/dev", _LIST)]
    paths += [_rule(f"/dev/{name}", _READ | _WRITE | _IOCTL & everything) for name in _DEVICES]
    paths += [_rule(path, _READING) for path in programs(policy, (*outside.hidden, "/dev", "/proc", "/sys"))]
    paths += [_rule(path, _READING) for path in policy.rooms.also]
    own_folders = (scratch, policy.rooms.home, policy.rooms.artifacts)
    paths += [_rule(path, writing) for path in own_folders if path is not None]
    top = str(policy.project)
    if policy.shared:
        own = f"{top}/.fanfold"
        paths += [_beneath(top, path, _READING) for path in around(top, [own])]
        if not policy.read_only:
            closed = [f"{top}/{path}" for path in (*policy.points, *OWNERS) if _is_closed(path)]
            paths += [_beneath(top, path, writing) for path in around(top, [own, *closed])]
    else:
        paths.append(_rule(policy.place, _READING if policy.read_only else writing))
        paths += [(top, path, _READING) for path in policy.points if path != ".fanfold"]
    net = 3 if abi() >= 4 and not policy.network else 0
    scoped = 3 if abi() >= 6 else 0
    return {"fs": everything, "net": net, "scoped": scoped, "files": _ON_FILES & everything, "paths": paths}


def _rule(path: str | Path, access: int) -> tuple[str, str, int]:
    return str(path), "", access


def _beneath(top: str, path: str, access: int) -> tuple[str, str, int]:
    """For what the project holds: no link on the way is followed."""
    return top, os.path.relpath(path, top) if path != top else "", access


def _is_closed(path: str) -> bool:
    return path in OWNERS or path.endswith("/.git")


def make_scratch(policy: Policy) -> Path:
    """A private home and temporary folder for one launch; its name says whose, for who clears up."""
    scratch = policy.scratch / f"{this_process()}_{os.urandom(8).hex()}"
    scratch.mkdir(mode=0o700)
    for name in ("home", "tmp"):
        (scratch / name).mkdir(mode=0o700)
    return scratch


def abandoned(scratches: Path) -> list[Path]:
    """The private folders whose process died before it could remove them."""
    makers = ((one, ProcessIdentity.parse(one.name.rpartition("_")[0])) for one in scratches.iterdir())
    return [one for one, maker in makers if maker is None or not maker.is_alive()]


def environment(policy: Policy, scratch: Path) -> dict[str, str]:
    """Where home and temporary files are; and git is not to look above the workspace."""
    return {
        "HOME": str(policy.rooms.home or scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "GIT_CEILING_DIRECTORIES": str(policy.place.parent),
    }
