"""From what the user typed to compiled recipes: shared by every command that takes RECIPE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fanfold.cli.command import Call
from fanfold.recipe.compile import compile_recipe
from fanfold.recipe.diagnostics import Diagnostic, Position, Range, Source, render_text
from fanfold.recipe.refusal import RecipeRefused
from fanfold.recipe.surroundings import Found
from fanfold.wiring import Wired, wire

if TYPE_CHECKING:
    from fanfold.kernel.plan import Plan


class Opened:
    """One recipe, found and compiled; `plan` is None when it has errors."""

    def __init__(
        self,
        ref: str,
        found: Found,
        plan: Plan | None,
        diagnostics: Sequence[Diagnostic],
        sources: Mapping[str, Source],
    ) -> None:
        self.ref = ref
        self.found = found
        self.plan = plan
        self.diagnostics = tuple(diagnostics)
        self.sources = sources
        self.fixed = 0

    @property
    def ok(self) -> bool:
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)

    def rendered(self, colour: bool) -> str:
        """The diagnostics in compiler style."""
        return render_text(self.diagnostics, self.sources, colour)

    def runnable(self) -> Plan:
        """The plan, or `RecipeRefused`."""
        if self.plan is None or not self.ok:
            raise RecipeRefused(self.ref, self.diagnostics, self.sources)
        return self.plan


class Project:
    """What a project folder offers to commands."""

    def __init__(self, wired: Wired) -> None:
        self.wired = wired

    def find(self, ref: str) -> tuple[str, Found]:
        """A recipe by name or file; a file is looked for here first, then in the project."""
        return ref, self.wired.find(ref)

    def compile(self, found: tuple[str, Found]) -> Opened:
        ref, recipe = found
        compiled = compile_recipe(recipe.data, recipe.file, self.wired.around)
        diagnostics = [*_shadows(recipe), *compiled.report.diagnostics]
        return Opened(ref, recipe, compiled.plan, diagnostics, compiled.sources)


def _shadows(recipe: Found) -> Iterator[Diagnostic]:
    """One name in two places is always said, though neither file is wrong."""
    if recipe.shadowed:
        start = Range(Position(1, 1), Position(1, 1))
        message = f"{recipe.file} shadows {', '.join(recipe.shadowed)}"
        yield Diagnostic("recipe.shadowed", "warning", message, recipe.file, start)


def role_warnings(project: Project) -> list[Diagnostic]:
    """Role files that are shadowed or cannot be used; part of every report, since steps rely on them."""
    return [
        Diagnostic(n.code, "warning", n.message, n.file, Range(Position(n.line, 1), Position(n.line, 1)))
        for n in project.wired.roles.notices
        if n.severity == "warning"
    ]


def open_project(call: Call) -> Project:
    """Wire the project that `--project` names."""
    return Project(wire(call.project))


def resolve_all(project: Project, refs: Sequence[str]) -> list[tuple[str, Found]]:
    """Find every recipe before any is looked at: a mistyped name should not cost a long report."""
    return [project.find(ref) for ref in refs]


def open_recipe(call: Call, ref: str) -> tuple[Project, Opened]:
    """Find and compile one recipe."""
    project = open_project(call)
    return project, project.compile(project.find(ref))
