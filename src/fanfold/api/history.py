"""Look up, inspect, follow, list and search runs, read their logs and transcripts, and sum up their costs."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct, structs

from fanfold.agents.entries import Compaction, LiveUpdate, News, Response
from fanfold.api.approvals import due_at, how_to_answer, open_approvals, shown
from fanfold.api.display import ListedRun, dollars, first_of, owner_of, select_runs, when
from fanfold.api.project import ContinuedRun, Project
from fanfold.api.report import executive_report
from fanfold.api.run_documents import (
    InspectDocument,
    InspectStepDocument,
    inspect_document,
    inspect_step_document,
    state_document,
)
from fanfold.api.run_options import how_to_raise
from fanfold.api.transcripts import (
    SessionRef,
    Transcript,
    TranscriptBuilder,
    TranscriptEntry,
    earlier,
    find_session_refs,
    last_turn,
    session_ref_of,
    transcript_of,
)
from fanfold.engine.requests import is_interrupted
from fanfold.engine.run_tree import RunTree, run_status, wall_clock_ms
from fanfold.errors import AuthorError, FanfoldError, NotFoundError
from fanfold.kernel.events import NOTHING_SPENT, Envelope, Usage
from fanfold.kernel.state import LEAF, PAUSED, PENDING, RUN_TERMINAL, RUNNING, TERMINAL, WAITING, Node, Run
from fanfold.kernel.transitions import find_node
from fanfold.language.diagnostics import nearest
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import session_id
from fanfold.steps.records import child_name, is_agent, sessions_of
from fanfold.steps.run_config import how_to_resume, is_chat
from fanfold.steps.values import runs_below
from fanfold.store.protocol import RunHead, Store
from fanfold.store.search import KINDS, NO_FILTERS, Filters, Hit, Search

# -----------------------------------------------------------------------------------------------------------
# Resolve the names of runs, steps and sessions: ids, prefixes of ids, `last`; paths in a run or in its tree

MIN_SESSION_PREFIX = 5
"""Shorter words are not treated as a prefix of a session's id."""


class ResolvedRun(NamedTuple):
    """A run that a caller named, in a read-only copy of its tree."""

    tree: RunTree
    run: Run

    @property
    def root_id(self) -> str:
        return self.tree.root.id

    def turns(self, name: str) -> list[Node]:
        """Return the turns of a subagent, in order; empty if no subagent has that name."""
        if not self.run.plan.open or self.run is not self.tree.root:
            return []
        return [node for node in self.tree.turns(name) if is_agent(node)]

    def tree_path(self, path: str) -> str:
        """Return the path from the root of the step that a caller named."""
        node = self.step(path)
        return node.run.tree_path(node.path)

    def step(self, path: str) -> Node:
        """Return a step by its path in the run, or by its path in the tree, as documents show it."""
        run = self.run
        node = find_node(self.tree.state, run.tree_path(path))
        if node is None and run.path and path.startswith(f"{run.path}/"):
            node = find_node(self.tree.state, path)
        if node is not None:
            return node
        if run.status == PENDING:
            raise NotFoundError("step.not_found", f"run {run.id} has not begun, so it has no step {path} yet")
        near = nearest(path, tuple(run.nodes))
        hint = f'did you mean "{near}"?' if near else f"fanfold inspect {run.id} --steps lists them"
        raise NotFoundError("step.not_found", f"run {run.id} has no step {path}", hint=hint)


def find_run(project: Project, name: str, at: int | None = None) -> ResolvedRun:
    """Return a run by id, unique prefix or `last`, as its log is now or as it was after event `at`."""
    head = project.resolve(name)
    tree = project.view(head.root_run_id, at)
    run = tree.state.runs.get(head.run_id)
    if run is None:
        raise NotFoundError("run.not_found", f"run {head.run_id} has not begun")
    return ResolvedRun(tree, run)


