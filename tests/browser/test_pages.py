"""Every page at three widths in both themes: nothing hangs over, and axe finds nothing serious."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.conftest import COMPLETE, Console
from tests.server.conftest import Server

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
    "step-page": "/runs/{run}/steps/mend%231/fix",
    "approvals": "/approvals",
    "search": "/search?q=quokka",
    "agents": "/agents",
    "system": "/system",
}
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


def test_pages_fit_and_can_be_used_by_everybody(
    dressed: Console, swept: str, request: pytest.FixtureRequest
) -> None:
    found = []
    which = slice(None) if COMPLETE else slice(SHORT.index(request.node.callspec.params["dressed"]), None, 2)
    for name, path in list(PAGES.items())[which]:
        page = dressed.go(path.format(run=swept))
        expect(page.locator("main h1").first).to_be_attached()
        expect(page.locator(".skeleton")).to_have_count(0)
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            found.append(f"{name}: {over} pixels hang over")
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                places = [node["target"] for node in violation["nodes"]][:3]
                found.append(f"{name}: {violation['id']} {places}")
    assert found == []
