"""Cassettes: recorded runs as test cases. Their format, their files, and how two of them differ.

Rules
* A cassette may come with a repository, so it is data from a third party. Sizes, counts and paths are limited
  here. Nothing in it is executed.
* The lines above `MARKER` belong to the user: recipe, inputs, mode and expectations. An update keeps them as
  they are and writes the rest again.
* Long texts are in files beside the cassette, named by their hash, so that the cassette stays readable.
* A replay is recorded like any run. A test compares the two cassettes.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fanfold.errors import AuthorError
from fanfold.kernel.events import FAILURE_CLASSES, Failure, LimitsRaised, Usage
from fanfold.kernel.paths import matches
from fanfold.kernel.state import COMPLETED
from fanfold.language.builder import as_yaml
from fanfold.language.diagnostics import FileRefused
from fanfold.language.expressions import evaluate
from fanfold.language.json_text import JSON, as_text
from fanfold.language.tables import Notes
from fanfold.language.template import ExpressionError
from fanfold.language.tree import find, plain
from fanfold.language.yaml_text import TextFormat, parse_yaml
from fanfold.project_files import read_named, write_named

MAX_BYTES = 8 * 1024 * 1024
MAX_LONG_BYTES = 16 * 1024 * 1024
"""The size of one text beside a cassette."""
MAX_TOTAL_BYTES = 64 * 1024 * 1024
"""The size of all texts beside a cassette. One that is named twice counts twice: it is written twice."""
MAX_FILES = 2_000
LONG_CHARS = 4_000
"""Longer texts are stored beside the cassette."""
FORMAT = TextFormat(
    name="cassette",
    max_bytes=MAX_BYTES,
    max_depth=64,
    max_values=500_000,
    clean_values=False,  # an agent can output anything
    begin_with="begin with cassette: 1 and recipe:",
    too_large="record a smaller run",
)
MARKER = "# Recorded. An update writes everything below this line again.\n"
OWN_KEYS = ("cassette", "recipe", "inputs", "mode", "expect")
"""The keys above the marker."""
LimitName: TypeAlias = Literal[
    "max_concurrency", "max_agents", "timeout_ms", "budget_tokens", "budget_micro_usd"
]
_BESIDE = "$file"
_HASH = r"(?a)[0-9a-f]{32}"


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a cassette. Fields that are not set are not written."""


class BinaryContent(_Part, frozen=True):
    """The content of a file that is not text."""

    base64: str

    def __post_init__(self) -> None:
        base64.b64decode(self.base64)


Content: TypeAlias = str | BinaryContent


class CallRecord(_Part, frozen=True):
    """A tool call of an agent. `result` is left out if a replay can produce it again."""

    tool: str
    args: JSON = None
    result: JSON | UnsetType = UNSET
    error: str = ""
    """The code of the error that the call ended with."""


class TurnRecord(_Part, frozen=True):
    """One response of an agent, with its tool calls."""

    text: str = ""
    calls: tuple[CallRecord, ...] = ()


class AttemptRecord(_Part, frozen=True):
    """One attempt of a step, or one session inside of it."""

    status: str = COMPLETED
    role: str = ""
    prompt: str | None = None
    program: str = ""
    """For an agent that is a program: its name. Its tool calls are not carried out again."""
    command: tuple[str, ...] = ()
    function: str = ""
    question: str = ""
    """For a step that a person answers: the question."""
    inputs: dict[str, JSON] = {}
    turns: tuple[TurnRecord, ...] = ()
    output: JSON | UnsetType = UNSET
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    fail: Failure | None = None
    writes: dict[str, Content | None] = {}
    """Files that a program or command left changed, by path; null for a deleted file."""
    usage: Usage | None = None
    ms: int = 0
    reused: bool = False
    """Whether the result came from another run or the cache."""

    def __post_init__(self) -> None:
        if self.ms < 0:
            raise ValueError("ms is never negative")
        if self.fail is not None and self.fail.kind not in FAILURE_CLASSES:
            raise ValueError(f"there is no failure class {self.fail.kind[:80]!r}")


