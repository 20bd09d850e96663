"""Explain the status of a run or a step, when it started, and which files it used."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET, UnsetType, structs
from msgspec.structs import replace

from fanfold.agents import tool_names
from fanfold.agents.entries import Response, ToolCall
from fanfold.api.approvals import REASON_CHARS, approval_document, gist, is_open, named_path, status_of
from fanfold.api.display import counted, duration, when
from fanfold.api.history import continue_command, find_run
from fanfold.api.project import Project
from fanfold.api.recipes import SuggestedSet
from fanfold.api.report import Transitions, request_text
from fanfold.api.run_documents import how_to_retry, run_error, wait_text
from fanfold.api.step_documents import (
    ExplainedRun,
    ExplainedStep,
    ExplanationDocument,
    HistoryEntry,
    UsedSets,
    did_not_pass,
    last_objections,
    why_not,
)
from fanfold.api.workers import NO_DRIVER, WorkerRow, live_workers, where_it_runs
from fanfold.engine.dry_run import Slots, StepOrder, Time, WhatIf
from fanfold.engine.forecast import ForecastHost, RecordedResults, Recording
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import AuthorError
from fanfold.kernel.events import UNBOUNDED, StepAdded, event_of
from fanfold.kernel.explain import SENTENCES
from fanfold.kernel.explain import explain as explain_node
from fanfold.kernel.paths import escape
from fanfold.kernel.plan import EVERYTHING, JSON, GroupAction, Plan, Step, WorkflowAction
from fanfold.kernel.state import (
    COMPLETED,
    DEFERRED,
    HELD,
    INTERRUPTED,
    LEAF,
    MAP,
    PAUSED,
    PENDING,
    READY,
    RUN_TERMINAL,
    RUNNING,
    TERMINAL,
    WAITING,
    Composite,
    Node,
    Run,
)
from fanfold.language.terminal import shorten_line
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import session_id
from fanfold.steps.records import is_agent
from fanfold.steps.run_config import how_to_resume
from fanfold.steps.values import is_below

# -----------------------------------------------------------------------------------------------------------
# The files that steps read and changed, and the sets that these files suggest
#
# Rules
# * Only evidence counts: the recorded changes of merges, and the calls of file tools in sessions. A step that
#   ran programs or Python code may have used more files. Then this is reported, and nothing is guessed.
# * Paths of the instances of a map are written with the item (`{{item}}`) if that gives one set. Then the
#   instances do not conflict with each other.
# * A suggestion is a proposal for a person. Many files of one folder become a pattern, which may be too wide.

MAX_DEPTH = 8
"""How deep the steps of called recipes are listed."""
MAX_LISTED = 6
"""More paths than this become patterns."""
PROGRAMS = "it ran programs"
CODE = "it ran Python code"
UNMERGED = "nothing was merged: the step did not complete"
UNFINISHED = "nothing is merged before the step completes"
KEPT = "not merged, because the step did not complete; its changes are kept"
_INSTANCE = r"\[\d+\]|#\d+"
_READING = frozenset({"list_files", "search_files"})
_WRITING = frozenset({"write_file", "edit_file", "delete_file"})
_ELSEWHERE = frozenset({"read_output", "fetch_url", "query_workflow", "final_output"})
"""Tools that use no file of the project."""


class StepTouch:
    """The files that one step used, over its instances, attempts and runs."""

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self._named: dict[str, set[str]] = {"reads": set(), "writes": set()}
        """The same paths, with the items of a map as placeholders."""
        self.unseen_reads = ""
        self.unseen_writes = ""

    def look_at(self, tree: RunTree, node: Node) -> None:
        """Add the files of one instance."""
        self.runs.add(node.run.id)
        reads, writes = set[str](), set[str]()
        if not is_agent(node):
            self.unseen_reads = self.unseen_writes = PROGRAMS if node.step.type == "command" else CODE
        for attempt in range(1, node.attempt + 1) if is_agent(node) else ():
            for entry in read_entries(tree.store, session_id(node.run.id, node.path, attempt)):
                if isinstance(entry, Response):
                    for call in entry.tool_calls:
                        reads.update(self._read(call.tool, call.args))
                elif isinstance(entry, ToolCall):
                    given = entry.args if isinstance(entry.args, dict) else {}
                    if entry.tool in _WRITING:
                        writes.add(_plain(str(given.get("path") or "")))
                    elif entry.tool == "apply_patch":
                        writes.update(_patched(given))
        if node.step.workspace_mode == "isolated":
            rows = tree.memory.changes_of(node.run.id, node.path)
            writes = {row.path for row in rows if row.state != "discarded"}
            self.unseen_writes = ""
            if node.status != COMPLETED and not self.writes:
                self.unseen_writes = UNMERGED if node.status in TERMINAL else UNFINISHED
        self.reads |= reads
        self.writes |= writes
        self._named["reads"] |= _with_item(tree, node, reads)
        self._named["writes"] |= _with_item(tree, node, writes)

    def _read(self, tool: str, args: JSON) -> Iterator[str]:
        given = args if isinstance(args, dict) else {}
        path = _plain(str(given.get("path") or ""))
        if tool in ("read_file", "edit_file"):
            yield escape(path)
        elif tool in _READING:
            glob = str(given.get("glob") or "**/*")
            yield f"{escape(path)}/{glob}" if path else glob
        elif tool == "apply_patch":
            yield from map(escape, _patched(given))
        elif tool not in _ELSEWHERE and tool not in _WRITING:
            self.unseen_reads = self.unseen_writes = PROGRAMS

    def used(self, kept: Iterable[str] = ()) -> UsedSets:
        """Return the used files, as paths. `kept` were changed by a failed step and are in no tree."""
        kept = sorted(kept)
        if self.unseen_writes not in (UNMERGED, UNFINISHED):
            return UsedSets(sorted(self.reads), sorted(self.writes), self.unseen_reads, self.unseen_writes)
        return UsedSets(
            sorted(self.reads), kept, self.unseen_reads, unmerged=KEPT if kept else self.unseen_writes
        )

    def proposed(self, key: str) -> list[str]:
        """Return a set that contains all used files."""
        plain = self.reads if key == "reads" else self.writes
        named = self._named[key]
        patterns = named if len(named) < len(plain) else plain
        if key == "writes":
            patterns = {one if "{{" in one else escape(one) for one in patterns}
        return fold_paths(patterns)


def works_on_files(node: Node) -> bool:
    """Whether a step could have used a file. Steps that ask, wait or compute values cannot."""
    return node.kind == LEAF and bool(node.attempt) and node.step.traits.workspace not in ("none", "claims")


def collect_touches(tree: RunTree, run: Run, seen: dict[str, StepTouch]) -> None:
    """Add the files that the steps of a run used, by their path in the recipe."""
    for node in run.nodes.values():
        if works_on_files(node):
            seen.setdefault(recipe_path(node.path), StepTouch()).look_at(tree, node)


def recipe_path(path: str) -> str:
    """Return the path of an instance's step in the recipe: without items and iterations."""
    return re.sub(_INSTANCE, "", path)


