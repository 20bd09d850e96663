"""Transcripts: the prompts, replies and tool calls of an agent, as every surface shows them.

Rules
* A transcript is read only from recorded entries. So it is the same for every reader, during the session and
  years later. It contains no secrets, like the log.
* A turn is one response of the model, with its tool calls and their results. The task of the agent comes
  before turn 1.
* A step that continues the conversation of another step shows that conversation first; every entry names its
  step. Turns are counted through the whole conversation, so that each number is unique.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct, structs

from fanfold.agents.entries import (
    AgentBegin,
    Compaction,
    Entry,
    FailedRequest,
    Output,
    QueuedRequest,
    RequestedCall,
    Response,
    StageBegin,
    StageEnd,
    ToolCall,
    ToolError,
    ToolResult,
    UserInput,
    paid_in,
)
from fanfold.agents.instructions import compose, instructions_for, with_limits
from fanfold.agents.role import Role
from fanfold.api.display import StepUsage, step_usage, when
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import COMPLETED, LEAF, READY, RUNNING, TERMINAL, WAITING, Node
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.step_grammar import find_body
from fanfold.sessions.log import read_recorded
from fanfold.steps.agent import AgentJob, asked_of
from fanfold.steps.ids import session_id, settling_ids
from fanfold.steps.records import is_agent, is_lead, session_of, sessions_of, turn_before
from fanfold.steps.run_config import RunConfig
from fanfold.steps.table import Unrenderable, prepare


class TranscriptEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was said or done. `kind`: input, response, failed_request, queued_request, tool_call,
    tool_result, compaction, agent, stage, stage_end. What an entry of its kind does not have is left out.
    """

    kind: str
    at: str | None
    step: str
    """Tree path of the step whose session recorded it."""
    session_id: str
    attempt: int
    turn: int
    stage: int = 0
    """In a pipeline, the number of its stage."""
    name: str = ""
    """The name of a stage, or of the agent program."""
    text: str = ""
    system: str = ""
    """On a stage: its system prompt."""
    model: str = ""
    tool_calls: tuple[RequestedCall, ...] = ()
    id: str = ""
    """The id of a call, or the agent program's id of the conversation."""
    tool: str = ""
    args: Output = UNSET
    result: Output = UNSET
    error: ToolError | None = None
    outcome: str = ""
    """`unknown` if the process died during the call."""
    output: Output = UNSET
    """On the entry that ends a session or a stage: its output."""
    usage: StepUsage | None = None
    count: int = 0
    """On a failed request: number of failed requests for the same response."""
    next_attempt: str | None = None
    """On a failed or queued request: the time of the next attempt."""


class Transcript(Struct, frozen=True, kw_only=True):
    """The conversation of one session, and of those that it goes on with."""

    run_id: str
    root_run_id: str
    step: str
    """Tree path of the step."""
    session_id: str
    role: str
    model: str | None
    """The model of the step; each response names the model that answered."""
    backend: str
    attempt: int
    attempts: int
    """Number of attempts of the step so far."""
    status: str
    """The status of this attempt; `detached` if an unfinished run has no owner."""
    reused_from: str | None
    """The run whose result is reused for this step, or `cache`. Then there is no conversation."""
    settled_by: list[str]
    """Sessions that resolved, or tried to resolve, the conflicts of this attempt."""
    system: str
    """The system prompt."""
    turns: int
    """Turns of this session, without earlier sessions; the same applies to `usage`."""
    usage: StepUsage
    entries: list[TranscriptEntry]

    def __repr__(self) -> str:
        return f"<transcript of {self.step} in run {self.run_id}, {self.status}, {self.turns} turns>"


class SessionRef(Struct, frozen=True):
    """One session of one step, with the facts that determine its system prompt."""

    node: Node
    session_id: str
    attempt: int
    role: Role
    frozen: RunConfig

    @property
    def step(self) -> str:
        return self.node.run.tree_path(self.node.path)


def speaker_of(tree: RunTree, node: Node, attempt: int) -> SessionRef:
    """Return the session of an attempt of an agent step."""
    frozen = tree.frozen(node)
    said = find_body(AgentBody, node.step)
    assert said is not None, "an agent step has the body of one"
    role = frozen.session_role(node.step, said)
    return SessionRef(node, session_id(node.run.id, node.path, attempt), attempt, role, frozen)


def settler_of(tree: RunTree, node: Node, attempt: int, session: str) -> SessionRef:
    """Return the session that resolves the conflicts of an attempt of a step of any type."""
    frozen = tree.frozen(node)
    return SessionRef(node, session, attempt, frozen.resolver_role(node.step), frozen)


