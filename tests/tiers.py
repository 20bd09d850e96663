"""Two tiers of tests, decided by one rule that every run of the tests enforces.

Rules
* A test that starts a process, opens a terminal or binds a network socket carries `@pytest.mark.full`: the
  test itself, its class or its module. `make test` runs the others, `make test-full` runs all.
* A fast test takes at most 0.5 s of a quiet machine, the first or the second time: see `too_slow`.
* `@pytest.mark.proof("kill and resume")` keeps a test in the fast tier, whatever it starts: one per promise.
* A fixture of a module or session that starts something makes every test that uses it full.
* A test leaves the environment, the folder, the umask and the handlers of signals as it found them.
* A mark has a reason: in `make test-full` a marked function must start something or take 0.05 s, and so must
  half of a marked module. Others are named at the end.
* TEST_ORDER=7 shuffles modules and the tests in them, the same way for the same number.
"""

from __future__ import annotations

import locale
import os
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

LIMIT_S = 0.5
"""What a fast test may take."""
WORTH_FULL_S = 0.05
"""From here on a test may be marked `full` for its time alone."""
EVENTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "fanfold.fork_keeper"}
)
MARKED_MODULE = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.full\b", re.MULTILINE)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD, signal.SIGWINCH)
NOHUP = "TEST_NOHUP"
"""Set in the environment if the tests run under `nohup`."""

_started: list[str] = []


def _observe(
    event: str,
    arguments: tuple[Any, ...],
    note: Callable[[str], None] = _started.append,
    noted: frozenset[str] = EVENTS,
) -> None:
    """Called on every event of the interpreter; at its end, when globals are gone, too."""
    if event in noted:
        note(f"{event}({', '.join(str(part)[-60:] for part in arguments[:1])})")
    elif event == "socket.bind" and arguments[0].family.name in ("AF_INET", "AF_INET6"):
        note(f"socket.bind({arguments[1]})")


def _observed_openpty() -> tuple[int, int]:
    _started.append("os.openpty")  # Python reports no event for it
    return _openpty()


_openpty = os.openpty
os.openpty = _observed_openpty
sys.addaudithook(_observe)


def unused_s(counters: bytes) -> float:
    """How long all processors had nothing to do: idle and iowait, the fourth and fifth number of the line."""
    return sum(map(int, counters.split()[4:6])) / os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds of this process, computing and waiting, and seconds in which a processor had nothing to do."""

    cpu: float = 0.0
    idle: float = 0.0
    spare: float = 0.0

    @classmethod
    def now(cls) -> Spent:
        cpu, wall = time.process_time(), time.monotonic()
        try:  # ready to run while the machine ran other processes, as far as the main thread is concerned
            delay = int(Path("/proc/self/schedstat").read_bytes().split()[1]) / 1e9
            with open("/proc/stat", "rb") as counters:
                spare = unused_s(counters.readline())
        except (OSError, ValueError, IndexError):  # only Linux counts them
            delay, spare = 0.0, wall
        return cls(cpu, wall - delay - cpu, spare)

    def since(self, before: Spent) -> Spent:
        return Spent(self.cpu - before.cpu, self.idle - before.idle, self.spare - before.spare)

    def plus(self, more: Spent) -> Spent:
        return Spent(self.cpu + more.cpu, self.idle + more.idle, self.spare + more.spare)

    def alone(self, machine: Machine) -> float:
        """How long it would have taken on a quiet machine, where what it waits for is faster too.

        While no processor had time to spare, the test waited for its own threads, and they for a processor.
        """
        return self.cpu / machine.cpu + max(0.0, min(self.idle, self.spare)) / machine.wall


class Machine(NamedTuple):
    """How many times slower than a quiet machine of 2025 this one is, by its processor and by the clock."""

    cpu: float = 1.0
    wall: float = 1.0

    @classmethod
    def measure(cls) -> Machine:
        wall, cpu, texts = time.monotonic(), time.process_time(), {}
        for number in range(1_000_000):
            texts[number % 1_000] = f"{number}x"
        return cls.judge(time.process_time() - cpu, time.monotonic() - wall)

    @classmethod
    def judge(cls, cpu_s: float, wall_s: float) -> Machine:
        """The machine on which the loop above took so long; it takes 0.12 s where nothing else runs.

        Where it waited for a processor as long as it computed, other processes take turns on it. They empty
        its caches, of which the loop needs little: a test that needs more computes half as long again.
        """
        crowded = 1.5 if wall_s > 2 * cpu_s else 1.0
        return cls(max(crowded, cpu_s / 0.12), max(1.0, wall_s / 0.12))


def _state() -> dict[str, object]:
    """What tests share, and none may change for the next one."""
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        folder = os.getcwd()
    except OSError:
        folder = "a folder that is gone"
    return {
        "os.environ": {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "the current folder": folder,
        "the umask": umask,
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "the locale": locale.setlocale(locale.LC_ALL),
        "handlers of signals": [signal.getsignal(number) for number in SIGNALS],
    }


class Observation:
    """What one test did."""

    def __init__(self, item: pytest.Item) -> None:
        self.state = _state()
        self.before = len(_started)
        self.spent = Spent()
        self.inherited: list[str] = []
        """What fixtures that outlive the test started."""
        self.ended_well = True
        self.owner = mark_owner(item)
        self.proof = item.get_closest_marker("proof") is not None

    def started(self) -> list[str]:
        return self.inherited + _started[self.before :]

    def problem(self, timed: bool) -> str | None:
        """Which rule the test breaks, and what to do."""
        state = _state()
        if leaks := [name for name in state if state[name] != self.state[name]]:
            return f"the test changed {', '.join(leaks)} for the tests after it: use monkeypatch or a fixture"
        if self.proof or self.owner:
            return None
        if started := self.started():
            return f"the test started {started[0]}: mark it with @pytest.mark.full, or do without"
        return too_slow(self.spent, Machine.measure) if timed else None


def too_slow(spent: Spent, measure: Callable[[], Machine]) -> str | None:
    """The complaint about a fast test that took so long; the machine is measured if that matters."""
    if spent.alone(Machine()) <= LIMIT_S or (seconds := spent.alone(measure())) <= LIMIT_S:
        return None
    return (
        f"the test took {seconds:.2f} s, a fast one may take {LIMIT_S} s: "
        "make it faster, or mark it with @pytest.mark.full"
    )


def mark_owner(item: pytest.Item) -> str | None:
    """The function, class or module that carries the mark `full`."""
    for node in reversed(item.listchain()):
        if any(mark.name == "full" for mark in node.own_markers):
            return node.nodeid.partition("[")[0]
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=["fast", "full"], help="which tests run; see tests/tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: starts something or is slow; only `make test-full` runs it")
    config.addinivalue_line("markers", "proof(promise): `make test` runs it, whatever it starts")
    _stop_ignoring_signals()
    config.pluginmanager.register(Tiers(config))


def _stop_ignoring_signals() -> None:
    """Undo what a shell does to background jobs, and `nohup`: programs that tests signal would inherit it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        os.environ[NOHUP] = "1"  # for the workers, which inherit no handler
    ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _survive_hangup()


