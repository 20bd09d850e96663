"""Server-sent events: the events of one run, and the changes of all runs of the project.

Rules
* The `id` of an event is its durable number in the tree. A client that reconnects with it as `Last-Event-ID`
  gets the following events, without gap or duplicate, also after a long time and from another server.
* Nothing is queued for a client. The server stores only the number that each client has reached. It reads the
  following events from a buffer that all streams of a run share, or from the store. A client that reads
  nothing for `SLOW_S` is disconnected and can continue later.
* When the server stops, streams end at once, and pages reconnect by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fanfold.api.approvals import shown
from fanfold.api.overview import Activities, Activity
from fanfold.api.project import Project
from fanfold.engine.run_tree import wall_clock_ms
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.state import PAUSED, PENDING, RUN_TERMINAL, RUNNING, WAITING
from fanfold.server.requests import AppState
from fanfold.store.protocol import Store

# -----------------------------------------------------------------------------------------------------------
# One watch over all runs of the project, for all streams and caches.
#
# `generation` counts its signals. A document stays current until the next generation. A reader that waits for
# new events waits for the next generation.

PAUSE_S = 0.02
"""The time between two wake-ups: a run with a thousand commits per second causes fifty."""


class Feed:
    """Follows every tree of a store while `run` is running."""

    def __init__(self, store: Store) -> None:
        self._signal = store.follow()
        self._generation = 0
        self._next = asyncio.Event()
        self.closing = asyncio.Event()
        """Set when the server is about to stop; streams then end."""

    async def run(self) -> None:
        """Wake all waiting readers, until cancelled."""
        try:
            while True:
                await self._signal.wait()
                self.bump()
                await asyncio.sleep(PAUSE_S)
        finally:
            self._signal.close()

    def bump(self) -> None:
        """Start a new generation: something changed, or may have changed."""
        self._generation += 1
        self.stir()

    def generation(self) -> int:
        """Return the current generation, including all commits so far."""
        if self._signal.wait_blocking(0):
            self.bump()
        return self._generation

    def stir(self) -> None:
        """Wake all waiting readers without a new generation: only what agents write has changed."""
        self._next.set()
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event that the next generation sets. Get it, read, then wait: nothing is missed."""
        return self._next

    def close(self) -> None:
        """End every stream."""
        self.closing.set()
        self.bump()


SLOW_S = 20.0
ACTIVITY_S = 0.3
"""The time between two updates of what running agents do."""
QUIET_S = 10.0
"""After this time without an event a comment is sent, which detects a lost connection."""
PIECE = 200
"""The maximum number of events read and sent at once."""
MAX_SHARED = 2_000
"""The number of buffered events of a run; a client that is further behind reads the store."""
MARGIN_MS = 20_000
"""Tolerance for clock differences, for delays between record and sending, and for a page that loads before
its stream opens. Some changes are sent twice, none is missed.
"""
MAX_NUMBER = 2**53
LISTED = 200
"""The number of newest runs to watch. Older ones are watched only while they are unfinished."""


Look: TypeAlias = Callable[[Callable[[], list[Activity]]], Awaitable[list[Activity]]]


class Hello(Struct, frozen=True):
    """The first event: the run, and the last number of its log when the stream started."""

    run_id: str
    root_run_id: str
    seq: int
    status: str


class RunChange(Struct, frozen=True):
    """A run of the project started, recorded an event, or finished. `seq` is the last number of its tree."""

    run_id: str
    seq: int
    status: str


class Streams:
    """All streams of a server. `look` calls a function in the one thread that reads runs."""

    def __init__(self, state: AppState, feed: Feed, look: Look) -> None:
        self._state = state
        self._look = look
        self._activities = Activities(self._stirred)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_words = False
        """Whether an agent has written since the last look."""
        self._doing: list[Activity] = []
        self._true_at, self._looked_at, self._looked_in = 0.0, 0.0, -1
        self._taking_turns = asyncio.Lock()
        self._project: Project = state.fresh()
        self._feed = feed
        self._shared: dict[str, _SharedLog] = {}
        self.open_count = 0
        self._most = self._project.config.integer("server.streams")

    def of_run(self, run: str, after: int, request: Request) -> Response:
        """Stream the events of the tree of a run after a number, which is a number of the tree."""
        head = self._project.resolve(run)
        after = _last_seen(request, after)
        return self._reply(self._run_frames(head.run_id, head.root_run_id, after))

    def of_project(self, after: int, request: Request) -> Response:
        """Stream the changes of runs, including those since the client was last connected."""
        return self._reply(self._project_frames(_last_seen(request, after)))

    def _reply(self, frames: AsyncIterator[bytes]) -> Response:
        if self.open_count >= self._most:
            hint = "raise server.streams in your own configuration"
            raise WorldError("server.busy", f"{self._most} streams are open already", hint=hint)
        return _EventStream(frames, self)

    async def _run_frames(self, run: str, root: str, after: int) -> AsyncIterator[bytes]:
        store = self._project.store
        shared = self._shared.setdefault(root, _SharedLog(store, root))
        shared.readers += 1
        try:
            head = store.head(run)
            reach = store.reach(root)
            after = min(after, reach)
            yield _frame("hello", Hello(run, root, reach, "" if head is None else head.status))
            while not self._feed.closing.is_set():
                news = self._feed.next()
                frames = shared.after(after)
                if frames:
                    after += len(frames)
                    yield b"".join(frames)
                    continue
                head = store.head(root)
                if head is None or (head.status in RUN_TERMINAL and store.reach(root) == after):
                    yield _frame("end", Hello(run, root, after, "" if head is None else head.status))
                    return
                if not await _comes_in_time(news):
                    yield b": quiet\n\n"
        finally:
            shared.readers -= 1
            if not shared.readers:
                self._shared.pop(root, None)

    async def _project_frames(self, seen_ms: int) -> AsyncIterator[bytes]:
        """Number each event by its time of sending: a run that ended since then is sent again."""
        # A new client loaded its page just before: runs that ended in between are sent, too.
        moved = _ProjectChanges(self._project.store, (seen_ms or wall_clock_ms()) - MARGIN_MS)
        sent: dict[tuple[str, str], Activity] = {}
        generation = -1
        yield b"event: hello\ndata: {}\n\n"
        while not self._feed.closing.is_set():
            news = self._feed.next()
            if generation != self._feed.generation():
                generation, now = self._feed.generation(), wall_clock_ms()
                if frames := [_frame("run", one, now) for one in moved.since_last_time()]:
                    yield b"".join(frames)
            doing = {(one.run_id, one.path): one for one in await self._activity()}
            fresh = [one for key, one in doing.items() if sent.get(key) != one]
            # Which sessions stopped follows from what this client got: other clients may have read since.
            fresh += [
                structs.replace(sent[key], tool="", words="", text="") for key in sent if key not in doing
            ]
            sent = doing
            if fresh:
                yield b"".join(_frame("activity", one) for one in fresh)
            if not await _comes_in_time(news):
                yield b": quiet\n\n"

    def close(self) -> None:
        """Hear no more updates of agents."""
        self._activities.close()

    def _stirred(self) -> None:
        """Wake the streams soon; called in threads of the store."""
        if not self._has_words and self._loop is not None:
            self._has_words = True
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._loop.call_later, ACTIVITY_S, self._feed.stir)

    async def _activity(self) -> list[Activity]:
        """Return the activities of agents, which are read once for all streams."""
        loop = self._loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._taking_turns:
            if self._true_at > asked_at:
                return self._doing  # another stream looked while this one waited for its turn
            if self._doing:
                await asyncio.sleep(self._looked_at + ACTIVITY_S - loop.time())
            now, generation = loop.time(), self._feed.generation()
            if generation != self._looked_in or self._has_words:
                self._has_words = False
                self._doing = await self._look(lambda: self._activities.look(self._state.history))
                self._looked_at, self._looked_in = loop.time(), generation
            self._true_at = now
        return self._doing


