"""The interface of step types: how their steps are shown, approved, prepared, executed and answered.

A step type owns the job of its steps (every template rendered, every value looked up) and executes it.
`STEP_TYPES` lists the types. Code that handles steps of every type uses that table or the traits in the plan.
It does not inspect actions.

A template that cannot be rendered fails the step before it starts, with the location and the reason.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend import SentText, no_texts
from fanfold.agents.entries import News
from fanfold.agents.spending import UNLIMITED, Account
from fanfold.errors import AuthorError, BugError, WorldError
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.paths import GlobError, check_glob, escape
from fanfold.kernel.plan import (
    JSON,
    MAX_ITEMS,
    Constant,
    Fields,
    GroupAction,
    Output,
    Ref,
    Repeat,
    Step,
    Template,
    WorkflowAction,
)
from fanfold.kernel.state import Node
from fanfold.language import keys
from fanfold.language.consent import Effect
from fanfold.language.leaf_steps import STEPS, Body, LeafGrammar, StepGrammar, WrittenStep, read_body
from fanfold.language.references import TextPlace, read_output
from fanfold.language.tables import json_type
from fanfold.language.template import (
    ExpressionError,
    Hole,
    UnresolvedPath,
    parse_path,
    parse_template,
    render,
    resolve,
)
from fanfold.steps.order import CallJob, GroupJob, Job, Order, Outcome
from fanfold.steps.values import Values
from fanfold.store.protocol import Store
from fanfold.workspace.artifacts import NOTHING_SEEN

if TYPE_CHECKING:
    from fanfold.agents.role import Role
    from fanfold.language.leaf_steps import AgentBody
    from fanfold.sessions.supervisor import Supervisor
    from fanfold.steps.functions import FunctionProcesses
    from fanfold.steps.programs import Programs
    from fanfold.steps.run_config import RunConfig
    from fanfold.steps.step_workspace import Isolation, StepWorkspace
    from fanfold.store.journal import Journal


OnProgress = Callable[[News], None]


class StepReply(Struct, frozen=True):
    """The reply of a person: a decision about an approval, or the text that answers a question."""

    decision: str
    by: str
    comment: str | None = None
    edited: JSON = None
    text: str | None = None


A = TypeVar("A")
B = TypeVar("B", bound=Body)
J = TypeVar("J", bound=Job)


class Filling(Struct, frozen=True):
    """The values for the templates of a step: the visible names, and its resolved `inputs`."""

    names: dict[str, JSON]
    inputs: dict[str, JSON]

    def text(self, template: str) -> str:
        """The rendered text of a template. Raises `UnresolvedPath`."""
        return text_of(template, self.names)

    def pattern(self, template: str) -> str:
        """The rendered pattern of a path set. Wildcards in inserted values are escaped."""
        return pattern_of(template, self.names)


class Preparation(Filling, frozen=True):
    """The context for preparing a step that is about to start."""

    values: Values
    node: Node

    @property
    def now(self) -> int:
        """The time of the log, in milliseconds since the epoch."""
        return self.values.now


class Execution(Struct, Generic[J], frozen=True):
    """One execution of a step: its order, its workspace, and the ways to report while it works."""

    order: Order[J]
    place: StepWorkspace
    progress: OnProgress
    account: Account = UNLIMITED
    texts: Callable[[], Sequence[SentText]] = no_texts
    """Returns the texts that people sent to the step so far."""

    @property
    def job(self) -> J:
        return self.order.job


class UserGrants(Struct, frozen=True):
    """Permissions of steps that only the user's own configuration can grant."""

    deliver_unasked: bool
    """Whether deliveries need no approval."""
    variables: frozenset[str]
    """Names of the user's environment variables that commands may get."""


