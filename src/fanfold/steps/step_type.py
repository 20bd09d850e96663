"""The interface of step types: how their steps are shown, approved, prepared, executed and answered.

A step type owns the job of its steps (every template rendered, every value looked up) and executes it.
`table` lists the types. Code that handles steps of every type uses that table or the traits in the plan. It
does not inspect actions.

Rules
* A job contains everything that its work needs and refers to nothing that can change.
* A template that cannot be rendered fails the step before it starts, with the location and the reason.
* An outcome is a value: a result, or a failure with its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.entries import News
from fanfold.agents.spending import UNLIMITED, Account
from fanfold.errors import AuthorError, BugError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.paths import escape
from fanfold.kernel.plan import JSON, Constant, Fields, Output, Ref, Step, Template
from fanfold.kernel.state import Node
from fanfold.language.step_grammar import Body, read_body
from fanfold.language.template import Hole, UnresolvedPath, parse_path, parse_template, render, resolve
from fanfold.steps.values import Values
from fanfold.store.protocol import Store
from fanfold.workspace.artifacts import NOTHING_SEEN, ArtifactView

if TYPE_CHECKING:
    from fanfold.agents.role import Role
    from fanfold.language.consent import Effect
    from fanfold.language.leaf_steps import AgentBody
    from fanfold.sessions.supervisor import Supervisor
    from fanfold.steps.functions import FunctionProcesses
    from fanfold.steps.programs import Programs
    from fanfold.steps.records import WorkspaceFact
    from fanfold.steps.run_config import RunConfig
    from fanfold.steps.step_workspace import Isolation, StepWorkspace
    from fanfold.store.journal import Journal


Tell = Callable[[News], None]


class Job(Struct, frozen=True, kw_only=True):
    """The work of one step, ready to be executed."""

    performed: ClassVar[bool] = True
    """False if the step needs no executor after its start event: the kernel, a person or a timer ends it."""
    artifacts: ArtifactView = NOTHING_SEEN
    """The artifacts of earlier steps that the step can read."""


class Question(Job, frozen=True):
    """A job that waits for a person.

    Without `choices` the answers to an approval are `approve` and `reject`. The answer to a question is text,
    or data that matches `schema`.
    """

    performed: ClassVar[bool] = False
    question: str
    show: str = ""
    choices: tuple[str, ...] = ()
    kind: Literal["approval", "question"] = "approval"
    schema: JSON = None
    default: str | None = None
    """The answer at the time-out, as text. Without a default the step fails then."""


class Timer(Job, frozen=True):
    """A job that waits until `due_at` (milliseconds since the epoch)."""

    performed: ClassVar[bool] = False
    due_at: int


class CallJob(Job, frozen=True):
    """A job that creates a child run, which gets only these inputs."""

    performed: ClassVar[bool] = False
    inputs: dict[str, JSON]


class SettledJob(Job, frozen=True):
    """A job without work: the preparation of the step produced its output."""

    performed: ClassVar[bool] = False
    output: JSON
    summary: str = ""
    warning: Failure | None = None
    """A warning to report although the step completed."""


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
    """One execution of a step, with its job and its workspace."""

    start: Start
    node: Node
    job: J
    place: StepWorkspace
    progress: Tell
    account: Account = UNLIMITED


class NeededAgreement(Struct, frozen=True):
    """A question that a person must approve before a step continues, with the details to show."""

    question: str
    show: str


class Outcome(Struct, frozen=True):
    """The result of an execution. `output` is valid if `error` is None."""

    output: JSON = None
    error: Failure | None = None
    summary: str = ""
    """The agent's own summary, if it gives one."""
    usage: Usage | None = None
    warning: Failure | None = None
    """A problem that did not prevent an output."""
    evidence: tuple[WorkspaceFact, ...] = ()
    """Workspace events for the log."""
    holds: bool = False
    """Whether the error pauses the run instead of failing the step, until an external cause is fixed."""
    asks: NeededAgreement | None = None
    """Set if a person must approve first. Another execution then continues the step."""
    unsettled: str = ""
    """The session whose workspace is kept until the log has this outcome; then it must be settled."""

    @property
    def has_published(self) -> bool:
        """Whether the execution published artifacts."""
        from fanfold.steps.records import ArtifactsPublished  # imported late: most runs do not need it

        return any(isinstance(fact, ArtifactsPublished) for fact in self.evidence)


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

    def session_role(self, step: Step, said: AgentBody) -> Role:
        """The role of an agent step for its session. Steps with equal settings share one role object."""
        key = (
            said.role,
            said.model,
            said.reasoning_effort,
            said.max_turns,
            said.tools,
            said.purpose,
            step.posture,
        )
        role = self._session_roles.get(key)
        if role is None:
            role = self._session_roles[key] = self.frozen.session_role(step, said)
        return role


