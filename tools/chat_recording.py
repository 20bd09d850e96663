"""Record the chat that `docs/mcp.md` shows: the real program, at a real terminal, on the scripted provider.

    python -m tools.chat_recording            record it and write it into the page
    python -m tools.chat_recording --check    only say whether the page shows what happens

What differs from one time to the next (the name of the chat, how long things took) is replaced.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.provider import KEY, Call, RecordedRequest, Reply, ScriptedProvider, answer_with
from tools.screen import Screen
from tools.tidy import ROOT

PAGE = ROOT / "docs" / "mcp.md"
BEGIN, END = "<!-- generated: recording -->", "<!-- end generated -->"
SOURCE = "def is_leap(year):\n    return year % 4 == 0\n"
FIXED = "def is_leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n"
FOUND = "src/clock.py, line 2, takes every fourth year for a leap year and forgets centuries."
DONE = "is_leap() now excludes centuries that 400 does not divide."
PATIENCE_S = 60.0


def answer(asked: RecordedRequest) -> Reply:
    """The replies of the scripted models, by role and turn."""
    last = asked.messages[-1]
    if asked.prompt.startswith("The request, as a JSON string"):
        return answer_with({"suitable": False, "reason": "one agent does it"}, asked)
    if asked.prompt.startswith("Find out"):
        look = Call("read_file", {"path": "src/clock.py"})
        return Reply(text=FOUND) if asked.turns else Reply(calls=(look,))
    if asked.prompt.startswith("Fix this"):
        write = Call("write_file", {"path": "src/clock.py", "content": FIXED})
        return Reply(text=DONE) if asked.turns else Reply(calls=(write,))
    if "Why does 1900" in last.text:
        task = {"role": "explorer", "name": "scout", "task": "Find out why 1900 is taken for a leap year."}
        return Reply(text="An explorer looks into it.", calls=(Call("task", task),))
    if "Fix it" in last.text:
        task = {"role": "worker", "name": "fix", "task": f"Fix this: {FOUND}"}
        return Reply(calls=(Call("task", {**task, "write_set": ["src/clock.py"]}),))
    if DONE in last.text or any(DONE in text for _, text in last.results):
        return Reply(text="It is fixed: 1900 is no leap year any more, 2000 still is.")
    return Reply(text=f"Because {FOUND}")


@contextmanager
def provider() -> Iterator[dict[str, str]]:
    """The scripted provider in a thread; what a process needs to use it."""
    started, loops = threading.Event(), []
    server = ScriptedProvider(answer)
    over = asyncio.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with server:
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield {
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": KEY,
            "FANFOLD_MODEL": "openai-chat:gpt-5",
        }
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(PATIENCE_S)


def record() -> str:
    """The chat as it stands on the screen at its end."""
    with tempfile.TemporaryDirectory() as folder, provider() as environment:
        project = Path(folder) / "project"
        (project / "src").mkdir(parents=True)
        (project / "src/clock.py").write_text(SOURCE)
        known = {"HOME": folder, "FANFOLD_HOME": f"{folder}/.fanfold", "NO_COLOR": "1", **environment}
        screen = Screen(132, 90, project, "chat", PROMPT_TOOLKIT_NO_CPR="1", **known)
        try:
            _play(screen)
            rows = list(screen.rows)
        finally:
            screen.close()
        assert (project / "src/clock.py").read_text() == FIXED
    while not rows[-1]:
        rows.pop()
    return _settled("\n".join(rows), folder)


def _play(screen: Screen) -> None:
    for typed, *shown in (
        ("Why does 1900 count as a leap year?\r", "[y/N]"),
        ("y\r", "Because", "\n>"),
        ("Fix it.\r", "writes src/clock.py", "allow it?"),
        ("y\r", "2000 still is", "/save NAME", "\n>"),
        ("/agents\r", "fix", "\n>"),
        ("/save fix-clock\r", "saved as", "\n>"),
        ("/cost\r", "tokens in", "\n>"),
        ("/quit\r", "continue it: fanfold chat"),
    ):
        if typed != "y\r":
            screen.until_prompt()
        screen.type(typed)
        screen.until(*shown)
    screen.end()


def _settled(text: str, folder: str) -> str:
    """With what differs each time replaced."""
    text = text.replace(os.path.realpath(folder) + "/project", "~/clock").replace(
        folder + "/project", "~/clock"
    )
    text = re.sub(r"chat-[0-9a-z]{6}\b", "chat-7k2m9x", text)
    return re.sub(r"\b\d+ ms\b|\b\d+(\.\d+)? s\b", "2 s", text)


def page_with(recording: str) -> str:
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n```text\n$ fanfold chat\n{recording}\n```\n\n{END}{tail}"


def main() -> int:
    fresh = page_with(record())
    if fresh == PAGE.read_text():
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE} does not show what happens: python -m tools.chat_recording")
        return 1
    PAGE.write_text(fresh)
    print(f"rewrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
