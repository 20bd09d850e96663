"""What the routes work with: the project as it is now, and its history, read by one thread.

Rules
* `history` is for looking at runs. Its folded trees are kept and caught up, not folded anew for every
  request; so one thread alone reads them, the one that calls the handlers that look.
* `fresh` is for everything else: recipes, roles and configuration as they are on the disk at this moment. Any
  thread may make one. All of them share one open store.
"""

from __future__ import annotations

from collections.abc import Callable

from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.installation import Examination


class Desk:
    def __init__(
        self, history: Project, make: Callable[[], Project], examine: Callable[[], Examination], version: str
    ) -> None:
        self.history = history
        self._make = make
        self.examine = examine
        """Looks at this installation and at the project from the outside."""
        self.version = version

    def fresh(self) -> Project:
        """The project with its files read again; it is not to be closed."""
        return self._make()
