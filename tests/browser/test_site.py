"""The documentation site in a real browser: it fits, draws, finds, copies, asks no other host."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import COMPLETE, PATIENCE_MS, Watch
from tools import site
from tools.tidy import ROOT

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not COMPLETE, reason="fetches the site generator: make browser"),
]


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A test prints nothing about requests."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("site")
    assert site.main(["--out", str(folder / "built")]) == 0
    handler = functools.partial(_Files, directory=str(folder / "built" / "html"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_every_page_fits_its_width_and_asks_no_other_host(address, browser: Browser, width, scheme):
    watch = Watch(address)
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    watch.attach(context)
    page = context.new_page()
    for file in sorted((ROOT / "docs").rglob("*.md")):
        name = file.relative_to(ROOT / "docs").with_suffix("").as_posix().removesuffix("index")
        page.goto(f"{address}{name}/" if name else address, wait_until="networkidle")
        wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wider <= 0, f"{name} is {wider} pixels wider than the window"
    context.close()
    assert watch.wrong == []


def test_diagrams_are_drawn_words_are_found_and_commands_are_copied(address, browser: Browser):
    watch = Watch(address)
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE_MS)
    watch.attach(context)
    page = context.new_page()
    page.goto(f"{address}architecture/")
    expect(page.locator("div.mermaid").first).to_be_visible()
    assert page.evaluate("document.querySelector('div.mermaid').shadowRoot === null")  # drawn, and closed
    page.goto(f"{address}quickstart/", wait_until="networkidle")
    page.locator("div.language-console button").nth(1).click()
    assert page.evaluate("navigator.clipboard.readText()") == "fanfold check notes.yaml"
    page.keyboard.press("Control+k")
    page.keyboard.type("write_set")
    expect(page.get_by_text("Outside the write_set").first).to_be_visible()
    context.close()
    assert watch.wrong == []
