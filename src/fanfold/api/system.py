"""Examine this installation and project, manage tokens and state, and create the first files of a project."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from msgspec import MsgspecError, Struct, json, structs

from fanfold.agents.command.calls import AgentCredentials
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.profile_files import load_profiles
from fanfold.agents.redaction import without_credentials
from fanfold.agents.tools.files import PUBLISHED
from fanfold.api.agents import list_models
from fanfold.api.approvals import ErrorBody
from fanfold.api.display import folders_without_run
from fanfold.api.ownership import frozen_at_first
from fanfold.api.project import Project
from fanfold.api.run_documents import waiting_proposals
from fanfold.api.workers import WorkerRow
from fanfold.engine.config import Config
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.state import PAUSED, PENDING, RUN_TERMINAL, RUNNING, TERMINAL, WAITING
from fanfold.project_files import write_beneath
from fanfold.sessions.processes import ProcessTimeout, run_process
from fanfold.steps.run_config import how_to_resume, is_kept_open
from fanfold.store.address import PostgresAddress
from fanfold.store.database import GITIGNORE
from fanfold.store.protocol import LeaseHeld, RunHead, StoreAddress
from fanfold.workspace import seal
from fanfold.workspace.git import find_program, search_path
from fanfold.workspace.sandbox import MAC_HINT, detect
from fanfold.workspace.seal import adopt_with_runs, list_adopted

if TYPE_CHECKING:
    from fanfold.workspace.workspaces import CollectedFiles, Fate


# -----------------------------------------------------------------------------------------------------------
# Documents of the installation and the project: checks, self-tests, deleted data


Level: TypeAlias = Literal["ok", "warning", "error"]


class Finding(Struct, frozen=True):
    """The result of one check. After a `warning` Fanfold works with less; after an `error` it does not."""

    name: str
    ok: bool
    level: Level
    message: str
    hint: str = ""
    details: tuple[str, ...] = ()


class ConfigValue(Struct, frozen=True):
    """A setting and the origin of its value. The value of a secret is only `set`."""

    key: str
    value: bool | int | str | None
    origin: str


class Examination(Struct, frozen=True):
    """The result of `doctor`."""

    ok: bool
    version: str
    project: str
    checks: list[Finding]
    config: list[ConfigValue]


class SmokeCheck(Struct, frozen=True):
    """One self-test: whether it passed, and the evidence from the log."""

    name: str
    ok: bool
    evidence: Any


class SmokeReport(Struct, frozen=True, omit_defaults=True):
    """The result of a self-test. `error` is only set if a real scenario failed."""

    ok: bool
    checks: list[SmokeCheck]
    error: ErrorBody | None = None


class GcResult(Struct, frozen=True):
    """The deleted data or, in a dry run, the data that would be deleted."""

    dry_run: bool
    runs: list[str]
    folders: list[str]
    workspaces: list[str]
    proposals: list[str]


class InitResult(Struct, frozen=True):
    """The created files of a new project, and those that existed."""

    created: list[str]
    kept: list[str]


class ServeAddress(Struct, frozen=True):
    """The address of a server.

    `link` signs a browser in and is shown once; None if only configured tokens are valid.
    """

    url: str
    link: str | None
    taken_over: list[str]
    """Runs whose process had died and which are continued."""


MAX_NAMED_FILES = 5
"""Maximum of role files with warnings that are named; a repository may have hundreds."""

MIN_GIT = (2, 38)


def examine(folder: Path, open_project: Callable[[], Project], version: str) -> Examination:
    """Run all checks. A project that cannot be opened is a finding and does not stop the other checks."""
    project: Project | None = None
    findings: list[Finding] = []
    try:
        project = open_project()
    except FanfoldError as error:
        findings.append(_found("config", "error", error.message, error.hint))
    findings += [
        _found("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        *_tools(folder.absolute()),
    ]
    if project is not None:
        findings += [
            _store(project.address),
            *_home_and_model(project),
            *_roles(project),
            *_agents(project),
            *_recipes(project),
            *_runs(project),
            *_observers(project),
            *_cluster(project),
        ]
        project.close()
    return Examination(
        all(one.ok for one in findings),
        version,
        str(folder.resolve()),
        findings,
        [] if project is None else list(_config(project.config)),
    )


def _found(name: str, level: Level, message: str, hint: str = "", details: tuple[str, ...] = ()) -> Finding:
    return Finding(name, level != "error", level, message, hint, details)


def _store(address: StoreAddress) -> Finding:
    health = address.examine()
    if health is None:
        return _found("store", "ok", f"{address.engine()}, empty; the first run makes it")
    if health.problems:
        hint = "copy .fanfold away before anything else; runs whose log is readable can still be inspected"
        return _found("store", "error", f"{health.place}: {health.problems[0]}", health.hint or hint)
    size = f"{health.bytes / 1_048_576:.1f} MB"
    return _found("store", "ok", f"{address.engine()}, {health.place}, {size}, version {health.version}")


def _home_and_model(project: Project) -> Iterator[Finding]:
    """Report the default model, and a user's folder in the project: agents could write it."""
    home, folder = os.path.realpath(project.config.home), os.path.realpath(project.folder)
    below = os.path.relpath(home, folder).split(os.sep)
    if below[0] != os.pardir and ".fanfold" not in below:  # agents cannot write inside `.fanfold`
        message = f"your own folder {project.config.home} is in the project, where agents may write"
        yield _found("home", "warning", message, "set FANFOLD_HOME to a folder outside")
    known = list_models(project.config)
    if known.default is None:
        message = "none" if known.error is None else known.error.message
        yield _found("model", "warning", message, "fanfold models says how to get one")
    else:
        yield _found("model", "ok", f"{known.default.model} ({known.default.why})")


