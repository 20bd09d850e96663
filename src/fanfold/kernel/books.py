"""What a log says, kept apart from the kernel's state: the books that `invariants` holds the state against.

They are kept from the events alone; of the state only the shape of the tree is used (which steps there are
and what their recipe says). What a single event already shows to be wrong is told while it is noted.
"""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.kernel.events import Created, Resumed, Settings, StepEvent, SubagentEvent, WorkflowEvent
from fanfold.kernel.lifecycle import EVENT_WORDS, TERMINAL
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import AgentAction

Address = tuple[str, str]
"""(run id, path in that run)"""

SLOT_TYPES = ("agent", "function", "command")


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
        """Attempts begun and not ended, interrupted ones included."""
        self.agents = 0
        self.max_agents = 0
        self.max_tokens: int | None = None
        self.max_micro_usd: int | None = None
        self.tokens = 0
        self.micro_usd = 0
        self.last: Node | None = None
        """The node of the event just noted."""

    def note_run(self, data: WorkflowEvent) -> None:
        if isinstance(data, Created) and data.plan is not None:
            self.settings = data.settings or Settings()
            self.max_agents = self.settings.max_agents
            self.max_tokens = self.settings.budget_tokens
            self.max_micro_usd = self.settings.budget_micro_usd
        elif isinstance(data, Resumed) and data.raised is not None:
            raised = data.raised
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
        if data.late or word in ("queued", "input", "closed"):
            return
        if before is not None:
            number = 6 if word == "started" else 10
            yield number, f"{data.step} is {before} and still took {word!r}"
        attempt = self.attempts.setdefault((run, data.step, data.attempt), Attempt())
        if word == "started":
            attempt.executions += 1
            if data.execution != attempt.executions:
                yield 5, f"{data.step}: execution {data.execution} follows {attempt.executions - 1}"
            if node.step.type in SLOT_TYPES:
                self.live[address] = node
                if data.execution == 1 and isinstance(node.step.action, AgentAction):
                    self.agents += 1
        elif word in TERMINAL:
            self._note_end(address, data, attempt, word, node)
            if attempt.results > 1:
                yield 5, f"{data.step}: attempt {data.attempt} has {attempt.results} results"

    def _note_end(
        self, address: Address, data: StepEvent | SubagentEvent, attempt: Attempt, word: str, node: Node
    ) -> None:
        if attempt.executions:
            attempt.results += 1
        self.live.pop(address, None)
        if node.status in TERMINAL:
            self.status[address] = word
            self.skip_reason[address] = data.reason
