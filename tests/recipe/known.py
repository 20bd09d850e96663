"""What the recipes of these tests are compiled against."""

from __future__ import annotations

from pathlib import Path

from fanfold.recipe.compile import Compiled, RoleFacts, Surroundings, compile_recipe
from fanfold.recipe.library import Library

HERE = Path(__file__).parent
WORKFLOWS = HERE / "workflows"
"""Sub-workflows that the recipes of these tests call by name."""

ROLES = {
    "default": RoleFacts(read_only=False),
    "worker": RoleFacts(read_only=False, tools=("read_file", "write_file", "shell")),
    "explorer": RoleFacts(read_only=True, versions=("1", "2")),
    "researcher": RoleFacts(read_only=True),
    "planner": RoleFacts(read_only=True),
    "critic": RoleFacts(read_only=True),
    "summarizer": RoleFacts(read_only=True),
    "templated": RoleFacts(read_only=True, prompt_template="Judge what follows."),
    "guide": RoleFacts(read_only=True, prompt_template="Show the way to {{inputs.place}}."),
}
HANDLERS = ("prepare_data", "count_words")


def surroundings(project: Path = WORKFLOWS) -> Surroundings:
    library = Library(project, None, HERE / "no-such-folder", top=project.parent)
    return Surroundings(ROLES, HANDLERS.__contains__, lambda: HANDLERS, library)


def compile_text(text: str, file: str = "recipe.yaml") -> Compiled:
    return compile_recipe(text.encode(), file, surroundings())


def compile_file(file: Path) -> Compiled:
    return compile_recipe(file.read_bytes(), str(file), surroundings())


def codes(compiled: Compiled) -> list[str]:
    return [diagnostic.code for diagnostic in compiled.report.diagnostics]
