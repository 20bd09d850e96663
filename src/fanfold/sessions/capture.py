"""Output of a process, kept up to a limit: its beginning and its end.

What matters is mostly at the end (the error) and sometimes at the beginning (what was run), so the middle is
what goes when there is too much. A note says how much.
"""

from __future__ import annotations

from collections import deque


class Capture:
    """Takes any number of bytes, keeps at most `limit` of them.

    >>> capture = Capture(8)
    >>> capture.add(b"0123456789abcdef")
    >>> capture.text()
    '0123\\n[… 8 bytes left out …]\\ncdef'
    """

    __slots__ = ("_head", "_head_limit", "_seen", "_tail", "_tail_bytes", "_tail_limit")

    def __init__(self, limit: int) -> None:
        self._head = bytearray()
        self._head_limit = limit // 2
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._tail_limit = limit - limit // 2
        self._seen = 0

    def add(self, data: bytes) -> None:
        """Take what came."""
        self._seen += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data[-self._tail_limit :])
        self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """What was kept, as text."""
        tail = b"".join(self._tail)[-self._tail_limit :] if self._tail else b""
        left_out = self._seen - len(self._head) - len(tail)
        if left_out == 0:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        note = f"\n[… {left_out:,} bytes left out …]\n"
        return self._head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")
