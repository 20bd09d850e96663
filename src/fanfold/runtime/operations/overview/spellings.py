"""One action in the words of every surface: a command, a request, Python, a tool call."""

from __future__ import annotations

import json
import shlex
from typing import Literal, TypeAlias
from urllib.parse import quote

from msgspec import Struct


class Spellings(Struct, frozen=True):
    """None where a surface has no word for it."""

    cli: str
    http: str | None
    python: str | None
    mcp: str | None


SpelledAction: TypeAlias = Literal[
    "run", "pause", "cancel", "resume", "retry", "fork", "undo", "approve", "reject", "inspect", "explain",
    "transcript", "diff", "watch", "export", "whatif",
]  # fmt: skip
_OF_STEPS = frozenset({"approve", "reject", "transcript"})
_SLOTS = 8
"""For `whatif`, which needs some number: the reader's to change."""


def spell(
    action: SpelledAction, *, run: str | None = None, step: str | None = None, recipe: str | None = None
) -> Spellings:
    """How an action is said elsewhere; what was not given stands as a word in capitals."""
    if action == "run":
        return _start(recipe or "RECIPE")
    run = run or "RUN"
    if action in _OF_STEPS:
        step = step or "STEP"
    return Spellings(
        _cli(action, run, step), _http(action, run, step), _python(action, run, step), _mcp(action, run)
    )


def _start(recipe: str) -> Spellings:
    return Spellings(
        f"fanfold run {shlex.quote(recipe)}",
        _curl("POST", "/api/runs", {"recipe": recipe}),
        f"await ff.start({recipe!r})",
        json.dumps({"tool": "run_workflow", "arguments": {"name": recipe}}),
    )


def _cli(action: str, run: str, step: str | None) -> str:
    words = ["fanfold", action, run]
    if step is not None:
        words += ["--from", step] if action == "fork" else [step]
    if action == "whatif":
        words += ["--max-concurrency", str(_SLOTS)]
    return shlex.join(words)


def _http(action: str, run: str, step: str | None) -> str | None:
    base = f"/api/runs/{quote(run, safe='')}"
    place = "" if step is None else f"/{quote(step, safe='')}"
    if action in ("approve", "reject"):
        body = {"decision": action, "seen": "SEEN, as GET /api/approvals says"}
        return _curl("POST", f"{base}/approvals{place}", body)
    if action in ("pause", "cancel", "resume", "retry", "undo"):
        return _curl("POST", f"{base}/{action}", {})
    if action == "fork":
        return _curl("POST", f"{base}/fork", {"from": step or "STEP"})
    paths = {
        "inspect": f"{base}/steps{place}" if place else base,
        "explain": f"{base}/steps{place}/explain" if place else f"{base}/explain",
        "transcript": f"{base}/steps{place}/transcript",
        "diff": f"{base}/diff",
        "watch": f"{base}/stream",
        "export": f"{base}/export",
        "whatif": f"/api/whatif/{quote(run, safe='')}?max_concurrency={_SLOTS}",
    }
    return _curl("GET", paths[action])


def _curl(method: str, path: str, body: dict[str, str] | None = None) -> str:
    words = (
        [] if body is None else ["-X", method, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    )
    # $TOKEN and $URL are the reader's to set: in double quotes the shell puts them in. Nothing else stands in
    # such: a name with a $ of its own is a name.
    return " ".join(
        ["curl", "-H", '"Authorization: Bearer $TOKEN"', *map(shlex.quote, words), f'"$URL{path}"']
    )


def _python(action: str, run: str, step: str | None) -> str | None:
    given = "" if step is None else f", {step!r}"
    calls = {
        "resume": f"await ff.resume({run!r})",
        "fork": f"await ff.fork({run!r}{given})",
        "inspect": f"ff.inspect_step({run!r}{given})" if step else f"ff.inspect({run!r})",
        "undo": f"await ff.undo({run!r}{given})",
        "explain": f"ff.explain({run!r}{given})",
        "transcript": f"ff.transcript({run!r}{given})",
        "approve": f"await (await ff.resume({run!r})).approve({step!r})",
        "reject": f"await (await ff.resume({run!r})).reject({step!r})",
    }
    return calls.get(action)


def _mcp(action: str, run: str) -> str | None:
    if action == "inspect":
        return json.dumps({"tool": "workflow_status", "arguments": {"run_id": run}})
    return None
