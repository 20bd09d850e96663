"""Work whose cost a model or a page chooses: done in a process of its own, with bounded memory and time.

A regular expression can ask for gigabytes, and a page can take a parser minutes. In our own process both
would be everybody's problem. So they are done in one that the kernel ends when it takes too much.

Rules
* What runs there is ours and gets values, not code: the name of a job from the table, and its arguments.
* It has no more of our environment than a name for the language, and no handle but its own three.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from fanfold.agents.toolbox import ToolFailed

MAX_MEMORY_BYTES = 1024**3
MAX_CPU_S = 25
JOBS = {
    "search": ("fanfold.agents.toolbox.search", "search"),
    "page": ("fanfold.agents.toolbox.pages", "page_text"),
}
"""Name → module and function. A function takes plain values and returns one, or raises `ToolFailed`."""


async def do_limited(job: str, *arguments: Any, timeout_s: float) -> Any:
    """What a job gives for these arguments; raises `ToolFailed` when it takes too much or says so itself."""
    # -I: nothing of the current folder or the environment is a module of ours.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-c",
        f"from {__name__} import main; main()",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"LC_ALL": "C.UTF-8"},
    )
    try:
        async with asyncio.timeout(timeout_s):
            said, _ = await process.communicate(msgspec.msgpack.encode([job, arguments]))
    except TimeoutError:
        message = f"it took more than {timeout_s:g} s"
        raise ToolFailed("tool", "tool.timeout", message, "ask for less, or in simpler terms") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0 or not said:
        message = f"it took more than {MAX_MEMORY_BYTES // 1024**2} MB or {MAX_CPU_S} s"
        raise ToolFailed("tool", "tool.too_expensive", message, "ask for less, or in simpler terms")
    outcome, value = msgspec.msgpack.decode(said)
    if outcome == "failed":
        raise ToolFailed(*value)
    return value


def main() -> None:
    """In the process of its own: one job from stdin, its outcome to stdout."""
    from importlib import import_module

    job, arguments = msgspec.msgpack.decode(sys.stdin.buffer.read())
    module, name = JOBS[job]
    work: Callable[..., Any] = getattr(import_module(module), name)
    for limit, most in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_S)):
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = ["done", work(*arguments)]
    except ToolFailed as failed:
        outcome = ["failed", [failed.failure.kind, failed.code, failed.message, failed.hint]]
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))