def find_speakers(tree: RunTree, session: str) -> Iterator[SessionRef]:
    """Yield the sessions of a tree whose id starts with `session`."""
    for run in tree.state.runs.values():
        for node in run.nodes.values():
            if node.kind != LEAF:
                continue
            for attempt in range(1, node.attempt + 1):
                own = session_id(run.id, node.path, attempt)
                if own.startswith(session) and is_agent(node):
                    yield speaker_of(tree, node, attempt)
                elif session.startswith(own) and session in settling_ids(own):
                    yield settler_of(tree, node, attempt, session)
                elif session.startswith(own) and session in sessions_of(tree.store, node, attempt):
                    yield structs.replace(speaker_of(tree, node, attempt), session_id=session)


class TranscriptBuilder:
    """Builds the entries of a transcript from recorded entries, and counts turns and usage."""

    def __init__(
        self, tree: RunTree, speaker: SessionRef, step: str = "", *, turn: int = 0, until: int | None = None
    ) -> None:
        self._tree = tree
        self._until = until
        """Entries that were recorded later are ignored."""
        self._speaker = speaker
        self._step = step or speaker.step
        self._seq = 0
        self._foretold = False
        """Whether the task was shown before it was recorded."""
        self.turn = turn
        """The number of the last turn. It starts with the last turn of the continued conversation."""
        self.spent = NOTHING_SPENT

    def fresh(self) -> Iterator[TranscriptEntry]:
        """Yield the entries that were recorded since the last call."""
        for envelope, entry in read_recorded(self._tree.store, self._speaker.session_id, self._seq):
            if self._until is not None and envelope.at > self._until:
                break
            self._seq = envelope.seq
            if not (self._foretold and isinstance(entry, UserInput)):
                yield self.tell(envelope.at, entry)
        if not self._seq and not self._foretold:
            task = _task_under_way(self._tree, self._speaker)
            if task is not None:
                self._foretold = True
                yield self.tell(self._speaker.node.started_at, task)

    def tell(self, at: int, entry: Entry) -> TranscriptEntry:
        """Return the transcript entry of one recorded entry."""
        self.turn += isinstance(entry, Response)
        paid = paid_in(entry)
        if paid is not None:
            self.spent += paid
        speaker = self._speaker
        bare = TranscriptEntry(
            kind=str(entry.__struct_config__.tag),
            at=when(at),
            step=self._step,
            session_id=speaker.session_id,
            attempt=speaker.attempt,
            turn=self.turn,
            stage=entry.stage,
        )
        return structs.replace(bare, **self._said(entry))

    def _said(self, entry: Entry) -> dict[str, object]:
        match entry:
            case UserInput():
                return {"text": entry.text}
            case Response() | Compaction():
                said: dict[str, object] = {"model": entry.model, "text": entry.text}
                if isinstance(entry, Response):
                    said |= {"tool_calls": entry.tool_calls, "output": entry.output}
                return {**said, "usage": _usage(entry.usage)}
            case ToolCall():
                return {"id": entry.id, "tool": entry.tool, "args": entry.args}
            case ToolResult():
                call = {"id": entry.id, "tool": entry.tool, "text": entry.complaint, "output": entry.output}
                return {**call, "result": entry.result, "error": entry.error, "outcome": entry.outcome}
            case FailedRequest():
                error = ToolError(entry.code, entry.message, kind=entry.kind)
                found = {
                    "model": entry.model,
                    "error": error,
                    "count": entry.count,
                    "usage": _usage(entry.usage),
                }
                return {**found, "next_attempt": when(entry.next_at)}
            case QueuedRequest():
                waits = {"model": entry.model, "text": entry.message}
                return {**waits, "next_attempt": when(entry.next_at)}
            case AgentBegin():
                known = " ".join(part for part in (entry.program, entry.version) if part)
                return {"name": known, "id": entry.conversation, "text": entry.anew}
            case StageBegin():
                system = system_of(self._speaker, entry.stage)
                return {"name": entry.name, "text": entry.prompt, "system": system}
            case StageEnd():
                return {"output": entry.output, "usage": _usage(entry.usage)}


def _task_under_way(tree: RunTree, speaker: SessionRef) -> UserInput | None:
    """Return the task of a running agent that has not replied yet.

    Its task is recorded together with its first reply. Until then it is derived from the step.
    """
    node = speaker.node
    if node.status != RUNNING or not is_agent(node) or speaker.session_id != session_of(node):
        return None
    try:
        job = prepare(tree.values, node)
    except Unrenderable:
        return None
    if not isinstance(job, AgentJob):
        return None
    taken = speaker.frozen.taken_up.get(speaker.step)
    return UserInput(text=(taken.say if taken is not None else "") or asked_of(speaker.role, job))


