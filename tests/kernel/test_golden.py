"""Logs written by released kernels must fold for ever, to the same statuses.

Golden logs are made once per release with `python -m tests.kernel.test_golden RELEASE` and never rewritten:
when the format changes, old lines are upcast, not replaced.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fanfold.kernel.events import CloseRequested, EndRequested, ResumeRequested, read_line
from fanfold.kernel.invariants import Auditor
from fanfold.kernel.plan import Plan, RetryPolicy
from fanfold.kernel.transitions import create_state, evolve
from tests.kernel.drive import Drive, agent, approval, call, function, group, plan, repeat

FOLDER = Path(__file__).parent / "golden"
LOGS = sorted(FOLDER.glob("*.jsonl"))


def make_open_run() -> Drive:
    """Children that are added, spoken to, interrupted, resumed and closed."""
    run = Drive(Plan(name="hand", open=True, steps=()), max_concurrency=1)
    run.add(agent("a", write_set=("x",)), agent("b"), function("c", "a"))
    run.send("a", 2)
    run.crash()
    run.resume()
    run.report_run(ResumeRequested("a"))
    run.complete("b")
    run.fail("a")
    run.report_run(CloseRequested("a#2"))
    run.report("a#2", "cancelled")
    run.report("a#2", "closed")
    run.report_run(EndRequested())
    assert run.status() == "partial"
    return run


def make() -> Drive:
    """A run with a child, a map, a loop, an approval, a retry, a failure, a crash and a late result."""
    kid = plan(agent("x"), agent("y", "x", write_set=("a/**",)))
    steps = (
        agent("first", retry=RetryPolicy(attempts=2, backoff_ms=10)),
        agent("map", "first", for_each="list", write_set=("{{item}}",), templated_sets=True),
        group("loop", agent("try"), deps=("first",), repeat=repeat(max_iterations=3), fold=agent("fold")),
        call("child", "kid", "first"),
        approval("ok", "map"),
        function("breaks", "ok"),
        agent("skipped", "breaks"),
        agent("maybe", "ok", when="false"),
    )
    values = {
        "map": 2,
        "map[0]": {"write_set": ("a/b",)},
        "map[1]": {"write_set": ("c",)},
        "loop": [False, True],
    }
    run = Drive(plan(*steps, workflows={"kid": kid}), values={**values, "maybe": False}, max_concurrency=3)
    run.at += 5
    run.fail("first", "transport")
    run.wake()
    run.complete("first")
    run.crash()
    run.resume()
    run.report("map[1]", "completed", execution=1)
    run.complete_all()
    run.report("ok")
    run.fail("breaks")
    assert run.status() == "partial"
    return run


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_a_released_log_still_folds_to_the_statuses_it_had(log: Path) -> None:
    *lines, last = log.read_bytes().splitlines()
    envelope, event = read_line(lines[0])
    state = create_state(event)
    auditor = Auditor()
    assert auditor.observe(envelope, event, state) == []
    for line in lines[1:]:
        envelope, event = read_line(line)
        evolve(state, event)
        assert auditor.observe(envelope, event, state) == []
    found = {n.run.tree_path(n.path): n.status for run in state.runs.values() for n in run.nodes.values()}
    assert found == json.loads(last)


def test_there_are_golden_logs() -> None:
    assert LOGS


if __name__ == "__main__":
    for name, made in (("recipe", make()), ("open-run", make_open_run())):
        target = FOLDER / f"{sys.argv[1]}-{name}.jsonl"
        target.write_bytes(b"\n".join([*made.lines, json.dumps(made.statuses()).encode()]) + b"\n")
