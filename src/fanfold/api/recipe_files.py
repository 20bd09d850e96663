"""Convert workflows of other systems to recipes, set up editors, apply fixes, and suggest sets."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
from msgspec import Struct

from fanfold.api.explain import StepTouch, plan_steps, suggest, touched_by
from fanfold.api.project import Project
from fanfold.api.recipe_documents import SCHEMA_FILE, SETTINGS_FILE, EditorSetUp, SuggestedSet
from fanfold.api.recipes import MISSING, CheckedRecipe, check_found
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.plan import Plan
from fanfold.language.builder import as_yaml
from fanfold.language.compile import compile_recipe
from fanfold.language.convert.formats import convert
from fanfold.language.convert.source import MAX_BYTES as MAX_FOREIGN_BYTES
from fanfold.language.convert.source import ForeignFile, Loss
from fanfold.language.diagnostics import Diagnostic, Fix, Position
from fanfold.language.draft import FoundRecipe
from fanfold.language.json_text import SettingsUnreadableError, has_entry, set_entry
from fanfold.project_files import read_beneath, read_named, write_beneath, write_whole

PROGRAMS = (".py", ".ipynb")
"""Files of systems whose workflows are code. They cannot be converted."""

_CREW = r"(?a)\.\./\w+\.py"
_SHARED = r"(?:\.\./){1,2}(?:commands|scripts)(?=/)"
"""Where Archon stores files of several workflows: next to their folder, or next to its parent folder."""


class ConvertedRecipe(Struct, frozen=True):
    """A converted recipe. `ok`: it passes `check`. `lost` lists what was not converted, by line."""

    ok: bool
    system: str
    text: str
    lost: list[Loss]
    diagnostics: list[Diagnostic]


def convert_file(project: Project, file: Path, system: str | None) -> ConvertedRecipe:
    """Convert one file; raises `AuthorError` if it is unreadable, `OSError` if it does not exist."""

    folder = Path(os.path.realpath(file.parent))

    def read_from(top: Path, name: str | Path) -> bytes | None:
        try:
            data = read_beneath(top, top / name, MAX_FOREIGN_BYTES + 1)
        except (OSError, ValueError):
            return None
        return data if len(data) <= MAX_FOREIGN_BYTES else None

    def beside(name: str) -> bytes | None:
        """Read a file that the workflow names; None if it is not allowed or not readable.

        Allowed are files below its own folder or below Archon's shared folders, and the program of a crew,
        above its folder `config`.
        """
        if re.fullmatch(_CREW, name):
            return read_from(folder.parent, name.removeprefix("../"))
        shared = re.match(_SHARED, name)
        top = folder if shared is None else folder / shared[0]
        if shared is not None and top.is_symlink():
            return None
        return read_from(top, folder / name)

    data = read_named(project.folder, file, MAX_FOREIGN_BYTES + 1)
    if file.suffix in PROGRAMS:
        message = f"{file} is a program: a graph that is built in code cannot be read off it"
        hint = "write its steps as a recipe; fanfold list shows some to begin with"
        raise AuthorError("convert.unreadable", message, hint=hint)
    if len(data) > MAX_FOREIGN_BYTES:
        raise AuthorError("convert.unreadable", f"{file} is longer than {MAX_FOREIGN_BYTES:,} bytes")
    source = ForeignFile(data, str(file), beside, project.roles.names())
    found, converted = convert(source, system)
    text = converted.text or as_yaml(converted.recipe)
    checked = compile_recipe(text.encode(), "recipe.yaml", project.around)
    problems = [one for one in checked.report.diagnostics if one.severity == "error"]
    return ConvertedRecipe(checked.plan is not None, found, text, sorted(converted.lost), problems)


# -----------------------------------------------------------------------------------------------------------
# The recipe format as JSON Schema, and the set-up of editors that use it

MAX_SETTINGS_BYTES = 4 * 1024 * 1024

RECIPE_GLOBS = [".fanfold/workflows/**/*.yaml", ".fanfold/workflows/**/*.yml"]
MODELINE = "# yaml-language-server: $schema=../recipe.schema.json"


def recipe_schema(project: Project) -> str:
    """Return the JSON Schema of recipes, with the roles known here, indented for people."""
    from fanfold.language.schema import json_schema

    document = json_schema(project.roles.names(), project.around.ceilings)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def set_up_editors(project: Project) -> EditorSetUp:
    """Write the schema and register it in VS Code. A second call changes only outdated files."""
    schema = _write(project.folder, SCHEMA_FILE, recipe_schema(project))
    before = _read(project.folder, SETTINGS_FILE)
    try:
        where = ("yaml.schemas", f"./{SCHEMA_FILE}")
        after = before if has_entry(before, where) else set_entry(before, where, RECIPE_GLOBS)
    except SettingsUnreadableError:
        line = f'"yaml.schemas": {{"./{SCHEMA_FILE}": {msgspec.json.encode(RECIPE_GLOBS).decode()}}}'
        note = f"The settings could not be understood and were left alone; add this yourself:\n  {line}"
        return EditorSetUp(schema=schema, settings="unchanged", note=note)
    return EditorSetUp(schema=schema, settings=_write(project.folder, SETTINGS_FILE, after))


def _read(top: Path, path: str) -> str:
    try:
        return read_beneath(top, top / path, MAX_SETTINGS_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise WorldError("world.io", f"{top / path} cannot be read: {error.strerror}") from None


def _write(top: Path, path: str, text: str) -> str:
    try:
        if _read(top, path) == text:
            return "unchanged"
        write_beneath(top, path, text.encode())
    except OSError as error:
        message = f"{top / path} cannot be written: {error.strerror}"
        raise WorldError("world.io", message, hint="no link is followed there") from None
    return "written"


# -----------------------------------------------------------------------------------------------------------
# `check --fix`: apply the mechanical fixes that diagnostics propose
#
# A fix is applied only to the file the user named, never to built-in recipes or to files it refers to. After
# each round the file is compiled again, because one fix may reveal the next. If there is nothing to fix, the
# file is not touched, so a second call changes nothing.

MAX_ROUNDS = 20
_LINE_END = r"\r\n|\n|\r"
MAX_RUNS = 20
"""Number of the latest runs that are read."""


def fix(project: Project, recipe: CheckedRecipe) -> tuple[CheckedRecipe, int]:
    """Apply the proposed fixes; return the recipe afterwards and the number of fixes."""
    if recipe.found.origin in ("builtin", MISSING):
        return recipe, 0
    fixed = 0
    seen = {recipe.found.data}
    for _ in range(MAX_ROUNDS):
        fixes = [d.fix for d in recipe.diagnostics if d.fix is not None and d.file == recipe.found.file]
        if not fixes:
            break
        text, count = apply_fixes(recipe.found.data.decode(), fixes)
        data = text.encode()
        if not count or data in seen:  # two fixes that revert each other must not loop forever
            break
        seen.add(data)
        fixed += count
        old = recipe.found
        recipe = check_found(project, recipe.ref, FoundRecipe(data, old.file, old.origin, old.shadowed))
    if fixed:
        _replace(Path(recipe.found.file), recipe.found.data)
    return recipe, fixed


def apply_fixes(text: str, fixes: list[Fix]) -> tuple[str, int]:
    """Return the fixed text and the number of fixes. Of two overlapping fixes the first is applied."""
    ends = list(re.finditer(_LINE_END, text))
    starts = [0, *(match.end() for match in ends)]
    line_end = ends[0][0] if ends else "\n"  # added lines use the line ending of the file

    def offset(position: Position) -> int:
        return min(starts[min(position.line, len(starts)) - 1] + position.column - 1, len(text))

    spans = sorted({(offset(fix.range.start), offset(fix.range.end), fix.text) for fix in fixes})
    parts: list[str] = []
    at = count = 0
    previous = -1
    for start, end, replacement in spans:
        if start < at or start == previous:
            continue
        parts += [text[at:start], replacement.replace("\n", line_end)]
        at, previous = end, start
        count += 1
    return "".join([*parts, text[at:]]), count


def _replace(file: Path, data: bytes) -> None:
    """Write a file. A link is followed only if its target is inside the current folder."""
    target = file.resolve()
    if file.is_symlink() and not target.is_relative_to(Path.cwd().resolve()):
        hint = f"fix the file that it leads to: {target}"
        raise WorldError("world.io", f"{file} is a link that leads out of this folder", hint=hint)
    write_whole(target, data, mode=target.stat().st_mode & 0o7777, exactly=True)


def suggest_sets(project: Project, plan: Plan) -> list[SuggestedSet]:
    """Suggest sets from the latest runs of a recipe, as root runs and as child runs."""
    if not project.has_runs:
        return []
    heads = [head for head in project.store.heads(roots_only=False, limit=-1) if head.recipe == plan.name]
    seen: dict[str, StepTouch] = {}
    for head in heads[:MAX_RUNS]:
        tree = project.view(head.root_run_id)
        run = tree.state.runs.get(head.run_id)
        if run is not None:
            touched_by(tree, run, seen)
    return suggest(plan.name, plan_steps(plan.steps), seen)
