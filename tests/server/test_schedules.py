"""Schedules and webhooks: at most one run for each occurrence, none lost, and nothing for strangers."""

import asyncio
import hmac
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import msgspec
import pytest
from starlette.types import Message

from fanfold.api.notifications import sign
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.schedules import (
    Cron,
    Occurrence,
    Schedule,
    ScheduleState,
    add_schedule,
    deliver,
    list_schedules,
    start_due,
)
from fanfold.api.start import start
from fanfold.errors import FanfoldError
from fanfold.server.service import MAX_READ, Webhooks
from fanfold.steps.ids import run_id_of
from fanfold.wiring import wire
from tests.server.conftest import Server, ended, serving
from tests.stepped_clock import SteppedClock, build
from tests.work import PATIENCE_S

READS = """\
name: reads
inputs: [{name: text, default: x}]
steps: [{id: a, agent: explorer, prompt: "{{inputs.text}}"}]
"""
PROPOSES = """\
name: proposes
inputs: [{name: text, default: x}]
steps: [{id: a, agent: worker, prompt: "{{inputs.text}}", write_set: [a.txt], merge: propose}]
"""
WRITES = PROPOSES.replace("proposes", "writes").replace(", merge: propose", "")
RUNS = "name: runs\ninputs: [{name: text, default: x}]\nsteps: [{id: a, run: [echo, '{{inputs.text}}']}]\n"
SCRIPT = "default: done\n"
SECRET = "a-secret-of-this-test"
MINUTE = 60_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "project"
    (made / ".fanfold/workflows").mkdir(parents=True)
    for text in (READS, PROPOSES, WRITES, RUNS):
        name = text.partition("\n")[0].removeprefix("name: ")
        (made / f".fanfold/workflows/{name}.yaml").write_text(text)
    (made / "script.yaml").write_text(SCRIPT)
    monkeypatch.chdir(made)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "home/.fanfold"))
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    return made


@pytest.fixture
def project(folder: Path) -> Iterator[Project]:
    with closing(wire(folder)) as opened:
        yield opened


def every_minute(name: str = "tick", **more: Any) -> Schedule:
    return Schedule(name=name, recipe="reads", script=SCRIPT, cron="* * * * *", **more)


def outcomes(project: Project, name: str = "tick") -> list[str]:
    (row,) = [one for one in list_schedules(project).schedules if one.schedule.name == name]
    return [one.outcome for one in row.latest]


def runs(folder: Path, home: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ended(folder, home, "runs", "--json").stdout)
    return found


# -- cron


@pytest.mark.parametrize(
    ("text", "zone", "after", "wanted"),
    [
        ("0 3 * * *", "UTC", "2026-01-01T03:00", "2026-01-02T03:00"),
        ("*/15 9-17 * * mon-fri", "UTC", "2026-01-02T17:45", "2026-01-05T09:00"),
        ("0 0 13 * fri", "UTC", "2026-01-01T00:00", "2026-01-02T00:00"),
        ("30 6 29 feb *", "UTC", "2026-01-01T00:00", "2028-02-29T06:30"),
        ("0 9 * * *", "Asia/Kolkata", "2026-06-01T00:00", "2026-06-01T03:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T01:30"),  # 02:30 does not exist
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T00:30"),  # the first of two
        ("@weekly", "UTC", "2026-01-01T00:00", "2026-01-04T00:00"),
    ],
)
def test_the_next_time_of_an_expression(text, zone, after, wanted):
    moments = [
        int(datetime.fromisoformat(one).replace(tzinfo=UTC).timestamp() * 1_000) for one in (after, wanted)
    ]
    assert Cron.parse(text, zone).next_after(moments[0]) == moments[1]


def test_a_repeated_hour_of_autumn_starts_a_daily_time_once():
    cron = Cron.parse("30 2 * * *", "Europe/Berlin")
    first = cron.next_after(int(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp() * 1_000))
    assert datetime.fromtimestamp(cron.next_after(first) / 1_000, UTC).day == 26


