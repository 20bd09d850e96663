"""A session's own log: what was said and done in it.

Rules
* An entry is numbered when it is held, and written with the next commit of the journal: the session's own,
  when it waits for that (`flush`), or whoever's comes first. So one that ends a session and that nobody paid
  for goes with the end of its step, and a crash before that loses both or neither.
* One `SessionLog` per log and process: it alone knows the next number.
* What a session put out is the value its step puts out, and is stored once, as that; a text that says the
  same is not stored beside it. An entry larger than `MAX_INLINE_BYTES` is stored as a blob too, so the size
  of a log does not depend on how much an agent said; of a prompt, only what is not the output of a step
  already, with the names of those that stand in it. Reading puts all of it back.
* Whatever is said, secrets are taken out of it here, before it is numbered or named by its hash.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import UNSET, Struct, structs

from fanfold.agents.entries import Ending, Entry, Response, UserInput
from fanfold.kernel.events import Envelope
from fanfold.store.blobs import LARGE_BYTES, Blobs
from fanfold.store.protocol import Store

if TYPE_CHECKING:
    from fanfold.store.journal import Journal

MAX_INLINE_BYTES = LARGE_BYTES

_encode = msgspec.json.Encoder().encode


class _Packed(Struct, frozen=True, omit_defaults=True):
    """Stands for an entry that is stored as a blob."""

    kind: str
    blob: str
    bytes: int
    placed: list[str] = []
    """What else it takes to read it: whatever a log needs is named in the log."""


class _Placed(Struct, frozen=True):
    """A value that is stored by itself, in the midst of a prompt."""

    blob: str


_Pieces: TypeAlias = list[str | _Placed]


class _Pieced(Struct, frozen=True):
    """Stands for a prompt, in the blob that is stored of it: its text in pieces."""

    pieces: _Pieces


class _Kind(Struct, frozen=True):
    kind: str


_PACKED = {"kind", "blob", "bytes"}
_TELLING_CHARS = 64
"""To look for so many of a large text and then compare it is many times faster than to look for all of it;
where they stand for something else, that text is stored again."""
_PIECED_BEGIN = b'{"pieces":['
_PACKED_BEGIN = 64
"""Within so many bytes of what stands for an entry comes its blob, and of no entry a key of that name."""


@cache
def _entry_decoder() -> msgspec.json.Decoder[Entry]:
    """Made where entries are read: it takes as long as many of them."""
    return msgspec.json.Decoder(Entry)


class SessionLog:
    """Appends to one session's log. `path` is the step that it serves, in the tree of the run."""

    __slots__ = ("_path", "_run_id", "_seq", "_session_id", "journal")

    def __init__(self, journal: Journal, session_id: str, run_id: str, path: str, last_seq: int = 0) -> None:
        self.journal = journal
        self._session_id = session_id
        self._run_id = run_id
        self._path = path
        self._seq = last_seq

    def hold(self, entry: Entry, placed: Sequence[str] = ()) -> None:
        """Number an entry, to be written with the next commit. Of a prompt, `placed` are the large texts in
        it that came from elsewhere, in order.
        """
        journal, blobs = self.journal, self.journal.blobs
        if isinstance(entry, Ending) and entry.output is not UNSET:
            told = {"text": ""} if isinstance(entry, Response) and entry.text == entry.output else {}
            entry = structs.replace(entry, output=UNSET, output_blob=blobs.put(entry.output), **told)
        whole = _encode(entry)
        encoded = journal.store.clean(whole)
        if len(encoded) > MAX_INLINE_BYTES:
            kind, size = msgspec.json.decode(encoded, type=_Kind).kind, len(encoded)
            pieces: _Pieces = []
            if placed and isinstance(entry, UserInput) and encoded is whole:  # none of it is a secret
                pieces = _in_pieces(entry.text, placed, blobs)
                encoded = _encode(_Pieced(pieces)) if len(pieces) > 1 else encoded
            named = [piece.blob for piece in pieces if isinstance(piece, _Placed)]
            encoded = _encode(_Packed(kind, blobs.put_encoded(encoded), size, named))
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


def _in_pieces(text: str, placed: Sequence[str], blobs: Blobs) -> _Pieces:
    """A prompt without the texts that are stored by themselves; one piece when there are none in it."""
    pieces: _Pieces = []
    at = 0
    for value in placed:
        name, begin = blobs.name_of(value), text.find(value[:_TELLING_CHARS], at)
        if name is not None and begin >= 0 and text.startswith(value, begin):
            pieces += (text[at:begin], _Placed(name))
            at = begin + len(value)
    return [*pieces, text[at:]]


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
    decode = _entry_decoder().decode
    for envelope in store.log(session_id, after, lambda data: decode(_unpacked(store, data))):
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
    if not isinstance(said, dict) or said.keys() - {"placed"} != _PACKED:
        return data
    content = store.blob(said["blob"])
    return _put_together(store, content) if content.startswith(_PIECED_BEGIN) else content


def _put_together(store: Store, content: bytes) -> bytes:
    """A prompt that is stored in pieces, encoded as if it were not."""
    text = "".join(
        piece if isinstance(piece, str) else msgspec.json.decode(store.blob(piece.blob), type=str)
        for piece in msgspec.json.decode(content, type=_Pieced).pieces
    )
    return _encode(UserInput(text=text))
