"""Large outputs that stand in the prompts of later steps: stored once, and whole wherever they are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from fanfold.wiring import wire
from tests.cli.conftest import Result

Fanfold = Callable[..., Result]
LARGE = 100_000
RECIPE = """
name: relay
steps:
  - {id: first, agent: explorer, prompt: Begin.}
  - {id: second, agent: explorer, prompt: "Go on from {{steps.first.output}}, to the end."}
  - {id: third, agent: explorer, inputs: {said: steps.second.output}, prompt: "Both: {{steps.first.output}}"}
"""


@pytest.fixture
def said(project: Path) -> dict[str, str]:
    texts = {name: f"{name} " + name[0] * LARGE for name in ("first", "second", "third")}
    (project / "relay.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text("steps:\n" + "".join(f"  {n}: {t}\n" for n, t in texts.items()))
    return texts


def prompt(fanfold: Fanfold, step: str) -> str:
    told = fanfold("transcript", "last", step, "--json").json()
    return next(str(entry["text"]) for entry in told["entries"] if entry["kind"] == "input")


def test_outputs_inside_prompts_are_stored_once_and_read_whole(
    fanfold: Fanfold, project: Path, said: dict[str, str]
) -> None:
    assert fanfold("run", "relay.yaml", "--script", "script.yaml").status == 0
    assert prompt(fanfold, "second") == f"Go on from {said['first']}, to the end."
    assert prompt(fanfold, "third") == f"Both: {said['first']}\n\nsaid:\n{said['second']}"
    db = apsw.Connection(str(next((project / ".fanfold").glob("*.db"))))
    stored = db.execute("SELECT sum(length(content)) FROM blobs").get
    frozen = (project / "script.yaml").stat().st_size  # the run keeps its script, where all of them stand
    assert LARGE * 3 < stored - frozen < LARGE * 3.2


def test_it_is_whole_after_the_run_it_was_forked_from_is_forgotten(
    fanfold: Fanfold, project: Path, said: dict[str, str]
) -> None:
    old = fanfold("run", "relay.yaml", "--script", "script.yaml", "--json").json()["run_id"]
    assert fanfold("fork", old, "--from", "second").status == 0
    with closing(wire(project)) as opened:
        opened.store.delete_tree(old)
    assert prompt(fanfold, "second") == f"Go on from {said['first']}, to the end."
    assert fanfold("verify", "last").status == 0


def test_it_is_whole_in_a_run_that_came_in_a_file(
    fanfold: Fanfold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    assert fanfold("run", "relay.yaml", "--script", "script.yaml").status == 0
    assert fanfold("export", "last", "-o", "run.html").status == 0
    file = Path("run.html").absolute()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert fanfold("import", str(file)).status == 0
    assert prompt(fanfold, "second") == f"Go on from {said['first']}, to the end."


def test_a_prompt_with_a_secret_in_it_is_stored_without(
    fanfold: Fanfold, project: Path, said: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "first " + "f" * 30  # what the step says begins with it
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    assert fanfold("run", "relay.yaml", "--script", "script.yaml").status == 0
    assert secret not in prompt(fanfold, "second")
