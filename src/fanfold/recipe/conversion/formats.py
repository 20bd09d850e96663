"""The systems whose workflows can be converted, and how each is told from the others."""

from __future__ import annotations

from collections.abc import Callable

from fanfold.errors import AuthorError
from fanfold.recipe.conversion import archon, claude, conductor, crewai
from fanfold.recipe.conversion.source import Converted, ForeignFile
from fanfold.text.trees.tree import Mapping, plain

SYSTEMS = ("protoagent", "conductor", "archon", "claude", "crewai")


def _as_it_is(source: ForeignFile) -> Converted:
    """protoAgent's recipes are recipes: its forms are part of the language."""
    return Converted(plain(source.tree()), [])


_CONVERTERS: dict[str, Callable[[ForeignFile], Converted]] = {
    "protoagent": _as_it_is,
    "conductor": conductor.convert,
    "archon": archon.convert,
    "claude": claude.convert,
    "crewai": crewai.convert,
}


def convert(source: ForeignFile, system: str | None) -> tuple[str, Converted]:
    """The system a file is from, and the recipe that was made of it."""
    found = system or detect(source)
    return found, _CONVERTERS[found](source)


def detect(source: ForeignFile) -> str:
    """Whose workflow a file is, by what only theirs have."""
    if source.file.endswith((".js", ".mjs", ".ts")):
        return "claude"
    top = source.tree()
    if top.get("nodes") is not None:
        return "archon"
    if top.get("agents") is not None and top.get("workflow") is not None:
        return "conductor"
    if top.get("steps") is not None:
        return "protoagent"
    tasks = top.get("tasks")
    inner = [node for _, node in (tasks if isinstance(tasks, Mapping) else top).entries]
    if any(isinstance(node, Mapping) and node.get("description") is not None for node in inner):
        return "crewai"
    if any(isinstance(node, Mapping) and node.get("backstory") is not None for node in inner):
        message = f"{source.file} has the agents of a crew, and no tasks"
        raise AuthorError(
            "convert.unknown", message, hint="convert the tasks.yaml beside it, which reads it too"
        )
    message = f"it cannot be told which system {source.file} is from"
    raise AuthorError("convert.unknown", message, hint=f"say so: --from {'|'.join(SYSTEMS)}")
