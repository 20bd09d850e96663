"""`fanfold chat`: a conversation with a lead that works, delegates and runs workflows; or one question.

Ctrl-C stops the running turn and keeps the session. Everything is recorded at once: `--resume` continues a
chat after it was closed or killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from msgspec import Struct, structs

from fanfold.agents.entries import Calling, FailedRequest, News, QueuedRequest, TextDelta
from fanfold.agents.permissions import Action, Answer, Posture
from fanfold.api.chats import Chat, ChatAnswer, ChatTurn, WorkflowEnd, open_chat, resume_chat
from fanfold.api.history import denied_tools
from fanfold.api.project import Project
from fanfold.api.recipes import DraftRequest, check_recipe
from fanfold.api.report import Transitions
from fanfold.api.run_documents import run_document
from fanfold.api.run_options import RunOptions
from fanfold.api.start import start
from fanfold.cli.agents import print_subagents
from fanfold.cli.command import (
    SCRIPT,
    UNSAFE,
    Invocation,
    command,
    given_inputs,
    option,
    options_from,
    read_options,
)
from fanfold.cli.main import main
from fanfold.cli.output import notify, on_terminal, paint, plain, print_json, print_text, wants_colour
from fanfold.cli.questions import ask_about, ask_permission
from fanfold.cli.recipes import plan_and_show
from fanfold.cli.run import Foreground, print_outcome
from fanfold.cli.run_list import spent_text
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_WAITING, AuthorError, FanfoldError
from fanfold.kernel.events import Envelope, WaitClosed, WaitOpened
from fanfold.language.diagnostics import nearest
from fanfold.language.inputs import bind_inputs
from fanfold.language.json_text import as_text
from fanfold.language.terminal import one_line, shorten, visible
from fanfold.steps.records import is_lead

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

# -----------------------------------------------------------------------------------------------------------
# Signals in a chat: Ctrl-C stops the running turn, never the session. SIGTERM, and the SIGHUP of a closed
# terminal, end the chat like /quit, so that it can be resumed.

Stop: TypeAlias = Callable[[], Coroutine[None, None, None]]


class Interrupts:
    """Let Ctrl-C call `stop` instead of ending the chat. Without `stop`, ignore it."""

    def __init__(self, stop: Stop | None, what: str = "the turn") -> None:
        self._stop = stop
        self._what = what
        self._stopping: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _interrupted(self) -> None:
        if self._stop is not None and self._stopping is None:
            notify(f"\nstopping {self._what}\n")
            self._stopping = asyncio.create_task(self._stop())


def listen_for_leaving() -> None:
    """Let signals cancel the calling task, once. Replaces handlers that were set meanwhile."""
    here, is_leaving = asyncio.current_task(), False
    assert here is not None

    def leave() -> None:
        nonlocal is_leaving
        if not is_leaving:
            is_leaving = True
            here.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # set by nohup
            asyncio.get_running_loop().add_signal_handler(number, leave)


@command("chat", summary="Talk to a lead agent that delegates and runs workflows")
@click.argument("text", required=False)
@option(
    "--resume", is_flag=False, flag_value="", metavar="[ID]", help="Continue a chat; default: the latest."
)
@option("--model", metavar="M", help="Use model M for the lead and its subagents.")
@SCRIPT
@options_from(RunOptions, "permission")
@UNSAFE
def chat_command(call: Invocation, text: str | None, resume: str | None, **flags: Any) -> int:
    """Talk with a lead session, or give it TEXT and get its answer.

    The lead works on the project, delegates to subagents, and plans and runs workflows if a request suits
    one. Lines that begin with / are commands: /help lists them. A chat is a run: runs, inspect, logs,
    transcript and capture show it.
    """
    if text is None and not on_terminal():
        text = sys.stdin.read() if not sys.stdin.isatty() else ""
    if text is not None and not text.strip():
        raise AuthorError("usage.missing", "the text is empty", hint='fanfold chat "What is here?"')
    if text is None and call.as_json:
        raise AuthorError("usage.missing", "--json needs a TEXT", hint='fanfold chat "What is here?" --json')
    with call.open_project() as project:
        talk = _ChatSession(call, project, flags, resume)
        try:
            return asyncio.run(talk.interactive() if text is None else talk.once(text))
        except asyncio.CancelledError:
            if talk.begun:
                notify(f"continue it: fanfold chat --resume {talk.chat.id}\n")
            return EXIT_INTERRUPTED


class _ChatSession:
    """A chat, from its start or resume to its end in this process."""

    def __init__(self, call: Invocation, project: Project, flags: dict[str, Any], resume: str | None) -> None:
        self._call = call
        self._colour = wants_colour(sys.stderr, call.no_color)
        self._keyboard = TerminalInput(project.config.home)
        self._speech = ChatOutput(self._colour)
        self._project = project
        self._flags = flags
        self._resume = resume
        self._chat: Chat | None = None
        if not call.as_json:
            project.narrate = self._speech.note

    @property
    def begun(self) -> bool:
        return self._chat is not None

    @property
    def chat(self) -> Chat:
        assert self._chat is not None, "it is opened first"
        return self._chat

    async def _open(self) -> None:
        listen_for_leaving()  # a signal that ends the chat raises `CancelledError`
        ask = self._keyboard.allow if on_terminal() else None
        if self._resume is not None:
            named = {name: self._flags[name] for name in ("permission", "model")}
            self._chat = await resume_chat(self._project, self._resume, ask, self._hear, **named)
        else:
            options = read_options(self._project, **self._flags)
            self._chat = await open_chat(self._project, options, ask, self._hear)

    def _hear(self, _run: str, step: str, news: News) -> None:
        if not self._call.as_json and self._chat is not None:
            self._speech.hear(self.chat.tree, step, news)

    async def _listen(self) -> None:
        async for written in self.chat.follow():
            self._speech.report(self.chat.tree, written)

    # One question

    async def once(self, text: str) -> int:
        await self._open()
        listening = None if self._call.as_json else asyncio.create_task(self._listen())
        try:
            suited = await self.chat.judge(text)
            with Interrupts(self.chat.stop):
                turn = await self.chat.say(text, suited)
                await self.chat.wait_for_agents()
        finally:
            if listening is not None:
                listening.cancel()
            await self.chat.leave()
        if self._call.as_json:
            print_json(
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
                notify(f"denied: {', '.join(tools)}; fanfold transcript {self.chat.id} {step} tells why\n")
            notify(f"continue it: fanfold chat --resume {self.chat.id}\n")
        return {"completed": EXIT_OK, "cancelled": EXIT_INTERRUPTED, "paused": EXIT_WAITING}.get(
            turn.status, EXIT_FAILED
        )

    # A conversation

    async def interactive(self) -> int:
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
                    hint = f"  {plain(error.hint)}\n" if error.hint else ""
                    notify(f"error[{error.code}]: {plain(error.message)}\n{hint}")
                except EOFError:
                    break
        finally:
            listening.cancel()
            left = [child.id for child in chat.agents() if child.status in ("queued", "running")]
            await chat.leave()
        if left:
            notify(f"stopped, can be continued: {', '.join(left)}\n")
        notify(f"continue it: fanfold chat --resume {chat.id}\n")
        return EXIT_OK

    async def _greet(self) -> None:
        chat = self.chat
        head = f"{chat.id}, permission {chat.options.permission}; /help, Ctrl-D leaves"
        notify(f"{paint(head, 'dim', self._colour)}\n")
        turns = chat.turns()
        if turns:
            notify(f"you said: {one_line(turns[-1].prompt, 200)}\n")
            if turns[-1].output is not None:
                self._speech.begin()
                self._speech.answer(turns[-1].output)
        unfinished = chat.unfinished_turn()
        if unfinished is not None:
            notify("it was cut off; continuing\n")
            self._speech.begin()
            with Interrupts(chat.stop):
                self._show(await chat.continue_turn(unfinished))

    async def _turn(self, text: str) -> None:
        chat = self.chat
        suited = await chat.judge(text)
        if suited is not None:
            reason = one_line(suited.reason, 200)
            notify(f"looks like work for a workflow: {reason} (tools for it are on; /plan drafts one)\n")
        self._speech.begin()
        with Interrupts(chat.stop):
            turn = await chat.say(text, suited)
        self._show(turn)
        if chat.offers_saving():
            notify("/save NAME keeps what was delegated as a recipe\n")

    def _show(self, turn: ChatTurn) -> None:
        if turn.status == "completed":
            self._speech.answer(turn.output)
        elif turn.error is not None and turn.status != "cancelled":
            notify(f"{turn.status.replace('_', ' ')}: {plain(turn.error.message)}\n")
            if turn.error.hint:
                notify(f"  {plain(turn.error.hint)}\n")
        else:
            notify(f"{turn.status}\n")


# -----------------------------------------------------------------------------------------------------------
# Input of the user: lines with history, several at a time, and answers to questions.
#
# Enter sends; Alt-Enter, or a backslash at the end, starts another line. The history is a file in the user's
# own folder, because a file in the project could be a link to somewhere else.

HISTORY = "chat_history"


class TerminalInput:
    """The user at this terminal: reads their lines, and asks them one question at a time."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._session: PromptSession[str] | None = None
        self._asking = asyncio.Lock()
        self._reading = False

    async def read(self, prompt: str) -> str | None:
        """Return the next input of the user, or None at the end of the input."""
        from prompt_toolkit.patch_stdout import patch_stdout

        session = self._session = self._session or self._make()
        self._reading = True
        try:
            with patch_stdout(raw=True):
                return await session.prompt_async(prompt)
        except KeyboardInterrupt:
            return ""
        except EOFError:
            return None
        finally:
            self._reading = False

    def _make(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory

        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._home / HISTORY
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
        return PromptSession(
            history=FileHistory(str(file)),
            multiline=True,
            key_bindings=_keys(),
            completer=WordCompleter(list(WORDS), sentence=True),
            complete_while_typing=False,
            prompt_continuation="  ",
        )

    # Questions

    permits = staticmethod(ask_permission)
    """Ask whether a recipe may have the effects in the request, between two turns."""

    async def allow(self, action: Action) -> Answer:
        """Ask whether an agent may do an action; any answer except yes means no."""
        async with self._asking:
            if not self._reading:
                return await ask_about(action)
            from prompt_toolkit.application import in_terminal

            async with in_terminal():
                return await ask_about(action)


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    def next_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    keys.add("enter")(send)
    keys.add("escape", "enter")(next_line)
    keys.add("c-j")(send)  # Enter that was typed before the prompt
    return keys


# -----------------------------------------------------------------------------------------------------------
# Slash commands.
#
# Most of them call commands of `fanfold`, so there is one implementation. They run in a thread and open the
# project again, like another process.

MAX_OUTPUT_CHARS = 600
PLAN_OPTIONS = "it has --save NAME, --replace, --no-model and --anyway"
_PLAN_OPTION = r"--(?:save (?P<name>\S+)|(?P<flag>replace|no-model|anyway))(?:\s+|$)"
POSTURES: tuple[Posture, ...] = ("read_only", "ask", "auto")


class Slash(Struct, frozen=True):
    """A slash command: its usage and its description."""

    usage: str
    help: str
    call: Callable[[SlashCommands, str], Awaitable[None]]


class SlashCommands:
    """The slash commands of one chat."""

    def __init__(self, call: Invocation, chat: Chat, keyboard: TerminalInput) -> None:
        self._call = call
        self._chat = chat
        self._keyboard = keyboard

    async def obey(self, line: str) -> None:
        """Execute a slash command; raises an error if it is invalid."""
        word, _, rest = line.strip().partition(" ")
        command = WORDS.get(word)
        if command is None:
            near = nearest(word, tuple(WORDS))
            hint = f"did you mean {near}?" if near else "/help lists them"
            raise AuthorError("chat.unknown_word", f"{word} is not a command of the chat", hint=hint)
        await command.call(self, rest.strip())

    async def help(self, _rest: str) -> None:
        width = max(len(one.usage) for one in WORDS.values())
        for one in WORDS.values():
            print_text(f"  {paint(one.usage.ljust(width), 'cyan', self._call.colour)}  {one.help}\n")
        print_text("  Anything else goes to the lead.\n")
        print_text("  Ctrl-C stops a turn; Alt-Enter begins another line.\n")

    async def run(self, rest: str) -> None:
        name, *pairs = _split(rest)
        chat, options = self._chat, self._chat.options
        plan = check_recipe(chat.project, name, scripted=options.script is not None).runnable()
        inputs = bind_inputs(plan, given_inputs(chat.project.folder, plan, pairs, None))
        terminal = Foreground(self._call)
        owned = start(chat.project, plan, inputs, options, prompter=self._keyboard, at_home=True)
        terminal.listen(asyncio.get_running_loop())
        await terminal.drive_in_loop(owned)
        listen_for_leaving()
        print_outcome(self._call, owned.tree)
        document = run_document(owned.tree)
        chat.note_run(
            WorkflowEnd(
                run_id=owned.tree.root.id,
                recipe=plan.name,
                status=run_status(owned.tree.state, owned.tree.root),
                output=shorten(as_text(document.output), MAX_OUTPUT_CHARS),
            )
        )

    async def plan(self, rest: str) -> None:
        name: str | None = None
        given: set[str] = set()
        while (option := re.match(_PLAN_OPTION, rest)) is not None:
            name = option["name"] or name
            given.add(option["flag"] or "")
            rest = rest[option.end() :]
        task = _require_text(rest.strip(), "/plan [--save NAME] TASK")
        if task.startswith("--"):
            raise AuthorError("usage.unknown_option", f"/plan has no {task.split()[0]}", hint=PLAN_OPTIONS)
        wanted = DraftRequest(
            task=task, name=name, use_model="no-model" not in given, anyway="anyway" in given
        )
        chat, replace = self._chat, "replace" in given
        drafting = asyncio.ensure_future(
            plan_and_show(self._call, chat.project, wanted, chat.options, replace=replace)
        )

        async def stop() -> None:
            drafting.cancel()

        with Interrupts(stop, "the plan"):
            await asyncio.wait([drafting])
        if drafting.cancelled():
            print_text("stopped\n")
            return
        self._chat.note_plan(drafting.result().runs)

    async def status(self, rest: str) -> None:
        await self._fanfold("inspect", rest or self._chat.id)

    async def agents(self, _rest: str) -> None:
        print_subagents(self._call, self._chat.agents())

    async def query(self, rest: str) -> None:
        await self._fanfold("query", *_split(_require_text(rest, "/query WORDS")))

    async def save(self, rest: str) -> None:
        name, *run = _split(rest) if rest else [""]
        started = self._chat.runs()
        if not run and not self._chat.agents() and started:
            run = started[-1:]  # nothing was delegated: use the recipe of the latest workflow
        source = run[0] if run else self._chat.id
        await self._fanfold("capture", source, *(["--name", name] if name else []))

    async def permission(self, rest: str) -> None:
        if rest and rest not in POSTURES:
            hint = f"one of {', '.join(POSTURES)}"
            raise AuthorError("usage.bad_value", f"{rest} is not a permission", hint=hint)
        if rest:
            self._chat.options = structs.replace(self._chat.options, permission=rest)
        print_text(f"permission: {self._chat.options.permission}\n")

    async def cost(self, _rest: str) -> None:
        usage = self._chat.usage()
        print_text(f"{spent_text(usage)}, {usage.agents} turns of agents\n")

    async def undo(self, rest: str) -> None:
        words = _split(rest, least=0)
        runs = [run for run in self._chat.runs() if words and run.startswith(words[0])]
        if runs:
            await self._fanfold("undo", *runs[-1:], *words[1:])
            return
        changed = self._chat.id
        if not words and not any(self._chat.tree.memory.changes.values()):  # its latest workflow that merged
            views = ((run, self._chat.project.view(run)) for run in reversed(self._chat.runs()))
            changed = next((run for run, tree in views if any(tree.memory.changes.values())), changed)
        await self._fanfold("undo", changed, *words)

    async def quit(self, _rest: str) -> None:
        raise EOFError

    async def _fanfold(self, *arguments: str) -> None:
        more = ["--project", str(self._chat.project.folder)]
        more += ["--no-color"] if not self._call.colour else []
        with Interrupts(None):
            await asyncio.to_thread(main, [*more, *arguments])


def _split(rest: str, least: int = 1) -> list[str]:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise AuthorError("usage.bad_value", f"the command cannot be parsed: {error}") from None
    if len(words) < least:
        raise AuthorError("usage.missing", "an argument is missing", hint="/help lists the commands")
    return words


def _require_text(rest: str, usage: str) -> str:
    if not rest:
        raise AuthorError("usage.missing", "an argument is missing", hint=usage)
    return rest


_TABLE = (
    Slash("/run NAME key=value", "run a recipe here; the lead hears how it ended", SlashCommands.run),
    Slash("/plan [--save NAME] TASK", "draft a recipe for a task; saved under NAME", SlashCommands.plan),
    Slash("/status [RUN]", "how this chat, or a run, stands", SlashCommands.status),
    Slash("/agents", "the subagents of this chat", SlashCommands.agents),
    Slash("/query WORDS", "search what agents wrote", SlashCommands.query),
    Slash("/save [NAME] [RUN]", "keep what was delegated, or the recipe of RUN", SlashCommands.save),
    Slash("/permission [P]", "read_only, ask or auto, from the next turn on", SlashCommands.permission),
    Slash("/cost", "what was spent", SlashCommands.cost),
    Slash("/undo [RUN] [STEP]", "revert what was merged in this chat", SlashCommands.undo),
    Slash("/help", "this list", SlashCommands.help),
    Slash("/quit", "leave; fanfold chat --resume continues", SlashCommands.quit),
)
WORDS = {one.usage.partition(" ")[0]: one for one in _TABLE}

# -----------------------------------------------------------------------------------------------------------
# Output during a turn: streamed text of the lead, its actions, and ends of subagents.
#
# Text of models arrives in pieces of any length. The whole line is sanitized whenever it grows, and only its
# new part is written, so an escape sequence that is split between two pieces is still removed.

MAX_LINE_CHARS = 100_000


class ChatOutput:
    """Writes to the terminal, with `colour` for everything except the text of the lead."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._line = ""
        self._shown = ""
        self._spoke = False
        self._transitions = Transitions()

    def begin(self) -> None:
        """Start a turn without any text yet."""
        self._spoke = False

    def hear(self, tree: RunTree, path: str, news: News) -> None:
        """Show the activity of the lead. Of subagents, only the end is shown."""
        node = tree.root.nodes.get(path)
        if node is None or not is_lead(node):
            return
        if isinstance(news, TextDelta):
            self._spoke = self._spoke or bool(news.delta.strip())
            *ended, rest = (self._line + news.delta).split("\n")
            for line in ended:
                self._show(line)
                print_text("\n")
                self._line = self._shown = ""
            self._show(rest[-MAX_LINE_CHARS:])
            self._line = rest[-MAX_LINE_CHARS:]
        elif isinstance(news, Calling):
            about = f" {news.about}" if news.about else ""
            self.note(f"{news.tool}{about}")
        elif isinstance(news, FailedRequest):
            self.note(f"a request to the provider failed: {news.words}")
        elif isinstance(news, QueuedRequest):
            self.note(news.message)

    def report(self, tree: RunTree, written: Sequence[Envelope]) -> None:
        """Show recorded events: starts and ends of subagents, and waits."""
        self._transitions.tree = tree
        for envelope in written:
            found = self._transitions.read(envelope)
            if found is not None and isinstance(envelope.data, WaitOpened | WaitClosed):
                self.note(found.text)
            node = tree.root.nodes.get(found.path) if found is not None and found.path else None
            if found is not None and node is not None and not is_lead(node) and found.word != "added":
                self.note(f"{found.path} {found.text}")

    def answer(self, output: object) -> None:
        """Print the answer of a turn, unless it was streamed."""
        if self._spoke:
            self._end_line()
        else:
            print_text(f"{plain(as_text(output))}\n")

    def note(self, text: str) -> None:
        """Print a line that is not text of the lead."""
        self._end_line()
        notify(paint(f"  · {one_line(text, 160)}", "dim", self._colour) + "\n")

    def _show(self, line: str) -> None:
        shown = visible(line, keep="\t")
        if shown.startswith(self._shown):
            print_text(shown[len(self._shown) :])
        else:  # a combining mark changed an earlier character: print the line again
            print_text(f"\n{shown}")
        self._shown = shown
        sys.stdout.flush()

    def _end_line(self) -> None:
        if self._line:
            print_text("\n")
        self._line = self._shown = ""
