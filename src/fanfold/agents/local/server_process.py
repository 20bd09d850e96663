"""The process that serves a local model: the HTTP server of llama.cpp, on loopback, until it is idle.

    python -m fanfold.agents.local.server_process '{"weights": …, "home": …, "idle_s": 300, "news": 5}'

Rules
* It belongs to no run. It detaches from its starter, so that the starter has no zombie process, and ending
  the processes of one run does not end the model of another.
* It stops by itself: when idle, on SIGTERM, and when its lock file is deleted, because no client could find
  it any more. An alarm ends a shutdown that hangs.
* It listens on 127.0.0.1 at a port that the system picks, and lets no web page read its responses.
* Threads sleep while they wait. By default they spin. On a machine with other work, two spinning threads
  produced 2 tokens per second, where one produced 25 and two sleeping ones 48.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.agents.local.weights import LIBRARY, RELEASE, models_folder, require_library
from fanfold.errors import WorldError

# -----------------------------------------------------------------------------------------------------------
# The agreement of processes on the one server of a model: a lock file with the server's state and port.
#
# Rules
# * A server has an exclusive lock on the file as long as it lives. The kernel releases the lock however the
#   process ends. So the file of a killed server is recognized as stale, and a reused process id does no harm.
# * Only the owner of the lock writes the file, in one write, and never replaces it, because a lock belongs to
#   the file it was acquired on. The file stays when the server has ended.
# * A client first marks the server as used, then reads its state. A server that wants to stop first writes
#   `stopping`, then reads the mark. In any order, one of the two notices the other. So no client uses a
#   server that is about to stop.
# * There is one file per weights (path, size and modification time) and machine, because loopback is local.

State: TypeAlias = Literal["loading", "ready", "stopping"]

RECORD_BYTES = 1_024
"""Records are padded to this size, so that each write covers the whole previous record."""


class ServerRecord(Struct, frozen=True):
    """The state of a server."""

    pid: int
    started_at: float
    """Seconds since the epoch."""
    state: State
    port: int | None = None

    @property
    def base_url(self) -> str:
        """The address of the OpenAI-compatible API; only when `ready`."""
        assert self.port is not None
        return f"http://127.0.0.1:{self.port}/v1"


class ServerFiles(NamedTuple):
    """The files around the server of one model."""

    weights: Path
    lock: Path
    used: Path
    log: Path


def place_of(weights: Path, home: Path) -> ServerFiles:
    """Return the files for these weights, without creating them."""
    facts = weights.stat()
    identity = f"{weights}\0{facts.st_size}\0{facts.st_mtime_ns}\0{platform.node()}"
    key = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    folder = models_folder(home) / "servers"
    return ServerFiles(weights, folder / f"{key}.lock", folder / f"{key}.used", folder / f"{key}.log")


def prepare(place: ServerFiles) -> None:
    """Create the folder; only its owner has access."""
    place.lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def hold(place: ServerFiles) -> int | None:
    """Acquire the lock of the server and return the open file; None if another process has it."""
    handle = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        if _try_lock(handle, fcntl.LOCK_EX):
            return handle
        # A client that checks for a server has a shared lock for a moment; it is not a server.
        if not _try_lock(handle, fcntl.LOCK_SH):
            os.close(handle)
            return None
        fcntl.flock(handle, fcntl.LOCK_UN)


def write(handle: int, record: ServerRecord) -> None:
    """Write the state of this server; only for the owner of the lock."""
    text = msgspec.json.encode(record).ljust(RECORD_BYTES)
    assert len(text) == RECORD_BYTES, "a record fits"
    os.pwrite(handle, text, 0)


def read(place: ServerFiles) -> ServerRecord | None:
    """Return the state of the running server; None if there is none. A server without a state is loading."""
    try:
        handle = os.open(place.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _try_lock(handle, fcntl.LOCK_SH):
            return None  # closing the file releases the lock
        text = os.pread(handle, RECORD_BYTES, 0)
    finally:
        os.close(handle)
    try:
        return msgspec.json.decode(text, type=ServerRecord)
    except msgspec.DecodeError:
        return ServerRecord(0, 0.0, "loading")


def mark_used(place: ServerFiles) -> None:
    """Mark the server as used, before its use."""
    place.used.touch(mode=0o600)


def last_used(place: ServerFiles) -> int:
    """Return when the server was last marked; only for comparison with an earlier value."""
    try:
        return place.used.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def is_still_there(place: ServerFiles, handle: int) -> bool:
    """Return whether clients can find the server: its lock file was not deleted or replaced."""
    try:
        return os.path.samestat(place.lock.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


CONTEXT_TOKENS = 4_096
"""Per slot: a prompt and its response must fit."""
ANSWER_TOKENS = 1_024
"""Default limit of a request, because small models may repeat themselves endlessly."""
SMALL_MODEL_SAMPLING = {"temp": 0.2, "top_p": 0.9, "penalty_repeat": 1.1, "penalty_last_n": 256}
"""The recommended values for `smollm2`, with a penalty for repetition. With it, 16 of 16 answers ended within
300 tokens, without it 12. A request can override them."""
MAX_SLOTS = 4
MAX_THREADS = 8
PROMPT_CACHE_MIB = 256
LOOK_EVERY_S = 1.0
SHUTDOWN_S = 10
QUIET = 2
"""Warnings and errors of llama.cpp; prompts and responses are never logged."""
WAITING = {"OMP_WAIT_POLICY": "passive"}
_BUSY = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
_WORK = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total")


class ServerOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The request of the starter."""

    weights: str
    home: str
    idle_s: float
    news: int
    """A pipe: `ready`, `taken` or `failed …` is written to it, once."""


