"""The systems whose workflows can be converted, and the detection of each."""

from __future__ import annotations

from collections.abc import Callable

from fanfold.errors import AuthorError
from fanfold.language.convert import crewai
from fanfold.language.convert.archon import ArchonWorkflow
from fanfold.language.convert.claude import ClaudeScript
from fanfold.language.convert.conductor import ConductorWorkflow
from fanfold.language.convert.source import ConversionResult, ForeignFile
from fanfold.language.tree import Mapping, plain

SYSTEMS = ("protoagent", "conductor", "archon", "claude", "crewai")


def _as_it_is(source: ForeignFile) -> ConversionResult:
    """Convert a recipe of protoAgent, in which dependents of a failed step get its error text."""
    recipe = plain(source.tree())
    text = source.text
    if "on_failure" not in recipe:
        recipe["on_failure"] = "inline"
        text = f"{text.rstrip()}\non_failure: inline\n"
    return ConversionResult(recipe, [], text)


_CONVERTERS: dict[str, Callable[[ForeignFile], ConversionResult]] = {
    "protoagent": _as_it_is,
    "conductor": lambda source: ConductorWorkflow(source).convert(),
    "archon": lambda source: ArchonWorkflow(source).convert(),
    "claude": lambda source: ClaudeScript(source).convert(),
    "crewai": crewai.convert,
}


def convert(source: ForeignFile, system: str | None) -> tuple[str, ConversionResult]:
    """Return the system of a file, and the converted recipe."""
    found = system or detect(source)
    return found, _CONVERTERS[found](source)


def detect(source: ForeignFile) -> str:
    """Return the system of a workflow file, by its distinctive keys."""
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
    if any(
        isinstance(node, Mapping) and all(map(node.get, ("description", "expected_output"))) for node in inner
    ):
        return "crewai"
    if any(isinstance(node, Mapping) and node.get("backstory") is not None for node in inner):
        message = f"{source.file} has the agents of a crew, and no tasks"
        raise AuthorError(
            "convert.unknown", message, hint="convert the tasks.yaml beside it, which reads it too"
        )
    message = f"the system of {source.file} cannot be recognised"
    raise AuthorError("convert.unknown", message, hint=f"choose one: --from {'|'.join(SYSTEMS)}")
