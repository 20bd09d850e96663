"""Every page at three widths in both themes: nothing hangs over, and axe finds nothing serious."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import COMPLETE, Console
from tests.server.conftest import Server

pytestmark = pytest.mark.full

PAGES = {
    "home": "/",
    "recipes": "/recipes",
    "recipe": "/recipes/sweep",
    "source": "/recipes/sweep?view=source",
    "form": "/recipes/sweep?view=run",
    "runs": "/runs",
    "graph": "/runs/{run}",
    "step": "/runs/{run}?step=release",
    "timeline": "/runs/{run}?view=timeline",
    "table": "/runs/{run}?view=table&step=mend%231%2Ffix",
    "events": "/runs/{run}?view=events",
    "output": "/runs/{run}?view=output",
    "cost": "/runs/{run}?view=cost",
    "recorded": "/runs/{run}?view=recipe",
    "failed": "/runs/{run}?step=each%5B17%5D",
    "first": "/runs/{run}?intro=1",
    "filtered": "/runs?q=tests&since=7d&recipe=sweep",
    "step-page": "/runs/{run}/steps/mend%231/fix",
    "approvals": "/approvals",
    "search": "/search?q=quokka",
    "agents": "/agents",
    "system": "/system",
    "compare": "/compare/{run}/{fork}",
    "comparisons": "/compare",
}
DIALOGS: dict[str, list[str]] = {
    "fork": ["Fork …"],
    "cancel": ["Cancel"],
    "copy": ["More", "Copy as …"],
    "what if": ["More", "What if …"],
}
"""What is pressed on the page of a run until each is open."""
SHORT = [("light", 1440), ("dark", 390)]
"""Every other page in each of them; all pages in all of them: `make browser`."""
ALL = [(theme, width) for theme in ("light", "dark") for width in (1440, 1024, 390)]
Scheme = Literal["light", "dark"]


@pytest.fixture(params=ALL if COMPLETE else SHORT, ids=str)
def dressed(request: pytest.FixtureRequest, browser: Browser, server: Server) -> Iterator[Console]:
    theme, width = request.param
    made = Console(browser, server, color_scheme=theme)
    made.page.set_viewport_size({"width": width, "height": 900})
    yield made
    made.context.close()
    assert made.watch.wrong == []


@pytest.fixture(scope="module")
def forked(server: Server, swept: str) -> str:
    return str(server.post(f"/api/runs/{swept}/fork", {"from": "mend", "yes": True})["run_id"])


def hanging_over(page: Page, name: str) -> list[str]:
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [f"{name}: {over} pixels hang over"] if over > 0 else []


def not_for_everybody(page: Page, name: str) -> list[str]:
    """What axe finds that is serious."""
    found = Axe().run(page).response["violations"]
    return [
        f"{name}: {one['id']} {[node['target'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def test_pages_fit_and_can_be_used_by_everybody(
    dressed: Console, swept: str, forked: str, request: pytest.FixtureRequest
) -> None:
    found = []
    which = slice(None) if COMPLETE else slice(SHORT.index(request.node.callspec.params["dressed"]), None, 2)
    for name, path in list(PAGES.items())[which]:
        page = dressed.go(path.format(run=swept, fork=forked))
        expect(page.locator("main h1").first).to_be_attached()
        expect(page.locator(".skeleton")).to_have_count(0)
        found += hanging_over(page, name) + not_for_everybody(page, name)
    assert found == []


def test_dialogs_fit_and_can_be_used_by_everybody(dressed: Console, swept: str) -> None:
    found = []
    dressed.watch.expected = ("404",)  # nothing is there to be undone
    ended = dressed.start("two-sides", {"default": "x"}, topic="dialogs")
    while dressed.status_of(ended) != "completed":
        pass
    for name, (run, *presses) in {
        **{name: (swept, *presses) for name, presses in DIALOGS.items()},
        "undo": (ended, "More", "Undo its changes …"),
    }.items():
        page = dressed.go(f"/runs/{run}")
        size = page.viewport_size
        in_menu = name == "fork" and size is not None and size["width"] < 760
        for press in ["More", *presses] if in_menu else presses:
            scope = page.locator(".menu-list") if press.startswith("Copy") else page
            scope.get_by_role("button", name=press, exact=press != "More").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        expect(dialog.locator(".skeleton")).to_have_count(0)
        box = dialog.bounding_box()
        width = page.viewport_size
        assert box is not None
        assert width is not None
        if box["x"] < 0 or box["x"] + box["width"] > width["width"]:
            found.append(f"{name}: hangs over")
        found += hanging_over(page, name) + not_for_everybody(page, name)
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    assert found == []
