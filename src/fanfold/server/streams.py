"""Server-sent events: what a run records, live, and what happens in the project as a whole.

Rules
* The `id` of an event is its durable number in the tree. Who comes back with it as `Last-Event-ID` gets what
  follows: no gap, no duplicate, however long it was away, from this server or the next.
* Nothing is queued for a client. Each has only the number it has got to; what follows is read from what all
  streams of a run share, or from the store. A client that takes nothing for `SLOW_S` is disconnected. It
  continues where it was when it comes back.
* When the server stops, streams end at once, and the page's reconnection does the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
# Hearing of everything that runs of the project record, with one watch for all streams and caches.
#
# `generation` counts what was heard. A document that was made in a generation is current as long as no newer
# generation has begun. A reader that waits for something new waits for the next.

PAUSE_S = 0.02
"""Between two wake-ups: a run that commits a thousand times a second causes fifty."""


class Feed:
    """Follows every tree of a store while `run` does."""

    def __init__(self, store: Store) -> None:
        self._signal = store.follow()
        self._generation = 0
        self._next = asyncio.Event()
        self.closing = asyncio.Event()
        """Set when the server is about to stop: streams end by themselves."""

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
        """Something happened, or may have."""
        self._generation += 1
        self._next.set()
        self._next = asyncio.Event()

    def generation(self) -> int:
        """The current one; what happened this very moment counts."""
        if self._signal.wait_blocking(0):
            self.bump()
        return self._generation

    def next(self) -> asyncio.Event:
        """Is set when the next generation begins. Take it, look, then wait for it: nothing is missed."""
        return self._next

    def close(self) -> None:
        """Let every stream end."""
        self.closing.set()
        self.bump()


SLOW_S = 20.0
ACTIVITY_S = 0.3
"""Between two looks at what agents do, while any is at work."""
QUIET_S = 10.0
"""After so long without an event a comment goes out, so that a connection that is gone is noticed."""
PIECE = 200
"""Events that are read and sent in one go."""
MAX_SHARED = 2_000
"""Events of a run that its streams share; who is further behind reads the store."""
MARGIN_MS = 20_000
"""Clocks of processes differ, events are sent a little after they were recorded, and a page is loaded before
its stream is open. Sending twice is better than not at all.
"""
MAX_NUMBER = 2**53
LISTED = 200
"""The newest runs are looked at whether they are over or not; of older ones those that are not."""


Look: TypeAlias = Callable[[Callable[[], list[Activity]]], Awaitable[list[Activity]]]


class Hello(Struct, frozen=True):
    """The first event: which run this is, and how far its log reached when the stream began."""

    run_id: str
    root_run_id: str
    seq: int
    status: str


class RunChange(Struct, frozen=True):
    """A run of the project began, recorded something, or ended. `seq` is the last number of its tree."""

    run_id: str
    seq: int
    status: str


class Streams:
    """All streams of a server. `look` has the one thread that looks at runs call something."""

    def __init__(self, desk: AppState, feed: Feed, look: Look) -> None:
        self._desk = desk
        self._look = look
        self._activities = Activities()
        self._doing: list[Activity] = []
        self._true_at, self._looked_at, self._looked_in = 0.0, 0.0, -1
        self._taking_turns = asyncio.Lock()
        self._project: Project = desk.fresh()
        self._feed = feed
        self._shared: dict[str, _SharedLog] = {}
        self.open_count = 0
        self._most = self._project.config.integer("server.streams")

    def of_run(self, run: str, after: int, request: Request) -> Response:
        """What a run records, and every other of its tree, whose numbers these are; from a number on."""
        head = self._project.resolve(run)
        after = _last_seen(request, after)
        return self._reply(self._run_frames(head.run_id, head.root_run_id, after))

    def of_project(self, after: int, request: Request) -> Response:
        """Yield which runs move; a client that was away gets those that moved meanwhile."""
        return self._reply(self._project_frames(_last_seen(request, after)))

    def _reply(self, frames: AsyncIterator[bytes]) -> Response:
        if self.open_count >= self._most:
            hint = "server.streams in your own configuration allows more"
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
                if not await _happens(news):
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
        yield b"event: hello\ndata: {}\n\n"
        while not self._feed.closing.is_set():
            news = self._feed.next()
            now = wall_clock_ms()
            frames = [_frame("run", one, now) for one in moved.since_last_time()]
            if frames:
                yield b"".join(frames)
            doing = {(one.run_id, one.path): one for one in await self._activity()}
            fresh = [one for key, one in doing.items() if sent.get(key) != one]
            # Which sessions stopped follows from what this client got: other clients may have read since.
            fresh += [structs.replace(sent[key], tool="", words="") for key in sent if key not in doing]
            sent = doing
            if fresh:
                yield b"".join(_frame("activity", one) for one in fresh)
            if not await _happens(news):
                yield b": quiet\n\n"

    async def _activity(self) -> list[Activity]:
        """What agents do, looked at once in a while for all streams together."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._taking_turns:
            if self._true_at > asked_at:
                return self._doing  # another stream looked while this one waited for its turn
            if self._doing:
                await asyncio.sleep(self._looked_at + ACTIVITY_S - loop.time())
            now, generation = loop.time(), self._feed.generation()
            if generation != self._looked_in:
                self._doing = await self._look(lambda: self._activities.look(self._desk.history))
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
                continue  # nothing more comes of it
            now = (self._store.reach(head.run_id), head.status)
            if before == now:
                continue
            self._known[head.run_id] = now
            long_ago = over and before is None and (head.ended_at or 0) < self._since_ms
            if not long_ago:
                yield RunChange(head.run_id, *now)


class _SharedLog:
    """The newest events of a run, encoded once for all who follow it."""

    def __init__(self, store: Store, root: str) -> None:
        self._store = store
        self._root = root
        self._frames: deque[bytes] = deque(maxlen=MAX_SHARED)
        self._last = store.reach(root)
        self.readers = 0

    def after(self, number: int) -> list[bytes]:
        """At most `PIECE` events behind a number; empty when there are none."""
        first = self._last - len(self._frames)
        """The number before the first that is held."""
        if number < first:
            return self._read(number)
        if number > self._last:  # no reader has come this far: the kept part starts anew
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
    """A reply that lasts until its frames end, the client leaves, or the client stops reading."""

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


async def _happens(news: asyncio.Event) -> bool:
    """Whether anything happens before a connection has been quiet for too long."""
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
        raise AuthorError("request.invalid", "Last-Event-ID is the id of an event of this stream")
    return int(given)


def _frame(event: str, data: object, number: int | None = None) -> bytes:
    # JSON has no line breaks outside of its texts, where they are escaped: one line it is.
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
