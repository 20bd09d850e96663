"""Schedules and webhooks: runs that `fanfold serve` starts at a time, or when another system sends an event.

Rules
* Schedules belong to the user. They are in a file of the user's own folder; a checkout cannot bring one.
* A run starts at most once for each occurrence, and an occurrence that was accepted is not lost. It is stored
  before the run is created, and the id of the run is derived from it. A server that is killed between two of
  these steps, a second server, or a delivery that is repeated finds the same run.
* Occurrences while no server ran (`missed`): `latest` starts one run, `skip` none, `all` one for each, but
  at most `MAX_MISSED`. A clock that is set back starts nothing twice.
* `max_per_day` limits the runs of one schedule. What exceeds it is dropped and listed.
* The user permits the effects of the recipe when the schedule is added. A recipe whose effects changed since,
  whose functions are in Python files that changed, or which would now be asked about because of its cost, is
  refused until the user adds the schedule again.
* The content of a webhook comes from strangers. It reaches only recipes that read or propose, unless the user
  allowed more (`allow_effects`). Agents of such a run are granted nothing beyond that. A value that the log
  could not hold is refused before it is stored.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from functools import lru_cache
from hashlib import sha256
from time import time
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct, structs

from fanfold.api.notifications import sign
from fanfold.api.ownership import continue_detached, run_in_background
from fanfold.api.permission import consent_of
from fanfold.api.project import Project
from fanfold.api.recipes import check_recipe
from fanfold.api.run_options import Options, RunOptions
from fanfold.api.start import check_startable, create, handlers_of, start, start_consent
from fanfold.errors import EXIT_PERMISSION, AuthorError, FanfoldError, NotFoundError, WorldError
from fanfold.kernel.plan import JSON, Plan
from fanfold.kernel.state import PENDING, RUNNING
from fanfold.language.inputs import bind_inputs, bind_known
from fanfold.language.json_text import strict
from fanfold.project_files import write_whole
from fanfold.steps.ids import run_id_of
from fanfold.steps.run_config import all_steps_below, read_sources

Missed: TypeAlias = Literal["latest", "skip", "all"]
Webhook: TypeAlias = Literal["github", "gitlab", "hmac"]

LOOK_S = 5.0
"""How often a server reads the schedules: another process may change them, or the clock may be set."""
NONE_S = 60.0
"""How often a server looks for the first schedule."""
ON_TIME_S = 90.0
"""An occurrence that is noticed this late still counts as on time."""
MAX_MISSED = 24
MAX_SCHEDULES = 200
MAX_KEPT = 1_000
"""Occurrences that are remembered for each schedule: so many that started a run, and so many others."""
COUNTED = ("pending", "started")
MAX_TRIES = 5
MAX_MESSAGE_CHARS = 500
MIN_SECRET_CHARS = 16
TOLERANCE_S = 300.0
"""The largest age of a message that carries its time."""
DAY_MS = 86_400_000


class Schedule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One schedule: by `cron` in `timezone`, or by a `webhook`."""

    name: str
    recipe: str
    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    script: str | None = None
    """The text of a script: scripted agents answer instead of models."""
    cron: str = ""
    timezone: str = "UTC"
    missed: Missed = "latest"
    webhook: Webhook | None = None
    secret_env: str = ""
    """The variable of the server's environment with the webhook's secret."""
    payload: dict[str, str] = {}
    """Input name to the place of its value in the message: `pull_request.number`."""
    events: tuple[str, ...] = ()
    """The kinds of events that start a run; empty: all."""
    max_per_day: int = 24
    allow_effects: bool = False
    """Whether a webhook's content may reach a recipe that writes or runs programs."""
    permitted: str = ""
    """The digest of the effects that the user permitted."""
    created_at: int = 0


