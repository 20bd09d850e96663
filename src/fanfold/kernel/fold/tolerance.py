"""Failures that a run may have had and still call itself completed.

A failure is tolerated
* if a later iteration of a loop around it converged, or that loop goes on although it never did;
* if its step is `inline` and somebody read what it left instead of an output: a step that completed, or the
  output of the run or group it stands in.
What fails because of a failure inside it is tolerated together with that. Everything is read off the tree
when a run ends, so only runs in which something failed pay for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.kernel.lifecycle import COMPLETED, SKIPPED, UNSUCCESSFUL
from fanfold.kernel.nodes import LOOP, MAP, SCOPE, Loop, Node, Run


def is_unsuccessful(node: Node) -> bool:
    """Whether a step failed, timed out, was cancelled, or was skipped for a failure."""
    return node.status in UNSUCCESSFUL or (node.status == SKIPPED and node.reason == "failure")


def untolerated(run: Run) -> Iterator[Node]:
    """The steps of a run, all of them ended, whose failure its end has to tell."""
    return (node for node in run.nodes.values() if is_unsuccessful(node) and not is_tolerated(node))


def is_tolerated(node: Node) -> bool:
    """Whether a step that did not succeed leaves its run as good as if it had."""
    current, parent = node, node.parent
    while parent is not None and parent.run is node.run:
        if isinstance(parent, Loop) and _went_on_after(parent, current):
            return True
        inline = current.step.on_failure == "inline" and current.status in UNSUCCESSFUL
        if inline and parent.kind in (SCOPE, MAP) and _is_read(current if parent.kind == SCOPE else parent):
            return True
        current, parent = parent, parent.parent
    return False


def _went_on_after(loop: Loop, body: Node) -> bool:
    if loop.status != COMPLETED or body.step is loop.step.fold:
        return False
    return loop.exhausted or body is not loop.children[loop.iteration - 1]


def _is_read(node: Node) -> bool:
    """Whether what an inline step left was given to somebody who made something of it."""
    scope = node.parent
    if scope is None or scope.kind != SCOPE:
        return False
    prefix = f"{scope.path}/" if scope.path else ""
    return any(
        node.run.nodes[prefix + name].status == COMPLETED if name else _gave_output(node.run, scope)
        for name in node.step.read_by
    )


def _gave_output(run: Run, scope: Node) -> bool:
    around = scope.parent
    looped = around is not None and around.kind == LOOP and around.status == COMPLETED
    return scope is run.scope or scope.status == COMPLETED or looped
