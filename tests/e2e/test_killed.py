"""`kill -9` at every kind of moment of a model's work: what was paid for is kept, what is unknown is told."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fanfold.agents.models.messages import UNKNOWN
from tests.e2e import processes, team
from tests.e2e.world import MODELS, Project, Provider, Script
from tests.provider import Call, Fault, RecordedRequest, Reply

pytestmark = pytest.mark.full

SLEEP = f"sleep 86{os.getpid()}"
"""What a blocked program can be told by."""
BLOCKED = f"mkdir -p notes; echo ran >> notes/ran.txt; exec {SLEEP}"


@contextmanager
def killed(
    project: Project, wire: str, script: Script, ripe: Callable[[Provider, subprocess.Popen[str]], None]
) -> Iterator[Provider]:
    """A run of the team that was killed when it was ripe, with everything it had started."""
    team.set_up(project)
    with Provider(script) as provider:
        project.environment |= provider.environment
        process = project.start("run", "team.yaml", "--model", MODELS[wire], "--yes", "--json")
        ripe(provider, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        processes.until(lambda: processes.of_project(project.folder) == [], "something outlived its run")
        yield provider


def resume(project: Project, provider: Provider, *, asked_in_vain: int = 0) -> None:
    """Take the run over; it ends as if nothing had happened, and nothing is paid for twice."""
    provider.script = team.answer
    done = project("resume", "last", "--json")
    assert done.status == 0, done.err
    result = done.json
    assert (result["status"], result["output"]) == ("completed", team.VERDICT)
    assert {step["attempts"] for step in result["steps"].values()} == {1}, "a crash is nobody's failure"
    team.check_files(project)
    assert provider.paid_twice() == []
    assert len(provider.given) == team.RESPONSES
    assert len(provider.asked) == team.RESPONSES + asked_in_vain
    assert result["usage"]["input_tokens"] == sum(reply.input_tokens for _, reply in provider.given)
    assert result["usage"]["output_tokens"] == sum(reply.output_tokens for _, reply in provider.given)
    verified = project("verify", "--all")
    assert verified.status == 0, verified.out
    assert processes.of_project(project.folder) == []


def stalls_at(who: str, turn: int) -> Script:
    """The team's answers, but one that stops in the middle and never goes on."""
    return lambda asked: Fault("stall") if team.at(asked) == (who, turn) else team.answer(asked)


def asked_at(who: str, turn: int) -> Callable[[Provider, object], None]:
    """Ripe when that request has arrived."""

    def ripe(provider: Provider, _: object) -> None:
        provider.until(lambda asked: team.at(asked) == (who, turn))

    return ripe


@pytest.mark.parametrize(
    ("who", "turn", "wire"),
    [("EXPLORE", 0, "messages"), ("WORK", 2, "responses"), ("JUDGE", 1, "chat")],
    ids=["first-response", "between-two-calls", "typed-answer"],
)
def test_killed_during_a_response_only_that_response_is_asked_for_again(
    project: Project, who: str, turn: int, wire: str
):
    with killed(project, wire, stalls_at(who, turn), asked_at(who, turn)) as provider:
        before = [team.at(asked) for asked in provider.asked]
        resume(project, provider, asked_in_vain=1)
        assert [team.at(asked) for asked in provider.asked][len(before)] == (who, turn)


def test_killed_again_and_again_it_still_pays_once(project: Project):
    with killed(project, "chat", stalls_at("EXPLORE", 1), asked_at("EXPLORE", 1)) as provider:
        for who, turn in (("WORK", 1), ("WORK", 4)):
            provider.script = stalls_at(who, turn)
            process = project.start("resume", "last")
            asked_at(who, turn)(provider, process)
            process.kill()
            process.communicate()
        resume(project, provider, asked_in_vain=3)


def blocks(calls: tuple[Call, ...]) -> Script:
    """The team's answers, but the worker's program does not end."""
    return lambda asked: Reply(calls=calls) if team.at(asked) == ("WORK", 2) else team.answer(asked)


def program_runs(*_: object) -> None:
    processes.until(lambda: processes.runs(SLEEP), "the program never ran")


@pytest.mark.parametrize("wire", MODELS)
def test_killed_while_a_program_runs_the_model_hears_that_the_outcome_is_unknown(project: Project, wire: str):
    calls = (Call("run_command", {"argv": ["sh", "-c", BLOCKED]}, "the_call"),)
    with killed(project, wire, blocks(calls), program_runs) as provider:
        assert not processes.runs(SLEEP)
        number = len(provider.asked)
        resume(project, provider)
        heard = provider.asked[number]
        assert team.at(heard) == ("WORK", 3), "the response that asked for the program was kept"
        assert heard.results["the_call"] == UNKNOWN


@pytest.mark.proof("kill and resume")
def test_killed_in_the_second_of_two_calls_the_first_keeps_its_result(project: Project):
    calls = (
        Call("write_file", {"path": "notes/more.md", "content": "more\n"}, "first"),
        Call("run_command", {"argv": ["sh", "-c", BLOCKED]}, "second"),
        Call("write_file", {"path": "notes/last.md", "content": "last\n"}, "third"),
    )
    with killed(project, "messages", blocks(calls), program_runs) as provider:
        number = len(provider.asked)
        resume(project, provider)
        results = provider.asked[number].results
        assert results["second"] == UNKNOWN
        assert "notes/more.md" in results["first"]
        assert "notes/last.md" in results["third"], "what had not begun is done now"
        assert project.file("notes/more.md").read_text() == "more\n"
        assert project.file("notes/last.md").read_text() == "last\n"


def test_killed_between_the_last_response_and_the_end_of_its_step_nothing_is_asked_again(project: Project):
    """The worker's changes wait for the workspace's lock; its answer is paid for and must survive that."""
    held: list[int] = []

    def script(asked: RecordedRequest) -> Reply:
        if team.at(asked) == ("WORK", 4):
            held.append(os.open(project.folder / ".fanfold/workspace/lock", os.O_RDWR))
            fcntl.flock(held[0], fcntl.LOCK_EX)
        return team.answer(asked)

    def ripe(_: Provider, process: subprocess.Popen[str]) -> None:
        processes.until(lambda: processes.waits_for_lock(process.pid), "it never came to the merge")

    with killed(project, "chat", script, ripe) as provider:
        os.close(held[0])
        resume(project, provider)
        assert team.at(provider.asked[-2]) == ("JUDGE", 0), "the next to be asked was the critic"
