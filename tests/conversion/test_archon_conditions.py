"""When steps of a converted Archon workflow run: exactly when its nodes would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanfold.cli.main import main
from fanfold.language.convert.source import FORMAT
from fanfold.language.tree import plain
from fanfold.language.yaml_text import parse_yaml

BRANCHES = """\
name: branches
nodes:
  - id: sort-it
    prompt: Sort it.
    output_format:
      type: object
      properties: {kind: {type: string}, sure: {type: boolean}, count: {type: integer}}
      required: [kind, sure, count]
  - id: dig
    depends_on: [sort-it]
    when: "$sort-it.output.kind == 'bug'"
    prompt: Dig.
  - id: mend
    depends_on: [dig]
    prompt: Mend it.
  - id: publish
    depends_on: [mend]
    when: "$sort-it.sure == 'true' && $sort-it.output.count >= 3"
    prompt: Publish it.
  - id: plan
    depends_on: [sort-it]
    when: "$sort-it.output.kind != 'bug'"
    prompt: Plan it.
  - id: either
    depends_on: [mend, plan]
    trigger_rule: none_failed_min_one_success
    when: "$dig.output == 'found' || $plan.output != 'x'"
    prompt: Report.
  - id: neither
    depends_on: [publish]
    trigger_rule: one_success
    prompt: Tell everybody.
