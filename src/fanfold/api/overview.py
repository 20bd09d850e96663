"""Open items, running work and spending over all runs of a project; comparisons, recipes and sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice
from statistics import median
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from fanfold.agents import entries
from fanfold.api.agents import RoleList, list_roles
from fanfold.api.approvals import (
    REASON_CHARS,
    PendingQuestion,
    PendingQuestions,
    gist,
    pending_questions,
    status_of,
    stopped_at,
)
from fanfold.api.changes import diff
from fanfold.api.display import (
    ListedRun,
    OwnerDocument,
    RunRow,
    StepUsage,
    described,
    owner_of,
    run_row,
    step_usage,
    when,
)
from fanfold.api.explain import explain_in
from fanfold.api.fork import RecipeChanges
from fanfold.api.fork import compare as compare_recipes
from fanfold.api.graph import Drawing, draw
from fanfold.api.history import ResolvedRun, Spend, find_run, transcript
from fanfold.api.ownership import abandoned
from fanfold.api.permission import consent_of
from fanfold.api.project import Project
from fanfold.api.recipes import (
    CheckedRecipe,
    CheckReport,
    RecipeDocument,
    RecipeInput,
    check_found,
    recipe_document,
)
from fanfold.api.run_documents import PAUSED_BECAUSE, run_error, wait_documents
from fanfold.api.step_documents import StepPage, step_page
from fanfold.api.transcripts import Transcript
from fanfold.api.workers import RunningStep, WorkerRow, live_workers, steps_on
from fanfold.engine.run_tree import RunTree, wall_clock_ms
from fanfold.errors import AuthorError, FanfoldError, NotFoundError, WorldError
from fanfold.kernel.events import NOTHING_SPENT, Failure
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import LEAF, PAUSED, PENDING, RUNNING, UNSUCCESSFUL, WAITING, Node
from fanfold.language.draft import FoundRecipe
from fanfold.language.json_text import as_text
from fanfold.language.library import is_path, said_by_file
from fanfold.language.terminal import shorten_line, shorten_start
from fanfold.sessions.log import read_recorded
from fanfold.steps.records import is_agent, session_of
from fanfold.store.protocol import RunHead, Store

NeedKind: TypeAlias = Literal["approval", "question", "delivery", "stuck", "paused", "delayed", "failed"]


MAX_RUNNING, MAX_FAILED, MAX_FINISHED, MAX_PAUSED = 50, 20, 8, 20
COUNTED = 1_000
PIECE = 200
STARTING_MS = 15_000
"""A run in a separate process has no owner until that process has started."""
MAX_RUNS = 200
"""Maximum of runs that are read per status. Waiting, running and paused runs may have open questions."""
MAX_PULSES = 500
ORPHANED = "The process that ran it has ended. Resume the run to continue it."


class OpenItem(Struct, frozen=True):
    """Something that needs the user. `state` completes the sentence that begins with the step or recipe."""

    kind: NeedKind
    state: str
    run_id: str
    recipe: str
    step: str | None
    message: str
    since: str | None


class DaySpend(Struct, frozen=True):
    """The spending of the runs that were created on one day, in local time."""

    day: str
    spend: Spend


class SpendDocument(Struct, frozen=True):
    today: Spend
    week: Spend
    days: list[DaySpend]
    """The last seven days, oldest first."""


class FinishedRun(Struct, frozen=True):
    run: ListedRun
    answer: str
    """The first line of its output, or of its error."""


class Home(Struct, frozen=True):
    needs: list[OpenItem]
    running: list[ListedRun]
    finished: list[FinishedRun]
    """The latest runs that have ended, newest first."""
    spend: SpendDocument
    recipes: int
    runs: int
    """Number of runs, up to a thousand."""


NEEDS: dict[NeedKind, str] = {
    "approval": "waits for your approval",
    "question": "waits for your answer",
    "delivery": "waits for your approval to deliver",
    "stuck": "has no process that runs it",
    "paused": "is paused",
    "delayed": "waits for its next attempt",
    "failed": "failed",
}
_KINDS: dict[str, NeedKind] = {"ask": "question", "deliver": "delivery"}
"""Types of steps that wait for a person in their own way; an agent may ask a question, too."""


def show_home(project: Project) -> Home:
    """Return the overview of a project as it is now."""
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    week = list(_since(project, midnight - timedelta(days=6)))
    dates = [(midnight - timedelta(days=back)).date().isoformat() for back in range(6, -1, -1)]
    days: dict[str, list[RunHead]] = {day: [] for day in dates}
    for head in week:
        day = datetime.fromtimestamp(head.created_at / 1_000).astimezone().date().isoformat()
        days.setdefault(day, []).append(head)
    today = [head for head in week if head.created_at >= midnight.timestamp() * 1_000]
    by_day = [DaySpend(day, _spend(heads)) for day, heads in days.items()]
    ended = [head for head in week if head.ended_at is not None][:MAX_FINISHED]
    return Home(
        needs=list(_open_items(project, week)),
        running=[described(project, head) for head in project.heads(RUNNING, limit=MAX_RUNNING)],
        finished=[FinishedRun(described(project, head), _first_line(project, head)) for head in ended],
        spend=SpendDocument(_spend(today), _spend(week), by_day),
        recipes=len(project.library.names()),
        runs=len(project.heads(limit=COUNTED)),
    )


def _first_line(project: Project, head: RunHead) -> str:
    """Return the first line of the answer of a finished run, or its failure."""
    if head.output is None:
        return gist(head.error, REASON_CHARS) if head.error is not None else ""
    try:
        text = as_text(msgspec.json.decode(project.store.blob(head.output)))
    except NotFoundError:
        return ""
    lines = (line.strip("# *") for line in text.splitlines())
    return shorten_line(next(filter(None, lines), ""), REASON_CHARS)


def _since(project: Project, moment: datetime) -> Iterator[RunHead]:
    """Yield root runs that were created since then, newest first."""
    earliest, before = moment.timestamp() * 1_000, None
    while project.has_runs:
        heads = project.store.heads(before=before, limit=PIECE)
        for head in heads:
            if head.created_at < earliest:
                return
            yield head
        if len(heads) < PIECE:
            return
        before = heads[-1].run_id


def _open_items(project: Project, week: Sequence[RunHead]) -> Iterator[OpenItem]:
    """Yield open questions, then runs that are stuck or paused, then failed runs of the week."""
    try:
        questions = _questions_in(project, WAITING, RUNNING)  # in a paused run, the pause comes first
    except FanfoldError:
        questions = []  # `doctor` reports a log that cannot be read
    for one in questions:
        kind = _KINDS.get(one.type, "question" if one.kind == "question" else "approval")
        yield OpenItem(kind, NEEDS[kind], one.run_id, one.recipe, one.step, one.message, one.since)
    for root in abandoned(project):
        head = project.resolve(root)
        if _is_stuck(head, owner_of(project, root)):
            since = when(head.started_at)
            yield OpenItem("stuck", NEEDS["stuck"], root, head.recipe, None, ORPHANED, since)
    for head in project.heads(PAUSED, WAITING, limit=MAX_PAUSED):
        try:
            tree = project.view(head.run_id)
        except FanfoldError:
            continue
        waits = wait_documents(tree.state) if head.status == WAITING else []
        error = run_error(tree, tree.root)
        message = "" if error is None else error.message.removeprefix(PAUSED_BECAUSE)
        since = when(tree.state.now)
        if waits:
            yield OpenItem("delayed", NEEDS["delayed"], head.run_id, head.recipe, None, waits[0].text, since)
        elif head.status == PAUSED and not tree.state.plan.open:  # a chat may rest
            yield OpenItem("paused", NEEDS["paused"], head.run_id, head.recipe, None, message, since)
    continued = {head.forked_from for head in week}  # forks and retries
    failed = (head for head in week if head.status in ("failed", "partial", "timed_out"))
    for head in islice((head for head in failed if head.run_id not in continued), MAX_FAILED):
        state, step, error = NEEDS["failed"], None, head.error or _tolerated(project, head)
        if error is not None:
            state = "timed out" if error.kind == "timeout" else state
            step = error.step or None
        message = gist(error, REASON_CHARS) if error is not None else f"the run is {head.status}"
        yield OpenItem("failed", state, head.run_id, head.recipe, step, message, when(head.ended_at))


def _tolerated(project: Project, head: RunHead) -> Failure | None:
    """Return the first failure of a run that has an output in spite of it."""
    try:
        nodes = project.view(head.run_id).nodes()
    except FanfoldError:
        return None
    for node in nodes:
        if node.kind == LEAF and node.status in UNSUCCESSFUL and node.error is not None:
            return structs.replace(node.error, step=node.run.tree_path(node.path))
    return None


def _is_stuck(head: RunHead, owner: OwnerDocument | None) -> bool:
    """Whether a run that should continue has no owner. A new run may still be waiting for its process."""
    return not owner.alive if owner is not None else head.created_at <= wall_clock_ms() - STARTING_MS


def _spend(heads: Sequence[RunHead]) -> Spend:
    priced = [head for head in heads if head.usage.micro_usd is not None]
    total = sum((head.usage for head in heads), NOTHING_SPENT)
    dollars = sum(head.usage.micro_usd or 0 for head in priced) / 1_000_000
    agents = sum(head.agents for head in heads)
    unpriced = len(heads) - len(priced)
    return Spend(len(heads), agents, total.input_tokens, total.output_tokens, dollars, unpriced)


def all_questions(project: Project) -> PendingQuestions:
    """List every open question, oldest first. An answer continues a run without an owner."""
    return PendingQuestions(_questions_in(project, WAITING, RUNNING, PAUSED))


def _questions_in(project: Project, *statuses: str) -> list[PendingQuestion]:
    heads = project.heads(*statuses, limit=MAX_RUNS)
    found = [one for head in heads for one in pending_questions(project.view(head.run_id))]
    return sorted(found, key=lambda one: one.since or "")


class Pulse(Struct, frozen=True):
    """The process that owns the tree of a run, and the age of its last heartbeat; null without an owner.

    Heartbeats are no events, so nothing that is cached until the next event may contain one.
    """

    run_id: str
    owner: OwnerDocument | None
    heartbeat_age_ms: int | None
    is_stuck: bool
    """Whether the run needs an owner to continue and has none."""
    state: str
    """The text that replaces the heartbeat; empty while the owner is alive."""
    hint: str
    steps: list[RunningStep]
    """The steps that workers of a cluster execute."""


class Pulses(Struct, frozen=True):
    items: list[Pulse]


def pulse_of(project: Project, run: str) -> Pulse:
    """Return the pulse of the tree that a run belongs to."""
    head = project.resolve(project.resolve(run).root_run_id)
    return _pulse(project, head, live_workers(project) or ())


def live_pulses(project: Project) -> Pulses:
    """List the pulses of running, waiting and pending root runs, newest first in each status."""
    heads = project.heads(RUNNING, WAITING, PENDING, limit=MAX_PULSES)
    workers = live_workers(project) or ()
    return Pulses([_pulse(project, head, workers) for head in heads])


def _pulse(project: Project, head: RunHead, workers: Sequence[WorkerRow]) -> Pulse:
    owner = owner_of(project, head.run_id)
    is_stuck = head.status in (PENDING, RUNNING) and _is_stuck(head, owner)
    age = project.store.heartbeat_age_ms(head.run_id)
    if is_stuck:
        state, hint = "no process is running it", ORPHANED
    elif age is not None and owner is not None and owner.alive:
        state, hint = "", "Time since the last heartbeat of the process that owns this run."
    elif head.status == WAITING:
        state, hint = "no process needed", "It needs no process until it is answered or can continue."
    else:
        state, hint = "starting", "Its process has not started yet."
    return Pulse(head.run_id, owner, age, is_stuck, state, hint, steps_on(workers, head.run_id))


# -----------------------------------------------------------------------------------------------------------
# Compare two runs: their recipes, their inputs, and the outcome of each step


class ComparedInput(Struct, frozen=True):
    name: str
    a: JSON
    b: JSON
    same: bool


class ComparedSide(Struct, frozen=True):
    """A step in one of the two."""

    status: str
    output: JSON
    usage: StepUsage | None
    """None for steps that spend nothing."""
    seconds: float | None


class ComparedStep(Struct, frozen=True):
    """`same`: both ended alike, with the same output. A side is None where the run has no such step."""

    path: str
    a: ComparedSide | None
    b: ComparedSide | None
    same: bool


class Comparison(Struct, frozen=True):
    a: RunRow
    b: RunRow
    recipe: RecipeChanges
    inputs: list[ComparedInput]
    steps: list[ComparedStep]
    left_off: int
    """Number of steps that are not shown."""


MAX_STEPS = 1_000


def compare_runs(project: Project, a: str, b: str) -> Comparison:
    """Compare two runs step by step, including steps that only one of them has."""
    one, two = find_run(project, a), find_run(project, b)
    left, right = _steps(one), _steps(two)
    paths = list(dict.fromkeys((*left, *right)))
    steps = []
    for path in paths[:MAX_STEPS]:
        a_side, b_side = _side(one.tree, left.get(path)), _side(two.tree, right.get(path))
        same = a_side and b_side and (a_side.status, a_side.output) == (b_side.status, b_side.output)
        steps.append(ComparedStep(path, a_side, b_side, bool(same)))
    given, other = one.tree.values.inputs(one.run), two.tree.values.inputs(two.run)
    return Comparison(
        a=_row(project, one),
        b=_row(project, two),
        recipe=compare_recipes(one.run.plan, two.run.plan),
        inputs=[
            ComparedInput(name, given.get(name), other.get(name), given.get(name) == other.get(name))
            for name in dict.fromkeys((*given, *other))
        ],
        steps=steps,
        left_off=max(0, len(paths) - MAX_STEPS),
    )


def _row(project: Project, found: ResolvedRun) -> RunRow:
    tree = found.tree
    return run_row(tree.head(found.run), owner_of(project, found.root_id), stopped_at(tree))


def _steps(found: ResolvedRun) -> dict[str, Node]:
    """Return the leaf steps of a run and of the runs below it, by their path relative to the run."""
    prefix = f"{found.run.path}/" if found.run.path else ""
    by_path = {node.run.tree_path(node.path): node for node in found.tree.nodes() if node.kind == LEAF}
    return {path.removeprefix(prefix): node for path, node in by_path.items() if path.startswith(prefix)}


def _side(tree: RunTree, node: Node | None) -> ComparedSide | None:
    if node is None:
        return None
    usage = tree.usage_of(node)
    took = (node.ended_at - node.started_at) / 1_000 if node.ended_at and node.started_at else None
    return ComparedSide(
        status_of(tree, node),
        tree.blobs.get(node.output) if node.output is not None else None,
        None if usage is None else step_usage(usage),
        took,
    )


# -----------------------------------------------------------------------------------------------------------
# The recipes of a project for the console: list, page, check of a text, saving
#
# A recipe is given by name, never by path: only recipes of the library can be read over a network.


class LastRun(Struct, frozen=True):
    run_id: str
    status: str
    created_at: str | None


class RecipeRow(Struct, frozen=True, kw_only=True):
    """A recipe in a list, with statistics of its runs; a value that is not known is None."""

    name: str
    version: int
    description: str
    source: str
    """`project`, `user` or `builtin`."""
    file: str
    warnings: list[str]
    inputs: list[RecipeInput] | None
    """None if it cannot be compiled; then the warnings have the reason."""
    runs: int
    last_run: LastRun | None
    median_s: float | None
    median_usd: float | None


class RecipeRows(Struct, frozen=True):
    items: list[RecipeRow]
    next: None = None


class RecipePage(Struct, frozen=True, kw_only=True):
    """One recipe: its text, its diagnostics, and its document and graph if it compiles."""

    name: str
    source: str
    file: str
    text: str
    digest: str
    """The digest of the text. A later save must carry it."""
    writable: bool
    check: CheckReport
    recipe: RecipeDocument | None
    graph: Drawing | None
    needs: list[str]
    """The effects that a run needs permission for, one per line."""


class RecordedRecipe(Struct, frozen=True):
    """The recipe that a run recorded when it was created, and the inputs that the run got."""

    recipe: RecipeDocument
    inputs: dict[str, JSON]
    in_library: bool
    """Whether the library has a recipe with this name."""
    scripted: bool


def recorded_recipe(project: Project, run: str) -> RecordedRecipe:
    """Return the recipe of a run as it was when the run was created."""
    tree, found = find_run(project, run)
    return RecordedRecipe(
        recipe_document(found.plan, ""),
        tree.values.inputs(found),
        found.plan.name in project.library.names(),
        described(project, project.resolve(found.id)).scripted,
    )


class CheckedText(CheckReport, frozen=True, kw_only=True):
    """The diagnostics of a text, and its graph if it compiles."""

    graph: Drawing | None
    needs: list[str]


LOOKED_AT = 50
"""Number of newest runs of a recipe that the usual time and price are computed from."""
PROJECT = "project"


def list_shelf(project: Project) -> RecipeRows:
    """List every recipe with statistics about its runs."""
    rows = []
    for one in project.library.list():
        warnings, plan = list(one.warnings), None
        try:
            checked = find_named(project, f"{one.name}@{one.version}")
            plan = checked.plan
            warnings += [found.message for found in checked.diagnostics if found.severity == "error"]
        except FanfoldError as error:
            warnings.append(error.message)
        heads = project.heads(recipe=one.name, limit=LOOKED_AT)
        done = [head for head in heads if head.status == "completed"]
        prices = [head.usage.micro_usd / 1_000_000 for head in done if head.usage.micro_usd is not None]
        ended = [(head.started_at, head.ended_at) for head in done]
        times = [(end - start) / 1_000 for start, end in ended if start and end]
        row = RecipeRow(
            name=one.name,
            version=one.version,
            description=one.description,
            source=one.origin,
            file=one.file,
            warnings=list(dict.fromkeys(warnings)),
            inputs=None if plan is None else recipe_document(plan, one.file).inputs,
            runs=len(heads),
            last_run=LastRun(heads[0].run_id, heads[0].status, when(heads[0].created_at)) if heads else None,
            median_s=median(times) if times else None,
            median_usd=median(prices) if prices else None,
        )
        rows.append(row)
    return RecipeRows(rows)


def find_named(project: Project, name: str, *, scripted: bool = False) -> CheckedRecipe:
    """Return a recipe of the library by its name, compiled. A path is not found."""
    if is_path(name):
        message = f'there is no recipe "{name[:80]}"'
        raise NotFoundError("recipe.unknown_workflow", message, hint="GET /api/recipes lists them")
    return check_found(project, name, project.library.find(name), scripted=scripted)


def show_page(project: Project, name: str) -> RecipePage:
    """Return one recipe with its text."""
    checked = find_named(project, name)
    found = checked.found
    return RecipePage(
        name=name,
        source=found.origin,
        file=found.file,
        text=found.data.decode("utf-8", "replace"),
        digest=sha256(found.data).hexdigest(),
        writable=_own_name(found) is not None,
        check=CheckReport(checked.ok, checked.diagnostics),
        recipe=recipe_document(checked.plan, found.file) if checked.plan is not None else None,
        graph=draw(checked.plan) if checked.plan is not None else None,
        needs=needs_of(project, checked),
    )


def needs_of(project: Project, checked: CheckedRecipe) -> list[str]:
    """Return the effects that a run of a recipe needs permission for."""
    return [] if checked.plan is None else consent_of(project, checked.plan, project.roles.find).needs


def try_text(project: Project, text: str, name: str = "recipe") -> CheckedText:
    """Check a text as if it were in the project's folder of recipes; nothing is written."""
    checked = _tried(project, text, name)
    return CheckedText(
        ok=checked.ok,
        diagnostics=checked.diagnostics,
        graph=draw(checked.plan) if checked.ok and checked.plan is not None else None,
        needs=needs_of(project, checked),
    )


