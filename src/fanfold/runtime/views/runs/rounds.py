"""Rounds of loops that did not pass: all steps of such a round worked, and the round failed."""

from __future__ import annotations

from fanfold.kernel.lifecycle import COMPLETED, FAILED, TERMINAL
from fanfold.kernel.nodes import Loop, Node, Scope
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.reviews import against
from fanfold.runtime.records.values import VERIFY, is_phase, last_iteration
from fanfold.text.excerpts import CUT
from fanfold.text.terminal import one_line

MAX_WHY_CHARS = 100
MAX_LINES = 10


def did_not_pass(node: Node) -> bool:
    """Whether a node is a round that completed, and was not enough: its loop went on, or failed."""
    loop = node.parent
    if not isinstance(loop, Loop) or (node is loop.children[-1] and node.step is loop.step.fold):
        return False
    if node.status != COMPLETED:
        return False
    newest = node is loop.children[loop.iteration - 1]
    return not newest or (not loop.converged and (loop.exhausted or loop.status in TERMINAL - {COMPLETED}))


def why_not(tree: RunTree, node: Node) -> str:
    """What was said against a round of a phase, in a few words; empty for loops that are no phases."""
    if not isinstance(node, Scope):
        return ""
    said = []
    gate = next((child for child in node.children if child.step.id == VERIFY), None)
    if gate is not None and gate.status == COMPLETED:
        said.append(verdict_in_words(tree.values.output(gate)))
    review = tree.values.review(node)
    if review is not None:
        said.append(against(review))
    return ", ".join(word for word in said if word)


def last_objections(tree: RunTree, node: Node) -> list[str]:
    """What was said against the last round of a phase that never passed, its last lines behind its first;
    empty where a step failed, which says so itself."""
    if not isinstance(node, Loop) or node.status != FAILED or not is_phase(node):
        return []
    if not did_not_pass(last_iteration(node)):
        return []
    said = tree.values.said_of(last_iteration(node))
    lines = [line for line in said.splitlines() if line.strip()] if isinstance(said, str) else []
    return lines if len(lines) <= MAX_LINES else [lines[0], CUT, *lines[-(MAX_LINES - 2) :]]


def verdict_in_words(output: object) -> str:
    """What a gate said, where it was not that the phase passes."""
    if not isinstance(output, dict):
        return ""
    if output.get("exit_code"):
        return f"exit status {output['exit_code']}"
    if output.get("pass") is False:
        return one_line(f"the critic: {output.get('feedback') or 'no'}", MAX_WHY_CHARS)
    if output.get("decision") not in (None, "approve"):
        comment = f": {output['comment']}" if output.get("comment") else ""
        return one_line(f"answered {output['decision']}{comment}", MAX_WHY_CHARS)
    return ""
