"""Hashes of a state: two folds of one log must agree on them, on any machine and under any hash seed."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from fanfold.kernel.nodes import State

TRACE_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode


def fingerprint(state: State) -> str:
    """A hash of everything that matters in a state; two folds of one log must agree on it."""
    digest = blake2b(digest_size=16)
    for run in state.runs.values():
        digest.update(
            repr(
                (
                    run.id,
                    run.path,
                    run.status,
                    run.ending,
                    run.output,
                    run.completed,
                    run.unsuccessful,
                    run.agents,
                    run.growing,
                )
            ).encode()
        )
        for path, node in run.nodes.items():
            row = (
                path, node.status, node.reason, node.attempt, node.execution, node.lost, node.stopping,
                node.output, node.unmet, node.holding, node.reserving, node.ready_seq, node.reservation,
                node.closing, node.closed, node.agreed,
            )  # fmt: skip
            digest.update(repr(row).encode())
    ledger = state.ledger
    totals = (
        state.now, state.clock, state.epoch, state.live, state.executing, state.agents, state.instances,
        state.approvals, state.asked, state.delays, state.backoffs, state.interrupted, state.late,
        state.pausing, state.max_agents, state.max_steps, list(state.held),
        ledger.spent_tokens, ledger.spent_micro_usd, ledger.reserved_tokens, ledger.reserved_micro_usd,
        ledger.max_tokens, ledger.max_micro_usd, tuple(repr(command) for command in state.agenda),
        sorted(timer[:3] for timer in state.timers), sorted(state.run_deadlines),
        sorted(entry[:2] for entry in state.scope_deadlines),
    )  # fmt: skip
    digest.update(repr(totals).encode())
    return digest.hexdigest()


def trace(state: State, events: Iterable[tuple[str, Any]]) -> bytes:
    """A hash of the sums of a state, and of the runs and steps that some events (run, data) were about.

    It costs what the events touched and not what the plan weighs, so that each commit can carry one. What
    goes into it is part of the log's format, like the events themselves.
    """
    ledger = state.ledger
    rows: list[tuple[Any, ...]] = [
        (
            state.clock, state.epoch, state.live, state.agents, state.instances, ledger.spent_tokens,
            ledger.spent_micro_usd, ledger.reserved_tokens, ledger.reserved_micro_usd,
        )
    ]  # fmt: skip
    for name, data in events:
        run, step = state.runs[name], getattr(data, "step", None)
        node = run.nodes.get(step) if isinstance(step, str) else None
        if node is None:
            rows.append((name, run.status, run.output, run.completed, run.unsuccessful, run.agents))
        else:
            row = (step, node.status, node.attempt, node.execution, node.output, node.unmet, node.ready_seq)
            rows.append(row)
    return blake2b(_encode(rows), digest_size=TRACE_BYTES).digest()