def _tried(project: Project, text: str, name: str) -> CheckedRecipe:
    if is_path(name) or "\0" in name:
        raise AuthorError("recipe.bad_value", f'"{name[:80]}" cannot be the name of a recipe')
    file = project.memory / "workflows" / f"{name}.yaml"
    found = FoundRecipe(text.encode("utf-8", "surrogatepass"), str(file), PROJECT)
    return check_found(project, name, found)


def save_text(project: Project, name: str, text: str, seen: str | None) -> RecipePage:
    """Save a text under a name in the project. `seen` is the digest of the text that it replaces.

    Raises `recipe.changed` if the stored text has changed since, and `FileRefused` for a text with errors.
    """
    try:
        now = find_named(project, name).found
    except NotFoundError:
        now = None
    there = None if now is None else sha256(now.data).hexdigest()
    if there != seen:
        message = f'recipe "{name}" changed since you read it' if there else f'there is no recipe "{name}"'
        raise WorldError("recipe.changed", message, hint="read it again", details={"digest": there})
    own = name if now is None or now.origin != PROJECT else _own_name(now)
    if own is None:
        raise AuthorError(
            "recipe.not_writable", f"{now.file if now else name} has no file that can be replaced"
        )
    _tried(project, text, own).runnable()
    project.library.save(own, text)
    return show_page(project, name)


