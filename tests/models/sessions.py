"""Sessions of real SDKs against the scripted provider, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from fanfold.agents.backend import SessionRequest, SessionResult
from fanfold.agents.entries import E, Entry, FailedRequest, News, QueuedRequest
from fanfold.agents.models.connections import Connections
from fanfold.agents.models.requests import Patience
from fanfold.agents.models.session import ModelBackend
from fanfold.agents.providers import PROVIDERS, Access, Provider, Rate
from tests.provider import KEY, Script, ScriptedProvider
from tests.session_requests import session_request
from tests.work import PATIENCE_S

MODELS = ("openai-chat:gpt-5", "openai-responses:gpt-5", "anthropic:claude-sonnet-4-6")
QUICK = Patience(tries=3, backoff_s=0.001, max_wait_s=1.0)


def access(url: str, key: str = KEY, providers: Sequence[Provider] = PROVIDERS) -> Access:
    addresses = {"openai": f"{url}/v1", "anthropic": url}
    return Access(providers=providers, keys=dict.fromkeys(addresses, key), addresses=addresses)


def request(workspace: Path | str = ".", **given: Any) -> SessionRequest:
    asked: dict[str, Any] = {
        "session_id": "s1",
        "run_id": "r1",
        "step": "work",
        "instructions": "You work.",
        "prompt": "Do the work.",
        "model": MODELS[0],
        "workspace": str(workspace),
    }
    return session_request(**{**asked, **given})


class Recorder:
    """Takes what a session records; `stop_at` kills it behind that many entries."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.entries: list[Entry] = []
        self.shown: list[News] = []
        self._stop_at = stop_at

    async def record(self, entry: Entry, *, may_wait: bool = False) -> None:
        waits = isinstance(entry, QueuedRequest) or (
            isinstance(entry, FailedRequest) and (entry.usage is None or entry.kind == "cancelled")
        )
        assert not may_wait or waits, "it was paid for"
        self.entries.append(entry)
        if len(self.entries) == self._stop_at:
            raise Killed

    def show(self, news: News) -> None:
        self.shown.append(news)

    def of(self, kind: type[E]) -> list[E]:
        return [entry for entry in self.entries if isinstance(entry, kind)]


class Killed(BaseException):
    """The process died here."""


class World:
    """A provider, a back end that talks to it, and what the session recorded."""

    def __init__(self, provider: ScriptedProvider, backend: ModelBackend) -> None:
        self.provider = provider
        self.backend = backend
        self.recorder = Recorder()

    async def run(self, asked: SessionRequest, recorder: Recorder | None = None) -> SessionResult:
        self.recorder = recorder or Recorder()
        return await self.backend.run(asked, self.recorder.record, self.recorder.show)


@asynccontextmanager
async def world(
    script: Script,
    *,
    key: str = KEY,
    stall_s: float = PATIENCE_S,
    providers: Sequence[Provider] = PROVIDERS,
    prices: Mapping[str, Rate] | None = None,
    **options: Any,
):
    async with ScriptedProvider(script) as provider:
        given = msgspec.structs.replace(access(provider.url, key, providers), own_prices=prices or {})
        options.setdefault("patience", QUICK)
        backend = ModelBackend(given, connections=Connections(given, stall_s=stall_s), **options)
        try:
            yield World(provider, backend)
        finally:
            await backend.aclose()


def play(script: Script, scene: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """Run a scene in a world."""

    async def main() -> None:
        async with world(script, **options) as here:
            await asyncio.wait_for(scene(here), PATIENCE_S)

    asyncio.run(main())


def kinds(entries: Sequence[Entry]) -> list[str]:
    return [msgspec.to_builtins(entry)["kind"] for entry in entries]
