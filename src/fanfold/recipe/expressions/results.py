"""What an expression gave, as plain JSON: bounded, in one order, and nothing that JSON cannot hold."""

from __future__ import annotations

from math import isfinite
from typing import Any

from fanfold.kernel.plan import JSON
from fanfold.recipe.expressions.work import TooMuchWork

MAX_RESULT_VALUES = 100_000
MAX_VALUE_DEPTH = 200
KINDS = {
    "INT": "a whole number", "UINT": "a whole number", "DOUBLE": "a number", "STRING": "text",
    "BYTES": "bytes", "NULL": "null", "BOOL": "true or false", "TIMESTAMP": "a time",
    "DURATION": "a duration", "string": "text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "array": "a list", "object": "an object",
}  # fmt: skip
"""What the library calls types, in words."""


class ResultReader:
    """Turns a CEL value into JSON, with a limit: values inside may be shared, and JSON cannot share."""

    def __init__(self) -> None:
        self._values = 0

    def plain(self, value: Any, depth: int = 0) -> JSON:
        self._values += 1
        if self._values > MAX_RESULT_VALUES or depth > 2 * MAX_VALUE_DEPTH:
            raise TooMuchWork(f"the result has more than {MAX_RESULT_VALUES:,} values")
        held = value.value()
        if held is None or isinstance(held, bool | int | str):
            return held
        kind = value.type().name()
        if isinstance(held, float):
            if isfinite(held):
                return held
        elif kind.startswith("LIST"):
            return [self.plain(item, depth + 1) for item in held]
        elif kind.startswith("MAP") and all(isinstance(key, str) for key in held):
            # CEL keeps no order, and the order it gives differs from one process to the next.
            return {key: self.plain(held[key], depth + 1) for key in sorted(held)}
        raise TypeError(f"the result holds {KINDS.get(kind, kind)}, which JSON cannot hold")
