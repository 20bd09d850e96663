"""What an agent was told, said and did, as every surface shows it.

Rules
* A transcript is read from what was recorded and from nothing else, so it is the same whoever asks, while the
  session runs and years later, and holds no more secrets than the log does: none.
* A turn is one response of the model, with the calls it asked for and what came of them. The task that the
  agent was given stands before turn 1.
* A step that goes on with another one's conversation shows that first; every entry says whose it is. Turns
  are counted through all of it, so that a number means one of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, Struct, structs

from fanfold.agents.entries import (
    AgentBegin,
    Compaction,
    Entry,
    Output,
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
from fanfold.agents.instructions import compose, instructions_for
from fanfold.agents.role import Role
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.lifecycle import COMPLETED, READY, RUNNING, TERMINAL, WAITING
from fanfold.kernel.nodes import LEAF, Node
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.attempt_sessions import sessions_of
from fanfold.runtime.records.frozen import Frozen
from fanfold.runtime.records.ids import session_id, settling_ids
from fanfold.runtime.records.subagents import is_agent, session_of, turn_before
from fanfold.runtime.steps.agent import AgentJob, asked_of
from fanfold.runtime.steps.registry import Unrenderable, prepare
from fanfold.runtime.views.runs.rows import StepUsage, step_usage
from fanfold.runtime.views.times import when
from fanfold.sessions.log import read_recorded


class TranscriptEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was said or done. `kind`: input, response, tool_call, tool_result, compaction, agent,
    stage, stage_end. What an entry of its kind does not have is left out.
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
    """Of a stage, or of the program that works."""
    text: str = ""
    system: str = ""
    """Of a stage: its system prompt."""
    model: str = ""
    tool_calls: tuple[RequestedCall, ...] = ()
    id: str = ""
    """Of a call, or of the conversation as the program that works calls it."""
    tool: str = ""
    args: Output = UNSET
    result: Output = UNSET
    error: ToolError | None = None
    outcome: str = ""
    """`unknown` when the process died while the call was made."""
    output: Output = UNSET
    """On the entry that ends a session or a stage: what it put out."""
    usage: StepUsage | None = None


class Transcript(Struct, frozen=True, kw_only=True):
    """The conversation of one session, and of those that it goes on with."""

    run_id: str
    root_run_id: str
    step: str
    """Tree path of the step."""
    session_id: str
    role: str
    model: str | None
    """What the step was given; each response says who answered."""
    backend: str
    attempt: int
    attempts: int
    """How many the step has had so far."""
    status: str
    """Of this attempt: as a session's, `detached` when nobody drives a run that did not end."""
    reused_from: str | None
    """The run whose result stands in for this step, or `cache`; then there is no conversation."""
    settled_by: list[str]
    """Sessions that settled, or tried to settle, the conflicts of this attempt."""
    system: str
    """The system prompt."""
    turns: int
    """Of this session, without those before it; so is `usage`."""
    usage: StepUsage
    entries: list[TranscriptEntry]

    def __repr__(self) -> str:
        return f"<transcript of {self.step} in run {self.run_id}, {self.status}, {self.turns} turns>"


class Speaker(Struct, frozen=True):
    """One session of one step: whose it is, and what tells its system prompt."""

    node: Node
    session_id: str
    attempt: int
    role: Role
    frozen: Frozen

    @property
    def step(self) -> str:
        return self.node.run.tree_path(self.node.path)


def speaker_of(tree: RunTree, node: Node, attempt: int) -> Speaker:
    """The session of an attempt of an agent step."""
    frozen = tree.frozen(node)
    said = find_body(AgentBody, node.step)
    assert said is not None, "an agent step has the body of one"
    role = frozen.session_role(node.step, said)
    return Speaker(node, session_id(node.run.id, node.path, attempt), attempt, role, frozen)


def settler_of(tree: RunTree, node: Node, attempt: int, session: str) -> Speaker:
    """The session that settles the conflicts of an attempt of a step, of any type."""
    frozen = tree.frozen(node)
    return Speaker(node, session, attempt, frozen.resolver_role(node.step), frozen)


