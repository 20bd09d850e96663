"""Notify the user when a run waits, pauses, fails, finishes or reaches a limit.

Rules
* Only the user's own configuration and environment say whom to notify (`[notify]`). A project's file may not.
* A notice is derived from the log. It is delivered at least once: its `id` is the run and the number of the
  event, so a receiver can drop a repetition.
* While a process drives a run, a marker in the user's folder names the last event that was examined. If the
  process is killed, the next process that drives a run here, or `fanfold serve`, examines the later events.
* A notice is a file until it is delivered, one for each channel. The delivering process locks the file.
  A failed delivery is repeated with growing delays, for `KEPT_S`.
* A delivery never delays a step: a thread of its own does it. The end of the process waits `FINISH_S` for it.
* Texts come from the log, without secrets. The webhook's key is only in the environment.
"""

from __future__ import annotations

import base64
import fcntl
import hmac
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct, structs

from fanfold.api.approvals import how_to_answer, is_open, read_approval
from fanfold.api.run_options import how_to_raise
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import NotFoundError
from fanfold.kernel import events
from fanfold.kernel.state import BUDGET, COMPLETED
from fanfold.language.terminal import one_line
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.project_files import write_whole
from fanfold.steps.run_config import how_to_resume

if TYPE_CHECKING:
    from fanfold.api.project import Project
    from fanfold.engine.config import Config

Occasion: TypeAlias = Literal["waiting", "paused", "failed", "finished", "limit"]
Channel: TypeAlias = Literal["command", "webhook", "desktop"]

FINISH_S = 10.0
TIMEOUT_S = 10.0
"""For one delivery."""
KEPT_S = 24 * 3600
FIRST_RETRY_S = 5.0
LAST_RETRY_S = 3600.0
MAX_TEXT_CHARS = 300
_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
)
"""Environment variables of the user's command, besides those in `environment.allow`."""


class Notification(Struct, frozen=True, kw_only=True):
    """The document that each channel delivers."""

    id: str
    """Run and event number. A repeated delivery has the same id."""
    event: Occasion
    run_id: str
    recipe: str
    status: str
    step: str = ""
    """The tree path of the step that waits for an answer."""
    message: str
    command: str
    """The command that answers, resumes or inspects the run."""
    url: str = ""
    """The page in the console, if a server of the project runs or `notify.console` is set."""
    project: str
    at: int
    """Milliseconds since the epoch."""


class QueuedNotification(Struct, frozen=True, kw_only=True):
    """A file of the outbox: one notice for one channel."""

    notice: Notification
    channel: Channel
    attempts: int = 0
    next_at: float = 0.0
    error: str = ""


class _Marker(Struct, frozen=True):
    """The run that a process drives, and the last event that it examined."""

    root: str
    after: int


def channels(config: Config) -> list[Channel]:
    """The channels that the user configured."""
    configured: dict[Channel, bool] = {
        "command": config.text("notify.command") not in (None, "[]"),
        "webhook": bool(config.text("notify.webhook")),
        "desktop": config.switch("notify.desktop"),
    }
    return [channel for channel, is_configured in configured.items() if is_configured]


# -----------------------------------------------------------------------------------------------------------
# From events to notices


def notices_of(project: Project, tree: RunTree, written: Iterable[events.Envelope]) -> Iterator[Notification]:
    """The notices of events that are in the log. `tree` is the run after them.

    A question that was answered since then causes none.
    """
    wanted = project.config.names("notify.on")
    root, recipe = tree.root.id, tree.root.plan.name
    for envelope in written:
        data = events.event_of(envelope).data if isinstance(envelope.data, dict | bytes) else envelope.data
        found = _notice(tree, envelope, data)
        if found is None or found.event not in wanted:
            continue
        step, base = found.step, console_url(project)
        query = f"?step={quote(step, safe='')}" if step else ""
        notice = Notification(
            id=f"{root}:{envelope.tree_seq}",
            event=found.event,
            run_id=root,
            recipe=recipe,
            status=run_status(tree.state, tree.root),
            step=step,
            message=one_line(f"{recipe} {found.text}", MAX_TEXT_CHARS),
            command=found.command,
            url=f"{base}runs/{root}{query}" if base else "",
            project=project.folder.name,
            at=envelope.at,
        )
        yield msgspec.json.decode(project.store.clean(msgspec.json.encode(notice)), type=Notification)


