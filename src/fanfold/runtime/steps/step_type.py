"""What a step type is to the host: how its steps are shown, asked for, prepared, performed and answered.

One module of this folder is one type. It owns the job of its steps (every template rendered, every value
looked up) and how that job is carried out. `registry` lists the types; whoever deals with steps of every
kind asks it, or decides by the traits in the plan, and looks into no action itself.

Rules
* A job holds all that its work needs and refers to nothing that can change.
* Whatever cannot be rendered fails the step before it starts, with the place and the reason.
* An outcome is a value: a result, or a failure with its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from fanfold.agents.entries import News
from fanfold.errors import AuthorError, BugError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, Constant, Fields, Output, Ref, Step, Template
from fanfold.kernel.sets.globs import escape
from fanfold.recipe.types.body import Body, read_body
from fanfold.runtime.records.values import Values
from fanfold.store.protocol import Store
from fanfold.text.template import parse_path, parse_template, render, resolve
from fanfold.workspace.artifacts import NOTHING_SEEN, ArtifactView

if TYPE_CHECKING:
    from fanfold.agents.role import Role
    from fanfold.recipe.types.agent import AgentBody
    from fanfold.runtime.handlers.pool import FunctionProcesses
    from fanfold.runtime.places.isolation import Isolation
    from fanfold.runtime.places.place import Place
    from fanfold.runtime.records.evidence import WorkspaceFact
    from fanfold.runtime.records.frozen import Frozen
    from fanfold.runtime.steps.programs.sandboxed import Programs
    from fanfold.sessions.supervisor import Supervisor
    from fanfold.store.journal import Journal


Tell = Callable[[News], None]


class Job(Struct, frozen=True, kw_only=True):
    """The work of one step, ready to be done."""

    performed: ClassVar[bool] = True
    """False where the start event is all there is to do: kernel, person or time go on from there."""
    artifacts: ArtifactView = NOTHING_SEEN
    """What it sees of the files that steps before it published."""


class Question(Job, frozen=True):
    """Nothing to do but to wait for a person. Without `choices` the answers to an approval are `approve` and
    `reject`; a question is answered in words, or by data that fits `schema`."""

    performed: ClassVar[bool] = False
    question: str
    show: str = ""
    choices: tuple[str, ...] = ()
    kind: Literal["approval", "question"] = "approval"
    schema: JSON = None
    default: str | None = None
    """What is answered when its time is up, as text; without one it fails then."""


class Timer(Job, frozen=True):
    """Nothing to do but to wait until `due_at` (milliseconds since the epoch)."""

    performed: ClassVar[bool] = False
    due_at: int


class CallJob(Job, frozen=True):
    """Nothing to do but to open a child run, which will see these inputs and no more."""

    performed: ClassVar[bool] = False
    inputs: dict[str, JSON]


class Settled(Job, frozen=True):
    """Nothing to do at all: preparing the step gave its output."""

    performed: ClassVar[bool] = False
    output: JSON
    summary: str = ""
    warning: Failure | None = None
    """What is to be told although the step completed."""


class StepReply(Struct, frozen=True):
    """What a person said: a decision about an approval, or the text that answers a question."""

    decision: str
    by: str
    comment: str | None = None
    edited: JSON = None
    text: str | None = None


A = TypeVar("A")
B = TypeVar("B", bound=Body)
J = TypeVar("J", bound=Job)


class Preparation(Struct, frozen=True):
    """A step about to start: the names its templates see, its `inputs` looked up."""

    values: Values
    node: Node
    names: dict[str, JSON]
    inputs: dict[str, JSON]

    @property
    def now(self) -> int:
        """The time by the log, in milliseconds since the epoch."""
        return self.values.now


class Execution(Struct, Generic[J], frozen=True):
    """What one execution of a step works on, and where."""

    start: Start
    node: Node
    job: J
    place: Place
    progress: Tell


class NeededAgreement(Struct, frozen=True):
    """What a person has to agree to before a step goes on, and all that there is to see of it."""

    question: str
    show: str


class Outcome(Struct, frozen=True):
    """How an execution ended: `output` when `error` is None."""

    output: JSON = None
    error: Failure | None = None
    summary: str = ""
    """In the agent's own words, where it gives any."""
    usage: Usage | None = None
    warning: Failure | None = None
    """What went wrong without keeping the step from an output."""
    evidence: tuple[WorkspaceFact, ...] = ()
    """What happened to the workspace, for the log."""
    holds: bool = False
    """The error is no end: something outside has to change first. The run pauses, and says so."""
    asks: NeededAgreement | None = None
    """Neither: a person has to agree first; then another execution goes on."""
    unsettled: str = ""
    """The session whose workspace stays until the log has this outcome; then it must be settled."""

    @property
    def has_published(self) -> bool:
        """Whether there are files of it beside the project."""
        from fanfold.runtime.records.evidence import Published  # most runs have no facts

        return any(isinstance(fact, Published) for fact in self.evidence)