def _own_name(found: FoundRecipe) -> str | None:
    """Return the name under which a recipe of the project can be saved again; None if there is none."""
    if found.origin != PROJECT:
        return None
    name, version = said_by_file(found.file)
    stem = name if version is None else f"{name}@{version}"
    return stem if stem is not None and found.file.endswith(f"/workflows/{stem}.yaml") else None


# -----------------------------------------------------------------------------------------------------------
# Running agents over all runs, and the transcript of any session by its id

SESSIONS_MAX_RUNS = 100
MAX_WORDS = 120
MAX_TEXT = 2_000


class LiveSession(Struct, frozen=True):
    """An agent that works. `step` is a tree path of the whole run `run_id`."""

    session_id: str
    run_id: str
    recipe: str
    step: str
    role: str
    task: str
    since: str | None
    attempt: int


class AgentsDocument(Struct, frozen=True):
    """The roles of a project, and the agents that are running."""

    roles: RoleList
    sessions: list[LiveSession]


def show_agents(project: Project, history: Project) -> AgentsDocument:
    """Return the roles of a project as its files are now, and the agents in its runs."""
    return AgentsDocument(list_roles(project), [session for session, _ in _live_sessions(history)])


def _live_sessions(project: Project) -> Iterator[tuple[LiveSession, Node]]:
    """Yield every running agent according to the logs. A run without an owner has none."""
    heads = project.heads(RUNNING, WAITING, limit=SESSIONS_MAX_RUNS)
    trees = ((head, project.view(head.run_id)) for head in heads if project.has_owner(head.run_id))
    return (
        (
            LiveSession(
                session_id=session_of(node),
                run_id=head.run_id,
                recipe=head.recipe,
                step=node.run.tree_path(node.path),
                role=node.step.traits.role or "",
                task=tree.memory.tasks.get((node.run.id, node.path), ""),
                since=when(node.started_at),
                attempt=node.attempt,
            ),
            node,
        )
        for head, tree in trees
        for node in tree.state.in_flight.values()
        if is_agent(node) and node.status == RUNNING
    )


