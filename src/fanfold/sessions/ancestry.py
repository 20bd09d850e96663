"""Who stands above a child: its root session, how deep it is, and whose lease and log its life goes into.

Rules
* One `SessionLog` per session and process; a session that is running already has one, and shares it.
* All sessions of a tree are guarded by the lease of its root session, so two processes never write the
  same history. Without an owner there are no leases, which is for stores that a single process uses.
"""

from __future__ import annotations

from collections.abc import Callable

from fanfold.process_identity import ProcessIdentity
from fanfold.sessions.lineage import Child
from fanfold.sessions.log import Belonging, SessionLog, open_log, read_notes
from fanfold.sessions.places import Places
from fanfold.store.journal import Journal
from fanfold.store.protocol import Lease, Store


class Ancestry:
    """Roots and parents of the children of one supervisor."""

    def __init__(
        self,
        store: Store,
        owner: ProcessIdentity | None,
        max_threads: int,
        running_log: Callable[[str], SessionLog | None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._max_threads = max_threads
        self._running_log = running_log
        self._logs: dict[str, SessionLog] = {}
        self._leases: dict[str, Lease | None] = {}
        self._places: dict[str, Places] = {}

    def line_of(self, session_id: str) -> tuple[str, int]:
        """The root above a session and its depth: (itself, 0) for one that nobody spawned."""
        for entry in read_notes(self._store, session_id)[:1]:
            if entry.get("kind") == "opened":
                return entry["root_id"], entry["depth"]
        return session_id, 0

    def places(self, root_id: str) -> Places:
        """The places of a root's children; there are `max_threads`."""
        return self._places.setdefault(root_id, Places(self._max_threads))

    def belonging(self, session_id: str, root_id: str, parent_id: str | None, depth: int) -> Belonging:
        """Where a session's log stands; takes the root's lease when this process does not have it yet."""
        if root_id not in self._leases:
            lease = None if self._owner is None else self._store.acquire(root_id, self._owner)
            self._leases[root_id] = lease
        lease = self._leases[root_id]
        return Belonging(root=root_id, run_id=session_id, parent_id=parent_id, depth=depth)

    def journal(self, root_id: str) -> Journal:
        """Where sessions below a root write; each its own, under the lease that `belonging` took."""
        return Journal(self._store, root_id, self._leases[root_id])

    def child_log(self, child: Child, root_id: str) -> SessionLog:
        """The log of a child, to be continued."""
        place = self.belonging(child.session_id, root_id, child.parent_id, child.depth)
        return open_log(self.journal(root_id), child.session_id, place)[0]

    def parent_log(self, parent_id: str, root_id: str, depth: int) -> SessionLog:
        """The log of a parent: the one it writes itself while it runs."""
        log = self._running_log(parent_id) or self._logs.get(parent_id)
        if log is None:
            above = parent_id.rpartition(".")[0] if depth else None
            place = self.belonging(parent_id, root_id, above, depth)
            log = open_log(self.journal(root_id), parent_id, place)[0]
        self._logs[parent_id] = log
        return log

    def known_log(self, session_id: str) -> SessionLog | None:
        """The log of a session whose children were written about, if any were."""
        return self._logs.get(session_id)

    def is_held_elsewhere(self, child: Child) -> bool:
        """Whether another live process owns the tree that the child belongs to."""
        root_id = child.subagent_id.rsplit(".", child.depth)[0]
        held = self._store.owner(root_id)
        return held is not None and held[1] and held[0] != self._owner

    def release(self) -> None:
        """Give all leases back."""
        for lease in self._leases.values():
            if lease is not None:
                self._store.release(lease)
        self._leases.clear()
        self._logs.clear()
