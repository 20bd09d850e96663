"""A session's own log: what was said and done in it, what became of its children and of its workspace.

Rules
* An entry is numbered when it is held, and written with the next commit of the journal: the session's own,
  when it waits in `flush`, or whoever's comes first. So one that ends a session and that nobody paid for goes
  with the end of its step, and a crash before that loses both or neither.
* One `SessionLog` per log and process: it alone knows the next number.
* What a session put out is the value its step puts out, and is stored once, as that; a text that says the
  same is not stored beside it. An entry larger than `MAX_INLINE_BYTES` is stored as a blob too, so the size
  of a log does not depend on how much an agent said. Reading puts all of it back.
* Whatever is said, secrets are taken out of it here, before it is numbered or named by its hash.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from fanfold.agents.entries import KINDS, Ending, Entry, Response
from fanfold.kernel.events import Envelope, SubagentEvent
from fanfold.store.journal import Journal
from fanfold.store.protocol import Store

MAX_INLINE_BYTES = 8 * 1024

_encode = msgspec.json.Encoder().encode


class _Packed(Struct, frozen=True):
    """Stands for an entry that is stored as a blob."""

    kind: str
    blob: str
    bytes: int


class _Kind(Struct, frozen=True):
    kind: str


_PACKED = set(_Packed.__struct_fields__)
_decode_kind = msgspec.json.Decoder(_Kind).decode


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

    def append(self, entry: Entry | Mapping[str, Any]) -> None:
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

    def hold(self, entry: Entry | Mapping[str, Any]) -> None:
        """Number an entry, to be written with the next commit."""
        blobs = self.journal.blobs
        if isinstance(entry, Ending) and entry.output is not UNSET:
            told = {"text": ""} if isinstance(entry, Response) and entry.text == entry.output else {}
            entry = structs.replace(entry, output=UNSET, output_blob=blobs.put(entry.output), **told)
        encoded = self._store.clean(_encode(entry))
        if len(encoded) > MAX_INLINE_BYTES:
            kind = _decode_kind(encoded).kind
            encoded = _encode(_Packed(kind=kind, blob=blobs.put_encoded(encoded), bytes=len(encoded)))
        self._put("session_event", msgspec.Raw(encoded))

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

    def _put(self, type_name: str, data: Any) -> None:
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
            )
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
            entries += _entries(store, [envelope])
        elif envelope.type == "subagent_event":
            children.append(msgspec.convert(envelope.data, SubagentEvent))
    return SessionLog(journal, session_id, belonging, seq), entries, children


def read_entries(store: Store, session_id: str) -> list[Entry]:
    """What a session recorded, oldest first: what a back end is given to go on from."""
    return list(_entries(store, _events(store, session_id, "session_event")))


def read_notes(store: Store, session_id: str) -> list[dict[str, Any]]:
    """Everything that stands in a session's log as an entry, also what is about it and not of it."""
    return [_unpacked(store, envelope.data) for envelope in _events(store, session_id, "session_event")]


def read_children(store: Store, session_id: str) -> list[SubagentEvent]:
    """The lives of a session's children, event by event."""
    events = _events(store, session_id, "subagent_event")
    return [msgspec.convert(envelope.data, SubagentEvent) for envelope in events]


def read_evidence(store: Store, session_id: str, type_name: str) -> list[dict[str, Any]]:
    """Facts of one type that stand in a session's log, oldest first."""
    return [envelope.data for envelope in _events(store, session_id, type_name)]


def _events(store: Store, session_id: str, type_name: str) -> Iterator[Envelope]:
    return (envelope for envelope in store.log(session_id) if envelope.type == type_name)


def _entries(store: Store, envelopes: Iterable[Envelope]) -> Iterator[Entry]:
    for envelope in envelopes:
        if envelope.data["kind"] not in KINDS:
            continue  # about the session: how it was opened, what waits to be said to it
        entry: Entry = msgspec.convert(_unpacked(store, envelope.data), Entry)
        if isinstance(entry, Ending) and entry.output_blob:
            output = msgspec.json.decode(store.blob(entry.output_blob))
            entry = structs.replace(entry, output=output, output_blob="")
            if isinstance(entry, Response) and not entry.text and isinstance(output, str):
                entry = structs.replace(entry, text=output)
        yield entry


def _unpacked(store: Store, data: dict[str, Any]) -> dict[str, Any]:
    if data.keys() != _PACKED:
        return data
    entry: dict[str, Any] = msgspec.json.decode(store.blob(data["blob"]))
    return entry
