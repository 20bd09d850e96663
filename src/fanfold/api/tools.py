"""The definition of a tool: a name, a description, the structs it takes and returns, and a function.

Schemas are made from the structs, so the published schema is also the check. A tool has no rules of its own:
it calls an operation and shortens the result.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeAlias, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from fanfold.agents.permissions import Action
from fanfold.api.approvals import ErrorBody, ErrorDocument, OpenApproval, how_to_answer, open_approvals
from fanfold.api.display import RunUsage
from fanfold.api.history import follow, until
from fanfold.api.project import ContinuedRun, Project
from fanfold.api.report import Transitions, reported_document, standing
from fanfold.api.run_handle import answer, reply
from fanfold.api.run_options import Options
from fanfold.engine.run_tree import RunTree
from fanfold.errors import (
    EXIT_BUDGET,
    EXIT_NOT_FOUND,
    EXIT_PERMISSION,
    AuthorError,
    BugError,
    FanfoldError,
    WorldError,
)
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import LEAF, PENDING, TERMINAL, Run
from fanfold.language.consent import ConsentRequest, pages_of
from fanfold.language.json_text import as_text, fitting
from fanfold.language.terminal import shorten, shorten_middle, visible
from fanfold.steps.run_config import is_kept_open

# -----------------------------------------------------------------------------------------------------------
# The context of a tool call: project, permission, and the person who can be asked
#
# Rules
# * Tools are for root sessions: a model that talks with a person. No subagent gets them, regardless of its
#   prompt.
# * A question goes to a person, never back to the model. If no person can be asked, permission is denied, and
#   the error explains how the person can allow it.
# * A call may take several rounds, each with one more answer of the person. `memory` is kept between rounds:
#   work that an earlier round started is not started again.

MAX_LOOKED_AT = 200
"""Number of runs that are searched for the latest run of a workflow."""
Report: TypeAlias = Callable[[str], Awaitable[None]]
"""Sends a progress line to the client that waits for a call."""


class Form(Struct, frozen=True, kw_only=True):
    """A question to a person. `key` names it within the call; `properties` are JSON Schemas."""

    key: str
    message: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...] = ()


class FormAnswer(Struct, frozen=True):
    """The person's answer; None if they dismissed the question."""

    values: dict[str, JSON] | None


class Person(Protocol):
    async def fill_in(self, form: Form) -> FormAnswer | None:
        """Return the person's answer; None if no person can be asked."""
        ...

    async def permit(self, request: ConsentRequest) -> bool | None:
        """Whether the person permits everything that the request shows; None if no person can be asked."""
        ...


class CallMemory(Struct):
    """The progress of a call, kept for later rounds."""

    run: str = ""
    """The run that it started."""
    misfits: dict[str, list[str]] = field(default_factory=dict)
    """By question: why answers of the person were refused."""
    shown: set[str] = field(default_factory=set)
    """Pages of a permission question that the person has seen."""


class ToolContext(Struct, kw_only=True):
    """The context of one call of one session."""

    project: Project
    options: Options
    """Options of everything that the call starts: permission, model, back end."""
    person: Person | None = None
    report: Report | None = None
    memory: CallMemory = field(default_factory=CallMemory)
    open_run: str = ""
    """The open run that contains the session's subagents; empty for the project's open run."""
    was_cancelled: Callable[[], bool] = lambda: True
    """Called when a call is torn down: whether it was cancelled, or only the connection was lost."""
    how_to_allow: str = "use a session with --permission auto"
    """The hint for a person if no person could be asked."""

    def named(self, run: str) -> str:
        """Resolve `last` to the latest run of a workflow, not of a chat; return other names unchanged."""
        if run != "last":
            return run
        heads = self.project.heads(limit=MAX_LOOKED_AT)
        return next((head.run_id for head in heads if not is_kept_open(head.run_id)), run)

    async def say(self, line: str) -> None:
        if self.report is not None:
            await self.report(line)


