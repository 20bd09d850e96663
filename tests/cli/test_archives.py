"""A run as one file: exported, read offline, imported where nothing in it is trusted, forked again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result

RECIPE = """
name: team
inputs: [{name: topic, default: owls}]
steps:
  - {id: look, agent: explorer, for_each: '["a", "b"]', prompt: "Look at {{item}} of {{inputs.topic}}"}
  - {id: note, agent: worker, depends_on: [look], prompt: "Write {{steps.look.output}}", write_set: [n.txt]}
  - {id: child, workflow: ./inner.yaml, depends_on: [note]}
"""
INNER = "name: inner\nsteps: [{id: in, agent: explorer, prompt: x}]\n"
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SCRIPT = {
    "default": {"output": f"found {NASTY}", "usage": {"input_tokens": 3, "output_tokens": 4}},
    "steps": {"note": {"output": "noted", "writes": {"n.txt": "new\n"}}},
}
Fanfold = Callable[..., Result]
Go = Callable[[], Path]


@pytest.fixture
def exported(fanfold: Fanfold, project: Path) -> Path:
    """The file of a run with a map, a writer and a child run, whose agents are hostile."""
    (project / "team.yaml").write_text(RECIPE)
    (project / "inner.yaml").write_text(INNER)
    (project / "script.yaml").write_text(json.dumps(SCRIPT))
    assert fanfold("run", "team.yaml", "--script", "script.yaml", "--yes").status == 0
    done = fanfold("export", "last", "-o", "run.html")
    assert done.status == 0, done.err
    return project / "run.html"


@pytest.fixture
def elsewhere(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Goes to another project of another user, which is the current one from then on."""

    def go() -> Path:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", str(tmp_path / "other-home"))
        return folder

    return go


@pytest.mark.full
def test_the_file_opens_anywhere_and_holds_no_markup_of_agents(exported: Path) -> None:
    page = exported.read_text()
    assert page.count("<script") == 1  # the data, which no browser runs
    assert "<img" not in page
    assert not re.search(r"""(src|href|action|url)\s*[=(]\s*["']?(https?:|//)""", page)
    assert "default-src 'none'" in page
    assert "<svg" in page
    assert "child/in" in page


@pytest.mark.full
def test_a_run_is_imported_whole_and_can_be_forked_again(
    fanfold: Fanfold, exported: Path, elsewhere: Go
) -> None:
    before = fanfold("inspect", "last", "--json").json()
    folder = elsewhere()
    done = fanfold("import", str(exported), "--json")
    assert done.status == 0, done.err
    run = done.json()["run_id"]
    after = fanfold("inspect", run, "--json").json()
    assert {**after, "owner": None} == {**before, "owner": None}
    assert fanfold("verify", "--all").status == 0
    said = fanfold("transcript", run, "look[0]", "--json").json()
    assert said["entries"][0]["text"] == "Look at a of owls"
    assert fanfold("query", "found").out
    assert fanfold("import", str(exported)).status == 2
    assert not (folder / "n.txt").exists()
    # Nobody here permitted it, and its script was somebody else's choice.
    refused = fanfold("fork", run, "--from", "note")
    assert refused.status == 4
    assert "which another user may have written" in refused.err


def test_a_fork_of_an_imported_run_runs_once_it_is_permitted(
    fanfold: Fanfold, project: Path, elsewhere: Go
) -> None:
    (project / "sum.yaml").write_text(
        "name: sum\ninputs: [{name: n, type: integer, default: 2}]\nsteps:\n"
        "  - {id: twice, set: {value: inputs.n * 2}}\n"
        "  - {id: more, set: {value: steps.twice.output.value + 1}, depends_on: [twice]}\n"
    )
    assert fanfold("run", "sum.yaml").status == 0
    fanfold("export", "last", "-o", "run.html")
    elsewhere()
    run = fanfold("import", str(project / "run.html"), "--json").json()["run_id"]
    assert fanfold("fork", run, "--from", "more").status == 4
    forked = fanfold("fork", run, "--from", "more", "--yes", "--json")
    assert forked.status == 0, forked.err
    assert forked.json()["output"] == {"value": 5}


@pytest.mark.parametrize("command", ["fork", "retry"])
def test_the_user_chooses_the_agents_of_a_run_made_from_an_import(
    fanfold: Fanfold, project: Path, elsewhere: Go, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "FANFOLD_MODEL"):
        monkeypatch.delenv(name, raising=False)
    (project / "two.yaml").write_text(
        "name: two\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"
        "  - {id: b, agent: explorer, prompt: '{{steps.a.output}}'}\n"
    )
    (project / "theirs.yaml").write_text("default: theirs\nsteps: {b: {fail: {class: agent}}}\n")
    assert fanfold("run", "two.yaml", "--script", "theirs.yaml").status == 1
    fanfold("export", "last", "-o", "run.html")
    here = elsewhere()
    (here / "ours.yaml").write_text("default: ours\n")
    run = fanfold("import", str(project / "run.html"), "--json").json()["run_id"]
    again = [command, run, *(["--from", "b"] if command == "fork" else []), "--yes", "--json"]
    refused = fanfold(*again).json()["error"]
    assert "--script FILE" in refused["hint"]
    done = fanfold(*again, "--script", "ours.yaml")
    assert done.status == 0, done.err
    assert [step["output"] for step in done.json()["steps"].values()] == ["theirs", "ours"]


