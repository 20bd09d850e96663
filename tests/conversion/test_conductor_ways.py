"""Ways back, the environment and the lines of what is lost in a Conductor workflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanfold.cli.main import main

TWO_LOOPS = """\
workflow:
  name: two-loops
  entry_point: seek
agents:
  - name: seek
    prompt: Seek.
    output: {covered: {type: number}}
    routes:
      - {to: write, when: "covered >= 70"}
      - {to: seek, when: "{{ context.iteration < 3 }}"}
      - {to: write}
  - name: write
    prompt: "Write of {{ seek.output.covered }}."
    routes: [{to: judge}]
  - name: judge
    model: ${JUDGE:-small}
    prompt: |
      Judge it.

      {% if seek %}
      {{ seek.output | upper }} and {{ seek.output | upper }}
      {{ seek.output | upper }}
      ${MISSING}
    output: {good: {type: boolean}}
    routes:
      - {to: $end, when: "{{ output.good }}"}
      - {to: write}
output:
  good: "{{ judge.output.good }}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def made(folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> Any:
    (folder / "flow.yaml").write_text(text)
    main(["convert", "flow.yaml", "--json"])
    found = json.loads(capsys.readouterr().out)
    (folder / "recipe.yaml").write_text(found["text"])
    return found


def test_losses_inside_a_text_are_reported_at_their_line_and_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = made(folder, capsys, TWO_LOOPS)
    codes = {one["code"] for one in found["diagnostics"]}
    assert codes == {"recipe.unknown_key", "recipe.bad_expression"}
    assert [(one["line"], one["what"]) for one in found["lost"]] == [
        (10, "agent seek: route: when"),
        (16, "${JUDGE:-small}"),
        (20, "{% if seek %}"),
        (21, "{{ seek.output | upper }}"),
        (21, "{{ seek.output | upper }}"),
        (22, "{{ seek.output | upper }}"),
        (23, "${MISSING}"),
    ]
    assert "model: small" in found["text"]


def test_an_unreachable_agent_is_reported_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "workflow: {name: x, entry_point: a}\nagents:\n- {name: a, prompt: A}\n- {name: b, prompt: B}\n"
    (folder / "flow.yaml").write_text(text)
    assert main(["convert", "flow.yaml", "--json"]) == 0
    lost = json.loads(capsys.readouterr().out)["lost"]
    assert [(one["line"], one["what"]) for one in lost] == [(4, "agent b")]


