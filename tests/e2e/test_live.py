"""What somebody at a terminal sees of agents while they work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.test_terminal import Terminal
from tests.e2e import processes
from tests.e2e.world import MODELS, Project, Provider, Script
from tests.provider import Call, Fault, RecordedRequest, Reply

pytestmark = pytest.mark.full

RECIPE = """\
name: one
steps: [{id: work, agent: worker, prompt: WORK}]
"""


@contextmanager
def watched(
    project: Project, wire: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    """A run at a terminal, killed when the test has seen enough."""
    project.file("one.yaml").write_text(RECIPE)
    monkeypatch.chdir(project.folder)
    with Provider(script) as provider:
        for name, value in (project.environment | provider.environment).items():
            monkeypatch.setenv(name, value)
        terminal = Terminal("run", "one.yaml", "--model", MODELS[wire], "--yes")
        try:
            yield terminal
        finally:
            terminal.process.kill()
            terminal.end()


@pytest.mark.parametrize("wire", MODELS)
def test_text_is_shown_as_it_arrives(project: Project, wire: str, monkeypatch: pytest.MonkeyPatch):
    """The response stops in its middle, so what is shown of it can only have come from the stream."""

    def script(asked: RecordedRequest) -> Reply | Fault:
        if asked.turns == 0:
            return Reply(text="I look around first.", calls=(Call("search_files", {"pattern": "x"}),))
        return Fault("stall", after=5)

    with watched(project, wire, script, monkeypatch) as terminal:
        assert "worker" in terminal.until("this will never")


def test_a_call_is_shown_while_it_is_carried_out(project: Project, monkeypatch: pytest.MonkeyPatch):
    def script(_: RecordedRequest) -> Reply:
        return Reply(text="Let me wait.", calls=(Call("run_command", {"argv": ["sleep", "600"]}),))

    with watched(project, "chat", script, monkeypatch) as terminal:
        terminal.until("→ run_command")
    processes.until(lambda: processes.of_project(project.folder) == [], "something outlived its run")


def test_a_provider_that_wants_us_to_wait_is_shown(project: Project, monkeypatch: pytest.MonkeyPatch):
    with watched(project, "chat", lambda _: Fault("rate_limit", retry_after_s=40), monkeypatch) as terminal:
        terminal.until("rate_limit, tries again in 40 s")
        explained = project("explain", "last", **os.environ).out
        assert "work is running; its request failed: openai" in explained
        assert "next attempt at" in explained
        monkeypatch.setenv("TZ", "Asia/Seoul")
        (logged,) = [
            line for line in project("logs", "last", **os.environ).out.splitlines() if "next" in line
        ]
        transcript = project("transcript", "last", "work", **os.environ).out
        assert "attempt 1 failed" in transcript
        assert f"next attempt at {logged.rpartition(' ')[2]}" in transcript