def test_an_unfinished_imported_run_continues_only_with_permission(
    fanfold: Fanfold, project: Path, elsewhere: Go
) -> None:
    (project / "ask.yaml").write_text(
        "name: ask\nsteps:\n  - {id: ok, approve: Good?}\n"
        "  - {id: b, agent: explorer, prompt: x, depends_on: [ok]}\n"
    )
    (project / "script.yaml").write_text("default: x\n")
    assert fanfold("run", "ask.yaml", "--script", "script.yaml").status == 3
    fanfold("export", "last", "-o", "run.html")
    elsewhere()
    run = fanfold("import", str(project / "run.html"), "--json").json()["run_id"]
    assert fanfold("resume", run).status == 4
    assert fanfold("resume", run, "--yes").status == 3


def test_a_secret_that_is_known_now_is_not_in_the_file(
    fanfold: Fanfold, project: Path, elsewhere: Go, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not known as one when the run recorded it; then values have other names, and all still fits."""
    secret = "sk-live-" + "q7" * 20
    (project / "one.yaml").write_text(
        f"name: one\nsteps: [{{id: a, agent: explorer, prompt: 'Use {secret}'}},"
        " {id: b, agent: explorer, prompt: '{{steps.a.output}}'}]\n"
    )
    (project / "script.yaml").write_text(json.dumps({"default": f"the key is {secret} & that is it"}))
    assert fanfold("run", "one.yaml", "--script", "script.yaml").status == 0
    monkeypatch.setenv("SOME_API_KEY", secret)
    assert fanfold("export", "last", "-o", "run.html").status == 0
    assert secret not in (project / "run.html").read_text()
    elsewhere()
    done = fanfold("import", str(project / "run.html"))
    assert done.status == 0, done.err
    assert fanfold("verify", "--all").status == 0
    assert "the key is" in fanfold("inspect", "last", "--json").out


def _changed(page: str, change: Callable[[Any], None]) -> str:
    opening = '<script type="application/json" id="fanfold-run">'
    start = page.rindex(opening) + len(opening)
    end = page.index("</script>", start)
    data = json.loads(page[start:end])
    change(data)
    return page[:start] + json.dumps(data).replace("<", "\\u003c") + page[end:]


def _first(data: Any) -> Any:
    return data["commits"][0][0]


def _publish(data: Any, path: str) -> None:
    """Have a step publish a file whose content comes with the run."""
    content = "evil\n"
    blob = blake2b(content.encode(), digest_size=16).hexdigest()
    file = {"path": path, "size": 5, "sha256": sha256(content.encode()).hexdigest(), "parts": [blob]}
    data["blobs"][blob] = content
    facts = (event for commit in data["commits"] for event in commit if event["type"] == "workspace_event")
    fact = next(facts)["data"]
    place = {key: fact[key] for key in ("step", "attempt", "execution")}
    fact.clear()
    fact.update(what="artifacts", files=[file], **place)


CHANGES: dict[str, Callable[[Any], None]] = {
    "an event is gone": lambda data: data["commits"][1].pop(),
    "a commit is gone": lambda data: data["commits"].pop(2),
    "an event twice": lambda data: data["commits"][1].append(data["commits"][1][-1]),
    "another root": lambda data: data.update(root="abcdef"),
    "a root that is a path": lambda data: data.update(root="../../x"),
    "a run that is a path": lambda data: _first(data).update(log="../x", run_id="../x"),
    "a value is gone": lambda data: data["blobs"].pop(_first(data)["data"]["frozen"]),
    "a value is another": lambda data: data["blobs"].update({_first(data)["data"]["inputs"]: "{}"}),
    "a published file with a path that leads out": lambda data: _publish(data, "../../../../evil.txt"),
    "a published file with a path from the top": lambda data: _publish(data, "/tmp/evil.txt"),
    "a type nobody knows": lambda data: _first(data).update(type="x"),
    "a plan that is none": lambda data: _first(data)["data"].update(plan={"name": 1}),
    "no events": lambda data: data.update(commits=[]),
    "an endless owner": lambda data: _first(data).update(epoch=2**40),
    "a session of another": lambda data: data["sessions"].update({"x/../y": []}),
    "unknown words": lambda data: data.update(more=1),
    "another format": lambda data: data.update(format=99),
    "huge numbers": lambda data: _first(data).update(tree_seq=2**62),
    "a step that ended alone": lambda data: data["commits"][-1].insert(0, {**data["commits"][-1][0]}),
}


@pytest.mark.full
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_file_that_was_changed_is_refused_whole(
    fanfold: Fanfold, exported: Path, elsewhere: Go, change: Callable[[Any], None]
) -> None:
    folder = elsewhere()
    (folder / "bad.html").write_text(_changed(exported.read_text(), change))
    done = fanfold("import", "bad.html")
    assert done.status in (1, 2), done.out
    assert "archive." in done.err
    assert fanfold("runs", "--all", "--json").json() == []
    assert not [one for one in folder.rglob("*") if "html" not in one.name and ".fanfold" not in one.parts]


@pytest.mark.parametrize(
    "text", ["", "<html>", '<script type="application/json" id="fanfold-run">[[[[', "\0" * 99]
)
def test_a_file_without_a_run_is_refused(fanfold: Fanfold, project: Path, text: str) -> None:
    (project / "x.html").write_text(text)
    done = fanfold("import", "x.html")
    assert done.status in (1, 2)
    assert "archive." in done.err
    assert fanfold("import", "nowhere.html").status == 2