def suggest(recipe: str, steps: Iterable[tuple[str, Step]], seen: dict[str, StepTouch]) -> list[SuggestedSet]:
    """Suggest sets for steps whose declared sets differ from the files they used."""
    suggestions = []
    for path, step in steps:
        if (touched := seen.get(path)) is None:
            continue
        proposals: list[tuple[str, list[str], list[str], str]] = []
        runs = len(touched.runs)
        if step.posture == "writer" and not touched.unseen_writes:
            writes = touched.proposed("writes")
            note = "" if writes else "it changed nothing: a read-only role is enough"
            if writes != sorted(step.write_set):
                proposals.append(("write_set", list(step.write_set), writes, note))
        if step.read_set == EVERYTHING and touched.reads and not touched.unseen_reads:
            reads = touched.proposed("reads")
            if reads != list(EVERYTHING):
                proposals.append(("read_set", list(step.read_set), reads, ""))
        for key, declared, proposed, note in proposals:
            suggestion = SuggestedSet(
                recipe=recipe, step=path, key=key, declared=declared, proposed=proposed, runs=runs, note=note
            )
            suggestions.append(suggestion)
    return suggestions


def plan_steps(
    steps: Iterable[Step], prefix: str = "", called: Mapping[str, Plan] | None = None, depth: int = 0
) -> Iterator[tuple[str, Step]]:
    """Yield the steps of a plan, groups before the steps inside them, by their path in the recipe.

    With `called`, the steps of these recipes follow the steps that call them.
    """
    for step in steps:
        path = f"{prefix}{step.id}"
        yield path, step
        if isinstance(step.action, GroupAction):
            yield from plan_steps(step.action.steps, f"{path}/", called, depth + 1)
        elif called and isinstance(step.action, WorkflowAction) and depth < MAX_DEPTH:
            inner = called[step.action.workflow].steps if step.action.workflow in called else ()
            yield from plan_steps(inner, f"{path}/", called, depth + 1)


