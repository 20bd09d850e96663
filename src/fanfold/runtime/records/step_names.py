"""What a step is called in the commands that messages suggest: as it must be typed."""

from __future__ import annotations

import shlex

from fanfold.kernel.nodes import Node


def root_of(node: Node) -> str:
    """The id of the run that a person started."""
    run = node.run
    while run.parent is not None:
        run = run.parent
    return run.id


def typed_path(node: Node) -> str:
    """The path of a step from the root of its tree, quoted for a shell."""
    return shlex.quote(node.run.tree_path(node.path))
