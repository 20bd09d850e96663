"""`fanfold schedule`: runs that a server starts at a time, or on an event of another system."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click
from msgspec import structs

from fanfold.api.run_options import RunOptions
from fanfold.api.schedules import (
    Schedule,
    ScheduleRow,
    add_schedule,
    list_schedules,
    remove_schedule,
    schedule_consent,
)
from fanfold.cli.command import (
    SCRIPT,
    Invocation,
    command,
    given_inputs,
    option,
    options_from,
    read_script,
)
from fanfold.cli.output import notify, paint, plain
from fanfold.errors import EXIT_PERMISSION, AuthorError, WorldError
from fanfold.kernel.plan import Plan
from fanfold.language.library import is_path

_LIMITS = ("model", "agent_backend", "max_agents", "budget_usd", "budget_tokens")
_SAME = ("cron", "timezone", "missed", "webhook", "secret_env", "max_per_day", "allow_effects")
"""Options that are fields of a schedule."""
NAME = r"(?a)[a-z0-9][a-z0-9_-]{0,63}"


@command("schedule", summary="Add, list and remove schedules and webhooks")
@click.argument("action", type=click.Choice(["add", "list", "remove"]), default="list")
@click.argument("name", required=False)
@click.argument("recipe", required=False)
@option("--cron", metavar="EXPR", default="", help="Start at these times: '0 3 * * 1-5' (as in crontab).")
@option(
    "--timezone",
    metavar="ZONE",
    default="UTC",
    show_default=True,
    help="Read the times in this zone: Europe/Berlin.",
)
@option("--missed", type=click.Choice(["latest", "skip", "all"]), default="latest", show_default=True,
        help="Choose what happens to times without a server.")  # fmt: skip
@option(
    "--webhook",
    type=click.Choice(["github", "gitlab", "hmac"]),
    help="Start when this kind of message arrives.",
)
@option("--secret-env", metavar="NAME", default="", help="Name the variable with the secret.")
@option("--event", "events", multiple=True, metavar="KIND", help="Accept this kind of event; repeatable.")
@option("--payload", multiple=True, metavar="INPUT=PATH", help="Read an input from the message: NAME=a.b.0")
@option(
    "--max-per-day", type=int, default=24, show_default=True, metavar="N", help="Limit the runs of a day."
)
@option("--allow-effects", is_flag=True, help="Allow text from a webhook in a recipe that writes.")
@option("-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="Set an input; repeatable.")
@options_from(RunOptions, *_LIMITS)
@SCRIPT
@option("--replace", is_flag=True, help="Replace a schedule of that name.")
@option("--yes", is_flag=True, help="Permit the effects of the recipe.")
def schedule_command(
    call: Invocation, action: str, name: str | None, recipe: str | None, **given: Any
) -> None:
    """Manage the runs that `fanfold serve` starts by itself.

    add NAME RECIPE needs --cron, or --webhook with --secret-env. A webhook is sent to /hooks/NAME of the
    server and verified by its signature. Its text reaches only recipes that read or propose, unless you
    add --allow-effects. remove NAME deletes a schedule; its runs stay.
    """
    if action == "list":
        with call.open_project(to_read=True) as project:
            rows = list_schedules(project)
        call.give(rows, lambda: [_line(row, call.colour) for row in rows.schedules] or ["no schedules\n"])
        return
    if name is None or (recipe is None) == (action == "add"):
        form = "add NAME RECIPE" if action == "add" else "remove NAME"
        raise AuthorError("usage.missing_argument", f"write: schedule {form}")
    with call.open_project() as project:
        if action == "remove":
            gone = remove_schedule(project, name)
            call.give(gone, lambda: f"removed {plain(gone.name)}\n")
            return
        assert recipe is not None
        yes, replace = bool(given.pop("yes")), bool(given.pop("replace"))
        plan = project.plan_of(recipe, scripted=given["script"] is not None)
        schedule = _schedule(call, name, recipe, given, plan)
        shown, needs = schedule_consent(project, schedule)
        if needs and not yes:
            notify("".join(f"  {plain(effect)}\n" for effect in needs))
            message, hint = f"{name} would do this without asking again", "to permit it, add --yes"
            refused = WorldError("permission_denied", message, hint=hint, exit_status=EXIT_PERMISSION)
            call.require_yes("Permit it each time?", refused, "nothing was added")
        row = add_schedule(project, structs.replace(schedule, permitted=shown), replace=replace)
    call.give(row, lambda: _line(row, call.colour))
    if not call.as_json:
        notify("the server of this project starts it: fanfold serve\n")


def _schedule(call: Invocation, name: str, recipe: str, given: dict[str, Any], plan: Plan) -> Schedule:
    if not re.fullmatch(NAME, name):
        raise AuthorError(
            "usage.bad_value", f"{name} cannot be the name of a schedule", hint="use a-z, 0-9, - and _"
        )
    payload = {}
    for pair in given["payload"]:
        word, equals, path = pair.partition("=")
        if not equals or not word or not path:
            raise AuthorError("usage.bad_value", f"--payload {pair} is not INPUT=PATH")
        payload[word] = path
    script = given["script"]
    return Schedule(
        name=name,
        recipe=os.path.abspath(recipe) if is_path(recipe) and os.path.lexists(recipe) else recipe,
        inputs=given_inputs(call.project, plan, given["pairs"], None),
        options=RunOptions(**{one: given[one] for one in _LIMITS if given[one] is not None}),
        script=None if script is None else read_script(call.project, Path(script)),
        payload=payload,
        events=tuple(given["events"]),
        **{one: given[one] for one in _SAME},
    )


def _line(row: ScheduleRow, colour: bool) -> str:
    one = row.schedule
    when = f"/hooks/{one.name} ({one.webhook})"
    if row.next_at is not None:
        due = datetime.fromtimestamp(row.next_at / 1_000, ZoneInfo(one.timezone))
        when = f"{one.cron} {one.timezone}, next {due:%Y-%m-%d %H:%M}"
    today = f"{row.started_today} of {one.max_per_day} today"
    head = f"{paint(plain(one.name), 'bold', colour)}  {plain(one.recipe)}  {plain(when)}  {today}\n"
    for each in reversed(row.latest[-3:]):
        at = datetime.fromtimestamp(each.at / 1_000).astimezone()
        word = f"run {each.run_id}" if each.outcome == "started" else each.outcome
        shown = f"{at:%Y-%m-%d %H:%M}  {word}{f': {each.message}' if each.message else ''}"
        head += f"  {plain(shown)}\n"
    return head
