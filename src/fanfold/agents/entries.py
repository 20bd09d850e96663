"""The records of a session: one struct for each kind of entry, and live updates that are not recorded.

Rules
* An entry is a fact of the conversation, in the order in which it became known. The state of a session is
  read from its entries alone, so they contain everything that it needs to continue.
* The stored form of an entry is its struct as JSON, with its type in `kind`. Fields that are not set are not
  written.
* `output` is set only on the entry that ends a session or a stage. None is a valid output. A log stores it
  once, as the output of the step, and refers to it in `output_blob`. Readers of entries get the output
  itself.
* Entries of a pipeline's stage have its number. A session without stages has none.
"""

# Annotations are not strings here. A reader of a log would have to compile each of them, which takes longer
# than reading a short log.
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON

Output: TypeAlias = JSON | UnsetType


class _SessionEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    stage: int = 0


class UserInput(_SessionEntry, frozen=True, tag="input"):
    """A prompt for the agent."""

    text: str


class UserMessage(_SessionEntry, frozen=True, tag="message"):
    """A message that a person sent to a running agent. It does not start a new turn."""

    text: str
    by: str = ""
    number: int = 0
    """Its number among the messages and answers that were sent to the step."""


class RequestedCall(Struct, frozen=True):
    """A call that a model requests."""

    id: str
    tool: str
    args: JSON


class Response(_SessionEntry, frozen=True, tag="response"):
    """The response of a model, or of a script in its place."""

    model: str = ""
    text: str = ""
    tool_calls: tuple[RequestedCall, ...] = ()
    usage: Usage | None = None
    message: dict[str, Any] | None = None
    """The rest of the provider's response, unchanged (ids, signatures of reasoning). The provider needs it
    when the conversation continues."""
    withheld: tuple[str, ...] = ()
    """Calls whose arguments contained a secret; their recorded form cannot be run."""
    output: Output = UNSET
    output_blob: str = ""


class Compaction(_SessionEntry, frozen=True, tag="compaction"):
    """A model's summary of its own work; it replaces everything before it, unless it is empty."""

    model: str = ""
    text: str = ""
    usage: Usage | None = None


class FailedRequest(_SessionEntry, frozen=True, tag="failed_request"):
    """A request to a model without a usable response; not part of the conversation."""

    model: str = ""
    kind: str = field(default="", name="class")
    code: str = ""
    message: str = ""
    count: int = 1
    """Number of failed requests for the same response so far."""
    next_at: int = 0
    """When it is retried, in milliseconds since the epoch; 0: not by this session."""
    usage: Usage | None = None
    """Its cost despite the failure."""

    @property
    def words(self) -> str:
        """The state of the request in a live view."""
        if not self.next_at:
            return f"{self.kind}: {self.message}"
        wait_s = max(0.0, self.next_at / 1_000 - time.time())
        return f"{self.kind}, tries again in {wait_s:.0f} s ({self.count} failed)"


class QueuedRequest(_SessionEntry, frozen=True, tag="queued_request"):
    """A request to a model that waits until the provider accepts it; not part of the conversation."""

    model: str = ""
    message: str = ""
    next_at: int = 0
    """The earliest time of the request, in milliseconds since the epoch; 0: as soon as there is a slot."""


class AgentBegin(_SessionEntry, frozen=True, tag="agent"):
    """A program starts or continues the task; has the id of its own conversation."""

    program: str
    version: str = ""
    conversation: str = ""
    """The program's id of the conversation, used to continue it."""
    home: str = ""
    """The session whose folder contains the conversation."""
    anew: str = ""
    """Why the task starts again although it had started before."""


class ToolCall(_SessionEntry, frozen=True, tag="tool_call"):
    """A mutating call that is about to run."""

    id: str
    tool: str
    args: JSON = None


class ToolError(Struct, frozen=True, omit_defaults=True):
    """Why a call failed."""

    code: str
    message: str
    hint: str = ""
    kind: str = field(default="", name="class")

    @property
    def refused(self) -> bool:
        """Whether the call was denied, as opposed to impossible."""
        return self.kind in ("permission", "violation")


