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

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

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
    UserMessage,
    paid_in,
)
from fanfold.agents.instructions import compose, instructions_for, with_limits
from fanfold.agents.role import Role
from fanfold.api.display import StepUsage, counted, local_time, price_text, step_usage, when
from fanfold.engine.run_tree import RunTree
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import COMPLETED, LEAF, READY, RUNNING, TERMINAL, WAITING, Node
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.sessions.log import read_recorded
from fanfold.steps.agent import FILES_MOVED, GO_ON, AgentJob, asked_of, words_of
from fanfold.steps.ids import session_id, settling_ids
from fanfold.steps.records import is_agent, is_lead, session_of, sessions_of, turn_before
from fanfold.steps.run_config import RecordedEntry, RunConfig, TakenUp
from fanfold.steps.step_type import Unrenderable, prepare


class TranscriptEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a transcript. Fields that an entry of its kind does not have are omitted.

    `kind`: input, response, failed_request, queued_request, tool_call, tool_result, compaction, agent, stage,
    stage_end.
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
    """The conversation of one session, after the conversations that it continues."""

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


def session_ref_of(tree: RunTree, node: Node, attempt: int) -> SessionRef:
    """Return the session of an attempt of an agent step."""
    frozen = tree.frozen(node)
    body = find_body(AgentBody, node.step)
    assert body is not None, "an agent step has the body of one"
    role = frozen.session_role(node.step, body)
    return SessionRef(node, session_id(node.run.id, node.path, attempt), attempt, role, frozen)


def find_session_refs(tree: RunTree, session: str) -> Iterator[SessionRef]:
    """Yield the sessions of a tree whose id starts with `session`."""
    for node in tree.nodes():
        for attempt in range(1, node.attempt + 1) if node.kind == LEAF else ():
            own = session_id(node.run.id, node.path, attempt)
            if own.startswith(session) and is_agent(node):
                yield session_ref_of(tree, node, attempt)
            elif session.startswith(own) and session in settling_ids(own):
                frozen = tree.frozen(node)  # it resolves conflicts, for a step of any type
                yield SessionRef(node, session, attempt, frozen.resolver_role(node.step), frozen)
            elif session.startswith(own) and session in sessions_of(tree.store, node, attempt):
                yield structs.replace(session_ref_of(tree, node, attempt), session_id=session)


class TranscriptBuilder:
    """Builds the entries of a transcript from recorded entries, and counts turns and usage."""

    def __init__(
        self, tree: RunTree, ref: SessionRef, step: str = "", *, turn: int = 0, until: int | None = None
    ) -> None:
        self._tree = tree
        self._until = until
        """Entries that were recorded later are ignored."""
        self._ref = ref
        self._step = step or ref.step
        self._seq = 0
        self._task_shown = False
        """Whether the task was shown before it was recorded."""
        self.turn = turn
        """The number of the last turn. It starts with the last turn of the continued conversation."""
        self.spent = NOTHING_SPENT

    def fresh(self) -> Iterator[TranscriptEntry]:
        """Yield the entries that were recorded since the last call."""
        for envelope, entry in read_recorded(self._tree.store, self._ref.session_id, self._seq):
            if self._until is not None and envelope.at > self._until:
                break
            self._seq = envelope.seq
            if not (self._task_shown and isinstance(entry, UserInput)):
                yield self.entry_of(envelope.at, entry)
        if not self._seq and not self._task_shown:
            task = _current_task(self._tree, self._ref)
            if task is not None:
                self._task_shown = True
                yield self.entry_of(self._ref.node.started_at, task)

    def entry_of(self, at: int, entry: Entry) -> TranscriptEntry:
        """Return the transcript entry of one recorded entry."""
        self.turn += isinstance(entry, Response)
        paid = paid_in(entry)
        if paid is not None:
            self.spent += paid
        return TranscriptEntry(
            kind=str(entry.__struct_config__.tag),
            at=when(at),
            step=self._step,
            session_id=self._ref.session_id,
            attempt=self._ref.attempt,
            turn=self.turn,
            stage=entry.stage,
            **self._fields_of(entry),
        )

    def _fields_of(self, entry: Entry) -> dict[str, Any]:
        match entry:
            case UserInput() | UserMessage():
                return {"text": entry.text}
            case Response() | Compaction():
                usage = _usage(entry.usage)
                fields: dict[str, Any] = {"model": entry.model, "text": entry.text, "usage": usage}
                if isinstance(entry, Response):
                    fields |= {"tool_calls": entry.tool_calls, "output": entry.output}
                return fields
            case ToolCall():
                return {"id": entry.id, "tool": entry.tool, "args": entry.args}
            case ToolResult():
                text = entry.complaint or entry.note
                call = {"id": entry.id, "tool": entry.tool, "text": text, "output": entry.output}
                return {**call, "result": entry.result, "error": entry.error, "outcome": entry.outcome}
            case FailedRequest():
                error = ToolError(entry.code, entry.message, kind=entry.kind)
                found = {"model": entry.model, "error": error, "count": entry.count}
                return {**found, "usage": _usage(entry.usage), "next_attempt": when(entry.next_at)}
            case QueuedRequest():
                return {"model": entry.model, "text": entry.message, "next_attempt": when(entry.next_at)}
            case AgentBegin():
                known = " ".join(part for part in (entry.program, entry.version) if part)
                return {"name": known, "id": entry.conversation, "text": entry.anew}
            case StageBegin():
                system = system_of(self._ref, entry.stage)
                return {"name": entry.name, "text": entry.prompt, "system": system}
            case StageEnd():
                return {"output": entry.output, "usage": _usage(entry.usage)}


