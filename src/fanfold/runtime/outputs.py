"""Whether an output is what its step promised: the declared schema and the declared names.

An output that does not fit fails the step with class `invalid_output`; it is never patched up.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON

if TYPE_CHECKING:
    import jsonschema_rs

MAX_ERRORS = 5


def check_output(node: Node, value: JSON) -> Failure | None:
    """What is wrong with an output, or None."""
    step = node.step
    message = ""
    if step.output_schema is not None:
        message = _against_schema(msgspec.json.encode(step.output_schema), value)
    if not message and step.outputs:
        message = _against_names(step.outputs, value, closed=step.output_schema is None)
    if not message:
        return None
    return Failure("invalid_output", "output.invalid", f"{node.path}: {message}", step=node.path)


def _against_schema(schema: bytes, value: JSON) -> str:
    problems = []
    for error in _validator(schema).iter_errors(value):
        place = "/".join(str(part) for part in error.instance_path)
        problems.append(f"{place or 'the output'}: {error.message}")
        if len(problems) == MAX_ERRORS:
            break
    return "; ".join(problems)


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs  # only steps with a schema pay for it

    return jsonschema_rs.validator_for(msgspec.json.decode(schema))


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