def _tools(project: Path) -> Iterator[Finding]:
    git = _version("git", project)
    if git is None:
        yield _found(
            "git", "error", "git was not found", "install git 2.38 or newer: merges are done with it"
        )
    elif git < MIN_GIT:
        yield _found("git", "error", f"git {git[0]}.{git[1]} is too old", "install git 2.38 or newer")
    else:
        yield _found("git", "ok", f"{git[0]}.{git[1]}")
    yield _sandbox(project)


def _sandbox(project: Path) -> Finding:
    """Report the sandbox level of commands here, and its limitations."""
    levels = detect(project)
    best = levels.bubblewrap if levels.bubblewrap.available else levels.landlock
    missing = tuple(f"does not give: {one}" for one in best.cannot)
    if levels.bubblewrap.available:
        return _found("sandbox", "ok", "bubblewrap", details=missing)
    why, fix = f"bubblewrap: {levels.bubblewrap.why}", levels.bubblewrap.fix
    if levels.landlock.available:
        found, hint = f"Landlock and seccomp ({why})", f"for full confinement: {fix}"
        return _found("sandbox", "warning", found, hint, missing)
    found = f"none, so commands and agents that are programs are refused ({why}; {levels.landlock.why})"
    return _found("sandbox", "warning", found, fix or MAC_HINT)


def _version(program: str, project: Path) -> tuple[int, int] | None:
    found = find_program(program, project)
    if found is None:
        return None
    try:
        done = subprocess.run(
            [found, "--version"], cwd="/", env={}, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(number[1]), int(number[2])) if number else None


def _roles(project: Project) -> Iterator[Finding]:
    found = [notice for notice in project.roles.notices if notice.severity == "warning"]
    for notice in found[:MAX_NAMED_FILES]:
        yield _found("roles", "warning", f"{notice.file}:{notice.line}: {notice.message}")
    if len(found) > MAX_NAMED_FILES:
        more = f"{len(found) - MAX_NAMED_FILES} more warnings about role files"
        yield _found("roles", "warning", more, "fanfold agents lists them")
    if not found:
        names = project.roles.names()
        yield _found("roles", "ok", f"{len(names)} known: {', '.join(names)}")


def _agents(project: Project) -> Iterator[Finding]:
    """Report the installed agent programs."""
    found, problems = find_agents(project.config.home, project.folder)
    for error in problems:
        yield _found("agents", "error", error.message, error.hint)
    for agent in found:
        names = ", ".join(agent.names)
        lent = f"may have {', '.join(agent.credentials)}" if agent.credentials else "is lent no credentials"
        message = f"{agent.title} {agent.version or 'does not answer'} ({names}) at {agent.program}, {lent}"
        if agent.unnamed:
            file = f"{project.config.home}/backends/{agent.names[0]}.toml"
            words = ", ".join(f'"{one}"' for one in agent.unnamed)
            hint = f"to let roles use it, list its credentials in {file}: credentials = [{words}], or []"
            yield _found("agents", "warning", message, hint)
        else:
            yield _found("agents", "ok" if agent.version else "warning", message)