class SavedTree(Struct, frozen=True):
    """The files of a session as a git pack in the store: another machine can continue with them."""

    tree: str
    base: str
    """The tree that the session started from. The pack contains the differences."""
    parts: tuple[str, ...]


class ToolResult(_SessionEntry, frozen=True, tag="tool_result"):
    """The outcome of a call: a result, an error, or unknown."""

    id: str
    tool: str
    result: Output = UNSET
    error: ToolError | None = None
    outcome: Literal["", "unknown"] = ""
    note: str = ""
    """Text that Fanfold adds to the result for the agent."""
    complaint: str = ""
    """For an invalid answer: the problem."""
    output: Output = UNSET
    output_blob: str = ""
    files: SavedTree | None = None
    """The files after a mutating call, for a session on a worker without a checkout."""


class StageBegin(_SessionEntry, frozen=True, tag="stage"):
    """The start of a stage, for readers of the log, because the input is the task of all stages."""

    name: str = ""
    prompt: str = ""


class StageEnd(_SessionEntry, frozen=True, tag="stage_end"):
    """The output of a finished stage."""

    output: Output = UNSET
    output_blob: str = ""
    usage: Usage | None = None


Entry: TypeAlias = (
    UserInput
    | UserMessage
    | Response
    | Compaction
    | FailedRequest
    | QueuedRequest
    | AgentBegin
    | ToolCall
    | ToolResult
    | StageBegin
    | StageEnd
)
Ending: TypeAlias = Response | ToolResult | StageEnd
"""Entries that can have an output."""
E = TypeVar("E", bound=Entry)


