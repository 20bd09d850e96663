"""Moments between two frames: keys, answers and changes that come when a page does not expect them."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Request, Route, expect

from fanfold.kernel.events import Usage
from fanfold.store.protocol import Batch
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.store_races import head
from tests.browser.conftest import SLOW_SCRIPT, Console, lay_out_console
from tests.server.conftest import serving

pytestmark = pytest.mark.full

PRESSED_WHEN_DRAWN = """
new MutationObserver((_, watch) => {
  if (![...document.querySelectorAll("button")].some((one) => one.textContent === "list")) return;
  watch.disconnect();
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
}).observe(document, { childList: true, subtree: true });
"""


def test_a_key_counts_from_the_moment_the_steps_can_be_seen(console: Console, swept: str) -> None:
    console.page.add_init_script(PRESSED_WHEN_DRAWN)
    page = console.go(f"/runs/{swept}?view=table")
    expect(page).to_have_url(re.compile("step=list"))


PRESSED_WHEN_OPEN = """
new MutationObserver((_, watch) => {
  const found = document.querySelector("%s");
  if (!found) return;
  watch.disconnect();
  queueMicrotask(() => { %s });
}).observe(document, { childList: true, subtree: true });
"""


def test_a_dialog_is_open_and_a_menu_closes_from_the_moment_each_is_there(
    console: Console, swept: str
) -> None:
    page = console.go(f"/runs/{swept}?step=list")
    page.evaluate(PRESSED_WHEN_OPEN % ("dialog", "window.wasOpen = found.open"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("window.wasOpen")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label("Step list")).to_be_visible()  # the key was the dialog's, not the page's
    elsewhere = "document.body.dispatchEvent(new PointerEvent('pointerdown', { bubbles: true }))"
    page.evaluate(PRESSED_WHEN_OPEN % (".menu-list", elsewhere))
    page.get_by_role("button", name="More").click()
    expect(page.locator(".menu-list")).to_have_count(0)
    page.get_by_role("button", name="More").click()
    page.locator(".menu-list").get_by_role("button", name="Copy as …").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="More")).to_be_focused()


def test_the_key_of_the_search_allows_typing_at_once(console: Console) -> None:
    page = console.go("/runs")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    focused = page.evaluate(
        """() => new Promise(done => {
          document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '/', bubbles: true }));
          setTimeout(() => done(document.activeElement.id)); })"""
    )
    assert focused == "words"
    page.keyboard.type("a word and another")
    expect(page.get_by_label("Words")).to_have_value("a word and another")
    expect(page).to_have_url(re.compile(r"q=a\+word\+and\+another$"))
    page.go_back()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


def test_a_dialog_that_closes_late_does_not_move_the_focus(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}?view=table")
    expect(page.get_by_role("button", name="list", exact=True)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    focused = page.evaluate(
        """() => new Promise(done => {
          document.querySelector('dialog').close(); // the page hears of it in a moment
          document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '/', bubbles: true }));
          const gone = () => !document.querySelector('dialog');
          const look = () => gone() ? done(document.activeElement.id) : setTimeout(look);
          setTimeout(look); })"""
    )
    assert focused == "words"


def test_answers_that_come_late_do_not_stand_for_later_questions(console: Console) -> None:
    page = console.go("/recipes/new?view=source")
    field = page.get_by_label("Text of the recipe")
    held: list[Route] = []

    def of_the_first(request: Request) -> bool:
        return request.url.endswith("/api/check") and "nobody" in (request.post_data or "")

    def hold(route: Route) -> None:
        if of_the_first(route.request):
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/check", hold)
    with page.expect_request(of_the_first):
        field.fill("name: late\nsteps:\n  - {id: a, agent: nobody, prompt: x}\n")
    field.fill("name: late\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n")
    expect(page.get_by_text("No problems found.")).to_be_visible()
    with page.expect_response(lambda response: of_the_first(response.request)):
        for route in held:
            route.continue_()
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(page.get_by_text("No problems found.")).to_be_visible()
    expect(page.get_by_label("Problems")).to_have_count(0)


def test_a_recipe_that_changed_meanwhile_is_not_overwritten(console: Console, folder: Path) -> None:
    file = folder / ".fanfold" / "workflows" / "shared.yaml"
    file.write_text("name: shared\nsteps:\n  - {id: a, agent: explorer, prompt: mine}\n")
    console.watch.expected = ("409",)
    page = console.go("/recipes/shared?view=source")
    field = page.get_by_label("Text of the recipe")
    field.fill(file.read_text().replace("mine", "edited here"))
    theirs = file.read_text().replace("mine", "edited elsewhere")
    file.write_text(theirs)
    expect(page.get_by_text("No problems found.")).to_be_visible()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("changed since you read it")
    assert file.read_text() == theirs
    expect(field).to_have_value(re.compile("edited here"))


def test_a_slider_that_is_dragged_for_long_ends_where_it_was_left(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}?view=cost")
    expect(page.locator("#scrub")).to_be_visible()
    page.evaluate(
        """() => { const scrub = document.getElementById('scrub');
          for (let i = 0; i < 400; i += 1) {
            scrub.value = String(5 + (i % 50));
            scrub.dispatchEvent(new Event('input', { bubbles: true }));
          }
          scrub.value = '8'; scrub.dispatchEvent(new Event('input', { bubbles: true })); }"""
    )
    expect(page).to_have_url(re.compile(r"at=8\b"))
    expect(page.locator("output")).to_contain_text("8 of")


def test_in_a_run_that_is_paused_nothing_waits_for_a_person(console: Console) -> None:
    run = console.start("slow", SLOW_SCRIPT)
    page = console.go(f"/runs/{run}")
    expect(page.locator('.node[data-path="first"]')).to_have_attribute("aria-label", re.compile("running"))
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".run-head .status")).to_have_text("paused")
    box = page.locator('.node[data-path="first"]')
    expect(box).to_have_attribute("aria-label", re.compile("interrupted"))
    expect(box).to_have_class(re.compile("tone-still"))
    for view in ("table", "timeline"):
        page = console.go(f"/runs/{run}?view={view}")
        expect(page.locator(".view .tone-still").first).to_be_visible()
        expect(page.locator(".view .tone-wants")).to_have_count(0)
    console.server.post(f"/api/runs/{run}/cancel", {})


@pytest.mark.parametrize(
    ("ms", "words"), [(999, "999 ms"), (9_960, "10 s"), (59_700, "1 min 00 s"), (119_600, "2 min 00 s")]
)
def test_no_minute_has_sixty_seconds(console: Console, ms: int, words: str) -> None:
    said = console.page.evaluate(
        """async (ms) => (await import([...document.querySelectorAll('script[type=module]')][0].src
          .replace(/console\\.js.*/, 'text/format.js'))).duration(ms)""",
        ms,
    )
    assert said == words


def test_a_theme_can_be_chosen_on_a_phone_too(console: Console) -> None:
    console.page.set_viewport_size({"width": 390, "height": 800})
    page = console.go("/system")
    page.locator("main").get_by_label("Theme").select_option("dark")
    page.wait_for_function("getComputedStyle(document.documentElement).colorScheme === 'dark'")
    page = console.go("/runs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_run_whose_process_died_is_shown_as_stuck_and_continues(console: Console) -> None:
    run = console.start("slow", SLOW_SCRIPT)
    page = console.go("/")
    row = page.locator("li", has=page.locator(f'a[href="/runs/{run}"]'))
    expect(row.locator(".heartbeat")).to_contain_text("heartbeat")
    os.kill(console.server.get(f"/api/runs/{run}/pulse")["owner"]["pid"], signal.SIGKILL)
    needs = page.get_by_role("region", name="Needs you")
    expect(needs.locator("li", has=page.locator(f'a[href="/runs/{run}"]')).first).to_contain_text(
        "has no process that runs it"
    )
    expect(page.get_by_role("region", name="Running now")).to_contain_text("no process is running it")
    page = console.go(f"/runs/{run}")
    expect(page.locator(".run-head .heartbeat")).to_have_text("no process is running it")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".run-head .heartbeat")).to_contain_text("heartbeat")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    console.server.post(f"/api/runs/{run}/cancel", {})


def test_a_browser_whose_access_ended_shows_that(browser: Browser, tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    lay_out_console(folder)
    with serving(folder, home) as serve:
        first = serve()
        console = Console(browser, first)
        console.watch.expected = ("401", "ERR_")
        page = console.go("/runs")
        expect(page.locator(".pulse")).to_have_text("Live")
        cookies = console.context.cookies()
        console.context.clear_cookies()
        first.stop()
        serve("--port", first.url.rstrip("/").rpartition(":")[2])
        expect(page.get_by_role("alert").first).to_contain_text("This browser is not let in any more.")
        page.get_by_role("link", name="Recipes").click()
        page.get_by_role("link", name="Runs", exact=True).click()
        expect(page.locator("main .notice")).to_contain_text("Open the link that")
        expect(page.get_by_text("There are no runs yet")).to_have_count(0)
        console.context.add_cookies(cookies)  # type: ignore[arg-type]  # as the browser gave them
        expect(page.locator(".pulse")).to_have_text("Live")
        expect(page.get_by_text("There are no runs yet")).to_be_visible()
        console.context.close()
        assert console.watch.wrong == []


def test_a_tab_that_comes_later_says_what_agents_do_too(console: Console) -> None:
    run = console.start("slow", SLOW_SCRIPT)
    for page in (console.go("/"), console.context.new_page()):
        page.goto(f"{console.base}/")
        row = page.locator("li", has=page.locator(f'a[href="/runs/{run}"]'))
        expect(row.locator(".doing")).to_have_text("first: Think")
    console.server.post(f"/api/runs/{run}/cancel", {})


def test_spending_at_an_unknown_price_is_not_shown_as_zero(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    lay_out_console(folder)
    now = int(time.time() * 1_000)
    with serving(folder, tmp_path / "home") as serve:
        console = Console(browser, serve())
        with closing(SqliteStore(folder / ".fanfold")) as store:
            for run, price, shown in (
                ("unpriced", None, "\u2013 120 tokens"),
                ("priced", 2_500_000, "$2.50 240 tokens, 1 run of unknown price"),
            ):
                spent = head(run, status="completed", created_at=now, usage=Usage(100, 20, price))
                store.write([Batch(root=run, epoch=0, heads=[spent])])
                page = console.go("/")
                expect(page.locator(".figures div", has_text="Today").locator("dd")).to_have_text(shown)
        console.context.close()
        assert console.watch.wrong == []
