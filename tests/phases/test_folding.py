"""Folds: full outputs as files, trees of digests where one window is too small, extracts where all fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.agents.entries import Response
from fanfold.api.archives import verify
from fanfold.api.history import transcript
from fanfold.api.report import executive_report
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import session_id
from fanfold.steps.phases import WINDOW_CHARS, pack, show
from fanfold.steps.records import part_id
from fanfold.steps.values import Piece
from fanfold.wiring import wire
from tests.phases.published import read_published
from tests.runtime.running import client, run
from tests.work import PATIENCE_S

WIDE = """
name: wide
inputs: [{name: parts, type: array, required: true}]
phases:
  - id: look
    kind: understand
    for_each: inputs.parts
    tasks: [{id: scan, agent: explorer, prompt: "Scan {{item}}"}]
  - id: use
    tasks: [{id: t, agent: explorer, prompt: "Use it"}]
"""


def wide(folder: Path, many: int, steps: dict[str, Any], text: str = "x" * 600, **options: Any) -> Result:
    script = json.dumps({"steps": {"look#1/scan[*]": text, "use#1/t": "used", "use/fold": "u", **steps}})
    given = {"max_agents": 2_000, "max_concurrency": 16, **options}
    return run(folder, WIDE, script, options=given, parts=list(range(many)))


def checked_report(folder: Path, result: Result) -> str:
    project = wire(folder)
    try:
        assert not verify(project.store, result.run_id).violations
        return executive_report(project.view(result.run_id))
    finally:
        project.close()


def transcript_of_use(folder: Path, result: Result) -> str:
    project = wire(folder)
    try:
        return msgspec.json.encode(transcript(project, result.run_id, "use#1/t", None)).decode()
    finally:
        project.close()


@pytest.mark.full
def test_five_hundred_outputs_are_folded_in_a_tree_within_the_window(tmp_path: Path):
    result = wide(tmp_path, 500, {"look/fold/part[*]": "part {{step}}", "look/fold": "all of it"})
    assert result.status == "completed"
    assert result.steps["look"].output["summary"] == "all of it"
    parts = 500 * 600 // WINDOW_CHARS + 1
    assert result.usage.agents == 500 + 1 + parts + 2, "the sessions of the tree count"
    report = checked_report(tmp_path, result)
    assert "fold.left_out" not in report
    assert len(list((tmp_path / ".fanfold/ctx/wf" / result.run_id / "look").iterdir())) == 501


def test_many_items_have_one_line_of_the_report_and_those_that_failed_their_own(tmp_path: Path):
    broken = {"fail": {"class": "agent", "message": "no words"}}
    result = wide(tmp_path, 30, {"look#1/scan[*]": "x", "look#1/scan[7]": broken})
    lines = [line for line in checked_report(tmp_path, result).splitlines() if line.startswith("- look#1/")]
    assert lines[0].startswith("- look#1/scan (explorer): failed, items: 29 completed, 1 failed")
    assert [line.split()[1] for line in lines[1:]] == ["look#1/scan[7]"]


def test_a_fold_that_is_cancelled_counts_and_shows_what_its_parts_spent(tmp_path: Path):
    spent = {"output": "a part", "usage": {"input_tokens": 1_000, "output_tokens": 10}}
    slow = {"output": "late", "delay_ms": 60_000}
    steps = {"look#1/scan[*]": "x" * 600, "look/fold/part[*]": slow, "look/fold/part[0]": spent}
    options = Options(permission="auto", script=json.dumps({"steps": steps}), max_agents=2_000)

    async def work() -> tuple[Result, object]:
        async with client(tmp_path) as opened:
            handle = await opened.start(WIDE, options=options, inputs={"parts": list(range(250))})
            part = part_id(session_id(handle.id, "look/fold", 1), 0)
            store = opened.project.store
            with store.follow(handle.id) as written:
                while not any(isinstance(one, Response) for one in read_entries(store, part)):
                    await written.wait()
            await handle.cancel()
            result = await handle.result()
            told = transcript(opened.project, handle.id, part, None)
            return result, told.entries[-1].output

    result, said = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert result.status == "cancelled"
    counted = result.steps["look/fold"].usage
    assert counted is not None
    assert counted.input_tokens == result.usage.input_tokens == 1_000
    assert said == "a part"
    checked_report(tmp_path, result)


@pytest.mark.full
def test_parts_without_a_summary_or_space_are_named_in_the_report(tmp_path: Path):
    broken = {"fail": {"class": "agent", "message": "no words"}}
    steps = {"look/fold/part[*]": "a part", "look/fold/part[1]": broken, "look/fold": "all of it"}
    result = wide(tmp_path, 500, steps)
    assert result.status == "completed"
    warning = result.steps["look/fold"].warning
    assert warning is not None
    assert (warning.code, "no words" in warning.message) == ("fold.left_out", True)
    assert "scan[" in warning.message
    assert "only extracts of 1 part" in checked_report(tmp_path, result)


def test_a_single_output_larger_than_the_window_is_cut_in_the_open(tmp_path: Path):
    long = "a" * (WINDOW_CHARS + 5_000)
    result = wide(tmp_path, 3, {"look/fold/part[*]": "a part", "look/fold": "all of it"}, long)
    warning = result.steps["look/fold"].warning
    assert warning is not None
    assert "15,000 characters" in warning.message
    kept = (tmp_path / ".fanfold/ctx/wf" / result.run_id / "look/scan[0].md").read_text()
    assert kept == long, "the output itself is whole"


@pytest.mark.full
def test_no_more_agents_sum_up_than_the_run_may_have(tmp_path: Path):
    result = wide(tmp_path, 500, {"look/fold/part[*]": "a part", "look/fold": "all"}, max_agents=506)
    assert result.status == "completed"
    assert result.usage.agents <= 506 + 2
    warning = result.steps["look/fold"].warning
    assert warning is not None
    assert "no agent was left" in warning.message


@pytest.mark.full
def test_a_fast_model_that_is_down_leaves_an_extract_that_says_so(tmp_path: Path):
    down = {"fail": {"class": "transport", "message": "connection refused"}}
    result = wide(tmp_path, 500, {"look/fold/part[*]": down, "look/fold": down})
    assert result.status == "completed"
    summary = result.steps["look"].output["summary"]
    assert summary.startswith("(Extract of the outputs; they could not be summarized.)")
    assert len(summary) < 2_000
    report = checked_report(tmp_path, result)
    assert "connection refused" in report
    assert "fold.extract" in report


def test_agents_read_what_their_own_run_published(tmp_path: Path):
    listing = {"tool": "list_files", "args": {"path": "ctx/wf"}}
    steps = {"look/fold": "sum", "use#1/t": {"output": "x", "tool_calls": [listing]}}
    result = wide(tmp_path, 3, steps, "the whole text")
    assert result.status == "completed"
    told = transcript_of_use(tmp_path, result)
    assert f"ctx/wf/{result.run_id}/look/scan[2].md" in told
    read = read_published(tmp_path / ".fanfold", result.run_id, "ctx/wf/RUN/look/a.md")
    assert read == {"path": f"ctx/wf/{result.run_id}/look/a.md", "text": f"of {result.run_id}", "bytes": 15}


def test_agents_read_nothing_of_other_runs(tmp_path: Path):
    result = wide(tmp_path, 3, {"look/fold": "sum"}, "the whole text")
    path = f"ctx/wf/{result.run_id}/look/scan[0].md"
    reading = {"tool": "read_file", "args": {"path": path}}
    denied = wide(tmp_path, 3, {"look/fold": "sum", "use#1/t": {"output": "x", "tool_calls": [reading]}})
    told = transcript_of_use(tmp_path, denied)
    assert "does not exist" in told
    assert "the whole text" not in told


@pytest.mark.parametrize(
    "path",
    ["ctx/wf/../../config.toml", "ctx/wf/RUN/../other/look/a.md", "ctx/wf/other/look/a.md", "ctx/wfx/a"],
)
def test_no_path_leads_out_of_what_was_published(tmp_path: Path, path: str):
    assert read_published(tmp_path, "own", path) is None


def test_pieces_are_packed_in_order_and_every_cut_is_counted():
    pieces = [Piece(f"p{n}", "x" * 300) for n in range(10)] + [Piece("long", "y" * 3_000)]
    groups, left_out = pack(pieces, 1_000)
    assert [one.name for group in groups for one in group] == [one.name for one in pieces]
    assert left_out == 2_000
    assert all(sum(len(one.text) for one in group) <= 1_100 for group in groups)
    text, left_out = show(pieces, 2_000)
    assert len(text) < 3_000
    assert left_out > 0
    assert show(pieces[:2], 2_000) == (f"p0:\n{'x' * 300}\n\np1:\n{'x' * 300}", 0)