def _current_task(tree: RunTree, ref: SessionRef) -> UserInput | None:
    """Return the task of a running agent. It is recorded with the first reply; until then it is derived."""
    node = ref.node
    if node.status != RUNNING or not is_agent(node) or ref.session_id != session_of(node):
        return None
    try:
        job = prepare(tree.values, node)
    except Unrenderable:
        return None
    if not isinstance(job, AgentJob):
        return None
    taken = ref.frozen.taken_up.get(ref.step)
    return UserInput(text=(taken.say if taken is not None else "") or asked_of(ref.role, job))


def _usage(usage: Usage | None) -> StepUsage | None:
    return None if usage is None else step_usage(usage)


def system_of(ref: SessionRef, stage: int = 0) -> str:
    """Return the system prompt of a session, or of one of its stages."""
    role, frozen = ref.role, ref.frozen
    own = role.instructions
    if stage and stage <= len(role.pipeline):
        wanted = role.pipeline[stage - 1]
        other = frozen.roles.get(wanted.agent) if wanted.agent is not None else None
        own = other.instructions if other is not None else wanted.instructions or own
    node, instructions = ref.node, frozen.instructions
    at = datetime.fromtimestamp(node.started_at / 1_000, UTC) if node.started_at else None
    role = structs.replace(role, instructions=own)
    lead = is_lead(node)
    own = with_limits(role, folder="the project's folder", write_set=node.write_set, lead=lead, at=at)
    nested = instructions_for(instructions.below, (*node.read_set, *node.write_set))
    return compose(own, instructions.top, nested)


def earlier(tree: RunTree, ref: SessionRef) -> list[TranscriptEntry]:
    """Return the conversation that a session continues, oldest entry first."""
    taken = ref.frozen.taken_up.get(ref.step) if is_agent(ref.node) else None
    if taken is not None:
        before_it = structs.replace(ref, session_id=taken.session_id, attempt=taken.attempt)
        builder = TranscriptBuilder(tree, before_it, taken.step)
        return [builder.entry_of(recorded.at, recorded.entry) for recorded in taken.entries]
    before = turn_before(ref.node) if is_agent(ref.node) else None
    if before is None:
        return []
    one = session_ref_of(tree, before, max(1, before.attempt))
    entries = earlier(tree, one)
    return [*entries, *TranscriptBuilder(tree, one, turn=last_turn(entries)).fresh()]


def last_turn(entries: list[TranscriptEntry]) -> int:
    """Return the number of the last turn of a conversation."""
    return entries[-1].turn if entries else 0


def transcript_of(tree: RunTree, ref: SessionRef, *, owned: bool, until: int | None = None) -> Transcript:
    """Return the transcript of a session until the time `until`. `owned`: the run has a live owner."""
    node, role = ref.node, ref.role
    before = earlier(tree, ref)
    builder = TranscriptBuilder(tree, ref, turn=last_turn(before), until=until)
    own = list(builder.fresh())
    settlers = settling_ids(ref.session_id) if node.step.on_conflict == "resolve" else []
    reused_from = None
    if not own and node.status == COMPLETED:
        frozen = ref.frozen
        reused_from = frozen.forked_from if ref.step in frozen.reused else "cache"
    return Transcript(
        run_id=node.run.id,
        root_run_id=tree.root.id,
        step=ref.step,
        session_id=ref.session_id,
        role=role.name,
        model=role.model or ref.frozen.default_model,
        backend=ref.frozen.backend_of(role),
        attempt=ref.attempt,
        attempts=node.attempt,
        status=_status(tree, ref, owned),
        reused_from=reused_from,
        settled_by=[one for one in settlers if next(tree.store.log(one), None) is not None],
        system=system_of(ref),
        turns=builder.turn - last_turn(before),
        usage=step_usage(builder.spent),
        entries=[*before, *own],
    )


