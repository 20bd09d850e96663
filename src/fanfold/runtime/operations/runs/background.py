"""Going on in the background: a process of its own that outlives whoever started it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.kernel.events import Raised
from fanfold.kernel.lifecycle import PENDING, RUNNING
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.ownership import Owned, check_enabled, take_over
from fanfold.runtime.records.published import private
from fanfold.store.database.folder import private_folder
from fanfold.trust.adopted import is_adopted, require_permitted

LOG = "detached.log"

_started: set[int] = set()
"""Processes that this one started and that nobody has waited for yet."""


class Background:
    """A process that was started to go on with a run."""

    def __init__(self, root: str, pid: int, log: Path) -> None:
        self.root = root
        self.pid = pid
        self._log = log

    def lives(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != self.pid
        except ChildProcessError:
            return False

    def ended_at_once(self) -> WorldError:
        """What to say when it ended without having become the owner of the run."""
        return WorldError(
            "run.not_taken_over",
            f"what was asked is kept, but the process that was to go on with run {self.root} ended at once",
            hint=f"{self._log} says why; fanfold resume {self.root} goes on",
        )


def hand_over(owned: Owned) -> Background:
    """Let a background process go on with a run that this process owns."""
    owned.let_go()
    return go_on_detached(owned.project, owned.tree.root.id)


def resume_detached(project: Project, root: str, raised: Raised | None = None) -> Background:
    """Let a background process go on with a run; refused while another process drives it."""
    check_enabled(project)
    if project.has_owner(root):
        take_over(project, root).let_go()  # refused with the words for it
    return go_on_detached(project, root, raised)


def go_on_detached(project: Project, root: str, raised: Raised | None = None) -> Background:
    """Start a process that resumes a run, in a session of its own.

    What it says goes to a file beside the run's report, since no terminal is there to hear it.
    """
    require_permitted(project.folder, root)
    _bury()
    log = private_folder(project.runs_folder / root) / LOG
    with open(log, "ab", opener=private) as opened:
        process = subprocess.Popen(
            project.resume_command(root, raised),
            cwd=project.folder,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Nobody here waits for it: it belongs to init as soon as this process has ended.
    process.returncode = 0
    _started.add(process.pid)
    return Background(root, process.pid, log)


def _bury() -> None:
    """Wait for those that have ended: whoever lives long must not be followed by a row of the dead."""
    for pid in list(_started):
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            ended = True
        if ended:
            _started.discard(pid)


def abandoned(project: Project) -> list[str]:
    """Runs that are to go on and that nobody drives. Those that wait for people, or were paused, rest; and
    what came with adopted state goes on only when somebody has permitted it.
    """
    heads = project.heads(PENDING, RUNNING)
    roots = [head.run_id for head in heads if not project.has_owner(head.run_id)]
    return [root for root in roots if not is_adopted(project.folder, root)]


def take_up_abandoned(project: Project) -> list[Background]:
    """Let each of them go on in the background."""
    return [go_on_detached(project, root) for root in abandoned(project)]
