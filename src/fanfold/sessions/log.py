"""The log of a session: its messages, tool calls and results.

Rules
* `hold` numbers an entry. The next commit of the journal writes it: a commit of this session, if the session
  waits for it (`flush`), or an earlier commit of another writer. So the unpaid last entry of a session is
  written together with the end of its step, and a crash before that loses both or neither.
* There is one `SessionLog` per log and process: only this object knows the next number.
* The output of a session is the output of its step. It is stored once, as a blob; an equal response text is
  not stored again. An entry larger than `MAX_INLINE_BYTES` is also stored as a blob, so the size of a log
  does not depend on the length of messages. A prompt is stored without the outputs of other steps in it, but
  with their hashes. Reading restores all of this.
* Each session has a chain of its own. The event that ends an execution names the last link (`Journal.links`).
* Secrets are removed here, before an entry is numbered or hashed.
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
from fanfold.store.protocol import LARGE_BYTES, Store, as_stored, session_link

if TYPE_CHECKING:
    from fanfold.store.journal import Journal

MAX_INLINE_BYTES = LARGE_BYTES

_encode = msgspec.json.Encoder().encode


class _PackedEntry(Struct, frozen=True, omit_defaults=True):
    """The log record of an entry that is stored as a blob."""

    kind: str
    blob: str
    bytes: int
    placed: list[str] = []
    """Hashes of the other blobs that reading needs: a log names every blob it needs."""


class _PlacedValue(Struct, frozen=True):
    """A part of a prompt that has a blob of its own."""

    blob: str


_Pieces: TypeAlias = list[str | _PlacedValue]


class _SplitPrompt(Struct, frozen=True):
    """The blob of a prompt whose text is stored in pieces."""

    pieces: _Pieces


class _References(Struct, frozen=True):
    """The fields of a stored entry that refer to blobs."""

    blob: str = ""
    output_blob: str = ""
    placed: list[str] = []


_PACKED = {"kind", "blob", "bytes"}
_TELLING_CHARS = 64
"""Length of the prefix that is searched to find a large text; the rest is then compared.

