"""Inputs as people give them: `-i name=value` and `--inputs FILE`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.inputs import parse_input_text
from fanfold.trust.project_files import read_named

if TYPE_CHECKING:
    from fanfold.runtime.operations.runs.starting.options import Options

MAX_FILE_BYTES = 16 * 1024 * 1024


def given_inputs(project: Path, plan: Plan, pairs: Sequence[str], file: str | None) -> dict[str, JSON]:
    """Only what the user gave, by name, not yet checked against the declarations."""
    given: dict[str, JSON] = {} if file is None else _read_file(project, Path(file))
    declared = {one.name: one for one in plan.inputs}
    seen: set[str] = set()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise AuthorError(
                "usage.bad_input",
                f"-i {pair} is not NAME=VALUE",
                hint=f'for example -i {plan.inputs[0].name if plan.inputs else "name"}="some text"',
            )
        if name in seen:
            raise AuthorError("usage.bad_input", f'input "{name}" is given twice', hint="keep one of them")
        seen.add(name)
        if not _is_unicode(text):
            raise AuthorError("usage.bad_input", f'input "{name}" is not UTF-8 text')
        given[name] = parse_input_text(declared[name], text) if name in declared else text
    return given


def _is_unicode(text: str) -> bool:
    """Bytes of the command line that are not UTF-8 arrive as lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text) if not text.isascii() else True


def read_text_file(project: Path, file: Path, flag: str, code: str = "usage.bad_file") -> bytes:
    """The content of a file that a flag names; what is wrong is said with the flag's name."""
    try:
        data = read_named(project, file, MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        there = "\0" not in str(file) and not file.is_absolute() and (project / file).is_file()
        hint = f"from here it is {os.path.relpath(project / file)}" if there else ""
        raise AuthorError(code, f"{flag} {file} cannot be read: {reason}", hint=hint) from None
    if len(data) > MAX_FILE_BYTES:
        raise AuthorError(code, f"{flag} {file} is larger than 16 MiB")
    return data


def read_script(project: Path, file: Path) -> str:
    """The text of a script that was checked: a mistake in it must not wait for the step it concerns."""
    from fanfold.agents.scripts.script import Script

    data = read_text_file(project, file, "--script", "usage.bad_script")
    return Script.load(data, str(file)).source


def read_options(
    project: Path,
    *,
    model: str | None = None,
    agent_backend: str | None = None,
    script: str | None = None,
    permission: str | None = None,
    **more: Any,
) -> Options:
    """What is fixed for whatever is started, as the flags say."""
    from fanfold.runtime.operations.runs.starting.options import Options  # help and predictions need none

    return Options(
        model=model,
        backend=agent_backend,
        script=None if script is None else read_script(project, Path(script)),
        script_file=script or "",
        permission=permission or "ask",
        **more,
    )


def read_value(project: Path, file: Path, flag: str) -> JSON:
    """A value from a file: JSON from `.json`, text from any other."""
    data = read_text_file(project, file, flag)
    try:
        return msgspec.json.decode(data) if file.suffix == ".json" else data.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise AuthorError("usage.bad_file", f"{flag} {file} cannot be used: {error}") from None


def _read_file(project: Path, file: Path) -> dict[str, JSON]:
    data = read_text_file(project, file, "--inputs", "usage.bad_inputs_file")
    value = _parse_json(data, file) if file.suffix == ".json" else _parse_yaml(data, file)
    if not isinstance(value, dict):
        raise AuthorError(
            "usage.bad_inputs_file",
            f"--inputs {file} must hold a map of input names to values",
            hint='for example {"topic": "solid-state batteries"}',
        )
    return value


def _parse_json(data: bytes, file: Path) -> JSON:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise AuthorError("usage.bad_inputs_file", f"--inputs {file} is not valid JSON: {error}") from None


def _parse_yaml(data: bytes, file: Path) -> JSON:
    """By the same careful reader as recipes: no tags, no aliases, no surprises."""
    from fanfold.text.trees.tree import plain
    from fanfold.text.trees.yaml import TextFormat, parse_yaml

    tree, _, report = parse_yaml(data, str(file), TextFormat(name="inputs file", clean_values=False))
    if tree is None or not report.ok:
        first = next(d for d in report.diagnostics if d.severity == "error")
        place = f"{file}:{first.range.start.line}:{first.range.start.column}"
        raise AuthorError("usage.bad_inputs_file", f"{place}: {first.message}", hint=first.help)
    return plain(tree)