def _recipes(project: Project) -> Iterator[Finding]:
    entries = project.library.list()
    warnings = [warning for entry in entries for warning in entry.warnings]
    for warning in warnings:
        yield _found("recipes", "warning", warning)
    if not warnings:
        yield _found("recipes", "ok", f"{len(entries)} known")


def _runs(project: Project) -> Iterator[Finding]:
    """Report unfinished runs without an owner, and run folders that the database does not have."""
    try:
        lost = folders_without_run(project)
        if lost:
            message = f"the database does not have {len(lost)} runs that have a folder in {lost[0].parent}"
            hint = "restore .fanfold/fanfold.db from a backup; to list the runs: fanfold verify --all"
            yield _found("runs", "error", message, hint)
        if not project.has_runs:
            return
        heads = [head for head in project.heads() if head.status not in RUN_TERMINAL]
        stale = [head for head in heads if head.status in (RUNNING, PENDING)]
        stale = [head for head in stale if not project.has_owner(head.run_id)]
    except FanfoldError as error:
        yield _found("runs", "error", error.message, error.hint)
        return
    for head in stale:
        message = f"run {head.run_id} ({head.recipe}) is {head.status}, but no process drives it"
        hint = f"{how_to_resume(head.run_id)}, or fanfold cancel {head.run_id}"
        yield _found("runs", "warning", message, hint)
    if not stale:
        yield _found("runs", "ok", f"{len(heads)} unfinished, none without a process")


def _observers(project: Project) -> Iterator[Finding]:
    """Report the channels of notifications, and whether traces and metrics are sent, if configured."""
    from fanfold.api.notifications import NotificationOutbox, channels

    found = channels(project.config)
    failed = [one for one in NotificationOutbox(project).queued() if one.error] if found else []
    if "webhook" in found and not project.config.text("notify.secret"):
        message = "the webhook has no key, so no notification is sent to it"
        yield _found("notify", "warning", message, "set FANFOLD_NOTIFY_SECRET")
    elif failed:
        message = f"notifications not delivered yet: {len(failed)}; the last error: {failed[-1].error}"
        yield _found("notify", "warning", message, "the next run here, or a running server, sends them again")
    elif found:
        yield _found("notify", "ok", ", ".join(found))
    if any(name.startswith("OTEL_") for name in os.environ):
        from fanfold.api.tracing import PROTOCOL, is_on, why_unusable

        if why := why_unusable():
            yield _found("otel", "warning", *why)
        elif is_on():
            yield _found("otel", "ok", f"traces and metrics are sent over OTLP ({PROTOCOL})")


