"""Notifications over loopback: signed, repeated, not lost with a killed process, never set by a project."""

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from time import time

import pytest

from fanfold.api import notifications
from fanfold.api.notifications import NotificationOutbox, deliver_left, sign
from fanfold.wiring import wire
from tests.receiver import receiving
from tests.server.conftest import serving
from tests.work import PATIENCE_S

ASKS = """\
name: release
steps:
  - {id: look, agent: explorer, prompt: Look}
  - {id: ok, approve: "Publish it?", depends_on: [look]}
"""
SCRIPT = "default: found\n"
SECRET = "a-secret-of-this-test"


@pytest.fixture
def recipe(project: Path) -> Path:
    (project / "release.yaml").write_text(ASKS)
    (project / "script.yaml").write_text(SCRIPT)
    return project


def own_config(tmp_path: Path, text: str) -> None:
    home = tmp_path / "home" / ".fanfold"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(text)


def run_release(shell, **environment):
    return shell("run", "release.yaml", "--script", "script.yaml", "--json", **environment)


@pytest.mark.full
def test_a_waiting_run_sends_a_signed_webhook_that_links_to_the_approval(recipe, shell, tmp_path):
    with receiving() as receiver, serving(recipe, tmp_path / "home") as serve:
        server = serve()
        url = f"{receiver.url}/hook?x=1"
        done = run_release(shell, FANFOLD_NOTIFY_WEBHOOK=url, FANFOLD_NOTIFY_SECRET=SECRET)
        assert done.status == 3, done.err
        (request,) = receiver.wait(1)
    notice, run = request.json(), done.json()["run_id"]
    assert request.path == "/hook?x=1"
    assert notice["event"] == notice["status"] == "waiting"
    assert notice["message"] == "release waits for you: Publish it?"
    assert notice["step"] == "ok"
    assert notice["url"] == f"{server.url}runs/{run}?step=ok"
    assert notice["command"] == f"fanfold approve {run} ok"
    assert "token" not in request.body.decode()
    id, moment = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    assert id == notice["id"]
    assert request.headers["webhook-signature"] == sign(SECRET, id, moment, request.body)


@pytest.mark.full
def test_the_end_a_failure_and_a_limit_are_notified_and_only_those_that_are_wanted(recipe, shell):
    (recipe / "fails.yaml").write_text("default: {fail: {class: agent, message: broken}}\n")
    (recipe / "dear.yaml").write_text(
        "default: {output: x, usage: {input_tokens: 900, output_tokens: 900}}\n"
    )
    with receiving() as receiver:
        given = {"FANFOLD_NOTIFY_WEBHOOK": receiver.url, "FANFOLD_NOTIFY_SECRET": SECRET}
        run = run_release(shell, **given, FANFOLD_NOTIFY_ON="finished,limit").json()["run_id"]
        assert shell("approve", run, "ok", FANFOLD_NOTIFY_ON="finished", **given).status == 0
        assert receiver.wait(1)[0].json()["event"] == "finished"
        shell("run", "release.yaml", "--script", "fails.yaml", **given)
        failed = receiver.wait(2)[1].json()
        limited = shell(
            *("run", "release.yaml", "--script", "dear.yaml", "--budget-tokens", "1000", "--json"), **given
        )
        assert limited.status in (3, 5), limited.err
        third = receiver.wait(3)[2].json()
    assert (failed["event"], failed["status"]) == ("failed", "failed")
    assert "broken" in failed["message"]
    if limited.status == 5:
        assert third["event"] == "limit"
        assert "--budget-tokens" in third["command"]


@pytest.mark.full
def test_a_notice_of_a_limit_names_the_limit(recipe, shell):
    (recipe / "two.yaml").write_text(
        "name: two\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"
        "  - {id: b, agent: explorer, prompt: x, depends_on: [a]}\n"
    )
    (recipe / "dear.yaml").write_text(
        "default: {output: x, usage: {input_tokens: 900, output_tokens: 100}}\n"
    )
    with receiving() as receiver:
        given = {"FANFOLD_NOTIFY_WEBHOOK": receiver.url, "FANFOLD_NOTIFY_SECRET": SECRET}
        limited = shell("run", "two.yaml", "--script", "dear.yaml", "--budget-tokens", "1500", **given)
        notice = receiver.wait(1)[0].json()
    assert (limited.status, notice["event"]) == (5, "limit")
    assert notice["message"] == "two is paused: budget reached, 1,000 of 1,500 tokens spent"


@pytest.mark.full
def test_a_command_gets_the_notice_and_no_key_of_the_user(recipe, shell, tmp_path):
    seen = tmp_path / "seen.json"
    own_config(tmp_path, f"[notify]\ncommand = ['sh', '-c', 'cat > {seen}; env > {seen}.env']\n")
    run_release(shell, OPENAI_API_KEY="sk-canary-canary-canary", FANFOLD_NOTIFY_SECRET=SECRET)
    assert json.loads(seen.read_text())["event"] == "waiting"
    environment = Path(f"{seen}.env").read_text()
    assert "canary" not in environment
    assert SECRET not in environment