def fold_paths(paths: Iterable[str]) -> list[str]:
    """Return few paths unchanged, and many paths as patterns of folders and file types.

    >>> fold_paths([f"src/m{n}.py" for n in range(9)] + ["README.md"])
    ['README.md', 'src/*.py']
    """
    found = sorted(set(paths))
    if len(found) <= MAX_LISTED:
        return found
    kinds: dict[tuple[str, str], list[str]] = {}
    for path in found:
        kinds.setdefault((posixpath.dirname(path), posixpath.splitext(path)[1]), []).append(path)
    patterns = sorted(
        one
        for (folder, ending), held in kinds.items()
        for one in (held if len(held) < 3 else [posixpath.join(folder, f"*{ending}")])
    )
    if len(patterns) <= MAX_LISTED:
        return patterns
    tops = {path.partition("/")[0] if "/" in path else "" for path in found}
    return sorted(f"{top}/**" if top else "*" for top in tops)


def _with_item(tree: RunTree, node: Node, paths: set[str]) -> set[str]:
    """Replace the item's text in the paths of a map's instance with `{{item}}`."""
    above: Node | None = node
    while above is not None and above.kind != MAP:
        above = above.parent
    if above is None or not paths:
        return paths
    name = above.step.item_name
    item = tree.values.at(node).get(name)
    if not isinstance(item, str) or not item:
        return paths
    whole = re.compile(rf"(?<![^\W_]){re.escape(item)}(?![^\W_])")  # not a part of a longer word
    return {whole.sub(lambda _: "{{" + name + "}}", path) for path in paths}


def _patched(given: dict[str, JSON]) -> list[str]:
    try:
        changes = tool_names.parse(str(given.get("patch") or ""))
    except tool_names.PatchError:
        return []
    return [name for change in changes for name in (change.old, change.new) if name is not None]


def _plain(path: str) -> str:
    return "" if path in ("", ".") else posixpath.normpath(path)


MAX_STEPS = 1_000
MAX_SAID_CHARS = 200
SOON_MS = 50
"""A step that starts within this time after its last dependency did not wait for anything else."""


def explain_step(project: Project, run: str, step: str) -> ExplainedStep:
    """Explain the status of one step, with its history from the log."""
    found = find_run(project, run)
    tree, node = found.tree, found.step(step)
    path, transitions = node.run.tree_path(node.path), Transitions(tree)
    read = (transitions.read(envelope) for envelope in project.store.log(node.run.id))
    own = [one for one in read if one is not None and one.path == path]
    used: UsedSets | UnsetType = UNSET
    suggested: list[SuggestedSet] | UnsetType = UNSET
    if works_on_files(node):
        from fanfold.api.changes import changes_of_node  # it loads what drives runs; most commands only read

        alone, seen = StepTouch(), dict[str, StepTouch]()
        alone.look_at(tree, node)
        collect_touches(tree, node.run, seen)  # all instances of its step suggest the sets
        changed = (one for one in changes_of_node(project, tree, node) if one.state == "kept")
        used = alone.used(change.path for one in changed for change in one.changes)
        suggested = suggest(node.run.plan.name, [(recipe_path(node.path), node.step)], seen)
    return ExplainedStep(
        **structs.asdict(explain_in(tree, node, live_workers(project) or ())),
        ran_then="; ".join(filter(None, (_why_then(project, node), _held_by(tree, node)))),
        history=[HistoryEntry(when(one.at), one.text) for one in own],
        approval=approval_document(tree, node) if is_open(node) else UNSET,
        used=used,
        suggested=suggested,
    )


def explain_in(tree: RunTree, node: Node, workers: Sequence[WorkerRow] = ()) -> ExplanationDocument:
    """Return the kernel's explanation, with the run that holds the files a step waits for.

    A running step is also placed on one of the live workers.
    """
    found = explain_node(tree.state, node)
    message, blocked_by = found.message.replace(found.path, named_path(tree, node), 1), list(found.blocked_by)
    if node.error is not None and node.error.message:
        message = message.replace(node.error.message, gist(node.error, REASON_CHARS))
    if did_not_pass(node):
        why = why_not(tree, node)
        message = f"{message}; it did not pass{f': {why}' if why else ''}"
    if objections := last_objections(tree, node):
        message = f"{message}: {shorten_line(objections[0], MAX_SAID_CHARS)}"
    if node.reason == DEFERRED and node.status == WAITING:
        reason = wait_text(tree.state.waits[node.subject])
        message, blocked_by = f"{found.path} waits: {reason}", [node.subject]
    elif node.reason == HELD and (holder := tree.memory.holders.get((node.run.id, node.path))):
        message, blocked_by = f"{message} ({holder})", [holder]
    elif place := where_it_runs(workers, node, tree.root.id):
        message = f"{found.path} {place}" if place.startswith("waits") else f"{message} {place}"
    if node.status == RUNNING and (about := tree.memory.requests.get((node.run.id, node.path))):
        message = f"{message}; its {request_text(about)}"
    return ExplanationDocument(found.path, status_of(tree, node), found.reason, blocked_by, message)