def _cluster(project: Project) -> Iterator[Finding]:
    """Report the problems of `fanfold cluster status`, which runs in a separate process."""
    if project.config.text("cluster.temporal") is None:
        return
    words = [sys.executable, "-P", "-m", "fanfold.cli.main", "cluster", "status", "--json"]
    done = subprocess.run(
        words, cwd=project.folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    try:
        status = json.decode(done.stdout, type=ClusterStatus)
    except MsgspecError:
        error = json.decode(done.stdout)["error"] if done.stdout else {"message": done.stderr.decode()}
        yield _found("cluster", "error", error["message"], error.get("hint", ""))
        return
    for message, _, hint in (problem.rpartition(": ") for problem in status.problems):
        yield _found("cluster", "warning", message, hint)
    if not status.problems:
        yield _found("cluster", "ok", f"{status.temporal}, {len(status.workers)} workers")


def _config(config: Config) -> Iterator[ConfigValue]:
    for setting in config.settings:
        value = config.values[setting.key]
        if setting.kind == "secret" and value is not None:
            value = "set"
        elif setting.kind in ("address", "url") and isinstance(value, str):
            value = without_credentials(value)
        yield ConfigValue(setting.key, value, config.origins[setting.key])
    given = os.environ.get("FANFOLD_HOME", "").strip()
    yield ConfigValue("home", str(config.home), "FANFOLD_HOME" if given else "default")


# -----------------------------------------------------------------------------------------------------------
# Installed agent programs: their versions, and the credentials they are allowed to use
#
# Rules
# * Only programs on PATH are reported: users do not want a list of programs they do not use.
# * All programs are asked for their version at once, each in a temporary home and with a short time-out.
#   Their output is limited, and every process they start ends with the check.

ANSWER_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024
_NUMBER = r"\d{1,9}(?:\.\d{1,9}){1,9}[\w.+-]{0,20}"


class InstalledAgent(Struct, frozen=True, kw_only=True):
    """One agent program on PATH."""

    names: tuple[str, ...]
    """The back ends that use it."""
    title: str
    program: str
    version: str
    """Empty if it did not answer in time."""
    credentials: tuple[str, ...]
    unnamed: tuple[str, ...]
    """Credentials that it could use and that the user has neither allowed nor denied."""


class InstalledAgents(NamedTuple):
    """The installed agents, and problems in the user's profiles."""

    found: list[InstalledAgent]
    problems: list[AuthorError]


def find_agents(home: Path, project: Path) -> InstalledAgents:
    """Find the agent programs on PATH. Back ends of a program with the same credentials are one entry."""
    by_program: dict[str, list[Profile]] = {}
    profiles, problems = load_profiles(home)
    for profile in profiles.values():
        program = find_program(profile.program, project) if profile.program else None
        if program is not None:
            by_program.setdefault(program, []).append(profile)

    async def ask_all() -> list[str]:
        path = search_path(project)
        return await asyncio.gather(*(_agent_version(program, path) for program in by_program))

    found = []
    versions = asyncio.run(ask_all()) if by_program else []
    for (program, behind), version in zip(by_program.items(), versions, strict=True):
        alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Profile]] = {}
        for one in behind:
            unnamed = () if one.named else tuple(AgentCredentials(one, os.environ).offered())
            alike.setdefault((one.credentials, unnamed), []).append(one)
        for (credentials, unnamed), members in alike.items():
            first = min(members, key=lambda one: one.acp)
            found.append(
                InstalledAgent(
                    names=tuple(sorted(one.name for one in members)),
                    title=first.title or first.name,
                    program=program,
                    version=version,
                    credentials=credentials,
                    unnamed=unnamed,
                )
            )
    return InstalledAgents(found, problems)


async def _agent_version(program: str, path: str) -> str:
    with tempfile.TemporaryDirectory(prefix="fanfold-") as home:
        own = {"PATH": path, "HOME": home, "LANG": "C.UTF-8"}
        asked = run_process(
            [program, "--version"],
            cwd=home,
            session_id=f"doctor-{uuid.uuid4().hex}",
            env=own,
            timeout_s=ANSWER_S,
            grace_s=0.0,
            max_output_bytes=MAX_ANSWER_BYTES,
        )
        try:
            output = (await asked).stdout
        except ProcessTimeout as late:  # its output so far may be enough
            output = late.ended.stdout
        except (OSError, FanfoldError):
            return ""
    number = re.search(_NUMBER, output)
    return number[0] if number else ""


# -----------------------------------------------------------------------------------------------------------
# Tokens for a server that is reachable over a network. The server stores only their digests
#
# A token has 256 random bits, so SHA-256 is enough: slow hashes are for passwords, which people choose.


class NewToken(Struct, frozen=True):
    """A new token. `line` belongs in `[server]` of the user's own configuration and enables the token."""

    token: str
    digest: str
    line: str
    file: str


def new_token() -> str:
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """Return the digest of a token, which is stored instead of it."""
    return "sha256:" + sha256(token.encode("utf-8", "replace")).hexdigest()


def make_token(role: str, home: Path) -> NewToken:
    """Create a token for a role, `operator` or `viewer`; `home` is the user's own folder."""
    token = new_token()
    return NewToken(token, digest_of(token), f'{role}s = ["{digest_of(token)}"]', str(home / "config.toml"))


# -----------------------------------------------------------------------------------------------------------
# State that came with a checkout or was copied: show, adopt or delete it
#
# `workspace.seal` determines whether state belongs to the user. Here the user decides about foreign state.

Standing = Literal["none", "ours", "foreign"]


