"""Chats: a lead session with whom a person talks, and the subagents that it delegates to.

A chat is an open run. Each thing the user says is a turn of its lead: a step behind the one before, in the
same conversation, as input is to any subagent. So a chat is durable like everything else: killed at any
moment, it goes on behind what was recorded, in whichever process takes it up.

Rules
* The process that a person talks to owns the run. It may be asked what agents want to do.
* Stopping a turn ends that turn and what it waits for; the session and everything else stays.
* What the lead may do is fixed with each turn. A change of permission or model is another name for the lead,
  in the same conversation.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from msgspec import Struct, structs

from fanfold.agents.permissions import Ask
from fanfold.errors import NotFoundError
from fanfold.kernel.events import Envelope
from fanfold.kernel.lifecycle import COMPLETED, PAUSED, RUN_TERMINAL, TERMINAL
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, Plan, Step
from fanfold.runtime.hosting.children import AddRequest, ResumeRequest, SubagentRefused, is_interrupted
from fanfold.runtime.hosting.host import OnProgress
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.agents import subagents
from fanfold.runtime.operations.agents.lead import (
    LEAD,
    NAME,
    RunHeard,
    has_workflows,
    lead_step,
    lead_turns,
    unheard,
)
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.control import ask_owner
from fanfold.runtime.operations.runs.follow import until
from fanfold.runtime.operations.runs.handle import RunHandle
from fanfold.runtime.operations.runs.ownership import check_enabled, take_over
from fanfold.runtime.operations.runs.starting.creation import create_open, freeze
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.records.failures import is_provider_refusal
from fanfold.runtime.records.frozen import Frozen, to_json
from fanfold.runtime.records.ids import new_run_id
from fanfold.runtime.records.open_runs import CHAT, is_chat
from fanfold.runtime.records.subagents import child_name
from fanfold.runtime.steps.agent import words_of
from fanfold.runtime.views.recipes.specs import Suitability
from fanfold.runtime.views.runs.documents import run_document
from fanfold.runtime.views.runs.rows import FailureDocument, RunUsage, failure_document
from fanfold.runtime.views.sessions.subagents import LIVE, Subagent, find_ended_turns

LONG_S = 3_600.0
MANY_DELEGATIONS = 2
"""From so many on, keeping them as a recipe is offered."""


class ChatTurn(Struct, frozen=True, kw_only=True):
    """What came of one thing the user said."""

    step: str
    said: str
    status: str
    output: JSON
    error: FailureDocument | None


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """A chat of one turn, as scripts see it."""

    run_id: str
    status: str
    output: JSON
    error: FailureDocument | None
    suited: Suitability | None
    """Why a workflow was suggested, if one was."""
    agents: list[Subagent]
    usage: RunUsage


TakeUp: TypeAlias = Callable[[], Awaitable[RunHandle]]


class Chat:
    """A chat that this process drives; made by `open_chat` and `resume_chat`."""

    def __init__(self, project: Project, options: Options, handle: RunHandle, take_up: TakeUp) -> None:
        self.project = project
        self.id = handle.id
        self.options = options
        self._handle = handle
        self._take_up = take_up
        self._taken_up = asyncio.Event()
        self._ran: list[RunHeard] = []
        self._offered = 0
        """Delegations that were there when keeping them was last offered."""

    async def follow(self) -> AsyncIterator[list[Envelope]]:
        """What is recorded from now on, in pieces, for as long as somebody listens."""
        while True:
            self._taken_up.clear()
            async for written in self._handle.follow():
                yield written
            await self._taken_up.wait()

    @property
    def tree(self) -> RunTree:
        return self._handle.tree

    # What the user says

    async def judge(self, text: str) -> Suitability | None:
        """Why a request looks like work for a workflow, where that is not known already."""
        if not self.project.config.switch("workflows.enabled") or self._has_workflows():
            return None
        if self.options.script is not None:  # nobody is paid for scripted agents
            from fanfold.runtime.specs.intent_patterns import judge

            told = judge(text)
            found = Suitability(told.suitable, told.reason, "patterns", told.pattern)
        else:
            from fanfold.runtime.operations.specs.intent import workflow_suitable

            found = await workflow_suitable(self.project, text)
        return found if found.suitable else None

    async def say(self, text: str, suited: Suitability | None = None) -> ChatTurn:
        """Say something to the lead and wait for its answer. `suited` is what `judge` found."""
        await self._forget_refusal()
        await self._be_driven()
        if (cut_off := self.cut_off()) is not None:
            await self.go_on(cut_off)
        turns = lead_turns(self.tree)
        before = turns[-1] if turns else None
        with_workflows = suited is not None or self._has_workflows()
        step = lead_step(
            NAME,
            text,
            before.path if before is not None else None,
            heard=unheard(self.tree, find_ended_turns(self.tree, self.project.folder)),
            ran=self._ran,
            suited=suited,
            with_workflows=with_workflows,
        )
        frozen = _freeze_lead(self.project, step, self.options)
        step = structs.replace(step, id=self._next_name(turns, frozen))
        self._ran = []
        await self._request(AddRequest(step=step, frozen=to_json(frozen), key=secrets.token_hex(8)))
        return await self._end_of(step.id)

    def _next_name(self, turns: list[Node], frozen: Frozen) -> str:
        """The next turn of the lead as it is; with other facts, the first turn under another name."""
        if not turns:
            return NAME
        last = child_name(turns[-1].path)
        if self.tree.frozen(turns[-1]) == frozen:
            return f"{last}#{sum(child_name(turn.path) == last for turn in turns) + 1}"
        names = {child_name(turn.path) for turn in turns}
        return f"{NAME}-{len(names) + 1}"

    def _has_workflows(self) -> bool:
        turns = lead_turns(self.tree)
        return bool(turns) and has_workflows(turns[-1])

    # Turns that were cut off

    def cut_off(self) -> Node | None:
        """The turn that has not ended: it lost its process, or was asked for when nobody was there."""
        turns = lead_turns(self.tree)
        return turns[-1] if turns and turns[-1].status not in TERMINAL else None

    async def go_on(self, cut_off: Node) -> ChatTurn:
        """Go on with such a turn, behind the last thing it recorded."""
        await self._be_driven()
        if is_interrupted(cut_off):
            await self._request(ResumeRequest(child_name(cut_off.path)))
        return await self._end_of(cut_off.path)

    async def _end_of(self, path: str) -> ChatTurn:
        def look() -> Node | None:
            node = self.tree.root.nodes.get(path)
            over = node is not None and (node.status in TERMINAL or self._is_over())
            return node if over else None

        node: Node | None = None
        while node is None:
            node = await until(self.project, self.id, look, LONG_S)
        return self._turn(node)

    def _turn(self, node: Node) -> ChatTurn:
        failure = node.error or self.tree.memory.held_by
        return ChatTurn(
            step=node.path,
            said=words_of(node),
            status=node.status if node.status in TERMINAL else PAUSED,
            output=self.tree.values.output(node),
            error=failure_document(failure, node) if node.status != COMPLETED else None,
        )

    async def stop(self) -> None:
        """Stop the turn that runs; the session goes on with the next thing that is said."""
        running = [turn for turn in lead_turns(self.tree) if turn.status not in TERMINAL]
        if running and not self._is_over():
            await subagents.close(self.project, child_name(running[-1].path), run=self.id)

    # What is around it

    def turns(self) -> list[ChatTurn]:
        """What was said so far, oldest first."""
        return [self._turn(node) for node in lead_turns(self.tree)]

    def agents(self) -> list[Subagent]:
        """The subagents of this chat."""
        return subagents.list_subagents(self.project, run=self.id)

    def usage(self) -> RunUsage:
        return run_document(self.tree).usage

    def note_run(self, ran: RunHeard) -> None:
        """A workflow that the user ran: the lead hears of it with the next thing that is said."""
        self._ran.append(ran)

    def worth_keeping(self) -> bool:
        """Whether delegations came to a good end since keeping them was last offered."""
        done = sum(child.status == COMPLETED for child in self.agents())
        offer = done >= MANY_DELEGATIONS and done > self._offered
        if offer:
            self._offered = done
        return offer

    async def rest(self) -> None:
        """Wait until no subagent runs."""
        while any(child.status in LIVE for child in self.agents()):
            await subagents.wait(self.project, timeout_s=LONG_S, run=self.id)

    async def leave(self) -> None:
        """Let go of the chat. What still runs is stopped and can be gone on with."""
        if not self._is_over():
            await self._handle.leave()

    # The owner of the run

    def _is_over(self) -> bool:
        """Whether nobody here drives the run any more: a provider refuses us, or somebody paused it."""
        return self._handle.is_over

    async def _forget_refusal(self) -> None:
        """A provider that refused us is not asked for a while. Whoever speaks on may have paid meanwhile: it
        is asked again, with connections that know nothing of it.
        """
        turns = lead_turns(self.tree)
        failed = turns[-1].error if turns else None
        if failed is None or not is_provider_refusal(failed):
            return
        if not any(child.status in LIVE for child in self.agents()):
            await self.leave()

    async def _be_driven(self) -> None:
        if not self._is_over():
            return
        if self._handle.status in RUN_TERMINAL:
            raise SubagentRefused(
                "chat.ended", f"chat {self.id} was ended", hint="fanfold chat begins another"
            )
        await self._handle.wait()  # raises what went wrong
        self._handle = await self._take_up()
        self._taken_up.set()

    async def _request(self, request: AddRequest | ResumeRequest) -> None:
        number, _ = await ask_owner(self.project, self.project.resolve(self.id), request)
        refused = self.tree.memory.refusals.get(number)
        if refused is not None:
            raise SubagentRefused(refused.code, refused.message, hint=refused.hint)


async def open_chat(project: Project, options: Options, ask: Ask | None, on_progress: OnProgress) -> Chat:
    """Begin a chat. Nothing is asked of a model before something is said; without one nothing begins."""
    check_enabled(project)
    _freeze_lead(project, lead_step(NAME, "", None), options)
    run = f"{CHAT}{new_run_id()[:6]}"
    create_open(project, run)
    return await _chat(project, run, options, ask, on_progress)


def _freeze_lead(project: Project, step: Step, options: Options) -> Frozen:
    """What is fixed for a turn of the lead; raises where it could not begin."""
    frozen, _ = freeze(project, Plan(name=NAME, steps=(step,)), options, own_roles={NAME: LEAD})
    return frozen


async def resume_chat(
    project: Project,
    run: str,
    ask: Ask | None,
    on_progress: OnProgress,
    *,
    permission: str | None = None,
    model: str | None = None,
) -> Chat:
    """Take a chat up again, the latest for an empty `run`; it may do what it might, unless told otherwise."""
    found = find_chat(project, run)
    turns = lead_turns(project.view(found))
    frozen = project.view(found).frozen(turns[-1]) if turns else Frozen()
    options = Options(
        permission=permission or frozen.permission,
        unsafe_no_sandbox=frozen.unsafe,
        backend=None if frozen.script is not None or not turns else frozen.backend,
        model=model or frozen.model,
        script=frozen.script,
        script_file=frozen.script_file,
    )
    return await _chat(project, found, options, ask, on_progress)


async def _chat(
    project: Project, run: str, options: Options, ask: Ask | None, on_progress: OnProgress
) -> Chat:
    async def take_up() -> RunHandle:
        handle = RunHandle(take_over(project, run, ask), resumed=True, on_progress=on_progress)
        async for _ in handle.follow():  # what lost its process is known to have when this is recorded
            break
        return handle

    return Chat(project, options, await take_up(), take_up)


def find_chat(project: Project, run: str) -> str:
    """The chat that somebody means: an id, its beginning with or without `chat-`, or the latest."""
    heads = [head for head in project.heads() if is_chat(head.run_id)]
    open_ones = [head.run_id for head in heads if head.status not in RUN_TERMINAL]
    if run in ("", "last"):
        if not open_ones:
            raise _none("")
        return open_ones[0]
    wanted = run if is_chat(run) else f"{CHAT}{run}"
    found = [head.run_id for head in heads if head.run_id.startswith(wanted)]
    if len(found) != 1:
        raise _none(run)
    return found[0]


def _none(run: str) -> NotFoundError:
    what = f"there is no chat {run}" if run else "there is no chat to go on with"
    hint = "fanfold chat begins one; fanfold runs lists them"
    if " " in run:  # words, which the option took for its value
        hint = f"to say it, put it first: fanfold chat {shlex.quote(run)} --resume"
    return NotFoundError("chat.not_found", what, hint=hint)