@pytest.mark.parametrize(
    "text", ["*/7 1-5/2 1,15 jan-mar *", "5 0 * * 0,6", "59 23 31 12 *", "0 */6 1-7 * mon"]
)
def test_times_agree_with_a_search_minute_by_minute(text):
    zone = ZoneInfo("America/New_York")
    cron = Cron.parse(text, "America/New_York")
    words = text.split()
    at = datetime(2026, 1, 30, 22, 7, tzinfo=UTC)
    found = datetime.fromtimestamp(cron.next_after(int(at.timestamp() * 1_000)) / 1_000, UTC)
    one = at + timedelta(minutes=1)
    while one < found:
        local = one.astimezone(zone)
        fits = local.minute in cron.minutes and local.hour in cron.hours and local.month in cron.months
        days = [local.day in cron.days, local.isoweekday() % 7 in cron.weekdays]
        restricted = not words[2].startswith("*") and not words[4].startswith("*")
        assert not (fits and (any(days) if restricted else all(days))), local
        one += timedelta(minutes=1 if found - one < timedelta(days=2) else 61)


@pytest.mark.parametrize(
    ("text", "zone"),
    [("* * * *", "UTC"), ("60 * * * *", "UTC"), ("*/0 * * * *", "UTC"), ("5-1 * * * *", "UTC"),
     ("0 0 31 2 *", "UTC"), ("x * * * *", "UTC"), ("* * * * *", "Mars/Olympus"), ("* * * * *", "../etc")],
)  # fmt: skip
def test_a_time_that_means_nothing_is_refused(text, zone):
    with pytest.raises(FanfoldError) as caught:
        Cron.parse(text, zone)
    assert caught.value.code == "schedule.bad_value"
    assert (text if zone == "UTC" else zone) in str(caught.value)
    assert caught.value.hint


# -- times


@pytest.mark.full
def test_an_occurrence_starts_one_run_however_often_it_is_looked_at(project):
    add_schedule(project, every_minute())
    now = list_schedules(project).schedules[0].next_at
    assert now is not None
    start_due(project, now - 1)
    assert project.heads() == []
    for moment in (now, now, now + 1_000, now - 3_600_000, now + 2_000):
        start_due(project, moment)
    assert len(project.heads()) == 1
    start_due(project, now + MINUTE)
    assert len(project.heads()) == 2
    assert outcomes(project) == ["started", "started"]


@pytest.mark.full
@pytest.mark.parametrize(("missed", "count"), [("latest", 1), ("skip", 0), ("all", 24)])
def test_missed_times_are_treated_by_policy(project, missed, count):
    hourly = msgspec.structs.replace(every_minute(missed=missed, max_per_day=100), cron="0 * * * *")
    add_schedule(project, hourly)
    due = list_schedules(project).schedules[0].next_at
    assert due is not None
    start_due(project, due + 71 * 3_600_000 + 600_000)  # ten minutes after the last of 72
    assert len(project.heads()) == count


@pytest.mark.full
def test_a_cap_for_the_day_is_kept_and_what_exceeds_it_is_listed(project):
    add_schedule(project, every_minute(max_per_day=2))
    first = list_schedules(project).schedules[0].next_at
    assert first is not None
    noon = first - first % 86_400_000 + 86_400_000 + 43_200_000
    for number in range(4):
        start_due(project, noon + number * MINUTE)
    assert outcomes(project)[-4:] == ["started", "started", "capped", "capped"]
    start_due(project, noon + 86_400_000)
    assert outcomes(project)[-1] == "started"


@pytest.mark.full
@pytest.mark.parametrize("created", [False, True])
def test_a_server_killed_before_or_after_it_created_the_run_loses_and_doubles_nothing(
    folder, tmp_path, created
):
    with closing(wire(folder)) as project:
        add_schedule(project, every_minute())
        file = project.own_file("schedules", "json")
        states = msgspec.json.decode(file.read_bytes(), type=dict[str, ScheduleState])
        state, key = states["tick"], "60000"
        run = run_id_of("tick", str(state.schedule.created_at), key)
        state.occurrences.append(Occurrence(key=key, at=state.schedule.created_at, run_id=run))
        file.write_bytes(msgspec.json.encode(states))  # as the killed server left it
        if created:
            plan = project.plan_of("reads", scripted=True)
            start(project, plan, {}, Options(script=SCRIPT), run_id=run).let_go()
    with serving(folder, tmp_path / "home") as serve:
        server = serve()
        _ends(server, run)
    assert [one["run_id"] for one in runs(folder, tmp_path / "home")].count(run) == 1