def find_session_ref(found: ResolvedRun, name: str, attempt: int | None) -> SessionRef:
    """Return the session of a step, a subagent or a session id."""
    node = _find_step(found, name)
    if node is None:
        if attempt is not None:
            raise AuthorError("usage.conflict", "a session is one attempt", hint="leave --attempt out")
        refs = list(find_session_refs(found.tree, name))
        if len(refs) > 1:
            ids = ", ".join(one.session_id for one in refs[:5])
            raise AuthorError("session.ambiguous", f"several sessions begin with {name}: {ids}")
        if not refs:
            found.step(name)  # raises an error with a suggestion
        return refs[0]
    if not is_agent(node) or node.kind != LEAF:
        raise _not_an_agent(found, node)
    wanted = max(1, node.attempt) if attempt is None else attempt
    if not 1 <= wanted <= max(1, node.attempt):
        message = f"{node.path} has had {node.attempt} attempt{'' if node.attempt == 1 else 's'}"
        raise NotFoundError("step.no_attempt", message, hint="leave --attempt out for the latest")
    return session_ref_of(found.tree, node, wanted)


def only_session_path(found: ResolvedRun) -> str:
    """Return the path of the only agent step of a run. If there are several, the hint names the last."""
    agents = (node for node in found.tree.nodes() if is_agent(node) and node.kind == LEAF)
    paths = [node.run.tree_path(node.path) for node in agents if node.attempt]
    if len(paths) == 1:
        return paths[0]
    run = found.root_id
    if not paths:
        hint = f"fanfold inspect {run} shows its steps"
        raise NotFoundError("step.no_session", f"no agent has worked in run {run}", hint=hint)
    message = f"{len(paths)} agents worked in run {run}: name the step"
    hint = f"for the last one: fanfold transcript {run} {shlex.quote(paths[-1])}"
    raise AuthorError("step.several_sessions", message, hint=hint)


def _find_step(found: ResolvedRun, name: str) -> Node | None:
    """Return a step by its path, or the latest started turn of a subagent by its name."""
    turns = found.turns(name)
    if turns:
        return ([node for node in turns if node.attempt] or turns)[-1]
    try:
        return found.step(name)
    except NotFoundError:
        if len(name) < MIN_SESSION_PREFIX or not name.startswith("s"):
            raise
        return None


def _not_an_agent(found: ResolvedRun, node: Node) -> AuthorError:
    agents = (other for other in found.tree.nodes() if is_agent(other) and other.kind == LEAF)
    inside = [other.run.tree_path(other.path) for other in agents if is_inside(other, node)]
    path = node.run.tree_path(node.path)
    if not inside:
        hint = f"fanfold explain {found.root_id} {shlex.quote(path)} shows what it did"
        message = f"no agent worked on {path}: its type is {node.step.type}"
        return AuthorError("step.no_session", message, hint=hint)
    hint = f"name one of them: {first_of(inside, 5)}"
    return AuthorError("step.several_sessions", f"{path} has several sessions", hint=hint)


def is_inside(node: Node, outer: Node) -> bool:
    """Whether a step is another one or inside it, in its own run or in a run that the other one called."""
    above: Node | None = node
    while above is not None:
        if above is outer:
            return True
        above = above.parent or above.run.call
    return False


# -----------------------------------------------------------------------------------------------------------
# Inspect a run or a step


def inspect(
    project: Project, run: str, at: int | None = None, *, with_state: bool = False
) -> InspectDocument:
    """Return a run with its child runs, as its log is now or was after event `at`."""
    return inspect_found(project, find_run(project, run, at), with_state=with_state)


def report_of(project: Project, run: str) -> str:
    """Return the executive report of a run."""
    found = find_run(project, run)
    return executive_report(found.tree, found.run, owned=project.has_owner(found.root_id))


def inspect_found(
    project: Project, found: ResolvedRun, *, with_state: bool = False, only: Collection[str] | None = None
) -> InspectDocument:
    """Return the document of a resolved run. `only` selects steps by their path in the tree."""
    owner = owner_of(project, found.root_id)
    head = project.store.head(found.run.id)
    return structs.replace(
        inspect_document(found.tree, found.run, only),
        owner=owner,
        forked_from=None if head is None else head.forked_from,
        report=executive_report(found.tree, found.run, owned=bool(owner and owner.alive))
        if only is None
        else UNSET,
        state=state_document(found.tree, owner) if with_state else UNSET,
    )