RETRY = "; retry what did not complete: "


def explain_run(project: Project, run: str) -> ExplainedRun:
    """Explain the status of a run, and of its steps that did not complete at once."""
    tree, found = find_run(project, run)
    status = run_status(tree.state, found)
    reason, sentence, blockers = _reason(tree, found, status)
    workers, root = live_workers(project), tree.root.id
    is_left = found.status in (PENDING, RUNNING) and not project.has_owner(root)
    if is_left and workers is not None and project.continuation.takes(project, root):
        drives = any(row.drives for row in workers)
        sentence += f"; {'a worker will drive it' if drives else NO_DRIVER}"
    elif reason != "open" and found.status not in RUN_TERMINAL and not project.has_owner(tree.root.id):
        on = continue_command(tree, driven=False) or how_to_resume(tree.root.id)
        sentence += f"; no process drives it: {on}"
    elif reason == "open" and (on := continue_command(tree, driven=project.has_owner(tree.root.id))):
        sentence += f"; {on} continues it"
    if again := how_to_retry(tree):
        sentence += RETRY + again
    # Those that did not complete at the first attempt.
    nodes = [node for node in tree.nodes() if node.status != COMPLETED or node.attempt > 1]
    steps = [explain_in(tree, node, workers or ()) for node in nodes if is_below(node.run, found)]
    return ExplainedRun(
        path=found.path,
        status=status,
        reason=reason,
        blocked_by=[node.run.tree_path(node.path) for node in blockers],
        message=f"run {found.id} {sentence}",
        steps=steps[:MAX_STEPS],
    )


def _why_then(project: Project, node: Node) -> str:
    """Describe which dependency a started step had waited for."""
    if not node.started_at or isinstance(node, Composite):
        return ""
    prefix = node.path.rpartition("/")[0]
    edges = node.step.depends_on + node.step.after
    names = [f"{prefix}/{name}" if prefix else name for name in edges]
    before = [one for name in names if (one := node.run.nodes.get(name)) is not None and one.ended_at]
    log = map(event_of, project.store.log(node.run.id) if node.run.plan.open else ())
    added = (one.at for one in log if isinstance(one.data, StepAdded) and one.data.step.id == node.path)
    added_at = next(added, 0)  # 0 for a step of a recipe
    if added_at and all(one.ended_at <= added_at for one in before):
        waited = node.started_at - added_at
        late = f", and started {duration(waited)} later (slots, conflicts)" if waited >= SOON_MS else ""
        return f"it could start when it was requested{late}"
    if not before:
        return "it depends on no other step"
    last = max(before, key=lambda one: one.ended_at)
    waited = node.started_at - last.ended_at
    text = f"it could start when {last.run.tree_path(last.path)} had ended"
    if waited < SOON_MS:
        return text
    return f"{text}, and started {duration(waited)} later (slots, conflicts, retries)"


def _held_by(now: RunTree, node: Node) -> str:
    """Describe the last reason that held a ready step back, found by folding the log again."""
    if node.kind != LEAF or not node.started_at:
        return ""
    envelopes = now.store.tree(now.root.id)
    tree = RunTree.reading(now.store, next(envelopes))
    sentence = ""
    for envelope in envelopes:
        tree.catch_up([envelope])
        run = tree.state.runs.get(node.run.id)
        then = run.nodes.get(node.path) if run is not None else None
        if then is None or then.status != READY or then.holding or tree.state.agenda:
            if then is not None and then.started_at:
                break
            continue
        why = explain_node(tree.state, then)
        names = ", ".join(why.blocked_by[:5])
        sentence = SENTENCES[why.reason].removeprefix("is ready; ").removeprefix("is held back: ")
        sentence = f"until then it was held back: {sentence}" + (f" ({names})" if names else "")
    return sentence


