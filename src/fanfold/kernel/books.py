"""What a log says, kept apart from the kernel's state: the books that `invariants` holds the state against.

They are kept from the events alone; of the state only the shape of the tree is used (which steps there are
and what their recipe says). What a single event already shows to be wrong is told while it is noted.
"""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.kernel.events import (
    Added,
    CancelRequested,
    Created,
    EndRequested,
    Finished,
    Raised,
    Resumed,
    ResumeRequested,
    Settings,
    StepEvent,
    SubagentEvent,
    WorkflowEvent,
)
from fanfold.kernel.lifecycle import EVENT_WORDS, TERMINAL
from fanfold.kernel.nodes import LEAF, Node, Run

Address = tuple[str, str]
"""(run id, path in that run)"""


class Attempt:
    """One attempt as the log tells it: executions begun, results given."""

    __slots__ = ("executions", "results")

    def __init__(self) -> None:
        self.executions = 0
        self.results = 0


class Books:
    """What the events of one run tree told so far."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.log_seq: dict[str, int] = {}
        self.tree_seq = 0
        self.epoch = 0
        self.status: dict[Address, str] = {}
        """Terminal status by address."""
        self.skip_reason: dict[Address, str] = {}
        self.attempts: dict[tuple[str, str, int], Attempt] = {}
        self.live: dict[Address, Node] = {}
        """Attempts begun and not ended; interrupted ones too, unless they wait for a person."""
        self.open = False
        """Whether this is an open run, and whether anything ended it yet."""
        self.growing = False
        self.interrupted: dict[Address, Node] = {}
        """Steps of an open run that lost their process, until somebody asks for them."""
        self.closed: set[Address] = set()
        self.agents = 0
        self.max_agents = 0
        self.max_tokens: int | None = None
        self.max_micro_usd: int | None = None
        self.tokens = 0
        self.micro_usd = 0
        self.last: Node | None = None
        """The node of the event just noted."""

    def note_run(self, run: Run, data: WorkflowEvent) -> Iterator[tuple[int, str]]:
        if isinstance(data, Created) and data.plan is not None:
            self.open = self.growing = data.plan.open
            self.settings = data.limits()
            self.max_agents = self.settings.max_agents
            self.max_tokens = self.settings.budget_tokens
            self.max_micro_usd = self.settings.budget_micro_usd
        elif isinstance(data, Resumed):
            if self.open:
                self.interrupted |= self.live
                self.live.clear()
            self._note_raised(data.raised or Raised())
        elif isinstance(data, ResumeRequested):
            self.interrupted.pop((run.id, data.step), None)
        elif isinstance(data, EndRequested) or (isinstance(data, CancelRequested) and run.parent is None):
            self.growing = False
        elif isinstance(data, Added):
            for name in data.step.after:
                if (run.id, name) in self.closed:
                    yield 10, f"{data.step.id} was added behind {name}, which is closed"
        elif isinstance(data, Finished) and run.parent is None and self.growing and run.ending != "stop":
            yield 10, f"run {run.id} is open and ended by itself"

    def _note_raised(self, raised: Raised) -> None:
        self.max_agents = max(self.max_agents, raised.max_agents or 0)
        if raised.budget_tokens is not None:
            self.max_tokens = max(self.max_tokens or 0, raised.budget_tokens)
        if raised.budget_micro_usd is not None:
            self.max_micro_usd = max(self.max_micro_usd or 0, raised.budget_micro_usd)

    def note_step(self, run: str, node: Node, data: StepEvent | SubagentEvent) -> Iterator[tuple[int, str]]:
        word = EVENT_WORDS.get(data.status, data.status)
        address = (run, data.step)
        before = self.status.get(address)
        if data.usage is not None:
            self.tokens += data.usage.tokens
            self.micro_usd += data.usage.micro_usd or 0
        if word == "closed":
            self.closed.add(address)
        if data.late or word in ("queued", "closed"):
            return
        if before is not None:
            number = 6 if word == "started" else 10
            yield number, f"{data.step} is {before} and still took {word!r}"
        attempt = self.attempts.setdefault((run, data.step, data.attempt), Attempt())
        if word == "started":
            yield from self._note_start(address, data, attempt, node)
        elif word == "interrupted" and self.open:
            self.interrupted[address] = self.live.pop(address)
        elif word == "held":  # nobody is at it, also where it had begun before
            self.live.pop(address, None)
        elif word in TERMINAL:
            self._note_end(address, data, attempt, word, node)
            if attempt.results > 1:
                yield 5, f"{data.step}: attempt {data.attempt} has {attempt.results} results"

    def _note_start(
        self, address: Address, data: StepEvent | SubagentEvent, attempt: Attempt, node: Node
    ) -> Iterator[tuple[int, str]]:
        attempt.executions += 1
        if data.execution != attempt.executions:
            yield 5, f"{data.step}: execution {data.execution} follows {attempt.executions - 1}"
        if address in self.interrupted:
            yield 12, f"{data.step} was interrupted and goes on although nobody asked for it"
        if node.kind == LEAF:
            self.live[address] = node
            if data.execution == 1 and node.step.traits.role is not None:
                self.agents += 1

    def _note_end(
        self, address: Address, data: StepEvent | SubagentEvent, attempt: Attempt, word: str, node: Node
    ) -> None:
        if attempt.executions:
            attempt.results += 1
        self.live.pop(address, None)
        self.interrupted.pop(address, None)
        if node.status in TERMINAL:
            self.status[address] = word
            self.skip_reason[address] = data.reason