def inspect_step(project: Project, run: str, step: str) -> InspectStepDocument:
    """Return one step of a run by its path, or the latest turn of a subagent by its name."""
    found = find_run(project, run)
    turns = found.turns(step)
    return inspect_step_document(found.tree, turns[-1] if turns else found.step(step))


def continue_command(tree: RunTree, *, driven: bool) -> str:
    """Return the command that answers the run, raises its limits or resumes it.

    Empty for a finished run, and for an open run in which nothing can continue. Questions whose time-out has
    passed are not offered: the next process that drives the run applies the time-out.
    """
    status = run_status(tree.state, tree.root)
    if status in RUN_TERMINAL:
        return ""
    if tree.root.growing:
        root = tree.root
        if driven or is_chat(root.id) or status == PAUSED:
            return "" if driven else how_to_resume(root.id)
        # A subagent that lost its process.
        nodes = root.nodes.items()
        lost = [path for path, node in nodes if is_interrupted(node) or node.status == RUNNING]
        return f"fanfold send {shlex.quote(child_name(lost[0]))} --resume" if lost else ""
    if status == WAITING:
        now = wall_clock_ms()
        asked = [one for one in open_approvals(tree) if (due_at(tree, one.path) or now) >= now]
        if asked:
            return how_to_answer(tree.root.id, asked[0].path, asked[0])
        return "" if driven else how_to_resume(tree.root.id)
    if tree.state.pausing == "budget":
        return how_to_raise(tree)
    return how_to_resume(tree.root.id) if tree.state.pausing else ""


# -----------------------------------------------------------------------------------------------------------
# Wait for events of a run or for the effect of a request, regardless of the process that drives it
#
# A follower gets the events of a run tree from a sequence number on, in order, without gap or duplicate. It
# needs no lease and no action of the owner. The store wakes it after each commit of the owner.

ORPHAN_S = 2.0
"""After this time without an owner, no process that is just starting will acquire the run."""
_T = TypeVar("_T")


async def follow(
    project: Project, root: str, after: int = 0, *, starting: ContinuedRun | None = None
) -> AsyncIterator[list[Envelope]]:
    """Yield the events after `after`, in batches, until the run has finished or has no owner.

    `starting` is about to become the owner: while it lives, the run has an owner or soon will.
    """
    ownerless = Ownerless(project, root, starting)
    async for fresh in follow_tree(project.store, root, after):
        if fresh:
            after = fresh[-1].tree_seq
            yield fresh
            continue
        head = project.store.head(root)
        if head is None or head.status in RUN_TERMINAL or ownerless.for_a_while():
            last = list(project.store.tree(root, after))  # written since the read above
            if last:
                yield last
            return


@contextmanager
def live_updates(store: Store, root: str, hear: Callable[[str, str, News], None]) -> Iterator[None]:
    """Inside this block, call `hear` in this event loop with updates of the run's sessions on any machine."""
    import asyncio  # only followers need an event loop

    loop = asyncio.get_running_loop()

    def heard(text: str) -> None:
        with suppress(msgspec.MsgspecError, RuntimeError):  # from another version, or the loop has ended
            update = msgspec.json.decode(text, type=LiveUpdate)
            loop.call_soon_threadsafe(hear, update.run, update.step, update.news)

    with store.updates(root, heard):
        yield


class Ownerless:
    """Detects that a run has lost its owner, and ignores a short change of owners."""

    def __init__(self, project: Project, root: str, starting: ContinuedRun | None = None) -> None:
        self._project = project
        self._root = root
        self._starting = starting
        self._since: float | None = None

    def for_a_while(self) -> bool:
        if self._project.has_owner(self._root):
            self._since = None
            return False
        if self._starting is not None:
            head = self._project.store.head(self._root)
            rests = head is not None and head.status in (WAITING, PAUSED)
            return rests or not self._starting.lives()
        now = monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= ORPHAN_S


