"""The process that serves a local model: llama.cpp's own HTTP server, on loopback, until nobody needs it.

    python -m fanfold.agents.local.server_process '{"weights": …, "home": …, "idle_s": 300, "news": 5}'

Rules
* It belongs to no run. It detaches from whoever started it, so that no starter is left with a zombie and
  ending a run's processes does not end the model under another run.
* It stops by itself: when idle, on SIGTERM, and when its lock file is gone, since nobody could find it any
  more. A shutdown that hangs is ended by an alarm.
* It listens on 127.0.0.1 at a port the system picks, and lets no web page read its answers.
* Threads wait asleep. Left alone they spin, and on a machine that does something else besides, two spinning
  threads made 2 tokens a second where one made 25 and two sleeping ones 48.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from fanfold.agents.local import lock_file
from fanfold.agents.local.lock_file import ServerFiles, ServerRecord
from fanfold.agents.local.weights import LIBRARY, RELEASE, require_library
from fanfold.errors import WorldError

CONTEXT_TOKENS = 4_096
"""Per slot: a prompt and its answer must fit."""
ANSWER_TOKENS = 1_024
"""When a request sets no limit: small models may repeat themselves without end."""
SMALL_MODEL_SAMPLING = {"temp": 0.2, "top_p": 0.9, "penalty_repeat": 1.1, "penalty_last_n": 256}
"""What its authors advise for `smollm2`, and a price on repetition: with it 16 of 16 answers came to an end
within 300 tokens, without it 12. A request may say otherwise."""
MAX_SLOTS = 4
MAX_THREADS = 8
PROMPT_CACHE_MIB = 256
LOOK_EVERY_S = 1.0
SHUTDOWN_S = 10
QUIET = 2
"""Warnings and errors of llama.cpp; prompts and answers are never logged."""
WAITING = {"OMP_WAIT_POLICY": "passive"}
_BUSY = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
_WORK = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total")


class ServerOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """What the starter asks for."""

    weights: str
    home: str
    idle_s: float
    news: int
    """A pipe: `ready`, `taken` or `failed …` is written to it, once."""


class Engine(Protocol):
    """What is used of `xllamacpp.Server`."""

    listening_address: str

    def handle_metrics(self) -> str: ...


def main(argument: str) -> int:
    """Detach, load, serve."""
    order = msgspec.json.decode(argument, type=ServerOrder)
    if os.fork():
        return 0
    os.setsid()
    starter = _Starter(order.news)
    try:
        place = lock_file.place_of(Path(order.weights), Path(order.home))
        serve(place, become_server(place), idle_s=order.idle_s, ready=lambda _: starter.tell("ready"))
    except AlreadyServed:
        starter.tell("taken")
    except Exception as error:  # noqa: BLE001 - whatever it is, the starter must hear of it, and the log
        starter.tell(f"failed {error}")
        traceback.print_exc()
        return 1
    return 0


class AlreadyServed(WorldError):
    """Another process serves these weights."""

    def __init__(self, weights: Path) -> None:
        super().__init__("local.already_served", f"another process already serves {weights}")


def become_server(place: ServerFiles) -> int:
    """Take the lock; the process keeps it to its very end, so that whoever sees it free sees us gone."""
    require_library()
    lock_file.prepare(place)
    handle = lock_file.hold(place)
    if handle is None:
        raise AlreadyServed(place.weights)
    return handle


def serve(
    place: ServerFiles, handle: int, *, idle_s: float | None, ready: Callable[[ServerRecord], None]
) -> None:
    """Serve until idle for `idle_s` (None: for ever), told to stop by SIGTERM or SIGINT, or forgotten."""
    stop = threading.Event()

    def told_to_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, told_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    loading = ServerRecord(os.getpid(), time.time(), "loading")
    try:
        lock_file.write(handle, loading)
        engine = load(place.weights)
        port = int(engine.listening_address.rpartition(":")[2])
        serving = msgspec.structs.replace(loading, state="ready", port=port)
        lock_file.write(handle, serving)
        ready(serving)
        _Watch(place, handle, serving, engine).until(stop, idle_s)
        lock_file.write(handle, msgspec.structs.replace(loading, state="stopping"))
        signal.alarm(SHUTDOWN_S)
        del engine
        signal.alarm(0)
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def load(weights: Path) -> Engine:
    """Load the weights and listen; takes a second for small ones."""
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)  # before the library is loaded, which reads it once
    library: Any = import_module(LIBRARY)  # a compiled module that ships no annotations
    threads, slots = _threads_and_slots(_processors())
    params = library.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {weights.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False  # it shows other runs' prompts
    params.endpoint_metrics = True
    params.n_ctx = CONTEXT_TOKENS * slots
    params.n_parallel = slots
    params.n_predict = ANSWER_TOKENS
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.verbosity = QUIET
    if weights.name == RELEASE.file_name:
        for knob, setting in SMALL_MODEL_SAMPLING.items():
            setattr(params.sampling, knob, setting)
    for pool in (params.cpuparams, params.cpuparams_batch):
        pool.n_threads = threads
        pool.poll = 0
    engine: Engine = library.Server(params)
    return engine


def _threads_and_slots(processors: int) -> tuple[int, int]:
    """All processors up to a limit beyond which small models gain nothing; at least two requests at once."""
    return min(processors, MAX_THREADS), min(max(processors, 2), MAX_SLOTS)


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class _Watch:
    """Decides when the server has been idle for long enough."""

    def __init__(self, place: ServerFiles, handle: int, serving: ServerRecord, engine: Engine) -> None:
        self._place = place
        self._handle = handle
        self._serving = serving
        self._engine = engine

    def until(self, stop: threading.Event, idle_s: float | None) -> None:
        """Return when it is time to stop."""
        seen, since = self._signs_of_life(), time.monotonic()
        pause = LOOK_EVERY_S if idle_s is None else min(LOOK_EVERY_S, max(idle_s / 4, 0.05))
        while not stop.wait(pause):
            if not lock_file.is_still_there(self._place, self._handle):
                return
            signs = self._signs_of_life()
            if signs is None or signs != seen:
                seen, since = signs, time.monotonic()
            elif idle_s is not None and time.monotonic() - since >= idle_s:
                lock_file.write(
                    self._handle, msgspec.structs.replace(self._serving, state="stopping", port=None)
                )
                if self._signs_of_life() == seen:
                    return
                lock_file.write(self._handle, self._serving)

    def _signs_of_life(self) -> tuple[object, ...] | None:
        """What changes when the server is used; None while it works."""
        values = dict(
            line.rsplit(" ", 1)
            for line in self._engine.handle_metrics().splitlines()
            if line and line[0] != "#"
        )
        if any(float(values[name]) > 0 for name in _BUSY):
            return None
        return (lock_file.last_used(self._place), *(values[name] for name in _WORK))


class _Starter:
    """Whoever waits for news of this process; hears the first only."""

    def __init__(self, news: int) -> None:
        self._news: int | None = news

    def tell(self, text: str) -> None:
        news, self._news = self._news, None
        if news is None:
            return
        try:
            os.write(news, text.encode("utf-8", "replace")[:2_000])
        except BrokenPipeError:
            pass  # the starter was killed; the server is there for the next one
        os.close(news)


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(status)  # native threads may still run after a failure, and nothing may wait for them
