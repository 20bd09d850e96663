"""What of an event stands in the log: its data, and of texts only what is text."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from fanfold.kernel.events import Data, Evidence
from fanfold.text.json_value import with_text_only


def stored(data: Data) -> Any:
    """What of an event's data stands in its envelope."""
    return data.data if type(data) is Evidence else data


def text_only(data: Any) -> Any:
    """The same data where a name of a file, which is any bytes, is text."""
    if isinstance(data, Evidence):
        return replace(data, data=with_text_only(msgspec.to_builtins(data.data)))
    return msgspec.convert(with_text_only(msgspec.to_builtins(data)), type(data))
