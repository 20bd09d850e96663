"""A session's own log: what was said and done in it.

Rules
* An entry is numbered when it is held, and written with the next commit of the journal: the session's own,
  when it waits for that (`flush`), or whoever's comes first. So one that ends a session and that nobody paid
  for goes with the end of its step, and a crash before that loses both or neither.
* One `SessionLog` per log and process: it alone knows the next number.
* What a session put out is the value its step puts out, and is stored once, as that; a text that says the
  same is not stored beside it. An entry larger than `MAX_INLINE_BYTES` is stored as a blob too, so the size
  of a log does not depend on how much an agent said. Reading puts all of it back.
* Whatever is said, secrets are taken out of it here, before it is numbered or named by its hash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct, structs

from fanfold.agents.entries import Ending, Entry, Response
from fanfold.kernel.events import Envelope
from fanfold.store.protocol import Store

if TYPE_CHECKING:
    from fanfold.store.journal import Journal

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
_PACKED_BEGIN = 64
"""Within so many bytes of what stands for an entry comes its blob, and of no entry a key of that name."""
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_entry: Callable[[bytes], Entry] = msgspec.json.Decoder(Entry).decode


class SessionLog:
    """Appends to one session's log. `path` is the step that it serves, in the tree of the run."""

    __slots__ = ("_path", "_run_id", "_seq", "_session_id", "journal")

    def __init__(self, journal: Journal, session_id: str, run_id: str, path: str, last_seq: int = 0) -> None:
        self.journal = journal
        self._session_id = session_id
        self._run_id = run_id
        self._path = path
        self._seq = last_seq

    def hold(self, entry: Entry) -> None:
        """Number an entry, to be written with the next commit."""
        journal, blobs = self.journal, self.journal.blobs
        if isinstance(entry, Ending) and entry.output is not UNSET:
            told = {"text": ""} if isinstance(entry, Response) and entry.text == entry.output else {}
            entry = structs.replace(entry, output=UNSET, output_blob=blobs.put(entry.output), **told)
        encoded = journal.store.clean(_encode(entry))
        if len(encoded) > MAX_INLINE_BYTES:
            kind = _decode_kind(encoded).kind
            encoded = _encode(_Packed(kind=kind, blob=blobs.put_encoded(encoded), bytes=len(encoded)))
        self._seq += 1
        envelope = Envelope(
            self._session_id,
            self._seq,
            0,  # a session's log stands outside the order of its run tree
            time.time_ns() // 1_000_000,
            "session_event",
            msgspec.Raw(encoded),
            self._run_id,
            journal.root,
            None,
            0,
            self._path,
            journal.epoch,
        )
        journal.hold(envelope, encoded)

    def cleaned(self, text: str) -> str:
        """A text without secrets, for what is told elsewhere than in this log."""
        encoded = _encode(text.encode("utf-8", "replace").decode())
        return str(msgspec.json.decode(self.journal.store.clean(encoded)))


def open_log(journal: Journal, session_id: str, run_id: str, path: str) -> tuple[SessionLog, list[Entry]]:
    """The log of a session, to be continued, with the entries that it already holds."""
    recorded = list(read_recorded(journal.store, session_id))
    last_seq = recorded[-1][0].seq if recorded else 0
    return SessionLog(journal, session_id, run_id, path, last_seq), [entry for _, entry in recorded]


def read_entries(store: Store, session_id: str) -> list[Entry]:
    """What a session recorded, oldest first: what a back end is given to go on from."""
    return [entry for _, entry in read_recorded(store, session_id)]


def read_recorded(store: Store, session_id: str, after: int = 0) -> Iterator[tuple[Envelope, Entry]]:
    """The same, each with the envelope that says when it was recorded; those beyond a number of the log."""
    for envelope in store.log(session_id, after, lambda data: _decode_entry(_unpacked(store, data))):
        entry: Entry = envelope.data
        if isinstance(entry, Ending) and entry.output_blob:
            output = msgspec.json.decode(store.blob(entry.output_blob))
            entry = structs.replace(entry, output=output, output_blob="")
            if isinstance(entry, Response) and not entry.text and isinstance(output, str):
                entry = structs.replace(entry, text=output)
        yield envelope, entry


def _unpacked(store: Store, data: bytes) -> bytes:
    """An entry as it was encoded, also where a blob holds it."""
    if b'"blob":"' not in data[:_PACKED_BEGIN]:
        return data
    said = msgspec.json.decode(data)
    is_packed = isinstance(said, dict) and said.keys() == _PACKED
    return store.blob(said["blob"]) if is_packed else data