class Granted(Struct, frozen=True):
    """What the user's own configuration, and nothing else, lets steps do."""

    deliver_unasked: bool
    """Deliveries need no asking."""
    variables: frozenset[str]
    """Names of variables of the user's environment that commands may have."""


class Services:
    """What a run offers to the steps it performs."""

    def __init__(
        self,
        store: Store,
        supervisor: Supervisor,
        frozen: Frozen,
        make_functions: Callable[[], FunctionProcesses],
        programs: Programs,
        journal: Journal,
        isolation: Isolation,
        granted: Granted,
    ) -> None:
        self.store = store
        self.supervisor = supervisor
        self.frozen = frozen
        self._make_functions = make_functions
        self.programs = programs
        self.journal = journal
        """Where the owner of the tree writes, and so its sessions."""
        self.isolation = isolation
        self.granted = granted
        self.memory = isolation.project / ".fanfold"
        """The project's `.fanfold`."""
        self._session_roles: dict[tuple[object, ...], Role] = {}

    @cached_property
    def functions(self) -> FunctionProcesses:
        """Those of the run's functions; there are none before one is called."""
        return self._make_functions()

    async def end_functions(self) -> None:
        if "functions" in self.__dict__:
            await self.functions.aclose()

    def session_role(self, step: Step, said: AgentBody) -> Role:
        """The role of an agent step as its session has it; made once for all that say the same."""
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
    """How a step is shown: as what kind of thing, and who or what does it."""

    kind: str
    who: str


class StepType(ABC, Generic[A, J]):
    """Everything the host has to know of steps of one type, which say `A` and become a job `J`."""

    name: str
    starts_programs: ClassVar[bool] = False
    """Whether its steps need a sandbox to work at all."""
    settled: ClassVar[bool] = False
    """Whether its steps are over as soon as they are decided: their job is a `Settled`, and takes no time."""
    waiting: ClassVar[str] = "waits"
    """What a step does that waits, in words that follow its name."""

    @abstractmethod
    def read(self, step: Step) -> A:
        """What a step of this type says."""

    # Before it starts

    def label(self, _step: Step, _said: A) -> StepLabel:
        """How it is shown in drawings, dry runs and live views."""
        return StepLabel(self.name, self.name)

    def declare(self, _step: Step, _said: A) -> str:
        """What the one question before a run has to name, in words that follow the step's id; or nothing."""
        return ""

    @abstractmethod
    def prepare(self, step: Preparation, said: A) -> J:
        """The job of a step that is about to start; raises `UnresolvedPath`."""

    def circumstances(self, _frozen: Frozen, _said: A) -> JSON:
        """What decides about its output besides what it says and its job, for `cache`."""
        return None

    # When it has

    async def perform(self, _services: Services, _execution: Execution[J]) -> Outcome:
        """Do the work, if any. Being cancelled means: end all that this job started, and only then raise."""
        raise BugError("step.no_work", f"a {self.name} step has no work to be performed")

    def rescue(self, _node: Node, _job: J, outcome: Outcome) -> Outcome:
        """What becomes of an execution that failed: usually just that."""
        return outcome

    def task(self, _job: J) -> str:
        """What the work is, in words for the log and for an agent that settles its conflicts."""
        return self.name

    def who(self, _job: J) -> str:
        """The role that was picked for the work, where that is known only now; empty otherwise."""
        return ""

    def answer(self, step: Preparation, _said: A, _reply: StepReply) -> Outcome:
        """What a person's reply makes of a step that waits; `AuthorError` when it is no answer to it."""
        raise AuthorError("approval.not_one", f"{step.node.path} is not an approval but a {self.name} step")

    def at_timeout(self, _said: A) -> JSON:
        """The output of a step that waited until its time was over and completes then."""
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
    """What an execution of a step fails with."""
    return Failure(kind, code, message, hint, retryable, node.path, start.attempt)


def value_of(value: Output, names: dict[str, JSON]) -> JSON:
    """A reference keeps its type, a template is text, a literal is itself."""
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


def render_sets(node: Node, names: dict[str, JSON]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The read-set and write-set of an instance, with item and inputs put in."""
    read = tuple(pattern_of(pattern, names) for pattern in node.step.read_set)
    return read, tuple(pattern_of(pattern, names) for pattern in node.step.write_set)


def pattern_of(template: str, names: Mapping[str, JSON]) -> str:
    """A pattern of a set. Its wildcards are the author's alone: what is put in stands for itself."""
    return "".join(
        part if isinstance(part, str) else escape(render((part,), names)) for part in parse_template(template)
    )
