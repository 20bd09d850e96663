"""The pictures of the documentation, taken from the console as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import COMPLETE, SLOW_SCRIPT, Console
from tests.server.conftest import Server

pytestmark = pytest.mark.full

IMAGES = Path(__file__).parents[2] / "docs" / "images"


class Picture(NamedTuple):
    name: str
    path: str
    theme: Literal["light", "dark"] = "light"
    width: int = 1440
    height: int = 900


PICTURES = [
    Picture("home", "/"),
    Picture("run", "/runs/{run}?step=each%5B17%5D"),
    Picture("timeline", "/runs/{run}?view=timeline&step=mend%231%2Ffix", "dark"),
    Picture("recipe", "/recipes/sweep?view=source"),
    Picture("runs", "/runs", "dark", 1024, 700),
    Picture("phone", "/runs/{run}?view=table", "light", 390, 780),
    Picture("phone-dark", "/approvals", "dark", 390, 780),
]


@pytest.mark.skipif(not COMPLETE, reason="takes long: make browser")
def test_pictures_are_taken(browser: Browser, server: Server, swept: str) -> None:
    for picture in PICTURES:
        options: dict[str, Any] = {"color_scheme": picture.theme, "reduced_motion": "reduce"}
        console = Console(browser, server, **options)
        if picture.name == "home":
            console.start("slow", SLOW_SCRIPT)
            console.start("two-sides", SLOW_SCRIPT, topic="tides")
        console.page.set_viewport_size({"width": picture.width, "height": picture.height})
        page = console.go(picture.path.format(run=swept))
        expect(page.locator("main h1").first).to_be_attached()
        expect(page.locator(".skeleton")).to_have_count(0)
        expect(page.locator(".pulse")).to_have_text("Live")
        if picture.name in ("home", "runs"):
            expect(page.locator(".heartbeat", has_text="heartbeat")).to_have_count(2)
        if picture.name == "run":
            expect(page.get_by_text("What happened")).to_be_visible()
        if picture.name == "recipe":
            expect(page.get_by_text("What it would do")).to_be_visible()
        file = IMAGES / f"console-{picture.name}.png"
        page.screenshot(path=file)
        assert file.stat().st_size > 10_000
        console.context.close()
        assert console.watch.wrong == []
