"""Which artifacts a step sees: those of the steps that it comes after by its edges, and of earlier rounds.

Follows from the log alone, so that whoever takes a run over, and a key of the cache, sees the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fanfold.kernel.nodes import SCOPE, Loop, Node
from fanfold.runtime.records.memory import Memory
from fanfold.workspace.artifacts import NOTHING_SEEN, Artifact, ArtifactView, family


def artifacts_for(memory: Memory, node: Node) -> ArtifactView:
    """What of its run's artifacts a step that is about to start sees."""
    published = memory.artifacts.get(node.run.id)
    if not published:
        return NOTHING_SEEN
    tops = tuple(_before(node))
    seen = [one for step, one in published.values() if any(_is_at(step, top) for top in tops)]
    own = family(node.path)
    taken = {path: step for path, (step, _) in published.items() if family(step) != own}
    return ArtifactView(tuple(sorted(seen, key=lambda one: one.path)), taken)


def kept_artifacts(memory: Memory, run_id: str, kept: Collection[str]) -> dict[str, list[Artifact]]:
    """By step: what of a run's artifacts a fork has that keeps the output of these steps."""
    found: dict[str, list[Artifact]] = {}
    for step, one in memory.artifacts.get(run_id, {}).values():
        if any(_is_at(step, top) for top in kept):
            found.setdefault(step, []).append(one)
    return found


def _is_at(step: str, top: str) -> bool:
    """Whether a step is the one at a path, or inside it."""
    return step == top or (step.startswith(top) and step[len(top)] in "/[#")


def _before(node: Node) -> Iterator[str]:
    """The paths of everything that ends before a step, by its edges or those of what is around it."""
    current = node
    while current.parent is not None and current.parent.run is node.run:
        parent = current.parent
        if parent.kind == SCOPE:
            yield from _edges(current)
        elif isinstance(parent, Loop):
            yield from (child.path for child in parent.children[: max(0, current.order[-1] - 1)])
        current = parent


def _edges(node: Node) -> Iterator[str]:
    prefix = node.path.removesuffix(node.step.id)
    stack = [*node.step.depends_on]
    found = set(stack)
    while stack:
        name = stack.pop()
        yield prefix + name
        other = node.run.nodes.get(prefix + name)
        for more in other.step.depends_on if other is not None else ():
            if more not in found:
                found.add(more)
                stack.append(more)