class Expectations(_Part, frozen=True):
    """What a test has to find, besides the recorded result."""

    status: str | None = None
    output: str | None = None
    """A CEL condition about `output`, `steps`, `inputs`, `status`, `changes` and `usage`."""
    changes: tuple[str, ...] | None = None
    """Globs. Each changed path has to match one of them, and each of them a path."""
    agents_max: int | None = None
    usd_max: float | None = None


class ResultRecord(_Part, frozen=True):
    """How a run ended."""

    status: str
    output: JSON = None
    error: str = ""
    order: tuple[str, ...] = ()
    """Starts, ends and skips of steps."""
    decisions: tuple[str, ...] = ()
    """Verdicts of conditions and gates, and lengths of lists."""
    changes: tuple[str, ...] = ()
    """Step, state, content hash and path of each changed file, in order of merging."""
    agents: int = 0
    usage: Usage = Usage()


class Cassette(_Part, frozen=True):
    """A recorded run, as its file holds it."""

    cassette: Literal[1]
    recipe: str
    inputs: dict[str, JSON] = {}
    mode: Literal["loose", "strict"] = "loose"
    expect: Expectations = Expectations()
    limits: dict[LimitName, int] = {}
    """The limits of the run that its recipe does not set."""
    raised: tuple[LimitsRaised, ...] = ()
    """Limits that were raised when the run was resumed after a pause."""
    files: dict[str, Content] = {}
    """The files that the run started from, as far as it used them."""
    roles: dict[str, str] = {}
    """The access, model, tools and instructions of each role, as text."""
    steps: dict[str, tuple[AttemptRecord, ...]] = {}
    """The attempts of each step, by its tree path."""
    result: ResultRecord | None = None
    """None if no run was recorded: a case that was written by hand."""

    def __post_init__(self) -> None:
        attempts = [attempt for step in self.steps.values() for attempt in step]
        paths = [*self.files, *(path for attempt in attempts for path in attempt.writes)]
        if len(paths) > MAX_FILES:
            raise ValueError(f"{len(paths):,} files; a cassette holds at most {MAX_FILES:,}")
        for path in (*paths, *self.changed):
            parts = path.split("/")
            if path[:1] in ("", "/") or "\\" in path or "\0" in path or {"", ".", ".."} & {*parts}:
                raise ValueError(f"{path[:200]!r} is not a relative path in its shortest form")
            if {".git", ".fanfold"} & {part.lower() for part in parts}:
                raise ValueError(f"{path[:200]!r} belongs to git or Fanfold")

    @property
    def changed(self) -> list[str]:
        """The paths of the files that the recorded run changed."""
        lines = self.result.changes if self.result is not None else ()
        return [line.split(" ", 3)[-1] for line in lines]

    def attempt(self, step: str, number: int) -> AttemptRecord | None:
        """Return an attempt of a step; the last one stands for all further attempts."""
        attempts = self.steps.get(step, ())
        return attempts[min(max(number, 1), len(attempts)) - 1] if attempts else None


def bytes_of(content: Content) -> bytes:
    """Return the content of a file as bytes."""
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return base64.b64decode(content.base64)


