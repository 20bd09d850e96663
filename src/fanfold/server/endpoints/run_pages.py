"""What pages about one run are made of: its head, table, time and files, and its owner's sign of life."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, structs

from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.overview.home import Pulse, Pulses, live_pulses, pulse_of
from fanfold.runtime.operations.runs.files.artifacts import OpenedArtifact, list_artifacts, open_artifact
from fanfold.runtime.records.memory import FileChange
from fanfold.runtime.views.runs.documents import ArtifactList
from fanfold.runtime.views.runs.head import RunHeadDocument, run_head
from fanfold.runtime.views.runs.step_rows import RunTable, run_table
from fanfold.runtime.views.runs.timeline import Timeline, timeline
from fanfold.server.desk import Desk
from fanfold.server.downloads import BYTES
from fanfold.server.endpoints.parameters import PRINTABLE, RunAsked, RunAt
from fanfold.server.routes import Routes

ROUTES = Routes()
ArtifactName: TypeAlias = Annotated[
    str, Meta(max_length=300, pattern=PRINTABLE, description="Its `name` in the list. A slash in it is %2F.")
]


class RunOutput(Struct, frozen=True):
    """What a run gave, and what its steps changed."""

    output: JSON
    changes: list[FileChange]


@ROUTES.look("/api/runs/{run}/output", "What it gave and changed")
def show_output(desk: Desk, asked: RunAt) -> RunOutput:
    tree, run = find_run(desk.history, asked.run, asked.at)
    output = tree.blobs.get(run.output) if run.output is not None else None
    return RunOutput(output, tree.memory.changes.get(run.id, []))


@ROUTES.look("/api/runs/{run}/head", "How a run stands")
def show_head(desk: Desk, asked: RunAt) -> RunHeadDocument:
    found = find_run(desk.history, asked.run, asked.at)
    store = desk.history.store
    head = run_head(found.tree, found.run, reach=store.reach(found.root_id))
    kept = store.head(found.run.id)
    # Whose fork it is stands in no event, only in the row of the run.
    return head if kept is None else structs.replace(head, forked_from=kept.forked_from)


@ROUTES.look("/api/runs/{run}/table", "Its steps, without outputs")
def show_table(desk: Desk, asked: RunAt) -> RunTable:
    found = find_run(desk.history, asked.run, asked.at)
    return run_table(found.tree, found.run, found.tree.state.now)


@ROUTES.look("/api/runs/{run}/timeline", "Its steps over time")
def show_timeline(desk: Desk, asked: RunAt) -> Timeline:
    found = find_run(desk.history, asked.run, asked.at)
    envelopes = islice(desk.history.store.tree(found.root_id), found.tree.tree_seq)
    now = found.tree.state.now if asked.at is not None else wall_clock_ms()
    return timeline(found.tree, found.run, envelopes, now)


# Signs of life are no events: the answer must not be kept until the next one.
@ROUTES.get("/api/runs/{run}/pulse", "Whether anybody drives it")
def show_pulse(desk: Desk, asked: RunAsked) -> Pulse:
    return pulse_of(desk.fresh(), asked.run)


@ROUTES.get("/api/pulses", "Whether anybody drives what runs")
def list_pulses(desk: Desk) -> Pulses:
    return live_pulses(desk.fresh())


class ArtifactAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    artifact: ArtifactName


@ROUTES.look("/api/runs/{run}/artifacts", "Files that steps left beside the project")
def show_artifacts(desk: Desk, asked: RunAt) -> ArtifactList:
    return list_artifacts(desk.history, asked.run, asked.at)


@ROUTES.get("/api/runs/{run}/artifacts/{artifact}", "One of them, to be kept", media=BYTES, gives_file=True)
def give_artifact(desk: Desk, asked: ArtifactAsked) -> OpenedArtifact:
    return open_artifact(desk.history, asked.run, asked.artifact)
