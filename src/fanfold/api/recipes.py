"""Find, compile, check and save recipes, for every command that takes a recipe."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, convert, field

from fanfold.api.project import Project
from fanfold.api.workers import missing_workers
from fanfold.engine.dry_run import Agents, Cost
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.plan import JSON, GroupAction, Limits, Plan, Step
from fanfold.language import tree, yaml_text
from fanfold.language.diagnostics import Diagnostic, FileRefused, Position, Range, Source, render_text
from fanfold.language.draft import FoundRecipe
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.language.library import require_name, said_by_file
from fanfold.project_files import read_beneath
from fanfold.steps.run_config import freeze_roles, with_stages

MISSING = "missing"
"""The origin of a recipe that does not exist."""
_NAME_LINE = r"(?m)^name:.*$"
_START = Range(Position(1, 1), Position(1, 1))
Picture: TypeAlias = Literal["mermaid", "svg"]


class CheckedRecipe(Struct, frozen=True):
    """A compiled recipe. `plan` is None if it has errors; `ref` is empty if it has no file."""

    ref: str
    found: FoundRecipe
    plan: Plan | None
    diagnostics: Sequence[Diagnostic]
    sources: Mapping[str, Source]

    @property
    def ok(self) -> bool:
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)

    def rendered(self, colour: bool) -> str:
        """Return the diagnostics in compiler style."""
        return render_text(self.diagnostics, self.sources, colour)

    def runnable(self) -> Plan:
        """Return the plan; raises `FileRefused` if there are errors."""
        if self.plan is None or not self.ok:
            hint = f"fanfold check {shlex.quote(self.ref)}" if self.ref else ""
            raise FileRefused(self.diagnostics, self.sources, hint)
        return self.plan


def check_recipe(project: Project, ref: str, *, scripted: bool = False) -> CheckedRecipe:
    """Find a recipe by name or file, and compile it. `scripted`: for a run with a script."""
    return check_found(project, ref, project.find_recipe(ref), scripted=scripted)


def check_found(project: Project, ref: str, found: FoundRecipe, *, scripted: bool = False) -> CheckedRecipe:
    """Compile a recipe that was found under a reference."""
    compiled = project.compile(found, scripted=scripted)
    diagnostics = list(compiled.report.diagnostics)
    if found.shadowed:  # neither file is wrong, but one name exists in two places
        message = f"{found.file} shadows {', '.join(found.shadowed)}"
        diagnostics.insert(0, Diagnostic("recipe.shadowed", "warning", message, found.file, _START))
    if compiled.plan is not None:
        diagnostics += _misnamed(found, compiled.plan)
        for message in missing_workers(project, compiled.plan, scripted=scripted):
            diagnostics.append(Diagnostic("cluster.no_worker", "warning", message, found.file, _START))
    return CheckedRecipe(ref, found, compiled.plan, diagnostics, compiled.sources)


def check_recipes(project: Project, refs: Sequence[str]) -> list[CheckedRecipe]:
    """Find and compile several recipes.

    A missing recipe among several is a diagnostic and does not affect the others. A single missing recipe
    raises `NotFoundError`.
    """
    checked: list[CheckedRecipe] = []
    for ref in refs:
        try:
            checked.append(check_recipe(project, ref))
        except NotFoundError as error:
            if len(refs) == 1:
                raise
            problem = Diagnostic(error.code, "error", error.message, ref, _START, error.hint)
            checked.append(CheckedRecipe(ref, FoundRecipe(b"", ref, MISSING), None, [problem], {}))
    return checked


def recipes_meant(project: Project, refs: Sequence[str]) -> list[str]:
    """Expand references: a folder means the recipes in it, and no reference means the whole project.

    The recipes of a project are those in its library, and files in its top folder that look like recipes.
    """
    meant: list[str] = []
    for ref in refs or (os.path.relpath(project.folder),):
        if ref.endswith((".yaml", ".yml")) or not os.path.isdir(ref):
            meant.append(ref)
            continue
        found = recipe_files(ref)
        here = os.path.realpath(ref) == os.fspath(project.folder)
        if here:
            kept = [one for one in project.library.list() if one.origin == "project"]
            found = [f"{one.name}@{one.version}" for one in kept] + found
        if not found:
            message = f"there is no recipe in {os.path.abspath(ref)}"
            hint = "fanfold init makes an example" if here else "fanfold check checks those of the project"
            raise NotFoundError("recipe.unknown_workflow", message, hint=hint)
        meant += found
    return meant


def recipe_files(folder: str | os.PathLike[str]) -> list[str]:
    """List the files of a folder that look like recipes, by name."""
    names = [name for name in sorted(os.listdir(folder)) if name.endswith((".yaml", ".yml"))]
    return [path for path in (os.path.join(folder, name) for name in names) if _looks_like_recipe(path)]


def _looks_like_recipe(file: str) -> bool:
    """Whether a YAML file has a name, and steps or phases: other YAML files may be in the same folder."""
    try:  # stay inside the folder: a link may lead anywhere, and a pipe would block
        lines = read_beneath(Path(os.path.dirname(file)), Path(file), yaml_text.MAX_BYTES).splitlines()
    except OSError:
        return False
    named = any(line.startswith(b"name:") for line in lines)
    return named and any(line.startswith((b"steps:", b"phases:")) for line in lines)


class RoleWarnings(Struct, frozen=True):
    """Warnings about role files, for the recipes that use some of the roles."""

    used: list[Diagnostic]
    """Warnings about used roles. They are shown in full, because steps rely on these roles."""
    others: int = 0
    """Number of files of other roles that have warnings."""

    def line(self) -> str:
        """Return one line about the other roles, with the command that lists them; empty if none."""
        if not self.others:
            return ""
        files, have = ("file", "has") if self.others == 1 else ("files", "have")
        return f"{self.others} other role {files} {have} warnings: fanfold agents lists them"


def role_warnings(project: Project, plans: Iterable[Plan | None]) -> RoleWarnings:
    """Return warnings about the roles that plans use, and the number of other role files with warnings."""
    found = [notice for notice in project.roles.notices if notice.severity == "warning"]
    if not found:
        return RoleWarnings([])
    find = project.roles.find
    used = {
        name: role
        for plan in plans
        if plan is not None
        for name, role in with_stages(freeze_roles(plan, find), find).items()
    }
    names = {name.partition("@")[0] for name in used} | {role.name for role in used.values()}
    sources = {role.source for role in used.values()}
    about = [one for one in found if one.role in names or one.file in sources]
    warnings = [
        Diagnostic(one.code, "warning", one.message, one.file, Range(at, at), one.help)
        for one in about
        for at in (Position(one.line, one.column),)
    ]
    return RoleWarnings(warnings, len({one.file for one in found} - {one.file for one in about}))


def _misnamed(recipe: FoundRecipe, plan: Plan) -> Iterator[Diagnostic]:
    """Warn about a file whose name or version differs from its content, because references would mislead.

    A file that is only used by its path may have any name.
    """
    name, version = said_by_file(recipe.file)
    kept = recipe.origin != "path" or f"{os.sep}.fanfold{os.sep}workflows{os.sep}" in os.path.abspath(
        recipe.file
    )
    found = []
    if name is not None and kept and name != plan.name:
        found.append(("name", f'the file is called "{name}", but says its name is "{plan.name}"'))
    if version is not None and version != plan.version:
        found.append(("version", f"the file is called version {version}, but says {plan.version}"))
    for key, message in found:
        lines = recipe.data.decode().splitlines()
        line = next((i for i, text in enumerate(lines, 1) if text.startswith(f"{key}:")), 1)
        place = Range(Position(line, 1), Position(line, len(key) + 1))
        yield Diagnostic("recipe.bad_value", "warning", message, recipe.file, place, "rename one of them")


def save_recipe(project: Project, name: str, text: str, *, replace: bool = False) -> Path:
    """Save a recipe as `name` (or `name@2`) in this project. The name in the text is changed to match.

    Paths in it are relative to the project's folder, and are changed to lead to the same files.

    Raises `FileRefused` for a recipe with errors, and `recipe.exists` instead of replacing another one.
    """
    require_savable(project, name, replace=replace)  # before the name becomes a path
    file = project.memory / "workflows" / f"{name}.yaml"
    text = in_folder(renamed(text, name), project.folder, file.parent)
    check_found(project, name, FoundRecipe(text.encode("utf-8", "replace"), str(file))).runnable()
    return project.library.save(name, text)


def require_savable(project: Project, name: str, *, replace: bool = False) -> None:
    """Raise if no recipe can be saved under this name. Call it before a recipe is made that would be lost."""
    require_name(name)
    try:
        kept = not replace and project.library.find(name).origin == "project"
    except NotFoundError:
        return
    if kept:  # built-in and user recipes would only be shadowed
        hint = "choose another name, or NAME@2 for a second version; --replace overwrites it"
        raise AuthorError("recipe.exists", f'this project has a recipe "{name}" already', hint=hint)


def in_folder(text: str, origin: Path, folder: Path) -> str:
    """Return the text of a recipe for another folder: paths of files beside it lead to the same files."""
    found, source, _ = yaml_text.parse_yaml(text.encode("utf-8", "replace"), "recipe.yaml")
    text = text if found is None else source.text
    for scalar in sorted(_paths_in(found), key=lambda one: one.start, reverse=True):
        path = os.path.relpath(origin / scalar.text, folder)
        path = path if path.startswith("../") else f"./{path}"
        text = f"{text[: scalar.start]}{json.dumps(path, ensure_ascii=False)}{text[scalar.end :]}"
    return text


def _paths_in(node: tree.Node | None) -> Iterator[tree.Scalar]:
    """Yield the paths relative to a recipe that its steps name."""
    for word, value in node.entries if isinstance(node, tree.Mapping) else ():
        is_path = word.text in ("workflow", "prompt_file") and isinstance(value, tree.Scalar)
        if is_path and isinstance(value, tree.Scalar) and value.text.startswith(("./", "../")):
            yield value
        yield from _paths_in(value)
    for value in node.items if isinstance(node, tree.Sequence) else ():
        yield from _paths_in(value)


def renamed(text: str, name: str | None) -> str:
    """Return the text of a recipe with another name (`name` or `name@2`); unchanged without one."""
    plain = None if name is None else said_by_file(f"{name}.yaml")[0]
    if plain is None:
        return text
    named, found = re.subn(_NAME_LINE, f"name: {plain}", text, count=1)
    return named if found else f"name: {plain}\n{text}"


def show_recipe(project: Project, ref: str, picture: Picture | None = None) -> RecipeDocument:
    """Return one recipe by name or file, optionally with its graph; raises `FileRefused`."""
    checked = check_recipe(project, ref)
    plan = checked.runnable()
    from fanfold.api.graph import mermaid, svg

    graph = None if picture is None else mermaid(plan) if picture == "mermaid" else svg(plan)
    return recipe_document(plan, checked.found.file, graph)


# -----------------------------------------------------------------------------------------------------------
# Documents of recipes and their checks

SCHEMA_FILE = ".fanfold/recipe.schema.json"
SETTINGS_FILE = ".vscode/settings.json"


class RecipeInput(Struct, frozen=True):
    name: str
    type: str | None
    required: bool
    default: JSON
    enum: tuple[JSON, ...] | None
    description: str


class RecipeStep(Struct, frozen=True):
    """A step of a recipe; a group holds others."""

    id: str
    type: str
    label: str
    """The role or program that does the work."""
    marks: tuple[str, ...]
    """Special properties of the step: `for each`, `conditional`."""
    description: str
    role: str | None
    posture: str
    depends_on: tuple[str, ...]
    when: str | None
    for_each: str | None
    max_iterations: int | None
    read_set: tuple[str, ...]
    write_set: tuple[str, ...]
    steps: list[RecipeStep]


class RecipeDocument(Struct, frozen=True):
    """The inputs and steps of a recipe; `graph` only if a picture was requested."""

    name: str
    version: int
    description: str
    file: str
    inputs: list[RecipeInput]
    steps: list[RecipeStep]
    limits: Limits
    graph: str | UnsetType = UNSET


class SuggestedSet(Struct, frozen=True, kw_only=True):
    """A set that a step could declare. `step` is its path in the recipe, `runs` the number of runs."""

    recipe: str
    step: str
    key: str
    declared: list[str]
    proposed: list[str]
    runs: int
    note: str = ""


class CheckReport(Struct, frozen=True):
    """The diagnostics of recipes; `ok` if none is an error."""

    ok: bool
    diagnostics: Sequence[Diagnostic]
    suggestions: Sequence[SuggestedSet] | UnsetType = UNSET
    """Only if requested."""


class EditorSetUp(Struct, frozen=True, kw_only=True):
    """The result per file, `written` or `unchanged`; `note` has the remaining manual steps."""

    ok: bool = True
    schema: str = field(name=SCHEMA_FILE)
    settings: str = field(name=SETTINGS_FILE)
    note: str = ""


def recipe_document(plan: Plan, file: str, graph: str | None = None) -> RecipeDocument:
    """Return the document of a compiled recipe."""
    return RecipeDocument(
        name=plan.name,
        version=plan.version,
        description=plan.description,
        file=file,
        inputs=[convert(one, RecipeInput, from_attributes=True) for one in plan.inputs],
        steps=[_step(step) for step in plan.steps],
        limits=plan.limits,
        graph=UNSET if graph is None else graph,
    )


def _step(step: Step) -> RecipeStep:
    from fanfold.api.graph import label

    inner = step.action.steps if isinstance(step.action, GroupAction) else ()
    body = find_body(AgentBody, step)
    text = label(step)
    return RecipeStep(
        id=step.id,
        type=step.type,
        label=text.subtitle,
        marks=text.marks,
        description=step.description,
        role=None if body is None else body.agent,
        posture=step.posture,
        depends_on=step.depends_on,
        when=step.when,
        for_each=step.for_each,
        max_iterations=step.repeat.max_iterations if step.repeat is not None else None,
        read_set=step.read_set,
        write_set=step.write_set,
        steps=[_step(one) for one in inner],
    )


# -----------------------------------------------------------------------------------------------------------
# Documents of drafted recipes

DraftSource: TypeAlias = Literal["model", "template"]


class DraftRequest(Struct, frozen=True, kw_only=True):
    """A request to draft or change a recipe."""

    task: str
    name: str | None = None
    """The name of the recipe; by default, the planner or the task determines it."""
    refine: FoundRecipe | None = None
    """The recipe that `task` asks to change."""
    use_model: bool = True
    anyway: bool = False
    """Whether to fill in a template even if the task looks like work for one agent."""
    no_model: str = "use_model=False"
    """The caller's option for planning without a model. Hints use it."""


class DraftedSpec(Struct, frozen=True, kw_only=True):
    """A recipe drafted from a task, or the reason why there is none. It was checked, and nothing has run.

    `recipe` is the text that `run_workflow` and `save_workflow` take.
    """

    task: str
    fit: bool
    """False: one agent is better, and there is no recipe."""
    reason: str
    suggestion: str = ""
    """If it is not fit: the command that delegates the task to one agent."""
    source: DraftSource
    name: str = ""
    recipe: str = ""
    rounds: int = 0
    """Number of rounds of the planner."""
    runs: list[str] = []
    """The runs of the planner."""
    document: RecipeDocument | None = None
    agents: Agents | None = None
    cost: Cost | None = None
    warnings: list[str] = []
    difference: str = ""
    """For a refinement: the changes as a unified diff."""
    saved: str = ""
    """The file it was saved to."""
