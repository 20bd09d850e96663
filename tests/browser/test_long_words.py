"""Names, errors and texts longer than anything: they break, or are cut with a sign, and push nothing out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Console, spent
from tests.browser.test_pages import hanging_over, not_for_everybody
from tests.server.conftest import Server

pytestmark = pytest.mark.full

NAME = "a-recipe-with-a-name-as-long-as-a-name-of-a-recipe-may-be-at-all"
STEP = "a_step_with_a_name_that_is_longer_than_any_box_on_a_page_could_hold"
UNBROKEN = "x" * 400
RECIPE = f"""\
name: {NAME}
description: {"Explains each and every thing that it does, and why. " * 8}
steps:
  - {{id: {STEP}, agent: explorer, prompt: Look}}
  - {{id: change, agent: worker, write_set: ["src/**"], prompt: Change, depends_on: [{STEP}]}}
  - {{id: breaks, agent: explorer, prompt: Break, depends_on: [change], on_failure: inline}}
  - id: pick
    approve: Which one?
    choices: [short, {"a choice of many words " * 8}]
    depends_on: [breaks]
"""
SAID = f"# Found\n\nA [link](https://example.org/) in words.\n\n```\n{UNBROKEN}\n```\n\n{UNBROKEN}"
WROTE = {f"src/{'deep/' * 12}file.py": "new\n" * 30, "src/wide.py": f"{UNBROKEN}\n"}
SCRIPT: dict[str, Any] = {
    "default": spent(SAID),
    "steps": {
        "change": {**spent(SAID), "writes": WROTE},
        "breaks": {"fail": {"class": "agent", "message": f"it said {UNBROKEN} <script>alert(1)</script>"}},
    },
}
PAGES = {
    "runs": "/runs",
    "recipes": "/recipes",
    "recipe": f"/recipes/{NAME}",
    "form": f"/recipes/{NAME}?view=run",
    "failure": "/runs/{run}?step=breaks",
    "drawer": f"/runs/{{run}}?step={STEP}",
    "table": "/runs/{run}?view=table",
    "timeline": "/runs/{run}?view=timeline",
    "step": f"/runs/{{run}}/steps/{STEP}",
    "transcript": "/runs/{run}/steps/change#Transcript",
    "files": "/runs/{run}/steps/change#Files",
    "attempts": "/runs/{run}/steps/breaks#Attempts",
    "why": "/runs/{run}/steps/change#Why",
    "approvals": "/approvals",
}
PUSHED_OUT = """() => [...document.querySelectorAll('main *')].filter((one) => {
  const box = one.getBoundingClientRect();
  for (let at = one.parentElement; at && at !== document.body; at = at.parentElement) {
    const { overflowX } = getComputedStyle(at);
    if (['auto', 'scroll'].includes(overflowX) || at.closest('svg, .clip, td')) return false;
    const end = at.getBoundingClientRect().right;
    if (overflowX === 'hidden' && box.width > 0 && box.right > end + 1) return true;
  }
  return box.width > 0 && box.right > innerWidth + 1;
}).slice(0, 3).map((one) => `${one.tagName}.${one.className}`)"""
"""What nobody can see, nor scroll to; what is cut with a sign is meant to be."""


@pytest.fixture(params=[390, 820, 1440])
def sized(request: pytest.FixtureRequest, browser: Browser, server: Server) -> Iterator[Console]:
    made = Console(browser, server, color_scheme="light")
    made.page.set_viewport_size({"width": request.param, "height": 900})
    yield made
    made.context.close()
    assert made.watch.wrong == []


@pytest.fixture(scope="module")
def unruly(server: Server) -> str:
    """A run of long words that waits."""
    recipe = server.folder / ".fanfold" / "workflows" / f"{NAME}.yaml"
    recipe.write_text(RECIPE)
    run = str(server.post("/api/runs", {"recipe": NAME, "script": SCRIPT, "yes": True}, 201)["run_id"])
    while server.get(f"/api/runs/{run}/head")["status"] != "waiting":
        pass
    return run


def open_tab(page: Page, name: str) -> None:
    expect(page.get_by_role("tab").first).to_be_visible()
    if page.get_by_role("tab", name=name).count():
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_role("tab", name=name, selected=True)).to_be_visible()
    else:  # a phone has room for a few
        page.get_by_label("About the step: more").select_option(name)


def test_nothing_is_pushed_out_of_sight_by_long_words(sized: Console, unruly: str) -> None:
    found = []
    for name, address in PAGES.items():
        path, _, tab = address.format(run=unruly).partition("#")
        page = sized.go(path)
        expect(page.locator("main h1").first).to_be_attached()
        if tab:
            open_tab(page, tab)
        expect(page.locator(".skeleton")).to_have_count(0)
        found += hanging_over(page, name) + [f"{name}: {one}" for one in page.evaluate(PUSHED_OUT)]
    assert found == []


@pytest.mark.parametrize("sized", [1440], indirect=True)
def test_a_drawer_of_long_words_can_be_closed_and_says_it_all(sized: Console, unruly: str) -> None:
    page = sized.go(f"/runs/{unruly}?step={STEP}")
    drawer = page.get_by_label(f"Step {STEP}")
    expect(drawer.get_by_role("link", name="Open page")).to_be_in_viewport(ratio=1)
    assert not_for_everybody(page, "drawer") == []
    drawer.get_by_role("button", name="Close the step").click()
    expect(page.locator(".drawer")).to_have_count(0)


@pytest.mark.parametrize("sized", [1440], indirect=True)
def test_changed_files_are_counted_and_shown_one_by_one(sized: Console, unruly: str) -> None:
    page = sized.go(f"/runs/{unruly}/steps/change")
    open_tab(page, "Files")
    diff = page.locator(".diff")
    expect(diff).to_contain_text("2 files +31 \u22120")
    first = diff.locator("details").first
    expect(first.locator("summary")).to_contain_text("added")
    expect(first.locator(".line.plus").last).to_have_text("30+new")
    first.locator("summary").click()
    expect(first.locator(".line.plus").last).to_be_hidden()
    assert not_for_everybody(page, "files") == []


@pytest.mark.parametrize("sized", [1440], indirect=True)
def test_why_says_what_a_step_waited_for_and_what_it_touched(sized: Console, unruly: str) -> None:
    page = sized.go(f"/runs/{unruly}/steps/change")
    open_tab(page, "Why")
    panel = page.get_by_role("tabpanel")
    expect(panel).to_contain_text(f"It could start when {STEP} had ended")
    expect(panel).to_contain_text("What happened")
    expect(panel).to_contain_text("src/wide.py")