def _status(tree: RunTree, ref: SessionRef, owned: bool) -> str:
    node = ref.node
    if ref.attempt < node.attempt:  # the log of the run has how it ended
        for envelope in tree.store.log(node.run.id):
            data = envelope.data
            ours = envelope.type == "subagent_event" and data.get("step") == node.path
            if ours and data.get("attempt") == ref.attempt and data["status"] in ("failed", "timed_out"):
                return str(data["status"])
        return "failed"
    if node.status in TERMINAL:
        return "closed" if node.closed else node.status
    if not node.attempt or node.status == READY:
        return "queued"
    if not owned:
        return "detached"
    return RUNNING if node.status in (RUNNING, WAITING) else node.status


# -----------------------------------------------------------------------------------------------------------
# A transcript as text, for files and terminals
#
# Messages are prefixed with `> `, and arguments and results of tools with four spaces, so that none of them
# can look like a heading. Text for a terminal must also pass through `language.terminal`.


def transcript_text(transcript: Transcript) -> str:
    """Return the whole transcript as text."""
    entries = TranscriptWriter()
    return "".join([heading(transcript), *map(entries.text, transcript.entries), closing(transcript)])


def heading(transcript: Transcript) -> str:
    """Return the title with the session, and the system prompt."""
    attempt = f", attempt {transcript.attempt} of {transcript.attempts}" if transcript.attempts > 1 else ""
    by = f"{transcript.role} on {transcript.backend}" + (f" ({transcript.model})" if transcript.model else "")
    title = f"# {transcript.step}: {transcript.status}\n"
    lines = [title, f"\n{by}, session {transcript.session_id}{attempt}\n"]
    if transcript.reused_from is not None:
        where = "an earlier run" if transcript.reused_from == "cache" else f"run {transcript.reused_from}"
        return "".join([*lines, f"\nIts result was taken from {where}; there was no conversation.\n"])
    lines += ["\n## System\n", *_quoted(transcript.system)] if transcript.system else []
    return "".join(lines)


def closing(transcript: Transcript) -> str:
    """Return the number of turns and the usage."""
    lines: list[str] = []
    if transcript.entries:
        turns = counted(transcript.turns, "turn")
        if before := last_turn(transcript.entries) - transcript.turns:
            turns += f" after {before} before"
        lines.append(f"\n{turns}, {_price_of(transcript.usage)}.\n")
    lines += [f"\nIts conflicts were given to session {session}.\n" for session in transcript.settled_by]
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
        args_shown = entry.id in self._asked and entry.args == self._asked[entry.id]
        self._asked |= {call.id: call.args for call in entry.tool_calls}
        title = _TITLES[entry.kind].format(turn=entry.turn, tool=entry.tool, name=entry.name or entry.stage)
        at = local_time(entry.at)[11:] if entry.at else ""
        facts = [entry.model, _price_of(entry.usage) if entry.usage else "", at]
        lines = [f"\n## {title}{''.join(f' · {fact}' for fact in facts if fact)}\n"]
        if entry.system:
            lines += ("\nsystem\n", *_quoted(entry.system))
        lines += _quoted(entry.text)
        for call in entry.tool_calls:
            lines += (f"\nasks for {call.tool} ({call.id})\n", *_data(call.args))
        if entry.args is not UNSET and not args_shown:
            lines += _data(entry.args)
        if entry.result is not UNSET:
            lines += _data(entry.result)
        if entry.error is not None:
            hint = f" ({entry.error.hint})" if entry.error.hint else ""
            code = entry.error.code or entry.error.kind
            lines += ("\nfailed\n", *_quoted(f"{code}: {entry.error.message}{hint}"))
        if entry.count:
            lines.append(f"\nattempt {entry.count} failed\n")
        if entry.next_attempt:
            lines.append(f"\nnext attempt at {local_time(entry.next_attempt)[11:]}\n")
        if entry.outcome:
            lines.append("\nIt is not known whether this happened: the process died meanwhile.\n")
        if entry.output is not UNSET and entry.output != entry.text:
            lines += ("\nputs out\n", *_data(entry.output))
        return "".join(lines)