def content_of(data: bytes) -> Content:
    """Return bytes as the content of a file.

    >>> content_of(b"a"), content_of(bytes([255]))
    ('a', BinaryContent(base64='/w=='))
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return BinaryContent(base64=base64.b64encode(data).decode())


# -----------------------------------------------------------------------------------------------------------
# Files


def read_cassette(file: Path, top: Path) -> Cassette:
    """Read a cassette and the texts beside it. Raises `FileRefused` or `AuthorError`.

    `top` is the project's folder; below it no link is followed.
    """
    tree, source, report = parse_yaml(_read(top, file, MAX_BYTES), str(file), FORMAT)
    if tree is None or not report.ok:
        raise FileRefused(report.diagnostics, {source.file: source})
    try:
        return msgspec.convert(_LongTexts(file, top).restored(plain(tree)), Cassette)
    except ValueError as error:
        message, _, place = str(error).partition(" - at `$")
        at = tree
        for name, number in re.findall(r"\.(\w+)|\[(\d+)\]", place.partition("[...]")[0]):
            try:
                at = find(at, [name or int(number)])
            except (LookupError, TypeError, ValueError):
                break
        hint = "record the run again, or correct the cassette"
        if "cassette" not in plain(tree):
            hint = "this file is not a cassette; the command `record` writes one"
        Notes(report, source).error("cassette.bad_value", message[:1].lower() + message[1:], at, hint)
        raise FileRefused(report.diagnostics, {source.file: source}) from None


def _read(top: Path, file: Path, most: int) -> bytes:
    try:
        return read_named(top, file, most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AuthorError("cassette.unreadable", f"{file} cannot be read: {reason}") from None


def write_cassette(cassette: Cassette, file: Path, top: Path) -> None:
    """Write a cassette; the user's lines of an existing file stay as they are."""
    whole = {key: value for key, value in msgspec.to_builtins(cassette).items() if value != {}}
    above = as_yaml({key: whole.pop(key) for key in OWN_KEYS if key in whole})
    if file.exists():
        kept, found, _ = _read(top, file, MAX_BYTES).decode().partition(MARKER)
        above = kept if found else above
    long = _LongTexts(file, top)
    body = as_yaml(long.removed(whole))
    long.write()
    write_named(top, file, f"{above}{MARKER}{body}".encode("utf-8", "surrogatepass"))


