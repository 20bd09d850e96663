"""Whether a child run waits for people alone: the kernel knows that of a whole tree only."""

from __future__ import annotations

from fanfold.kernel.lifecycle import ASKED, READY, RUNNING, WAITING
from fanfold.kernel.nodes import LEAF, Run, State
from fanfold.runtime.records.values import is_below


def only_asks(state: State, top: Run) -> bool:
    """Whether approvals are all that goes on in a child run and the runs below it."""
    asks = False
    for run in state.runs.values():
        if not is_below(run, top):
            continue
        for node in run.nodes.values():
            if node.status == WAITING and (node.step.traits.waits is not None or node.reason == ASKED):
                asks = True
            elif node.kind == LEAF and node.status in (READY, RUNNING, WAITING):
                return False
    return asks
