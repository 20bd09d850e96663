"""Values by hash: each is encoded once, kept in the store, and remembered for a while.

`put` does not write: new blobs wait in `fresh` until the decision that refers to them is committed, in
the same transaction as its events. So an event never refers to a value that is not there. Secrets are taken
out before a value gets its name, and whoever asks for it sees what was stored.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

import msgspec

from fanfold.kernel.plan import JSON
from fanfold.store.protocol import Store

REMEMBERED = 2_000
REMEMBERED_BYTES = 16 * 1024 * 1024
"""Of values that are kept at hand, as they are stored; the one that was used last is kept whatever its size,
so that not every item of a long list reads the list again."""
LARGE_BYTES = 8 * 1024
"""What is larger is stored once, wherever it is said again."""
_encoder = msgspec.json.Encoder()


class Blobs:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, tuple[JSON, int]] = OrderedDict()
        self._known_bytes = 0
        self.fresh: list[tuple[str, bytes]] = []
        """Values to be written with the next batch."""
        self._last: tuple[JSON, str] = (None, "")
        self._texts: dict[int, str] = {}
        """Names of the large texts that are kept at hand, by which object each of them is."""

    def put(self, value: JSON) -> str:
        """The hash of a JSON value."""
        last, name = self._last
        if value is last and isinstance(value, str):
            return name  # what a session put out is what its step puts out a moment later
        content = _encoder.encode(value)
        clean = self._store.clean(content)
        if clean is not content:
            content, value = clean, msgspec.json.decode(clean)
        name = _name(content)
        if name not in self._known:
            self.fresh.append((name, content))
            self._remember(name, value, len(content))
        self._last = (value, name)
        return name

    def put_encoded(self, content: bytes) -> str:
        """The hash of a value that is JSON already, without secrets, and not asked for again soon."""
        name = _name(content)
        self.fresh.append((name, content))
        return name

    def name_of(self, text: str) -> str | None:
        """The hash of a large text that is at hand as this very object; None for any other, equal or not."""
        return self._texts.get(id(text))

    def get(self, name: str) -> JSON:
        """The value of a hash. Treat it as read-only: it is shared."""
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name][0]
        for fresh, content in self.fresh:
            if fresh == name:
                return msgspec.json.decode(content)
        content = self._store.blob(name)
        value = msgspec.json.decode(content)
        self._remember(name, value, len(content))
        return value

    def take_fresh(self) -> list[tuple[str, bytes]]:
        taken, self.fresh = self.fresh, []
        return taken

    def _remember(self, name: str, value: JSON, size: int) -> None:
        self._known[name] = (value, size)
        self._known_bytes += size
        if size > LARGE_BYTES and isinstance(value, str):
            self._texts[id(value)] = name
        while len(self._known) > 1 and (
            len(self._known) > REMEMBERED or self._known_bytes > REMEMBERED_BYTES
        ):
            _, (value, gone) = self._known.popitem(last=False)
            self._known_bytes -= gone
            self._texts.pop(id(value), None)


def _name(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