async def until(project: Project, root: str, look: Callable[[], _T | None], within_s: float) -> _T | None:
    """Call `look` after every action of the run's owner until it returns a value; None after the time-out."""
    deadline = monotonic() + within_s
    with project.store.follow(root) as signal:
        while (found := look()) is None and (left := deadline - monotonic()) > 0:
            await signal.wait(left)
    return found


async def follow_tree(store: Store, root: str, after: int = 0) -> AsyncIterator[list[Envelope]]:
    """Yield the recorded events of a tree after `after`, then those of each commit as it happens.

    An empty list is yielded when a process acquired or released the tree, and every `RECHECK_S`. The caller
    can then check with `Store.owner` whether the run still has an owner. The iterator never ends by itself.
    Leaving the loop releases everything.
    """
    with store.follow(root) as signal:
        while True:
            fresh = list(store.tree(root, after))
            if fresh:
                after = fresh[-1].tree_seq
            yield fresh
            await signal.wait()


# -----------------------------------------------------------------------------------------------------------
# Read the log of a run, or of its whole tree in the order of events


def read_log(
    project: Project, head: RunHead, *, whole_tree: bool = False, complete: bool = True
) -> Iterator[Envelope]:
    """Return the recorded events; `complete` adds the fields that follow from the rest."""
    store = project.store
    envelopes = store.tree(head.root_run_id) if whole_tree else store.log(head.run_id)
    return shown(store, envelopes) if complete else envelopes


def read_step_log(project: Project, run: str, name: str) -> list[Envelope]:
    """Return the events of one step, or of all turns of a subagent, from the logs of its run and sessions."""
    found = find_run(project, run)
    nodes = found.turns(name) or [found.step(name)]
    paths = {node.path for node in nodes}
    store = project.store
    about = []
    for one in store.log(nodes[0].run.id):
        step = one.data.get("step", "") if isinstance(one.data, dict) else ""
        if (step.get("id", "") if isinstance(step, dict) else step) in paths:
            about.append(one)
    for node in nodes:
        for attempt in range(1, node.attempt + 1):
            for session in sessions_of(store, node, attempt):
                about += store.log(session)
    about.sort(key=lambda one: (one.at, not one.tree_seq))
    return list(shown(store, about))


async def follow_log(
    project: Project, head: RunHead, *, whole_tree: bool = False
) -> AsyncIterator[list[Envelope]]:
    """Yield the recorded events and new ones, until the run has finished or has no owner."""
    async for written in follow(project, head.root_run_id):
        wanted = written if whole_tree else [one for one in written if one.log == head.run_id]
        if wanted:
            yield list(shown(project.store, wanted))


# -----------------------------------------------------------------------------------------------------------
# Runs and events in pages


class RunPage(Struct, frozen=True):
    """Newest first. `next` is the cursor of what follows, None at the end."""

    items: list[ListedRun]
    next: str | None


class EventPage(Struct, frozen=True):
    """Events of a tree in the order they happened. `next` and `previous` are the numbers to ask on from."""

    items: list[Envelope]
    next: int | None
    """`after` for the next page; None at the current end of the log."""
    previous: int | None
    """`before` for the previous page; None at the first event."""


def page_of_runs(
    project: Project,
    *,
    status: str | None = None,
    recipe: str | None = None,
    since: str = "",
    words: str = "",
    limit: int = 50,
    cursor: str | None = None,
) -> RunPage:
    """Return a page of root runs, newest first; see `select_runs`."""
    if not project.has_runs:
        return RunPage([], None)
    if cursor is not None and project.store.head(cursor) is None:
        raise NotFoundError("run.not_found", "this cursor belongs to another list", hint="start without one")
    found = select_runs(project, limit, cursor, status=status, recipe=recipe, since=since, words=words)
    return RunPage(*found)