def since_last_input(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries of the current turn: everything after the last input."""
    for at in range(len(entries) - 1, -1, -1):
        if isinstance(entries[at], UserInput):
            return entries[at + 1 :]
    return entries


def paid_in(entry: Entry) -> Usage | None:
    """Return the cost of an entry; the end of a stage only sums up entries before it."""
    return entry.usage if isinstance(entry, Response | Compaction | FailedRequest) else None


def redacted(entry: E, clean: Callable[[JSON], JSON]) -> E:
    """Return the entry with all its content cleaned; the same object if nothing changed."""
    plain = msgspec.to_builtins(entry)
    cleaned = clean(plain)
    return entry if cleaned is plain else msgspec.convert(cleaned, type(entry))


# Live updates: the current activity of an agent, for live views. They are never recorded, apart from failed
# and waiting requests: the supervisor reports these entries as live updates too.


class TextDelta(Struct, frozen=True, tag_field="kind", tag="text"):
    """More text of a response; empty: the agent is alive."""

    delta: str


class AskingFor(Struct, frozen=True, tag_field="kind", tag="calling"):
    """A model is requesting a tool."""

    tool: str


class Calling(Struct, frozen=True, tag_field="kind", tag="tool_call"):
    """A tool is running; `about` is its most informative argument, a path or a command."""

    tool: str
    about: str = ""


class UsageUpdate(Struct, frozen=True, tag_field="kind", tag="spent"):
    """The number of tokens used so far."""

    tokens: int


class Preparing(Struct, frozen=True, tag_field="kind", tag="preparing"):
    """Work besides the agent takes time: its workspace, the merge, a server; empty: it has finished."""

    what: str = ""


class Fallback(Struct, frozen=True, tag_field="kind", tag="fallback"):
    """A model does not respond, and another one is used."""

    model: str = field(name="from")
    kind: str = field(name="class")


class Compacting(Struct, frozen=True, tag_field="kind", tag="compacting"):
    """The conversation is being summarized."""


class StageNews(Struct, frozen=True, tag_field="kind", tag="stage"):
    """A stage of a pipeline starts."""

    stage: int
    of: int
    name: str = ""


News: TypeAlias = (
    TextDelta
    | AskingFor
    | Calling
    | UsageUpdate
    | Preparing
    | FailedRequest
    | QueuedRequest
    | Fallback
    | Compacting
    | StageNews
)


class LiveUpdate(Struct, frozen=True):
    """A live update of a step, for other processes and machines."""

    run: str
    step: str
    news: News


MAX_ABOUT_CHARS = 200


def calling(tool: str, args: object, clean: Callable[[str], str] = str) -> Calling:
    """Return the update for a call, with its first text or list argument; `clean` removes secrets."""
    values = args.values() if isinstance(args, dict) else ()
    words = (" ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    about = next((word for word in words if isinstance(word, str)), "")
    return Calling(tool, clean(about[:MAX_ABOUT_CHARS]))


# -----------------------------------------------------------------------------------------------------------
# Detects agents that call tools without progress.
#
# A call is progress if it succeeds, and its tool, arguments and result are a new combination in this turn.
# Two kinds of calls count neither way: calls of tools that wait for others (`wait_agent` …), and calls whose
# arguments a program does not report.
#
# Rules
# * The same call with the same result `MAX_REPEATS` times since the last progress, or `MAX_IDLE_CALLS` calls
#   without any, is a loop.
# * The first loop of a turn is a warning, which the agent reads with the result of its call. The second fails
#   the step (`agent.loop`). An agent that is a program cannot be warned: only its second loop has an effect.
# * A session that continues after a crash processes its recorded entries again, and so has the same state.

MAX_REPEATS = 5
MAX_IDLE_CALLS = 25
WAITING_TOOLS = ("wait_agent", "workflow_status", "list_agents")
WARNING = (
    "You repeat calls that you made before, or make calls that fail. Nothing changes by that: do something"
    " else, or finish and state what you could not do. If you continue like this, the step fails."
)
NOT_KNOWN = b"null"
Verdict: TypeAlias = Literal["", "warn", "stop"]
_encode = msgspec.json.Encoder(order="sorted").encode


class CallLoops:
    """The calls of one turn of an agent, from its entries."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._arguments: dict[str, bytes] = {}
        self._seen: set[int] = set()
        self._repeats: dict[int, int] = {}
        """How often each call had the same result since the last progress."""
        self._idle = 0
        self._warned = False
        self._loop = ""
        """What the agent did in the last loop."""
        for entry in entries:
            self.observe(entry)

    def observe(self, entry: Entry) -> Verdict:
        """Process the next entry; return the verdict on the call whose result it is."""
        if isinstance(entry, Response):
            self._arguments = {call.id: _encode(call.args) for call in entry.tool_calls}
        elif isinstance(entry, ToolCall):
            self._arguments[entry.id] = _encode(entry.args)
        elif isinstance(entry, ToolResult) and entry.output is UNSET and not entry.complaint:
            arguments = self._arguments.get(entry.id, NOT_KNOWN)
            if arguments == NOT_KNOWN or entry.tool.endswith(WAITING_TOOLS):
                return ""
            outcome = _encode((entry.error, None if entry.result is UNSET else entry.result, entry.outcome))
            call = hash((entry.tool, arguments, outcome))
            if entry.error is None and call not in self._seen:
                self._seen.add(call)
                self._repeats, self._idle = {call: 1}, 0
                return ""
            self._idle += 1
            self._repeats[call] = self._repeats.get(call, 0) + 1
            if self._repeats[call] < MAX_REPEATS and self._idle < MAX_IDLE_CALLS:
                return ""
            self._loop = f"made calls without progress ({entry.tool} …)"
            if self._repeats[call] >= MAX_REPEATS:
                self._loop = f"repeated one call of {entry.tool}"
            verdict: Verdict = "stop" if self._warned else "warn"
            self._warned, self._repeats, self._idle = True, {}, 0
            return verdict
        return ""

    def failure(self) -> Failure:
        """Return the failure of a step whose agent did not stop."""
        message = f"its agent {self._loop}, even after a warning"
        hint = "read its transcript, then change the prompt, its tools or its model"
        return Failure("agent", "agent.loop", message, hint, retryable=False)
