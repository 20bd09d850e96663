"""`make demo`, as far as it goes without fetching a model."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.work import PATIENCE_S
from tools import demo
from tools.tidy import ROOT

pytestmark = pytest.mark.full


def test_the_demo_is_killed_continues_and_leaves_a_repository_whose_tests_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = tmp_path / "signs"  # with a key that is not here
    signs.write_text("[commit]\ngpgsign = true\n[gpg]\nprogram = /nonexistent\n[core]\nautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(signs))
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--agents", "scripted", "--no-local", "--folder", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "running (no process)" in done.stdout
    assert "resumed" in done.stderr
    tests = subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=tmp_path / "shop", check=False)
    assert tests.returncode == 0


def test_an_agent_program_with_named_credentials_is_offered_and_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 2.1.7\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FANFOLD_HOME", raising=False)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "not-a-real-one")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "FANFOLD_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(demo, "OLLAMA_PORT", 9)  # where nobody listens
    assert demo.a_worker() == ("", [])
    told = capsys.readouterr().out
    assert "Claude Code is installed." in told
    assert 'credentials = ["ANTHROPIC_AUTH_TOKEN"]' in told
    (tmp_path / ".fanfold" / "backends").mkdir(parents=True)
    (tmp_path / ".fanfold" / "backends" / "claude.toml").write_text(
        'credentials = ["ANTHROPIC_AUTH_TOKEN"]\n'
    )
    assert demo.a_worker() == ("Claude Code 2.1.7, on your account,", ["--agent-backend", "claude"])
    assert demo.choose_agents(None) == demo.SCRIPTED  # there is no terminal
    assert "Without a terminal the agents are scripted" in " ".join(capsys.readouterr().out.split())
    assert demo.choose_agents("real") == ["--agent-backend", "claude"]
