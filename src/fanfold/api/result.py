"""The result of a run for Python and notebooks: the document of `fanfold run --json` as an object.

A notebook shows the status, the output, the graph and a table of steps. All output of agents is escaped: it
is text there, never markup.
"""

from __future__ import annotations

import re
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import structs, to_builtins
from msgspec.structs import replace

from fanfold.api.approvals import REASON_CHARS, gist
from fanfold.api.report import reported_document
from fanfold.api.run_documents import RunDocument, StepResult, indented
from fanfold.engine.run_tree import RunTree
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.plan import JSON, Plan, Ref, Template
from fanfold.language.json_text import schema_of
from fanfold.language.terminal import shorten

T = TypeVar("T")
MAX_ROWS = 200
MAX_ANSWER_CHARS = 20_000
MAX_DRAWN_STEPS = 200
_COLOURS = {"completed": "#15803d", "failed": "#b91c1c", "timed_out": "#b91c1c", "skipped": "#6b7280"}


class Result(RunDocument, frozen=True, kw_only=True):
    """The result of a run: the same document as `fanfold run --json`, as an object."""

    plan: Plan | None = None
    """The plan of the run; for drawings."""
    report: str = ""
    """The executive report, at most 4,000 characters of Markdown.

    It has the request, answer, phases, steps, changes, failures and what to do.
    """

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    def expect(self) -> JSON:
        """Return the output of a completed run; raises if the run has none."""
        if not self.ok:
            raise _no_output(self)
        return self.output

    def _repr_html_(self) -> str:
        """Return the display of a notebook: status, output, graph, and a table of steps."""
        return _html(self)


class TypedResult(Result, Generic[T], frozen=True):
    """A result whose output is a value of the caller's type; None if there is no output."""

    if TYPE_CHECKING:
        output: T | None

    def expect(self) -> T:
        """Return the output of a completed run; raises if the run has none."""
        if not self.ok or self.output is None:
            raise _no_output(self)
        return self.output


def _no_output(result: Result) -> WorldError:
    error = result.error
    why = f": {gist(error, REASON_CHARS)}" if error is not None else ""
    how = "completed, and its output is null" if result.ok else f"is {result.status}{why}"
    hint = f"fanfold explain {result.run_id}"
    details = {"run_id": result.run_id}
    return WorldError("run.no_output", f"run {result.run_id} {how}", hint=hint, details=details)


def to_result(tree: RunTree) -> Result:
    """Return the result so far as a copy: changes by the caller do not affect the run."""
    given = structs.asdict(reported_document(tree))
    given["output"] = _copied(given["output"])
    given["changes"] = list(given["changes"])
    given["steps"] = {
        path: structs.replace(step, output=_copied(step.output)) if _is_mutable(step.output) else step
        for path, step in given["steps"].items()
    }
    return Result(**given, plan=tree.state.plan)


def _is_mutable(value: JSON) -> bool:
    return isinstance(value, list | dict)


def _copied(value: JSON) -> JSON:
    return to_builtins(value) if _is_mutable(value) else value


def with_type(result: Result, kind: type[T]) -> TypedResult[T]:
    """Return the result with its output converted to this type."""

    given: dict[str, Any] = structs.asdict(result)
    if result.output is not None:
        try:
            given["output"] = fit(result.output, kind, result.run_id)
        except OutputUnfit as error:
            error.result = result
            raise
    return TypedResult(**given)


def _html(result: Result) -> str:
    """Return one block of HTML without external resources."""
    answer = _answer(result.output) if result.output is not None else ""
    parts = [
        f"<div><b>{escape(result.recipe)}@{result.version}</b> {_status(result.status)}",
        f" <code>{escape(result.run_id)}</code> {_spent(result)}",
        f"<pre style='white-space:pre-wrap'>{escape(answer[:MAX_ANSWER_CHARS])}</pre>" if answer else "",
        _graph(result),
        _table(result),
        "</div>",
    ]
    return "".join(parts)


def _answer(output: object) -> str:
    """Return an output, or a value converted from it, as text for people."""
    try:
        return indented(output)
    except TypeError:  # a value of a type that only the caller's program can encode
        return repr(output)


def _graph(result: Result) -> str:
    if result.plan is None or len(result.plan.steps) > MAX_DRAWN_STEPS:
        return ""
    from fanfold.api.graph import draw, svg

    drawing = draw(result.plan, {path: step.status for path, step in result.steps.items()})
    return f"<div style='overflow-x:auto'>{svg(result.plan, drawing)}</div>"


