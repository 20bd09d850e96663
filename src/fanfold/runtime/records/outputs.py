"""Whether an output is what its step promised: the declared schema and the declared names.

An output that does not fit fails the step with class `invalid_output`; it is never patched up.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON
from fanfold.text.json_schema import misfits

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
_LARGEST = 2**63


class TooLarge(ValueError):
    """An output that is JSON, but more of it than a log can hold."""


def unfit(node: Node, error: ValueError) -> Failure:
    """The failure of a step whose output `strict` refused."""
    code, hint = "output.not_json", ""
    if isinstance(error, TooLarge):
        code = "output.too_large"
        hint = (
            "have the step write it to a file in the workspace (write_set), and give its name as the output"
        )
    return Failure("invalid_output", code, f"{node.path}: {error}", hint, step=node.path)


def check_output(node: Node, value: JSON) -> Failure | None:
    """What is wrong with an output, or None."""
    step = node.step
    message = ""
    if step.output_schema is not None:
        message = misfits(step.output_schema, value, "the output")
    if not message and step.outputs:
        message = _against_names(step.outputs, value, closed=step.output_schema is None)
    if not message:
        return None
    return Failure(
        "invalid_output", "output.invalid", f"{node.path}: {message}", step=node.path, attempt=node.attempt
    )


def strict(value: object) -> JSON:
    """A value that JSON can hold and give back unchanged; `ValueError` says what is wrong with any other.

    >>> strict({"a": (1, 2.5, "x", None)})
    {'a': [1, 2.5, 'x', None]}
    """
    plain = _strict(value, 0)
    if isinstance(plain, str) and len(plain) <= MAX_OUTPUT_BYTES // 6:  # however it is escaped
        return plain
    size = len(msgspec.json.encode(plain))
    if size > MAX_OUTPUT_BYTES:
        raise TooLarge(f"the output has {size:,} bytes, {MAX_OUTPUT_BYTES:,} are allowed")
    return plain


def _strict(value: object, depth: int) -> JSON:
    if depth > MAX_DEPTH:
        raise ValueError(f"the output is nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("the output holds text that is not Unicode") from None
        return value
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_strict(item, depth + 1) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _strict(item, depth + 1) for key, item in value.items()}
    shown = value if isinstance(value, int | float) else type(value).__name__
    raise ValueError(f"the output is not JSON: {shown}")


def _against_names(names: tuple[str, ...], value: JSON, closed: bool) -> str:
    if not isinstance(value, dict):
        return f"the output must be an object with {', '.join(names)}"
    missing = [name for name in names if name not in value]
    if missing:
        return f"the output lacks {', '.join(missing)}"
    extra = [name for name in value if name not in names]
    if closed and extra:
        return f"the output has {', '.join(extra)}, which the step does not declare"
    return ""