@pytest.mark.full
def test_a_desktop_notification_is_plain_text(recipe, shell, tmp_path):
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "notify-send").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/shown\n')
    (bin / "notify-send").chmod(0o755)
    (recipe / "release.yaml").write_text(ASKS.replace("Publish it?", "<b>Publish</b> & go?"))
    own_config(tmp_path, "[notify]\ndesktop = true\n")
    run_release(shell, PATH=f"{bin}:{os.environ['PATH']}")
    shown = (tmp_path / "shown").read_text()
    assert "--urgency=critical" in shown
    assert "&lt;b&gt;Publish&lt;/b&gt; &amp; go?" in shown


@pytest.mark.full
def test_the_delay_after_a_command_that_does_not_end_begins_when_it_is_stopped(
    recipe, shell, tmp_path, monkeypatch
):
    run = run_release(shell).json()["run_id"]
    own_config(tmp_path, '[notify]\ncommand = ["sleep", "1000"]\n')
    monkeypatch.setattr(notifications, "TIMEOUT_S", 0.5)
    with closing(wire(recipe)) as opened:
        outbox = NotificationOutbox(opened)
        outbox.mark(run, 0)
        started = time()
        deliver_left(opened)
        [queued] = outbox.queued()
    assert "did not end within" in queued.error
    assert queued.next_at - started >= notifications.TIMEOUT_S + notifications.FIRST_RETRY_S


@pytest.mark.full
def test_a_killed_process_loses_no_notice_and_the_server_repeats_it(recipe, shell, background, tmp_path):
    refused = []

    def refuse_first(request):
        refused.append(request)
        return (500, b"") if len(refused) == 1 else (200, b"")

    with receiving(refuse_first) as receiver, serving(recipe, tmp_path / "home") as serve:
        given = {"FANFOLD_NOTIFY_WEBHOOK": receiver.url, "FANFOLD_NOTIFY_SECRET": SECRET}
        own_config(tmp_path, f'[notify]\nwebhook = "{receiver.url}"\n')
        process = background("run", "release.yaml", "--script", "script.yaml", **given)
        receiver.wait(1)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
        os.environ["FANFOLD_NOTIFY_SECRET"] = SECRET
        try:
            serve()
        finally:
            del os.environ["FANFOLD_NOTIFY_SECRET"]
        first, second = receiver.wait(2)
    assert first.body.replace(b'"url":""', b"")[:40] == second.body[:40]
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


@pytest.mark.full
def test_events_that_a_killed_process_did_not_examine_are_notified_later(
    recipe, shell, tmp_path, monkeypatch
):
    run = run_release(shell).json()["run_id"]
    with receiving() as receiver:
        monkeypatch.setenv("FANFOLD_NOTIFY_WEBHOOK", receiver.url)
        monkeypatch.setenv("FANFOLD_NOTIFY_SECRET", SECRET)
        with closing(wire(recipe)) as opened:
            NotificationOutbox(opened).mark(
                run, 0
            )  # as a process that was killed right after a commit leaves it
            deliver_left(opened)
            assert [one.json()["event"] for one in receiver.wait(1)] == ["waiting"]
            deliver_left(opened)
            assert len(receiver.requests) == 1
            assert NotificationOutbox(opened).marked() == []


@pytest.mark.full
def test_a_folder_that_cannot_be_written_stops_no_run(recipe, shell, tmp_path):
    (tmp_path / "home/.fanfold").mkdir(parents=True)
    (tmp_path / "home/.fanfold/notices").write_text("a file in place of the folder")
    done = run_release(shell, FANFOLD_NOTIFY_WEBHOOK="http://127.0.0.1:9/", FANFOLD_NOTIFY_SECRET=SECRET)
    assert done.status == 3
    assert "RunNotifier stopped, the run continues" in done.err


def test_a_project_cannot_configure_notifications(project, fanfold):
    (project / ".fanfold").mkdir()
    for line in ("command = ['x']", "webhook = 'http://127.0.0.1:1'", "desktop = true", "on = ['failed']"):
        (project / ".fanfold/config.toml").write_text(f"[notify]\n{line}\n")
        refused = fanfold("runs")
        assert refused.status == 2
        assert "config.not_here" in refused.err


@pytest.mark.parametrize("line", ["on = ['never']", "command = 'x y'", "webhook = 'ftp://x'"])
def test_a_setting_that_means_nothing_is_refused(fanfold, tmp_path, line):
    own_config(tmp_path, f"[notify]\n{line}\n")
    refused = fanfold("runs")
    assert refused.status == 2
    assert "config.bad_value" in refused.err


def test_a_webhook_without_a_key_is_reported_by_doctor(fanfold, monkeypatch):
    monkeypatch.setenv("FANFOLD_NOTIFY_WEBHOOK", "http://127.0.0.1:1/")
    with closing(wire(Path())) as project:
        from fanfold.api.system import _observers

        (finding,) = _observers(project)
    assert (finding.level, finding.hint) == ("warning", "set FANFOLD_NOTIFY_SECRET")
