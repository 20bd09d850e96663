"""What the docs say of agents that are programs: commands to copy, and a recipe in which several work."""

import subprocess
import sys
import time
from datetime import datetime

import pytest

from tests.cli.agent_world import AgentWorld, writing
from tests.levels import needs_bubblewrap
from tests.real_agents.provider import KEY
from tests.real_agents.team import write_team
from tests.work import PATIENCE_S, long_enough_ms
from tools import markdown
from tools.tidy import ROOT

pytestmark = pytest.mark.full


@pytest.fixture
def provider(tmp_path):
    """A provider of models, as a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "tests.real_agents.provider", str(tmp_path)], cwd=ROOT)
    port = tmp_path / "port"
    deadline = time.monotonic() + PATIENCE_S
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
    agents.install("codex", writing("codex", writes={}, told=parts, takes_s=long_enough_ms(1_000) / 1_000))
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


@needs_bubblewrap
@pytest.mark.parametrize("page", ["README.md", "docs/agents.md"])
def test_commands_on_the_page_work_as_copied(project, tmp_path, monkeypatch, page):
    agents = AgentWorld(project, tmp_path / "home", monkeypatch)
    recipes = markdown.blocks((ROOT / "README.md").read_text("utf-8"))
    [recipe] = [block.text for block in recipes if block.text.startswith("# tidy-up.yaml")]
    (project / "tidy-up.yaml").write_text(recipe)
    blocks = markdown.blocks((ROOT / page).read_text("utf-8"))
    [typed] = [block.text for block in blocks if "--agent-backend claude" in block.text]
    login = agents.home / ".claude" / ".credentials.json"
    login.parent.mkdir()
    login.write_text('{"claudeAiOauth": {"accessToken": "of-the-user", "refreshToken": "for-once"}}')
    before = login.read_bytes()
    agents.install("claude", writing("claude", told={"Remove what": {"writes": {"src/made.py": "x = 1\n"}}}))
    (agents.bin / "pytest").write_text("#!/bin/sh\ntest -f src/made.py && echo 1 passed\n")
    (agents.bin / "fanfold").write_text(f'#!/bin/sh\nexec {sys.executable} -m fanfold.cli.main "$@"\n')
    for name in ("pytest", "fanfold"):
        (agents.bin / name).chmod(0o755)
    typed = typed.replace("--agent-backend claude", "--agent-backend claude --yes")
    environment = {"HOME": str(agents.home), "PATH": f"{agents.bin}:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-ec", typed], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert (project / "src" / "made.py").read_text() == "x = 1\n"
    assert login.read_bytes() == before
