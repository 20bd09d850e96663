"""Content by its hash: stored once, and packed when that pays.

Packing is zlib at its fastest level, for content of at least `PACK_FROM` bytes that shrinks by a
  quarter; a small blob is not worth the time.
"""

from __future__ import annotations

import zlib

import apsw

PACK_FROM = 16_384
PACK_LEVEL = 1

INSERT = "INSERT OR IGNORE INTO blobs (hash, packed, content) VALUES (?, ?, ?)"


def row(hash: str, content: bytes) -> tuple[str, int, bytes]:
    """What `INSERT` binds."""
    if len(content) >= PACK_FROM:
        packed = zlib.compress(content, PACK_LEVEL)
        if len(packed) < len(content) * 3 // 4:
            return hash, 1, packed
    return hash, 0, content


def read(db: apsw.Connection, hash: str) -> bytes | None:
    """Content by hash, or None."""
    for packed, content in db.execute("SELECT packed, content FROM blobs WHERE hash = ?", (hash,)):
        return zlib.decompress(content) if packed else content
    return None