@pytest.mark.full
def test_a_step_runs_after_what_leads_to_it_and_never_where_nothing_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """\
workflow: {name: x, entry_point: a}
agents:
- name: a
  prompt: A
  output: {kind: {type: string}, tags: {type: array}}
  routes:
  - {to: b, when: "not output.kind == 'bug' and 'x' not in output.tags"}
  - {to: c, when: "output.kind == 'bug'"}
  - {to: d}
  - {to: e}
- {name: b, prompt: B}
- {name: c, prompt: C}
- {name: d, prompt: D}
- {name: e, prompt: E}
"""
    (folder / "flow.yaml").write_text(text)
    assert main(["convert", "flow.yaml", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [(one["line"], one["what"]) for one in made["lost"]] == [(14, "agent e")]
    (folder / "recipe.yaml").write_text(made["text"])
    (folder / "script.yaml").write_text("steps: {a: {output: {kind: bug, tags: []}}}\ndefault: ok\n")
    main(["run", "recipe.yaml", "--script", "script.yaml", "--yes", "--json"])
    run = json.loads(capsys.readouterr().out)
    assert [path for path, step in run["steps"].items() if step["status"] == "completed"] == ["a", "c"]


@pytest.mark.full
def test_ways_back_to_two_agents_are_two_loops(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TWO_LOOPS.replace("{{ context.iteration < 3 }}", "covered < 30")
    start, end = text.index("      {% if"), text.index("    output: {good")
    assert made(folder, capsys, text[:start] + text[end:])["diagnostics"] == []
    script = {
        "default": "words",
        "steps": {
            "seek_loop#1/seek": {"output": {"covered": 10}},
            "seek_loop#2/seek": {"output": {"covered": 80}},
            "write_loop#1/judge": {"output": {"good": False}},
            "write_loop#2/judge": {"output": {"good": True}},
        },
    }
    run = run_with(folder, capsys, script)
    assert (run["status"], run["output"]) == ("completed", {"good": True}), run


TWO_REVIEWERS = """\
workflow: {name: reviewed, entry_point: write}
agents:
  - {name: write, prompt: Write., routes: [{to: safety}]}
  - name: safety
    prompt: "Is it safe? {{ write.output }}"
    output: {good: {type: boolean}}
    routes: [{to: write, when: "{{ not output.good }}"}, {to: style}]
  - name: style
    prompt: "Is it clear? {{ write.output }}"
    output: {good: {type: boolean}}
    routes: [{to: write, when: "{{ not output.good }}"}, {to: $end}]
"""


@pytest.mark.full
def test_two_ways_back_to_one_agent_are_one_loop(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(folder, capsys, TWO_REVIEWERS)["diagnostics"] == []
    script = {
        "default": "words",
        "steps": {
            "write_loop#1/safety": {"output": {"good": False}},
            "write_loop#*/safety": {"output": {"good": True}},
            "write_loop#2/style": {"output": {"good": False}},
            "write_loop#3/style": {"output": {"good": True}},
        },
    }
    run = run_with(folder, capsys, script)
    assert run["status"] == "completed", run
    assert run["steps"]["write_loop#1/style"]["status"] == "skipped"
    assert "write_loop#3/style" in run["steps"]
    assert "write_loop#4/write" not in run["steps"]


def run_with(folder: Path, capsys: pytest.CaptureFixture[str], script: dict[str, Any]) -> Any:
    (folder / "script.yaml").write_text(json.dumps(script))
    main(["run", "recipe.yaml", "--script", "script.yaml", "--yes", "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("hook.js", "const fs = require('fs')\nfs.readFileSync('x')\n", "no agent is called in it"),
        ("long.yaml", "name: x\nnodes:\n- {id: a, prompt: b}\n" + "# so much\n" * 110_000, "longer than"),
        ("agents.yaml", "writer: {role: writer, goal: Write, backstory: Old}\n", "tasks.yaml beside it"),
    ],
)
def test_files_beside_a_workflow_are_not_taken_for_one(
    file: str, text: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / file).write_text(text)
    assert main(["convert", file, "-o", "recipe.yaml"]) == 2
    assert words in capsys.readouterr().err
    assert not (folder / "recipe.yaml").exists()


def test_errors_of_a_recipe_name_its_file_and_a_fix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "flow.yaml").write_text("name: x\nsteps:\n  - {id: a, subagent: resercher, prompt: b}\n")
    assert main(["convert", "flow.yaml", "-o", "recipe.yaml"]) == 2
    said = capsys.readouterr().err
    assert 'recipe.yaml:3: there is no role "resercher" [recipe.unknown_role]\n  hint: did you mean' in said
    assert main(["convert", "flow.yaml", "-o", "recipe.yaml"]) == 2
    assert "hint: say another name, or remove it" in capsys.readouterr().err


@pytest.mark.full
def test_a_chain_longer_than_calls_may_nest_is_followed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = 999
    agents = [f"  - {{name: a{at}, prompt: x, routes: [{{to: a{at + 1}}}]}}" for at in range(far)]
    head = "workflow: {name: far, entry_point: a0}\nagents:\n"
    (folder / "flow.yaml").write_text("\n".join([head, *agents, f"  - {{name: a{far}, prompt: x}}\n"]))
    assert main(["convert", "flow.yaml", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["text"].count("- id: a") == far + 1


def test_an_input_without_required_and_default_is_required(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = "{a: {type: string}, b: {type: string, required: false}, c: {type: string, default: x}}"
    text = f"workflow:\n  name: w\n  entry_point: s\n  input: {inputs}\n"
    text += 'agents: [{name: s, prompt: "{{ workflow.input.a }}", routes: [{to: $end}]}]\n'
    made(folder, capsys, text)
    written = yaml.safe_load((folder / "recipe.yaml").read_text())["inputs"]
    assert {name: bool(one.get("required")) for name, one in written.items()} == {
        "a": True,
        "b": False,
        "c": False,
    }
