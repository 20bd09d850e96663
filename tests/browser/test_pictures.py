"""The pictures of the documentation: every page of the console, at three widths, in both themes.

Each width and theme is one sheet of small pictures, so that the repository stays small. `make browser` writes
them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import COMPLETE, SLOW_SCRIPT, SWEEP_SCRIPT, Console, lay_out_console
from tests.server.conftest import Server, ended, serving

pytestmark = pytest.mark.full

IMAGES = Path(__file__).parents[2] / "docs" / "images"
RECIPE = """\
name: review-changes
description: Review the modules of a change, fix what is wrong, and summarise it
inputs:
  - {name: area, type: string, required: true, description: Which part of the code}
  - {name: strict, type: boolean, default: false, description: Also report style}
steps:
  - {id: plan, agent: explorer, prompt: "List the modules of {{inputs.area}}", output_schema: {type: object}}
  - id: review
    agent: critic
    for_each: steps.plan.output.modules
    depends_on: [plan]
    prompt: "Review {{item}} for mistakes; strict: {{inputs.strict}}"
  - id: fix
    agent: worker
    write_set: ["src/*.py"]
    prompt: "Fix what the reviews found: {{steps.review.output}}"
    depends_on: [review]
  - {id: release, approve: "Publish the fixes?", show: "{{steps.fix.output}}", depends_on: [fix]}
  - {id: summary, agent: summarizer, prompt: "Summarise: {{steps.fix.output}}", depends_on: [release]}
"""
CODE = 'def total(items):\n    """Sum of prices in cents."""\n    return sum(item.price for item in items)\n'
USAGE = {"input_tokens": 2400, "output_tokens": 380, "cost_usd": 0.0123}
REVIEW = f"The module is **sound**.\n\n- `total()` adds floats\n- *tax* has no test\n\n```python\n{CODE}```"
SUMMARY = """# Two modules fixed

All prices are whole cents now. The tests of `tax` are still missing.

| module | remarks | fixed |
|---|---|---|
| cart | 2 | yes |
| tax | 1 | no |
"""
STEPS: dict[str, Any] = {
    "plan": {"output": {"modules": ["cart", "prices", "tax"]}, "usage": USAGE},
    "review[*]": {
        "output": REVIEW,
        "usage": USAGE,
        "tool_calls": [{"tool": "read_file", "args": {"path": "src/cart.py"}}],
    },
    "fix": {
        "output": "Replaced floats by whole cents in `src/cart.py`.",
        "usage": USAGE,
        "writes": {"src/cart.py": f'"""The cart."""\n\n\n{CODE}', "src/prices.py": "TEA = 350\n"},
    },
    "summary": {"output": SUMMARY, "usage": USAGE},
}
BROKEN = {
    "tool_calls": [
        {"tool": "read_file", "args": {"path": "src/prices.py"}},
        {"tool": "search_files", "args": {"pattern": "price"}},
    ],
    "fail": {"class": "agent", "message": "The module prices cannot be parsed: unexpected indent"},
}


class Picture(NamedTuple):
    """A page, and what is pressed on it before it is taken."""

    name: str
    path: str
    press: str = ""


PAGES = [
    Picture("Home", "/"),
    Picture("Recipes", "/recipes"),
    Picture("Recipe, source", "/recipes/review-changes?view=source"),
    Picture("Recipe, run", "/recipes/review-changes?view=run&from={done}"),
    Picture("Runs", "/runs"),
    Picture("Run that failed", "/runs/{failed}?step=review%5B1%5D"),
    Picture("Run that asks", "/runs/{swept}"),
    Picture("Run, timeline", "/runs/{swept}?view=timeline"),
    Picture("Answer", "/runs/{done}"),
    Picture("Step, files", "/runs/{done}/steps/fix", "Files"),
    Picture("Step, conversation", "/runs/{done}/steps/review%5B0%5D", "Transcript"),
    Picture("Compare", "/compare/{failed}/{done}"),
    Picture("Approvals", "/approvals"),
    Picture("Search", "/search?q=cents"),
    Picture("Agents", "/agents"),
    Picture("System", "/system"),
]
WIDTHS = {1440: 900, 1024: 768, 390: 844}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SINGLE = {
    ("Home", 1440, "light"): "console-home.webp",
    ("Run that failed", 1440, "light"): "console-run.webp",
    ("Run, timeline", 1440, "dark"): "console-timeline.webp",
    ("Recipe, source", 1440, "light"): "console-recipe.webp",
    ("Answer", 390, "light"): "console-phone.webp",
    ("Approvals", 390, "dark"): "console-phone-dark.webp",
}
"""Pages that the documentation shows on their own."""

NO_PATHS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    node.data = node.data.replace(/(?<!\\S)(\\/[\\w.-]+){2,}/g, "~/shop");
  }
}"""
"""Folders of the machine on which the pictures are taken are not shown."""