def _usage(usage: Usage | None) -> StepUsage | None:
    return None if usage is None else step_usage(usage)


def system_of(speaker: SessionRef, stage: int = 0) -> str:
    """Return the system prompt of a session, or of one of its stages."""
    role, frozen = speaker.role, speaker.frozen
    own = role.instructions
    if stage and stage <= len(role.pipeline):
        wanted = role.pipeline[stage - 1]
        other = frozen.roles.get(wanted.agent) if wanted.agent is not None else None
        own = other.instructions if other is not None else wanted.instructions or own
    node, told = speaker.node, frozen.instructions
    at = datetime.fromtimestamp(node.started_at / 1_000, UTC) if node.started_at else None
    role = structs.replace(role, instructions=own)
    lead = is_lead(node)
    own = with_limits(role, folder="the project's folder", write_set=node.write_set, lead=lead, at=at)
    return compose(own, told.top, instructions_for(told.below, (*node.read_set, *node.write_set)))


def earlier(tree: RunTree, speaker: SessionRef) -> list[TranscriptEntry]:
    """Return the conversation that a session continues, oldest entry first."""
    taken = speaker.frozen.taken_up.get(speaker.step) if is_agent(speaker.node) else None
    if taken is not None:
        before_it = structs.replace(speaker, session_id=taken.session_id, attempt=taken.attempt)
        told = TranscriptBuilder(tree, before_it, taken.step)
        return [told.tell(recorded.at, recorded.entry) for recorded in taken.entries]
    before = turn_before(speaker.node) if is_agent(speaker.node) else None
    if before is None:
        return []
    one = speaker_of(tree, before, max(1, before.attempt))
    entries = earlier(tree, one)
    return [*entries, *TranscriptBuilder(tree, one, turn=last_turn(entries)).fresh()]


def last_turn(entries: list[TranscriptEntry]) -> int:
    """Return the number of the last turn of a conversation."""
    return entries[-1].turn if entries else 0


def transcript_of(tree: RunTree, speaker: SessionRef, *, owned: bool, until: int | None = None) -> Transcript:
    """Return the transcript of a session, up to the time `until` if given.

    `owned`: whether the run has a live owner.
    """
    node, role = speaker.node, speaker.role
    before = earlier(tree, speaker)
    told = TranscriptBuilder(tree, speaker, turn=last_turn(before), until=until)
    own = list(told.fresh())
    settlers = settling_ids(speaker.session_id) if node.step.on_conflict == "resolve" else []
    return Transcript(
        run_id=node.run.id,
        root_run_id=tree.root.id,
        step=speaker.step,
        session_id=speaker.session_id,
        role=role.name,
        model=role.model or speaker.frozen.default_model,
        backend=speaker.frozen.backend_of(role),
        attempt=speaker.attempt,
        attempts=node.attempt,
        status=_status(tree, speaker, owned),
        reused_from=None if own or node.status != COMPLETED else _source(speaker),
        settled_by=[one for one in settlers if next(tree.store.log(one), None) is not None],
        system=system_of(speaker),
        turns=told.turn - last_turn(before),
        usage=step_usage(told.spent),
        entries=[*before, *own],
    )


def _source(speaker: SessionRef) -> str | None:
    """Return the source of a reused result."""
    frozen = speaker.frozen
    return frozen.forked_from if speaker.step in frozen.reused else "cache"


def _status(tree: RunTree, speaker: SessionRef, owned: bool) -> str:
    node = speaker.node
    if speaker.attempt < node.attempt:
        return _ending(tree, node, speaker.attempt)
    if node.status in TERMINAL:
        return "closed" if node.closed else node.status
    if not node.attempt or node.status == READY:
        return "queued"
    if not owned:
        return "detached"
    return RUNNING if node.status in (RUNNING, WAITING) else node.status


def _ending(tree: RunTree, node: Node, attempt: int) -> str:
    """Return how an attempt ended that was followed by another one."""
    for envelope in tree.store.log(node.run.id):
        data = envelope.data
        is_ours = envelope.type == "subagent_event" and data.get("step") == node.path
        if is_ours and data.get("attempt") == attempt and data["status"] in ("failed", "timed_out"):
            return str(data["status"])
    return "failed"


# -----------------------------------------------------------------------------------------------------------
# A transcript as text, for files and terminals
#
# Messages are prefixed with `> `, and arguments and results of tools with four spaces, so that none of them
# can look like a heading. Text for a terminal must also pass through `language.terminal`.


def transcript_text(told: Transcript) -> str:
    """Return the whole transcript as text."""
    entries = TranscriptWriter()
    return "".join([heading(told), *map(entries.text, told.entries), closing(told)])


