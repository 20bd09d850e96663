"""What a session records: one struct for each kind of entry, and the news that nobody records.

Rules
* An entry is a fact of the conversation, in the order it became known. Where a session stands is read from
  its entries alone, so whatever it needs to go on is in them.
* The stored form of an entry is its struct as JSON, told apart by `kind`. What is not set is not written.
* `output` is set on the entry that ends a session or a stage, and on no other; None is an output too. A log
  keeps it once, as the value that the step puts out, and names that in `output_blob`; who reads entries gets
  the output itself.
* Entries of a pipeline's stage carry its number. A session without stages has none.
"""

# Annotations are no texts here: whoever reads a log would compile each of them, which takes longer than
# reading a short one.
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fanfold.kernel.events import Usage
from fanfold.kernel.plan import JSON

Output: TypeAlias = JSON | UnsetType


class _SessionEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    stage: int = 0


class UserInput(_SessionEntry, frozen=True, tag="input"):
    """Somebody spoke to the agent."""

    text: str


class RequestedCall(Struct, frozen=True):
    """A call that a model asks for."""

    id: str
    tool: str
    args: JSON


class Response(_SessionEntry, frozen=True, tag="response"):
    """A model, or a script in its place, answered."""

    model: str = ""
    text: str = ""
    tool_calls: tuple[RequestedCall, ...] = ()
    usage: Usage | None = None
    message: dict[str, Any] | None = None
    """The rest of the provider's response as it came (ids, signatures of reasoning): it wants its own words
    back when the conversation goes on."""
    withheld: tuple[str, ...] = ()
    """Calls whose arguments held a secret: what is recorded of them cannot be carried out."""
    output: Output = UNSET
    output_blob: str = ""


class Compaction(_SessionEntry, frozen=True, tag="compaction"):
    """A model summed its own work up. What it said replaces everything before, unless it said nothing."""

    model: str = ""
    text: str = ""
    usage: Usage | None = None


class AgentBegin(_SessionEntry, frozen=True, tag="agent"):
    """A program begins to work on the task, or goes on with it; what its own conversation is called."""

    program: str
    version: str = ""
    conversation: str = ""
    """The program's own id of it, by which it goes on."""
    home: str = ""
    """The session whose folder the program keeps it in."""
    anew: str = ""
    """Why it begins again although it had begun before."""


class ToolCall(_SessionEntry, frozen=True, tag="tool_call"):
    """A call that may change something is about to be made."""

    id: str
    tool: str
    args: JSON = None


class ToolError(Struct, frozen=True, omit_defaults=True):
    """Why a call did not do what was asked."""

    code: str
    message: str
    hint: str = ""
    kind: str = field(default="", name="class")


class ToolResult(_SessionEntry, frozen=True, tag="tool_result"):
    """What came of a call: a result, an error, or nobody knows."""

    id: str
    tool: str
    result: Output = UNSET
    error: ToolError | None = None
    outcome: Literal["", "unknown"] = ""
    complaint: str = ""
    """For an answer that was handed in and does not fit: what is wrong with it."""
    output: Output = UNSET
    output_blob: str = ""


class StageBegin(_SessionEntry, frozen=True, tag="stage"):
    """A stage of a pipeline begins; for whoever reads the log, since the input is the task of all stages."""

    name: str = ""
    prompt: str = ""


class StageEnd(_SessionEntry, frozen=True, tag="stage_end"):
    """A stage has put something out."""

    output: Output = UNSET
    output_blob: str = ""
    usage: Usage | None = None


Entry: TypeAlias = (
    UserInput | Response | Compaction | AgentBegin | ToolCall | ToolResult | StageBegin | StageEnd
)
Ending: TypeAlias = Response | ToolResult | StageEnd
"""Entries that may hold an output."""
E = TypeVar("E", bound=Entry)


def since_last_input(entries: Sequence[Entry]) -> Sequence[Entry]:
    """What was recorded in the turn under way: everything behind the last input."""
    for at in range(len(entries) - 1, -1, -1):
        if isinstance(entries[at], UserInput):
            return entries[at + 1 :]
    return entries


def paid_in(entry: Entry) -> Usage | None:
    """What was paid for an entry; the end of a stage only sums up what was counted before."""
    return entry.usage if isinstance(entry, Response | Compaction) else None


def redacted(entry: E, clean: Callable[[JSON], JSON]) -> E:
    """The entry with everything in it cleaned; the same object when nothing was changed."""
    plain = msgspec.to_builtins(entry)
    cleaned = clean(plain)
    return entry if cleaned is plain else msgspec.convert(cleaned, type(entry))


# News: what an agent does at this moment, for live views. Never recorded.


class TextDelta(Struct, frozen=True, tag_field="kind", tag="text"):
    """A few more words of a response; without any, a sign of life."""

    delta: str


class AskingFor(Struct, frozen=True, tag_field="kind", tag="calling"):
    """A model is asking for a tool."""

    tool: str


class Calling(Struct, frozen=True, tag_field="kind", tag="tool_call"):
    """A tool is being called; `about` is its most telling argument, a path or a command."""

    tool: str
    about: str = ""


class Spent(Struct, frozen=True, tag_field="kind", tag="spent"):
    """So many tokens were paid for by now."""

    tokens: int


class Preparing(Struct, frozen=True, tag_field="kind", tag="preparing"):
    """Something else than the agent takes time: its workspace, the merge, a server; no words: it is done."""

    what: str = ""


class Retrying(Struct, frozen=True, tag_field="kind", tag="retrying"):
    """A provider failed and is asked again."""

    kind: str = field(name="class")
    wait_s: float


class Fallback(Struct, frozen=True, tag_field="kind", tag="fallback"):
    """A model does not answer, and another one is asked."""

    model: str = field(name="from")
    kind: str = field(name="class")


class Compacting(Struct, frozen=True, tag_field="kind", tag="compacting"):
    """The conversation is being summed up."""


class StageNews(Struct, frozen=True, tag_field="kind", tag="stage"):
    """A stage of a pipeline begins."""

    stage: int
    of: int
    name: str = ""


News: TypeAlias = (
    TextDelta | AskingFor | Calling | Spent | Preparing | Retrying | Fallback | Compacting | StageNews
)


MAX_ABOUT_CHARS = 200


def calling(tool: str, args: object, clean: Callable[[str], str] = str) -> Calling:
    """That a tool is called, with its first argument that is text or words; `clean` takes secrets out."""
    said = args.values() if isinstance(args, dict) else ()
    words = (" ".join(map(str, one)) if isinstance(one, list) else one for one in said)
    about = next((one for one in words if isinstance(one, str)), "")
    return Calling(tool, clean(about[:MAX_ABOUT_CHARS]))