def page_of_events(
    project: Project, run: str, *, after: int | None = None, before: int | None = None, limit: int = 200
) -> EventPage:
    """Return events of the tree of a run: after a number, before a number, or the last ones."""
    root = project.resolve(run).root_run_id
    reach = project.store.reach(root)
    if not reach:
        raise NotFoundError("run.not_found", f"run {run} has no recorded events")
    if after is None:
        end = reach if before is None else min(before - 1, reach)
        after = max(0, end - limit)
        limit = max(0, end - after)
    elif before is not None:
        limit = max(0, min(limit, before - 1 - after))
    after = min(after, reach)
    events = list(shown(project.store, islice(project.store.tree(root, after), limit)))
    last = events[-1].tree_seq if events else after
    return EventPage(events, last if last < reach else None, after + 1 if after > 0 else None)


# -----------------------------------------------------------------------------------------------------------
# Search the outputs of agents, in one run or in all

KIND = "kind:"
MIN_PREFIX = 4
"""Shorter words are not treated as a prefix of a run's id."""


class FoundOutputs(Struct, frozen=True):
    """The outputs that match a query, best match first."""

    hits: list[Hit]


def query(
    project: Project,
    words: Sequence[str],
    filters: Filters = NO_FILTERS,
    *,
    run: str | None = None,
    most: int = 5,
    explained: bool = False,
) -> FoundOutputs:
    """Search outputs and errors for any of the words, in all runs or in one run and the runs below it."""
    if filters.status and filters.status not in TERMINAL:
        hint = f"one of {', '.join(sorted(TERMINAL))}"
        raise AuthorError(
            "usage.bad_value", f"{filters.status[:80]!r} is not a final status of steps", hint=hint
        )
    words = " ".join(words).split(" ")  # a shell may pass several words as one argument
    kinds = [word.removeprefix(KIND) for word in words if word.startswith(KIND)]
    if kinds:
        filters = structs.replace(filters, kind=kinds[-1])
        words = [word for word in words if not word.startswith(KIND)]
    if filters.kind not in (None, "any", *KINDS):
        hint = f"one of {', '.join(KINDS)}, any"
        raise AuthorError("usage.bad_value", f"there is no kind {filters.kind[:80]!r}", hint=hint)
    if not project.has_runs:
        return FoundOutputs([])
    text = " ".join(words).encode("utf-8", "replace").decode()  # arguments from a shell may not be valid text
    if run is not None:
        filters = structs.replace(filters, run=project.resolve(run).run_id)
    with ExitStack() as stack:
        folder = project.memory
        if not os.access(folder, os.W_OK | os.X_OK):  # the index of a read-only project is temporary
            from tempfile import TemporaryDirectory

            folder = Path(stack.enter_context(TemporaryDirectory(prefix="fanfold-query-")))
        search = Search(project.store, folder)
        return FoundOutputs(search.query(text, filters, k=most, explained=explained))


def named_run(project: Project, words: Sequence[str]) -> str | None:
    """Return the run that the first word names, if more words follow it; None otherwise.

    The word is `last`, an id, or a unique prefix of at least four characters.
    """
    if project.has_runs and len(words) > 1 and len(words[0]) >= MIN_PREFIX:
        with suppress(FanfoldError):
            return project.store.resolve(words[0])
    return None


# -----------------------------------------------------------------------------------------------------------
# Read transcripts of sessions, while they run and afterwards


def transcript(
    project: Project, run: str, step: str, attempt: int | None = None, at: int | None = None
) -> Transcript:
    """Return the transcript of a step's latest attempt, or of `attempt`.

    `step` may also be a subagent (with all its turns) or the id of a session. `at`: as it was after that
    event of the tree.
    """
    found = find_run(project, run, at)
    ref = find_session_ref(found, step, attempt)
    if at is None:
        return transcript_of(found.tree, ref, owned=project.has_owner(found.root_id))
    return transcript_of(found.tree, ref, owned=True, until=found.tree.state.now)


