"""The result of a run for Python and notebooks: the document of `fanfold run --json` as an object.

A notebook shows the status, the output, the graph and a table of steps. All output of agents is escaped: it
is text there, never markup.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import structs, to_builtins
from msgspec.structs import replace

from fanfold.api.approvals import REASON_CHARS, gist
from fanfold.api.display import counted, elapsed_ms
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
        try:
            answer = indented(self.output) if self.output is not None else ""
        except TypeError:  # a value of a type that only the caller's program can encode
            answer = repr(self.output)
        usage = self.usage
        tokens = counted(usage.input_tokens + usage.output_tokens, "token")
        price = f", ${usage.cost_usd:.4f}" if usage.cost_usd else ""
        graph = ""
        if self.plan is not None and len(self.plan.steps) <= MAX_DRAWN_STEPS:
            from fanfold.api.graph import draw, svg

            drawing = draw(self.plan, {path: step.status for path, step in self.steps.items()})
            graph = f"<div style='overflow-x:auto'>{svg(self.plan, drawing)}</div>"
        names = ("step", "type", "status", "took", "")
        heads = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
        rows = "".join(_row(path, step) for path, step in list(self.steps.items())[:MAX_ROWS])
        more = len(self.steps) - MAX_ROWS
        rest = f"<tr><td>… {more} more</td></tr>" if more > 0 else ""
        parts = [
            f"<div><b>{escape(self.recipe)}@{self.version}</b> {_status(self.status)}",
            f" <code>{escape(self.run_id)}</code> {counted(usage.agents, 'agent')}, {tokens}{price}",
            f"<pre style='white-space:pre-wrap'>{escape(answer[:MAX_ANSWER_CHARS])}</pre>" if answer else "",
            graph,
            f"<table><tr>{heads}</tr>{rows}{rest}</table>",
            "</div>",
        ]
        return "".join(parts)


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
    run = result.run_id
    hint = f"fanfold explain {run}"
    return WorldError("run.no_output", f"run {run} {how}", hint=hint, details={"run_id": run})


def to_result(tree: RunTree) -> Result:
    """Return the result so far as a copy: changes by the caller do not affect the run."""
    given = structs.asdict(reported_document(tree))
    given["output"] = to_builtins(given["output"])
    given["changes"] = list(given["changes"])
    given["steps"] = {
        path: replace(step, output=to_builtins(step.output)) if isinstance(step.output, list | dict) else step
        for path, step in given["steps"].items()
    }
    return Result(**given, plan=tree.state.plan)


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


def _row(path: str, step: StepResult) -> str:
    note = gist(step.error, REASON_CHARS) if step.error is not None else ""
    ms = elapsed_ms(step.started_at, step.ended_at) if step.ended_at is not None else None
    took = "" if ms is None else f"{ms / 1_000:.1f} s"
    status = _status(step.status)
    cells = (f"<code>{escape(path)}</code>", escape(step.type), status, took, escape(note[:200]))
    return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"


def _status(word: str) -> str:
    return f"<span style='color:{_COLOURS.get(word, '#b45309')}'>{escape(word)}</span>"


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

    why = ""
    try:
        known = type_info(kind)
        if not isinstance(known, CustomType) or known.cls is object or _is_model(known.cls):
            return
    except (TypeError, NameError) as error:
        why = f": {error}"
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
            convert = msgspec.convert
            checked = _modelled(kind, value) if _is_model(kind) else convert(value, kind, dec_hook=_modelled)
    except Exception as error:  # validators of the caller's type may raise anything
        message = f"the output of run {run_id} is no {getattr(kind, '__name__', kind)}: {error}"
        hint = f"fanfold inspect {run_id} shows it; `output_schema` enforces the shape of a step's output"
        raise OutputUnfit("output.unfit", message, hint=hint, details={"run_id": run_id}) from error
    fitted: T = checked
    return fitted


def promise_output(plan: Plan, kind: type) -> Plan:
    """Add the schema of this type to the agent step that gives the run's output, if it has no schema."""
    name = plan.steps[-1].id if plan.output is None and plan.steps else ""
    reference = plan.output.path if isinstance(plan.output, Ref) else ""
    reference = plan.output.text.strip("{} ") if isinstance(plan.output, Template) else reference
    if found := re.fullmatch(_OUTPUT, reference):
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
