"""Server-sent events, from bytes as they arrive to what each of them says.

Only `data` is of interest; comments, names and ids of events are passed over. Work grows with what arrives,
however it is cut: a line that comes in a thousand pieces is put together once.
"""

from __future__ import annotations

_LINE_ENDS = (b"\n", b"\r")


class EventLines:
    r"""Takes bytes, gives what whole events say.

    >>> lines = EventLines()
    >>> lines.feed(b'data: {"a": 1}\n\ndata: {"b"'), lines.feed(b": 2}\r\n\r\n: nothing\n\n")
    ([b'{"a": 1}'], [b'{"b": 2}'])
    """

    __slots__ = ("_begun", "_said", "_skips_newline")

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """The pieces of a line whose end has not come yet."""
        self._said: list[bytes] = []
        """The lines of an event whose end has not come yet."""
        self._skips_newline = False
        """Whether the last line ended with a carriage return, which a newline belongs to."""

    def feed(self, data: bytes) -> list[bytes]:
        """What the events say that are whole with these bytes."""
        if self._skips_newline and data:
            self._skips_newline = False
            data = data.removeprefix(b"\n")
        whole: list[bytes] = []
        lines = data.splitlines(keepends=True)
        if lines and self._begun and lines[0].endswith(_LINE_ENDS):
            lines[0] = b"".join((*self._begun, lines[0]))
            self._begun = []
        for line in lines:
            if not line.endswith(_LINE_ENDS):
                self._begun.append(line)
                continue
            said = line.rstrip(b"\r\n")
            if said.startswith(b"data: "):
                self._said.append(said[6:])
            elif said.startswith(b"data:") or said == b"data":
                self._said.append(said[5:])
            elif not said and self._said:
                whole.append(b"\n".join(self._said))
                self._said = []
        if data:
            self._skips_newline = data.endswith(b"\r")
        return whole
