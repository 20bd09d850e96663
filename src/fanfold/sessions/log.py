"""A session's own log: what was said and done in it, what became of its children and of its workspace.

Rules
* An entry is numbered when it is held, and written with the next commit of the journal: the session's own,
  when it waits in `flush`, or whoever's comes first. So one that ends a session and that nobody paid for goes
  with the end of its step, and a crash before that loses both or neither.
* One `SessionLog` per log and process: it alone knows the next number.
* An entry larger than `MAX_INLINE_BYTES` is stored as a blob and referred to by hash, so the size of a log
  does not depend on how much an agent said. Reading puts it back.
* Whatever is said, secrets are taken out of it here, before it is numbered or named by its hash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from fanfold.agents.backend import Entry
from fanfold.kernel.events import Envelope, SubagentEvent
from fanfold.store.journal import Journal
from fanfold.store.protocol import Store

MAX_INLINE_BYTES = 8 * 1024

_PACKED = {"kind", "blob", "bytes"}
_encode = msgspec.json.Encoder().encode


class Belonging(Struct, frozen=True, kw_only=True):
    """Where a session stands: the run or session it serves, and the tree that belongs to."""

    root: str
    """The run tree or root session; also what removal goes by."""
    run_id: str
    parent_id: str | None = None
    depth: int = 0
    path: str = ""


class SessionLog:
    """Appends to one session's log."""

    __slots__ = ("_belonging", "_seq", "_store", "journal", "session_id")

    def __init__(self, journal: Journal, session_id: str, belonging: Belonging, last_seq: int) -> None:
        self.journal = journal
        self.session_id = session_id
        self._store = journal.store
        self._belonging = belonging
        self._seq = last_seq

    def append(self, entry: Entry) -> None:
        """Write one entry, and whatever is held, durably."""
        before = self._seq
        self.hold(entry)
        self._write(before)

    def append_child(self, event: SubagentEvent) -> None:
        """Write a step in the life of a child of this session durably."""
        before = self._seq
        self._put("subagent_event", event)
        self._write(before)

    def append_evidence(self, type_name: str, data: dict[str, Any]) -> None:
        """Write a fact that nobody said durably, as an event of its own type (`workspace_event`)."""
        before = self._seq
        self._put(type_name, data)
        self._write(before)

    def hold(self, entry: Entry) -> None:
        """Number an entry, to be written with the next commit."""
        data: Mapping[str, Any] = entry
        encoded = _encode(data)
        clean = self._store.clean(encoded)
        if clean is not encoded:
            encoded, data = clean, msgspec.json.decode(clean)
        if len(encoded) > MAX_INLINE_BYTES:
            name = blake2b(encoded, digest_size=16).hexdigest()
            data = {"kind": data.get("kind", ""), "blob": name, "bytes": len(encoded)}
            self._put("session_event", data, ((name, encoded),))
        else:
            self._put("session_event", data)

    def cleaned(self, text: str) -> str:
        """A text without secrets, for what is told elsewhere than in this log."""
        encoded = _encode(text.encode("utf-8", "replace").decode())
        return str(msgspec.json.decode(self._store.clean(encoded)))

    async def flush(self) -> None:
        """Return when everything said so far is durable."""
        await self.journal.flush()

    def _write(self, before: int) -> None:
        try:
            self.journal.write()
        except BaseException:
            self._seq = before  # nothing happened, so the numbers are free again
            raise

    def _put(self, type_name: str, data: Any, blobs: Sequence[tuple[str, bytes]] = ()) -> None:
        place = self._belonging
        self._seq += 1
        self.journal.hold(
            Envelope(
                self.session_id,
                self._seq,
                0,  # a session's log stands outside the order of its run tree
                time.time_ns() // 1_000_000,
                type_name,
                data,
                place.run_id,
                place.root,
                place.parent_id,
                place.depth,
                place.path,
                self.journal.epoch,
            ),
            blobs,
        )


def open_log(
    journal: Journal, session_id: str, belonging: Belonging
) -> tuple[SessionLog, list[Entry], list[SubagentEvent]]:
    """The log of a session, to be continued, with what it already holds: its entries and its children."""
    entries: list[Entry] = []
    children: list[SubagentEvent] = []
    seq = 0
    store = journal.store
    for envelope in store.log(session_id):
        seq = envelope.seq
        if envelope.type == "session_event":
            entries.append(_unpack(store, envelope.data))
        elif envelope.type == "subagent_event":
            children.append(msgspec.convert(envelope.data, SubagentEvent))
    return SessionLog(journal, session_id, belonging, seq), entries, children


def read_entries(store: Store, session_id: str) -> list[Entry]:
    """What a session recorded, oldest first: what a back end is given to go on from."""
    return [_unpack(store, envelope.data) for envelope in _events(store, session_id, "session_event")]


def read_children(store: Store, session_id: str) -> list[SubagentEvent]:
    """The lives of a session's children, event by event."""
    events = _events(store, session_id, "subagent_event")
    return [msgspec.convert(envelope.data, SubagentEvent) for envelope in events]


def read_evidence(store: Store, session_id: str, type_name: str) -> list[dict[str, Any]]:
    """Facts of one type that stand in a session's log, oldest first."""
    return [envelope.data for envelope in _events(store, session_id, type_name)]


def _events(store: Store, session_id: str, type_name: str) -> Iterator[Envelope]:
    return (envelope for envelope in store.log(session_id) if envelope.type == type_name)


def _unpack(store: Store, data: dict[str, Any]) -> Entry:
    if data.keys() != _PACKED:
        return data
    entry: dict[str, Any] = msgspec.json.decode(store.blob(data["blob"]))
    return entry
