"""What a run gave, as Python and notebooks see it: the document of `fanfold run --json`, with names.

A notebook shows how it ended, the answer, the graph, and what each step did. Everything an agent wrote is
text there, never markup.
"""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import structs, to_builtins

from fanfold.errors import WorldError
from fanfold.kernel.plan import JSON, Plan
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.views.errors import REASON_CHARS, gist
from fanfold.runtime.views.runs.documents import RunDocument, StepResult, indented, run_document
from fanfold.runtime.views.runs.report import report_markdown

T = TypeVar("T")
MAX_ROWS = 200
MAX_ANSWER_CHARS = 20_000
MAX_DRAWN_STEPS = 200
_COLOURS = {"completed": "#15803d", "failed": "#b91c1c", "timed_out": "#b91c1c", "skipped": "#6b7280"}


class Result(RunDocument, frozen=True):
    """What a run gave: the same document as `fanfold run --json`, with names."""

    plan: Plan | None = None
    """What was run; for pictures."""
    report: str = ""
    """The executive report as Markdown: status, answer, steps, changes, reviews, failures and what to do."""

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    def expect(self) -> JSON:
        """The output of a run that completed; raises what keeps another one from having one."""
        if not self.ok:
            raise _no_output(self)
        return self.output

    def _repr_html_(self) -> str:
        """How a notebook shows it: status, answer, the graph, and a table of steps."""
        return _html(self)


class TypedResult(Result, Generic[T], frozen=True):
    """A result whose output is a value of a type that the caller named; None where there is no output."""

    if TYPE_CHECKING:
        output: T | None

    def expect(self) -> T:
        """The output of a run that completed; raises what keeps another one from having one."""
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
    """What the run has given, the caller's own: the run goes on with values that nobody else can change."""
    given = structs.asdict(run_document(tree))
    given["output"] = _copied(given["output"])
    given["changes"] = list(given["changes"])
    given["steps"] = {
        path: structs.replace(step, output=_copied(step.output)) if _is_mutable(step.output) else step
        for path, step in given["steps"].items()
    }
    return Result(**given, plan=tree.state.plan, report=report_markdown(tree))


def _is_mutable(value: JSON) -> bool:
    return isinstance(value, list | dict)


def _copied(value: JSON) -> JSON:
    return to_builtins(value) if _is_mutable(value) else value


def with_type(result: Result, kind: type[T]) -> TypedResult[T]:
    """The same with its output as a value of this type."""
    from fanfold.runtime.views.runs.typed_output import fit

    given: dict[str, Any] = structs.asdict(result)
    if result.output is not None:
        given["output"] = fit(result.output, kind, result.run_id)
    return TypedResult(**given)


def _html(result: Result) -> str:
    """One block of HTML that needs nothing from outside."""
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
    """An output, or what was made of one, as a person reads it."""
    try:
        return indented(output)
    except TypeError:  # a value of a type that only the program knows
        return repr(output)


def _graph(result: Result) -> str:
    if result.plan is None or len(result.plan.steps) > MAX_DRAWN_STEPS:
        return ""
    from fanfold.runtime.views.graph.drawing import draw
    from fanfold.runtime.views.graph.svg import svg

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