class _ProjectChanges:
    """Which runs of the project moved, seen from one client."""

    def __init__(self, store: Store, since_ms: int) -> None:
        self._store = store
        self._since_ms = since_ms
        self._known: dict[str, tuple[int, str]] = {}

    def since_last_time(self) -> Iterator[RunChange]:
        """Yield what changed among the newest runs, and older ones that were unfinished at the last call."""
        heads = {head.run_id: head for head in self._store.heads(limit=LISTED)}
        if self._known:
            older = [run for run, (_, status) in self._known.items() if status not in RUN_TERMINAL]
            heads |= {head.run_id: head for head in map(self._store.head, older) if head is not None}
        else:
            for status in (PENDING, RUNNING, WAITING, PAUSED):
                heads |= {head.run_id: head for head in self._store.heads(status=status, limit=-1)}
        for head in heads.values():
            before = self._known.get(head.run_id)
            over = head.status in RUN_TERMINAL
            if over and before is not None and before[1] == head.status:
                continue  # a finished run records nothing more
            now = (self._store.reach(head.run_id), head.status)
            if before == now:
                continue
            self._known[head.run_id] = now
            long_ago = over and before is None and (head.ended_at or 0) < self._since_ms
            if not long_ago:
                yield RunChange(head.run_id, *now)


class _SharedLog:
    """The newest events of a run, encoded once for all its streams."""

    def __init__(self, store: Store, root: str) -> None:
        self._store = store
        self._root = root
        self._frames: deque[bytes] = deque(maxlen=MAX_SHARED)
        self._last = store.reach(root)
        self.readers = 0

    def after(self, number: int) -> list[bytes]:
        """Return at most `PIECE` events after a number."""
        first = self._last - len(self._frames)
        """The number before the first buffered event."""
        if number < first:
            return self._read(number)
        if number > self._last:  # no reader has come this far: restart the buffer
            self._frames.clear()
            self._last = number
        if number == self._last:
            fresh = self._read(self._last)
            self._frames.extend(fresh)
            self._last += len(fresh)
            return fresh
        start = number - first
        return list(islice(self._frames, start, start + PIECE))

    def _read(self, number: int) -> list[bytes]:
        envelopes = islice(self._store.tree(self._root, number), PIECE)
        return [_frame("envelope", one, one.tree_seq) for one in shown(self._store, envelopes)]


class _EventStream(Response):
    """A response that lasts until its frames end, or the client disconnects or stops reading."""

    def __init__(self, frames: AsyncIterator[bytes], streams: Streams) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._frames = frames
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        self._streams.open_count += 1
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(until_gone())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self._streams.open_count -= 1

    async def _send(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for frame in self._frames:
                async with asyncio.timeout(SLOW_S):
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._frames.aclose()  # type: ignore[attr-defined]  # it is a generator


async def _comes_in_time(news: asyncio.Event) -> bool:
    """Return whether the event occurs within `QUIET_S`."""
    try:
        async with asyncio.timeout(QUIET_S):
            await news.wait()
    except TimeoutError:
        return False
    return True


def _last_seen(request: Request, after: int) -> int:
    given = request.headers.get("last-event-id")
    if not given:
        return after
    if not given.isdecimal() or not given.isascii() or len(given) > 16 or int(given) > MAX_NUMBER:
        raise AuthorError("request.invalid", "Last-Event-ID must be the id of an event of this stream")
    return int(given)


def _frame(event: str, data: object, number: int | None = None) -> bytes:
    # JSON on one line: its only line breaks are inside strings, where they are escaped.
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
