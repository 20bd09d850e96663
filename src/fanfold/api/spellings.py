"""One action as a CLI command, an HTTP request, Python code and an MCP tool call.

Each text works as printed and includes the values of the user's form. Missing values are words in capitals.
"""

from __future__ import annotations

import json
import shlex
from typing import Literal, TypeAlias
from urllib.parse import quote

from msgspec import Struct, structs

from fanfold.api.run_options import RunOptions, micro_usd
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import as_text


class Spellings(Struct, frozen=True):
    """One action as text for each surface; None if a surface cannot perform it."""

    cli: str
    http: str | None
    python: str | None
    mcp: str | None


SpelledAction: TypeAlias = Literal[
    "run", "pause", "cancel", "resume", "retry", "fork", "undo", "approve", "reject", "answer", "apply",
    "inspect", "explain", "transcript", "diff", "watch", "export", "whatif",
]  # fmt: skip
_OF_STEPS = frozenset({"approve", "reject", "answer", "apply", "transcript"})
_SLOTS = 8
"""An example number for `whatif`, which the reader can change."""
_TOOL_WORDS = frozenset({"budget_usd", "budget_tokens"})
"""The flags that a model may set for a run that it starts."""


class FormValues(Struct, frozen=True, kw_only=True):
    """The values of a form that starts a run, or acts on one.

    `options` have their names in the HTTP API. `seen` is the digest of the question that the person sees,
    `text` their answer.
    """

    recipe: str = "RECIPE"
    inputs: dict[str, JSON] = {}
    options: dict[str, JSON] = {}
    script: dict[str, JSON] | None = None
    run: str = "RUN"
    step: str | None = None
    choice: str | None = None
    comment: str | None = None
    text: str | None = None
    seen: str | None = None
    yes: bool = False


def _spell_start(values: FormValues) -> Spellings:
    words, before = ["fanfold", "run", values.recipe], ""
    for name, value in values.inputs.items():
        words += ["-i", f"{name}={as_text(value)}"]
    for name in RunOptions.__struct_fields__:
        if name in values.options:
            words += ["--" + name.replace("_", "-"), as_text(values.options[name])]
    if values.script is not None:
        before = f"printf '%s\\n' {shlex.quote(json.dumps(values.script))} > script.json\n"
        words += ["--script", "script.json"]
    command = before + shlex.join([*words, *(["--yes"] if values.yes else [])])
    named = {name: getattr(values, name) for name in ("inputs", "options", "script", "yes")}
    given = {name: value for name, value in named.items() if value}
    tool = None
    if values.script is None and _TOOL_WORDS.issuperset(values.options):
        inputs = {"inputs": values.inputs} if values.inputs else {}
        tool = _call("run_workflow", {"name": values.recipe, **inputs, **values.options})
    http = _curl("POST", "/api/runs", {"recipe": values.recipe, **given})
    return Spellings(command, http, _start_python(values), tool)


def spell(action: SpelledAction, values: FormValues) -> Spellings:
    """Return how to start a run, or how to perform an action on one, from other surfaces."""
    if action == "run":
        return _spell_start(values)
    if action in _OF_STEPS and values.step is None:
        values = structs.replace(values, step="STEP")
    mcp = None
    if action == "inspect":
        step = {"step": values.step} if values.step else {}
        mcp = _call("workflow_status", {"run": values.run, **step})
    return Spellings(_cli(action, values), _http(action, values), _python(action, values), mcp)


def _start_python(values: FormValues) -> str:
    options = dict(values.options)
    if "agent_backend" in options:
        options["backend"] = options.pop("agent_backend")
    if "budget_usd" in options:
        options["budget_micro_usd"] = micro_usd(options.pop("budget_usd"))
    if values.script is not None:
        options["script"] = json.dumps(values.script)
    if values.yes:
        options["permission"] = "auto"  # no person is asked here, so agents may do all, as with --yes
    given = [repr(values.recipe)]
    if values.inputs:
        given.append(f"inputs={values.inputs!r}")
    if options:
        named = ", ".join(f"{name}={value!r}" for name, value in options.items())
        given.append(f"options=fanfold.Options({named})")
    return _program(f"result = ff.run({', '.join(given)})")


