"""`fanfold chat`: talk with a lead that works, delegates and runs workflows; or ask it one thing.

Ctrl-C stops the turn that runs and keeps the session. What was said is recorded as it is said: a chat that
was left, or killed, goes on with `--resume`.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import TYPE_CHECKING, Literal

import click
from msgspec import Struct, structs

from fanfold.agents.entries import News
from fanfold.cli.chat.interrupts import Interrupts, left_by_signals
from fanfold.cli.command import PERMISSION, UNSAFE, Invocation, command, option
from fanfold.cli.inputs import read_options
from fanfold.cli.terminal.output import on_terminal, paint, plain, say_json, tell, wants_colour
from fanfold.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_WAITING, AuthorError, FanfoldError
from fanfold.runtime.operations.project import Project
from fanfold.text.terminal import one_line

if TYPE_CHECKING:
    from fanfold.runtime.operations.agents.chats import Chat, ChatTurn


class ChatFlags(Struct, frozen=True, kw_only=True):
    """What the command line fixes for a chat."""

    model: str | None
    script: str | None
    permission: Literal["read_only", "ask", "auto"] | None
    unsafe_no_sandbox: bool


@command("chat", summary="Talk with a lead that delegates and runs workflows")
@click.argument("text", required=False)
@option(
    "--resume", is_flag=False, flag_value="", metavar="[ID]", help="Go on with a chat; default: the latest."
)
@option("--model", metavar="M", help="Model of the lead and of those it delegates to.")
@option("--script", metavar="FILE", help="Scripted agents instead of models, for tests.")
@PERMISSION
@UNSAFE
def chat_command(call: Invocation, text: str | None, resume: str | None, **given: object) -> int:
    """Talk with a lead session, or give it TEXT and get its answer.

    The lead works on the project, delegates to subagents, and plans and runs workflows when a request looks
    like work for one. Lines that begin with / are commands: /help lists them. A chat is a run like any other:
    fanfold runs, inspect, logs, transcript and capture show it.
    """
    flags = ChatFlags(**given)  # type: ignore[arg-type]  # click gives exactly these
    if text is None and not on_terminal():
        text = sys.stdin.read() if not sys.stdin.isatty() else ""
    if text is not None and not text.strip():
        raise AuthorError("usage.missing", "there is nothing to say", hint='fanfold chat "What is here?"')
    if text is None and call.as_json:
        raise AuthorError("usage.missing", "--json needs a TEXT", hint='fanfold chat "What is here?" --json')
    with call.open_project() as project:
        talk = _Talk(call, project, flags, resume)
        try:
            return asyncio.run(left_by_signals(talk.interactive() if text is None else talk.once(text)))
        except asyncio.CancelledError:
            if talk.begun:
                tell(f"go on: fanfold chat --resume {talk.chat.id}\n")
            return EXIT_INTERRUPTED


class _Talk:
    """One sitting at a chat."""

    def __init__(self, call: Invocation, project: Project, flags: ChatFlags, resume: str | None) -> None:
        from fanfold.cli.chat.keyboard import Keyboard
        from fanfold.cli.chat.slash import WORDS
        from fanfold.cli.chat.speech import Speech

        self._call = call
        self._colour = wants_colour(sys.stderr, call.no_color)
        self._keyboard = Keyboard(project.config.home, tuple(WORDS))
        self._speech = Speech(self._colour)
        self._project = project
        self._flags = flags
        self._resume = resume
        self._chat: Chat | None = None

    @property
    def begun(self) -> bool:
        return self._chat is not None

    @property
    def chat(self) -> Chat:
        assert self._chat is not None, "it is opened first"
        return self._chat

    async def _open(self) -> None:
        from fanfold.runtime.operations.agents.chats import open_chat, resume_chat

        project, flags = self._project, self._flags
        ask = self._keyboard.allow if on_terminal() else None
        if self._resume is not None:
            self._chat = await resume_chat(
                project, self._resume, ask, self._hear, permission=flags.permission, model=flags.model
            )
            return
        options = read_options(project.folder, **structs.asdict(flags))
        self._chat = await open_chat(project, options, ask, self._hear)

    def _hear(self, _run: str, step: str, news: News) -> None:
        if not self._call.as_json and self._chat is not None:
            self._speech.hear(self.chat.tree, step, news)

    async def _listen(self) -> None:
        async for written in self.chat.follow():
            self._speech.told(self.chat.tree, written)

    # One thing

    async def once(self, text: str) -> int:
        from fanfold.runtime.operations.agents.chats import ChatAnswer
        from fanfold.runtime.operations.history.transcripts import denied_tools

        await self._open()
        listening = None if self._call.as_json else asyncio.create_task(self._listen())
        try:
            suited = await self.chat.judge(text)
            with Interrupts(self.chat.stop):
                turn = await self.chat.say(text, suited)
                await self.chat.rest()
        finally:
            if listening is not None:
                listening.cancel()
            await self.chat.leave()
        if self._call.as_json:
            say_json(
                ChatAnswer(
                    run_id=self.chat.id,
                    status=turn.status,
                    output=turn.output,
                    error=turn.error,
                    suited=suited,
                    agents=self.chat.agents(),
                    usage=self.chat.usage(),
                )
            )
        else:
            self._show(turn)
            if not on_terminal() and (tools := denied_tools(self._project, self.chat.id, turn.step)):
                step = shlex.quote(turn.step)
                tell(f"denied: {', '.join(tools)}; fanfold transcript {self.chat.id} {step} tells why\n")
            tell(f"go on: fanfold chat --resume {self.chat.id}\n")
        return _exit_status(turn.status)

    # A conversation

    async def interactive(self) -> int:
        from fanfold.cli.chat.slash import SlashCommands

        await self._open()
        chat = self.chat
        slash = SlashCommands(self._call, chat, self._keyboard)
        listening = asyncio.create_task(self._listen())
        try:
            await self._greet()
            while (line := await self._keyboard.read("> ")) is not None:
                if not line.strip():
                    continue
                try:
                    if line.lstrip().startswith("/"):
                        await slash.obey(line)
                    else:
                        await self._turn(line)
                except FanfoldError as error:
                    self._complain(error)
                except EOFError:
                    break
        finally:
            listening.cancel()
            left = [child.id for child in chat.agents() if child.status in ("queued", "running")]
            await chat.leave()
        if left:
            tell(f"stopped, to be gone on with: {', '.join(left)}\n")
        tell(f"go on: fanfold chat --resume {chat.id}\n")
        return EXIT_OK

    async def _greet(self) -> None:
        chat = self.chat
        tell(
            paint(
                f"{chat.id}, permission {chat.options.permission}; /help, Ctrl-D leaves", "dim", self._colour
            )
        )
        tell("\n")
        turns = chat.turns()
        if turns:
            tell(f"you said: {one_line(turns[-1].said, 200)}\n")
            if turns[-1].output is not None:
                self._speech.begin()
                self._speech.answer(turns[-1].output)
        cut_off = chat.cut_off()
        if cut_off is not None:
            tell("it was cut off; going on\n")
            self._speech.begin()
            with Interrupts(chat.stop):
                self._show(await chat.go_on(cut_off))

    async def _turn(self, text: str) -> None:
        chat = self.chat
        suited = await chat.judge(text)
        if suited is not None:
            reason = one_line(suited.reason, 200)
            tell(f"looks like work for a workflow: {reason} (tools for it are on; /plan drafts one)\n")
        self._speech.begin()
        with Interrupts(chat.stop):
            turn = await chat.say(text, suited)
        self._show(turn)
        if chat.worth_keeping():
            tell("/save NAME keeps what was delegated as a recipe\n")

    def _show(self, turn: ChatTurn) -> None:
        if turn.status == "completed":
            self._speech.answer(turn.output)
        elif turn.error is not None and turn.status != "cancelled":
            tell(f"{turn.status.replace('_', ' ')}: {plain(turn.error.message)}\n")
            if turn.error.hint:
                tell(f"  {plain(turn.error.hint)}\n")
        else:
            tell(f"{turn.status}\n")

    def _complain(self, error: FanfoldError) -> None:
        tell(f"error[{error.code}]: {plain(error.message)}\n")
        if error.hint:
            tell(f"  {plain(error.hint)}\n")


def _exit_status(status: str) -> int:
    return {"completed": EXIT_OK, "cancelled": EXIT_INTERRUPTED, "paused": EXIT_WAITING}.get(
        status, EXIT_FAILED
    )