def _ends(server: Server, run: str) -> None:
    """Wait until a run that is about to be started has ended."""
    with server.client.stream("GET", "/api/stream") as stream:
        if _status(server, run) != "completed":
            lines = stream.iter_lines()
            assert any(run in line and "completed" in line for line in lines)


def _status(server: Server, run: str) -> str:
    reply = server.client.get(f"/api/runs/{run}")
    return str(reply.json().get("status", ""))


@pytest.mark.full
def test_two_servers_a_stepped_clock_and_a_kill_start_each_time_once(folder, tmp_path, monkeypatch):
    library = build(tmp_path)
    if isinstance(library, str):
        pytest.skip(f"{library}: apt-get install gcc")
    clock = SteppedClock(library, tmp_path / "offset")
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home"
    words = ("schedule", "add", "nightly", "reads", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin")
    added = ended(folder, home, *words, "--script", "script.yaml", "--json")
    assert added.returncode == 0, added.stderr
    due_s = json.loads(added.stdout)["next_at"] / 1_000
    with serving(folder, home) as serve:
        first, second = serve(), serve()
        with second.client.stream("GET", "/api/stream") as stream:
            lines = stream.iter_lines()
            clock.ahead(int(due_s - datetime.now(UTC).timestamp()) + 1)
            assert any('"completed"' in line for line in lines)
            first.process.send_signal(signal.SIGKILL)
            clock.ahead(int(due_s - datetime.now(UTC).timestamp()) - 7_200)  # back two hours
            clock.ahead(int(due_s - datetime.now(UTC).timestamp()) + 86_401)  # and to the next night
            assert any('"completed"' in line for line in lines)
    shown = json.loads(ended(folder, home, "schedule", "list", "--json").stdout)["schedules"][0]
    assert [one["outcome"] for one in shown["latest"]] == ["started", "started"]
    assert len(runs(folder, home)) == 2


# -- permission


def test_a_recipe_whose_effects_changed_is_refused_until_it_is_added_again(project, folder):
    add_schedule(project, msgspec.structs.replace(every_minute(), recipe="reads"))
    (folder / ".fanfold/workflows/reads.yaml").write_text(RUNS.replace("name: runs", "name: reads"))
    due = list_schedules(project).schedules[0].next_at
    assert due is not None
    with closing(wire(folder)) as again:
        start_due(again, due)
        assert again.heads() == []
        assert outcomes(again) == ["refused"]


def refusal_after(folder: Path, schedule: Schedule, file: str, text: str) -> str:
    """Add a schedule, change a file, let the time come; return why no run was started."""
    with closing(wire(folder)) as project:
        due = add_schedule(project, schedule).next_at
        assert due is not None
    (folder / file).write_text(text)
    with closing(wire(folder)) as project:
        start_due(project, due)
        assert project.heads() == []
        return list_schedules(project).schedules[0].latest[-1].message


def test_a_function_whose_code_changed_is_not_called_until_the_schedule_is_added_again(folder):
    (folder / "tools.py").write_text("def work():\n    return 1\n")
    recipe = "name: calls\nsteps: [{id: a, handler: 'tools:work'}]\n"
    (folder / ".fanfold/workflows/calls.yaml").write_text(recipe)
    job = Schedule(name="job", recipe="calls", cron="* * * * *")
    other = "def work():\n    return 2\n"
    assert "effects of calls changed" in refusal_after(folder, job, "tools.py", other)


def test_a_recipe_that_came_to_need_many_agents_is_refused_until_it_is_added_again(folder):
    file = ".fanfold/workflows/reads.yaml"
    steps = ", ".join(f"{{id: a{number}, agent: explorer, prompt: x}}" for number in range(60))
    job = Schedule(name="job", recipe="reads", cron="* * * * *")
    assert "effects of reads changed" in refusal_after(folder, job, file, f"name: reads\nsteps: [{steps}]\n")


def test_a_recipe_that_changes_while_the_question_is_open_is_not_permitted(project):
    shown = msgspec.structs.replace(every_minute(), permitted="what the question showed")
    with pytest.raises(FanfoldError) as caught:
        add_schedule(project, shown)
    assert caught.value.code == "schedule.changed"


@pytest.mark.parametrize("recipe", ["writes", "runs"])
def test_text_of_strangers_reaches_no_recipe_that_writes_or_runs_programs(project, recipe):
    hook = Schedule(name="hook", recipe=recipe, webhook="github", secret_env="HOOK_SECRET")
    with pytest.raises(FanfoldError) as caught:
        add_schedule(project, hook)
    assert caught.value.code == "schedule.not_for_strangers"
    add_schedule(project, msgspec.structs.replace(hook, allow_effects=True))


@pytest.mark.parametrize("recipe", ["reads", "proposes"])
def test_text_of_strangers_may_reach_a_recipe_that_reads_or_proposes(project, recipe):
    hook = Schedule(name="hook", recipe=recipe, webhook="github", secret_env="HOOK_SECRET")
    assert add_schedule(project, hook).next_at is None


def test_files_and_setup_of_the_user_keep_no_text_of_strangers_out(folder, tmp_path):
    (tmp_path / "home/.fanfold").mkdir(parents=True)
    own = '[workspace]\ninclude = [".env.test"]\nsetup = ["true"]\n'
    (tmp_path / "home/.fanfold/config.toml").write_text(own)
    hook = Schedule(name="hook", recipe="proposes", webhook="github", secret_env="HOOK_SECRET")
    with closing(wire(folder)) as opened:
        assert add_schedule(opened, hook).next_at is None
        with pytest.raises(FanfoldError, match="more than propose"):
            add_schedule(opened, msgspec.structs.replace(hook, name="other", recipe="runs"))


def test_a_scheduled_command_needs_the_permission_of_the_user(folder, tmp_path, capsys):
    from fanfold.cli.main import main

    words = ["schedule", "add", "job", "runs", "--cron", "@daily"]
    assert main(words) == 4
    assert "a runs: echo x" in capsys.readouterr().err
    assert main([*words, "--yes"]) == 0
    assert main(["schedule", "remove", "job"]) == 0
    assert main(["schedule", "remove", "job"]) == 6
    assert main(["schedule", "add", "job", "reads"]) == 2
    assert main(["schedule", "add", "hook", "reads", "--webhook", "github"]) == 2


# -- messages


@pytest.fixture
def hook(project: Project) -> Project:
    made = Schedule(
        name="hook", recipe="reads", webhook="gitlab", secret_env="HOOK_SECRET", payload={"text": "text"},
        script=SCRIPT,
    )  # fmt: skip
    add_schedule(project, made)
    return project


@pytest.mark.parametrize(
    "value", [b"[" * 120 + b"]" * 120, b"[" * 990 + b"]" * 990, b"9" * 400, b'"\\ud800"', b"1e999"]
)
def test_a_value_that_no_log_could_hold_is_refused_and_stops_no_other_schedule(hook, value):
    headers = {name.lower(): one for name, one in gitlab(b"").items()}
    with pytest.raises(FanfoldError) as caught:
        deliver(hook, "hook", headers, b'{"text": ' + value + b"}")
    assert caught.value.code == "schedule.bad_message"
    start_due(hook)
    assert outcomes(hook, "hook") == []


def test_a_refused_message_leaves_none_of_its_text_in_the_file_of_schedules(hook, folder):
    (folder / ".fanfold/workflows/reads.yaml").write_text(RUNS.replace("name: runs", "name: reads"))
    headers = {name.lower(): one for name, one in gitlab(b"").items()}
    with closing(wire(folder)) as project, pytest.raises(FanfoldError) as caught:
        deliver(project, "hook", headers, b'{"text": "words of a stranger"}')
    assert caught.value.code == "schedule.refused"
    assert outcomes(hook, "hook") == ["refused"]
    assert "stranger" not in hook.own_file("schedules", "json").read_text().replace("strangers", "")


def test_a_message_gives_an_input_of_any_type_and_the_others_are_still_required(folder):
    inputs = "[{name: files, type: array, required: true}, {name: text, required: true}]"
    recipe = f"name: reads\ninputs: {inputs}\nsteps: [{{id: a, agent: explorer, prompt: x}}]\n"
    (folder / ".fanfold/workflows/reads.yaml").write_text(recipe)
    hook = Schedule(
        name="hook", recipe="reads", webhook="gitlab", secret_env="HOOK_SECRET", payload={"files": "files"}
    )
    with closing(wire(folder)) as again:
        with pytest.raises(FanfoldError) as caught:
            add_schedule(again, hook)
        assert caught.value.code == "recipe.missing_input"
        add_schedule(again, msgspec.structs.replace(hook, inputs={"text": "x"}))


@pytest.mark.parametrize("secret", ["", "short"])
def test_a_stranger_does_not_learn_that_the_secret_is_missing(hook, monkeypatch, secret):
    monkeypatch.setenv("HOOK_SECRET", secret)
    with pytest.raises(FanfoldError) as caught:
        deliver(hook, "hook", {}, b"{}")
    assert (caught.value.code, caught.value.message) == ("request.unauthorized", "the signature is wrong")


@pytest.mark.full
def test_a_flood_of_messages_beyond_the_cap_does_not_renew_it(hook, monkeypatch):
    monkeypatch.setattr("fanfold.api.schedules.MAX_KEPT", 3)
    add_schedule(hook, msgspec.structs.replace(_schedule(hook), max_per_day=2), replace=True)
    results = [_sent(hook, f'{{"text": "{number}"}}') for number in range(8)]
    assert results == ["started", "started", *["schedule.capped"] * 6]
    assert _sent(hook, '{"text": "0"}') == "duplicate"


@pytest.mark.full
def test_a_message_starts_no_second_run_after_its_schedule_was_replaced(hook):
    assert _sent(hook, '{"text": "once"}') == "started"
    add_schedule(hook, msgspec.structs.replace(_schedule(hook), max_per_day=1), replace=True)
    assert _sent(hook, '{"text": "once"}') == "duplicate"
    assert _sent(hook, '{"text": "twice"}') == "schedule.capped"
    assert len(hook.heads()) == 1


def _schedule(project: Project) -> Schedule:
    return list_schedules(project).schedules[0].schedule


def _sent(project: Project, body: str) -> str:
    """Deliver a message; return its outcome or the code of its error."""
    headers = {name.lower(): one for name, one in gitlab(b"").items()}
    try:
        return deliver(project, "hook", headers, body.encode()).outcome
    except FanfoldError as error:
        return error.code


def test_a_secret_that_is_not_base64_is_refused_when_the_schedule_is_added(project, monkeypatch):
    monkeypatch.setenv("HOOK_SECRET", "whsec_aaaaaaaaaaaaaaaaa")
    with pytest.raises(FanfoldError) as caught:
        add_schedule(project, Schedule(name="hook", recipe="reads", webhook="hmac", secret_env="HOOK_SECRET"))
    assert caught.value.code == "schedule.no_secret"


def test_slow_messages_keep_no_other_message_out(project):
    asyncio.run(_among_slow_ones(project))


async def _among_slow_ones(project: Project) -> None:
    hooks, begun = Webhooks(lambda: project), asyncio.Semaphore(0)
    statuses: list[int] = []

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    async def never() -> Message:
        begun.release()
        await asyncio.Event().wait()
        raise AssertionError

    async def at_once() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/hooks/none",
        "raw_path": b"/hooks/none",
        "headers": [],
    }
    slow = [asyncio.create_task(hooks(scope, never, send)) for _ in range(MAX_READ)]
    for _ in slow:
        await begun.acquire()
    await hooks(scope, at_once, send)
    assert 401 in statuses
    await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
    assert [one.done() for one in slow] == [True] + [False] * (MAX_READ - 1)
    for one in slow:
        one.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


