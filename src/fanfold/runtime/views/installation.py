"""This installation and this project as every surface shows them: soundness, proofs, what was removed."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from fanfold.runtime.views.errors import ErrorBody


class Finding(Struct, frozen=True):
    """One thing that was looked at. `warning` works, with less; `error` does not."""

    name: str
    ok: bool
    level: Literal["ok", "warning", "error"]
    message: str
    hint: str = ""
    details: tuple[str, ...] = ()


class ConfigValue(Struct, frozen=True):
    """A setting and where its value comes from. Of a secret no more is told than that it is set."""

    key: str
    value: bool | int | str | None
    origin: str


class Examination(Struct, frozen=True):
    """What `doctor` found."""

    ok: bool
    version: str
    project: str
    checks: list[Finding]
    config: list[ConfigValue]


class SmokeCheck(Struct, frozen=True):
    """One claim: whether it held, and what the log showed."""

    name: str
    ok: bool
    evidence: Any


class SmokeReport(Struct, frozen=True, omit_defaults=True):
    """`error` only where a real scenario is not ok."""

    ok: bool
    checks: list[SmokeCheck]
    error: ErrorBody | None = None


class Removed(Struct, frozen=True):
    """What was forgotten, or would be."""

    dry_run: bool
    runs: list[str]
    folders: list[str]
    workspaces: list[str]
    proposals: list[str]


class Initialised(Struct, frozen=True):
    """Files of a new project, and those that were there."""

    created: list[str]
    kept: list[str]


class Served(Struct, frozen=True):
    """`link` lets a browser in, and is shown this once; None where only configured tokens count."""

    url: str
    link: str | None
    taken_over: list[str]
    """Runs whose process had died, and which go on."""