class StatePart(Struct, frozen=True):
    """One entry of the state folder: `kind` is folder, file, link or special."""

    name: str
    kind: str
    bytes: int


class StateView(Struct, frozen=True):
    """The document of `fanfold state`."""

    folder: str
    standing: Standing
    why: str = ""
    """Why the state is foreign."""
    parts: tuple[StatePart, ...] = ()
    removed: tuple[str, ...] = ()


def show_state(project: Path, home: Path) -> StateView:
    """Return the state and its owner; nothing in it is opened."""
    parts = tuple(StatePart(*row) for row in seal.list_state(project))
    why = seal.why_foreign(project, home)
    standing: Standing = "foreign" if why else "ours" if parts else "none"
    return StateView(str(project / seal.OWN_FOLDER), standing, why, parts)


def adopt_state(project: Path, home: Path, list_runs: Callable[[], Iterable[str]]) -> StateView:
    """Adopt the state of this folder as it is. Its runs continue only after the user permits them again."""
    if show_state(project, home).standing == "foreign":
        adopt_with_runs(project, home)
        list_adopted(project, list_runs)
    return show_state(project, home)


def remove_state(project: Path, home: Path) -> StateView:
    """Delete state, own or foreign; recipes, roles and configuration stay."""
    gone = seal.remove(project) if seal.list_state(project) else []
    return structs.replace(show_state(project, home), removed=tuple(gone))


# -----------------------------------------------------------------------------------------------------------
# The first files of a project: configuration, an example recipe and its script

RECIPE_NAME = "first-steps"
SCRIPT_FILE = f".fanfold/workflows/{RECIPE_NAME}/script.yaml"
_FIRST_FILES = Path(__file__).parent / "first_files"

FILES = {
    "config.toml": "config.toml",
    f"workflows/{RECIPE_NAME}/recipe.yaml": "recipe.yaml",
    f"workflows/{RECIPE_NAME}/script.yaml": "script.yaml",
}
"""Files of a new project, each with its original in the folder `first_files` of the package."""


def initialise(folder: Path) -> InitResult:
    """Create the first files of a project; existing files are not replaced."""
    created: list[str] = []
    kept: list[str] = []
    texts = {".gitignore": GITIGNORE.encode()}
    texts |= {name: (_FIRST_FILES / original).read_bytes() for name, original in FILES.items()}
    for name, text in texts.items():
        path = f".fanfold/{name}"
        try:
            made = write_beneath(folder, path, text, replace=False)
        except OSError as error:
            message = f"{folder / path} cannot be written: {error.strerror}"
            raise WorldError(
                "world.io", message, hint="replace the link: links are not followed there"
            ) from None
        (created if made else kept).append(path)
    return InitResult(created, kept)


# -----------------------------------------------------------------------------------------------------------
# Delete runs that ended long ago, with their files and workspaces.


def collect(project: Project, age_ms: int, *, dry_run: bool = False) -> GcResult:
    """Delete runs that ended at least `age_ms` ago: their logs, outputs, sessions, files and proposals.

    Workspaces that failed or interrupted steps left are deleted at the same age, also those of runs that
    stay. Folders of runs that are not in the database are deleted, too. Unfinished runs and their workspaces
    are never deleted. Exception: an open run is deleted with its subagents if all of them finished that long
    ago and nothing waits. Data that other runs refer to stays, and so does every proposal of a run that
    stays.
    """
    if not project.has_runs:
        return GcResult(dry_run, [], [], [], [])
    before = int(time() * 1_000) - age_ms
    gone: list[str] = []
    folders = [path for path in folders_without_run(project) if _changed_before(path, before)]
    for head in project.heads():
        is_over = head.status in RUN_TERMINAL and (head.ended_at or head.created_at) <= before
        if not is_over and not _is_at_rest(project, head, before):
            continue
        tops = (project.runs_folder, project.memory.joinpath(*PUBLISHED.split("/")))
        homes = [top / one.run_id for one in project.store.tree_heads(head.run_id) for top in tops]
        if not dry_run and not (_forget if is_over else partial(_end, before=before))(project, head):
            continue
        gone.append(head.run_id)
        folders += [home for home in homes if home.is_dir()]
    if not dry_run:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    spaces = _collect(project, set(gone), age_ms / 1_000, dry_run)
    return GcResult(
        dry_run,
        gone,
        sorted({folder.name for folder in folders}),
        [] if spaces is None else list(spaces.workspaces),
        [] if spaces is None else list(spaces.proposals),
    )


