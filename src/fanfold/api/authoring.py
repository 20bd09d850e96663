"""Make recipes: capture them from runs, convert them from other systems, fix them, set up editors.

The recipe of an open run is recovered from its delegations. They are read from the run's log, converted to a
recipe (`language.capture`), and checked by the compiler. With a name, the recipe is saved in the project. An
existing recipe is only replaced on request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.entries import Response
from fanfold.api.explain import StepTouch, collect_touches, plan_steps, suggest
from fanfold.api.history import ResolvedRun, find_run
from fanfold.api.project import Project
from fanfold.api.recipes import (
    MISSING,
    SCHEMA_FILE,
    SETTINGS_FILE,
    CheckedRecipe,
    EditorSetUp,
    SuggestedSet,
    check_found,
    in_folder,
    renamed,
    save_recipe,
)
from fanfold.api.subagents import SPAWN_TIMEOUT_MS
from fanfold.engine.requests import no_subagent
from fanfold.engine.run_tree import RunTree
from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.kernel.events import StepAdded, SubagentEvent, event_of
from fanfold.kernel.plan import EVERYTHING, JSON, Plan
from fanfold.kernel.state import COMPLETED, Node
from fanfold.language.builder import Recipe, as_yaml
from fanfold.language.capture.quotes import Delegation, Emission, OmittedChild, StandsFor
from fanfold.language.capture.recover import recover
from fanfold.language.compile import compile_recipe
from fanfold.language.convert.crewai import ANY_CREW
from fanfold.language.convert.formats import convert
from fanfold.language.convert.source import MAX_BYTES as MAX_FOREIGN_BYTES
from fanfold.language.convert.source import ForeignFile, Loss
from fanfold.language.diagnostics import Diagnostic, Fix, Position
from fanfold.language.draft import FoundRecipe
from fanfold.language.json_text import SettingsUnreadableError, entry_at, set_entry
from fanfold.language.leaf_steps import AgentBody, read_body
from fanfold.project_files import read_beneath, read_named, write_beneath, write_whole
from fanfold.sessions.log import read_entries
from fanfold.steps.agent import words_of
from fanfold.steps.records import child_name, is_agent, is_lead, session_of

# -----------------------------------------------------------------------------------------------------------
# The delegations of an open run, read from its log for `language.capture`
#
# Each child is one delegation, regardless of its number of turns: a turn after a failed turn is a retry. A
# turn after a completed turn is a separate delegation, which continues that conversation.


def find_delegations(
    tree: RunTree, children: Sequence[str] = (), usual_timeout_ms: int = 0
) -> list[Delegation]:
    """List the delegations of an open run in the order they were requested; only of `children`, if given."""
    asked: dict[str, int] = {}  # the number of the event in which each step was requested
    ended: dict[str, int] = {}
    for envelope in tree.store.log(tree.root.id):
        data = event_of(envelope).data
        if isinstance(data, StepAdded):
            asked[data.step.id] = envelope.tree_seq
        elif isinstance(data, SubagentEvent) and data.status not in ("queued", "started", "input"):
            ended[data.step] = envelope.tree_seq
    found: list[Delegation] = []
    for node in tree.root.scope.children:
        child = child_name(node.path)
        if not is_agent(node) or is_lead(node) or (children and child not in children):
            continue
        one = _delegation(tree, node, usual_timeout_ms)
        one = replace(one, asked=asked.get(node.path, 0), ended=ended.get(node.path, 0))
        before = next((n for n in range(len(found) - 1, -1, -1) if child_name(found[n].name) == child), None)
        if before is None:
            found.append(one)
        elif found[before].status == COMPLETED:
            found.append(replace(one, continues=found[before].name))
        else:  # a retry: the step keeps the first prompt
            failed = found[before]
            found[before] = replace(
                one,
                name=failed.name,
                prompt=failed.prompt,
                asked=failed.asked,
                failed_as=(*failed.failed_as, failed.failure) if failed.failure else failed.failed_as,
            )
    return found


def _delegation(tree: RunTree, node: Node, usual_timeout_ms: int) -> Delegation:
    body = read_body(AgentBody, node.step)
    number = node.path.removeprefix(f"{body.agent}-")
    rows = tree.memory.changes_of(node.run.id, node.path)
    merged = any(row.state in ("merged", "applied") for row in rows)
    entries = read_entries(tree.store, session_of(node)) if node.attempt else ()
    responses = [entry for entry in entries if isinstance(entry, Response)]
    return Delegation(
        name=node.path,
        chosen=not number.isdecimal(),
        role=body.role,
        prompt=words_of(node),
        output=tree.values.output(node),
        status=node.status,
        failure=node.error.kind if node.error is not None else "",
        asked=0,
        ended=0,
        settings=_settings(tree, node, body, usual_timeout_ms),
        leaves_files=node.step.posture == "writer" and (merged or node.step.workspace_mode == "shared"),
        tools=tuple(call.tool for response in responses for call in response.tool_calls),
    )


def _settings(tree: RunTree, node: Node, body: AgentBody, usual_timeout_ms: int) -> dict[str, JSON]:
    """Return the keys of the step that differ from the defaults of a recipe."""
    step, writes, ms = node.step, node.step.posture == "writer", node.step.timeout_ms
    role = tree.frozen(node).roles.get(body.role)
    restricted = step.posture == "read_only" and role is not None and not role.read_only
    timeout = "" if ms is None else f"{ms // 1_000}s" if ms % 1_000 == 0 else f"{ms}ms"
    keys: dict[str, tuple[bool, JSON]] = {
        "posture": (restricted, "read_only"),
        "write_set": (writes and step.write_set != EVERYTHING, list(step.write_set)),
        "workspace_mode": (writes and step.workspace_mode == "shared", "shared"),
        "merge": (step.merge != "auto", step.merge),
        "on_conflict": (step.on_conflict != "fail", step.on_conflict),
        "model": (body.model is not None, body.model),
        "tools": (body.tools is not None, list(body.tools or ())),
        "output_schema": (step.output_schema is not None, step.output_schema),
        "timeout": (ms is not None and ms != usual_timeout_ms, timeout),
    }
    return {key: value for key, (differs, value) in keys.items() if differs}


class CaptureResult(Struct, frozen=True, kw_only=True):
    """A recipe that was recovered from a run. `file` is where it was saved, if it was."""

    run_id: str
    name: str
    recipe: str
    """The text of the recipe."""
    made_of: dict[str, list[str]]
    """The children that each of its steps replaces, in the order of its items."""
    recognised: Sequence[str]
    guessed: Sequence[str]
    stands_for: Sequence[StandsFor]
    """Placeholders in prompts that will not produce exactly the recorded text."""
    left_out: Sequence[OmittedChild]
    diagnostics: Sequence[Diagnostic]
    file: str | None = None


def capture(
    project: Project,
    run: str,
    *,
    children: Sequence[str] = (),
    name: str = "",
    request: str = "",
    save: bool = False,
    replace: bool = False,
) -> CaptureResult:
    """Return the recipe of a run, or of some children of an open run. `save` saves it under its name.

    The recipe of an open run is recovered from its delegations; any other run has its own recipe. `request`
    is the user's request, for an open run whose log does not contain it.
    """
    found = find_run(project, run)
    if not found.run.plan.open:  # its own recipe, unchanged except for its name
        name = name or found.run.plan.name
        origin = (project.folder / (found.run.plan.source_file or "<run>")).parent
        text = in_folder(renamed(recipe_of_run(project, run), name), origin, project.folder)
        file = str(project.folder / "<run>")
        compiled = compile_recipe(text.encode(), file, project.compile_context(scripted=True))
        unchanged = [f"the recipe of run {found.run.id}, unchanged"]
        emission = Emission(
            recipe=None, made_of={}, recognised=unchanged, guessed=[], stands_for=[], left_out=[]
        )
    else:
        emission, own = _recover(found, children, request, name)
        name, text = own.name, own.to_yaml()
        compiled = own.compile(project.compile_context(scripted=True), project.folder)
    saved = save and compiled.plan is not None
    return CaptureResult(
        run_id=found.run.id,
        name=name,
        recipe=text,
        made_of=emission.made_of,
        recognised=emission.recognised,
        guessed=emission.guessed,
        stands_for=emission.stands_for,
        left_out=emission.left_out,
        diagnostics=compiled.report.diagnostics,
        file=str(save_recipe(project, name, text, replace=replace)) if saved else None,
    )


def _recover(found: ResolvedRun, children: Sequence[str], request: str, name: str) -> tuple[Emission, Recipe]:
    """Recover a recipe from the delegations of an open run; raises if none completed."""
    for child in children:
        if not found.turns(child):
            raise no_subagent(child, {child_name(node.path) for node in found.run.scope.children})
    delegations = find_delegations(found.tree, children, SPAWN_TIMEOUT_MS)
    request = request or "\n".join(words_of(node) for node in found.run.scope.children if is_lead(node))
    emission = recover(delegations, request=request, name=name)
    if emission.recipe is None:
        message = f"no task was delegated in run {found.run.id}"
        if emission.left_out:
            reasons = "; ".join(f"{one.name}: {one.why}" for one in emission.left_out[:3])
            message = f"no delegated task in run {found.run.id} completed: {reasons}"
        hint = f"fanfold inspect {found.run.id} lists its agents"
        raise NotFoundError("capture.nothing", message, hint=hint)
    return emission, emission.recipe


def recipe_of_run(project: Project, run: str) -> str:
    """Return the text of the recipe that a run was started with."""
    found = find_run(project, run).run
    plan = found.plan
    if plan.source:
        return plan.source
    if plan.open:
        message, hint = f"run {found.id} is open: it has no recipe", f"fanfold capture {found.id}"
    else:
        message = f"the log of run {found.id} has no text of its recipe {plan.name}@{plan.version}"
        hint = f"fanfold inspect {found.id} shows its steps"
    raise NotFoundError("recipe.no_text", message, hint=hint)


# -----------------------------------------------------------------------------------------------------------
# Convert workflows of other systems

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
        if name == ANY_CREW:
            programs = [read_from(folder.parent, one.name) for one in sorted(folder.parent.glob("*.py"))[:99]]
            crews = [text for text in programs if text is not None and b"tasks_config" in text]
            return crews[0] if len(crews) == 1 else None
        if re.fullmatch(_CREW, name):
            return read_from(folder.parent, name.removeprefix("../"))
        shared = re.match(_SHARED, name)
        top = folder if shared is None else folder / shared[0]
        if shared is not None and top.is_symlink():
            return None
        return read_from(top, folder / name)

    data = read_named(project.folder, file, MAX_FOREIGN_BYTES + 1)
    if file.suffix in PROGRAMS:
        message = f"{file} is a program: a graph that is built in code cannot be converted"
        hint = "write its steps as a recipe; fanfold list shows examples"
        raise AuthorError("convert.unreadable", message, hint=hint)
    if len(data) > MAX_FOREIGN_BYTES:
        raise AuthorError("convert.unreadable", f"{file} is longer than {MAX_FOREIGN_BYTES:,} bytes")
    source = ForeignFile(data, str(file), beside, project.roles.names())
    found, converted = convert(source, system)
    text = converted.text or as_yaml(converted.recipe)
    checked = compile_recipe(text.encode(), "recipe.yaml", project.compile_context())
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

    document = json_schema(project.roles.names(), project.compile_context().ceilings)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def set_up_editors(project: Project) -> EditorSetUp:
    """Write the schema and register it in VS Code. A second call changes only outdated files."""
    schema = _write(project.folder, SCHEMA_FILE, recipe_schema(project))
    before = _read(project.folder, SETTINGS_FILE)
    try:
        where = ("yaml.schemas", f"./{SCHEMA_FILE}")
        after = set_entry(before, where, RECIPE_GLOBS) if entry_at(before, where) is None else before
    except SettingsUnreadableError:
        line = f'"yaml.schemas": {{"./{SCHEMA_FILE}": {msgspec.json.encode(RECIPE_GLOBS).decode()}}}'
        note = f"The settings could not be parsed and were not changed; add this yourself:\n  {line}"
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
        raise WorldError("world.io", message, hint="replace the link: links are not followed there") from None
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
        # A link is followed only if its target is inside the current folder.
        file = Path(recipe.found.file)
        target = file.resolve()
        if file.is_symlink() and not target.is_relative_to(Path.cwd().resolve()):
            hint = f"fix the target of the link: {target}"
            raise WorldError("world.io", f"{file} is a link that leads out of this folder", hint=hint)
        write_whole(target, recipe.found.data, mode=target.stat().st_mode & 0o7777, exactly=True)
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
            collect_touches(tree, run, seen)
    return suggest(plan.name, plan_steps(plan.steps), seen)