class Services:
    """The services of a run for the steps that it executes."""

    def __init__(
        self,
        store: Store,
        supervisor: Supervisor,
        frozen: RunConfig,
        make_functions: Callable[[], FunctionProcesses],
        programs: Programs,
        journal: Journal,
        isolation: Isolation,
        granted: UserGrants,
    ) -> None:
        self.store = store
        self.supervisor = supervisor
        self.frozen = frozen
        self._make_functions = make_functions
        self.programs = programs
        self.journal = journal
        """The journal to which the owner of the tree and its sessions write."""
        self.isolation = isolation
        self.granted = granted
        self.memory = isolation.project / ".fanfold"
        """The project's `.fanfold` folder."""
        self._session_roles: dict[tuple[object, ...], Role] = {}

    @cached_property
    def functions(self) -> FunctionProcesses:
        """The processes of the run's functions, created on first use."""
        return self._make_functions()

    async def end_functions(self) -> None:
        if "functions" in self.__dict__:
            await self.functions.aclose()

    def session_role(self, step: Step, settings: AgentBody) -> Role:
        """The role of an agent step for its session. Steps with equal settings share one role object."""
        key = (
            settings.role,
            settings.model,
            settings.reasoning_effort,
            settings.max_turns,
            settings.tools,
            settings.may_ask,
            settings.skills,
            settings.purpose,
            step.posture,
        )
        role = self._session_roles.get(key)
        if role is None:
            role = self._session_roles[key] = self.frozen.session_role(step, settings)
        return role


class StepLabel(Struct, frozen=True):
    """How a step is shown: its kind, and its agent or program."""

    kind: str
    who: str


class StepType(StepGrammar, Generic[A, J]):
    """The behaviour of steps of one type. `A` is the declaration of a step, `J` its job."""

    job: ClassVar[type[Job]] = Job
    """The class of the jobs of this type, with which orders are decoded. Types without work need none."""
    starts_programs: ClassVar[bool] = False
    """Whether steps of this type cannot work without a sandbox."""
    settled: ClassVar[bool] = False
    """Whether steps of this type end when they are prepared: their job is a `SettledJob`."""
    waiting: ClassVar[str] = "waits"
    """The text that follows the name of a waiting step."""

    @property
    def name(self) -> str:
        """The name of the type in recipes."""
        return self.syntax.name

    @abstractmethod
    def read(self, step: Step) -> A:
        """The declaration of a step of this type."""

    # Before the start

    def label(self, _step: Step, _settings: A) -> StepLabel:
        """The label of a step in drawings, dry runs and live views."""
        return StepLabel(self.name, self.name)

    def effects(self, _step: Step, _settings: A, _filling: Filling) -> Iterable[Effect]:
        """The effects of a step beyond reading, derived from the job that is executed."""
        return ()

    @abstractmethod
    def prepare(self, step: Preparation, settings: A) -> J:
        """The job of a step that is about to start. Raises `UnresolvedPath`."""

    def circumstances(self, _frozen: RunConfig, _settings: A) -> JSON:
        """Everything besides declaration and job that affects the output, for `cache`."""
        return None

    # After the start

    async def perform(self, _services: Services, _execution: Execution[J]) -> Outcome:
        """Do the work of a step. On cancellation, end everything that this job started, then raise."""
        raise BugError("step.no_work", f"a {self.name} step has no work to perform")

    def rescue(self, _job: J, outcome: Outcome) -> Outcome:
        """The final outcome of a step whose last attempt failed. By default it is unchanged."""
        return outcome

    def task(self, _job: J) -> str:
        """A description of the work, for the log and for an agent that resolves merge conflicts."""
        return self.name

    def who(self, _job: J) -> str:
        """The role that was picked for the work when the step started; empty for a fixed role."""
        return ""

    def answer(self, step: Preparation, _settings: A, _reply: StepReply) -> Outcome:
        """The outcome of a waiting step after a person's reply. Raises `AuthorError` if it is invalid."""
        raise AuthorError("approval.not_one", f"{step.node.path} is not an approval but a {self.name} step")

    def at_timeout(self, _settings: A) -> JSON:
        """The output of a step that waits until its time-out and then completes."""
        return None


