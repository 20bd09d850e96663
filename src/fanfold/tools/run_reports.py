"""What a model hears of a run: how it stands, its answer, what failed, what waits for a person. Short.

Everything else stays where it is: `query_workflow` finds it, resources and the command line show it whole.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.lifecycle import COMPLETED, TERMINAL
from fanfold.kernel.nodes import Run
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.views.approvals import OpenApproval, how_to_answer, open_approvals
from fanfold.runtime.views.runs.documents import run_document
from fanfold.runtime.views.runs.rows import RunUsage
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import as_text
from fanfold.tools.tool import AnyValue

MAX_OUTPUT_CHARS = 6_000
MAX_MESSAGE_CHARS = 400
MAX_QUESTION_CHARS = 1_000
MAX_QUESTIONS = 10
MAX_FAILURES = 10
MAX_CHANGES = 20
MAX_STEPS = 60


class StepState(Struct, frozen=True):
    path: str
    status: str


class FailedStep(Struct, frozen=True, kw_only=True):
    path: str
    code: str
    message: str
    hint: str


class OpenQuestion(Struct, frozen=True, kw_only=True):
    """Something that waits for a person. You cannot answer it: tell the user what to run."""

    path: str
    question: str
    show: str
    choices: list[str]
    user_runs: str


class RunReport(Struct, frozen=True, kw_only=True):
    """How a run stands. `ok` says that the call worked; `status` says how the run went."""

    ok: bool
    run_id: str
    recipe: str
    status: str
    output: AnyValue
    output_cut: bool
    error: str | None
    steps: list[StepState]
    """At most 60, those that are not completed first."""
    steps_done: int
    steps_total: int
    failures: list[FailedStep]
    questions: list[OpenQuestion]
    questions_total: int
    changes: list[str]
    changes_total: int
    usage: RunUsage
    report: str
    """The resource that holds the whole report."""


def run_report(tree: RunTree, run: Run | None = None) -> RunReport:
    """The report of a run of a tree; left out, of the root."""
    document = run_document(tree, run)
    text = as_text(document.output)
    cut = len(text) > MAX_OUTPUT_CHARS
    steps = sorted(document.steps.items(), key=lambda one: one[1].status == COMPLETED)
    questions = open_approvals(tree)
    failed = [(path, step.error) for path, step in document.steps.items() if step.error is not None]
    return RunReport(
        ok=True,
        run_id=document.run_id,
        recipe=document.recipe,
        status=document.status,
        output=shorten(text, MAX_OUTPUT_CHARS) if cut else document.output,
        output_cut=cut,
        error=None if document.error is None else shorten(document.error.message, MAX_MESSAGE_CHARS),
        steps=[StepState(path, step.status) for path, step in steps[:MAX_STEPS]],
        steps_done=sum(step.status in TERMINAL for step in document.steps.values()),
        steps_total=len(document.steps),
        failures=[
            FailedStep(
                path=path,
                code=error.code,
                message=shorten(error.message, MAX_MESSAGE_CHARS),
                hint=shorten(error.hint, MAX_MESSAGE_CHARS),
            )
            for path, error in failed[:MAX_FAILURES]
        ],
        questions=[_question(tree.root.id, one) for one in questions[:MAX_QUESTIONS]],
        questions_total=len(questions),
        changes=[f"{one.kind} {one.path}" for one in document.changes[:MAX_CHANGES]],
        changes_total=len(document.changes),
        usage=document.usage,
        report=report_address(document.run_id),
    )


def report_address(run: str) -> str:
    """Where clients that read resources find the report of a run."""
    return f"fanfold://runs/{run}/report"


def _question(run: str, asked: OpenApproval) -> OpenQuestion:
    return OpenQuestion(
        path=asked.path,
        question=shorten(asked.question, MAX_QUESTION_CHARS),
        show=shorten(asked.show, MAX_QUESTION_CHARS),
        choices=list(asked.choices),
        user_runs=how_to_answer(run, asked.path, asked),
    )