def session_transcript(project: Project, session: str) -> Transcript:
    """Return the transcript of a session, regardless of its run."""
    first = next(project.store.log(session), None) if project.has_runs else None
    if first is None or first.tree_seq:
        message = f"there is no session {session}"
        raise NotFoundError("session.not_found", message, hint="GET /api/agents lists the running ones")
    return transcript(project, first.root_run_id, session)


class Activity(Struct, frozen=True):
    """The current activity of an agent. `path` is a tree path of the whole run.

    An agent with empty `words` is no longer working. `text` is the end of the response that it is writing.
    """

    run_id: str
    path: str
    tool: str
    words: str
    tokens: int
    text: str = ""


class Activities:
    """The current activities of agents: the last recorded entry of each, its tokens and the text it writes.

    Use it from one thread that polls: of each session only new entries are read. `stirred` is called in
    another thread when an agent writes.
    """

    def __init__(self, stirred: Callable[[], None]) -> None:
        self._stirred = stirred
        self._heard: dict[str, tuple[int, Activity]] = {}
        """By session: the number of the last entry that was read, and the activity after it."""
        self._texts: dict[tuple[str, str], str] = {}
        """The response that an agent is writing, by the run and the path of its step."""
        self._followed: dict[str, ExitStack] = {}

    def look(self, project: Project) -> list[Activity]:
        """Return the activity of every running agent."""
        current, found = {}, []
        for session, node in _live_sessions(project):
            written = (node.run.id, node.path)
            task = shorten_line(session.task.strip().partition("\n")[0], MAX_WORDS)
            first = (0, Activity(session.run_id, session.step, "", task, 0))
            seq, activity = self._heard.get(session.session_id, first)
            for envelope, entry in read_recorded(project.store, session.session_id, seq):
                seq, activity = envelope.seq, _after(activity, entry)
                self._texts.pop(written, None)
            current[session.session_id] = (seq, activity)
            if text := self._texts.get(written, ""):
                words = shorten_start(" ".join(text.split()), MAX_WORDS) or activity.words
                activity = structs.replace(activity, tool="", words=words, text=text)
            found.append(activity)
        self._heard = current
        self._follow(project.store, {activity.run_id for activity in found})
        return found

    def close(self) -> None:
        """Hear no more updates."""
        while self._followed:
            self._followed.popitem()[1].close()

    def _follow(self, store: Store, roots: set[str]) -> None:
        """Hear the updates of exactly these trees."""
        for root in roots - self._followed.keys():
            self._followed[root] = ExitStack()
            self._followed[root].enter_context(store.updates(root, self._take))
        for root in self._followed.keys() - roots:
            self._followed.pop(root).close()
        if not roots:
            self._texts = {}

    def _take(self, update: str) -> None:
        try:
            heard = msgspec.json.decode(update, type=entries.LiveUpdate)
        except msgspec.MsgspecError:
            return  # from another version
        key, news = (heard.run, heard.step), heard.news
        if isinstance(news, entries.TextDelta):
            self._texts[key] = (self._texts.get(key, "") + news.delta)[-MAX_TEXT:]
        elif not isinstance(news, entries.UsageUpdate):
            self._texts.pop(key, None)
        self._stirred()