class LeafType(StepType[B, J], LeafGrammar[B]):
    """A type whose steps have a body. One class has everything of the type."""

    def read(self, step: Step) -> B:
        return read_body(self.body, step)


def add_usage(*parts: Usage | None) -> Usage | None:
    """The sum of the known usages, or None if none is known."""
    known = [usage for usage in parts if usage is not None]
    return sum(known, NOTHING_SPENT) if known else None


def value_of(value: Output, names: dict[str, JSON]) -> JSON:
    """The value of an output: a reference keeps its type, a template is text, a literal is itself."""
    if isinstance(value, Ref):
        return resolve(parse_path(value.path), names)
    if isinstance(value, Template):
        return text_of(value.text, names)
    if isinstance(value, Fields):
        return {key: value_of(inner, names) for key, inner in value.fields.items()}
    assert isinstance(value, Constant)
    return value.value


def text_of(template: str, names: dict[str, JSON]) -> str:
    return render(parse_template(template), names) if "{{" in template else template


class UnknownText(str):
    """A placeholder in a question for a value that is known only during the run: the path in braces."""

    __slots__ = ()


class KnownNames(Filling, frozen=True):
    """Renders the templates of a step with the values known before the run. Other paths stay in braces."""

    partly: Mapping[str, str]
    """Maps a path to its text, for values of which only a part is known."""

    def text(self, template: str) -> str:
        return self._filled(template, str)

    def pattern(self, template: str) -> str:
        return self._filled(template, escape)

    def value(self, value: Output) -> JSON:
        """A value of a step. Unknown parts are shown as their path in braces."""
        if isinstance(value, Fields):
            return {name: self.value(one) for name, one in value.fields.items()}
        if isinstance(value, Template):
            return self.text(value.text)
        try:
            return value_of(value, self.names)
        except UnresolvedPath:
            assert isinstance(value, Ref)
            return UnknownText(self._unknown(value.path))

    def _filled(self, template: str, form: Callable[[str], str]) -> str:
        texts: list[str] = []
        for part in parse_template(template) if "{{" in template else (template,):
            try:
                texts.append(part if isinstance(part, str) else form(render((part,), self.names)))
            except UnresolvedPath:
                texts.append(self._unknown(part.path.text) if isinstance(part, Hole) else "")
        return "".join(texts)

    def _unknown(self, path: str) -> str:
        return self.partly.get(path, f"{{{{{path}}}}}")


def foresee(step: Step, names: dict[str, JSON], partly: Mapping[str, str]) -> KnownNames:
    """The values for the templates of a step before the run: the names that have a value."""
    known = KnownNames(names=names, inputs={}, partly=partly)
    return replace(known, inputs={name: known.value(value) for name, value in step.inputs.items()})


def shown(value: JSON) -> str:
    """A value as a question shows it: JSON, with the path in place of unknown values."""
    if isinstance(value, UnknownText):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(one)}" for key, one in value.items()) + "}"
    return msgspec.json.encode(value).decode()


def pattern_of(template: str, names: Mapping[str, JSON]) -> str:
    """The rendered pattern of a path set. Wildcards in inserted values are escaped."""
    return "".join(
        part if isinstance(part, str) else escape(render((part,), names)) for part in parse_template(template)
    )


# -----------------------------------------------------------------------------------------------------------
# The expressions of a step: whether it runs, its items, its path sets, whether its loop ends
#
# A run calls these functions with its values before a step is admitted. A forecast calls them with the values
# that are known before the run. So a dry run follows the same rules as a run.

Names = Mapping[str, JSON]
UNDECIDABLE = (ExpressionError, UnresolvedPath, GlobError)
"""The errors that the functions below raise; `undecided` turns them into the failure of a step."""


def items_of(step: Step, names: Names) -> list[JSON]:
    """The items of a map."""
    from fanfold.language.expressions import evaluate

    assert step.for_each is not None
    items = evaluate(step.for_each, names)
    if not isinstance(items, list):
        raise UnresolvedPath(f"for_each needs a list, not {_in_words(items)}")
    if len(items) > step.max_items:
        more = "; the step may say more" if len(items) <= MAX_ITEMS else ""
        raise UnresolvedPath(f"for_each gave {len(items)} items, max_items is {step.max_items}{more}")
    return items