_TITLES = {
    "input": "Input",
    "response": "Turn {turn}",
    "tool_call": "{tool} begins",
    "tool_result": "{tool}",
    "message": "Message",
    "compaction": "Summed up",
    "failed_request": "Request without a usable response",
    "queued_request": "Request that waits",
    "agent": "{name} begins",
    "stage": "Stage {name}",
    "stage_end": "Stage {name} ends",
}


def _price_of(usage: StepUsage) -> str:
    return f"{usage.input_tokens:,} in, {usage.output_tokens:,} out, {price_text(usage.cost_usd)}"


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


# -----------------------------------------------------------------------------------------------------------
# Continue a conversation in a new session, from one of its turns on
#
# A turn is one response of the model with the results of its tool calls, as `fanfold transcript` counts them.
# The entries up to the turn are copied: the new session does not need the old one.
#
# Only the conversation is restored, not the files that it changed. The prompt reports this to the agent.


def take_up(tree: RunTree, ref: SessionRef, turn: int, say: str | None) -> TakenUp:
    """Copy a conversation up to a turn, with the next prompt `say`.

    `say` None: a default prompt to continue. Empty: the prompt of the step itself.
    """
    if ref.role.pipeline:
        message = f"{ref.step} works in stages, which start again with each prompt"
        raise AuthorError("fork.stages", message, hint="leave --turn out: the step runs again from its start")
    before = _before(tree, ref)
    entries_so_far = [*before, *_recorded(tree, ref)]
    at = [number for number, recorded in enumerate(entries_so_far) if isinstance(recorded.entry, Response)]
    if not 1 <= turn <= len(at):
        hint = f"fanfold transcript {tree.root.id} {shlex.quote(ref.step)}"
        message = f"{ref.step} has had {counted(len(at), 'turn')}"
        raise NotFoundError("session.no_turn", message, hint=hint)
    entries = entries_so_far
    if turn < len(at):
        entries = entries[: at[turn]]
        while entries and isinstance(entries[-1].entry, UserInput | AgentBegin):
            entries.pop()  # the new session sends another prompt, or none
        # The agent program's conversation has continued after the turn, so its id is dropped.
        entries = [_changed(one, AgentBegin, conversation="") for one in entries]
    own_prompt_is_next = not tree.root.plan.open and ref.step not in ref.frozen.taken_up
    if say is None and at[turn - 1] < len(before) and own_prompt_is_next:
        say = ""
    if say is None:
        moved = any(isinstance(recorded.entry, ToolCall | AgentBegin) for recorded in entries)
        say = f"{GO_ON} {FILES_MOVED}" if moved else GO_ON
    return TakenUp(
        run_id=ref.node.run.id,
        step=ref.step,
        session_id=ref.session_id,
        attempt=ref.attempt,
        turn=turn,
        say=say,
        entries=tuple(entries),
    )


def without_results(taken: TakenUp) -> TakenUp:
    """Drop the tool calls of a conversation and their results, which the agent program has itself."""
    kept = (one for one in taken.entries if isinstance(one.entry, UserInput | AgentBegin | Response))
    return structs.replace(taken, entries=tuple(_changed(one, Response, tool_calls=()) for one in kept))


def _changed(recorded: RecordedEntry, kind: type[Entry], **fields: object) -> RecordedEntry:
    """Return the entry with other values of these fields if it is of this kind, else unchanged."""
    entry = recorded.entry
    same = not isinstance(entry, kind)
    return recorded if same else RecordedEntry(recorded.at, structs.replace(entry, **fields))


def _before(tree: RunTree, ref: SessionRef) -> Sequence[RecordedEntry]:
    """Return the entries that the session itself was continued from."""
    taken = ref.frozen.taken_up.get(ref.step)
    if taken is not None:
        return taken.entries
    before = turn_before(ref.node)
    if before is None:
        return []
    if not before.attempt:  # it was cancelled before it started, but its prompt still counts
        return [RecordedEntry(before.ended_at, UserInput(text=words_of(before)))]
    one = session_ref_of(tree, before, before.attempt)
    return [*_before(tree, one), *_recorded(tree, one)]


def _recorded(tree: RunTree, ref: SessionRef) -> list[RecordedEntry]:
    recorded = read_recorded(tree.store, ref.session_id)
    return [RecordedEntry(envelope.at, entry) for envelope, entry in recorded]
