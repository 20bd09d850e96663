"""What the recipes of these tests are compiled against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fanfold.steps.step_type  # noqa: F401  # it passes the step types to the compiler
from fanfold.agents.backend_registry import BackendRegistry, Machine
from fanfold.agents.redaction import Redactor
from fanfold.agents.role import Role
from fanfold.agents.roles import Registry
from fanfold.language.compile import CompileResult, compile_recipe
from fanfold.language.draft import CompileContext, OwnCommand
from fanfold.language.library import Library

HERE = Path(__file__).parent
WORKFLOWS = HERE / "workflows"
"""Sub-workflows that the recipes of these tests call by name."""


def reader(name: str, **more: Any) -> Role:
    return Role(name=name, description="", sandbox_mode="read-only", **more)


ROLES = Registry(
    [
        Role(name="default", description=""),
        Role(name="worker", description="", tools=("read_file", "write_file", "shell")),
        reader("explorer", version="1"),
        reader("explorer", version="2"),
        reader("researcher"),
        reader("planner"),
        reader("critic"),
        reader("summarizer"),
        reader("templated", prompt_template="Judge what follows."),
        reader("guide", prompt_template="Show the way to {{inputs.place}}."),
        reader("elsewhere", backend="nowhere"),
    ],
    aliases={},
    notices=(),
)
BACKENDS = BackendRegistry((), Machine(home=HERE, config={}, providers=(), redactor=Redactor()))
HANDLERS = ("prepare_data", "count_words")


def surroundings(project: Path = WORKFLOWS) -> CompileContext:
    library = Library(project, None, HERE / "no-such-folder", top=project.parent)
    return CompileContext(
        ROLES,
        HANDLERS.__contains__,
        lambda: HANDLERS,
        library,
        backend_problem=BACKENDS.problem,
        own_command=lambda gate: OwnCommand((f"run-{gate}",), "somewhere"),
    )


def compile_text(text: str, file: str = "recipe.yaml") -> CompileResult:
    return compile_recipe(text.encode(), file, surroundings())


def compile_file(file: Path) -> CompileResult:
    return compile_recipe(file.read_bytes(), str(file), surroundings())


def codes(compiled: CompileResult) -> list[str]:
    return [diagnostic.code for diagnostic in compiled.report.diagnostics]