SHEET = """async ([pictures, columns, width]) => {
  const images = await Promise.all(pictures.map(async ([name, data]) => {
    const image = new Image();
    image.src = `data:image/png;base64,${data}`;
    await image.decode();
    return [name, image];
  }));
  const height = (images[0][1].height * width) / images[0][1].width;
  const head = columns > 1 ? 26 : 0, gap = columns > 1 ? 12 : 0;
  const canvas = document.createElement("canvas");
  canvas.width = columns * (width + gap) - gap;
  canvas.height = Math.ceil(images.length / columns) * (height + head + gap) - gap;
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#8a8f99";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.font = "15px sans-serif";
  images.forEach(([name, image], i) => {
    const x = (i % columns) * (width + gap), y = Math.floor(i / columns) * (height + head + gap);
    pen.fillStyle = "#fff";
    if (head) pen.fillText(name, x + 4, y + 18);
    pen.drawImage(image, x, y + head, width, height);
  });
  return canvas.toDataURL("image/webp", 0.72).split(",")[1];
}"""


@pytest.fixture(scope="module")
def gallery(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A project with runs in every state that a page may show."""
    folder, home = tmp_path_factory.mktemp("gallery") / "shop", tmp_path_factory.mktemp("home")
    folder.mkdir()
    lay_out_console(folder)
    (folder / ".fanfold" / "workflows" / "review-changes.yaml").write_text(RECIPE)
    (folder / "src" / "cart.py").write_text('"""The cart."""\n\n\ndef total(items):\n    return 0.0\n')
    (folder / "src" / "prices.py").write_text("TEA = 3.50\n")
    scripts = {"done": STEPS, "failed": {**STEPS, "review[1]": BROKEN}}
    with serving(folder, home) as serve:
        for name, steps in (("failed", scripts["failed"]), ("done", scripts["done"])):
            (folder / f"{name}.json").write_text(json.dumps({"default": "ok", "steps": steps}))
            words = ("run", "review-changes", "-i", "area=shop", "--script", f"{name}.json", "--yes")
            ended(folder, home, *words)
        ended(folder, home, "approve", "last", "release")
        (folder / "sweep.json").write_text(json.dumps(SWEEP_SCRIPT))
        ended(folder, home, "run", "sweep", "-i", "reason=release 2.4", "--script", "sweep.json", "--yes")
        yield serve()


def taken(page: Page, picture: Picture) -> str:
    expect(page.locator("main h1").first).to_be_attached()
    expect(page.locator(".skeleton")).to_have_count(0)
    if picture.press:
        tab = page.get_by_role("tab", name=picture.press)
        if tab.count():
            tab.click()
        else:
            page.get_by_label("About the step: more").select_option(picture.press)
        expect(page.locator(".skeleton")).to_have_count(0)
    if "view=source" in picture.path or "view=run" in picture.path:
        expect(page.get_by_text("Steps in order")).to_be_attached()
    page.evaluate(NO_PATHS)
    return base64.b64encode(page.screenshot()).decode()


@pytest.mark.skipif(not COMPLETE, reason="takes long: make browser")
def test_pictures_are_taken(browser: Browser, gallery: Server) -> None:
    runs = gallery.get("/api/runs")["items"]
    known = {
        "swept": next(run["run_id"] for run in runs if run["recipe"] == "sweep"),
        "done": next(run["run_id"] for run in runs if run["status"] == "completed"),
        "failed": next(run["run_id"] for run in runs if run["status"] == "partial"),
    }
    for theme in THEMES:
        for width, height in WIDTHS.items():
            options: dict[str, Any] = {"color_scheme": theme, "reduced_motion": "reduce"}
            console = Console(browser, gallery, **options)
            console.page.set_viewport_size({"width": width, "height": height})
            if (theme, width) == (THEMES[0], 1440):
                slow = console.start("slow", SLOW_SCRIPT)
                while console.status_of(slow) != "running":
                    pass
            shots = [(one.name, taken(console.go(one.path.format(**known)), one)) for one in PAGES]
            drawer = console.context.new_page()
            sheets = {
                f"console-{width}-{theme}.webp": (
                    shots,
                    8 if width == 390 else 4,
                    min(width, 260 if width == 390 else 560),
                )
            }
            for name, data in shots:
                if file := SINGLE.get((name, width, theme)):
                    sheets[file] = ([(name, data)], 1, width)
            for file, asked in sheets.items():
                made = base64.b64decode(drawer.evaluate(SHEET, list(asked)))
                (IMAGES / file).write_bytes(made)
                assert 8_000 < len(made) < 500_000, file
            console.context.close()
            assert console.watch.wrong == []
