"""Following a run that another process drives: its log is read again whenever it has grown.

A follower holds no lease and asks its owner for nothing. It looks a few times a second at one number, how
far the log goes, which costs next to nothing and works for every store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from fanfold.kernel.events import Envelope
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.runtime.operations.project import Project

PERIOD_S = 0.1
ORPHAN_S = 2.0
"""A run without a process for this long is not about to be taken over by one that is just starting."""


class Abandoned:
    """Tells when nobody drives a run any more, without being fooled by a change of owners."""

    def __init__(self, project: Project, root: str) -> None:
        self._project = project
        self._root = root
        self._since: float | None = None

    def check(self) -> bool:
        """Whether the run has had no process for a while."""
        if self._project.has_owner(self._root):
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= ORPHAN_S


def follow(project: Project, root: str, read: Callable[[], Iterator[Envelope]]) -> Iterator[list[Envelope]]:
    """What `read` gives anew, in pieces, until the run has ended or nobody drives it."""
    abandoned = Abandoned(project, root)
    while True:
        head = project.store.head(root)
        ended = head is None or head.status in RUN_TERMINAL  # looked at before the last reading
        fresh = list(read())
        if fresh:
            yield fresh
        elif ended or abandoned.check():
            return
        if not ended:
            time.sleep(PERIOD_S)
