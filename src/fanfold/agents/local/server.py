"""Access to the server of a local model: found if it runs, started if not.

Call it before every session, not once per run. A server stops when idle, and the call takes a millisecond.
After the call, the whole idle time is left for the first request. A server that died is replaced by the next
call.

A server that has its lock but has not responded for `UNRESPONSIVE_S` is killed, because it blocks its
replacement.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from fanfold.agents.backend import Backend, Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.backend_registry import BackendSetup, Machine
from fanfold.agents.entries import Preparing
from fanfold.agents.local import server_process
from fanfold.agents.local.server_process import ServerFiles, ServerRecord
from fanfold.agents.local.weights import PROVIDER, SMOLLM2, find_weights, is_weights_file, require_library
from fanfold.errors import FanfoldError, WorldError
from fanfold.kernel.events import Failure

DEFAULT_IDLE_S = 300.0
START_TIMEOUT_S = 300.0
"""Large weights on a slow disk take minutes."""
HEALTH_TIMEOUT_S = 5.0
UNRESPONSIVE_S = 15.0
LOOK_AGAIN_S = 0.05
MAX_LOG_BYTES = 1024 * 1024
LOG_TAIL_CHARS = 800
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "TZ", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
_PASSED_PREFIXES = ("LC_", "OMP_", "CUDA_", "HIP_", "GGML_")

_starting = threading.Lock()
"""One start at a time in this process; between processes the lock file decides."""


def ensure_server(model: str, home: Path, *, idle_s: float = DEFAULT_IDLE_S) -> str:
    """Return the base URL of an OpenAI-compatible server for `local:smollm2` or `local:FILE.gguf`; blocks.

    `home` is the user's folder (`Config.home`). The server accepts any API key and any model name.

    >>> ensure_server("local:smollm2", config.home)  # doctest: +SKIP
    'http://127.0.0.1:41873/v1'
    """
    require_library()
    place = server_process.place_of(find_weights(model, home), home)
    server_process.prepare(place)
    deadline = time.monotonic() + START_TIMEOUT_S
    silent_since = None
    while time.monotonic() < deadline:
        server_process.mark_used(place)
        found = server_process.read(place)
        if found is None:
            with _starting:
                if server_process.read(place) is None:
                    _start(place, home, idle_s, deadline)
            silent_since = None
            continue
        if found.state == "ready":
            if is_healthy(found):
                return found.base_url
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > UNRESPONSIVE_S and found.pid:
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(found.pid, signal.SIGKILL)
        time.sleep(LOOK_AGAIN_S)
    raise WorldError(
        "local.start_timeout",
        f"the local model was not ready within {START_TIMEOUT_S:g} s",
        hint=f"its log: {place.log}",
    )


def find_server(model: str, home: Path) -> ServerRecord | None:
    """Return the running server of the model, if any; starts nothing and does not reset its idle time."""
    return server_process.read(server_process.place_of(find_weights(model, home), home))


def is_healthy(found: ServerRecord) -> bool:
    """Return whether the server responds."""
    connection = http.client.HTTPConnection("127.0.0.1", found.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _start(place: ServerFiles, home: Path, idle_s: float, deadline: float) -> None:
    """Start a server and wait until it is ready, or another process's server was first."""
    news, report_end = os.pipe()
    order = server_process.ServerOrder(str(place.weights), str(home.resolve()), idle_s, report_end)
    command = [sys.executable, "-P", "-m", server_process.__name__, msgspec.json.encode(order).decode()]
    try:
        with suppress(FileNotFoundError):  # the first start
            if place.log.stat().st_size > MAX_LOG_BYTES:
                place.log.replace(place.log.with_suffix(".log.old"))
        with place.log.open("ab") as log:
            # The environment of the server has no provider keys.
            passed = {
                name: text
                for name, text in os.environ.items()
                if name in _PASSED or name.startswith(_PASSED_PREFIXES)
            }
            # It forks and ends at once, so waiting for it takes no time and prevents a zombie.
            subprocess.run(
                command,
                cwd=place.lock.parent,
                env={**server_process.WAITING, **passed},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(report_end,),
                check=False,
            )
        os.close(report_end)
        report_end = -1
        reply = _hear(news, deadline)
    finally:
        os.close(news)
        if report_end >= 0:
            os.close(report_end)
    if reply in ("ready", "taken"):
        return
    reason = reply.removeprefix("failed ") or "the process ended while loading"
    tail = ""
    with suppress(OSError):
        tail = place.log.read_text("utf-8", "replace")[-LOG_TAIL_CHARS:]
    raise WorldError(
        "local.start_failed",
        f"the local model cannot be served: {reason}",
        hint=f"its log: {place.log}",
        details={"log": tail},
    )