class _Notice(NamedTuple):
    event: Occasion
    text: str
    command: str
    step: str = ""


def _notice(tree: RunTree, envelope: events.Envelope, data: object) -> _Notice | None:
    """Return what an event asks the user to do, or that a run ended; None for most events."""
    root = tree.root.id
    resume, inspect = how_to_resume(root), f"fanfold inspect {root}"
    if isinstance(data, events.StepEvent | events.SubagentEvent):
        run = tree.state.runs.get(envelope.run_id) if data.status in ("waiting", "asked") else None
        node = None if run is None else run.nodes.get(data.step)
        if node is None or not is_open(node):
            return None
        asked = read_approval(tree, node)
        text, command = f"waits for you: {asked.question}", how_to_answer(root, asked.path, asked)
        return _Notice("waiting", text, command, asked.path)
    if envelope.parent_run_id is not None:
        return None
    if isinstance(data, events.RunPaused):
        from fanfold.api.run_documents import run_error

        error = run_error(tree, tree.root)
        text = f"is paused: {data.reason}" if error is None else error.message.removeprefix("the run ")
        if data.reason == BUDGET:
            return _Notice("limit", text, how_to_raise(tree) or resume)
        return _Notice("paused", text, resume)
    if isinstance(data, events.WaitOpened) and data.count <= 1:
        why = data.error.message if data.error is not None else data.reason.replace("_", " ")
        text = f"waits for {data.subject}: {why}"
        return _Notice("waiting" if data.reason == "outage" else "limit", text, inspect)
    if isinstance(data, events.RunFinished):
        ended = data.status.replace("_", " ")
        good = data.status in (COMPLETED, "cancelled")
        text = ended if data.error is None else f"{ended}: {data.error.message}"
        return _Notice("finished" if good else "failed", text, inspect)
    return None


# -----------------------------------------------------------------------------------------------------------
# The address of the project's console, which `fanfold serve` records while it runs


class _ServedAt(Struct, frozen=True):
    url: str
    process: str


def record_console(project: Project, url: str) -> None:
    """Record where the console of a project is served; the record is valid while this process lives."""
    file = project.own_file("server", "address")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, msgspec.json.encode(_ServedAt(url, str(this_process()))))


def console_url(project: Project) -> str:
    """The address of the console with a slash at its end: as configured, or as served now; else empty."""
    configured = project.config.text("notify.console")
    if configured:
        return f"{configured.rstrip('/')}/"
    try:
        known = msgspec.json.decode(project.own_file("server", "address").read_bytes(), type=_ServedAt)
    except (OSError, msgspec.MsgspecError):
        return ""
    process = ProcessIdentity.parse(known.process)
    return known.url if process is not None and process.is_alive() else ""


# -----------------------------------------------------------------------------------------------------------
# The outbox: notices that are not delivered yet, as files in the user's own folder


