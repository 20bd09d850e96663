"""What a step type is to the host: how its steps are prepared and performed.

One module of this folder is one type. It owns the job of its steps (every template rendered, every value
looked up) and how that job is carried out. `registry` lists the types; whoever deals with steps of every
kind asks it and looks into no action itself.

Rules
* A job holds all that its work needs and refers to nothing that can change.
* Whatever cannot be rendered fails the step before it starts, with the place and the reason.
* An outcome is a value: a result, or a failure with its class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from msgspec import Struct

from fanfold.agents.entries import News
from fanfold.kernel.commands import Start
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, Step
from fanfold.runtime.places.isolation import Place
from fanfold.runtime.records.frozen import Frozen
from fanfold.runtime.records.values import Values
from fanfold.runtime.steps.programs import Programs
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.journal import Journal
from fanfold.store.protocol import Store

Tell = Callable[[News], None]


class Job(Struct, frozen=True):
    """The work of one step, ready to be done."""

    performed: ClassVar[bool] = True
    """False where the start event is all there is to do: the kernel or a person goes on from there."""


A = TypeVar("A")
J = TypeVar("J", bound=Job)


class Preparation(NamedTuple):
    """A step about to start: the names its templates see, its `inputs` looked up."""

    values: Values
    node: Node
    names: dict[str, JSON]
    inputs: dict[str, JSON]


class Execution(NamedTuple, Generic[J]):
    """What one execution of a step works on, and where."""

    start: Start
    node: Node
    job: J
    place: Place
    progress: Tell


class Outcome(Struct, frozen=True):
    """How an execution ended: `output` when `error` is None."""

    output: JSON = None
    error: Failure | None = None
    summary: str = ""
    """In the agent's own words, where it gives any."""
    usage: Usage | None = None
    evidence: tuple[dict[str, Any], ...] = ()
    """What happened to the workspace, for the log."""
    unsettled: str = ""
    """The session whose workspace stays until the log has this outcome; then it must be settled."""


class Services:
    """What a run offers to the steps it performs."""

    def __init__(
        self,
        store: Store,
        supervisor: Supervisor,
        frozen: Frozen,
        find_handler: Callable[[str], Callable[..., Any]],
        programs: Programs,
        journal: Journal,
    ) -> None:
        self.store = store
        self.supervisor = supervisor
        self.frozen = frozen
        self.find_handler = find_handler
        self.programs = programs
        self.journal = journal
        """Where the owner of the tree writes, and so its sessions."""


class StepLabel(NamedTuple):
    """How a step is shown: as what kind of thing, and who or what does it."""

    kind: str
    who: str


class StepType(Generic[A, J]):
    """Everything the host has to know of steps of one type, which say `A` and become a job `J`."""

    starts_programs: ClassVar[bool] = False
    """Whether its steps need a sandbox to work at all."""

    def read(self, step: Step) -> A:
        """What a step of this type says."""
        raise NotImplementedError

    def label(self, step: Step, said: A) -> StepLabel:
        """How it is shown in drawings, dry runs and live views."""
        raise NotImplementedError

    def declare(self, _step: Step, _said: A) -> str:
        """What the one question before a run has to name, in words that follow the step's id; or nothing."""
        return ""

    def prepare(self, step: Preparation, said: A) -> J:
        """The job of a step that is about to start; raises `UnresolvedPath`."""
        raise NotImplementedError

    def needs_place(self, _node: Node) -> bool:
        """Whether the work happens in a workspace."""
        return True

    async def perform(self, services: Services, execution: Execution[J]) -> Outcome:
        """Do the work. Being cancelled means: end everything this job started, and only then raise."""
        raise NotImplementedError

    def task(self, job: J) -> str:
        """What the work is, in words for an agent that settles its conflicts."""
        raise NotImplementedError


def failure(
    node: Node, start: Start, kind: str, code: str, message: str, hint: str = "", retryable: bool = True
) -> Failure:
    """What an execution of a step fails with."""
    return Failure(kind, code, message, hint, retryable, node.path, start.attempt)
