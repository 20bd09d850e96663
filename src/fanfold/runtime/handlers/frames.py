"""What a run and the process of its functions say to each other: frames of JSON over two pipes.

A frame is its length in four bytes and that many bytes of JSON. The run sends `Permitted` once and then one
`FunctionCall` after another; each is answered by one `FunctionReply`. Values cross as text, so neither side
can change what the other has.
"""

from __future__ import annotations

from typing import BinaryIO, TypeVar

import msgspec
from msgspec import Struct

from fanfold.text.json_value import JSON, MAX_VALUE_BYTES

HEADER_BYTES = 4
MAX_FRAME_BYTES = 8 * MAX_VALUE_BYTES
"""More than any value takes as JSON. What claims more was not written by our side of the process."""

T = TypeVar("T")


class Permitted(Struct, frozen=True):
    """Where the project is, and which of its files may be imported: path to digest."""

    project: str
    files: dict[str, str]


class FunctionCall(Struct, frozen=True):
    handler: str
    file: str | None
    """The file that registers it, relative to the project; None for `package.module:callable`."""
    inputs: dict[str, JSON]


class CallFailure(Struct, frozen=True):
    """`kind` is a class of failures, as runs name them."""

    kind: str
    code: str
    message: str
    hint: str = ""


class FunctionReply(Struct, frozen=True):
    """`output` when `error` is None."""

    output: JSON = None
    error: CallFailure | None = None


def to_frame(message: Struct) -> bytes:
    content = msgspec.json.encode(message)
    return len(content).to_bytes(HEADER_BYTES, "big") + content


def read_frame(stream: BinaryIO, kind: type[T]) -> T | None:
    """The next message; None when the other side is gone."""
    header = _read_exactly(stream, HEADER_BYTES)
    content = _read_exactly(stream, int.from_bytes(header, "big")) if header else b""
    return msgspec.json.decode(content, type=kind) if content else None


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    return content if len(content) == size else b""
