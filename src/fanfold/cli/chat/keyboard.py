"""What a person types in a chat: lines with history, several at a time, and answers to questions.

Enter sends; Alt-Enter, or a backslash at the end, begins another line. The history is the user's own
file in the user's own folder: a project could have brought one that leads elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fanfold.agents.permissions import Action
from fanfold.cli.terminal.output import plain, tell
from fanfold.cli.terminal.questions import hand_over_typed
from fanfold.kernel.plan import Plan
from fanfold.text.terminal import visible

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

HISTORY = "chat_history"
_WANTS = {"command": "run", "write": "write", "network": "fetch", "spawn": "do this"}


class Keyboard:
    """The person at this terminal: says things, and is asked one question at a time."""

    def __init__(self, home: Path, words: Sequence[str]) -> None:
        self._home = home
        self._words = words
        self._session: PromptSession[str] | None = None
        self._asking = asyncio.Lock()
        self._reading = False

    async def read(self, prompt: str) -> str | None:
        """The next thing the person says; None when there is nothing more to come."""
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
            completer=WordCompleter(list(self._words), sentence=True),
            complete_while_typing=False,
            prompt_continuation="  ",
        )

    # Questions

    def may_run(self, plan: Plan, lines: Sequence[str]) -> bool:
        """Whether a recipe may do what it declares; asked between two turns, when nothing else reads."""
        tell(f"{plan.name} asks for permission:\n")
        for one in lines:
            tell(f"  {visible(one)}\n")
        tell("Run it? [y/N] ")
        return _is_yes(sys.stdin.readline())

    async def allow(self, action: Action) -> bool:
        """Whether an agent may do what it chose to do; anything but yes is no."""
        async with self._asking:
            if not self._reading:
                return await self._ask(action)
            from prompt_toolkit.application import in_terminal

            async with in_terminal():
                return await self._ask(action)

    async def _ask(self, action: Action) -> bool:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # what was typed before is no answer
        who = plain(action.step) or "an agent"
        tell(f"\n{who} wants to {_WANTS.get(action.kind, action.kind)}:\n")
        # Set off line by line, so that none of it can pass for a question of ours.
        tell("".join(f"  │ {visible(line)}\n" for line in action.what.splitlines()))
        tell("  allow it? [y/N] ")
        loop = asyncio.get_running_loop()
        typed: asyncio.Future[str] = loop.create_future()
        loop.add_reader(sys.stdin.fileno(), hand_over_typed, typed)
        try:
            return _is_yes(await typed)
        finally:
            loop.remove_reader(sys.stdin.fileno())


def _is_yes(typed: str) -> bool:
    return typed.strip().lower() in ("y", "yes")


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
    keys.add("c-j")(send)  # Enter that was typed ahead, while the terminal was not ours yet
    return keys