def _changed_before(folder: Path, before: int) -> bool:
    """Whether a folder was last changed before a time in milliseconds; False if it is gone."""
    try:
        return int(folder.stat().st_mtime * 1_000) <= before
    except FileNotFoundError:
        return False


def _collect(project: Project, gone: set[str], age_s: float, dry_run: bool) -> CollectedFiles | None:
    """Delete workspaces that are no longer needed; None if there never was one."""
    if not project.isolation.is_used:
        return None

    def judge(origin: str) -> Fate:
        # Looked up one by one: a run that starts meanwhile is in the store before it has a workspace.
        head = project.store.head(origin) if origin else None
        if origin and (head is None or origin in gone):
            return "orphaned"
        return "needed" if head is not None and head.status not in RUN_TERMINAL else "ages"

    def relied_on() -> set[str]:
        """Return merges of deleted runs that their forks may still have to deliver."""
        forks = [head.run_id for head in project.heads() if head.forked_from]
        merges = (frozen_at_first(project, fork).reused_merges for fork in forks)
        return {receipt for kept in merges for receipts in kept.values() for receipt in receipts}

    return project.isolation.spaces.remains.collect(age_s, judge, relied_on, dry_run=dry_run)


def _is_at_rest(project: Project, head: RunHead, before: int) -> bool:
    """Whether an open run has had only finished subagents, and nothing that waits, since `before`."""
    if head.status not in (WAITING, PAUSED) or not is_kept_open(head.run_id):
        return False
    if project.store.requests(head.run_id):
        return False
    tree = project.view(head.run_id)
    nodes = tree.root.nodes.values()
    last = max((node.ended_at for node in nodes), default=head.created_at)
    return (
        tree.state.plan.open
        and last <= before
        and all(node.status in TERMINAL for node in nodes)
        and not waiting_proposals(tree)
    )


def _end(project: Project, head: RunHead, before: int) -> bool:
    """Delete an open run, unless it received a request meanwhile."""
    try:
        lease = project.store.acquire(head.run_id)
    except LeaseHeld:
        return False
    try:
        return _is_at_rest(project, head, before) and _forget(project, head)
    finally:
        project.store.release(lease)


def _forget(project: Project, head: RunHead) -> bool:
    try:
        project.store.delete_tree(head.run_id)
    except LeaseHeld:
        return False  # a process is about to release it
    return True


# -----------------------------------------------------------------------------------------------------------
# The tables of a PostgreSQL store, which several machines share


class ClusterTables(Struct, frozen=True):
    """The tables of a database; `before` is their format before this call, 0 if there were none."""

    place: str
    project: str
    before: int
    format: int


def init_cluster(project: Project) -> ClusterTables:
    """Create or migrate the tables of the PostgreSQL database that the user's configuration names."""
    address = project.address
    if not isinstance(address, PostgresAddress):
        message = "no PostgreSQL database is configured: runs of this project are stored below it, in SQLite"
        hint = "set FANFOLD_STORE=postgresql://HOST/DATABASE, or store.url in your own configuration"
        raise AuthorError("cluster.no_database", message, hint=hint)
    before, now = address.init()
    return ClusterTables(address.place, address.project, before, now)


# -----------------------------------------------------------------------------------------------------------
# The state of a cluster: its workers, queues and jobs


class QueueRow(Struct, frozen=True, kw_only=True):
    """A queue: its tag, the jobs that wait in it, and the workers that serve it."""

    tag: str
    waiting: int
    oldest_s: float
    workers: int


class JobRow(Struct, frozen=True):
    """A job that has not ended: a run that is driven, or an execution of a step."""

    id: str
    queue: str
    worker: str
    """The worker that does it; empty while it waits for one."""


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """The workers, queues, jobs and problems of a cluster."""

    temporal: str
    order_version: int
    store_ms: float
    """The round trip from this machine to the store in milliseconds."""
    clock_s: float
    workers: list[WorkerRow]
    queues: list[QueueRow]
    jobs: list[JobRow]
    undriven: list[str]
    """Unfinished runs of this project without a driver."""
    problems: list[str]