def _survive_hangup() -> None:
    """Install the handler for `nohup` again: event loops reset it. Programs do not inherit a handler."""
    if NOHUP in os.environ and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _ignore_hangup)


def _ignore_hangup(*_: object) -> None:
    """The handler of SIGHUP under `nohup`."""


class Tiers:
    """The hooks that select and watch tests; `pytest_configure` registers them."""

    def __init__(self, config: pytest.Config) -> None:
        self.tier: str | None = config.getoption("--tier")
        self.everything = config.args == config.getini("testpaths") and not config.option.keyword
        self.observation: Observation | None = None
        self.by_fixture: dict[object, list[str]] = {}
        self.needs: dict[str, list[bool]] = defaultdict(list)
        self.unfounded: list[str] = []

    # Which tests run, and in which order

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Modules that are `full` as a whole need not even be imported."""
        if self.tier != "fast" or not collection_path.match("test_*.py"):
            return None
        text = collection_path.read_text(encoding="utf-8")
        return True if MARKED_MODULE.search(text) and "mark.proof" not in text else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.tier == "fast":
            chosen = {item for item in items if item.get_closest_marker("proof") or not mark_owner(item)}
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
            items[:] = [item for item in items if item in chosen]
        if order := os.environ.get("TEST_ORDER"):
            chance = random.Random(order)
            modules: dict[str, list[pytest.Item]] = defaultdict(list)
            for item in items:
                modules[item.nodeid.partition("::")[0]].append(item)
            shuffled = chance.sample(list(modules.values()), len(modules))
            items[:] = [item for group in shuffled for item in chance.sample(group, len(group))]

    # What each of them does

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a fast test that seems to be slow again: the first time it may have imported half the world."""
        if self.tier != "fast" or not isinstance(item, pytest.Function):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if any("a fast one may take" in str(report.longrepr) for report in reports if report.failed):
            item._initrequest()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """What a longer-lived fixture does is charged to every test that uses it, its time to none."""
        before, began = len(_started), Spent.now()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function" and self.observation is not None:
                self.by_fixture[fixturedef] = _started[before:]
                del _started[before:]
                self.observation.spent = self.observation.spent.since(Spent.now().since(began))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        self.observation = Observation(item)
        with self._timed(self.observation):
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        assert self.observation is not None
        with self._timed(self.observation):
            yield
        fixtures = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
        for fixture in (one for of_name in fixtures for one in of_name):
            self.observation.inherited += self.by_fixture.get(fixture, [])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        seen, self.observation = self.observation, None
        assert seen is not None
        with self._timed(seen):
            yield
        _survive_hangup()
        if seen.ended_well:
            if seen.owner and not seen.proof:
                needed = bool(seen.started()) or seen.spent.cpu + seen.spent.idle > WORTH_FULL_S
                item.user_properties.append(("full", [seen.owner, needed]))
            if problem := seen.problem(timed=self.tier == "fast"):
                pytest.fail(problem, pytrace=False)

    @contextmanager
    def _timed(self, seen: Observation) -> Generator[None, None, None]:
        began = Spent.now()
        try:
            yield
        except BaseException:
            seen.ended_well = False
            raise
        finally:
            seen.spent = seen.spent.plus(Spent.now().since(began))

    # What they did together

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == "full" and isinstance(value, list):
                self.needs[value[0]].append(value[1])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Find marks without a reason. They are no failure: what a test starts may depend on the machine."""
        if self.tier == "full" and self.everything and not hasattr(session.config, "workerinput"):
            self.unfounded = [
                owner
                for owner, needed in sorted(self.needs.items())
                if sum(needed) < (1 if "::" in owner else len(needed) / 2)
            ]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skipped = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
        if skipped:
            terminalreporter.section("skipped")
        for reason, count in skipped.most_common():
            terminalreporter.line(f"{count:5} {reason}")
        for owner in self.unfounded:
            terminalreporter.line(
                f"marked `full` without a reason: {owner} starts nothing and is fast", red=True
            )


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