class StepLabel(Struct, frozen=True):
    """How a step is shown: its kind, and its agent or program."""

    kind: str
    who: str


class StepType(ABC, Generic[A, J]):
    """The behaviour of steps of one type. `A` is the declaration of a step, `J` its job."""

    name: str
    starts_programs: ClassVar[bool] = False
    """Whether steps of this type cannot work without a sandbox."""
    settled: ClassVar[bool] = False
    """Whether steps of this type end when they are prepared: their job is a `SettledJob`."""
    waiting: ClassVar[str] = "waits"
    """The text that follows the name of a waiting step."""

    @abstractmethod
    def read(self, step: Step) -> A:
        """The declaration of a step of this type."""

    # Before the start

    def label(self, _step: Step, _said: A) -> StepLabel:
        """The label of a step in drawings, dry runs and live views."""
        return StepLabel(self.name, self.name)

    def effects(self, _step: Step, _said: A, _filling: Filling) -> Iterable[Effect]:
        """The effects of a step beyond reading, derived from the job that is executed."""
        return ()

    @abstractmethod
    def prepare(self, step: Preparation, said: A) -> J:
        """The job of a step that is about to start. Raises `UnresolvedPath`."""

    def circumstances(self, _frozen: RunConfig, _said: A) -> JSON:
        """Everything besides declaration and job that affects the output, for `cache`."""
        return None

    # After the start

    async def perform(self, _services: Services, _execution: Execution[J]) -> Outcome:
        """Do the work of a step. On cancellation, end everything that this job started, then raise."""
        raise BugError("step.no_work", f"a {self.name} step has no work to be performed")

    def rescue(self, _node: Node, _job: J, outcome: Outcome) -> Outcome:
        """The final outcome of a failed execution. By default it is unchanged."""
        return outcome

    def task(self, _job: J) -> str:
        """A description of the work, for the log and for an agent that resolves merge conflicts."""
        return self.name

    def who(self, _job: J) -> str:
        """The role that was picked for the work when the step started; empty for a fixed role."""
        return ""

    def answer(self, step: Preparation, _said: A, _reply: StepReply) -> Outcome:
        """The outcome of a waiting step after a person's reply. Raises `AuthorError` if it is invalid."""
        raise AuthorError("approval.not_one", f"{step.node.path} is not an approval but a {self.name} step")

    def at_timeout(self, _said: A) -> JSON:
        """The output of a step that waits until its time-out and then completes."""
        return None


class LeafType(StepType[B, J]):
    """A type whose steps have a body."""

    body: type[B]

    @property
    def name(self) -> str:  # type: ignore[override]  # it never changes
        return self.body.syntax.name

    def read(self, step: Step) -> B:
        return read_body(self.body, step)


def failure(
    node: Node, start: Start, kind: str, code: str, message: str, hint: str = "", retryable: bool = True
) -> Failure:
    """The failure of an execution of a step."""
    return Failure(kind, code, message, hint, retryable, node.path, start.attempt)


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
        if "{{" not in template:
            return template
        parts = parse_template(template)
        return "".join(part if isinstance(part, str) else self._filled(part, render) for part in parts)

    def pattern(self, template: str) -> str:
        parts = parse_template(template)

        def literal(hole: tuple[Hole], names: Mapping[str, JSON]) -> str:
            return escape(render(hole, names))

        return "".join(part if isinstance(part, str) else self._filled(part, literal) for part in parts)

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

    def _filled(self, hole: Hole, fill: Callable[[tuple[Hole], Mapping[str, JSON]], str]) -> str:
        try:
            return fill((hole,), self.names)
        except UnresolvedPath:
            return self._unknown(hole.path.text)

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


def render_sets(node: Node, names: dict[str, JSON]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The rendered read-set and write-set of an instance."""
    read = tuple(pattern_of(pattern, names) for pattern in node.step.read_set)
    return read, tuple(pattern_of(pattern, names) for pattern in node.step.write_set)


def pattern_of(template: str, names: Mapping[str, JSON]) -> str:
    """The rendered pattern of a path set.

    Only wildcards of the author count: wildcards in inserted values are escaped.
    """
    return "".join(
        part if isinstance(part, str) else escape(render((part,), names)) for part in parse_template(template)
    )
