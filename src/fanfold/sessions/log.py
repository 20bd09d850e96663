"""A session's own log: what was said and done in it, what became of its children and of its workspace.

Rules
* An entry is durable when `append` returns, with one exception that costs nothing: entries that end a
  turn and that nobody paid for (`"last": true`), and the input that began it, may be held back (`hold`),
  for the caller to write in the same transaction as the end of the step. A crash before that transaction
  loses both or neither.
* One `SessionLog` per log and process: it alone knows the next number.
* An entry larger than `MAX_INLINE_BYTES` is stored as a blob and referred to by hash, so the size of a log
  does not depend on how much an agent said. Reading puts it back.
* Whatever is said, secrets are taken out of it here, before it is numbered or named by its hash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from fanfold.agents.backend import Entry
from fanfold.kernel.events import Envelope, SubagentEvent
from fanfold.store.protocol import Batch, Store

MAX_INLINE_BYTES = 8 * 1024

_PACKED = {"kind", "blob", "bytes"}
_encode = msgspec.json.Encoder().encode


class Belonging(Struct, frozen=True, kw_only=True):
    """Where a session stands: whose lease guards its log, and the run or session it serves."""

    root: str
    """The run tree or root session whose lease is checked at each write; also what removal goes by."""
    epoch: int = 0
    guard: str = ""
    """Whose lease that is when it is not the root's: a session nobody else can own guards itself."""
    run_id: str
    parent_id: str | None = None
    depth: int = 0
    path: str = ""


class SessionLog:
    """Appends to one session's log."""

    __slots__ = ("_belonging", "_held", "_held_blobs", "_seq", "_store", "session_id")

    def __init__(self, store: Store, session_id: str, belonging: Belonging, last_seq: int) -> None:
        self.session_id = session_id
        self._store = store
        self._belonging = belonging
        self._seq = last_seq
        self._held: list[Envelope] = []
        self._held_blobs: list[tuple[str, bytes]] = []

    def append(self, entry: Entry) -> None:
        """Write one entry, and whatever is held, durably."""
        self.hold(entry)
        self.flush()

    def append_child(self, event: SubagentEvent) -> None:
        """Write a step in the life of a child of this session durably."""
        self._put("subagent_event", event)
        self.flush()

    def append_evidence(self, type_name: str, data: dict[str, Any]) -> None:
        """Write a fact that nobody said durably, as an event of its own type (`workspace_event`)."""
        self._put(type_name, data)
        self.flush()

    def hold(self, entry: Entry) -> None:
        """Number an entry that will be written with the next one, or by whoever takes the batch."""
        data: dict[str, Any] = {key: value for key, value in entry.items() if key != "last"}
        encoded = _encode(data)
        clean = self._store.clean(encoded)
        if clean is not encoded:
            encoded, data = clean, msgspec.json.decode(clean)
        if len(encoded) > MAX_INLINE_BYTES:
            name = blake2b(encoded, digest_size=16).hexdigest()
            self._held_blobs.append((name, encoded))
            data = {"kind": data.get("kind", ""), "blob": name, "bytes": len(encoded)}
        self._put("session_event", data)

    def cleaned(self, text: str) -> str:
        """A text without secrets, for what is told elsewhere than in this log."""
        encoded = _encode(text.encode("utf-8", "replace").decode())
        return str(msgspec.json.decode(self._store.clean(encoded)))

    def take(self) -> Batch | None:
        """What is held, for the caller to write; it must not get lost unless the session does too."""
        if not self._held:
            return None
        place = self._belonging
        batch = Batch(
            root=place.guard or place.root,
            epoch=place.epoch,
            envelopes=tuple(self._held),
            blobs=tuple(self._held_blobs),
        )
        self._held = []
        self._held_blobs = []
        return batch

    def flush(self) -> None:
        """Write what is held."""
        batch = self.take()
        if batch is None:
            return
        try:
            self._store.write([batch])
        except BaseException:
            self._seq -= len(batch.envelopes)  # nothing happened, so the numbers are free again
            raise

    def _put(self, type_name: str, data: Any) -> None:
        place = self._belonging
        self._seq += 1
        self._held.append(
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
                place.epoch,
            )
        )


def open_log(
    store: Store, session_id: str, belonging: Belonging
) -> tuple[SessionLog, list[Entry], list[SubagentEvent]]:
    """The log of a session, to be continued, with what it already holds: its entries and its children."""
    entries: list[Entry] = []
    children: list[SubagentEvent] = []
    seq = 0
    for envelope in store.log(session_id):
        seq = envelope.seq
        if envelope.type == "session_event":
            entries.append(_unpack(store, envelope.data))
        elif envelope.type == "subagent_event":
            children.append(msgspec.convert(envelope.data, SubagentEvent))
    return SessionLog(store, session_id, belonging, seq), entries, children


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
