"""The workers of a cluster, as they announce themselves in the store, and which of them a step waits for.

Rules
* A worker announces itself several times per `cluster.heartbeat_s`. One that is silent for that long is lost.
* Only a process that is a worker, or manages the cluster, talks to Temporal. All others read the store.
* Advice about workers must not fail: without an answer from the store there is no advice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.api.project import Project
from fanfold.errors import FanfoldError
from fanfold.kernel.plan import Plan
from fanfold.kernel.state import RUNNING, Node
from fanfold.steps.ids import drive_id, execution_id
from fanfold.steps.records import is_lead
from fanfold.steps.run_config import all_steps_below

DEFAULT_TAG = "default"
DISPATCHED = frozenset(("agent", "command", "function"))
"""The step types that workers execute. The driver performs all others itself."""
NO_DRIVER = "no connected worker drives runs: start fanfold worker"
FORGOTTEN_S = 600.0
"""How long a lost worker is shown."""


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker of the cluster, as it announced itself last."""

    name: str
    machine: str
    pid: int
    version: str
    order_version: int
    tags: tuple[str, ...]
    back_ends: tuple[str, ...]
    """The agent back ends that are usable on its machine."""
    slots: int
    drives: bool
    store_ms: float = 0.0
    """The round trip from its machine to the store in milliseconds, measured at its start."""
    clock_s: float = 0.0
    """How many seconds the clock of the store is ahead of the worker's."""
    jobs: tuple[str, ...] = ()
    """The ids of its jobs: executions of steps, and runs that it drives."""
    seen_s: float = 0.0
    """Seconds since its last heartbeat."""
    lost: bool = False
    """Whether it is silent for so long that its steps start again elsewhere."""


class WorkerList(Struct, frozen=True):
    """The workers of a project's cluster; none without a cluster."""

    items: list[WorkerRow]


class RunningStep(Struct, frozen=True):
    """A step that a worker executes now. `path` is a tree path."""

    path: str
    worker: str
    machine: str
    heartbeat_age_ms: int


def list_workers(project: Project) -> WorkerList:
    """Return the workers of the cluster by name, with those that were lost a short time ago."""
    if project.config.text("cluster.temporal") is None or not project.has_runs:
        return WorkerList([])
    silent_s = project.config.integer("cluster.heartbeat_s")
    rows: list[WorkerRow] = []
    for one in project.store.announced():
        seen_s = round(one.age_ms / 1_000, 1)
        if seen_s > max(FORGOTTEN_S, silent_s):
            continue
        try:
            row = msgspec.json.decode(one.text, type=WorkerRow)
        except msgspec.MsgspecError:
            continue  # a worker of a release that announces itself in another form
        rows.append(replace(row, seen_s=seen_s, lost=seen_s > silent_s))
    return WorkerList(rows)


def live_workers(project: Project) -> list[WorkerRow] | None:
    """Return the workers that are not lost; None without a cluster, or if the store does not answer."""
    if project.config.text("cluster.temporal") is None:
        return None
    try:
        return [row for row in list_workers(project).items if not row.lost]
    except FanfoldError:
        return None


def needs_home(plan: Plan) -> bool:
    """Whether a run needs the folder in which it is started: workers have no repository to deliver to."""
    return any(step.type == "deliver" for step in all_steps_below(plan))


def missing_workers(project: Project, plan: Plan, *, scripted: bool) -> list[str]:
    """Return a sentence for each tag that steps need and no live worker has, or back end if not scripted."""
    workers = live_workers(project)
    if workers is None:
        return []
    from fanfold.store.address import PostgresAddress  # it loads SQLite; few projects have a cluster

    if needs_home(plan) and isinstance(project.address, PostgresAddress):
        return ["a deliver step needs this folder: the run is driven and executed here, without workers"]
    lacking: dict[str, None] = {}
    for step in all_steps_below(plan):
        if step.type not in DISPATCHED:
            continue
        tag, role = step.runs_on or DEFAULT_TAG, project.roles.find(step.traits.role or "")
        back_end = role.backend if role is not None and not scripted else None
        tagged = [row for row in workers if tag in row.tags]
        if not tagged:
            lacking[f"no connected worker has tag {tag}: start fanfold worker --runs-on {tag}"] = None
        elif back_end and all(back_end not in row.back_ends for row in tagged):
            lacking[f'no connected worker with tag {tag} can use the agent back end "{back_end}"'] = None
    return list(lacking)


def where_it_runs(workers: Sequence[WorkerRow], node: Node, root: str) -> str:
    """Return which worker executes a running step, or waits for it; empty if its run is driven elsewhere."""
    if node.status != RUNNING or node.step.type not in DISPATCHED or is_lead(node):
        return ""
    job = execution_id(root, node.run.tree_path(node.path), node.attempt, node.execution)
    for row in workers:
        if job in row.jobs:
            return f"on worker {row.name}, machine {row.machine}, heartbeat {row.seen_s:g} s ago"
    if all(drive_id(root) not in row.jobs for row in workers):
        return ""
    tag = node.step.runs_on or DEFAULT_TAG
    if all(tag not in row.tags for row in workers):
        return f"waits for a worker with tag {tag}; none is connected: start fanfold worker --runs-on {tag}"
    return f"waits for a free worker with tag {tag}"


def steps_on(workers: Sequence[WorkerRow], root: str) -> list[RunningStep]:
    """Return the steps of a run tree that workers execute, with the age of each worker's heartbeat."""
    begin, drive = f"{root}/", drive_id(root)
    return [
        RunningStep(job[len(begin) :].rpartition("/")[0], row.name, row.machine, int(row.seen_s * 1_000))
        for row in workers
        for job in row.jobs
        if job.startswith(begin) and job != drive
    ]
