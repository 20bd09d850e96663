"""What the routes work with: the project as it is now, and its history, read by one thread.

Rules
* `history` is for looking at runs. Its folded trees are kept and caught up, not folded anew for every
  request; so one thread alone reads them, the one that calls the handlers that look.
* `fresh` is for everything else: recipes, roles and configuration as they are on the disk at this moment. Any
  thread may make one. All of them share one open store.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.installation import Examination


class Desk(Struct, frozen=True):
    history: Project
    fresh: Callable[[], Project]
    """The project with its files read again; it is not to be closed."""
    examine: Callable[[], Examination]
    """Looks at this installation and at the project from the outside."""
    version: str
