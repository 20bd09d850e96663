"""Orders and outcomes: the work of one execution of a step, and its result, as plain data.

The driver makes an order when a step starts, and an executor returns the outcome. Neither refers to the state
of the kernel, so both can be encoded, sent to another process and decoded there.

Rules
* A job contains everything that its work needs and refers to nothing that can change.
* An order names sessions and stored values by their address. The executor reads them from the store.
* An outcome is a value: a result, or a failure with its class.
"""

from __future__ import annotations

import shlex
from typing import ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

from fanfold.agents.backend import SentText
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON, Step
from fanfold.steps.ids import session_id
from fanfold.steps.records import ArtifactsPublished, WorkspaceFact
from fanfold.workspace.artifacts import NOTHING_SEEN, ArtifactView


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
    child: str = ""
    """The id of the child run, once it is chosen."""


class GroupJob(Job, frozen=True):
    """A job without work: the kernel runs the steps of the group."""

    performed: ClassVar[bool] = False


class SettledJob(Job, frozen=True):
    """A job without work: the preparation of the step produced its output."""

    performed: ClassVar[bool] = False
    output: JSON
    summary: str = ""
    warning: Failure | None = None
    """A warning to report although the step completed."""


class EarlierTurn(Struct, frozen=True, omit_defaults=True):
    """An earlier turn of the conversation that an agent step continues."""

    path: str
    session: str = ""
    """The session of the turn; empty if the turn never started."""
    prompt: str = ""
    """The message to a turn that never started, as a template."""
    proposal: str = ""
    """The session whose proposed changes must be applied before the next turn can see them, if any."""


J_co = TypeVar("J_co", bound=Job, covariant=True)


class Order(Struct, Generic[J_co], frozen=True, kw_only=True, omit_defaults=True):
    """The work of one execution of a step."""

    root: str
    """The id of the root run of the tree."""
    run: str
    run_path: str = ""
    """The execution path of the run in its tree; empty for the root run."""
    path: str
    attempt: int
    execution: int
    step: Step
    job: J_co
    read_set: tuple[str, ...] = ()
    write_set: tuple[str, ...] = ()
    config: str = ""
    """The blob of the configuration that the step was added with; empty: the configuration of the run."""
    home: str
    """The session that owns the workspace: an earlier one if the step continues in a turn's workspace."""
    turns: tuple[EarlierTurn, ...] = ()
    """The turns before this one, oldest first."""
    interrupted: str = ""
    """The session of the attempt before this one, if it was interrupted: its conversation may continue."""
    agreed: bool = False
    """Whether a person approved the work that an earlier execution prepared."""
    in_open_run: bool = False
    texts: tuple[SentText, ...] = ()
    """The texts that people sent to the step so far, for an execution in another process."""

    @property
    def session(self) -> str:
        """The id of the session of this attempt."""
        return session_id(self.run, self.path, self.attempt)

    def in_tree(self, path: str) -> str:
        """The tree path of a step of the same run."""
        return f"{self.run_path}/{path}" if self.run_path else path

    @property
    def tree_path(self) -> str:
        """The path of the step from the root of its tree."""
        return self.in_tree(self.path)

    @property
    def typed_path(self) -> str:
        """The tree path of the step, quoted for a shell."""
        return shlex.quote(self.tree_path)

    @property
    def is_shared_writer(self) -> bool:
        """Whether the step writes directly to the project tree, as in `kernel.state.is_shared_writer`."""
        step = self.step
        return step.posture == "writer" and step.workspace_mode == "shared" and bool(self.write_set)

    def failure(self, kind: str, code: str, message: str, hint: str = "", retryable: bool = True) -> Failure:
        """The failure of this execution."""
        return Failure(kind, code, message, hint, retryable, self.path, self.attempt)


class NeededAgreement(Struct, frozen=True):
    """A question that a person must approve before a step continues, with the details to show."""

    question: str
    show: str
    call: str = ""
    """The call of an agent that asks; its answer is a text, not an approval."""


class Outcome(Struct, frozen=True, omit_defaults=True):
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
        return any(isinstance(fact, ArtifactsPublished) for fact in self.evidence)
