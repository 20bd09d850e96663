"""Draw docs/images/live-run-*.svg and tidy-up.svg: frames of the live tree, in the middle of real runs.

    python -m tools.live_run

The run is real, with scripted agents; the pictures are taken from the same code that draws on a terminal.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from fanfold.agents.entries import Calling, News
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.cli.live import LiveTree
from fanfold.wiring import wire
from tools import markdown
from tools.tidy import ROOT

PICTURES = ROOT / "docs" / "images"
WIDTHS = (40, 80, 140)

RECIPE = """\
name: audit-and-fix
steps:
  - id: scan
    agent: explorer
    for_each: '["api", "billing", "search", "web"]'
    prompt: Look for unhandled errors in {{item}}.
  - {id: plan, agent: planner, prompt: "Plan the fixes for {{steps.scan.output}}"}
  - id: heal
    depends_on: [plan]
    repeat: {until: "steps.test.output == 'green'", max_iterations: 3}
    steps:
      - {id: fix, agent: worker, write_set: ["src/**"], prompt: "Fix what was planned. {{feedback}}"}
      - {id: test, agent: critic, depends_on: [fix], prompt: "Do the tests pass?"}
  - {id: notes, agent: summarizer, depends_on: [plan], prompt: Write release notes.}
  - {id: release, approve: "Release it?", depends_on: [heal, notes]}
"""
SCRIPT = """\
default: {output: "done by {{step}}", delay_ms: 300, usage: {input_tokens: 900, output_tokens: 260}}
steps:
  "scan[1]": {output: two, delay_ms: 520, usage: {input_tokens: 2100, output_tokens: 310}}
  notes: {output: notes, delay_ms: 9000}
  "heal#1/fix": {output: fixed, delay_ms: 700, usage: {input_tokens: 3200, output_tokens: 900}}
  "heal#1/test": {output: red, delay_ms: 250}
  "heal#2/fix":
    output: fixed
    tool_calls: [{tool: run_command, args: {argv: [sh, -c, "make test; sleep 9"]}}]
"""


TIDY_UP = """\
steps:
  dead_code: {output: three functions, delay_ms: 400, usage: {input_tokens: 2400, output_tokens: 310}}
  slow_tests: {output: two tests, delay_ms: 700, usage: {input_tokens: 1900, output_tokens: 260}}
  fix:
    output: fixed
    usage: {input_tokens: 5200, output_tokens: 800}
    tool_calls:
      - {tool: run_command, args: {argv: [./run-tests, tests/test_orders.py]}}
"""


async def frames(
    folder: Path, recipe: str, script: str, step: str, widths: tuple[int, ...]
) -> dict[int, str]:
    """Width → the live tree a moment after a step called its first tool."""
    (folder / "recipe.yaml").write_text(recipe)
    (folder / "run-tests").write_text("#!/bin/sh\nexec sleep 9\n")
    (folder / "run-tests").chmod(0o755)
    project = wire(folder, {"HOME": str(folder)})
    options = Options(script=script, permission="auto")
    owned = create(project, project.plan_of(folder / "recipe.yaml"), {}, options)
    tree = owned.tree
    views = {width: LiveTree(console=_console(width)) for width in widths}
    for view in views.values():
        view.suspend()  # it listens, and draws when it is asked to
    second = asyncio.Event()

    def hear(run: str, path: str, news: News) -> None:
        for view in views.values():
            view.update([], tree)
            view.hear(run, path, news)
        if path == step and isinstance(news, Calling):
            second.set()

    host = owned.host(on_progress=hear)
    work = asyncio.create_task(host.start())
    await second.wait()
    await asyncio.sleep(0.6)
    template = without_web_fonts(CONSOLE_SVG_FORMAT)
    drawn: dict[int, str] = {}
    for width, view in views.items():
        view.console.print(f"$ fanfold run {tree.root.plan.name}", style="bold")
        view.console.print(view.picture(tree, 40))
        drawn[width] = view.console.export_svg(title="fanfold", code_format=template)
    host.cancel()
    await work
    owned.done()
    project.close()
    return drawn


def _console(width: int) -> Console:
    return Console(record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False)


def without_web_fonts(template: str) -> str:
    """A picture that loads nothing from anywhere."""
    template = re.sub(r"@font-face \{\{.*?\}\}\n", "", template, flags=re.DOTALL)
    template = re.sub(r"<!-- Generated with Rich .*? -->", "", template)
    return template.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def main() -> int:
    readme = markdown.blocks((ROOT / "README.md").read_text("utf-8"))
    tidy_up = next(block.text for block in readme if block.text.startswith("# tidy-up.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        drawn = asyncio.run(frames(Path(folder), RECIPE, SCRIPT, "heal#2/fix", WIDTHS))
    with tempfile.TemporaryDirectory() as folder:
        [picture] = asyncio.run(frames(Path(folder), tidy_up, TIDY_UP, "fix", (80,))).values()
    (PICTURES / "tidy-up.svg").write_text(picture + "\n")
    for width, picture in drawn.items():
        (PICTURES / f"live-run-{width}.svg").write_text(picture + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
