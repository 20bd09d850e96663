"""Start-up: CPU time of commands as multiples of `python -c pass`.

CPU time of the child (user + system), the best of many starts, all kinds in turn. The package is compiled
first, as installing it does: PYTHONDONTWRITEBYTECODE may be set here, and a start would then compile
everything again.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

BARS = {"fanfold --help": 3.0, "fanfold check, 200 steps": 12.0}
STARTS_A_ROUND = 3


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of CPU and the ratio to an empty interpreter."""
    fanfold = which("fanfold", path=os.path.dirname(sys.executable)) or "fanfold"
    compile_package()
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "large.yaml")
        recipe.write_text(large_recipe(200))
        kinds = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "fanfold --help": [fanfold, "--help"],
            "fanfold check, 200 steps": [fanfold, "check", str(recipe)],
        }
        best = dict.fromkeys(kinds, float("inf"))
        for _ in range(rounds * STARTS_A_ROUND):
            for name, command in kinds.items():
                best[name] = min(best[name], cpu_ms(command, folder))
    empty = best["python -c pass"]
    return {name: {"cpu_ms": time, "ratio": time / empty} for name, time in best.items()}


def compile_package() -> None:
    import fanfold

    compileall.compile_dir(Path(fanfold.__file__).parent, quiet=2)


def cpu_ms(command: list[str], folder: str) -> float:
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1_000


def large_recipe(steps: int) -> str:
    """A recipe with edges, templates and a few conditions, as a large real one has."""
    lines = ["name: large", "inputs:", "  - {name: topic, required: true}", "steps:"]
    for i in range(steps):
        lines += [f"  - id: s{i}", "    agent: explorer"]
        if i:
            lines += [f"    depends_on: [s{i - 1}]"]
            lines += [f'    prompt: "Continue on {{{{inputs.topic}}}}: {{{{steps.s{i - 1}.output}}}}"']
        else:
            lines += ['    prompt: "Begin with {{inputs.topic}}"']
        if i % 20 == 19:
            lines += [f"    when: steps.s{i - 1}.output != ''"]
    return "\n".join(lines) + "\n"


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{name}: {table[name]['ratio']:.1f} times an empty interpreter, allowed {bar:.0f}"
        for name, bar in BARS.items()
        if table[name]["ratio"] > bar
    ]
