"""Times, durations, usage and rows of runs, as people and scripts read them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fanfold.api.project import Project
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.state import PAUSED
from fanfold.language.json_text import as_text
from fanfold.language.terminal import shorten_line
from fanfold.steps.ids import RUN_ID_CHARS, failure_value
from fanfold.store.protocol import RunHead

if TYPE_CHECKING:
    from fanfold.kernel.state import Node


def when(at: int | None) -> str | None:
    """Format a time as ISO 8601 in UTC with milliseconds."""
    if not at:
        return None
    second, ms = divmod(at, 1_000)
    return f"{_second(second)}.{ms:03}Z"


def local_time(at: int | str) -> str:
    """Format milliseconds, or a time of a document, as date and 24-hour time in the local time zone."""
    point = datetime.fromtimestamp(at // 1_000, UTC) if isinstance(at, int) else datetime.fromisoformat(at)
    return point.astimezone().strftime("%Y-%m-%d %H:%M:%S")


@lru_cache(maxsize=256)
def _second(at: int) -> str:
    """Format a second as ISO 8601. It is cached, because many events of a log share a second."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 agent`, `2 agents`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names and the number of the rest.

    >>> first_of(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def unified_difference(before: str, after: str, old_name: str, new_name: str, *, context: int = 3) -> str:
    """Return the difference of two texts as a unified diff, in which every line ends with a line break."""
    from difflib import unified_diff

    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = unified_diff(old, new, old_name, new_name, n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def elapsed_ms(since: str | None, until: str | None = None) -> int | None:
    """Return the milliseconds between two times of a document, or between one and now."""
    if since is None:
        return None
    end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    return round((end - datetime.fromisoformat(since)).total_seconds() * 1_000)


def duration(ms: int) -> str:
    """Format a duration, as short as possible.

    >>> duration(34), duration(1234), duration(75_000), duration(3_725_000)
    ('34 ms', '1.2 s', '1 min 15 s', '1 h 2 min')
    """
    if ms < 100:
        return f"{max(0, ms)} ms"
    seconds = ms / 1_000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


# -----------------------------------------------------------------------------------------------------------
# Rows of runs in lists, made from a run's head alone: listing reads no log and loads no scheduler


class StepUsage(Struct, frozen=True):
    """Tokens and cost; an unknown price is null."""

    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class RunUsage(StepUsage, frozen=True):
    agents: int


class FailureDocument(Struct, frozen=True):
    """Why a step or run did not succeed."""

    kind: str = field(name="class")
    code: str
    message: str
    hint: str
    retryable: bool
    step: str
    attempt: int


class OwnerDocument(Struct, frozen=True):
    """The process that drives a run, or that did when it died."""

    pid: int
    alive: bool
    machine: str = ""
    """The host name of its machine."""


class RunRow(Struct, frozen=True):
    """A run in a list."""

    run_id: str
    recipe: str
    version: int
    status: str
    root_run_id: str
    parent_run_id: str | None
    nesting_depth: int
    execution_path: str
    created_at: str | None
    started_at: str | None
    ended_at: str | None
    forked_from: str | None
    error: FailureDocument | None
    usage: RunUsage
    owner: OwnerDocument | UnsetType | None = UNSET
    stopped_at: str | None = None
    """When its clock stopped, if it is paused."""


class ListedRun(RunRow, frozen=True, kw_only=True):
    """A run in a list that was searched for."""

    inputs: str
    """Its inputs in one line."""
    scripted: bool
    """Whether its agents are scripted."""


def run_row(
    head: RunHead, owner: OwnerDocument | UnsetType | None = UNSET, stopped_at: int | None = None
) -> RunRow:
    """Return the row of a run from its head alone."""
    return RunRow(
        run_id=head.run_id,
        recipe=head.recipe,
        version=head.version,
        status=head.status,
        root_run_id=head.root_run_id,
        parent_run_id=head.parent_run_id,
        nesting_depth=head.nesting_depth,
        execution_path=head.execution_path,
        created_at=when(head.created_at),
        started_at=when(head.started_at),
        ended_at=when(head.ended_at),
        forked_from=head.forked_from,
        error=failure_document(head.error),
        usage=run_usage(head.usage, head.agents),
        owner=owner,
        stopped_at=when(stopped_at),
    )


def failure_document(failure: Failure | None, node: Node | None = None) -> FailureDocument | None:
    """Return the document of a failure; `node` is the step that failed."""
    value = failure_value(failure, node)
    return None if value is None else msgspec.convert(value, FailureDocument)


def step_usage(usage: Usage) -> StepUsage:
    return StepUsage(usage.input_tokens, usage.output_tokens, dollars(usage.micro_usd))


def add_usage(parts: Sequence[RunUsage]) -> RunUsage:
    """Add usages. The price is unknown if one of them is unknown."""
    prices = [one.cost_usd for one in parts]
    return RunUsage(
        sum(one.input_tokens for one in parts),
        sum(one.output_tokens for one in parts),
        None if None in prices else sum(price or 0.0 for price in prices),
        sum(one.agents for one in parts),
    )


def run_usage(usage: Usage, agents: int) -> RunUsage:
    return RunUsage(usage.input_tokens, usage.output_tokens, dollars(usage.micro_usd), agents)


def dollars(micro_usd: int | None) -> float | None:
    return None if micro_usd is None else micro_usd / 1_000_000


def price_text(usd: float | None) -> str:
    return "price unknown" if usd is None else f"${usd:.4f}"


# -----------------------------------------------------------------------------------------------------------
# List runs, with the owner of each

_RUN_ID = rf"(?a)[0-9a-z]{{{RUN_ID_CHARS}}}"


MAX_INPUT_CHARS = 160
PIECE = 200
"""Number of runs that are read at a time during a search."""
MAX_SEARCHED = 10_000


def select_runs(
    project: Project,
    limit: int,
    cursor: str | None = None,
    *,
    status: str | None = None,
    recipe: str | None = None,
    since: str = "",
    words: str = "",
) -> tuple[list[ListedRun], str | None]:
    """Return the newest root runs that match, and the cursor of the next page; None at the end.

    `since` is a time, or how long ago: `2026-11-18`, `2026-11-18T14:30`, `12h`, `7d`. `words` are searched in
    ids, recipes, inputs and errors.
    """
    earliest = since_ms(since) if since else 0
    searched_words = words.lower().split()
    found: list[RunHead] = []
    searched, unseen = 0, None
    while project.has_runs and len(found) <= limit:
        if searched >= MAX_SEARCHED:
            unseen = cursor  # enough for one request: the caller continues with this cursor
            break
        size = PIECE if searched_words else limit + 1
        heads = project.store.heads(status=status, recipe=recipe, before=cursor, limit=size)
        recent = [head for head in heads if head.created_at >= earliest]
        found += [head for head in recent if not words or _matches(project, head, searched_words)]
        searched += len(heads)
        if len(heads) < size or len(recent) < len(heads):
            break
        cursor = heads[-1].run_id
    shown = found[:limit]
    return [described(project, head) for head in shown], shown[-1].run_id if len(found) > limit else unseen


def since_ms(text: str) -> int:
    """Return the time that a user means, in milliseconds since 1970.

    >>> since_ms("1970-01-01T00:00:01+00:00")
    1000
    """
    if (ago := age_ms(text)) is not None:
        return round(time() * 1_000) - ago
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1_000)
    except (ValueError, OverflowError, OSError):
        message = f"{text!r} is neither a time nor a duration"
        raise AuthorError("usage.bad_time", message, hint="write 12h, 7d, or 2026-11-18") from None


def age_ms(text: str) -> int | None:
    """Return a duration such as `90m`, `12h`, `30d` or `8w` in milliseconds; None for any other text."""
    found = re.fullmatch(r"(?a)([0-9]{1,6})(min|m|h|d|w)", text)
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


_UNITS_MS = {"min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


def _matches(project: Project, head: RunHead, words: list[str]) -> bool:
    error = "" if head.error is None else f"{head.error.step} {head.error.message} {head.error.code}"
    text = f"{head.run_id} {head.recipe} {head.status} {error}".lower()
    missing = [word for word in words if word not in text]
    if not missing:
        return True
    inputs = _stored(project, head.inputs).decode(errors="replace").lower()
    return all(word in inputs for word in missing)


def described(project: Project, head: RunHead) -> ListedRun:
    """Return the row of a run with its inputs and whether its agents are scripted."""
    given = msgspec.json.decode(_stored(project, head.inputs) or b"{}", type=dict[str, object])
    text = ", ".join(f"{name}={as_text(value)}" for name, value in given.items())
    first = next(project.store.log(head.root_run_id), None)
    frozen = first.data.get("frozen") if first is not None and isinstance(first.data, dict) else None
    config = msgspec.json.decode(_stored(project, frozen) or b"{}", type=_ScriptOfRun)
    row = listed(project, head)
    return ListedRun(
        **{name: getattr(row, name) for name in RunRow.__struct_fields__},
        inputs=shorten_line(text, MAX_INPUT_CHARS),
        scripted=config.script is not None,
    )


class _ScriptOfRun(Struct):
    script: str | None = None


def _stored(project: Project, blob: object) -> bytes:
    """Return the bytes of a blob; empty if there are none."""
    try:
        return project.store.blob(str(blob)) if blob else b""
    except NotFoundError:
        return b""


def list_runs(
    project: Project, *, status: str | None = None, limit: int | None = None, children: bool = False
) -> list[RunRow]:
    """List runs, newest first, with the process that drives each; only root runs unless `children`."""
    if not project.has_runs:
        return []
    most = sys.maxsize if limit is None else limit
    heads = project.store.heads(roots_only=not children, status=status, limit=most)
    return [listed(project, head) for head in heads]


def listed(project: Project, head: RunHead) -> RunRow:
    """Return the row of a run, with its owner and the time when its clock stopped."""
    root, stopped = head.root_run_id, None
    if head.status == PAUSED:
        last = next(project.store.tree(root, project.store.reach(root) - 1), None)
        stopped = None if last is None else last.at
    return run_row(head, owner_of(project, root), stopped)


def owner_of(project: Project, root: str) -> OwnerDocument | None:
    """Return the process that drives a run tree, or drove it when it died."""
    found = project.store.owner(root)
    return None if found is None else OwnerDocument(found[0].pid, found[1], found[0].host)


def folders_without_run(project: Project) -> list[Path]:
    """List folders of runs that are not in the database: it was lost, or a removal was interrupted."""
    try:
        found = sorted(path for path in project.runs_folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    found = [path for path in found if re.fullmatch(_RUN_ID, path.name)]
    if not project.has_runs:
        return found
    # A fork creates its folder after it acquired its lease and before its first commit, so the owner is read
    # first.
    store = project.store
    return [path for path in found if not project.has_owner(path.name) and store.head(path.name) is None]
