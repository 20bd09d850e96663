"""Subagents that people start themselves, one process for all of them.

Rules
* All of them are children of one session, `HAND`, so one supervisor counts their places and one lease
  guards their history. Whoever holds the lease is their host; it leaves when nothing runs any more.
* Any process asks by a request, as it asks runs: spawn, input, resume, apply, close. A spawn carries a key,
  and one whose key a child already has is not repeated, so asking is safe to repeat after a crash. What is
  refused is written down with the request's number, for whoever asked.
* Each child has the permission it was spawned with, whoever talks to it later.
* Looking needs no host: what became of a child stands in the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import to_builtins

from fanfold.agents.backend import SessionRequest
from fanfold.errors import FanfoldError
from fanfold.runtime.hosting.host import now_ms
from fanfold.runtime.operations.hand_changes import apply_child
from fanfold.runtime.operations.project import Project
from fanfold.runtime.places.isolation import Isolation
from fanfold.runtime.steps.programs import Programs
from fanfold.runtime.steps.toolboxes import Toolboxes
from fanfold.runtime.views.errors import error_body
from fanfold.sessions.lineage import DETACHED, QUEUED, RUNNING, Child
from fanfold.sessions.log import read_notes
from fanfold.sessions.opened import Settings, read_opened
from fanfold.sessions.stragglers import sweep_stragglers
from fanfold.sessions.subagents import SubagentRefused
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.protocol import Batch, LeaseLost, Request, StoreFault

if TYPE_CHECKING:
    from fanfold.agents.toolbox.catalogue import Tools

HAND = "hand"
LINGER_S = 1.0
"""A host without work stays this long, so that a row of quick requests does not start a row of hosts."""
LOOK_S = 0.05


def ask(project: Project, kind: str, data: Mapping[str, Any]) -> int:
    """Leave a request for the host; its number."""
    return project.store.request(Request(root=HAND, run_id=HAND, kind=kind, data=dict(data), at=now_ms()))


def is_taken(project: Project, number: int) -> bool:
    """Whether a host has acted on a request."""
    return all(request.id != number for request in project.store.requests(HAND))


def refusal(project: Project, number: int) -> SubagentRefused | None:
    """Why a host did not do what a request asked for."""
    for entry in read_notes(project.store, HAND):
        if entry.get("kind") == "refused" and entry["request"] == number:
            error = entry["error"]
            return SubagentRefused(
                error["code"], error["message"], hint=error["hint"], details=error["details"]
            )
    return None


def with_key(supervisor: Supervisor, key: str) -> Child | None:
    """The child that was spawned under a key."""
    for child in reversed(supervisor.list(HAND)):
        if read_opened(supervisor.store, child.session_id).settings.key == key:
            return child
    return None


def is_live(child: Child) -> bool:
    return child.status in (QUEUED, RUNNING)


class HandToolboxes:
    """Makes the toolbox of each child, with the permission that it was spawned with."""

    def __init__(self, project: Project, isolation: Isolation) -> None:
        self._project = project
        self._isolation = isolation
        self._toolboxes: dict[tuple[str, bool], Toolboxes] = {}

    def of(self, request: SessionRequest) -> Tools:
        settings = read_opened(self._project.store, request.session_id).settings
        key = (settings.permission, settings.unsafe)
        if key not in self._toolboxes:
            programs = Programs(self._isolation, unsafe=settings.unsafe)
            project = self._project
            self._toolboxes[key] = Toolboxes(
                project.store, project.memory, programs, settings.permission, None, frozenset()
            )
        return self._toolboxes[key].of(request)


async def serve(project: Project, supervisor: Supervisor) -> None:
    """Host subagents until nothing runs and nothing is asked; raises `LeaseHeld` when another does."""
    supervisor.children.above.belonging(HAND, HAND, None, 0)
    epoch = supervisor.children.above.journal(HAND).epoch
    requests = project.store.listen(HAND)
    asked = asyncio.ensure_future(requests.wait())
    try:
        await asyncio.to_thread(_clear_up, project, _lost(supervisor))
        idle_since = time.monotonic()
        while True:
            await _act(project, supervisor, epoch)
            running = [child.subagent_id for child in supervisor.list(HAND) if is_live(child)]
            if running:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= LINGER_S:
                return
            over = asyncio.ensure_future(
                supervisor.wait(running, 3_600) if running else asyncio.sleep(LOOK_S)
            )
            await asyncio.wait({asked, over}, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            if asked.done():
                asked = asyncio.ensure_future(requests.wait())
    finally:
        asked.cancel()
        requests.close()
        await supervisor.aclose()


def _lost(supervisor: Supervisor) -> list[str]:
    """Sessions whose host died."""
    return [child.session_id for child in supervisor.list(HAND) if child.status == DETACHED]


def _clear_up(project: Project, sessions: list[str]) -> None:
    """End what a host that died left running, and finish or undo what it was merging."""
    sweep_stragglers(sessions)
    project.isolation.recover()


async def _act(project: Project, supervisor: Supervisor, epoch: int) -> None:
    for request in project.store.requests(HAND):
        try:
            await _carry_out(project, supervisor, request, epoch)
        except (LeaseLost, StoreFault):
            raise  # nothing can be done here any more
        except FanfoldError as error:  # it was possible when it was asked for and is not any more
            about = to_builtins(error_body(error))
            log = supervisor.children.above.parent_log(HAND, HAND, 0)
            log.append({"kind": "refused", "request": request.id, "error": about})
        project.store.write([Batch(root=HAND, epoch=epoch, requests_done=[request.id])])


async def _carry_out(project: Project, supervisor: Supervisor, request: Request, epoch: int) -> None:
    data = request.data
    if request.kind == "spawn":
        settings = msgspec.convert(data["settings"], Settings)
        if with_key(supervisor, settings.key) is None:
            if data.get("script") is not None:
                settings = _keep_script(supervisor, settings, str(data["script"]), epoch)
            await supervisor.spawn(HAND, str(data["role"]), str(data["task"]), settings)
    elif request.kind == "input":
        await supervisor.send_input(str(data["id"]), str(data["text"]))
    elif request.kind == "resume":
        supervisor.children.resume(str(data["id"]))
        if data["text"] is not None:
            await supervisor.send_input(str(data["id"]), str(data["text"]))
    elif request.kind == "apply":
        await apply_child(project, supervisor, str(data["id"]), str(data["by"]))
    elif request.kind == "close":
        await supervisor.close(str(data["id"]))


def _keep_script(supervisor: Supervisor, settings: Settings, script: str, epoch: int) -> Settings:
    """Store the script of a child, so that another process can go on with the child later."""
    content = script.encode()
    blob = blake2b(content, digest_size=16).hexdigest()
    supervisor.store.write([Batch(root=HAND, epoch=epoch, blobs=[(blob, content)])])
    return msgspec.structs.replace(settings, backend=f"scripted:{blob}")
