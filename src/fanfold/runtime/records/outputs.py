"""Whether an output is what its step promised: the declared schema and the declared names.

An output that does not fit fails the step with class `invalid_output`; it is never patched up.
"""

from __future__ import annotations

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON
from fanfold.text.json_value import TooLarge
from fanfold.text.raised import words_of

TOO_LARGE_HINT = (
    "have the step write it to a file in the workspace (write_set), and give its name as the output"
)


def unfit(node: Node, error: BaseException) -> Failure:
    """The failure of a step whose output `strict` refused."""
    code, hint = "output.not_json", ""
    if isinstance(error, TooLarge):
        code = "output.too_large"
        hint = TOO_LARGE_HINT
    return Failure("invalid_output", code, f"{node.path}: {words_of(error)}", hint, step=node.path)


def check_output(node: Node, value: JSON) -> Failure | None:
    """What is wrong with an output, or None."""
    step = node.step
    message = ""
    if step.output_schema is not None:
        from fanfold.text.json_schema import misfits  # few steps have one

        message = misfits(step.output_schema, value, "the output")
    if not message and step.outputs:
        message = _against_names(step.outputs, value, closed=step.output_schema is None)
    if not message:
        return None
    return Failure(
        "invalid_output", "output.invalid", f"{node.path}: {message}", step=node.path, attempt=node.attempt
    )


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
