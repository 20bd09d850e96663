"""Orders and outcomes are data: a run whose steps are sent as bytes does the same as any other."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold import function
from fanfold.cli.main import main
from fanfold.steps.executor import StepExecutor
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import Merge
from fanfold.steps.step_type import decode_order
from fanfold.store.sqlite import SqliteStore
from tests.runtime.running import run
from tests.test_examples import EXAMPLES, STATUS, make_repository, written_commands

VARYING = r'"(?:[0-9a-hjkmnp-tv-z]{12}|s[0-9a-f]{12}(?:-\w+)?|m?[0-9a-f]{16,64})"|"(?:due_)?at":\d+'
"""Ids of runs, sessions, receipts and blobs, and times."""
HEAD = """
name: every-type
inputs: [{name: topic, default: bees}]
limits: {max_concurrency: 1}
output: "{{steps.both.output}}"
steps:
"""
PLAIN = """
  - {id: look, agent: explorer, prompt: "look at {{inputs.topic}}"}
  - {id: asked_again, agent: explorer, prompt: "and now?", continue: look}
  - {id: count, handler: count_words, inputs: {text: "{{steps.look.output}} and more"}}
  - {id: both, set: {n: "1 + 1", words: steps.count.output.words}}
  - {id: each, for_each: "[1, {'a': [2.5, null]}]", agent: explorer, prompt: "item {{item}}"}
  - {id: until, repeat: {until: "iteration == 2"}, agent: explorer, prompt: "round {{iteration}}"}
  - {id: odd, agent: explorer, prompt: x, output_schema: {type: integer}, on_failure: inline}
  - {id: sure, approve: "sure?", timeout: 20ms, default: approve, depends_on: [both, each, until, odd]}
"""
FILES = """
  - {id: write, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: go, depends_on: sure}
  - {id: show, shell: "cat *.md", depends_on: write}
  - {id: broken, run: ["false"], on_failure: inline, depends_on: show}
"""
SCRIPT = """
default: ok from {{step}}
steps:
  write: {output: written, tool_calls: [{tool: write_file, args: {path: a.md, content: "hello\\n"}}]}
"""


@contextmanager
def sent_as_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Order[Job], Outcome]]]:
    """Encode and decode every order on its way to the executor, and every outcome on its way back."""
    seen: list[tuple[Order[Job], Outcome]] = []
    perform = StepExecutor.perform

    async def at_a_distance(self: StepExecutor, order: Order[Job], *channel: Any) -> Outcome:
        arrived = decode_order(msgspec.json.encode(order))
        assert arrived == order
        outcome = await perform(self, arrived, *channel)
        returned = msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome)
        assert returned == outcome
        seen.append((arrived, returned))
        return returned

    with monkeypatch.context() as patch:
        patch.setattr(StepExecutor, "perform", at_a_distance)
        yield seen


def log_of(folder: Path, run_id: str) -> list[str]:
    """The events of a run without times and without the names that differ from run to run."""
    store = SqliteStore(folder / ".fanfold")
    try:
        tree = list(store.tree(run_id))
    finally:
        store.close()
    encoded = (msgspec.json.encode((one.type, one.path, one.data)).decode() for one in tree)
    events = [event.replace(str(folder), "…") for event in encoded]
    names: dict[str, str] = {}

    def named(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"name-{len(names)}")

    return [re.sub(VARYING, named, event) for event in events]


@function
def count_words(text: str) -> dict[str, Any]:
    return {"words": len(text.split()), "half": 0.5}


def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str) -> list[tuple[Order[Job], Outcome]]:
    """Run a recipe in this process and at a distance; both have the same log."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    plain = run(here, recipe, SCRIPT)
    with sent_as_bytes(monkeypatch) as seen:
        sent = run(there, recipe, SCRIPT)
    assert log_of(there, sent.run_id) == log_of(here, plain.run_id)
    assert sent.output == plain.output
    return seen


def test_a_run_whose_orders_are_sent_as_bytes_has_the_same_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = compare(tmp_path, monkeypatch, f"{HEAD}{PLAIN}")
    assert {order.step.type for order, _ in seen} == {"agent", "function"}
    (again,) = [order for order, _ in seen if order.path == "asked_again"]
    assert [turn.path for turn in again.turns] == ["look"]


@pytest.mark.full
def test_orders_of_programs_and_isolated_writers_are_sent_as_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = compare(tmp_path, monkeypatch, f"{HEAD}{PLAIN}{FILES}")
    assert any(isinstance(fact, Merge) for _, outcome in seen for fact in outcome.evidence)


@pytest.mark.full
@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_every_order_of_the_examples_is_sent_as_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / folder.name
    shutil.copytree(folder, project)
    if "deliver:" in (project / "recipe.yaml").read_text():
        make_repository(project, monkeypatch)
    monkeypatch.chdir(project)
    with sent_as_bytes(monkeypatch) as seen:
        for command, leads_to in written_commands(project / "recipe.yaml"):
            assert main(shlex.split(command)[1:]) == STATUS.get(leads_to, 0), command
    assert seen