def _in_words(value: JSON) -> str:
    from fanfold.language.expressions import KINDS

    return KINDS.get(json_type(value), "null")


def condition_holds(when: str, names: Names) -> bool:
    """Whether the condition of a step is true."""
    from fanfold.language.expressions import evaluate

    verdict = evaluate(when, names)
    if not isinstance(verdict, bool):
        raise UnresolvedPath(f"when needs true or false, not {_in_words(verdict)}")
    return verdict


def has_converged(repeat: Repeat, names: Names) -> bool:
    """Whether the gate of a loop passes. A gate that cannot be evaluated never passes."""
    from fanfold.language.expressions import evaluate

    try:
        return evaluate(repeat.until, names) is True
    except (ExpressionError, UnresolvedPath):
        return False


def sets_of(node: Node, names: Names) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The read-set and write-set of an instance whose step has templates in them."""
    read_set = tuple(pattern_of(pattern, names) for pattern in node.step.read_set)
    write_set = tuple(pattern_of(pattern, names) for pattern in node.step.write_set)
    for pattern in (*read_set, *write_set):
        check_glob(pattern)
    return read_set, write_set


def undecided(node: Node, error: ValueError) -> Failure:
    """The failure of a step whose expression or path sets cannot be evaluated."""
    code = "recipe.bad_glob" if isinstance(error, GlobError) else "expression.failed"
    return Failure("agent", code, f"{node.path}: {error}", retryable=False, step=node.path)


# -----------------------------------------------------------------------------------------------------------
# The table of step types, by the name that recipes use, for the compiler and for the host.
#
# A new type is one module in this package, its keys in `language.keys`, and one row in `STEP_TYPES`. The
# module of a type is imported with the first step of that type. Most runs have steps of one or two types.
# Code that only reads runs needs no event loop, no sandbox and no processes.

AnyType = StepType[Any, Any]


@cache
def _load(module: str, name: str) -> AnyType:
    kind: AnyType = getattr(import_module(f"fanfold.steps.{module}"), name)()
    return kind


class Unrenderable(Exception):
    """A step's templates cannot be rendered; `failure` is the failure of the step."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def type_of(step: Step) -> AnyType:
    """The type of a step. Raises `step.unknown_type` for a type of another version."""
    load = STEP_TYPES.get(step.type)
    if load is None:
        message = f"step {step.id} is of type {step.type}, which is not known here"
        raise WorldError("step.unknown_type", message, hint="the run was made by another version of Fanfold")
    return load()


def label_of(step: Step) -> StepLabel:
    """How a step is shown: its kind, and its agent or program."""
    kind = type_of(step)
    return kind.label(step, kind.read(step))


def effects_of(step: Step, filling: Filling) -> list[Effect]:
    """The effects of a step beyond reading, derived from the job that is executed; empty if it only reads."""
    kind = type_of(step)
    return list(kind.effects(step, kind.read(step), filling))


def answer(values: Values, node: Node, reply: StepReply) -> Outcome:
    """The outcome of a waiting step after a person's reply. Raises `AuthorError` if it is invalid."""
    kind = type_of(node.step)
    step = Preparation(names=values.at(node), inputs={}, values=values, node=node)
    return kind.answer(step, kind.read(node.step), reply)


def preparation(values: Values, node: Node) -> Preparation:
    """The names and inputs of a step that is about to start. Raises `UnresolvedPath`."""
    names = values.at(node)
    inputs = {key: value_of(value, names) for key, value in node.step.inputs.items()}
    return Preparation(names=names, inputs=inputs, values=values, node=node)