class _LongTexts:
    """The long texts of a cassette, each in a file of the folder `NAME.d`."""

    def __init__(self, file: Path, top: Path) -> None:
        self._top = top
        self._folder = file.with_name(f"{file.stem}.d")
        self._texts: dict[str, bytes] = {}
        self._loaded = 0

    def restored(self, value: JSON) -> JSON:
        if isinstance(value, list):
            return [self.restored(item) for item in value]
        if not isinstance(value, dict):
            return value
        key = next(iter(value)) if len(value) == 1 else ""
        if key == _BESIDE:
            return self._load(value[key])
        if key.startswith(f"${_BESIDE}"):
            return {key[1:]: self.restored(value[key])}
        return {key: self.restored(one) for key, one in value.items()}

    def _load(self, name: JSON) -> str:
        if not isinstance(name, str) or not re.fullmatch(_HASH, name):
            raise ValueError(f"{_BESIDE} needs the 32 digits of a hash, not {as_text(name)[:80]!r}")
        data = self._texts.get(name) or _read(self._top, self._folder / name, MAX_LONG_BYTES)
        self._texts[name] = data
        self._loaded += len(data)
        if len(data) > MAX_LONG_BYTES or self._loaded > MAX_TOTAL_BYTES:
            raise ValueError(f"the texts in {self._folder.name} are too large")
        if _digest(data) != name:
            raise ValueError(f"{self._folder.name}/{name} differs from the recorded text")
        return data.decode("utf-8", "surrogatepass")

    def removed(self, value: JSON) -> JSON:
        if isinstance(value, str) and len(value) > LONG_CHARS:
            data = value.encode("utf-8", "surrogatepass")
            self._texts[_digest(data)] = data
            return {_BESIDE: _digest(data)}
        if isinstance(value, list | tuple):
            return [self.removed(item) for item in value]
        if not isinstance(value, dict):
            return value
        escaped = "$" if len(value) == 1 and next(iter(value)).startswith(_BESIDE) else ""
        return {f"{escaped}{key}": self.removed(one) for key, one in value.items()}

    def write(self) -> None:
        """Write the texts, and remove those of an earlier recording."""
        for name, data in self._texts.items():
            write_named(self._top, self._folder / name, data)
        if self._folder.is_dir() and not self._folder.is_symlink():
            for old in self._folder.iterdir():
                if re.fullmatch(_HASH, old.name) and old.name not in self._texts:
                    old.unlink()


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def find_cassettes(paths: Sequence[Path], top: Path) -> list[Path]:
    """List the cassettes among files and below folders, in order. A named file always counts.

    A folder of the project that is a link, or behind one, must lead to a folder of the project.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            found[path] = None
            continue
        inside, real = os.path.realpath(top), Path(os.path.realpath(path))
        if Path(os.path.abspath(path)).is_relative_to(inside) and not real.is_relative_to(inside):
            raise AuthorError("cassette.outside", f"{path} is outside the project", hint="name its target")
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith((".", "node_modules")))
            files = (Path(folder, name) for name in sorted(names) if name.endswith((".yaml", ".yml")))
            found |= dict.fromkeys(file for file in files if _is_cassette(file, top))
    return list(found)


def _is_cassette(file: Path, top: Path) -> bool:
    """Whether the first kilobytes of a file say that it is a cassette."""
    try:
        return re.search(rb"(?m)^cassette: *\d", read_named(top, file, 4_096)) is not None
    except (OSError, ValueError):
        return False


# -----------------------------------------------------------------------------------------------------------
# Differences between a recording and its replay

MAX_COMPARED = 2_000
"""The lines of a text that a diff compares."""
REQUESTS = frozenset(("prompt", "role", "command", "inputs", "question"))
"""Kinds of differences in what steps are asked to do. In the mode `loose` they do not fail a test."""


class Difference(Struct, frozen=True, omit_defaults=True):
    """One difference between a recording and its replay.

    `kind`: one of `REQUESTS`, or tool, schema, failure, order, decision, status, output, files, cost,
    expectation, error.
    """

    kind: str
    message: str
    step: str = ""
    diff: str = ""
    """Both versions as a unified diff."""


Names = tuple[str, str]
"""What the two sides of a diff are called."""


def differences(old: Cassette, new: Cassette, names: Names = ("recorded", "now")) -> list[Difference]:
    """List the differences between a recording and its replay, requests first."""
    roles = [
        Difference("role", f"the role {name} changed", diff=_diff(text, new.roles[name], names))
        for name, text in old.roles.items()
        if new.roles.get(name, text) != text
    ]
    pairs = [
        (step if number == 1 else f"{step} (attempt {number})", step, before, after)
        for step, attempts in new.steps.items()
        for number, after in enumerate(attempts, 1)
        if (before := old.attempt(step, number)) is not None
    ]
    asked = (request for pair in pairs for request in _requests(*pair, names))
    return [
        *roles,
        *asked,
        *(outcome for pair in pairs for outcome in _outcomes(*pair)),
        *_results(old, new, names),
    ]


def _requests(
    name: str, step: str, before: AttemptRecord, after: AttemptRecord, names: Names
) -> Iterator[Difference]:
    for kind in ("role", "prompt", "question", "command", "inputs"):
        was, now = getattr(before, kind), getattr(after, kind)
        if was and was != now:
            yield Difference(kind, f"{name}: its {kind} changed", step, _diff(_text(was), _text(now), names))


def _outcomes(name: str, step: str, before: AttemptRecord, after: AttemptRecord) -> Iterator[Difference]:
    calls, others = ([call for turn in side.turns for call in turn.calls] for side in (before, after))
    for call, other in zip(calls, others, strict=False):
        if call.tool == other.tool and call.error != other.error:
            outcome = f"fails now ({other.error})" if other.error else f"works now, failed ({call.error})"
            yield Difference("tool", f"{name}: {call.tool} {outcome}", step)
    was, now = before.fail, after.fail
    if now is not None and (was is None or was.code != now.code):
        kind = "schema" if now.kind == "invalid_output" else "failure"
        yield Difference(kind, f"{name} fails: {now.message or now.code}", step)
    elif now is None and was is not None and after.status == "completed":
        yield Difference("failure", f"{name} completes now, and failed: {was.message}", step)


def _results(old: Cassette, new: Cassette, names: Names) -> Iterator[Difference]:
    was, now = old.result, new.result
    if was is None or now is None:
        return
    if was.status != now.status:
        why = f": {now.error}" if now.error else ""
        yield Difference("status", f"the run is {now.status}, was {was.status}{why}")
    for kind, field, message in (
        ("output", "output", "the output of the run changed"),
        ("order", "order", "steps start or end in another order"),
        ("decision", "decisions", "a condition or gate is decided differently"),
        ("files", "changes", "other files are changed, or changed differently"),
    ):
        before, after = getattr(was, field), getattr(now, field)
        if before != after:
            yield Difference(kind, message, diff=_diff(_text(before), _text(after), names))
    if was.agents != now.agents:
        yield Difference("cost", f"{now.agents} agents work, were {was.agents}")
    if was.usage != now.usage:
        yield Difference("cost", f"the run spends {_spent(now.usage)}, was {_spent(was.usage)}")


def _text(value: Any) -> str:
    """Return a value as lines, for a diff."""
    if isinstance(value, tuple):
        return "\n".join(map(str, value))
    if isinstance(value, dict):
        return "\n".join(f"{key}: {as_text(one)}" for key, one in value.items())
    return as_text(value)


def _spent(usage: Usage) -> str:
    price = "" if usage.micro_usd is None else f", ${usage.micro_usd / 1_000_000:.6g}"
    return f"{usage.input_tokens + usage.output_tokens:,} tokens{price}"


def _diff(before: str, after: str, names: Names) -> str:
    """Return what differs, from the first difference on. The time for a diff grows with its square."""
    old, new = before.splitlines(), after.splitlines()
    pairs, shorter = enumerate(zip(old, new, strict=False)), min(len(old), len(new))
    first = next((at for at, (one, other) in pairs if one != other), shorter)
    start = max(0, first - 2) if max(len(old), len(new)) > MAX_COMPARED else 0
    old, new = old[start : start + MAX_COMPARED], new[start : start + MAX_COMPARED]
    return "\n".join(unified_diff(old, new, *names, lineterm="", n=2))


def unmet(expect: Expectations, result: ResultRecord, names: Mapping[str, JSON]) -> Iterator[Difference]:
    """List the expectations that a result does not meet. `names` are the values for conditions."""

    def wrong(text: str) -> Difference:
        return Difference("expectation", text)

    if expect.status is not None and result.status != expect.status:
        yield wrong(f"status is {result.status}, expected {expect.status}")
    if expect.output is not None:
        try:
            verdict = evaluate(expect.output, names)
        except ExpressionError as error:
            verdict = f"an error: {error}"
        if verdict is not True:
            yield wrong(f"output: {expect.output} gives {as_text(verdict)[:200]}, expected true")
    if expect.changes is not None:
        paths = [line.split(" ", 3)[3] for line in result.changes]
        others = [path for path in paths if not matches(expect.changes, path)]
        yield from (wrong(f"changes: {path} is changed, and no pattern allows it") for path in others)
        unused = [glob for glob in expect.changes if not any(matches((glob,), path) for path in paths)]
        yield from (wrong(f"changes: nothing that matches {glob} is changed") for glob in unused)
    if expect.agents_max is not None and result.agents > expect.agents_max:
        yield wrong(f"{result.agents} agents work, at most {expect.agents_max} expected")
    spent = (result.usage.micro_usd or 0) / 1_000_000
    if expect.usd_max is not None and spent > expect.usd_max:
        yield wrong(f"the run spends ${spent:g}, at most ${expect.usd_max:g} expected")
