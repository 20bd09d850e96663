"""Write the gallery page: twelve recipes, each with its commands and the run that its cassette recorded.

The recipes and cassettes are in `examples`. `fanfold test` replays a cassette without a model; the tests
replay all of them, so every run on the page still happens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tools.tidy import ROOT

SHOWN = {
    "fix-shop": "Code",
    "loop-until-green": "Code",
    "migrate-files": "Code",
    "review": "Code",
    "pull-request": "Code",
    "propose": "Code",
    "triage": "Operations",
    "nightly": "Operations",
    "release": "Operations",
    "research": "Text and data",
    "classify-rows": "Text and data",
    "ask-a-person": "Text and data",
}
"""The recipes on the page, and the group of each."""
MAX_CHARS = 50
_HEAD = """\
# Gallery

Twelve recipes, each with its commands and a recorded run. Scripts play the agents of these runs, so you can
repeat them without a model: copy the folder of a recipe and run its commands, or `fanfold test`, which
replays the recorded run. Then leave `--script` out and change the prompts. [Testing
recipes](writing-recipes.md#testing-recipes) explains how to record your own runs.
"""
_TAIL = """\
## Built in

These recipes come with the package: `fanfold list` names them, `fanfold show NAME` prints one. Each has a
cassette in [`tests/cassettes/builtin`](../tests/cassettes/builtin), which the tests replay too.

| recipe | purpose |
|---|---|
"""


def cassette_of(name: str) -> Path:
    """The recorded run of an example."""
    return ROOT / "examples" / name / "tests" / f"{name}.yaml"


def gallery() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for group in dict.fromkeys(SHOWN.values()):
        parts.append(f"## {group}\n")
        parts += [_entry(name) for name, its_group in SHOWN.items() if its_group == group]
    parts.append("## More examples\n")
    parts += [f"- {_summary(name)}" for name in sorted(set(_names()) - set(SHOWN))]
    rows = []
    for file in sorted((ROOT / "src" / "fanfold" / "language" / "builtin").glob("*.yaml")):
        recipe = yaml.safe_load(file.read_text("utf-8"))
        rows.append(
            f"| [`{file.stem}`](../{file.relative_to(ROOT).as_posix()}) | {recipe['description']} |\n"
        )
    return "\n".join(parts) + "\n" + _TAIL + "".join(rows)


def _entry(name: str) -> str:
    cassette = yaml.safe_load(cassette_of(name).read_text("utf-8"))
    text = _recipe_of(name).read_text("utf-8")
    commands = [line.removeprefix("# $ ") for line in text.splitlines() if line.startswith("# $ ")]
    lines = [f"### {name}\n", f"{_summary(name)}\n", "```sh", *commands, "```\n"]
    lines += ["| step | executed by | result |", "|---|---|---|"]
    for step, executions in cassette["steps"].items():
        for number, execution in enumerate(executions, start=1):
            again = f", execution {number}" if number > 1 else ""
            lines.append(f"| `{step}`{again} | {_executor(execution)} | {_result(execution)} |")
    lines.append(f"\nThe run: {cassette['expect']['status']}.\n")
    return "\n".join(lines)


def _names() -> list[str]:
    return [file.parent.name for file in (ROOT / "examples").glob("*/recipe.yaml")]


def _recipe_of(name: str) -> Path:
    return ROOT / "examples" / name / "recipe.yaml"


def _summary(name: str) -> str:
    recipe = yaml.safe_load(_recipe_of(name).read_text("utf-8"))
    links = f"[recipe](../examples/{name}/recipe.yaml), [cassette](../examples/{name}/tests/{name}.yaml)"
    return f"{recipe['description']} ({links})."


def _executor(execution: dict[str, Any]) -> str:
    if "role" in execution:
        return str(execution["role"])
    if "command" in execution:
        return f"`{_cell(' '.join(execution['command']), 40)}`"
    return "a person" if "question" in execution else "a function"


def _result(execution: dict[str, Any]) -> str:
    """The output of the step, or why it failed."""
    if "fail" in execution:
        return f"failed: {_cell(execution['fail']['message'])}"
    output = execution.get("output", execution.get("stdout", ""))
    if isinstance(output, dict) and "decision" in output:
        return f"decided: {output['decision']}"
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    if execution.get("status") == "failed":
        return f"failed with status {execution['exit_code']}: {_cell(text.splitlines()[0])}"
    if not text.strip():
        return f"status {execution['exit_code']}"
    return _cell(text) if isinstance(output, str) else f"`{_cell(text)}`"


def _cell(text: str, most: int = MAX_CHARS) -> str:
    """One line that a table can hold."""
    line = " ".join(text.split())
    line = line if len(line) <= most else line[: most - 1].rstrip() + "…"
    return line.replace("|", "\\|").replace("<", "\\<")