REFERENCE = "#/$defs/{name}"
ITEMS_AS = "itemsAs"
"""Key in `extra_json_schema`: the schema of the items of a list."""
_KINDS = ["object", "array", "string", "number", "boolean", "null"]
AnyValue = Annotated[JSON, Meta(extra_json_schema={"type": _KINDS})]
"""Any JSON value, in a form that every client understands."""
_BOUNDS = frozenset("minLength minItems maxItems minimum maximum exclusiveMinimum".split())
Call: TypeAlias = Callable[[ToolContext, Any], Awaitable[Struct]]


class Tool(Struct, frozen=True, kw_only=True):
    """A tool. `mutates`: it needs permission, except for a `dry_run`."""

    name: str
    title: str
    description: str
    takes: type[Struct]
    gives: type[Struct]
    call: Call
    mutates: bool = False
    ends_something: bool = False
    """Whether work may be lost: clients warn their user."""

    @property
    def input_schema(self) -> dict[str, Any]:
        """The schema of the arguments: closed, and with all referenced definitions."""
        _, parts = msgspec.json.schema_components([self.takes], ref_template=REFERENCE)
        own = _compact(parts.pop(self.takes.__name__))
        return {**own, "$defs": _compact(parts)} if REFERENCE[:8] in str(own) else own

    @property
    def output_schema(self) -> dict[str, Any]:
        """The schema of the result or of an error document. Both are objects with `ok`."""
        _, parts = msgspec.json.schema_components([self.gives, ErrorDocument], ref_template=REFERENCE)
        either = [{"$ref": f"#/$defs/{one.__name__}"} for one in (self.gives, ErrorDocument)]
        ok = {"ok": {"type": "boolean"}}
        return {"type": "object", "properties": ok, "required": ["ok"], "anyOf": either, "$defs": parts}


def tool(
    title: str, description: str, *, mutates: bool = False, ends_something: bool = False
) -> Callable[[Call], Tool]:
    """Make a tool from a function: its name and types become the tool's name and schemas."""

    def declare(call: Call) -> Tool:
        types = get_type_hints(call)
        return Tool(
            name=call.__name__,
            title=title,
            description=description,
            takes=types["request"],
            gives=types["return"],
            call=call,
            mutates=mutates,
            ends_something=ends_something,
        )

    return declare