def find_speakers(tree: RunTree, session: str) -> Iterator[Speaker]:
    """The sessions of a tree whose id begins so."""
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


class Told:
    """Makes the entries of a transcript out of what a session records; it counts turns and what was paid."""

    def __init__(
        self, tree: RunTree, speaker: Speaker, step: str = "", *, turn: int = 0, until: int | None = None
    ) -> None:
        self._tree = tree
        self._until = until
        """Nothing that was recorded later than this is told."""
        self._speaker = speaker
        self._step = step or speaker.step
        self._seq = 0
        self._foretold = False
        """The task was told before it was recorded."""
        self.turn = turn
        """The last one; to begin with, that of the conversation which this one goes on with."""
        self.spent = NOTHING_SPENT

    def fresh(self) -> Iterator[TranscriptEntry]:
        """What was recorded since the last time."""
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
        """One entry, behind those that were told before."""
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
            case AgentBegin():
                known = " ".join(part for part in (entry.program, entry.version) if part)
                return {"name": known, "id": entry.conversation, "text": entry.anew}
            case StageBegin():
                system = system_of(self._speaker, entry.stage)
                return {"name": entry.name, "text": entry.prompt, "system": system}
            case StageEnd():
                return {"output": entry.output, "usage": _usage(entry.usage)}


def _task_under_way(tree: RunTree, speaker: Speaker) -> UserInput | None:
    """What a running agent was asked that has not said anything yet: its task is recorded with its first
    words, and can be told from what the step says.
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


def system_of(speaker: Speaker, stage: int = 0) -> str:
    """The system prompt of a session, or of one stage of it."""
    role, frozen = speaker.role, speaker.frozen
    own = role.instructions
    if stage and stage <= len(role.pipeline):
        wanted = role.pipeline[stage - 1]
        other = frozen.roles.get(wanted.agent) if wanted.agent is not None else None
        own = other.instructions if other is not None else wanted.instructions or own
    node, told = speaker.node, frozen.instructions
    return compose(own, told.top, instructions_for(told.below, (*node.read_set, *node.write_set)))


def earlier(tree: RunTree, speaker: Speaker) -> list[TranscriptEntry]:
    """The conversation that a session goes on with, oldest first."""
    taken = speaker.frozen.taken_up.get(speaker.step) if is_agent(speaker.node) else None
    if taken is not None:
        before_it = structs.replace(speaker, session_id=taken.session_id, attempt=taken.attempt)
        told = Told(tree, before_it, taken.step)
        return [told.tell(recorded.at, recorded.entry) for recorded in taken.entries]
    before = turn_before(speaker.node) if is_agent(speaker.node) else None
    if before is None:
        return []
    one = speaker_of(tree, before, max(1, before.attempt))
    entries = earlier(tree, one)
    return [*entries, *Told(tree, one, turn=last_turn(entries)).fresh()]


def last_turn(entries: list[TranscriptEntry]) -> int:
    """The number of the turn that a conversation is at."""
    return entries[-1].turn if entries else 0


def transcript_of(tree: RunTree, speaker: Speaker, *, owned: bool, until: int | None = None) -> Transcript:
    """Everything that a session has recorded, up to a time where that is given; `owned` says whether a live
    process drives the run.
    """
    node, role = speaker.node, speaker.role
    before = earlier(tree, speaker)
    told = Told(tree, speaker, turn=last_turn(before), until=until)
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


def _source(speaker: Speaker) -> str | None:
    """Where the result of a step came from that nobody worked on."""
    frozen = speaker.frozen
    return frozen.forked_from if speaker.step in frozen.reused else "cache"


def _status(tree: RunTree, speaker: Speaker, owned: bool) -> str:
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
    """How an attempt ended that was followed by another one."""
    for envelope in tree.store.log(node.run.id):
        data = envelope.data
        is_ours = envelope.type == "subagent_event" and data.get("step") == node.path
        if is_ours and data.get("attempt") == attempt and data["status"] in ("failed", "timed_out"):
            return str(data["status"])
    return "failed"