# -- webhooks over loopback


def github(body: bytes, secret: str = SECRET, event: str = "pull_request") -> dict[str, str]:
    signature = hmac.new(secret.encode(), body, "sha256").hexdigest()
    return {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Event": event, "X-GitHub-Delivery": "1"}


def gitlab(body: bytes, secret: str = SECRET) -> dict[str, str]:
    del body
    return {"X-Gitlab-Token": secret, "X-Gitlab-Event": "Push Hook"}


def generic(body: bytes, secret: str = SECRET, age_s: int = 0) -> dict[str, str]:
    moment = str(int(datetime.now(UTC).timestamp()) - age_s)
    signature = sign(secret, "m1", moment, body)
    return {"webhook-id": "m1", "webhook-timestamp": moment, "webhook-signature": f"v1,x {signature}"}


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[Server]:
    for kind in ("github", "gitlab", "hmac"):
        more = ("--event", "pull_request") if kind == "github" else ()
        added = ended(
            folder, tmp_path / "home", "schedule", "add", kind, "proposes", "--webhook", kind, "--secret-env",
            "HOOK_SECRET", "--payload", "text=pull.title", "--max-per-day", "2", *more,
            "--script", "script.yaml",
        )  # fmt: skip
        assert added.returncode == 0, added.stderr
    with serving(folder, tmp_path / "home") as serve:
        yield serve()


def post(server: Server, name: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    return httpx2.post(f"{server.url}hooks/{name}", content=body, headers=headers, timeout=PATIENCE_S)


@pytest.mark.full
@pytest.mark.parametrize(("name", "signed"), [("github", github), ("gitlab", gitlab), ("hmac", generic)])
def test_a_signed_message_starts_one_run_and_its_repetition_none(server, folder, name, signed):
    body = json.dumps({"pull": {"title": "Fix {{inputs.text}} $(rm -rf .)"}}).encode()
    first = post(server, name, body, signed(body))
    assert (first.status_code, first.json()["outcome"]) == (202, "started"), first.text
    again = post(server, name, body, signed(body))
    assert (again.status_code, again.json()) == (200, {**first.json(), "outcome": "duplicate"})
    run = first.json()["run_id"]
    _ends(server, run)
    assert [one["run_id"] for one in runs(folder, folder.parent / "home")] == [run]
    for refused in (signed(body, "another-secret-of-16"), {}, {"Authorization": f"Bearer {server.token}"}):
        assert post(server, name, body + b" ", refused).status_code == 401
    assert post(server, "none-such", body, signed(body)).status_code == 401


@pytest.mark.full
def test_events_caps_ages_and_bad_messages_of_webhooks(server):
    body = b'{"pull": {"title": "a"}}'
    assert post(server, "github", body, github(body, event="push")).json()["outcome"] == "ignored"
    assert post(server, "github", b"{}", github(b"{}")).status_code in (400, 422)
    assert post(server, "github", b"no", github(b"no")).status_code in (400, 422)
    assert post(server, "hmac", body, generic(body, age_s=3_600)).status_code == 401
    large = b'{"pull": {"title": "' + b"a" * 1_100_000 + b'"}}'
    assert post(server, "gitlab", large, gitlab(large)).status_code == 413
    assert httpx2.get(f"{server.url}hooks/github").status_code == 401
    statuses = []
    for number in range(3):
        one = json.dumps({"pull": {"title": str(number)}}).encode()
        statuses.append(post(server, "gitlab", one, gitlab(one)).status_code)
    assert statuses == [202, 202, 429]
    hooks = server.get("/api/schedules")["schedules"]
    assert [one["schedule"]["name"] for one in hooks] == ["github", "gitlab", "hmac"]
    assert SECRET not in json.dumps(hooks)


@pytest.mark.full
def test_a_page_of_another_origin_cannot_send_a_message(server):
    body = b'{"pull": {"title": "a"}}'
    origin = {**github(body), "Origin": "https://evil.example"}
    assert post(server, "github", body, origin).status_code == 403
