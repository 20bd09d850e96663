"""A recipe from another system's workflow: made, checked as any other, with a list of what it lacks."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from fanfold.errors import AuthorError
from fanfold.recipe.builder import as_yaml
from fanfold.recipe.compile import compile_recipe
from fanfold.recipe.conversion.formats import convert
from fanfold.recipe.conversion.source import MAX_BYTES, ForeignFile, Lost
from fanfold.runtime.operations.project import Project
from fanfold.text.diagnostics import Diagnostic
from fanfold.trust.project_files import read_named

PROGRAMS = (".py", ".ipynb")
"""Files of systems whose workflows are code, of which nobody converts any."""


class ConvertedRecipe(Struct, frozen=True):
    """`ok`: it passes `check`. What was not carried over stands in `lost`, by line."""

    ok: bool
    system: str
    text: str
    lost: list[Lost]
    diagnostics: list[Diagnostic]


def convert_file(project: Project, file: Path, system: str | None) -> ConvertedRecipe:
    """Convert one file; raises `AuthorError` for what cannot be read, OSError for what is not there."""

    def beside(name: str) -> bytes | None:
        try:
            data = read_named(project.folder, file.parent / name, MAX_BYTES + 1)
        except (OSError, ValueError):
            return None
        return data if len(data) <= MAX_BYTES else None

    data = read_named(project.folder, file, MAX_BYTES + 1)
    if file.suffix in PROGRAMS:
        message = f"{file} is a program: a graph that is built in code cannot be read off it"
        hint = "write its steps as a recipe; fanfold list shows some to begin with"
        raise AuthorError("convert.unreadable", message, hint=hint)
    if len(data) > MAX_BYTES:
        raise AuthorError("convert.unreadable", f"{file} is longer than {MAX_BYTES:,} bytes")
    source = ForeignFile(data, str(file), beside, project.roles.names())
    found, converted = convert(source, system)
    text = source.text if found == "protoagent" else as_yaml(converted.recipe)
    checked = compile_recipe(text.encode(), "recipe.yaml", project.around)
    problems = [one for one in checked.report.diagnostics if one.severity == "error"]
    return ConvertedRecipe(checked.plan is not None, found, text, sorted(converted.lost), problems)
