"""Reaching the server of a local model: found when it runs, started when it does not.

Ask before every session, not once per run: a server leaves when idle, and asking costs a millisecond. Whoever
asked has the whole idle time to send the first request. A server that died is replaced by asking again.

A server that has its lock but has not answered for `UNRESPONSIVE_S` is killed: it can serve nobody, and it
stands in the way of one that could.
"""

from __future__ import annotations

import http.client
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fanfold.agents.local import lock_file, server_process
from fanfold.agents.local.lock_file import ServerFiles, ServerRecord
from fanfold.agents.local.weights import find_weights, require_library
from fanfold.errors import WorldError

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
    """The base URL of an OpenAI-compatible server for `local:smollm2` or `local:FILE.gguf`; blocks.

    `home` is the user's folder (`Config.home`). The server takes any API key and any model name.

    >>> ensure_server("local:smollm2", config.home)  # doctest: +SKIP
    'http://127.0.0.1:41873/v1'
    """
    require_library()
    place = lock_file.place_of(find_weights(model, home), home)
    lock_file.prepare(place)
    deadline = time.monotonic() + START_TIMEOUT_S
    silent_since = None
    while time.monotonic() < deadline:
        lock_file.mark_used(place)
        found = lock_file.read(place)
        if found is None:
            with _starting:
                if lock_file.read(place) is None:
                    _start(place, home, idle_s, deadline)
            silent_since = None
            continue
        if found.state == "ready":
            if is_healthy(found):
                return found.base_url
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > UNRESPONSIVE_S:
                _signal(found, signal.SIGKILL)
        time.sleep(LOOK_AGAIN_S)
    raise WorldError(
        "local.start_timeout",
        f"the local model was not ready within {START_TIMEOUT_S:g} s",
        hint=f"its log: {place.log}",
    )


def find_server(model: str, home: Path) -> ServerRecord | None:
    """The server that runs for the model, if any; starts nothing and keeps nothing alive."""
    return lock_file.read(lock_file.place_of(find_weights(model, home), home))


def is_healthy(found: ServerRecord) -> bool:
    """Whether the server answers."""
    connection = http.client.HTTPConnection("127.0.0.1", found.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _start(place: ServerFiles, home: Path, idle_s: float, deadline: float) -> None:
    """Start a server and wait until it is ready, or another process's server has won."""
    news, telling = os.pipe()
    order = server_process.ServerOrder(str(place.weights), str(home.resolve()), idle_s, telling)
    command = [sys.executable, "-P", "-m", server_process.__name__, msgspec.json.encode(order).decode()]
    try:
        with _fresh_log(place.log).open("ab") as log:
            # It forks and ends at once, so waiting for it leaves no zombie and takes no time.
            subprocess.run(
                command,
                cwd=place.lock.parent,
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(telling,),
                check=False,
            )
        os.close(telling)
        telling = -1
        said = _hear(news, deadline)
    finally:
        os.close(news)
        if telling >= 0:
            os.close(telling)
    if said in ("ready", "taken"):
        return
    reason = said.removeprefix("failed ") or "the process ended while loading"
    raise WorldError(
        "local.start_failed",
        f"the local model cannot be served: {reason}",
        hint=f"its log: {place.log}",
        details={"log": _tail(place.log)},
    )


def _hear(news: int, deadline: float) -> str:
    said = b""
    while True:
        readable, _, _ = select.select([news], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return f"failed it was still loading after {START_TIMEOUT_S:g} s"
        chunk = os.read(news, 4_096)
        if not chunk:
            return said.decode("utf-8", "replace")
        said += chunk


def _signal(found: ServerRecord, number: int) -> None:
    if found.pid:
        try:
            os.kill(found.pid, number)
        except ProcessLookupError:
            pass  # it has just gone by itself


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What the server may know: no provider key among it."""
    passed = {
        name: text for name, text in ours.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    return {**server_process.WAITING, **passed}


def _fresh_log(log: Path) -> Path:
    try:
        if log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.old"))
    except FileNotFoundError:
        pass  # the first start
    return log


def _tail(log: Path) -> str:
    try:
        return log.read_text("utf-8", "replace")[-LOG_TAIL_CHARS:]
    except OSError:
        return ""
