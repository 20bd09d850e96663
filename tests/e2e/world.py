"""A project, the command line as a real process, and a provider that answers it from a thread of the test."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.provider import KEY, Answer, RecordedRequest, Reply, ScriptedProvider
from tests.work import PATIENCE_S

MODELS = {
    "chat": "openai-chat:gpt-5",
    "responses": "openai-responses:gpt-5",
    "messages": "anthropic:claude-sonnet-4-6",
}
Script = Callable[[RecordedRequest], Answer]


class Provider:
    """The scripted provider in a thread of its own: it outlives every process that the test kills."""

    def __init__(self, script: Script, *, key: str | None = KEY) -> None:
        self.script = script
        self.given: list[tuple[RecordedRequest, Reply]] = []
        """Whole responses: what a provider charges for."""
        self._server = ScriptedProvider(self._answer, key=key)
        self._news = threading.Condition()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        with self._news:
            assert self._news.wait_for(lambda: self._server.port, PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join(PATIENCE_S)

    @property
    def asked(self) -> list[RecordedRequest]:
        return self._server.asked

    @property
    def addresses(self) -> dict[str, str]:
        """Where it is, as a process is told."""
        url = self._server.url
        return {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to talk to it."""
        return {**self.addresses, "OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}

    def until(self, holds: Callable[[RecordedRequest], bool]) -> RecordedRequest:
        """Wait for a request of which this holds; that request."""
        found: list[RecordedRequest] = []

        def look() -> bool:
            found[:] = [one for one in self.asked if holds(one)]
            return bool(found)

        with self._news:
            assert self._news.wait_for(look, PATIENCE_S), [one.prompt for one in self.asked]
        return found[0]

    def paid_twice(self) -> list[str]:
        """Conversations that were answered in whole more than once."""
        said = [json.dumps(asked.body.get("messages", asked.body.get("input"))) for asked, _ in self.given]
        return sorted({one for one in said if said.count(one) > 1})

    def _answer(self, asked: RecordedRequest) -> Answer:
        answer = self.script(asked)
        with self._news:
            if isinstance(answer, Reply):
                self.given.append((asked, answer))
            self._news.notify_all()
        return answer

    async def _serve(self) -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(over.set)
        async with self._server:
            with self._news:
                self._news.notify_all()
            await over.wait()


class Done(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Project:
    """A folder, and the command line in it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.started: list[subprocess.Popen[str]] = []

    def file(self, name: str) -> Path:
        """A file of the project, in a folder that is there."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fanfold.cli.main", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def __call__(self, *arguments: str, **environment: str) -> Done:
        """Run a command to its end; one that hangs fails the test."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=PATIENCE_S)
        return Done(process.returncode, out, err)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def clean_environment(home: Path) -> dict[str, str]:
    """The environment of the tests without anything of a provider's in it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "ANTHROPIC_", "FANFOLD_", "AGENT_"))
    }
    return {**kept, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
