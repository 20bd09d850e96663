"""Which files steps really read and changed, and the sets that this suggests.

Rules
* Evidence alone: what merges recorded of a step's changes, and the calls of file tools in its sessions. Who
  ran programs, or Python code, may have touched more; then that is said, and nothing is guessed.
* What the instances of a map touched is written with the item in it (`{{item}}`) where that makes it one set:
  the instances then do not stand in each other's way.
* A suggestion is a proposal for a person. Many files of one folder become a pattern, which may be too wide.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

from fanfold.agents.entries import Response, ToolCall
from fanfold.agents.toolbox import patches
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import LEAF, MAP, Node, Run
from fanfold.kernel.plan import EVERYTHING, JSON, GroupAction, Step
from fanfold.kernel.sets.globs import escape
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.ids import session_id
from fanfold.runtime.records.subagents import is_agent
from fanfold.runtime.views.recipes.documents import SuggestedSet
from fanfold.runtime.views.steps.explanations import UsedSets
from fanfold.sessions.log import read_entries

MAX_LISTED = 6
"""More paths than this become patterns."""
PROGRAMS = "it ran programs"
CODE = "it ran Python code"
FAILED = "it did not complete"
_INSTANCE = re.compile(r"\[\d+\]|#\d+")
_READING = frozenset({"list_files", "search_files"})
_WRITING = frozenset({"write_file", "edit_file", "delete_file"})
_ELSEWHERE = frozenset({"read_output", "fetch_url", "query_workflow", "final_output"})
"""Tools that touch no file of the project."""


class StepTouch:
    """What was seen of one step, over its instances, attempts and runs."""

    def __init__(self) -> None:
        self.runs: set[str] = set()
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self._named: dict[str, set[str]] = {"reads": set(), "writes": set()}
        """The same with the items of a map written as such."""
        self.unseen_reads = ""
        self.unseen_writes = ""

    def look_at(self, tree: RunTree, node: Node) -> None:
        """Take in one instance."""
        self.runs.add(node.run.id)
        reads, writes = self._of_sessions(tree, node)
        rows = tree.memory.changes.get(node.run.id, [])
        isolated = node.step.workspace_mode == "isolated"
        if isolated:
            writes = {row.path for row in rows if row.step == node.path and row.state != "discarded"}
            self.unseen_writes = ""
            if node.status != COMPLETED and not self.writes:
                self.unseen_writes = FAILED  # what it wrote did not come home
        for name, found in (("reads", reads), ("writes", writes)):
            (self.reads if name == "reads" else self.writes).update(found)
            self._named[name].update(_with_item(tree, node, found))

    def _of_sessions(self, tree: RunTree, node: Node) -> tuple[set[str], set[str]]:
        reads: set[str] = set()
        writes: set[str] = set()
        if not is_agent(node):
            self.unseen_reads = self.unseen_writes = PROGRAMS if node.step.type == "command" else CODE
            return reads, writes
        for attempt in range(1, node.attempt + 1):
            for entry in read_entries(tree.store, session_id(node.run.id, node.path, attempt)):
                if isinstance(entry, Response):
                    for call in entry.tool_calls:
                        reads.update(self._read(call.tool, call.args))
                elif isinstance(entry, ToolCall):
                    writes.update(_written(entry.tool, entry.args))
        return reads, writes

    def _read(self, tool: str, args: JSON) -> Iterator[str]:
        given = args if isinstance(args, dict) else {}
        path = _plain(str(given.get("path") or ""))
        if tool in ("read_file", "edit_file"):
            yield escape(path)
        elif tool in _READING:
            glob = str(given.get("glob") or "**/*")
            yield f"{escape(path)}/{glob}" if path else glob
        elif tool == "apply_patch":
            yield from map(escape, _patched(given))
        elif tool not in _ELSEWHERE and tool not in _WRITING:
            self.unseen_reads = self.unseen_writes = PROGRAMS

    def used(self) -> UsedSets:
        """What was touched, as paths."""
        return UsedSets(sorted(self.reads), sorted(self.writes), self.unseen_reads, self.unseen_writes)

    def proposed(self, key: str) -> list[str]:
        """A set that holds all of it."""
        plain = self.reads if key == "reads" else self.writes
        named = self._named[key]
        patterns = named if len(named) < len(plain) else plain
        if key == "writes":
            patterns = {one if "{{" in one else escape(one) for one in patterns}
        return fold_paths(patterns)


def works_on_files(node: Node) -> bool:
    """Whether a step did anything that could have touched a file: who asks, waits or reckons does not."""
    return node.kind == LEAF and bool(node.attempt) and node.step.traits.workspace not in ("none", "claims")


def touched_by(tree: RunTree, run: Run, seen: dict[str, StepTouch]) -> None:
    """Take in what the steps of a run touched, by their path in the recipe."""
    for node in run.nodes.values():
        if works_on_files(node):
            seen.setdefault(recipe_path(node), StepTouch()).look_at(tree, node)


def recipe_path(node: Node) -> str:
    """The path of the step that an instance is of: without items and iterations."""
    return _INSTANCE.sub("", node.path)


def suggest(recipe: str, steps: Iterable[tuple[str, Step]], seen: dict[str, StepTouch]) -> list[SuggestedSet]:
    """Sets that steps could declare, where what they declare is not what they used."""
    found: list[SuggestedSet] = []
    for path, step in steps:
        touched = seen.get(path)
        if touched is not None:
            found += _suggest(recipe, path, step, touched)
    return found


def _suggest(recipe: str, path: str, step: Step, touched: StepTouch) -> Iterator[SuggestedSet]:
    runs = len(touched.runs)
    if step.posture == "writer" and not touched.unseen_writes:
        proposed = touched.proposed("writes")
        note = "" if proposed else "it changed nothing: a role that only reads would do"
        if proposed != sorted(step.write_set):
            yield SuggestedSet(
                recipe=recipe,
                step=path,
                key="write_set",
                declared=list(step.write_set),
                proposed=proposed,
                runs=runs,
                note=note,
            )
    if step.read_set == EVERYTHING and touched.reads and not touched.unseen_reads:
        proposed = touched.proposed("reads")
        if proposed != list(EVERYTHING):
            yield SuggestedSet(
                recipe=recipe,
                step=path,
                key="read_set",
                declared=list(step.read_set),
                proposed=proposed,
                runs=runs,
            )


def plan_steps(steps: Iterable[Step], prefix: str = "") -> Iterator[tuple[str, Step]]:
    """The steps of a plan that do work, by their path in the recipe."""
    for step in steps:
        path = f"{prefix}{step.id}"
        if isinstance(step.action, GroupAction):
            yield from plan_steps(step.action.steps, f"{path}/")
        else:
            yield path, step


def fold_paths(paths: Iterable[str]) -> list[str]:
    """Few paths as they are; many as the folders, and the kinds of files in them, that hold them.

    >>> fold_paths([f"src/m{n}.py" for n in range(9)] + ["README.md"])
    ['README.md', 'src/*.py']
    """
    found = sorted(set(paths))
    if len(found) <= MAX_LISTED:
        return found
    kinds: dict[tuple[str, str], list[str]] = {}
    for path in found:
        kinds.setdefault((posixpath.dirname(path), posixpath.splitext(path)[1]), []).append(path)
    patterns = sorted(
        one
        for (folder, ending), held in kinds.items()
        for one in (held if len(held) < 3 else [posixpath.join(folder, f"*{ending}")])
    )
    if len(patterns) <= MAX_LISTED:
        return patterns
    tops = {path.partition("/")[0] if "/" in path else "" for path in found}
    return sorted(f"{top}/**" if top else "*" for top in tops)


def _with_item(tree: RunTree, node: Node, paths: set[str]) -> set[str]:
    """Paths of a map's instance, with the item's text in them written as `{{item}}`."""
    above: Node | None = node
    while above is not None and above.kind != MAP:
        above = above.parent
    if above is None or not paths:
        return paths
    name = above.step.item_name
    item = tree.values.at(node).get(name)
    if not isinstance(item, str) or not item:
        return paths
    whole = re.compile(rf"(?<![^\W_]){re.escape(item)}(?![^\W_])")  # not a part of a longer word
    return {whole.sub(lambda _: "{{" + name + "}}", path) for path in paths}


def _written(tool: str, args: JSON) -> list[str]:
    given = args if isinstance(args, dict) else {}
    if tool in _WRITING:
        return [_plain(str(given.get("path") or ""))]
    return _patched(given) if tool == "apply_patch" else []


def _patched(given: dict[str, JSON]) -> list[str]:
    try:
        changes = patches.parse(str(given.get("patch") or ""))
    except patches.PatchError:
        return []
    return [name for change in changes for name in (change.old, change.new) if name is not None]


def _plain(path: str) -> str:
    return "" if path in ("", ".") else posixpath.normpath(path)