def _table(result: Result) -> str:
    heads = "".join(
        f"<th style='text-align:left'>{name}</th>" for name in ("step", "type", "status", "took", "")
    )
    rows = "".join(_row(path, step) for path, step in list(result.steps.items())[:MAX_ROWS])
    more = len(result.steps) - MAX_ROWS
    rest = f"<tr><td>… {more} more</td></tr>" if more > 0 else ""
    return f"<table><tr>{heads}</tr>{rows}{rest}</table>"


def _row(path: str, step: StepResult) -> str:
    note = gist(step.error, REASON_CHARS) if step.error is not None else ""
    cells = (
        f"<code>{escape(path)}</code>",
        escape(step.type),
        _status(step.status),
        _took(step),
        escape(note[:200]),
    )
    return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"


def _status(word: str) -> str:
    return f"<span style='color:{_COLOURS.get(word, '#b45309')}'>{escape(word)}</span>"


def _took(step: StepResult) -> str:
    if step.started_at is None or step.ended_at is None:
        return ""
    started, ended = (datetime.fromisoformat(at) for at in (step.started_at, step.ended_at))
    return f"{(ended - started).total_seconds():.1f} s"


def _spent(result: Result) -> str:
    usage = result.usage
    tokens = usage.input_tokens + usage.output_tokens
    price = f", ${usage.cost_usd:.4f}" if usage.cost_usd else ""
    return f"{usage.agents} agents, {tokens:,} tokens{price}"


# -----------------------------------------------------------------------------------------------------------
# Convert outputs to a type of the caller: msgspec structs, dataclasses, pydantic models, and other types that
# `msgspec.convert` supports (typed dictionaries, lists, numbers)
#
# An output that does not fit is refused, never changed. A type that no output can fit is refused before the
# run.

_OUTPUT = r"steps\.([\w-]+)\.output"


class OutputUnfit(AuthorError):
    """The output of a run does not fit the caller's type. `result` is the result of the run."""

    result: Any = None


def check_type(kind: object) -> None:
    """Refuse a type that no output can fit, before a run costs anything."""
    from msgspec.inspect import CustomType, type_info

    try:
        known = type_info(kind)
        why = ""
    except (TypeError, NameError) as error:
        known, why = None, f": {error}"
    if known is not None and (
        not isinstance(known, CustomType) or known.cls is object or _is_model(known.cls)
    ):
        return
    message = f"output cannot be {shorten(repr(kind), 80)}{why}"
    hint = "name a dataclass, a pydantic model, a msgspec struct, a TypedDict, or such as list[int]"
    raise AuthorError("usage.bad_value", message, hint=hint, details={"option": "output"})


def fit(value: JSON, kind: type[T], run_id: str) -> T:
    """Convert the output of a run to this type; raises `output.unfit`."""
    checked: Any = kind
    try:
        if hasattr(kind, "__pydantic_validator__") and not hasattr(kind, "model_validate"):  # a dataclass
            checked = checked.__pydantic_validator__.validate_python(value)
        else:
            checked = (
                _modelled(kind, value)
                if _is_model(kind)
                else msgspec.convert(value, kind, dec_hook=_modelled)
            )
    except Exception as error:  # validators of the caller's type may raise anything
        message = f"the output of run {run_id} is no {getattr(kind, '__name__', kind)}: {error}"
        hint = f"fanfold inspect {run_id} shows it; `output_schema` makes a step keep to a shape"
        raise OutputUnfit("output.unfit", message, hint=hint, details={"run_id": run_id}) from error
    fitted: T = checked
    return fitted


def promise_output(plan: Plan, kind: type) -> Plan:
    """Add the schema of this type to the agent step that gives the run's output, if it has no schema."""
    name = plan.steps[-1].id if plan.output is None and plan.steps else ""
    said = plan.output.path if isinstance(plan.output, Ref) else ""
    said = plan.output.text.strip("{} ") if isinstance(plan.output, Template) else said
    if found := re.fullmatch(_OUTPUT, said):
        name = found[1]
    step = next((one for one in plan.steps if one.id == name), None)
    free = step is not None and step.traits.role is not None and step.output_schema is None
    if step is None or not free or step.outputs or step.for_each or not isinstance(kind, type):
        return plan
    try:
        schema = schema_of(kind)
    except TypeError:
        return plan
    if isinstance(schema, dict) and schema.get("type") == "string":
        return plan  # any text fits
    promised = replace(step, output_schema=schema)
    return replace(plan, steps=tuple(promised if one is step else one for one in plan.steps))


def _is_model(kind: object) -> bool:
    """Whether the type is a pydantic model. Fanfold itself does not import pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def _modelled(kind: Any, value: JSON) -> Any:
    """Convert a value to a pydantic model, also a nested one; return any other value unchanged."""
    return kind.model_validate(value) if _is_model(kind) else value