def denied_tools(project: Project, run: str, step: str) -> list[str]:
    """List the tools that were denied to the agent of a step, without duplicates."""
    denied: dict[str, None] = {}
    for entry in transcript(project, run, step).entries:
        if entry.step == step and entry.kind == "tool_result":
            error = entry.result.get("error") if isinstance(entry.result, dict) else None
            code = error.get("code") if isinstance(error, dict) else entry.error.code if entry.error else ""
            denied |= {entry.tool: None} if code == "permission_denied" else {}
    return list(denied)


async def follow_transcript(
    project: Project, found: ResolvedRun, name: str, attempt: int | None = None
) -> AsyncIterator[list[TranscriptEntry]]:
    """Yield the entries so far and new ones, in batches, until the step has finished or the run has no owner.

    Without `attempt`, it continues with the next attempt after a failure.
    """
    tree = found.tree
    ref = find_session_ref(found, name, attempt)
    before = earlier(tree, ref)
    builder = TranscriptBuilder(tree, ref, turn=last_turn(before))
    yield [*before, *builder.fresh()]
    ownerless = Ownerless(project, tree.root.id)
    async for written in follow_tree(project.store, tree.root.id, tree.tree_seq):
        tree.catch_up(written)
        over = tree.root.status in RUN_TERMINAL or ref.node.status in TERMINAL or ownerless.for_a_while()
        fresh = list(builder.fresh())
        while attempt is None and ref.attempt < ref.node.attempt:
            ref = session_ref_of(tree, ref.node, ref.attempt + 1)
            builder = TranscriptBuilder(tree, ref, turn=last_turn(before))
            fresh += builder.fresh()
        if fresh:
            yield fresh
        if over or (attempt is not None and attempt < ref.node.attempt):
            return


# -----------------------------------------------------------------------------------------------------------
# The cost of the runs of a project, by recipe, model, day or run, and the cost of one run
#
# Everything is read from the logs of runs: each payment with its time and model. Scripted agents and logs of
# earlier versions have no payments. For them the sum at the end of the attempt is used.


By: TypeAlias = Literal["recipe", "model", "day", "run"]
UNKNOWN_MODEL = "(none)"


class CostLine(Struct, kw_only=True):
    """The cost of one recipe, model, day or run."""

    name: str
    runs: int = 0
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    """The part of the input that providers read from their caches."""
    output_tokens: int = 0
    cost_usd: float = 0.0
    """The known cost."""
    unpriced: int = 0
    """Requests with an unknown price; `cost_usd` does not include them."""
    cache_hits: int = 0
    """Steps whose output was reused from an earlier run, at no cost."""

    def add(self, spent: _Spending) -> None:
        usage = spent.usage
        if usage is None:
            self.cache_hits += 1
            return
        self.requests += spent.requests
        self.input_tokens += usage.input_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += usage.output_tokens
        self.unpriced += spent.requests if usage.micro_usd is None else 0
        self.cost_usd = round(self.cost_usd + (usage.micro_usd or 0) / 1_000_000, 6)


class Costs(Struct, frozen=True, kw_only=True):
    """The lines, most expensive first; days in chronological order."""

    by: By
    since: str | None
    lines: list[CostLine]
    total: CostLine


class _Spending(Struct, frozen=True):
    """A payment, or a step whose output was reused."""

    at: int
    run: str
    usage: Usage | None
    model: str = ""
    requests: int = 1


def costs(project: Project, by: By, since: int | None = None) -> Costs:
    """Return the costs since a time (milliseconds since the epoch), or of all runs."""
    lines: dict[str, CostLine] = {}
    total = CostLine(name="total")
    for head in project.heads():
        if since is not None and head.ended_at is not None and head.ended_at < since:
            continue
        spent = [one for one in _spent_in(project.store, head) if since is None or one.at >= since]
        for name in dict.fromkeys(_name(by, head, one) for one in spent):
            lines.setdefault(name, CostLine(name=name)).runs += 1
        total.runs += bool(spent)
        for one in spent:
            lines[_name(by, head, one)].add(one)
            total.add(one)
    ordered = sorted(lines.values(), key=lambda line: (-line.cost_usd, -line.input_tokens, line.name))
    if by == "day":
        ordered = sorted(lines.values(), key=lambda line: line.name)
    return Costs(by=by, since=when(since), lines=ordered, total=total)


