"""`fanfold worker` and `fanfold cluster`: several processes or machines work on the runs of a project."""

from __future__ import annotations

import asyncio
import re

import click

from fanfold import __version__
from fanfold.api.changes import pull
from fanfold.api.display import counted
from fanfold.api.system import ClusterStatus, ClusterTables, init_cluster
from fanfold.api.workers import WorkerRow
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.output import notify, print_text
from fanfold.cli.step_text import pulled
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.language.tables import parse_duration
from fanfold.language.terminal import one_line
from fanfold.wiring import drain_worker, read_cluster, run_worker

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@command("worker", summary="Take jobs of the cluster: drive runs and execute steps")
@option("--runs-on", "tags", metavar="TAGS", default="default", help="Take steps with these tags: gpu,docs.")
@option(
    "--slots", type=click.IntRange(1, 1_024), default=4, help="Execute N steps at once.", show_default=True
)
@option("--no-drive", is_flag=True, help="Execute steps only; drive no runs.")
@option("--name", default="", help="Name it in the log; default: machine and process.")
@option("--grace", default="10m", help="Give commands and functions this time to end.", show_default=True)
@option("--prepare", metavar="CMD", default="", help="Install what a new set of lock files needs.")
def worker_command(
    call: Invocation, tags: str, slots: int, no_drive: bool, name: str, grace: str, prepare: str
) -> int:
    """Execute steps and drive runs of this project until SIGTERM.

    FANFOLD_TEMPORAL names the Temporal server: host:port[/namespace]. With a PostgreSQL store
    (FANFOLD_STORE) a worker needs no checkout: FANFOLD_PROJECT names the project. Otherwise all workers
    need the same folder. --prepare runs once for each set of lock files in a new tree, for example `uv
    sync`. On SIGTERM, Ctrl-C and `fanfold cluster drain` a worker takes no new steps. Sessions stop after
    their recorded turn, and other workers continue them.
    """
    given = tuple(dict.fromkeys(tag.strip() for tag in tags.split(",")))
    for tag in given:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}", tag) or tag in ("drive", "home"):
            raise AuthorError(
                "usage.bad_value", f"--runs-on: {tag!r} is not a tag", hint="for example gpu,docs"
            )
    if name and not re.fullmatch(_NAME, name):
        raise AuthorError("usage.bad_value", f"--name: {name!r} is not a name", hint="for example build-1")
    grace_ms = parse_duration(grace)
    if grace_ms is None:
        raise AuthorError("usage.bad_value", f"--grace: {grace!r} is not a duration", hint="for example 10m")

    def report(row: WorkerRow) -> None:
        does = f"takes steps with tag {', '.join(row.tags)}{' and drives runs' if row.drives else ''}"
        if not row.tags:
            does = f"takes nothing new; {counted(len(row.jobs), 'job')} still to end or hand over"
        notify(f"worker {row.name} {does}\n")

    asyncio.run(
        run_worker(
            call.project, tags=given, slots=slots, drive=not no_drive, name=name, grace_s=grace_ms / 1_000,
            prepare=prepare, version=__version__, on_change=report,
        )
    )  # fmt: skip
    return EXIT_OK


@command("cluster", summary="Create tables, show workers and queues, stop a worker")
@click.argument("action", type=click.Choice(["init", "status", "drain"]), default="status")
@click.argument("worker", required=False)
def cluster_command(call: Invocation, action: str, worker: str | None) -> int:
    """Manage the database and the workers of a cluster.

    init creates or migrates the tables of the database that FANFOLD_STORE (store.url in your
    configuration) names: once, and after an upgrade. Tables of a newer Fanfold are refused. status shows
    workers, queues and jobs. drain WORKER stops a worker after its current work. JSON of init: {"place",
    "project", "before", "format"}; before is the earlier format of the tables, or 0.
    """
    if action == "drain":
        if worker is None:
            message, hint = "drain needs the name of a worker", "the action status lists them"
            raise AuthorError("usage.missing_argument", message, hint=hint)
        drained = asyncio.run(drain_worker(call.project, worker))
        call.give({"worker": drained}, lambda: print_text(f"{one_line(drained)} takes no more jobs\n"))
        return EXIT_OK
    if worker is not None:
        raise AuthorError("usage.conflict", f"{action} takes no worker", hint="leave it out")
    if action == "init":
        with call.open_project() as project:
            made = init_cluster(project)
        call.give(made, lambda: print_text(_text_tables(made)))
        return EXIT_OK
    status = asyncio.run(read_cluster(call.project))
    call.give(status, lambda: print_text(_text(status)))
    return EXIT_OK


def _text(status: ClusterStatus) -> str:
    store = f"store {status.store_ms:g} ms away, its clock {status.clock_s:+g} s"
    lines = [f"temporal {status.temporal}, order version {status.order_version}, {store}", ""]
    for worker in status.workers:
        about = [worker.name, worker.machine, f"process {worker.pid}", worker.version]
        about += [", ".join(worker.tags) or "takes nothing new"]
        about += [f"{worker.slots} slots", *(["drives"] if worker.drives else [])]
        about += [f"orders {worker.order_version}", ", ".join(worker.back_ends) or "no back ends"]
        lines.append("  ".join(map(one_line, [*about, f"seen {worker.seen_s:g} s ago"])))
    lines += [""] if status.workers else ["no workers", ""]
    for queue in status.queues:
        oldest = f", oldest {queue.oldest_s:g} s" if queue.waiting else ""
        lines.append(f"{queue.tag}: {queue.waiting} waiting{oldest}, workers: {queue.workers}")
    lines += [
        f"{one_line(one.id)}  {one.queue}  {f'on {one_line(one.worker)}' if one.worker else 'waits'}"
        for one in status.jobs
    ]
    lines += [f"run {root} has no driver" for root in status.undriven]
    lines += [f"problem: {one_line(problem)}" for problem in status.problems]
    return "\n".join(lines) + "\n"


def _text_tables(made: ClusterTables) -> str:
    if made.before == made.format:
        done = f"the tables have format {made.format} already"
    elif made.before:
        done = f"migrated the tables from format {made.before} to {made.format}"
    else:
        done = f"created the tables, format {made.format}"
    return f"{one_line(made.place)}: {done}\nproject {one_line(made.project)}\n"


@command("pull", summary="Merge the changes of a cluster run into this folder")
@click.argument("run")
def pull_command(call: Invocation, run: str) -> None:
    """Merge the changes of RUN from its own tree into this folder: all files or none.

    A cluster run with a PostgreSQL store works on a snapshot of the folder. A foreground `fanfold run`
    pulls at its end. If both sides changed the same lines, nothing changes and the files are named (exit
    status 1). JSON: {"run_id", "tree", "changes": [{"path", "kind"}]}; conflicts are in the details of
    the error.
    """
    with call.open_project() as project:
        done = pull(project, run)
    call.give(done, lambda: pulled(done))
