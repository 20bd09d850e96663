"""`fanfold smoke --real`: ok only when the log shows it, and every known failure says what to do."""

import json
import re
import socket
from typing import Any

import pytest

from fanfold.api import smoke as real_smoke
from fanfold.cli.main import main
from tests.e2e.world import MODELS, Done, Project, Provider
from tests.provider import KEY, Call, Fault, RecordedRequest, Reply

pytestmark = pytest.mark.full

SCENARIOS = ("micro_parallel", "dependency", "writer_controlled")


def talk(asked: RecordedRequest) -> Reply:
    """A model that only talks."""
    return Reply(text="done" if "note.txt" in asked.prompt else "ultramarine")


def work(asked: RecordedRequest) -> Reply:
    """A model that writes the file it is asked to write, then says so."""
    found = re.search(r"[\w-]+/note\.txt", asked.prompt)
    if found is None or asked.turns > 0:
        return talk(asked)
    content = "one\ntwo\n" if "two" in asked.prompt else "one\n"
    return Reply(calls=(Call("write_file", {"path": found[0], "content": content}),))


def smoke(project: Project, *arguments: str, wire: str = "chat", **environment: str) -> Done:
    given = {"FANFOLD_MODEL": MODELS[wire], **environment}
    return project("smoke", "--real", "--json", *arguments, **given)


def checks(done: Done) -> dict[str, Any]:
    assert set(done.json) <= {"ok", "checks", "error"}
    return {check["name"]: check for check in done.json["checks"]}


@pytest.mark.parametrize("wire", MODELS)
def test_all_three_are_shown_from_their_logs(project: Project, wire: str):
    project.file("mine.txt").write_text("mine\n")
    with Provider(work) as provider:
        done = smoke(project, wire=wire, **provider.environment)
    assert (done.status, done.json["ok"]) == (0, True), done.out
    found = checks(done)
    assert tuple(found) == SCENARIOS
    assert found["micro_parallel"]["evidence"]["live_at_once"] == 2
    assert "ultramarine" in found["dependency"]["evidence"]["second_was_asked"]
    wrote = found["writer_controlled"]["evidence"]
    assert wrote["tools"] == {"first": ["write_file"], "second": ["write_file"]}
    assert wrote["files"] == {"fanfold-smoke/answer.txt": "done\n", "fanfold-smoke/note.txt": "one\ntwo\n"}
    assert wrote["workspaces"] == {"first": "isolated", "second": "isolated"}
    for name in SCENARIOS:
        kept = json.loads((project.folder / found[name]["evidence"]["evidence"]).read_text())
        assert (kept["scenario"], kept["ok"], kept["result"]["status"]) == (name, True, "completed")
    assert sorted(path.name for path in project.folder.iterdir()) == [".fanfold", "mine.txt"]


def test_writers_that_only_say_they_wrote_are_not_ok(project: Project):
    with Provider(talk) as provider:
        done = smoke(project, **provider.environment)
    assert (done.status, done.json["ok"]) == (1, False)
    found = checks(done)
    assert [found[name]["ok"] for name in SCENARIOS] == [True, True, False]
    evidence = found["writer_controlled"]["evidence"]
    assert evidence["status"] == "completed", "that the run completed proves nothing"
    assert "first called no tool that writes" in evidence["missing"]
    assert evidence["what_to_do"] == done.json["error"]["hint"]
    assert done.json["error"]["code"] == "smoke.unproven"
    assert not json.loads((project.folder / evidence["evidence"]).read_text())["ok"]


def test_a_write_that_was_refused_is_no_write(project: Project):
    def astray(asked: RecordedRequest) -> Reply:
        if asked.turns > 0:
            return talk(asked)
        return Reply(calls=(Call("write_file", {"path": "../out.txt", "content": "x"}),))

    with Provider(astray) as provider:
        done = smoke(project, "--scenario", "writer_controlled", **provider.environment)
    assert (done.status, done.json["ok"]) == (1, False)
    assert checks(done)["writer_controlled"]["evidence"]["tools"] == {"first": [], "second": []}


