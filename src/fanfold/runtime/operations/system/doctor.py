"""What this installation and this project are made of, and what is wrong with them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from fanfold.agents.redaction import without_credentials
from fanfold.errors import FanfoldError
from fanfold.kernel.lifecycle import PENDING, RUN_TERMINAL, RUNNING
from fanfold.runtime.config import Config, settings_of
from fanfold.runtime.operations.agents.models import list_models
from fanfold.runtime.operations.history.listing import list_heads
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.open_runs import how_to_resume
from fanfold.runtime.views.installation import ConfigValue, Examination, Finding
from fanfold.store.protocol import StoreAddress

MAX_NAMED_FILES = 5
"""Role files with warnings that are named one by one; a repository may have hundreds."""

MIN_GIT = (2, 38)


def examine(folder: Path, open_project: Callable[[], Project], version: str) -> Examination:
    """Look at everything. A project that cannot be opened is a finding, not the end of the examination."""
    project: Project | None = None
    findings: list[Finding] = []
    try:
        project = open_project()
    except FanfoldError as error:
        findings.append(_found("config", "error", error.message, error.hint))
    findings += [_found("python", "ok", f"{platform.python_version()} at {sys.executable}"), *_tools(folder)]
    if project is not None:
        findings += [
            _store(project.address),
            *_home(project),
            _model(project.config),
            *_roles(project),
            *_agents(project),
            *_recipes(project),
            *_runs(project),
        ]
        project.close()
    return Examination(
        all(one.ok for one in findings),
        version,
        str(folder.resolve()),
        findings,
        [] if project is None else list(_config(project.config)),
    )


def _found(
    name: str,
    level: Literal["ok", "warning", "error"],
    message: str,
    hint: str = "",
    details: tuple[str, ...] = (),
) -> Finding:
    return Finding(name, level != "error", level, message, hint, details)


def _store(address: StoreAddress) -> Finding:
    health = address.examine()
    if health is None:
        return _found("store", "ok", f"{address.engine()}, empty; the first run makes it")
    if health.problems:
        hint = "copy .fanfold away before anything else; runs whose log is readable can still be inspected"
        return _found("store", "error", f"{health.place}: {health.problems[0]}", hint)
    size = f"{health.bytes / 1_048_576:.1f} MB"
    return _found("store", "ok", f"{address.engine()}, {health.place}, {size}, version {health.version}")


def _model(config: Config) -> Finding:
    """Which model works where nobody names one."""
    known = list_models(config)
    if known.default is None:
        message = "none" if known.error is None else known.error.message
        return _found("model", "warning", message, "fanfold models says how to get one")
    return _found("model", "ok", f"{known.default.model} ({known.default.why})")


def _home(project: Project) -> Iterator[Finding]:
    """What stands in a project comes with its checkout, and agents write it."""
    home, folder = os.path.realpath(project.config.home), os.path.realpath(project.folder)
    below = os.path.relpath(home, folder).split(os.sep)
    if below[0] != os.pardir and ".fanfold" not in below:  # which nobody may write from inside
        message = f"your own folder {project.config.home} is in the project, where agents may write"
        yield _found("home", "warning", message, "set FANFOLD_HOME to a folder outside")


def _tools(project: Path) -> Iterator[Finding]:
    git = _version("git", project)
    if git is None:
        yield _found(
            "git", "error", "git was not found", "install git 2.38 or newer: merges are done with it"
        )
    elif git < MIN_GIT:
        yield _found("git", "error", f"git {git[0]}.{git[1]} is too old", "install git 2.38 or newer")
    else:
        yield _found("git", "ok", f"{git[0]}.{git[1]}")
    yield _sandbox(project)


def _sandbox(project: Path) -> Finding:
    """The level commands run at here, and what it does not give."""
    from fanfold.workspace.sandbox.levels import detect

    levels = detect(project)
    if levels.bubblewrap.available:
        return _found("sandbox", "ok", "bubblewrap", details=_without(levels.bubblewrap.cannot))
    why = f"bubblewrap: {levels.bubblewrap.why}"
    if levels.landlock.available:
        found, hint = f"Landlock and seccomp ({why})", "install bubblewrap for full confinement"
        return _found("sandbox", "warning", found, hint, _without(levels.landlock.cannot))
    found = f"none, so commands are refused ({why}; Landlock: {levels.landlock.why})"
    return _found("sandbox", "warning", found, "install bubblewrap")


def _without(cannot: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"does not give: {one}" for one in cannot)


def _version(program: str, project: Path) -> tuple[int, int] | None:
    from fanfold.workspace.files.programs import find_program

    found = find_program(program, project)
    if found is None:
        return None
    try:
        done = subprocess.run(
            [found, "--version"], cwd="/", env={}, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(number[1]), int(number[2])) if number else None


def _roles(project: Project) -> Iterator[Finding]:
    found = [notice for notice in project.roles.notices if notice.severity == "warning"]
    for notice in found[:MAX_NAMED_FILES]:
        yield _found("roles", "warning", f"{notice.file}:{notice.line}: {notice.message}")
    if len(found) > MAX_NAMED_FILES:
        more = f"{len(found) - MAX_NAMED_FILES} more warnings about role files"
        yield _found("roles", "warning", more, "fanfold agents lists them")
    if not found:
        names = project.roles.names()
        yield _found("roles", "ok", f"{len(names)} known: {', '.join(names)}")


def _agents(project: Project) -> Iterator[Finding]:
    """Agents that are programs, as far as they are installed."""
    from fanfold.runtime.operations.system.installed_agents import find_agents

    found, problems = find_agents(project.config.home, project.folder)
    for error in problems:
        yield _found("agents", "error", error.message, error.hint)
    for agent in found:
        names = ", ".join(agent.names)
        lent = f"may have {', '.join(agent.credentials)}" if agent.credentials else "is lent no credentials"
        message = f"{agent.title} {agent.version or 'does not answer'} ({names}) at {agent.program}, {lent}"
        if agent.unnamed:
            file = f"{project.config.home}/backends/{agent.names[0]}.toml"
            words = ", ".join(f'"{one}"' for one in agent.unnamed)
            hint = f"to let roles use it, say what it may have in {file}: credentials = [{words}], or []"
            yield _found("agents", "warning", message, hint)
        else:
            yield _found("agents", "ok" if agent.version else "warning", message)


def _recipes(project: Project) -> Iterator[Finding]:
    entries = project.library.list()
    warnings = [warning for entry in entries for warning in entry.warnings]
    for warning in warnings:
        yield _found("recipes", "warning", warning)
    if not warnings:
        yield _found("recipes", "ok", f"{len(entries)} known")


def _runs(project: Project) -> Iterator[Finding]:
    """Runs that are not over and that no process drives: left by a crash, or resting."""
    if not project.has_runs:
        return
    try:
        heads = [head for head in list_heads(project) if head.status not in RUN_TERMINAL]
        stale = [head for head in heads if head.status in (RUNNING, PENDING)]
        stale = [head for head in stale if not project.has_owner(head.run_id)]
    except FanfoldError as error:
        yield _found("runs", "error", error.message, error.hint)
        return
    for head in stale:
        message = f"run {head.run_id} ({head.recipe}) is {head.status}, but no process drives it"
        hint = f"{how_to_resume(head.run_id)}, or fanfold cancel {head.run_id}"
        yield _found("runs", "warning", message, hint)
    if not stale:
        yield _found("runs", "ok", f"{len(heads)} not over, none abandoned")


def _config(config: Config) -> Iterator[ConfigValue]:
    for setting in settings_of(config.providers):
        value = config.values[setting.key]
        if setting.kind == "secret" and value is not None:
            value = "set"
        elif setting.kind == "address" and isinstance(value, str):
            value = without_credentials(value)
        yield ConfigValue(setting.key, value, config.origins[setting.key])
    given = os.environ.get("FANFOLD_HOME", "").strip()
    yield ConfigValue("home", str(config.home), "FANFOLD_HOME" if given else "default")
