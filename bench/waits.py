"""Where people wait: CPU time of what they do all day, as ratios where there is something to hold it against.

CPU time of a command and of all it started (user + system), the best of some rounds, all kinds in turn.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

from bench.startup import compile_package, cpu_ms
from fanfold.agents.entries import RequestedCall, Response, ToolCall, ToolResult, UserInput
from fanfold.kernel.events import Usage
from fanfold.sessions.log import open_log, read_entries
from fanfold.store.journal import Journal
from fanfold.store.sqlite import SqliteStore

Table = dict[str, dict[str, float]]

ITEMS = 4_000
STEPS = 10_000
COMMANDS = 41
ENTRIES = 20_000
LOADED = "an agent's log, per entry"
"""10 µs are 100,000 entries a second."""
BARS = {
    "map over 4,000 items of 1 kB": ("ratio", 1.3),
    "a confined command": ("cpu_ms", 20.0),
    "fanfold runs": ("ratio", 6.0),
    "fanfold run, one step": ("ratio", 10.0),
    f"fanfold inspect, {STEPS:,} steps": ("cpu_ms", 300.0),
    f"fanfold logs, {STEPS:,} steps": ("cpu_ms", 500.0),
    f"fanfold verify, {STEPS:,} steps": ("cpu_ms", 1_000.0),
    LOADED: ("cpu_us", 10.0),
}
facts = {
    "where the time goes": {
        "fanfold run, one step": "counted in instructions, 10.2 empty interpreters (18.6 before tools, TLS,"
        " expressions, step types, what reads source code and much else were loaded by whoever uses them):"
        " asyncio, click, msgspec, yaml and apsw with what they import are about three, our own 230 modules"
        " four, Python with `re`, `typing` and what else we import two, the run itself less than one; in CPU"
        " time a ninth of it is the kernel's, for memory",
        "a confined command": "two fifths are bubblewrap, of which half reads the table of mounts anew for"
        " each of some 35 binds (system folders, devices, parts of /proc, what PATH leads to), a third makes"
        " namespaces (`bubblewrap alone` does not count the process that it leaves inside); a fifth forks the"
        " keeper and the launcher, mostly copied pages; two fifths are ours: workspace, events, threads",
    }
}
"""Of what misses its bar, or nearly does."""
MAPPED = """\
name: mapped
inputs: [{name: items, type: array}]
limits: {max_steps: 20000}
steps: [{id: each, handler: work, for_each: inputs.items, max_items: 10000, inputs: {n: "{{item.n}}"}}]
"""
PROGRAM = """\
import sys
import fanfold

@fanfold.function
def work(n):
    return n

items = [{"n": n, "text": "x" * int(sys.argv[2])} for n in range(int(sys.argv[1]))]
with fanfold.open_sync(".") as project:
    done = project.run("mapped.yaml", items=items, options=fanfold.Options(permission="auto"))
assert done.status == "completed", done.error
"""


def measure(rounds: int) -> Table:
    """CPU milliseconds, and ratios."""
    compile_package()
    best: dict[str, float] = {}
    folders: list[Path] = []

    def note(name: str, value: float) -> None:
        best[name] = min(value, best.get(name, value))

    try:
        for _ in range(min(rounds, 3)):
            for measure_some in (_maps, _commands, _starts, _views, _logs):
                folder = Path(tempfile.mkdtemp(prefix="fanfold-waits."))
                folders.append(folder)
                measure_some(folder, note)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    empty, small = best["python -c pass"], best["map over 4,000 small items"]
    loaded = best.pop(LOADED)
    rows = {name: {"cpu_ms": value} for name, value in best.items()} | {LOADED: {"cpu_us": loaded}}
    for name in ("fanfold runs", "fanfold run, one step"):
        rows[name]["ratio"] = best[name] / empty
    rows["map over 4,000 items of 1 kB"]["ratio"] = best["map over 4,000 items of 1 kB"] / small
    rows["a confined command"]["ratio"] = best["a confined command"] / best["bubblewrap alone"]
    return rows


Note = Callable[[str, float], None]


def _maps(folder: Path, note: Note) -> None:
    (folder / "mapped.yaml").write_text(MAPPED)
    (folder / "program.py").write_text(PROGRAM)
    for name, size in (("map over 4,000 small items", 10), ("map over 4,000 items of 1 kB", 1_000)):
        note(name, cpu_ms([sys.executable, "program.py", str(ITEMS), str(size)], str(folder)))


def _commands(folder: Path, note: Note) -> None:
    for count in (1, COMMANDS):
        steps = [
            f"  - {{id: s{i}, run: ['true'], depends_on: {[f's{i - 1}'] if i else []}}}" for i in range(count)
        ]
        (folder / f"run{count}.yaml").write_text("\n".join(["name: commands", "steps:", *steps, ""]))
    spent = [_quietly(folder, "run", f"run{count}.yaml", "--yes") for count in (1, COMMANDS)]
    note("a confined command", (spent[1] - spent[0]) / (COMMANDS - 1))
    if shutil.which("bwrap"):
        alone = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "true"]
        note("bubblewrap alone", min(cpu_ms(alone, str(folder)) for _ in range(10)))


def _starts(folder: Path, note: Note) -> None:
    (folder / "one.yaml").write_text("name: one\nsteps: [{id: one, agent: explorer, prompt: x}]\n")
    (folder / "answers.yaml").write_text("default: ok\n")
    _quietly(folder, "run", "one.yaml", "--script", "answers.yaml")
    for _ in range(10):
        note("python -c pass", cpu_ms([sys.executable, "-c", "pass"], str(folder)))
        note("fanfold runs", _quietly(folder, "runs"))
        note("fanfold run, one step", _quietly(folder, "run", "one.yaml", "--script", "answers.yaml"))


def _views(folder: Path, note: Note) -> None:
    (folder / "mapped.yaml").write_text(MAPPED)
    (folder / "program.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "program.py", str(STEPS), "10"], cwd=folder, check=True)
    for command in ("inspect", "logs", "verify") * 3:
        note(f"fanfold {command}, {STEPS:,} steps", _quietly(folder, command, "last"))


def _logs(folder: Path, note: Note) -> None:
    """The log of one session that called tools all the time, read as a session that goes on reads it."""
    store = SqliteStore(folder / ".fanfold", durability="normal")
    try:
        journal = Journal(store, "r1")
        log, _ = open_log(journal, "s1", "r1", "a", 1)
        for i in range(ENTRIES // 4):
            call = RequestedCall(f"c{i}", "read_file", {"path": f"src/{i}.py"})
            log.hold(UserInput(text=f"Go on with number {i}."))
            log.hold(Response(text="I look.", tool_calls=(call,), usage=Usage(1_000, 100)))
            log.hold(ToolCall(id=call.id, tool=call.tool, args=call.args))
            log.hold(ToolResult(id=call.id, tool=call.tool, result="x = 1\n" * 20))
            if i % 500 == 499:
                journal.write()
        journal.write()
        for _ in range(5):
            began = process_time()
            found = len(read_entries(store, "s1"))
            note(LOADED, (process_time() - began) * 1_000_000 / found)
    finally:
        store.close()


def _quietly(folder: Path, *arguments: str) -> float:
    fanfold = shutil.which("fanfold", path=os.path.dirname(sys.executable)) or "fanfold"
    return cpu_ms([fanfold, *arguments], str(folder))


def failures(table: Table) -> list[str]:
    """What misses its bar."""
    return [
        f"{name}: {column} {table[name][column]:.1f}, allowed {bar:g}"
        for name, (column, bar) in BARS.items()
        if table[name][column] > bar
    ]