def shared_fields(source: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Return the fields of a document that another kind of document also has, by name."""
    return {name: getattr(source, name) for name in kind.__struct_fields__ if hasattr(source, name)}


def _compact(schema: Any) -> Any:
    """Remove titles, bounds, empty defaults and null alternatives from a schema.

    Every request of a model pays for the schema. Bounds are checked when a call is read, with an error that
    names them.
    """
    if isinstance(schema, list):
        return [_compact(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        name: _compact(one)
        for name, one in schema.items()
        if name not in _BOUNDS
        and not (name == "title" and isinstance(one, str))
        and (name != "default" or one)
    }
    if ITEMS_AS in found:
        found["items"] = found.pop(ITEMS_AS)
    either = [one for one in found.get("anyOf", ()) if one != {"type": "null"}]
    if len(either) == 1:
        found = {name: one for name, one in found.items() if name != "anyOf"} | either[0]
    elif either:
        found["anyOf"] = either
    return found


# -----------------------------------------------------------------------------------------------------------
# Errors as data: every failure of a tool has one of a few codes that a model can act on
#
# `details` has the code that Fanfold uses everywhere else, and the other details of the error.

FailureCode: TypeAlias = Literal[
    "invalid_args",
    "not_found",
    "permission_denied",
    "detached",
    "limit_exceeded",
    "timeout",
    "busy",
    "internal",
]
CODES: tuple[FailureCode, ...] = get_args(FailureCode)

MAX_MESSAGE_CHARS = 4_000
MAX_DETAILS = 20
"""Maximum length of each list in the details; the total is stored next to it."""

_BY_CODE: dict[str, FailureCode] = {
    "subagent.detached": "detached",
    "subagent.limit_exceeded": "permission_denied",  # no permission can raise the delegation depth
    "run.busy": "busy",
    "lease.held": "busy",
    "tool.timeout": "timeout",
    "world.io": "internal",
}
_BY_STATUS: dict[int, FailureCode] = {
    EXIT_PERMISSION: "permission_denied",
    EXIT_NOT_FOUND: "not_found",
    EXIT_BUDGET: "limit_exceeded",
}


def failure_document(error: FanfoldError) -> ErrorDocument:
    """Return the error document for a model, with long texts and lists shortened."""
    details: dict[str, JSON] = {"code": error.code, **error.details}
    for name, value in error.details.items():
        if isinstance(value, list | tuple) and len(value) > MAX_DETAILS:
            errors_first = sorted(
                value, key=lambda one: isinstance(one, dict) and one.get("severity") == "warning"
            )
            details |= {name: errors_first[:MAX_DETAILS], f"{name}_total": len(value)}
    message = shorten_middle(error.message, MAX_MESSAGE_CHARS)
    hint = shorten_middle(as_tool_calls(error.hint), MAX_MESSAGE_CHARS)
    return ErrorDocument(False, ErrorBody(code_of(error), message, hint, details))


_RUN = r"(?P<run>[a-z0-9][a-z0-9-]{5,}|last)(?![\w-])"
_VERB = r"(?:shows|lists|says|tells|follows|continues|goes|ends|and|or|to)\b"
_STEP = rf"(?: --\w+| (?!{_VERB})(?P<step>'[^']+'|[^\s,;:()]+))*"
_NAME = r"(?P<name>'[^']+'|[^\s,;:()]+)"
_CALLS: tuple[tuple[str, str], ...] = (
    (r"list\b", "list_workflows()"),
    (r"agents\b", "list_agents()"),
    (r"ps\b(?: --all)?", "list_agents(all: true)"),
    (r"runs\b", "workflow_status()"),
    (rf"(?:inspect|explain|transcript|watch) {_RUN}{_STEP}", 'workflow_status(run: "{run}", step: "{step}")'),
    (rf"resume {_RUN}(?! --)", 'run_workflow(resume: "{run}")'),
    (rf"cancel {_RUN}", 'close_agent(agent: "{run}")'),
    (rf"wait {_NAME}", 'wait_agent(agents: ["{name}"])'),
    (rf"send {_NAME}(?: --resume)?", 'send_input(agent: "{name}", resume: true, text: …)'),
    (rf"spawn {_NAME}(?: '[^']*')?", 'task(role: "{name}", task: …)'),
    (rf"check {_NAME}", 'run_workflow(name: "{name}", dry_run: true)'),
)
"""Command lines in hints, and the equivalent tool calls."""
_COMMAND = "fanfold "


def as_tool_calls(hint: str) -> str:
    """Replace command lines in a hint with tool calls. Other commands and options are left to the user."""
    for command, call in _CALLS if _COMMAND in hint else ():
        hint = re.sub(_COMMAND + command, partial(_call, call), hint)
    hint = hint if _COMMAND in hint else re.sub(r"(?<!\S)--replace\b", "replace: true", hint)
    return f"ask the user: {hint}" if _COMMAND in hint or re.search(r"(?<!\S)--[a-z]", hint) else hint


def _call(call: str, found: re.Match[str]) -> str:
    given = found.groupdict()
    if given.get("step") is None:
        call = call.replace(', step: "{step}"', "")
    return call.format_map({name: (value or "").strip("'") for name, value in given.items()})


def code_of(error: FanfoldError) -> FailureCode:
    """Map an error to one of the codes: by its own code, exit status or type."""
    known = _BY_CODE.get(error.code) or _BY_STATUS.get(error.exit_status)
    if known is not None:
        return known
    if isinstance(error, BugError):
        return "internal"
    codes: dict[str, FailureCode] = {code: code for code in CODES}
    return codes.get(error.code.rpartition(".")[2], "invalid_args")


def crashed(name: str, error: Exception) -> ErrorDocument:
    """Return the document of an internal error, without the exception's message: it may contain anything."""
    message = f"{name} broke: {type(error).__name__}"
    return ErrorDocument(False, ErrorBody("internal", message, "try again; if it stays, report it", {}))


# -----------------------------------------------------------------------------------------------------------
# Permission of tools that change something: `read_only` denies, `ask` asks a person, `auto` allows
#
# Starting a run or a subagent needs permission even if it only reads: it costs money. A person grants only
# what the question showed. Further actions of agents are asked separately.

YES, NO, NEXT = "allow", "deny", "next page"
FORM_COLUMNS, FORM_ROWS, MAX_FORMS = 120, 50, 20
"""The size of one form, which clients show in a dialog; and the maximum of forms for one question."""
READ_ONLY = "it has --permission read_only: the user can do it in a terminal, or choose another one for it"


class PriorConsent:
    """Stands for a person who already agreed to the declared effects, and cannot be asked again."""

    def permits(self, request: ConsentRequest) -> bool:  # noqa: ARG002 - they were shown it before
        return True

    async def allow(self, action: Action) -> bool:  # noqa: ARG002 - whatever it is
        return False


async def permit(caller: ToolContext, what: str, effects: Sequence[str], totals: Sequence[str] = ()) -> None:
    """Return if the caller is allowed to do `what` with these effects; raises `permission_denied`."""
    posture = caller.options.permission
    if posture == "auto":
        return
    if posture == "read_only":
        raise denied(f"this session may only read, so it may not {what}", READ_ONLY)
    request = ConsentRequest(f"Fanfold asks for permission to {what}.", tuple(effects), tuple(totals))
    agreed = await caller.person.permit(request) if caller.person is not None else None
    if agreed is None:
        raise denied(f"no person could be asked whether to {what}", caller.how_to_allow, effects)
    if not agreed:
        raise denied(f"the user does not want you to {what}", "ask the user what they want instead")


async def permit_by_forms(
    fill_in: Callable[[Form], Awaitable[FormAnswer | None]], passed: set[str], request: ConsentRequest
) -> bool | None:
    """Ask with one form per page; None if no person can be asked.

    `passed` contains the pages that were answered in an earlier round of the call. A question with too many
    pages for dialogs is refused; a terminal can show it.
    """
    pages = pages_of(request, FORM_COLUMNS, FORM_ROWS)
    if len(pages) > MAX_FORMS:
        message = (
            f"a dialog cannot show the whole question: {len(request.effects):,} effects, {len(pages)} pages"
        )
        hint = "ask the user to start it in a terminal, which shows it completely"
        raise denied(message, hint, request.effects)
    for number, page in enumerate(pages, start=1):
        last = number == len(pages)
        page_id = f"{request.digest}-{number}"
        if page_id in passed:
            continue
        where = [] if len(pages) == 1 else [f"Page {number} of {len(pages)}."]
        decision = {"type": "string", "title": "Decision", "enum": [YES if last else NEXT, NO]}
        form = Form(
            key="consent" if number == 1 else f"consent-{number}",
            message="\n".join([*page, *where]),
            properties={"decision": decision},
            required=("decision",),
        )
        filled = await fill_in(form)
        if filled is None:
            return None
        if filled.values is None:  # clients without a person also dismiss it
            message = (
                "no person agreed: the question was dismissed unanswered, perhaps no person could be asked"
            )
            raise denied(message, "ask the user, who can also start it in a terminal", request.effects)
        if filled.values.get("decision") != decision["enum"][0]:
            return False
        passed.add(page_id)
    return True


def denied(message: str, hint: str, needs: Sequence[str] = ()) -> WorldError:
    details = {"needs": list(needs)} if needs else {}
    return WorldError("permission_denied", message, hint=hint, details=details, exit_status=EXIT_PERMISSION)


# -----------------------------------------------------------------------------------------------------------
# Questions of a run as forms for the person behind a client, and their answers

APPROVE, REJECT = "approve", "reject"
QUESTION, ANSWER = "question", "answer"
ANSWERED = ("approval.closed", "approval.not_open")
PRIMITIVES = ("string", "integer", "number", "boolean")
MAX_SCHEMA_CHARS = 500
MAX_SHOWN_CHARS = 8_000


def approval_form(run: str, asked: OpenApproval, again: str = "") -> Form | None:
    """Return the form of an approval: the question, the text to inspect, the choices.

    `again` is why the last answer was refused. None if a form cannot show everything: such a question waits
    for an answer from a terminal or the console.
    """
    if len(asked.question) + len(asked.show) > MAX_SHOWN_CHARS:
        return None
    shown = f"\n\n{_set_off(asked.show)}" if asked.show else ""
    before = f"{shorten(_set_off(again), MAX_SHOWN_CHARS)}\n\n" if again else ""
    message = f"{before}Run {run}, step {asked.path}: {_set_off(asked.question)}{shown}"
    text: dict[str, Any] = {"type": "string"}
    if asked.kind != QUESTION:
        decision = {**text, "title": "Decision", "enum": list(asked.choices) or [APPROVE, REJECT]}
        properties, required = {"decision": decision, "comment": {**text, "title": "Comment"}}, ("decision",)
    elif _is_flat(asked.schema):
        properties, required = asked.schema["properties"], tuple(asked.schema.get("required", ()))
    else:
        about = "" if asked.schema is None else fitting(asked.schema, MAX_SCHEMA_CHARS)
        field = {**text, "title": "Answer", "description": about}
        properties = {ANSWER: field | ({"enum": list(asked.choices)} if asked.choices else {})}
        required = (ANSWER,)
    return Form(key=f"{run}/{asked.path}", message=message, properties=properties, required=required)


def _is_flat(schema: JSON) -> bool:
    """Whether a form can ask for it field by field."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    fields = schema.get("properties")
    return (
        isinstance(fields, dict)
        and bool(fields)
        and all(isinstance(one, dict) and one.get("type") in PRIMITIVES for one in fields.values())
    )


async def give_answer(project: Project, run: str, asked: OpenApproval, filled: FormAnswer) -> bool:
    """Send the person's answer to the run; False if they dismissed the question."""
    values = {name: value for name, value in (filled.values or {}).items() if value is not None}
    try:
        if asked.kind == QUESTION:
            if not values:
                return False
            text = as_text(values) if _is_flat(asked.schema) else as_text(values.get(ANSWER, ""))
            await reply(project, run, asked.path, text)
            return True
        decision, comment = values.get("decision"), values.get("comment")
        if decision not in (asked.choices or (APPROVE, REJECT)):
            return False
        await answer(project, run, asked.path, str(decision), str(comment) if comment else None)
    except AuthorError as error:
        if error.code not in ANSWERED:
            raise  # otherwise the question was answered elsewhere meanwhile
    return True


def _set_off(text: str) -> str:
    """Prefix the lines of foreign text with bars, so that no line can look like a question of Fanfold."""
    first, *others = visible(text, keep="\n").split("\n")
    return "\n".join((first, *(f"  │ {line}" for line in others)))


# -----------------------------------------------------------------------------------------------------------
# Follow the work of a call and report its progress in lines


def _progress(tree: RunTree) -> tuple[int, int]:
    """Return how many steps ended, and of how many; maps, groups and loops do not count."""
    leaves = [node for node in tree.nodes() if node.kind == LEAF]
    return sum(node.status in TERMINAL for node in leaves), len(leaves)


async def follow_run(caller: ToolContext, root: str, background: ContinuedRun | None = None) -> RunTree:
    """Wait until a run finished, paused, waits only for people, or lost its process; return the tree.

    `background` is the process that this call started for it, if any.
    """
    project = caller.project
    tree = project.view(root)
    transitions = Transitions(tree)
    async for written in follow(project, root, tree.tree_seq, starting=background):
        tree.catch_up(written)
        for envelope in written:
            transition = transitions.read(envelope)
            if transition is not None:
                name = f"{transition.path} " if transition.path else ""
                done, steps = _progress(tree)
                await caller.say(f"run {root}, {done} of {steps} steps done: {name}{transition.text}")
    if background is not None and tree.root.status == PENDING:
        raise background.ended_at_once()
    return tree


@asynccontextmanager
async def narrated(caller: ToolContext) -> AsyncIterator[Callable[[str], None]]:
    """Yield a function that queues progress lines, for work that cannot wait until each line is sent."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def report_lines() -> None:
        while (line := await lines.get()) is not None:
            await caller.say(line)

    reporting = asyncio.create_task(report_lines())
    try:
        yield lines.put_nowait
        lines.put_nowait(None)
        await reporting
    finally:
        reporting.cancel()


async def answered_elsewhere(project: Project, root: str, path: str) -> None:
    """Wait until a question of a run is no longer open."""
    tree = project.view(root)

    def look() -> bool | None:
        tree.catch_up(list(project.store.tree(root, tree.tree_seq)))
        return None if any(one.path == path for one in open_approvals(tree)) else True

    await until(project, root, look, math.inf)


# -----------------------------------------------------------------------------------------------------------
# The report of a run for a model: executive report, output, failures and open questions
#
# Everything else stays in the store: `query_workflow` and `workflow_status` with a step return it.

MAX_OUTPUT_CHARS = 2_000
RUN_REPORTS_MAX_MESSAGE_CHARS = 400
MAX_QUESTION_CHARS = 1_000
MAX_QUESTIONS = 10
MAX_FAILURES = 10
MAX_CHANGES = 20


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
    """The state of a run. `ok`: the call worked; `status`: how the run went. A run is `detached` when it lost
    its process: run_workflow with `resume` continues it.
    """

    ok: bool
    run_id: str
    recipe: str
    status: str
    output: AnyValue
    output_cut: bool
    error: str | None
    steps_done: int
    steps_total: int
    failures: list[FailedStep]
    questions: list[OpenQuestion]
    questions_total: int
    changes: list[str]
    changes_total: int
    usage: RunUsage
    report: str
    """The executive report: the same text as in `run --json` and `report.md`."""


def run_report(tree: RunTree, run: Run | None = None, *, owned: bool = True) -> RunReport:
    """Return the report of a run; without `run`, of the root. `owned`: whether the run has a live owner."""
    document = reported_document(tree, run, owned=owned)
    text = as_text(document.output)
    cut = len(text) > MAX_OUTPUT_CHARS
    questions = open_approvals(tree)
    done, total = _progress(tree)
    failed = [
        (path, step.error)
        for path, step in document.steps.items()
        # A group that failed because of a step of this run does not count.
        if step.error is not None and (step.error.step == path or step.error.step not in document.steps)
    ]
    return RunReport(
        ok=True,
        run_id=document.run_id,
        recipe=document.recipe,
        status=standing(document.status, owned=owned),
        output=shorten(text, MAX_OUTPUT_CHARS) if cut else document.output,
        output_cut=cut,
        error=None
        if document.error is None
        else shorten(document.error.message, RUN_REPORTS_MAX_MESSAGE_CHARS),
        steps_done=done,
        steps_total=total,
        failures=[
            FailedStep(
                path=path,
                code=error.code,
                message=shorten(error.message, RUN_REPORTS_MAX_MESSAGE_CHARS),
                hint=shorten(as_tool_calls(error.hint), RUN_REPORTS_MAX_MESSAGE_CHARS),
            )
            for path, error in failed[:MAX_FAILURES]
        ],
        questions=[
            OpenQuestion(
                path=one.path,
                question=shorten(one.question, MAX_QUESTION_CHARS),
                show=shorten(one.show, MAX_QUESTION_CHARS),
                choices=list(one.choices),
                user_runs=how_to_answer(tree.root.id, one.path, one),
            )
            for one in questions[:MAX_QUESTIONS]
        ],
        questions_total=len(questions),
        changes=[f"{one.kind} {one.path}" for one in document.changes[:MAX_CHANGES]],
        changes_total=len(document.changes),
        usage=document.usage,
        report=document.report or "",
    )