def _hear(news: int, deadline: float) -> str:
    reply = b""
    while True:
        readable, _, _ = select.select([news], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return f"failed it was still loading after {START_TIMEOUT_S:g} s"
        chunk = os.read(news, 4_096)
        if not chunk:
            return reply.decode("utf-8", "replace")
        reply += chunk


# -----------------------------------------------------------------------------------------------------------
# Sessions on the local model: its server, and the limits of requests to it.
#
# The server is compatible with OpenAI, so the model back end sends the requests. The server is found or
# started before every session, because it stops when idle. The small built-in model cannot use tools and is
# offered none, because they would only confuse it.

SMALL_ANSWER_TOKENS = 320
"""The small model rarely stops by itself; on two cores this takes a few seconds."""


class LocalServers:
    """The servers of local models; `chosen` is the user's model, the only one that can be a path."""

    def __init__(self, home: Path, idle_s: float, chosen: str | None) -> None:
        self._home = home
        self._idle_s = idle_s
        self._chosen = chosen

    async def reach(self, request: SessionRequest, model: str, progress: Progress) -> str:
        """Return the address of a model's server, started if none runs; raises `SessionFailed`."""
        if is_weights_file(model) and model != self._chosen:
            # Recipes and roles come with a checkout, and native code loads the weights.
            hint = f"if you trust the file: FANFOLD_MODEL={model}"
            message = f"{request.step} names weights by path; only the user may do that"
            raise SessionFailed(Failure("permission", "model.not_here", message, hint, retryable=False))
        progress(Preparing("starts the local model"))
        try:
            return await asyncio.to_thread(partial(ensure_server, model, self._home, idle_s=self._idle_s))
        except FanfoldError as error:
            failure = Failure("transport", error.code, error.message, error.hint, retryable=False)
            raise SessionFailed(failure) from error
        finally:
            progress(Preparing())


def fitted(request: SessionRequest, model: str) -> SessionRequest:
    """Return the request in the form that the server of a local model accepts."""
    name = model.removeprefix(f"{PROVIDER}:")
    # The server has one model and would accept any other name for it.
    role = structs.replace(request.role, model=f"openai-chat:{Path(name).stem}", fallback_models=())
    if name != SMOLLM2:
        return structs.replace(request, role=role)
    most = request.max_output_tokens or SMALL_ANSWER_TOKENS
    return structs.replace(request, role=structs.replace(role, tools=()), max_output_tokens=most)


# -----------------------------------------------------------------------------------------------------------
# The local back end: the model on this machine runs every session, whatever model its role names.
#
# So a recipe can be tried without a key, and no data leaves the machine. The model back end sends the
# requests. It also serves single `local:` models, next to those of providers.

SMALL = f"{PROVIDER}:{SMOLLM2}"


class LocalBackend:
    """Passes every session to `inner` with the local model in place of its own."""

    name = "local"

    def __init__(self, inner: Backend, model: str) -> None:
        self._inner = inner
        self._model = model

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        role = structs.replace(request.role, model=self._model)
        return await self._inner.run(structs.replace(request, role=role), record, progress)

    async def aclose(self) -> None:
        await self._inner.aclose()


def make(setup: BackendSetup, inner: Backend) -> LocalBackend:
    """Return the back end with the local model that the user chose for the run, or else the small one."""
    chosen = setup.model or setup.default_model or ""
    return LocalBackend(inner, chosen if chosen.startswith(f"{PROVIDER}:") else SMALL)


def check(machine: Machine) -> None:
    """Raise an error if llama.cpp or the weights of the small model are missing."""
    require_library()
    find_weights(SMALL, machine.home)
