"""What "Copy as" gives works as it is printed: the same thing from the command line, over HTTP, in Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, environment, lay_out, serving
from tests.server.test_steering import wait_until
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

RECIPE = """
name: form
inputs:
  - {name: topic, required: true}
  - {name: names, type: array, default: []}
steps:
  - {id: note, agent: worker, prompt: "{{inputs.topic}} {{inputs.names}}", write_set: [n.txt], merge: propose}
  - {id: ok, approve: "Good?", choices: [ship, hold], depends_on: [note]}
  - {id: when, ask: "When?", depends_on: [ok]}
output: {decision: steps.ok.output.decision, comment: steps.ok.output.comment, when: steps.when.output}
"""
FORM: dict[str, Any] = {
    "recipe": "form",
    "inputs": {"topic": "Bob's $HOME `owls`\nby night", "names": ["a b", 'c"']},
    "options": {"max_concurrency": 2, "budget_usd": 1.5, "budget_tokens": 1000},
    "script": {"steps": {"note": {"output": "it's noted", "writes": {"n.txt": "new\n"}}}},
    "yes": True,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("project")
    lay_out(folder)
    (folder / ".fanfold" / "workflows" / "form.yaml").write_text(RECIPE)
    with serving(folder, home) as serve:
        yield serve()


class Elsewhere:
    """Carries out what was copied, as whoever pastes it there would."""

    def __init__(self, server: Server, home: Path, surface: str) -> None:
        self.server, self.home, self.surface = server, home, surface

    def do(self, action: str, **words: Any) -> None:
        text = self.server.post("/api/copy", {"action": action, **words})[self.surface]
        getattr(self, self.surface)(text)

    def cli(self, text: str) -> None:
        self._run(["sh", "-c", text])

    def python(self, text: str) -> None:
        self._run([sys.executable, "-c", text])

    def _run(self, command: list[str]) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=self.server.folder,
            env={**environment(self.home), "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode in (0, 3), (command, done.stderr.decode())

    def http(self, text: str) -> None:
        words = shlex.split(text.replace("$TOKEN", self.server.token).replace("${URL%/}/", self.server.url))
        named = dict(zip(words[1:-1:2], words[2:-1:2], strict=True))
        content = named.get("-d")
        reply = self.server.client.request(
            named.get("-X", "GET"),
            words[-1],
            content=content,
            headers={} if content is None else {"Content-Type": "application/json"},
        )
        assert reply.is_success, (text, reply.text)


@pytest.fixture(params=["cli", "http", "python"])
def elsewhere(request: pytest.FixtureRequest, server: Server, home: Path) -> Elsewhere:
    return Elsewhere(server, home, request.param)


def question(server: Server, run: str) -> Any:
    return next(one for one in server.get("/api/approvals")["items"] if one["run_id"] == run)


def test_a_copied_command_does_what_the_dialog_would_do(server: Server, elsewhere: Elsewhere) -> None:
    elsewhere.do("run", **FORM)
    run = server.get("/api/runs")["items"][0]["run_id"]
    wait_until(server, run, "waiting")
    prompt = server.get(f"/api/runs/{run}/steps/note")["prompt"]["text"]
    assert prompt == 'Bob\'s $HOME `owls`\nby night ["a b","c\\""]'
    seen = question(server, run)["seen"]
    elsewhere.do("approve", run=run, step="ok", choice="ship", comment="it's -fine", seen=seen)
    while question(server, run)["step"] != "when":
        pass
    elsewhere.do("answer", run=run, step="when", text="--now")
    wait_until(server, run, "completed")
    assert server.get(f"/api/runs/{run}")["output"] == {
        "decision": "ship",
        "comment": "it's -fine",
        "when": "--now",
    }
    elsewhere.do("apply", run=run, step="note")
    assert (server.folder / "n.txt").read_text() == "new\n"
    elsewhere.do("undo", run=run)
    assert not (server.folder / "n.txt").exists()
    elsewhere.do("fork", run=run, step="when", yes=True)
    forked = server.get("/api/runs")["items"][0]
    assert forked["forked_from"] == run
    wait_until(server, forked["run_id"], "waiting", "paused")  # who leaves Python pauses what it drives
    elsewhere.do("pause", run=forked["run_id"])
    elsewhere.do("resume", run=forked["run_id"])
    wait_until(server, forked["run_id"], "waiting", "paused")
    elsewhere.do("cancel", run=forked["run_id"])
    assert server.get(f"/api/runs/{forked['run_id']}/head")["status"] == "cancelled"
    elsewhere.do("retry", run=forked["run_id"], yes=True)
    again = server.get("/api/runs")["items"][0]["run_id"]
    assert again not in (run, forked["run_id"])
    for action in ("inspect", "explain", "diff", "transcript"):
        elsewhere.do(action, run=run, **({"step": "note"} if action != "diff" else {}))


def test_a_tool_is_called_with_words_that_it_takes(server: Server) -> None:
    from fanfold.api.tool_registry import TOOLS

    takes = {tool.name: tool.takes for tool in TOOLS}
    import msgspec

    start = {name: FORM[name] for name in ("recipe", "inputs")}
    for body in ({"action": "inspect", "run": "last", "step": "note"}, {"action": "run", **start}):
        called = msgspec.json.decode(server.post("/api/copy", body)["mcp"])
        msgspec.convert(called["arguments"], takes[called["tool"]])
    # What a model may not choose is not said as if it could.
    assert server.post("/api/copy", {"action": "run", **FORM})["mcp"] is None