def told(done: Done, name: str = "dependency") -> dict[str, Any]:
    """The error, which the check must have too."""
    assert done.json["ok"] is False
    error: dict[str, Any] = done.json["error"]
    assert set(error) == {"code", "message", "hint", "details"}
    check = checks(done)[name]
    assert check["ok"] is False
    assert check["evidence"]["what_to_do"] == error["hint"] != ""
    assert error["details"]["scenario"] == name
    return error


FAULTS = {"quota": (3, "model.quota", "account"), "unknown_model": (1, "model.unknown", "model's name")}


@pytest.mark.parametrize("kind", FAULTS)
def test_refusals_of_the_provider_are_reported_with_a_hint(project: Project, kind: Any):
    status, code, words = FAULTS[kind]
    with Provider(lambda _: Fault(kind)) as provider:
        done = smoke(project, "--scenario", "dependency", **provider.environment)
    error = told(done)
    assert (done.status, error["code"]) == (status, code)
    assert words in error["hint"]


def test_a_wrong_key_is_reported_once_and_ends_the_smoke_test(project: Project):
    with Provider(work) as provider:
        done = smoke(project, **{**provider.environment, "OPENAI_API_KEY": "a-key-that-nobody-gave-out"})
        shown = project(
            "smoke", "--real", FANFOLD_MODEL=MODELS["chat"], OPENAI_API_KEY="wrong", **provider.addresses
        )
    error = told(done, "micro_parallel")
    assert (done.status, error["code"]) == (3, "model.key_refused")
    assert "OPENAI_API_KEY" in error["hint"]
    assert error["details"]["status"] == "paused"
    assert "a-key-that-nobody-gave-out" not in done.out
    later = [checks(done)[name] for name in SCENARIOS[1:]]
    assert [check["ok"] for check in later] == [False, False]
    assert all("not started" in check["evidence"] for check in later)
    assert shown.status == 3
    assert "error[model.key_refused]" in shown.err
    assert "hint: check OPENAI_API_KEY" in shown.err


def test_without_a_provider_the_ways_to_get_one_are_listed(project: Project):
    done = project("smoke", "--real", "--json", "--scenario", "dependency")
    assert (done.status, told(done)["code"]) == (2, "provider.none")
    nowhere = smoke(project, "--scenario", "dependency", FANFOLD_MODEL="local:smollm2")
    error = told(nowhere)
    assert error["code"] in ("local.not_pulled", "local.not_installed")
    assert nowhere.status == 1


def test_no_network_names_what_could_not_be_reached(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    once = real_smoke.recipe_text("dependency").replace(
        "agent: explorer", "agent: explorer, retry: {attempts: 1}"
    )
    with socket.socket() as bound:  # bound and not listening: a connection is refused
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        done = inside(project, once, {"OPENAI_BASE_URL": address}, monkeypatch, capsys)
    error = told(done)
    assert (done.status, error["code"]) == (3, "model.unreachable")
    assert "check the network" in error["hint"]


def test_a_model_that_takes_too_long_is_reported_as_slow(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    hasty = real_smoke.recipe_text("dependency").replace("3m", "2s")
    with Provider(lambda _: Fault("stall")) as provider:
        done = inside(project, hasty, provider.addresses, monkeypatch, capsys)
    error = told(done)
    assert (done.status, error["details"]["class"]) == (1, "timeout")
    assert error["details"]["status"] == "timed_out"


def inside(
    project: Project,
    recipe: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Done:
    """The dependency scenario in this process, with a recipe that does not take minutes to fail."""
    given = {"HOME": project.environment["HOME"], "OPENAI_API_KEY": KEY, "FANFOLD_MODEL": MODELS["chat"]}
    monkeypatch.delenv("FANFOLD_HOME", raising=False)
    for name, value in {**given, **environment}.items():
        monkeypatch.setenv(name, value)
    (project.folder / "dependency.yaml").write_text(recipe)
    monkeypatch.setattr(real_smoke, "RECIPES", project.folder)
    command = ["smoke", "--real", "--json", "--scenario", "dependency", "--project", str(project.folder)]
    status = main(command)
    said = capsys.readouterr()
    return Done(status, said.out, said.err)