def prepare(values: Values, node: Node) -> Job:
    """The job of a step that is about to start. Raises `Unrenderable`."""
    step = node.step
    try:
        kind = type_of(step)
        job: Job = kind.prepare(preparation(values, node), kind.read(step))
        seen = values.artifacts(node) if job.performed else NOTHING_SEEN
        return job if seen is NOTHING_SEEN else replace(job, artifacts=seen)
    except (UnresolvedPath, ExpressionError) as error:
        code = "expression.failed" if isinstance(error, ExpressionError) else "template.unresolved"
        message = f"{node.path} cannot start: {error}"
        raise Unrenderable(Failure("agent", code, message, retryable=False, step=node.path)) from None


class _Header(Struct):
    step: Step


def decode_order(encoded: bytes) -> Order[Job]:
    """The order that `msgspec.json.encode` encoded. The type of its step decides how its job is decoded."""
    generic: Any = Order
    kind = type_of(msgspec.json.decode(encoded, type=_Header).step)
    order: Order[Job] = msgspec.json.decode(encoded, type=generic[kind.job])
    return order


# -----------------------------------------------------------------------------------------------------------
# Steps that contain other steps: groups, which the kernel runs, and workflows, which become child runs


class GroupSteps(StepType[GroupAction, GroupJob]):
    """The step type of groups."""

    syntax = keys.GROUP

    def check(self, step: WrittenStep) -> None:
        """Check the group's output; its steps are checked separately."""
        from fanfold.language.known_values import Viewpoint, known_of_output

        draft = step.draft
        if "output" in draft.entries.nodes and draft.inner is not None:
            inside = TextPlace(draft, draft.inner, draft.inner.names)
            output = read_output(draft.entries.nodes["output"], step.unit.references, inside)
            viewpoint = Viewpoint(step.unit.inputs, draft, draft.inner)
            draft.facts.output = output
            draft.facts.gives = lambda: known_of_output(output, viewpoint)

    def read(self, step: Step) -> GroupAction:
        assert isinstance(step.action, GroupAction)
        return step.action

    def label(self, step: Step, settings: GroupAction) -> StepLabel:
        return StepLabel(
            "group", (settings.goal or settings.phase_kind) if settings.phase else step.description
        )

    def prepare(self, step: Preparation, settings: GroupAction) -> GroupJob:
        del step, settings
        return GroupJob()


class WorkflowSteps(StepType[WorkflowAction, CallJob]):
    """The step type of child workflows."""

    syntax = keys.WORKFLOW

    def check(self, step: WrittenStep) -> None:
        """Record the call; its target is compiled when this file was read."""
        if "workflow" in step.entries.nodes:
            step.unit.calls.append(step.draft)

    def read(self, step: Step) -> WorkflowAction:
        assert isinstance(step.action, WorkflowAction)
        return step.action

    def label(self, _step: Step, settings: WorkflowAction) -> StepLabel:
        return StepLabel("workflow", settings.workflow)

    def prepare(self, step: Preparation, settings: WorkflowAction) -> CallJob:
        del settings
        return CallJob(step.inputs)


STEP_TYPES: dict[str, Callable[[], AnyType]] = {
    "agent": partial(_load, "agent", "AgentSteps"),
    "function": partial(_load, "function", "FunctionSteps"),
    "command": partial(_load, "command", "CommandSteps"),
    "workflow": partial(_load, "step_type", "WorkflowSteps"),
    "set": partial(_load, "set_and_end", "SetSteps"),
    "ask": partial(_load, "ask", "AskSteps"),
    "wait": partial(_load, "wait", "WaitSteps"),
    "deliver": partial(_load, "deliver", "DeliverSteps"),
    "end": partial(_load, "set_and_end", "EndSteps"),
    "approval": partial(_load, "ask", "ApprovalSteps"),
    "group": partial(_load, "step_type", "GroupSteps"),
}
STEPS.load(STEP_TYPES)  # the compiler of recipes gets the types from here


def register(kind: LeafType[Any, Any]) -> None:
    """Register a step type for the host and for the compiler of recipes."""
    STEP_TYPES[kind.name] = lambda: kind
    STEPS.add(kind)
