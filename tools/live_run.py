"""Draw docs/images/live-run.svg: a frame of the live tree, taken in the middle of a real run.

    python -m tools.live_run

The run is real, with scripted agents; the picture is taken from the same code that draws on a terminal.
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

from fanfold.cli.terminal.live import LiveTree
from fanfold.runtime.operations.runs.creation import create
from fanfold.runtime.operations.runs.options import Options
from fanfold.wiring import wire
from tools.tidy import ROOT

PICTURE = ROOT / "docs" / "images" / "live-run.svg"
COLUMNS = 84

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
  notes: {output: notes, delay_ms: 4000}
  "heal#1/fix": {output: fixed, delay_ms: 700, usage: {input_tokens: 3200, output_tokens: 900}}
  "heal#1/test": {output: red, delay_ms: 250}
  "heal#2/fix": {output: fixed, delay_ms: 4000}
"""


async def frame(folder: Path) -> str:
    """The live tree a moment after the second iteration began."""
    (folder / "recipe.yaml").write_text(RECIPE)
    project = wire(folder, {"HOME": str(folder)})
    options = Options(script=SCRIPT, permission="auto")
    owned = create(project, project.plan_of(folder / "recipe.yaml"), {}, options)
    tree = owned.tree
    second = asyncio.Event()
    host = owned.host(on_commit=lambda _: second.set() if "heal#2/fix" in tree.root.nodes else None)
    work = asyncio.create_task(host.start())
    await second.wait()
    await asyncio.sleep(0.6)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(f"$ fanfold run {tree.root.plan.name}", style="bold")
    console.print(LiveTree(console=console).picture(tree, 40))
    host.cancel()
    await work
    owned.done()
    project.close()
    return console.export_svg(title="fanfold", code_format=without_web_fonts(CONSOLE_SVG_FORMAT))


def without_web_fonts(template: str) -> str:
    """A picture that loads nothing from anywhere."""
    template = re.sub(r"@font-face \{\{.*?\}\}\n", "", template, flags=re.DOTALL)
    template = re.sub(r"<!-- Generated with Rich .*? -->", "", template)
    return template.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        picture = asyncio.run(frame(Path(folder)))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