def heading(told: Transcript) -> str:
    """Return the title with the session, and the system prompt."""
    attempt = f", attempt {told.attempt} of {told.attempts}" if told.attempts > 1 else ""
    by = f"{told.role} on {told.backend}" + (f" ({told.model})" if told.model else "")
    lines = [f"# {told.step}: {told.status}\n", f"\n{by}, session {told.session_id}{attempt}\n"]
    if told.reused_from is not None:
        where = "an earlier run" if told.reused_from == "cache" else f"run {told.reused_from}"
        return "".join([*lines, f"\nIts result was taken from {where}; there was no conversation.\n"])
    lines += ["\n## System\n", *_quoted(told.system)] if told.system else []
    return "".join(lines)


def closing(told: Transcript) -> str:
    """Return the number of turns and the usage."""
    lines: list[str] = []
    if told.entries:
        turns = f"{told.turns} turn{'' if told.turns == 1 else 's'}"
        if before := last_turn(told.entries) - told.turns:
            turns += f" after {before} before"
        lines.append(f"\n{turns}, {_price_of(told.usage)}.\n")
    lines += [f"\nIts conflicts were given to session {session}.\n" for session in told.settled_by]
    return "".join(lines)


class TranscriptWriter:
    """Writes entries in order.

    To keep files short, the arguments of a call are written with the request for it and not repeated when it
    starts.
    """

    def __init__(self) -> None:
        self._asked: dict[str, JSON] = {}

    def text(self, entry: TranscriptEntry) -> str:
        """Return one entry, with a line break before it."""
        told = entry.id in self._asked and entry.args == self._asked[entry.id]
        self._asked |= {call.id: call.args for call in entry.tool_calls}
        return "".join(_entry_lines(entry, args_told=told))


def _entry_lines(entry: TranscriptEntry, *, args_told: bool) -> Iterator[str]:
    title = _TITLES[entry.kind].format(turn=entry.turn, tool=entry.tool, name=entry.name or entry.stage)
    facts = [entry.model, _price_of(entry.usage) if entry.usage else "", (entry.at or "")[11:19]]
    yield f"\n## {title}{''.join(f' · {fact}' for fact in facts if fact)}\n"
    if entry.system:
        yield from ("\nsystem\n", *_quoted(entry.system))
    yield from _quoted(entry.text)
    for call in entry.tool_calls:
        yield from (f"\nasks for {call.tool} ({call.id})\n", *_data(call.args))
    if entry.args is not UNSET and not args_told:
        yield from _data(entry.args)
    if entry.result is not UNSET:
        yield from _data(entry.result)
    if entry.error is not None:
        hint = f" ({entry.error.hint})" if entry.error.hint else ""
        yield from ("\nfailed\n", *_quoted(f"{entry.error.code}: {entry.error.message}{hint}"))
    if entry.count:
        after = f"; tried again at {entry.next_attempt[11:19]}" if entry.next_attempt else "; given up"
        yield f"\n{entry.count} failed{after}\n"
    if entry.outcome:
        yield "\nNobody knows whether this happened: the process died meanwhile.\n"
    if entry.output is not UNSET and entry.output != entry.text:
        yield from ("\nputs out\n", *_data(entry.output))


_TITLES = {
    "input": "Input",
    "response": "Turn {turn}",
    "tool_call": "{tool} begins",
    "tool_result": "{tool}",
    "compaction": "Summed up",
    "failed_request": "Request without a usable response",
    "queued_request": "Request that waits",
    "agent": "{name} begins",
    "stage": "Stage {name}",
    "stage_end": "Stage {name} ends",
}


def _price_of(usage: StepUsage) -> str:
    price = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return f"{usage.input_tokens:,} in, {usage.output_tokens:,} out, {price}"


def _quoted(text: str) -> Iterator[str]:
    """Yield a message as quoted lines."""
    if text:
        yield "\n"
        yield from (f"> {line}\n" for line in text.splitlines())


def _data(value: JSON) -> Iterator[str]:
    """Yield arguments or results of a tool; multi-line texts are written as text, not as JSON."""
    rows = value.items() if isinstance(value, dict) else [("", value)]
    for name, one in rows:
        label = f"{name}: " if name else ""
        if isinstance(one, str) and "\n" in one:
            yield from ([f"\n    {label}"] if name else [])
            one_by_one = one.splitlines()
        else:
            text = one if isinstance(one, str) else msgspec.json.encode(one).decode()
            one_by_one = [f"{label}{text}"]
        yield "\n"
        yield from (f"    {line}\n" for line in one_by_one)
