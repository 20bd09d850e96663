"""The recipe of the docs: Claude Code plans, two Codex workers write side by side, a model reviews."""

import subprocess
import sys
import time
from datetime import datetime

import pytest

from tests.cli.agent_world import AgentWorld, writing
from tests.real_agents.provider import KEY
from tests.real_agents.team import write_team
from tools.tidy import ROOT


@pytest.fixture
def provider(tmp_path):
    """A provider of models, as a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "tests.real_agents.provider", str(tmp_path)], cwd=ROOT)
    port = tmp_path / "port"
    deadline = time.monotonic() + 30
    while not (port.exists() and port.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield int(port.read_text())
    process.kill()
    process.wait()


def test_it_works_on_stand_ins(project, tmp_path, monkeypatch, fanfold, provider):
    agents = AgentWorld(project, tmp_path / "home", monkeypatch)
    write_team(project)
    agents.install("claude", {"says": "claude-stream-json.jsonl"})
    parts = {f"concerns {part}/": {"writes": {f"{part}/made.txt": f"{part}\n"}} for part in ("api", "web")}
    agents.install("codex", writing("codex", writes={}, told=parts, takes_s=1))
    for name in ("claude", "codex"):
        agents.profile(name, "credentials = []\n")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{provider}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("FANFOLD_MODEL", "openai:m1")
    done = fanfold("run", "team.yaml", "-i", "task=Name the service", "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    assert done["output"] == "A title", "the model said something"
    assert [(project / part / "made.txt").read_text() for part in ("api", "web")] == ["api\n", "web\n"]
    begins, ends = (
        {name: datetime.fromisoformat(done["steps"][name][key]) for name in ("api", "web")}
        for key in ("started_at", "ended_at")
    )
    assert max(begins.values()) < min(ends.values()), "side by side"
    plan, *_ = agents.calls()
    assert "api/ and one for web/: Name the service" in plan["stdin"]
    assert plan["wrote"] == {}
