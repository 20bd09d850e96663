"""`fanfold doctor`: what this installation and this project are made of, and what is wrong with them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from msgspec import Struct

from fanfold.cli.command import Call, command
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.errors import EXIT_FAILED, EXIT_OK, FanfoldError
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.runtime.config import Config, settings_of
from fanfold.runtime.operations.project import Project
from fanfold.store.protocol import StoreAddress
from fanfold.wiring import wire

MIN_GIT = (2, 38)
_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("error", "red")}


class Check(Struct, frozen=True):
    """`level` is `ok`, `warning` (works, with less) or `error`."""

    name: str
    level: str
    message: str
    hint: str = ""
    details: tuple[str, ...] = ()


@command("doctor", summary="Show configuration with origins, and check store, tools and roles")
def doctor_command(call: Call) -> int:
    """Check this installation and this project; exit status 1 when something is broken."""
    from fanfold import __version__

    project, checks = _wire(call)
    checks += [_python(), *_tools()]
    if project is not None:
        checks += [_store(project.address), *_roles(project), *_recipes(project), *_runs(project)]
        project.close()
    ok = all(check.level != "error" for check in checks)
    config = list(_config(project.config)) if project is not None else []
    if call.as_json:
        document: dict[str, object] = {
            "ok": ok,
            "version": __version__,
            "project": str(call.project.resolve()),
        }
        listed = [{"name": c.name, "ok": c.level != "error", "level": c.level} for c in checks]
        for entry, check in zip(listed, checks, strict=True):
            entry |= {"message": check.message, "hint": check.hint, "details": check.details}
        say_json({**document, "checks": listed, "config": config})
    else:
        say("".join(_text(call, f"fanfold {__version__}", checks, config)))
    return EXIT_OK if ok else EXIT_FAILED


def _wire(call: Call) -> tuple[Project | None, list[Check]]:
    try:
        return wire(call.project, to_read=True), []
    except FanfoldError as error:  # a wrong configuration is a finding, not the end of the examination
        return None, [Check("config", "error", error.message, error.hint)]


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _store(address: StoreAddress) -> Check:
    health = address.examine()
    if health is None:
        return Check("store", "ok", f"{address.engine()}, empty; the first run makes it")
    if health.problems:
        hint = "copy .fanfold away before anything else; runs whose log is readable can still be inspected"
        return Check("store", "error", f"{health.place}: {health.problems[0]}", hint)
    size = f"{health.bytes / 1_048_576:.1f} MB"
    return Check("store", "ok", f"{address.engine()}, {health.place}, {size}, version {health.version}")


def _tools() -> Iterator[Check]:
    git = _version("git")
    if git is None:
        yield Check("git", "error", "git was not found", "install git 2.38 or newer: merges are done with it")
    elif git < MIN_GIT:
        yield Check("git", "error", f"git {git[0]}.{git[1]} is too old", "install git 2.38 or newer")
    else:
        yield Check("git", "ok", f"{git[0]}.{git[1]}")
    yield _sandbox()


def _sandbox() -> Check:
    """The level commands run at here, and what it does not give."""
    from fanfold.workspace.sandbox.start import detect

    levels = detect()
    if levels.bubblewrap.available:
        return Check("sandbox", "ok", "bubblewrap", details=_without(levels.bubblewrap.cannot))
    why = f"bubblewrap: {levels.bubblewrap.why}"
    if levels.landlock.available:
        found, hint = f"Landlock and seccomp ({why})", "install bubblewrap for full confinement"
        return Check("sandbox", "warning", found, hint, _without(levels.landlock.cannot))
    found = f"none, so commands are refused ({why}; Landlock: {levels.landlock.why})"
    return Check("sandbox", "warning", found, "install bubblewrap")


def _without(cannot: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"does not give: {one}" for one in cannot)


def _version(program: str) -> tuple[int, int] | None:
    found = shutil.which(program)
    if found is None:
        return None
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(number[1]), int(number[2])) if number else None


def _roles(project: Project) -> Iterator[Check]:
    found = [notice for notice in project.roles.notices if notice.severity == "warning"]
    for notice in found:
        yield Check("roles", "warning", f"{notice.file}:{notice.line}: {notice.message}")
    if not found:
        yield Check("roles", "ok", f"{len(project.roles.names())} known: {', '.join(project.roles.names())}")


def _recipes(project: Project) -> Iterator[Check]:
    entries = project.library.list()
    warnings = [warning for entry in entries for warning in entry.warnings]
    for warning in warnings:
        yield Check("recipes", "warning", warning)
    if not warnings:
        yield Check("recipes", "ok", f"{len(entries)} known")


def _runs(project: Project) -> Iterator[Check]:
    """Runs that are not over and that no process drives: left by a crash, or resting."""
    if not project.has_runs:
        return
    try:
        heads = [h for h in project.store.heads(limit=sys.maxsize) if h.status not in RUN_TERMINAL]
        stale = [h for h in heads if h.status in ("running", "pending")]
        stale = [h for h in stale if not project.has_owner(h.run_id)]
    except FanfoldError as error:
        yield Check("runs", "error", error.message, error.hint)
        return
    for head in stale:
        message = f"run {head.run_id} ({head.recipe}) is {head.status}, but no process drives it"
        yield Check(
            "runs", "warning", message, f"fanfold resume {head.run_id}, or fanfold cancel {head.run_id}"
        )
    if not stale:
        yield Check("runs", "ok", f"{len(heads)} not over, none abandoned")


def _config(config: Config) -> Iterator[dict[str, object]]:
    for setting in settings_of(config.providers):
        value = config.values[setting.key]
        if setting.kind == "secret" and value is not None:
            value = "set"
        yield {"key": setting.key, "value": value, "origin": config.origins[setting.key]}
    given = os.environ.get("FANFOLD_HOME", "").strip()
    yield {"key": "home", "value": str(config.home), "origin": "FANFOLD_HOME" if given else "default"}


def _text(call: Call, title: str, checks: list[Check], config: list[dict[str, object]]) -> Iterator[str]:
    yield f"{paint(title, 'bold', call.colour)}  {call.project.resolve()}\n\n"
    for check in checks:
        word, colour = _MARKS[check.level]
        yield f"  {paint(word.ljust(7), colour, call.colour)} {check.name.ljust(8)} {plain(check.message)}\n"
        for detail in check.details:
            yield f"  {'':16} {paint(plain(detail), 'dim', call.colour)}\n"
        if check.hint:
            yield f"  {'':16} {paint('hint', 'cyan', call.colour)}: {plain(check.hint)}\n"
    if not config:
        return
    yield f"\n{paint('Configuration', 'bold', call.colour)}\n"
    shown = [(str(entry["key"]), _shown(entry["value"]), str(entry["origin"])) for entry in config]
    widths = [max(len(row[column]) for row in shown) for column in (0, 1)]
    for key, value, origin in shown:
        line = f"  {key.ljust(widths[0])}  {value.ljust(widths[1])}"
        yield f"{line}  {paint(plain(origin), 'dim', call.colour)}\n"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else plain(str(value))
