"""Roles that Codex is told of in its configuration: `[agents.NAME]` in `.codex/config.toml`.

Such a table has a description and names a file with the rest, which need say neither its name nor what it is
for. Everything else in that configuration is Codex's own, and nobody here acts on it.

Rules
* The file is read like any role file of the same place: one that a project names lies inside the checkout.
* What is odd about the configuration is told; it takes nothing away from the files in `.codex/agents`.
* A table without a file describes a role that has nothing of its own. Under a built-in name it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fanfold.agents.role import IGNORED, Notice
from fanfold.text.diagnostics import Source
from fanfold.text.trees.tree import Mapping, Node, Scalar
from fanfold.text.trees.yaml import TextFormat
from fanfold.trust.project_files import read_beneath

FILE = "config.toml"
MAX_BYTES = 1024 * 1024
MAX_DECLARED = 500
FORMAT = TextFormat(name="role", max_bytes=MAX_BYTES, clean_text=False, clean_values=False)


class Declaration(NamedTuple):
    """One table: what the role is called and for, and the file with the rest, if it names one."""

    name: str
    description: str
    file: Path | None
    source: str
    line: int


def read_declarations(config: Path, top: Path | None, notices: list[Notice]) -> list[Declaration]:
    """The roles that one configuration declares, in its order; empty when there is none."""
    try:
        data = read_beneath(top or Path(config.anchor), config, MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        notices.append(Notice("role.invalid", f"its roles cannot be read: {error.strerror}", str(config)))
        return []
    if b"agents" not in data:  # most have none, and everybody would pay for reading it
        return []
    from fanfold.text.trees.toml import parse_toml

    found, source, report = parse_toml(data, str(config), FORMAT)
    for one in report.diagnostics[:1]:
        message, at = f"its roles cannot be read: {one.message}", one.range.start
        notices.append(Notice("role.invalid", message, str(config), at.line, column=at.column))
    agents = found.get("agents") if isinstance(found, Mapping) and report.ok else None
    tables = agents.entries[:MAX_DECLARED] if isinstance(agents, Mapping) else []
    return list(_declarations(tables, source, config, notices))


def _declarations(
    tables: list[tuple[Scalar, Node]], source: Source, config: Path, notices: list[Notice]
) -> Iterator[Declaration]:
    for key, table in tables:
        if not isinstance(table, Mapping):
            continue  # `max_threads` and the like are for Codex
        line = source.position(key.start).line
        file, description = table.get("config_file"), table.get("description")
        if file is not None and not (isinstance(file, Scalar) and isinstance(file.value, str) and file.text):
            message = f'{IGNORED}"config_file" of agents.{key.text[:80]} must be the path of a file'
            notices.append(Notice("role.invalid", message, str(config), line, role=key.text))
            continue
        named = None if file is None else _place(config.parent, file.text)
        yield Declaration(
            key.text, description.text if isinstance(description, Scalar) else "", named, str(config), line
        )


def _place(folder: Path, file: str) -> Path:
    """A file is named from the folder of the configuration or, as people write it, of the project."""
    from_project = folder.parent / file
    return from_project if not (folder / file).exists() and from_project.exists() else folder / file
