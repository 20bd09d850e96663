"""Overlays: a child's layer over its base, laid by the kernel in a millisecond or two.

Rules
* Never over the live workspace: an overlay whose lower tree changes is undefined. Bases do not change.
* Root lays it in the open, at the child's `workspace` (see `unmounter`). Anyone else lays it in a user
  namespace of its own, which we hold by three handles: its files are reached through one of them, programs
  enter it by the other two (see `Entrance`). That overlay ends with us.
* A layer is not forced to disk (`volatile`): taking it away would else wait for everything the machine has
  yet to write. What is merged is forced to disk by the merge. After a power cut a layer is not trusted.
* Folders are passed to the kernel as handles, so no character of a path can be taken for an option.
* The kernel makes folders in `work` that nobody may enter. They are opened up at once: whoever owns the
  project can delete it, also when nobody was left to lift the overlay.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.process_identity import this_process
from fanfold.workspace.files import syscalls
from fanfold.workspace.sandbox.launcher import escaped, read_whole, unescaped
from fanfold.workspace.snapshots import mounter, unmounter

_START_S = 10.0
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_REDIRECT = ("trusted.overlay.redirect",)


class Entrance:
    """The way into an overlay that lives in a namespace: where its files are, and what a program joins."""

    def __init__(self, root: int, user: int, mounts: int) -> None:
        self._handles = (root, user, mounts)

    @property
    def path(self) -> Path:
        """Its files, for this process and for others of this user that it starts."""
        return Path(f"/proc/{os.getpid()}/fd/{self._handles[0]}")

    @property
    def namespaces(self) -> tuple[str, str]:
        """What a program joins before it is executed: user namespace, mount namespace."""
        _, user, mounts = self._handles
        return f"/proc/{os.getpid()}/fd/{user}", f"/proc/{os.getpid()}/fd/{mounts}"

    def close(self) -> None:
        handles, self._handles = self._handles, (-1, -1, -1)
        for handle in handles:
            if handle >= 0:
                os.close(handle)


def lay(lower: Sequence[Path], upper: Path, work: Path, target: Path, *, read_only: bool) -> None:
    """Lay an overlay in the open; needs the privilege to mount."""
    handles = [os.open(folder, os.O_PATH | os.O_CLOEXEC) for folder in (upper, work, *lower)]
    try:
        up, wo, *low = (f"/proc/self/fd/{handle}" for handle in handles)
        layers = f"lowerdir={':'.join(low)},upperdir={up},workdir={wo}"
        options = f"{layers},redirect_dir=on,index=off,metacopy=off,volatile"
        flags = _FLAGS | (syscalls.MS_RDONLY if read_only else 0)
        syscalls.mount("fanfold", str(target), "overlay", flags, options)
        unmounter.watch(str(target), str(this_process()))
        mounter.open_up(wo)
    finally:
        for handle in handles:
            os.close(handle)


def lay_in_namespace(
    lower: Sequence[Path], upper: Path, work: Path, target: Path, *, read_only: bool
) -> Entrance:
    """Lay an overlay in a user namespace of its own; raises OSError where the kernel does not allow it."""
    folders = [str(folder) for folder in (upper, work, target)]
    command = [sys.executable, "-I", "-S", mounter.__file__, "1" if read_only else "0", *folders]
    command += [str(folder) for folder in lower]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    ) as helper:
        assert helper.stdout is not None
        try:
            ready, _, _ = select.select([helper.stdout], [], [], _START_S)
            said = helper.stdout.readline().decode().strip() if ready else "no answer"
            if said != "ok":
                why = f"no overlay in a user namespace: {said or 'refused'}"
                raise OSError(why)  # noqa: TRY301 - to be caught below, where the helper is ended
            place = f"/proc/{helper.pid}"
            with ExitStack() as opened:
                handles: list[int] = []
                for path in (f"{place}/root{target}", f"{place}/ns/user", f"{place}/ns/mnt"):
                    handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                    opened.callback(os.close, handles[-1])
                opened.pop_all()
            return Entrance(*handles)
        except BaseException:
            helper.kill()
            raise
        finally:
            assert helper.stdin is not None
            helper.stdin.close()


def forgive(work: Path) -> None:
    """Let a layer be laid again whose process died; only the machine's death makes it untrustworthy."""
    os.rename(work, work.with_name(f"work.{os.urandom(4).hex()}"))
    work.mkdir(mode=0o755)


def mounts_below(folder: Path) -> list[str]:
    """Mount points of this namespace in a folder, innermost first."""
    try:
        table = read_whole("/proc/self/mountinfo")
    except OSError:
        return []
    below = os.fsencode(f"{folder}/")
    if escaped(below) not in table:  # nearly always, and telling lines apart costs ten times as much
        return []
    points = (unescaped(line.split()[4]) for line in table.splitlines())
    return [os.fsdecode(point) for point in points if point.startswith(below)][::-1]


def lift(target: Path) -> None:
    """Take an overlay away; nothing happens when there is none."""
    for point in mounts_below(target.parent):
        if point == str(target):
            try:
                syscalls.unmount(point)
                unmounter.forget(point)
            except OSError as error:
                message = f"{point} cannot be unmounted: {error.strerror}"
                raise WorldError("workspace.still_mounted", message) from error


def is_rewritten(handle: int) -> bool:
    """Whether an open folder of a layer hides the folder below it, or shows another one's content."""
    for name in (*_OPAQUE, *_REDIRECT):
        try:
            if os.getxattr(handle, name):
                return True
        except OSError:
            pass  # not set, or not ours to read
    return False