"""


def converted(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    (folder / "flow.yaml").write_text(text)
    status = main(["convert", "flow.yaml", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert (status, made["diagnostics"]) == (0, []), made["text"]
    recipe: str = made["text"]
    return recipe


def ran(
    folder: Path, text: str, script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What a run of the recipe that a workflow became printed."""
    (folder / "recipe.yaml").write_text(converted(folder, text, capsys))
    (folder / "script.yaml").write_text(json.dumps(script))
    main(["run", "recipe.yaml", "--script", "script.yaml", "--yes", "--json"])
    run: dict[str, Any] = json.loads(capsys.readouterr().out)
    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize(
    ("sorted_as", "done"),
    [
        ({"kind": "bug", "sure": True, "count": 10}, {"dig", "mend", "publish", "either", "neither"}),
        ({"kind": "bug", "sure": False, "count": 10}, {"dig", "mend", "either"}),
        ({"kind": "bug", "sure": True, "count": 2}, {"dig", "mend", "either"}),
        ({"kind": "wish", "sure": True, "count": 10}, {"plan", "either"}),
    ],
)
def test_dependents_of_an_omitted_node_are_omitted(
    sorted_as: dict[str, Any], done: set[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ran(folder, BRANCHES, {"default": "found", "steps": {"sort-it": {"output": sorted_as}}}, capsys)
    assert run["status"] == "completed", run
    steps = {path for path, step in run["steps"].items() if step["status"] == "completed"}
    assert steps == done | {"sort-it"}


@pytest.mark.full
def test_a_value_that_is_no_text_is_compared_as_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
name: dry
nodes:
  - {id: read, bash: "echo '{\\"dry\\": false, \\"n\\": 7}'"}
  - {id: go, depends_on: [read], when: "$read.output.dry == 'false'", prompt: Go.}
  - {id: stay, depends_on: [read], when: "$read.output.dry == 'true' || $read.output.n > '7'", prompt: Stay.}
"""
    run = ran(folder, text, {"default": "ok"}, capsys)
    assert {path: step["status"] for path, step in run["steps"].items()} == {
        "read": "completed",
        "go": "completed",
        "stay": "skipped",
    }


@pytest.mark.full
def test_a_loop_continues_while_its_end_word_is_only_mentioned(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "name: l\nnodes:\n- {id: w, loop: {prompt: Go., until: ALL DONE, max_iterations: 5}}\n"
    answers = ["not ALL DONE yet", "ALL DONE is far", "<promise>ALL DONE</promise> I think"]
    script = {"steps": {f"w#{number}": words for number, words in enumerate(answers, 1)}}
    run = ran(folder, text, script, capsys)
    assert run["status"] == "completed", run
    assert "w#3" in run["steps"]


def test_an_unreadable_condition_is_reported_and_the_rule_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
name: odd
nodes:
  - {id: a, prompt: A.}
  - {id: b, depends_on: [a], when: "$a.output == 'x'", prompt: B.}
  - id: c
    depends_on: [b]
    when: "size($a.output) > 3"
    prompt: C.
"""
    (folder / "flow.yaml").write_text(text)
    main(["convert", "flow.yaml", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert [(one["line"], "could not be read" in one["why"]) for one in made["lost"]] == [(7, True)]
    assert 'when: steps.b.status != "skipped"' in made["text"]


@pytest.mark.parametrize(
    ("said", "tools", "lost"),
    [
        ("allowed_tools: []", [], []),
        ("allowed_tools: [Read, Task, 'Bash(git:*)', Grep]", ["Read", "Grep"], ["Task", "Bash(git:*)"]),
        ("denied_tools: [Edit, 'Bash(rm:*)', WebSearch]", ["Read", "Glob", "Grep", "Write"], []),
        ("denied_tools: [WebSearch]", None, []),
        ("{allowed_tools: [Read, Bash], denied_tools: [Bash]}", ["Read"], []),
    ],
)
def test_a_step_has_no_tool_that_its_node_had_not(
    said: str, tools: list[str] | None, lost: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = said.strip("{}")
    (folder / "flow.yaml").write_text(f"name: t\nnodes:\n  - {{id: a, prompt: A.,\n     {node}}}\n")
    assert main(["convert", "flow.yaml", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [(one["line"], one["what"]) for one in made["lost"]] == sorted(
        (4, f"node a: allowed_tools: {word}") for word in lost
    )
    tree = parse_yaml(made["text"].encode(), "r.yaml", FORMAT)[0]
    assert tree is not None
    (step,) = plain(tree)["steps"]
    assert step.get("tools") == tools


def test_nodes_that_only_read_run_side_by_side_as_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = "denied_tools: [Write, Edit, Bash]"
    nodes = f"  - {{id: a, prompt: A., {tools}}}\n  - {{id: b, prompt: B., {tools}}}\n"
    (folder / "flow.yaml").write_text(f"name: t\nnodes:\n{nodes}")
    assert main(["convert", "flow.yaml", "-o", "made.yaml"]) == 0
    capsys.readouterr()
    assert main(["run", "made.yaml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waves"] == [["a", "b"]]


def test_a_long_chain_declared_backwards_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [f"  - {{id: n{at}, depends_on: [n{at - 1}], prompt: x}}" for at in range(600, 0, -1)]
    text = "\n".join(
        ["name: far", "nodes:", *nodes, "  - {id: n0, when: \"$n0.output == 'x'\", prompt: x}\n"]
    )
    (folder / "flow.yaml").write_text(text)
    main(["convert", "flow.yaml", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert made["text"].count('.status != "skipped"') >= 600


def test_conditions_and_loops_in_words_are_kept_as_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
name: words
nodes:
  - {id: a, prompt: A., output_format: {type: object, properties: {s: {type: string}}}}
  - {id: b, depends_on: [a], when: "$a.output.s == 'two\\nlines, a \\a and a \\u2028'", prompt: B.}
  - {id: c, loop: {prompt: C., until: "ALL\\nDONE", max_iterations: 2}}
"""
    tree, _, _ = parse_yaml(converted(folder, text, capsys).encode(), "recipe.yaml", FORMAT)
    assert tree is not None
    recipe: Any = plain(tree)
    assert recipe["steps"][1]["when"] == r'steps.a.output.s == "two\nlines, a \u0007 and a \u2028"'
    assert "\n" not in recipe["steps"][2]["repeat"]["until"]


def test_a_number_outside_the_range_of_expressions_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = f"id: b, depends_on: [a], when: '$a.output > {'9' * 400}', prompt: B."
    text = f"name: far\nnodes:\n  - {{id: a, prompt: A.}}\n  - {{{node}}}\n"
    (folder / "flow.yaml").write_text(text)
    assert main(["convert", "flow.yaml", "--json"]) == 2
    made = json.loads(capsys.readouterr().out)
    assert "when: to_be_written(" in made["text"]
    assert [one["line"] for one in made["lost"]] == [4]


def test_a_node_alone_in_its_layer_continues_the_conversation_before_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
name: talk
nodes:
  - {id: plan, prompt: Plan the trip.}
  - {id: list, depends_on: [plan], bash: "echo tent"}
  - {id: pack, depends_on: [list], prompt: Pack for it.}
  - {id: check, depends_on: [pack], context: fresh, prompt: Check the bags.}
  - {id: drive, depends_on: [check], prompt: Drive.}
  - {id: swim, depends_on: [check], prompt: Swim.}
  - {id: sleep, depends_on: [drive, swim], prompt: Sleep.}
  - {id: tell, depends_on: [sleep], context: {resume: plan}, prompt: Tell about it.}
"""
    steps = yaml.safe_load(converted(folder, text, capsys))["steps"]
    continued = {step["id"]: step["continue"] for step in steps if "continue" in step}
    assert continued == {"pack": "plan", "tell": "plan"}


def test_no_name_of_a_node_makes_others_continue_it_that_continue_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
name: talk
nodes:
  - {id: None, prompt: Plan.}
  - {id: drive, depends_on: [None], prompt: Drive.}
  - {id: swim, depends_on: [None], prompt: Swim.}
"""
    steps = yaml.safe_load(converted(folder, text, capsys))["steps"]
    assert [step["id"] for step in steps if "continue" in step] == []


def test_a_step_after_a_loop_gets_the_last_reply_of_its_conversation(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
name: talk
nodes:
  - {id: draw, loop: {prompt: Draw., until: DONE, max_iterations: 2, fresh_context: true}}
  - {id: frame, depends_on: [draw], prompt: Frame it.}
"""
    (folder / "flow.yaml").write_text(text)
    main(["convert", "flow.yaml", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert [(one["line"], one["what"]) for one in made["lost"]] == [(4, "node frame: context")]
    assert yaml.safe_load(made["text"])["steps"][1]["prompt"].endswith("{{steps.draw.output}}")


def test_a_step_that_changes_the_artifact_of_another_is_to_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
name: notes
nodes:
  - {id: note, prompt: "Write to `$ARTIFACTS_DIR/birds.md`."}
  - {id: read, depends_on: [note], context: fresh, prompt: "Read `$ARTIFACTS_DIR/birds.md`."}
  - {id: more, depends_on: [note], prompt: "Append owls to `$ARTIFACTS_DIR/birds.md`."}
  - {id: shell, depends_on: [note], bash: 'echo wren >> "$ARTIFACTS_DIR/birds.md"'}
"""
    (folder / "flow.yaml").write_text(text)
    assert main(["convert", "flow.yaml", "--json"]) != 0
    made = json.loads(capsys.readouterr().out)
    assert [(one["line"], one["what"]) for one in made["lost"]] == [
        (5, "node more: birds.md"),
        (6, "node shell: birds.md"),
    ]
    unwritten = [step["id"] for step in yaml.safe_load(made["text"])["steps"] if "to_be_written" in step]
    assert unwritten == ["more", "shell"]


def test_children_of_a_list_may_fail_and_get_their_item_by_its_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "probe.yaml").write_text("name: probe\ninputs: {bird: {}}\nsteps: [{id: a, prompt: x}]\n")
    text = "name: all\nnodes:\n  - {id: each, workflow: probe, fan_out: {items: '[1]', as: bird%s}}\n"
    (step,) = yaml.safe_load(converted(folder, text % "", capsys))["steps"]
    assert (step["inputs"], step["on_failure"]) == ({"bird": "item"}, "inline")
    (step,) = yaml.safe_load(converted(folder, text % ", join: all_success", capsys))["steps"]
    assert "on_failure" not in step


def test_a_variable_of_the_user_that_a_script_reads_is_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = 'COUNT=1; for BIRD in a b; do scan "$BIRD" "$COUNT" "$HOME" "${SCAN_TOKEN:-}"; done'
    (folder / "flow.yaml").write_text(f"name: scan\nnodes:\n  - id: scan\n    bash: '{script}'\n")
    main(["convert", "flow.yaml", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert [one["what"] for one in made["lost"]] == ["node scan: $SCAN_TOKEN"]
    assert yaml.safe_load(made["text"])["steps"][0]["network"] is True
