"""What pages about a run are made of: its head, its table, its timeline; none of them carries an output."""

import asyncio
from pathlib import Path

import msgspec

from fanfold.api.run_documents import RunHeadDocument, run_head
from fanfold.api.run_options import Options
from fanfold.api.step_documents import RunTable, Timeline, run_table, timeline
from fanfold.engine.run_tree import RunTree
from tests.runtime.running import client
from tests.work import PATIENCE_S

RECIPE = """\
name: pages
steps:
  - {id: first, agent: explorer, prompt: go, retry: {attempts: 2, backoff_ms: 1, on: [transport]}}
  - {id: each, agent: explorer, for_each: "[1, 2, 3]", prompt: "{{item}}", depends_on: [first]}
  - {id: gate, approve: "Go on?", depends_on: [each]}
  - {id: last, agent: explorer, prompt: end, depends_on: [gate]}
"""
SCRIPT = """\
default: "LONG OUTPUT"
steps:
  first:
    - {fail: {class: transport, message: reset}}
    - {output: fine, usage: {input_tokens: 7, output_tokens: 5}}
"""


def pages(folder: Path) -> tuple[RunHeadDocument, RunTable, Timeline]:
    """Of a run that waits for a person."""

    async def work() -> tuple[RunHeadDocument, RunTable, Timeline]:
        async with client(folder) as project:
            handle = await project.start(RECIPE, options=Options(permission="auto", script=SCRIPT))
            handle.leave_when_waiting()
            await asyncio.wait_for(handle.wait(), PATIENCE_S)
            store = project.project.store
            tree = RunTree.load(store, handle.id)
            now = tree.state.now + 60_000
            drawn = timeline(tree, tree.root, store.tree(handle.id), now)
            head = run_head(tree, tree.root)
            return head, run_table(tree, tree.root, now), drawn

    return asyncio.run(work())


def test_the_head_counts_the_work_and_knows_the_cap(tmp_path):
    head, _, _ = pages(tmp_path)
    assert head.status == "waiting"
    assert head.counts == {"completed": 4, "waiting": 1, "pending": 1}
    assert head.seq == head.reach > 0
    assert (head.cap.usd, head.breadcrumbs) == (None, [])


def test_the_table_has_every_instance_and_no_output(tmp_path):
    _, table, _ = pages(tmp_path)
    assert [row.path for row in table.rows] == [
        "first",
        "each",
        "each[0]",
        "each[1]",
        "each[2]",
        "gate",
        "last",
    ]
    first, each, *_ = table.rows
    assert (first.attempts, first.input_tokens, first.output_tokens) == (2, 7, 5)
    assert (each.kind, each.depth, table.rows[2].depth) == ("map", 0, 1)
    assert "LONG OUTPUT" not in msgspec.json.encode(table).decode()


def test_the_timeline_shows_each_attempt_and_what_still_waits(tmp_path):
    _, _, drawn = pages(tmp_path)
    spans = {row.path: row.spans for row in drawn.rows}
    assert [(span.attempt, span.status) for span in spans["first"]] == [(1, "failed"), (2, "completed")]
    assert [(span.status, span.end) for span in spans["gate"]] == [("waiting", None)]
    assert spans["last"] == []
    assert len(spans["each"]) == 1
    for row in drawn.rows:
        for span in row.spans:
            assert span.end is None or span.start <= span.end <= drawn.until


def test_a_long_time_in_which_nothing_ran_is_a_gap(tmp_path):
    _, _, drawn = pages(tmp_path)
    (gap,) = drawn.gaps
    assert gap.end == drawn.until
    assert gap.end - gap.start > 50_000