def _reason(tree: RunTree, run: Run, status: str) -> tuple[str, str, list[Node]]:
    nodes = list(run.nodes.values())
    if status in RUN_TERMINAL:
        failed = [node for node in nodes if node.status in ("failed", "timed_out")]
        error = run_error(tree, run)
        text = status.replace("_", " ") + (f": {gist(error, REASON_CHARS)}" if error is not None else "")
        return status, text, failed
    if status == PENDING:
        return "pending", "has not started", []
    if status == PAUSED:
        error = run_error(tree, run)
        reason = "budget" if tree.state.pausing == "budget" else "paused"
        return reason, error.message.removeprefix("the run ") if error is not None else "is paused", []
    if status == WAITING and tree.state.deferred and not any(is_open(node) for node in nodes):
        wait = min(tree.state.waits.values(), key=lambda one: one.until)
        return wait.reason, f"waits: {wait_text(wait)}", []
    if status == WAITING and run.growing:
        lost = [node for node in nodes if node.status == WAITING and node.reason == INTERRUPTED]
        return "open", "is open: it waits for a request", lost
    if status == WAITING:
        return "approval", SENTENCES["approval"], [node for node in nodes if is_open(node)]
    flying = [node for node in tree.state.in_flight.values() if node.run is run]
    return "running", SENTENCES["running"], sorted(flying, key=lambda node: node.order)


# -----------------------------------------------------------------------------------------------------------
# What-if: replay recorded durations through the scheduler with another number of slots

MAX_SLOTS = 1_024


def what_if(project: Project, run: str, max_concurrency: int) -> WhatIf:
    """Replay the tree of `run` with `max_concurrency` slots."""
    if not 1 <= max_concurrency <= MAX_SLOTS:
        message = f"--max-concurrency must be from 1 to {MAX_SLOTS}, not {max_concurrency}"
        raise AuthorError("usage.out_of_range", message)
    root = project.resolve(run).root_run_id
    recording = Recording(event_of(envelope) for envelope in project.store.tree(root))
    if recording.plan.open:
        message = f"run {root} has no plan: its steps started when they were requested"
        raise AuthorError("run.open", message, hint="ask about the run of a recipe; fanfold runs lists them")
    replayed = _Replay(recording, recording.settings.max_concurrency)
    asked = _Replay(recording, max_concurrency)
    path, length = asked.critical_path()
    was = project.view(root)
    return WhatIf(
        run_id=root,
        recipe=recording.plan.name,
        version=recording.plan.version,
        max_concurrency=Slots(recording.settings.max_concurrency, max_concurrency),
        time_ms=Time(was.state.clock, replayed.host.now, asked.host.now, sum(asked.spent.values())),
        attempts=len(asked.host.begun),
        critical_path=path,
        critical_path_ms=length,
        notes=list(_notes(recording, asked, over=was.root.status in RUN_TERMINAL)),
    )


class _Replay:
    """Drives a recording through the scheduler with a number of slots, and no other limit of the tree."""

    def __init__(self, recording: Recording, slots: int) -> None:
        settings = replace(recording.settings, budget_tokens=None, budget_micro_usd=None)
        settings = replace(settings, max_concurrency=slots, max_agents=UNBOUNDED, max_steps=UNBOUNDED)
        self.world = RecordedResults(recording)
        plan, run_id = recording.plan, recording.run_id
        self.host = ForecastHost(plan, settings, self.world, run_id=run_id, largest=UNBOUNDED)
        self.host.drive()
        self.spent: dict[Node, int] = {}
        """Total duration of the attempts of each step; waits for people count as 0."""
        for begun in self.host.begun:
            asks = begun.node.step.traits.waits == "person"
            took = 0 if asks else min(begun.until, self.host.now) - begun.at
            self.spent[begun.node] = self.spent.get(begun.node, 0) + took

    def critical_path(self) -> tuple[list[str], int]:
        steps = sorted(self.spent, key=lambda node: node.order)
        took = [self.spent[step] + self.host.backed_off.get(step, 0) for step in steps]
        numbers = StepOrder(self.host.state.root.scope, steps).critical_path(took.__getitem__)
        paths = [steps[number].run.tree_path(steps[number].path) for number in numbers]
        return paths, sum(took[number] for number in numbers)


def _notes(recording: Recording, asked: _Replay, *, over: bool) -> Iterator[str]:
    if not over:
        yield "the run is not over: this is about the steps that have ended"
    elif asked.world.unknown:
        yield f"{counted(asked.world.unknown, 'step')} did not end; what they took is not known"
    if asked.world.people:
        yield f"waits for people are left out ({counted(asked.world.people, 'question')})"
    if recording.lost:
        yield f"{counted(recording.lost, 'execution')} ended with the process; that time is not known"
    timeout = recording.settings.timeout_ms
    if timeout is not None and asked.host.now > timeout:
        yield f"this is longer than the run's time limit of {duration(timeout)}"