def _after(before: Activity, entry: entries.Entry) -> Activity:
    """Return the activity of an agent after an entry."""
    paid = entries.paid_in(entry)
    tokens = before.tokens + (0 if paid is None else paid.tokens)
    tool, words = before.tool, before.words
    match entry:
        case entries.ToolCall() | entries.ToolResult():
            tool, words = entry.tool, f"→ {entry.tool}"
        case entries.FailedRequest():
            tool, words = "", f"{entry.kind}: {entry.message}"[:MAX_WORDS]
        case entries.QueuedRequest():
            tool, words = "", entry.message
        case entries.Response() if entry.tool_calls:
            tool = entry.tool_calls[-1].tool
            words = f"→ {tool}"
        case entries.Response() if entry.text:
            tool, words = "", shorten_line(entry.text, MAX_WORDS)
    return structs.replace(before, tool=tool, words=words, tokens=tokens)


# -----------------------------------------------------------------------------------------------------------
# One step with all its details


def show_step(project: Project, run: str, step: str, at: int | None = None) -> StepPage:
    """Return a step of a run, as it is now or as it was after event `at`."""
    found = find_run(project, run, at)
    turns = found.turns(step)
    node = turns[-1] if turns else found.step(step)
    try:
        files = diff(project, run, step, at).steps
    except NotFoundError:
        files = []
    return step_page(found.tree, node, project.store.log(node.run.id), files, explain_in(found.tree, node))
