"""What a person can tell a chat to do besides speaking with the lead: words that begin with a slash.

Most of them are commands of `fanfold`, called for this chat: one implementation, whoever asks. They run in a
thread, with a project of their own, as another process would.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct, structs

from fanfold.agents.permissions import Posture
from fanfold.cli.agents.subagents import say_subagents
from fanfold.cli.chat.interrupts import Interrupts, listen_for_leaving
from fanfold.cli.chat.keyboard import Keyboard
from fanfold.cli.command import Invocation
from fanfold.cli.inputs import given_inputs
from fanfold.cli.main import main
from fanfold.cli.recipes.plan import PlanFlags, plan_and_show
from fanfold.cli.runs.foreground import Foreground
from fanfold.cli.runs.outcome import say_outcome
from fanfold.cli.terminal.output import paint, say
from fanfold.errors import AuthorError
from fanfold.recipe.inputs import bind_inputs
from fanfold.runtime.hosting.run_tree import run_status
from fanfold.runtime.operations.agents.chats import Chat
from fanfold.runtime.operations.agents.lead import RunHeard
from fanfold.runtime.operations.recipes.checked import check_recipe
from fanfold.runtime.operations.runs.starting.creation import start
from fanfold.runtime.views.runs.documents import run_document
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import as_text
from fanfold.text.patterns import regex
from fanfold.text.spelling import nearest

MAX_OUTPUT_CHARS = 600
PLAN_OPTIONS = "it has --save NAME, --replace, --no-model and --anyway"
_PLAN_OPTION = regex(r"--(?:save (?P<name>\S+)|(?P<flag>replace|no-model|anyway))(?:\s+|$)")
POSTURES: tuple[Posture, ...] = ("read_only", "ask", "auto")


class Slash(Struct, frozen=True):
    """One word: how it is written, and what it does."""

    usage: str
    help: str
    call: Callable[[SlashCommands, str], Awaitable[None]]

    @property
    def word(self) -> str:
        return self.usage.partition(" ")[0]


class SlashCommands:
    """The words of one chat."""

    def __init__(self, call: Invocation, chat: Chat, keyboard: Keyboard) -> None:
        self._call = call
        self._chat = chat
        self._keyboard = keyboard

    async def obey(self, line: str) -> None:
        """Do what a line that begins with a slash says; raises what is wrong with it."""
        word, _, rest = line.strip().partition(" ")
        command = WORDS.get(word)
        if command is None:
            near = nearest(word, tuple(WORDS))
            hint = f"did you mean {near}?" if near else "/help lists them"
            raise AuthorError("chat.unknown_word", f"there is no {word} here", hint=hint)
        await command.call(self, rest.strip())

    async def help(self, _rest: str) -> None:
        width = max(len(one.usage) for one in WORDS.values())
        for one in WORDS.values():
            say(f"  {paint(one.usage.ljust(width), 'cyan', self._call.colour)}  {one.help}\n")
        say("  Anything else is said to the lead.\n")
        say("  Ctrl-C stops a turn; Alt-Enter begins another line.\n")

    async def run(self, rest: str) -> None:
        name, *pairs = _words(rest)
        chat, options = self._chat, self._chat.options
        plan = check_recipe(chat.project, name, scripted=options.script is not None).runnable()
        inputs = bind_inputs(plan, given_inputs(chat.project.folder, plan, pairs, None))
        terminal = Foreground(self._call)
        owned = start(chat.project, plan, inputs, options, attendant=self._keyboard)
        terminal.listen(asyncio.get_running_loop())
        await terminal.see_to(owned)
        listen_for_leaving()
        say_outcome(self._call, owned.tree)
        document = run_document(owned.tree)
        chat.note_run(
            RunHeard(
                run_id=owned.tree.root.id,
                recipe=plan.name,
                status=run_status(owned.tree.state, owned.tree.root),
                output=shorten(as_text(document.output), MAX_OUTPUT_CHARS),
            )
        )

    async def plan(self, rest: str) -> None:
        name: str | None = None
        given: set[str] = set()
        while (option := _PLAN_OPTION.match(rest)) is not None:
            name = option["name"] or name
            given.add(option["flag"] or "")
            rest = rest[option.end() :]
        task = _some(rest.strip(), "/plan [--save NAME] TASK")
        if task.startswith("--"):
            raise AuthorError("usage.unknown_option", f"/plan has no {task.split()[0]}", hint=PLAN_OPTIONS)
        flags = PlanFlags(
            save=name,
            replace="replace" in given,
            refine=None,
            model=None,
            no_model="no-model" in given,
            anyway="anyway" in given,
            script=None,
        )
        chat = self._chat
        drafting = asyncio.ensure_future(plan_and_show(self._call, chat.project, task, flags, chat.options))

        async def stop() -> None:
            drafting.cancel()

        with Interrupts(stop, "the plan"):
            await asyncio.wait([drafting])
        if drafting.cancelled():
            say("stopped\n")
            return
        drafting.result()

    async def status(self, rest: str) -> None:
        await self._fanfold("inspect", rest or self._chat.id)

    async def agents(self, _rest: str) -> None:
        say_subagents(self._call, self._chat.agents())

    async def query(self, rest: str) -> None:
        await self._fanfold("query", *_words(_some(rest, "/query WORDS")))

    async def save(self, rest: str) -> None:
        await self._fanfold("capture", self._chat.id, *(["--name", *_words(rest)] if rest else []))

    async def permission(self, rest: str) -> None:
        if rest and rest not in POSTURES:
            hint = f"one of {', '.join(POSTURES)}"
            raise AuthorError("usage.bad_value", f"{rest} is no permission", hint=hint)
        if rest:
            self._chat.options = structs.replace(self._chat.options, permission=rest)
        say(f"permission: {self._chat.options.permission}\n")

    async def cost(self, _rest: str) -> None:
        usage = self._chat.usage()
        price = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
        say(
            f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {price},"
            f" {usage.agents} turns of agents\n"
        )

    async def undo(self, rest: str) -> None:
        await self._fanfold("undo", self._chat.id, *_words(rest, least=0))

    async def quit(self, _rest: str) -> None:
        raise EOFError

    async def _fanfold(self, *arguments: str) -> None:
        more = ["--project", str(self._chat.project.folder)]
        more += ["--no-color"] if not self._call.colour else []
        with Interrupts(None):
            await asyncio.to_thread(main, [*more, *arguments])


def _words(rest: str, least: int = 1) -> list[str]:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise AuthorError("usage.bad_value", f"this cannot be read: {error}") from None
    if len(words) < least:
        raise AuthorError("usage.missing", "something is missing", hint="/help shows what follows")
    return words


def _some(rest: str, usage: str) -> str:
    if not rest:
        raise AuthorError("usage.missing", "something is missing", hint=usage)
    return rest


def _table() -> Sequence[Slash]:
    return (
        Slash("/run NAME key=value", "run a recipe here; the lead hears how it ended", SlashCommands.run),
        Slash("/plan [--save NAME] TASK", "draft a recipe for a task; saved under NAME", SlashCommands.plan),
        Slash("/status [RUN]", "how this chat, or a run, stands", SlashCommands.status),
        Slash("/agents", "the subagents of this chat", SlashCommands.agents),
        Slash("/query WORDS", "search what agents wrote", SlashCommands.query),
        Slash("/save [NAME]", "what was delegated, as a recipe; saved under NAME", SlashCommands.save),
        Slash("/permission [P]", "read_only, ask or auto, from the next turn on", SlashCommands.permission),
        Slash("/cost", "what was spent", SlashCommands.cost),
        Slash("/undo [STEP]", "take back what was merged, by the lead or a subagent", SlashCommands.undo),
        Slash("/help", "this list", SlashCommands.help),
        Slash("/quit", "leave; fanfold chat --resume goes on", SlashCommands.quit),
    )


WORDS = {one.word: one for one in _table()}