def _cli(action: str, values: FormValues) -> str:
    words = ["fanfold", action, values.run]
    if values.step is not None:
        words += ["--from", values.step] if action == "fork" else [values.step]
    if action == "approve" and values.choice:
        words += ["--choice", values.choice]
    if action in ("approve", "reject") and values.comment:
        words += ["--comment", values.comment]
    if action == "whatif":
        words += ["--max-concurrency", str(_SLOTS)]
    if action == "answer":
        text = values.text or "TEXT"
        words += ["--", text] if text.startswith("-") else [text]
    return shlex.join([*words, *(["--yes"] if values.yes else [])])


def _http(action: str, values: FormValues) -> str:
    base = f"/api/runs/{quote(values.run, safe='')}"
    place = "" if values.step is None else f"/{quote(values.step, safe='')}"
    yes: dict[str, JSON] = {"yes": True} if values.yes else {}
    if action in ("approve", "reject"):
        body: dict[str, JSON] = {
            "decision": action,
            "seen": values.seen or "SEEN, as GET /api/approvals says",
        }
        if action == "approve" and values.choice:
            body["choice"] = values.choice
        if values.comment:
            body["comment"] = values.comment
        return _curl("POST", f"{base}/approvals{place}", body)
    if action == "answer":
        return _curl("POST", f"{base}/answers{place}", {"text": values.text or "TEXT"})
    if action == "apply":
        return _curl("POST", f"{base}/steps{place}/apply", {})
    if action == "fork":
        return _curl("POST", f"{base}/fork", {"from": values.step or "STEP", **yes})
    if action == "undo":
        return _curl("POST", f"{base}/undo", {} if values.step is None else {"step": values.step})
    if action in ("pause", "cancel", "resume", "retry"):
        return _curl("POST", f"{base}/{action}", yes)
    paths = {
        "inspect": f"{base}/steps{place}" if place else base,
        "explain": f"{base}/steps{place}/explain" if place else f"{base}/explain",
        "transcript": f"{base}/steps{place}/transcript",
        "diff": f"{base}/diff" + (f"?step={place[1:]}" if place else ""),
        "watch": f"{base}/stream",
        "export": f"{base}/export",
        "whatif": f"/api/whatif/{quote(values.run, safe='')}?max_concurrency={_SLOTS}",
    }
    return _curl("GET", paths[action])


def _curl(method: str, path: str, body: dict[str, JSON] | None = None) -> str:
    # The reader sets $TOKEN and $URL, as `fanfold serve` prints them; the shell expands them.
    words = ["curl", '-H "Authorization: Bearer $TOKEN"']
    if body is not None:
        words += ["-X", method, "-H 'Content-Type: application/json'", "-d", shlex.quote(json.dumps(body))]
    return " ".join(words) + f' "${{URL%/}}{path}"'


def _python(action: str, values: FormValues) -> str | None:
    named = {"choice": values.choice if action == "approve" else None, "comment": values.comment}
    more = "".join(f", {name}={value!r}" for name, value in named.items() if value)
    at = repr(values.run) + ("" if values.step is None else f", {values.step!r}")
    yes = ", yes=True" if values.yes else ""
    calls = {
        "pause": f"ff.pause({values.run!r})",
        "cancel": f"ff.cancel({values.run!r})",
        "resume": f"result = ff.resume({values.run!r}).result()",
        "retry": f"result = ff.retry({values.run!r}{yes}).result()",
        "fork": f"result = ff.fork({at}{yes}).result()",
        "undo": f"ff.undo({at})",
        "approve": f"ff.approve({at}{more})",
        "reject": f"ff.reject({at}{more})",
        "answer": f"ff.answer({at}, {values.text or 'TEXT'!r})",
        "apply": f"ff.apply({at})",
        "inspect": f"print(ff.inspect{'_step' if values.step else ''}({at}))",
        "explain": f"print(ff.explain({at}))",
        "transcript": f"print(ff.transcript({at}))",
        "diff": f"print(ff.diff({at}))",
    }
    return _program(calls[action]) if action in calls else None


def _program(line: str) -> str:
    """Return a program that works in a script and in a notebook."""
    return f'import fanfold\n\nwith fanfold.open_sync(".") as ff:\n    {line}\n'


def _call(tool: str, arguments: dict[str, JSON]) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})