class Occurrence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One scheduled time or one message, and its outcome."""

    key: str
    at: int
    inputs: dict[str, JSON] = {}
    run_id: str
    outcome: Literal["pending", "started", "refused", "capped", "missed"] = "pending"
    message: str = ""
    tries: int = 0


class ScheduleState(Struct, kw_only=True):
    """A schedule with its occurrences, newest last. `after`: the time up to which it was examined."""

    schedule: Schedule
    after: int
    occurrences: list[Occurrence] = []


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """A schedule as lists show it."""

    schedule: Schedule
    next_at: int | None
    """Milliseconds since the epoch; None for a webhook."""
    latest: tuple[Occurrence, ...]
    started_today: int


class ScheduleRows(Struct, frozen=True):
    schedules: list[ScheduleRow]


class WebhookReply(Struct, frozen=True, kw_only=True):
    """The reply to a webhook: `started`, `duplicate` or `ignored`."""

    outcome: Literal["started", "duplicate", "ignored"]
    run_id: str = ""
    message: str = ""


def now_ms() -> int:
    return int(time() * 1_000)


# -----------------------------------------------------------------------------------------------------------
# The file of a project's schedules


@contextmanager
def _opened(project: Project) -> Iterator[dict[str, ScheduleState]]:
    """The schedules, by name, while no other process changes them. Changes are durable afterwards."""
    file = project.own_file("schedules", "json")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _read(project)
        before = msgspec.json.encode(found)
        yield found
        _write(project, found, before)
    finally:
        os.close(lock)


def _read(project: Project) -> dict[str, ScheduleState]:
    file = project.own_file("schedules", "json")
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, ScheduleState])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        hint = f"repair or remove {file}"
        raise WorldError("schedule.unreadable", f"the schedules cannot be read: {error}", hint=hint) from None


def _write(project: Project, states: dict[str, ScheduleState], before: bytes = b"") -> None:
    for state in states.values():
        left = {True: max(MAX_KEPT, state.schedule.max_per_day), False: MAX_KEPT}
        kept: list[Occurrence] = []
        for one in reversed(state.occurrences):
            left[one.outcome in COUNTED] -= 1
            kept += [one] if left[one.outcome in COUNTED] >= 0 else []
        state.occurrences = kept[::-1]
    data = msgspec.json.encode(states)
    if data != before:
        write_whole(project.own_file("schedules", "json"), data, durable=True)


# -----------------------------------------------------------------------------------------------------------
# Add, list, remove


def schedule_consent(project: Project, schedule: Schedule, plan: Plan | None = None) -> tuple[str, list[str]]:
    """Return the digest of the permission, and the effects and cost that need it.

    What a recipe for strangers does is checked by `_check_for_strangers`, so only its cost is permitted.
    """
    plan, options = plan or _plan(project, schedule), _options(project, schedule)
    bound = {} if schedule.webhook is not None else bind_inputs(plan, schedule.inputs)
    consent = start_consent(project, plan, bound, options)
    cost = "cost" if consent.reasons else ""
    if schedule.webhook is not None and not schedule.allow_effects:
        return cost, list(consent.reasons)
    sources = read_sources(project.folder, handlers_of(plan)).files
    code = sha256(msgspec.json.encode(sorted(sources.items()))).hexdigest()[:32] if sources else ""
    return f"{consent.request.digest}{code}{cost}", consent.needs


def add_schedule(project: Project, schedule: Schedule, *, replace: bool = False) -> ScheduleRow:
    """Check and store a schedule whose effects the user permits with this call.

    If `schedule.permitted` is the digest of what a surface showed, it must still be what the recipe does.
    """
    plan = _plan(project, schedule)
    _check(schedule)
    _options(project, schedule)
    declared = {one.name for one in plan.inputs}
    for name in schedule.payload:
        if name not in declared:
            raise AuthorError("schedule.bad_value", f'{schedule.recipe} has no input "{name}"')
    if schedule.webhook is None:
        bind_inputs(plan, schedule.inputs)
    else:
        others = tuple(one for one in plan.inputs if one.name not in schedule.payload)
        given = {name: one for name, one in schedule.inputs.items() if name not in schedule.payload}
        missing = bind_known(structs.replace(plan, inputs=others), given)[1]
        if missing:
            raise AuthorError("recipe.missing_input", missing[0], hint="give it with -i or --payload")
        if not schedule.allow_effects:
            _check_for_strangers(project, plan, schedule)
    digest, _ = schedule_consent(project, schedule, plan)
    if schedule.permitted not in ("", digest):
        raise _changed(schedule)
    now = now_ms()
    made = structs.replace(schedule, permitted=digest, created_at=now)
    with _opened(project) as states:
        if schedule.name in states and not replace:
            message = f"there is a schedule {schedule.name} already"
            raise AuthorError("schedule.exists", message, hint="--replace replaces it")
        if len(states) >= MAX_SCHEDULES:
            raise AuthorError("schedule.too_many", f"at most {MAX_SCHEDULES} schedules for one project")
        # A message that the replaced schedule accepted starts no second run, and its runs count for today.
        before = states[schedule.name].occurrences if schedule.name in states else []
        known = [
            structs.replace(one, outcome="started", inputs={}) for one in before if one.outcome in COUNTED
        ]
        states[schedule.name] = ScheduleState(schedule=made, after=now, occurrences=known)
        return _row(states[schedule.name], now)


def remove_schedule(project: Project, name: str) -> Schedule:
    with _opened(project) as states:
        if name not in states:
            hint = "fanfold schedule list shows those of this project"
            raise NotFoundError("schedule.not_found", f"there is no schedule {name!r}", hint=hint)
        return states.pop(name).schedule


def list_schedules(project: Project) -> ScheduleRows:
    now = now_ms()
    return ScheduleRows([_row(state, now) for _, state in sorted(_read(project).items())])


def _row(state: ScheduleState, now: int) -> ScheduleRow:
    schedule = state.schedule
    due = None
    if schedule.cron:
        due = Cron.parse(schedule.cron, schedule.timezone).next_after(max(state.after, now))
    today, latest = _started_on(state, now), tuple(state.occurrences[-5:])
    return ScheduleRow(schedule=schedule, next_at=due, latest=latest, started_today=today)


def _check(schedule: Schedule) -> None:
    if bool(schedule.cron) == (schedule.webhook is not None):
        raise AuthorError("schedule.bad_value", "a schedule needs either --cron or --webhook")
    if schedule.cron:
        Cron.parse(schedule.cron, schedule.timezone)
    if schedule.webhook is not None:
        _secret(schedule)
    if not 1 <= schedule.max_per_day <= 10_000:
        raise AuthorError("schedule.bad_value", "--max-per-day is a number from 1 to 10000")


def _plan(project: Project, schedule: Schedule) -> Plan:
    return check_recipe(project, schedule.recipe, scripted=schedule.script is not None).runnable()


def _options(project: Project, schedule: Schedule) -> Options:
    file = "" if schedule.script is None else "script"
    return schedule.options.checked(project.config, script=schedule.script, script_file=file)


def _check_for_strangers(project: Project, plan: Plan, schedule: Schedule) -> None:
    """Refuse a recipe that does more than read and propose with text of strangers."""
    effects = consent_of(project, plan, project.roles.find, _options(project, schedule)).effects
    own = ("write", "include", "setup")  # what is written is checked below; the others are the user's own
    named = [one.text for one in effects if one.kind not in own]
    merged = [one for one in all_steps_below(plan) if one.posture != "read_only" and one.merge == "auto"]
    named += [f"{step.id} writes files that are merged" for step in merged if step.traits.role is not None]
    if not named:
        return
    raise WorldError(
        "schedule.not_for_strangers",
        f"{plan.name} would get text from a webhook and does more than propose: {'; '.join(named[:3])}",
        hint="use merge: propose and no commands, or allow it with --allow-effects",
        details={"effects": named},
        exit_status=EXIT_PERMISSION,
    )


# -----------------------------------------------------------------------------------------------------------
# Times


def start_due(project: Project, now: int | None = None) -> float:
    """Start the runs that are due; return the seconds until the next check."""
    if not project.own_file("schedules", "json").exists():
        return NONE_S
    moment = now_ms() if now is None else now
    with _opened(project) as states:
        before = msgspec.json.encode(states)
        for state in states.values():
            if state.schedule.cron:
                _find_due(state, moment)
        _write(project, states, before)  # accepted: durable before a run exists
        for state in states.values():
            _start_pending(project, state)
        due = [row.next_at for row in (_row(one, moment) for one in states.values()) if row.next_at]
    left_s = (min(due) - now_ms()) / 1_000 if due and now is None else LOOK_S
    return max(0.0, min(LOOK_S, left_s))


def _find_due(state: ScheduleState, now: int) -> None:
    """Append the occurrences since the last look, by the policy for missed ones."""
    schedule = state.schedule
    if state.after > now + DAY_MS:
        state.after = now  # the clock was set back by days; known occurrences do not start again
    cron = Cron.parse(schedule.cron, schedule.timezone)
    found = cron.latest(state.after, now, MAX_MISSED)
    if not found:
        return
    state.after = found[-1]
    late = [one for one in found if now - one > ON_TIME_S * 1_000]
    if schedule.missed == "skip":
        wanted = [one for one in found if one not in late]
    else:
        wanted = found[-1:] if schedule.missed == "latest" else found
    known = {one.key for one in state.occurrences}
    for moment in found:
        key = str(moment)
        if key in known:
            continue
        run = run_id_of(schedule.name, str(schedule.created_at), key)
        if moment not in wanted:
            dropped = Occurrence(key=key, at=moment, run_id=run, outcome="missed", message=schedule.missed)
            state.occurrences.append(dropped)
        elif _started_on(state, now) >= schedule.max_per_day:
            state.occurrences.append(Occurrence(key=key, at=now, run_id=run, outcome="capped"))
        else:
            state.occurrences.append(Occurrence(key=key, at=now, run_id=run, inputs=schedule.inputs))


def _started_on(state: ScheduleState, now: int) -> int:
    """How many runs a schedule started, or is about to start, on the day of a moment in its time zone."""
    day = Cron.day_of(now, state.schedule.timezone)
    counted = [one for one in state.occurrences if one.outcome in COUNTED]
    return sum(Cron.day_of(one.at, state.schedule.timezone) == day for one in counted)


def _start_pending(project: Project, state: ScheduleState) -> None:
    for place, one in enumerate(state.occurrences):
        if one.outcome != "pending":
            continue
        try:
            _start(project, state.schedule, one)
            state.occurrences[place] = structs.replace(one, outcome="started", inputs={})
        except FanfoldError as error:
            final = isinstance(error, AuthorError) or error.exit_status == EXIT_PERMISSION
            over = final or one.tries + 1 >= MAX_TRIES
            outcome, inputs = ("refused", {}) if over else ("pending", one.inputs)
            message, tries = error.message[:MAX_MESSAGE_CHARS], one.tries + 1
            state.occurrences[place] = structs.replace(
                one, outcome=outcome, inputs=inputs, message=message, tries=tries
            )


def _start(project: Project, schedule: Schedule, one: Occurrence) -> None:
    """Create the run of an occurrence, unless it exists, and have a background process continue it."""
    head = project.store.head(one.run_id)
    if head is not None:
        if head.status in (PENDING, RUNNING) and not project.has_owner(one.run_id):
            continue_detached(project, one.run_id)
        return
    plan, options = _plan(project, schedule), _options(project, schedule)
    if schedule_consent(project, schedule, plan)[0] != schedule.permitted:
        raise _changed(schedule)
    if schedule.webhook is not None and not schedule.allow_effects:
        _check_for_strangers(project, plan, schedule)
        check_startable(project, plan)
        owned = create(project, plan, bind_inputs(plan, one.inputs), options, run_id=one.run_id)
    else:
        owned = start(project, plan, one.inputs, options, yes=True, run_id=one.run_id)
    run_in_background(owned)


def _changed(schedule: Schedule) -> WorldError:
    message = (
        f"the effects of {schedule.recipe} changed since the user permitted the schedule {schedule.name}"
    )
    hint = "review the recipe, then add the schedule again with --replace"
    return WorldError("schedule.changed", message, hint=hint, exit_status=EXIT_PERMISSION)


# -----------------------------------------------------------------------------------------------------------
# Webhooks


def deliver(project: Project, name: str, headers: Mapping[str, str], body: bytes) -> WebhookReply:
    """Verify a message and start the run that it asks for. `headers` have names in lower case.

    An unknown schedule and a wrong signature are the same error: strangers learn nothing about either.
    """
    found = _read(project).get(name)
    if found is None or found.schedule.webhook is None:
        raise unsigned()
    schedule = found.schedule
    key = _verified(schedule, headers, body)
    event = headers.get("x-github-event") or headers.get("x-gitlab-event") or ""
    if event == "ping" or (schedule.events and event not in schedule.events):
        return WebhookReply(outcome="ignored", message=f"event {event[:80]!r}")
    inputs = {**schedule.inputs, **_inputs(schedule, body)}
    run = run_id_of(name, str(schedule.created_at), key)
    with _opened(project) as states:
        state = states.get(name)
        if state is None:
            raise unsigned()
        known = next((one for one in state.occurrences if one.key == key), None)
        if known is not None:
            return WebhookReply(outcome="duplicate", run_id=known.run_id)
        if _started_on(state, now_ms()) >= schedule.max_per_day:
            state.occurrences.append(Occurrence(key=key, at=now_ms(), run_id=run, outcome="capped"))
            message = f"{name} starts at most {schedule.max_per_day} runs a day"
            error: WorldError | None = WorldError("schedule.capped", message)
        else:
            state.occurrences.append(Occurrence(key=key, at=now_ms(), run_id=run, inputs=inputs))
            _write(project, states)  # accepted: durable before a run exists
            _start_pending(project, state)
            last = next(one for one in state.occurrences if one.key == key)
            error = None
            if last.outcome == "refused":
                error = WorldError("schedule.refused", last.message, exit_status=EXIT_PERMISSION)
    if error is not None:
        raise error
    return WebhookReply(outcome="started", run_id=run)


def _verified(schedule: Schedule, headers: Mapping[str, str], body: bytes) -> str:
    """Return what identifies a message; raises if its signature is wrong."""
    try:
        secret = _secret(schedule)
    except AuthorError:
        raise unsigned() from None  # the names of the user's variables are not for strangers
    digest = sha256(body).hexdigest()
    if schedule.webhook == "github":
        wanted = f"sha256={hmac.new(secret.encode(), body, 'sha256').hexdigest()}"
        good = hmac.compare_digest(headers.get("x-hub-signature-256", "").encode(), wanted.encode())
        key = digest  # the id of a delivery is not signed, so a repetition could have another one
    elif schedule.webhook == "gitlab":
        good = hmac.compare_digest(headers.get("x-gitlab-token", "").encode(), secret.encode())
        key = digest
    else:
        id, moment = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        wanted = sign(secret, id, moment, body)
        signatures = headers.get("webhook-signature", "").split()[:10]
        good = any(hmac.compare_digest(one.encode(), wanted.encode()) for one in signatures)
        recent = moment.isascii() and moment.isdecimal() and abs(int(moment[:15]) - time()) <= TOLERANCE_S
        good, key = good and recent and bool(id), f"id:{id[:200]}"
    if not good:
        raise unsigned()
    return key


def _secret(schedule: Schedule) -> str:
    value = os.environ.get(schedule.secret_env, "") if schedule.secret_env else ""
    if len(value) < MIN_SECRET_CHARS:
        name = schedule.secret_env or "the variable of --secret-env"
        problem = "is too short" if value else "is not set"
        message = f"{name} {problem}: a secret has at least {MIN_SECRET_CHARS} characters"
        hint = f"for example: export {schedule.secret_env or 'NAME'}=$(openssl rand -hex 32)"
        raise AuthorError("schedule.no_secret", message, hint=hint)
    try:
        sign(value, "", "", b"")
    except ValueError:
        message = f"{schedule.secret_env} starts with whsec_, and what follows is not base64"
        raise AuthorError(
            "schedule.no_secret", message, hint="set the secret exactly as the sender issued it"
        ) from None
    return value


def unsigned() -> WorldError:
    """The answer to a message that cannot be verified."""
    return WorldError("request.unauthorized", "the signature is wrong", exit_status=EXIT_PERMISSION)


def _inputs(schedule: Schedule, body: bytes) -> dict[str, JSON]:
    """The inputs that a message gives: `a.b.0` is the first item of `b` of `a`; `.` is the whole message."""
    try:
        message = msgspec.json.decode(body) if schedule.payload else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise AuthorError("schedule.bad_message", "the message is not JSON") from None
    found: dict[str, JSON] = {}
    for name, path in schedule.payload.items():
        value: JSON = message
        for word in [part for part in path.split(".") if part]:
            if isinstance(value, dict) and word in value:
                value = value[word]
            elif isinstance(value, list) and word.isdecimal() and int(word) < len(value):
                value = value[int(word)]
            else:
                raise AuthorError("schedule.bad_message", f"the webhook message has no field {path}")
        try:
            found[name] = strict(value, f'input "{name}"')
        except ValueError as error:
            raise AuthorError("schedule.bad_message", str(error)) from None
    return found


# -----------------------------------------------------------------------------------------------------------
# Cron expressions with a time zone: five fields, as in crontab(5).
#
# Rules
# * Fields are minute, hour, day of month, month, day of week (0 and 7 are Sunday). Each is `*`, a number, a
#   name, a range, a list, or one of these with a step. `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
# * If both days are restricted, either of them is enough.
# * A local time that a change of the clocks skips counts as much later as the clocks moved. One that occurs
#   twice counts once, the first time.

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_DAYS = "sun mon tue wed thu fri sat".split()
_NAMES: dict[str, dict[str, int]] = {
    "month": {name: place for place, name in enumerate(_MONTHS, 1)},
    "day of week": {name: place for place, name in enumerate(_DAYS)},
}
_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
MAX_DAYS = 366 * 9
"""29 February may be eight years away."""


class Cron(Struct, frozen=True):
    """A parsed expression."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Whether day of month and day of week are both restricted."""
    zone: ZoneInfo

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text: str, timezone: str = "UTC") -> Cron:
        """Parse an expression; raises `AuthorError`.

        >>> Cron.parse("30 3 * * mon-fri").next_after(0) // 60_000
        210
        """
        words = _WORDS.get(text.strip().lower(), text).split()
        if len(words) != len(_FIELDS):
            names = ", ".join(name for name, *_ in _FIELDS)
            raise _bad(text, f"has {len(words)} fields, not five", f"write {names}: 0 3 * * 1-5")
        sets = [_field(text, word, *field) for word, field in zip(words, _FIELDS, strict=True)]
        cron = Cron(
            text=text,
            minutes=tuple(sorted(sets[0])),
            hours=tuple(sorted(sets[1])),
            days=frozenset(sets[2]),
            months=frozenset(sets[3]),
            weekdays=frozenset(day % 7 for day in sets[4]),
            either_day=not words[2].startswith("*") and not words[4].startswith("*"),
            zone=_zone(timezone),
        )
        cron.next_after(0)  # raises for a day that no month has
        return cron

    def next_after(self, at_ms: int) -> int:
        """The first time after a moment, both in milliseconds since the epoch."""
        after = datetime.fromtimestamp(at_ms / 1_000, UTC)
        day = after.astimezone(self.zone).date() - timedelta(days=1)
        for _ in range(MAX_DAYS):
            of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
            fits = of_month or of_week if self.either_day else of_month and of_week
            if fits and day.month in self.months and (found := self._first_on(day, after)) is not None:
                return int(found.timestamp() * 1_000)
            day += timedelta(days=1)
        raise _bad(self.text, "has no time in the next years", "choose a day that exists")

    def _first_on(self, day: date, after: datetime) -> datetime | None:
        # Clocks move by at most a few hours, so earlier hours need no look.
        early = after.astimezone(self.zone).replace(tzinfo=None) - timedelta(hours=4)
        for hour in self.hours:
            if datetime.combine(day, time_of_day(hour, 59)) < early:
                continue
            for minute in self.minutes:
                moment = datetime.combine(day, time_of_day(hour, minute), self.zone).astimezone(UTC)
                if moment > after:
                    return moment
        return None

    def latest(self, after: int, now: int, most: int) -> list[int]:
        """The latest times after one moment, up to and including another, at most so many; oldest first."""
        found: deque[int] = deque(maxlen=most)
        for days in (0.5, 4, 32, 256, MAX_DAYS):  # after a long time only the end is walked through
            found.clear()
            at = begin = max(after, now - int(days * 86_400_000))
            while (at := self.next_after(at)) <= now:
                found.append(at)
            if len(found) == most or begin == after:
                break
        return list(found)

    @staticmethod
    def day_of(at_ms: int, timezone: str) -> date:
        """The day of a moment in a time zone."""
        return datetime.fromtimestamp(at_ms / 1_000, _zone(timezone)).date()


def _field(text: str, word: str, name: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    numbers = word.lower()
    for known, number in _NAMES.get(name, {}).items():
        numbers = re.sub(rf"\b{known}\b", str(number), numbers)
    for part in numbers.split(","):
        matched = re.fullmatch(r"(?a)(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", part)
        if matched is None:
            raise _bad(text, f"{name} {word!r} cannot be read", "write *, 5, 1-5, 1,3 or */10")
        first, last, step = matched.groups()
        begin = low if first is None else int(first)
        end = high if first is None or (last is None and step) else int(last or first)
        if not low <= begin <= end <= high or step == "0":
            raise _bad(text, f"{name} {word!r} is out of range", f"use numbers from {low} to {high}")
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = "use a name such as Europe/Berlin; a machine without zones needs: pip install tzdata"
        raise AuthorError("schedule.bad_value", f"there is no time zone {name!r}", hint=hint) from None


def _bad(text: str, why: str, hint: str) -> AuthorError:
    return AuthorError("schedule.bad_value", f"--cron {text!r}: {why}", hint=hint)