class Engine(Protocol):
    """The used part of `xllamacpp.Server`."""

    listening_address: str

    def handle_metrics(self) -> str: ...


def main(argument: str) -> int:
    """Detach, load the weights and serve."""
    order = msgspec.json.decode(argument, type=ServerOrder)
    if os.fork():
        return 0
    os.setsid()

    def report(status: str) -> None:
        """Report the first status to the starter; if that was killed, the server serves the next client."""
        with suppress(BrokenPipeError):
            os.write(order.news, status.encode("utf-8", "replace")[:2_000])
        os.close(order.news)

    loaded = False

    def ready(_: ServerRecord) -> None:
        nonlocal loaded
        loaded = True
        report("ready")

    try:
        place = place_of(Path(order.weights), Path(order.home))
        serve(place, become_server(place), idle_s=order.idle_s, ready=ready)
    except AlreadyServed:
        report("taken")
    except Exception as error:  # noqa: BLE001 - whatever it is, the starter must hear of it, and the log
        if not loaded:
            report(f"failed {error}")
        traceback.print_exc()
        return 1
    return 0


class AlreadyServed(WorldError):
    """Another process serves these weights."""

    def __init__(self, weights: Path) -> None:
        super().__init__("local.already_served", f"another process already serves {weights}")


def become_server(place: ServerFiles) -> int:
    """Acquire the lock and return it; the process keeps it to its end, so a free lock means no process."""
    require_library()
    prepare(place)
    handle = hold(place)
    if handle is None:
        raise AlreadyServed(place.weights)
    return handle


def serve(
    place: ServerFiles, handle: int, *, idle_s: float | None, ready: Callable[[ServerRecord], None]
) -> None:
    """Serve until idle for `idle_s` (None: forever), stopped by SIGTERM or SIGINT, or without a lock file."""
    stop = threading.Event()

    before = {
        number: signal.signal(number, lambda _signal, _frame: stop.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    loading = ServerRecord(os.getpid(), time.time(), "loading")
    try:
        write(handle, loading)
        engine = load(place.weights)
        port = int(engine.listening_address.rpartition(":")[2])
        serving = msgspec.structs.replace(loading, state="ready", port=port)
        write(handle, serving)
        ready(serving)
        _wait_until_idle(place, handle, serving, engine, stop, idle_s)
        write(handle, msgspec.structs.replace(loading, state="stopping"))
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
    library: Any = import_module(LIBRARY)  # a compiled module without annotations
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, slots = threads_and_slots(processors)
    params = library.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {weights.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False  # it shows the prompts of other runs
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


def threads_and_slots(processors: int) -> tuple[int, int]:
    """Return all processors up to a limit beyond which small models gain nothing; at least two slots."""
    return min(processors, MAX_THREADS), min(max(processors, 2), MAX_SLOTS)


def _wait_until_idle(
    place: ServerFiles,
    handle: int,
    serving: ServerRecord,
    engine: Engine,
    stop: threading.Event,
    idle_s: float | None,
) -> None:
    """Return when the server must stop."""

    def signs_of_life() -> tuple[object, ...] | None:
        """Return values that change when the server is used; None while it works."""
        lines = engine.handle_metrics().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
        if any(float(values[name]) > 0 for name in _BUSY):
            return None
        return (last_used(place), *(values[name] for name in _WORK))

    seen, since = signs_of_life(), time.monotonic()
    pause = LOOK_EVERY_S if idle_s is None else min(LOOK_EVERY_S, max(idle_s / 4, 0.05))
    while not stop.wait(pause):
        if not is_still_there(place, handle):
            return
        signs = signs_of_life()
        if signs is None or signs != seen:
            seen, since = signs, time.monotonic()
        elif idle_s is not None and time.monotonic() - since >= idle_s:
            write(handle, msgspec.structs.replace(serving, state="stopping", port=None))
            if signs_of_life() == seen:
                return
            write(handle, serving)


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(status)  # native threads may still run after a failure, and exit must not wait for them