class NotificationOutbox:
    """The notices of one project."""

    def __init__(self, project: Project) -> None:
        self.folder = project.own_file("notices", "d")
        self._project = project.folder
        self._config = project.config

    def put(self, notices: Iterable[Notification]) -> int:
        """Store each notice durably for each channel; return how many there are."""
        count = 0
        for notice in notices:
            count += 1
            for channel in channels(self._config):
                name = f"{notice.id.replace(':', '.')}.{channel}.json"
                queued = QueuedNotification(notice=notice, channel=channel)
                write_whole(self._made() / name, msgspec.json.encode(queued), durable=True)
        return count

    def mark(self, root: str, after: int) -> None:
        """Record that this process examines the events of a run after a number."""
        write_whole(self._made() / f"{root}.run", msgspec.json.encode(_Marker(root, after)), durable=True)

    def unmark(self, root: str) -> None:
        (self.folder / f"{root}.run").unlink(missing_ok=True)

    def marked(self) -> list[_Marker]:
        """The runs that processes drive now, or drove when they were killed."""
        found = []
        for file in sorted(self.folder.glob("*.run")):
            with suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(file.read_bytes(), type=_Marker))
        return found

    def queued(self) -> list[QueuedNotification]:
        """The notices that are not delivered, for `doctor`."""
        found = []
        for file in self._files():
            with suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(file.read_bytes(), type=QueuedNotification))
        return found

    def deliver(self, max_s: float = 60.0) -> float | None:
        """Deliver all due notices; return when the next notice is due, in seconds, or None."""
        next_s: float | None = None
        until = monotonic() + max_s
        for file in self._files():
            if monotonic() > until:
                return 0.0
            due_s = self._deliver(file)
            if due_s is not None:
                next_s = due_s if next_s is None else min(next_s, due_s)
        return next_s

    def _deliver(self, file: Path) -> float | None:
        try:
            handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None  # another process delivered it
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(handle).st_ino != file.stat().st_ino:
                    return 0.0  # replaced since it was opened
            except OSError:
                return None  # another process delivers it at this moment, or has delivered it
            try:
                queued = msgspec.json.decode(file.read_bytes(), type=QueuedNotification)
            except msgspec.MsgspecError:
                file.unlink(missing_ok=True)
                return None
            now = time()
            if queued.next_at > now and queued.next_at - now <= LAST_RETRY_S:  # else the clock was set back
                return queued.next_at - now
            error = ""
            if queued.channel in channels(self._config):
                error = self._send(queued)
            if not error or now - queued.notice.at / 1_000 > KEPT_S:
                file.unlink(missing_ok=True)
                return None
            delay_s = min(LAST_RETRY_S, FIRST_RETRY_S * 3.0 ** min(queued.attempts, 10))
            later = structs.replace(
                queued, attempts=queued.attempts + 1, next_at=time() + delay_s, error=one_line(error, 200)
            )
            write_whole(file, msgspec.json.encode(later))
            return delay_s
        finally:
            os.close(handle)

    def _send(self, queued: QueuedNotification) -> str:
        """Deliver one notice; return why that failed, or an empty text."""
        body = msgspec.json.encode(queued.notice)
        try:
            if queued.channel == "webhook":
                return _post(self._config, queued.notice, body)
            if queued.channel == "desktop":
                return self._run(_desktop_command(queued.notice), b"")
            return self._run(msgspec.json.decode(self._config.text("notify.command") or "[]"), body)
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__

    def _run(self, argv: list[str], body: bytes) -> str:
        from fanfold.workspace.git import find_program, search_path

        program = argv[0] if os.path.isabs(argv[0]) else find_program(argv[0], self._project)
        if program is None:
            return f"{argv[0]} was not found on PATH"
        names = (*_ENVIRONMENT, *self._config.names("environment.allow"))
        own = {name: os.environ[name] for name in names if name in os.environ}
        process = subprocess.Popen(
            [program, *argv[1:]],
            cwd="/",
            env={**own, "PATH": search_path(self._project)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, stderr = process.communicate(body, TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"{argv[0]} did not end within {TIMEOUT_S:g} s"
        words = stderr.decode("utf-8", "replace").strip()
        return f"{argv[0]} ended with status {process.returncode}: {words}" if process.returncode else ""

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def _made(self) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.folder


def _desktop_command(notice: Notification) -> list[str]:
    from html import escape  # the text of a desktop notification is markup

    urgency = "critical" if notice.event in ("waiting", "failed", "limit") else "normal"
    text = escape("\n".join(filter(None, (notice.message, notice.url or notice.command))), quote=False)
    return ["notify-send", "--app-name=Fanfold", f"--urgency={urgency}", "--", "Fanfold", text]


def sign(secret: str, id: str, timestamp: str, body: bytes) -> str:
    """The signature of a message by the Standard Webhooks convention; `whsec_` marks a secret in base64.

    >>> sign("a secret of the user", "r1:7", "1700000000", b"{}")
    'v1,U4Ti4A6LjXUCioWdtfBMMI9ixDn8cIHLDhdFzE+NHRo='
    """
    key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
    signed = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(signed).decode()}"


def _post(config: Config, notice: Notification, body: bytes) -> str:
    """Send a signed notice; return why that failed, or an empty text."""
    import http.client

    address, secret = config.text("notify.webhook") or "", config.text("notify.secret")
    if not secret:
        return "FANFOLD_NOTIFY_SECRET is not set, so the webhook cannot be signed"
    parts, timestamp = urlsplit(address), str(int(time()))
    headers: Mapping[str, str] = {
        "content-type": "application/json",
        "user-agent": "fanfold",
        "webhook-id": notice.id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign(secret, notice.id, timestamp, body),
    }
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        target = parts.path or "/"
        connection.request("POST", f"{target}?{parts.query}" if parts.query else target, body, headers)
        status = connection.getresponse().status  # a redirection is no delivery: the user names the address
    except http.client.HTTPException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return "" if 200 <= status < 300 else f"the server answered {status}"


# -----------------------------------------------------------------------------------------------------------
# While a process drives a run


class RunNotifier:
    """Notifies the user about one run that this process drives."""

    def __init__(self, project: Project, tree: RunTree) -> None:
        self._project = project
        self._tree = tree
        self._outbox = NotificationOutbox(project)
        self._work = threading.Event()
        self._work.set()
        self._closing = False
        recover(project, self._outbox, owned=tree.root.id)
        self._outbox.mark(tree.root.id, project.store.reach(tree.root.id))
        # Not a daemon: the interpreter waits for its last pass.
        threading.Thread(target=self._deliver, name="fanfold-notices", daemon=False).start()

    def committed(self, written: list[events.Envelope]) -> None:
        """Store the notices of events that were committed now, and have them delivered."""
        if self._outbox.put(notices_of(self._project, self._tree, written)):
            self._outbox.mark(self._tree.root.id, written[-1].tree_seq)
            self._work.set()

    def close(self) -> None:
        """Have the thread try once more and end. What it cannot deliver stays in the outbox."""
        self._outbox.unmark(self._tree.root.id)
        self._closing = True
        self._work.set()

    def _deliver(self) -> None:
        next_at: float | None = 0.0
        while True:
            woken = self._work.wait(1.0)
            closing = self._closing or not threading.main_thread().is_alive()
            self._work.clear()
            if woken or closing or (next_at is not None and monotonic() >= next_at):
                next_s = self._outbox.deliver(FINISH_S)
                next_at = None if next_s is None else monotonic() + next_s
            if closing:
                return


def recover(project: Project, outbox: NotificationOutbox, *, owned: str = "") -> None:
    """Store the notices that killed processes had no time to store. `owned` is a run of this process."""
    for marker in outbox.marked():
        if marker.root != owned and project.has_owner(marker.root):
            continue
        with suppress(NotFoundError):  # the run was deleted
            tree = project.view(marker.root)
            outbox.put(notices_of(project, tree, project.store.tree(marker.root, marker.after)))
        outbox.unmark(marker.root)


def deliver_left(project: Project) -> float | None:
    """Deliver notices of other processes; return the seconds until the next check, or None."""
    if not channels(project.config):
        return None
    outbox = NotificationOutbox(project)
    recover(project, outbox)
    return outbox.deliver()