This is many times faster than a search for the whole text. If the prefix first matches another place, the
text is stored again.
"""
_PIECED_BEGIN = b'{"pieces":['
_PACKED_BEGIN = 64
"""Search range for the key `blob`: a packed entry has it within so many bytes; other entries do not."""


@cache
def _decoder() -> msgspec.json.Decoder[Entry]:
    return msgspec.json.Decoder(Entry)  # created on first use, because its creation is slow


class SessionLog:
    """Appends to the log of one session. `path` is the tree path of its step."""

    __slots__ = ("_execution", "_link", "_path", "_run_id", "_seq", "_session_id", "journal")

    def __init__(
        self,
        journal: Journal,
        session_id: str,
        run_id: str,
        path: str,
        execution: int,
        last: tuple[int, bytes] = (0, b""),
    ) -> None:
        self.journal = journal
        self._session_id = session_id
        self._run_id = run_id
        self._path = path
        self._execution = execution
        self._seq, self._link = last

    def hold(self, entry: Entry, placed: Sequence[str] = ()) -> None:
        """Number an entry; the next commit writes it.

        For a prompt, `placed` lists the large values in it that came from elsewhere, in order.
        """
        journal, blobs = self.journal, self.journal.blobs
        if isinstance(entry, Ending) and entry.output is not UNSET:
            cleared = {"text": ""} if isinstance(entry, Response) and entry.text == entry.output else {}
            entry = structs.replace(entry, output=UNSET, output_blob=blobs.put(entry.output), **cleared)
        whole = _encode(entry)
        encoded = journal.store.clean(whole)
        if len(encoded) > MAX_INLINE_BYTES:
            kind, size = str(entry.__struct_config__.tag), len(encoded)
            pieces: _Pieces = []
            if placed and isinstance(entry, UserInput) and encoded is whole:  # it contains no secret
                # Split the prompt at the texts that have blobs of their own.
                text, position = entry.text, 0
                for value in placed:
                    name, begin = blobs.name_of(value), text.find(value[:_TELLING_CHARS], position)
                    if name is not None and begin >= 0 and text.startswith(value, begin):
                        pieces += (text[position:begin], _PlacedValue(name))
                        position = begin + len(value)
                pieces.append(text[position:])
                encoded = _encode(_SplitPrompt(pieces)) if len(pieces) > 1 else encoded
            named = [piece.blob for piece in pieces if isinstance(piece, _PlacedValue)]
            encoded = _encode(_PackedEntry(kind, blobs.put_encoded(encoded), size, named))
        self._seq += 1
        at = time.time_ns() // 1_000_000
        self._link = journal.links[self._session_id] = session_link(
            self._link, self._session_id, self._seq, at, self._execution, encoded
        )
        envelope = Envelope(
            self._session_id,
            self._seq,
            0,  # the log of a session is not part of the order of its run tree
            at,
            "session_event",
            msgspec.Raw(encoded),
            self._run_id,
            journal.root,
            None,
            0,
            self._path,
            self._execution,
        )
        journal.hold(envelope, encoded)

    def cleaned(self, text: str) -> str:
        """Return a text without secrets, for use outside this log."""
        encoded = _encode(text.encode("utf-8", "replace").decode())
        return str(msgspec.json.decode(self.journal.store.clean(encoded)))


def open_log(
    journal: Journal, session_id: str, run_id: str, path: str, execution: int
) -> tuple[SessionLog, list[Entry]]:
    """Open the log of a session for appending; return it with its entries so far."""
    seq, link = 0, b""
    for envelope in journal.store.log(session_id, 0, as_stored):
        seq, link = (
            envelope.seq,
            session_link(link, session_id, envelope.seq, envelope.at, envelope.epoch, envelope.data),
        )
    log = SessionLog(journal, session_id, run_id, path, execution, (seq, link))
    return log, read_entries(journal.store, session_id)


def read_entries(store: Store, session_id: str) -> list[Entry]:
    """Return the entries of a session, oldest first. A back end continues from them."""
    return [entry for _, entry in read_recorded(store, session_id)]


def read_recorded(store: Store, session_id: str, after: int = 0) -> Iterator[tuple[Envelope, Entry]]:
    """Yield the entries of a session after number `after`, each with its envelope, oldest first."""
    decode = _decoder().decode
    for envelope in store.log(session_id, after, lambda data: decode(_unpacked(store, data))):
        entry: Entry = envelope.data
        if isinstance(entry, Ending) and entry.output_blob:
            output = msgspec.json.decode(store.blob(entry.output_blob))
            entry = structs.replace(entry, output=output, output_blob="")
            if isinstance(entry, Response) and not entry.text and isinstance(output, str):
                entry = structs.replace(entry, text=output)
        yield envelope, entry


def _unpacked(store: Store, data: bytes) -> bytes:
    """Return the encoded entry, read from its blob if it has one, and put together if it is in pieces."""
    if b'"blob":"' not in data[:_PACKED_BEGIN]:
        return data
    document = msgspec.json.decode(data)
    if not isinstance(document, dict) or document.keys() - {"placed"} != _PACKED:
        return data
    content = store.blob(document["blob"])
    if not content.startswith(_PIECED_BEGIN):
        return content
    pieces = msgspec.json.decode(content, type=_SplitPrompt).pieces
    texts = (
        piece if isinstance(piece, str) else msgspec.json.decode(store.blob(piece.blob), type=str)
        for piece in pieces
    )
    return _encode(UserInput(text="".join(texts)))


def blobs_of(store: Store, data: bytes) -> list[str]:
    """Return the hashes of the blobs that a stored entry refers to."""
    if b'blob":"' not in data:
        return []
    entry = msgspec.json.decode(data, type=_References)
    found = [name for name in (entry.blob, entry.output_blob, *entry.placed) if name]
    if entry.blob and store.has_blob(entry.blob):
        content = store.blob(entry.blob)
        found += [] if content.startswith(_PIECED_BEGIN) else blobs_of(store, content)
    return found