def _name(by: By, head: RunHead, spent: _Spending) -> str:
    if by == "day":
        return datetime.fromtimestamp(spent.at / 1_000).astimezone().date().isoformat()
    return {"recipe": head.recipe, "run": head.run_id, "model": spent.model or UNKNOWN_MODEL}[by]


def _spent_in(store: Store, head: RunHead) -> Iterator[_Spending]:
    """Yield the payments of a run tree, in the order of its log."""
    paid: dict[tuple[str, str, int], Usage] = {}
    for envelope in store.tree(head.run_id):
        data = envelope.data
        if not isinstance(data, dict):
            continue
        if envelope.type == "workflow_event" and data.get("kind") == "payment":
            usage = msgspec.convert(data["usage"], Usage)
            attempt = (envelope.run_id, data["step"], data["attempt"])
            paid[attempt] = paid.get(attempt, NOTHING_SPENT) + usage
            yield _Spending(envelope.at, envelope.run_id, usage, data.get("model", ""))
        elif envelope.type in ("step_event", "subagent_event"):
            if data.get("cached"):
                yield _Spending(envelope.at, envelope.run_id, None)
            if "usage" not in data:
                continue
            attempt = (envelope.run_id, data["step"], data.get("attempt", 0))
            rest = msgspec.convert(data["usage"], Usage).beyond(paid.get(attempt, NOTHING_SPENT))
            if rest.tokens or rest.cached_tokens or rest.micro_usd:
                # Its payments are not in the log of its run; its session names the model.
                entries = read_entries(store, session_id(*attempt))
                models = (entry.model for entry in entries if isinstance(entry, Response | Compaction))
                yield _Spending(envelope.at, envelope.run_id, rest, next(filter(None, models), ""))


# -----------------------------------------------------------------------------------------------------------
# Costs within one run, and of the project over time


class CostRow(Struct, frozen=True):
    """The usage of one step, role or model; `cost_usd` is None if a price is unknown."""

    name: str
    steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class RunCost(Struct, frozen=True):
    """The cost of a run and the runs below it; the most expensive rows first."""

    run_id: str
    total: CostRow
    steps: list[CostRow]
    roles: list[CostRow]
    models: list[CostRow]


class Spend(Struct, frozen=True):
    """The sum of some runs, without the `unpriced` runs, whose price is not known."""

    runs: int
    agents: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    unpriced: int


def run_cost(tree: RunTree, run: Run) -> RunCost:
    """Return the cost of a run so far."""
    nodes = (node for one in runs_below(run) for node in one.nodes.values())
    spent = [(node, usage) for node in nodes if (usage := tree.usage_of(node))]

    def model(node: Node) -> str:
        if (body := find_body(AgentBody, node.step)) is None:
            return ""
        frozen = tree.frozen(node)
        role = frozen.session_role(node.step, body)
        return role.model or frozen.default_model or frozen.backend_of(role)

    return RunCost(
        run.id,
        _row(run.plan.name, [usage for _, usage in spent]),
        _rows((node.run.tree_path(node.path), usage) for node, usage in spent),
        _rows((node.step.traits.role or "", usage) for node, usage in spent),
        _rows((model(node), usage) for node, usage in spent),
    )


def _rows(named: Iterable[tuple[str, Usage]]) -> list[CostRow]:
    held: dict[str, list[Usage]] = {}
    for name, usage in named:
        held.setdefault(name, []).append(usage)
    rows = [_row(name, usages) for name, usages in held.items() if name]
    rows.sort(key=lambda row: (-(row.cost_usd or 0), -row.input_tokens - row.output_tokens, row.name))
    return rows


def _row(name: str, usages: list[Usage]) -> CostRow:
    total = sum(usages, NOTHING_SPENT)
    price = dollars(total.micro_usd)
    return CostRow(name, len(usages), total.input_tokens, total.output_tokens, price)
