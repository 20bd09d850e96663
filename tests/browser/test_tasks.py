"""What people open the console for, counted in clicks and taps."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import Console, lay_out_console, spent
from tests.server.conftest import Server, ended, run_command, serving

pytestmark = pytest.mark.full

REVIEW = """\
name: nightly-review
description: Fix what the reviews find
inputs: [{name: area, default: shop}]
steps:
  - {id: plan, agent: explorer, prompt: "List the modules of {{inputs.area}}"}
  - id: fix
    agent: worker
    for_each: '["cart", "prices"]'
    write_set: ["src/{{item}}.py"]
    prompt: "Fix {{item}}"
    output_schema: {type: object, required: [summary]}
"""
CHAIN = "name: chain\nsteps:\n" + "".join(
    f"  - {{id: {name}, agent: explorer, prompt: Go{f', depends_on: [{before}]' if before else ''}}}\n"
    for before, name in pairwise(["", "first", "second", "third", "fourth", "fifth"])
)
HEAL = """\
name: heal
steps:
  - id: heal
    repeat: {until: "steps.verify.output == 'green'", max_iterations: 2}
    steps:
      - {id: fix, agent: explorer, prompt: Fix}
      - {id: verify, agent: critic, prompt: Verify, depends_on: [fix]}
"""
WIDE = "x" * 120
SHIP = """\
name: ship
steps:
  - {id: fix, agent: worker, write_set: [src/rounding.py], prompt: Round once}
  - {id: branch, deliver: {branch: fix/rounding, message: Round once}, depends_on: [fix]}
"""
LAST_MESSAGE = "I changed **prices.py**, but two tests still fail."
SCRIPT = {
    "default": spent("cart, prices"),
    "steps": {
        "fix[0]": {**spent({"summary": "fixed"}), "writes": {"src/cart.py": "total = 1\n"}},
        "heal#*/verify": spent("2 tests fail"),
        "fix": {**spent("done"), "writes": {"src/rounding.py": f"- DIGITS = 2\n{WIDE}\n"}},
        "third": {"fail": {"class": "agent", "message": "it broke"}},
        "fix[1]": {**spent(LAST_MESSAGE), "writes": {"src/prices.py": "PRICES = {'tea': 350}\n"}},
    },
}


class Clicks:
    """Clicks and taps, counted."""

    def __init__(self) -> None:
        self.count = 0

    def click(self, target: Locator) -> None:
        self.count += 1
        target.click()

    def tap(self, target: Locator) -> None:
        self.count += 1
        target.tap()


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def newest(server: Server, recipe: str) -> str:
    """The newest run of a recipe."""
    return str(server.get("/api/runs", recipe=recipe)["items"][0]["run_id"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A project in which a run failed last night, and another waits for an approval."""
    folder, home = tmp_path_factory.mktemp("shop"), tmp_path_factory.mktemp("home")
    lay_out_console(folder)
    (folder / ".fanfold" / "workflows" / "nightly-review.yaml").write_text(REVIEW)
    (folder / "src" / "prices.py").write_text("PRICES = {'tea': 3.50}\n")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    asks = 'name: release\nsteps: [{id: ok, approve: "Publish version 2?"}]\n'
    (folder / ".fanfold" / "workflows" / "release.yaml").write_text(asks)
    (folder / ".fanfold" / "workflows" / "chain.yaml").write_text(CHAIN)
    for name, text in (("heal", HEAL), ("ship", SHIP)):
        (folder / ".fanfold" / "workflows" / f"{name}.yaml").write_text(text)
    git(folder, "init", "-q")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "Start")
    git(folder, "config", "user.name", "a")
    git(folder, "config", "user.email", "a@b.c")
    with serving(folder, home) as serve:
        for recipe in ("chain", "heal", "ship"):
            ended(folder, home, "run", recipe, "--script", "script.json", "--yes")
        assert (
            ended(folder, home, "run", "nightly-review", "--script", "script.json", "--yes").returncode == 1
        )
        run_command(folder, home, "run", "release", "--script", "script.json", "--yes")
        yield serve()


def test_a_failure_is_understood_and_retried_from_home_in_six_clicks(browser: Browser, shop: Server) -> None:
    console, clicks = Console(browser, shop), Clicks()
    page = console.go("/")
    clicks.click(page.get_by_role("link", name="nightly-review / fix[1]").first)
    expect(page.get_by_role("region", name="Failure")).to_contain_text("is not of type")
    panel = page.get_by_role("complementary", name="Step fix[1]")
    expect(panel.locator(".turn.response").last).to_contain_text("two tests still fail")
    clicks.click(panel.get_by_role("tab", name="Files"))
    expect(panel.locator(".line.plus")).to_contain_text("350")
    expect(panel).to_contain_text("kept")
    failed = page.url
    clicks.click(page.get_by_role("button", name=re.compile("^Retry")))
    clicks.click(page.get_by_role("dialog").get_by_role("button", name=re.compile("^Retry")))
    page.wait_for_url(lambda url: url.split("?")[0] != failed.split("?")[0])
    expect(page.locator(".run-head")).to_contain_text("fork of")
    assert clicks.count <= 6
    console.context.close()
    assert console.watch.wrong == []


def test_a_run_is_approved_on_a_phone_in_two_taps(browser: Browser, shop: Server) -> None:
    console, taps = Console(browser, shop, has_touch=True, is_mobile=True), Clicks()
    console.page.set_viewport_size({"width": 390, "height": 844})
    page = console.go("/")
    taps.tap(page.get_by_role("link", name="Answer release ok"))
    approve = page.get_by_role("button", name="Approve", exact=True)
    expect(approve).to_be_in_viewport()
    box = approve.bounding_box()
    assert box is not None
    assert box["height"] >= 44, "room for a thumb"
    taps.tap(approve)
    expect(page.locator(".run-head .status").first).to_have_text("completed")
    assert taps.count == 2
    console.context.close()
    assert console.watch.wrong == []


def test_no_page_is_cut_off_on_a_phone_and_it_has_four_tabs(browser: Browser, shop: Server) -> None:
    console = Console(browser, shop, has_touch=True, is_mobile=True)
    console.page.set_viewport_size({"width": 390, "height": 844})
    run = shop.get("/api/runs", recipe="nightly-review")["items"][-1]["run_id"]
    views = (
        "",
        "?view=timeline",
        "?view=table",
        "?view=events",
        "?view=output",
        "?view=cost",
        "?view=recipe",
    )
    paths = [
        *(
            "/",
            "/recipes",
            "/recipes/nightly-review?view=run",
            "/recipes/nightly-review?view=source",
            "/runs",
        ),
        *(f"/runs/{run}{view}" for view in views),
        *(f"/runs/{run}/steps/fix%5B1%5D", "/approvals", "/search?q=tests", "/agents", "/system"),
    ]
    for path in paths:
        page = console.go(path)
        expect(page.locator("main h1").first).to_be_attached()
        expect(page.locator(".skeleton")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        for bar in page.locator(".tabs, .side nav ul").all():
            assert bar.evaluate("bar => bar.scrollWidth <= bar.clientWidth + 1"), path
    assert console.page.locator(".side nav li").count() == 4
    console.context.close()
    assert console.watch.wrong == []


def test_a_phone_shows_when_each_run_started(browser: Browser, shop: Server) -> None:
    console = Console(browser, shop)
    console.page.set_viewport_size({"width": 390, "height": 844})
    page = console.go("/runs")
    expect(page.locator("tbody tr", has_text="nightly-review").first.locator("time:visible")).to_have_count(1)
    names = page.locator("tbody .row-link")
    assert [name for name in names.all() if name.evaluate("one => one.scrollWidth > one.clientWidth")] == []
    console.context.close()
    assert console.watch.wrong == []


def test_a_hit_in_code_is_shown_and_marked(browser: Browser, shop: Server) -> None:
    console = Console(browser, shop)
    code = "Look:\n\n```python\nzebra = 1\n```\n\nThe end."
    run = console.start("slow", {"default": "x", "steps": {"first": code}})
    while console.status_of(run) != "completed":
        pass
    page = console.go(f"/search?q=zebra&run={run}")
    expect(page.locator(".excerpt")).to_have_text("Look: zebra = 1 The end.")
    expect(page.locator(".excerpt mark")).to_have_text("zebra")
    console.context.close()
    assert console.watch.wrong == []


@pytest.mark.parametrize("width", [1024, 390])
def test_a_chain_continues_in_the_next_row_and_no_view_is_cut_off(
    browser: Browser, shop: Server, width: int
) -> None:
    console = Console(browser, shop)
    console.page.set_viewport_size({"width": width, "height": 844})
    run = shop.get("/api/runs", recipe="chain")["items"][0]["run_id"]
    page = console.go(f"/runs/{run}")
    nodes = page.locator(".pane .node")
    expect(nodes).to_have_count(5)
    boxes = [box for node in nodes.all() if (box := node.locator(".box").bounding_box())]
    [pane] = [box for box in [page.locator(".graph-scroll").bounding_box()] if box]
    assert all(
        pane["x"] <= box["x"] and box["x"] + box["width"] <= pane["x"] + pane["width"] for box in boxes
    )
    assert all(box["height"] > 40 for box in boxes), "large enough to read"
    assert boxes[-1]["y"] > boxes[0]["y"] + boxes[0]["height"], "in another row"
    bar = page.get_by_label("Views of the run", exact=True)
    assert bar.evaluate("bar => bar.scrollWidth <= bar.clientWidth + 1")
    page.get_by_label("Views of the run: more").select_option("Events")
    expect(page.locator("table.events time").first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    console.context.close()
    assert console.watch.wrong == []


def test_a_step_that_did_not_run_opens_with_the_reason(browser: Browser, shop: Server) -> None:
    console = Console(browser, shop)
    run = shop.get("/api/runs", recipe="chain")["items"][0]["run_id"]
    page = console.go(f"/runs/{run}?step=fourth")
    expect(page.get_by_label("Step fourth")).to_contain_text("was skipped: a step it depends on")
    expect(page.locator(".run-head")).to_contain_text("2 of 5 steps completed")
    expect(page.locator(".run-head")).to_contain_text("1 failed")
    expect(page.locator(".run-head")).to_contain_text("2 skipped")
    console.context.close()
    assert console.watch.wrong == []


def test_a_cause_is_shown_once_and_a_failed_loop_opens_with_its_last_message(
    browser: Browser, shop: Server
) -> None:
    console = Console(browser, shop)
    page = console.go(f"/runs/{newest(shop, 'heal')}")
    expect(page.get_by_label("Step heal#2/verify")).to_contain_text("2 tests fail")
    expect(page.get_by_text("heal did not pass its gate")).to_have_count(1)
    page = console.go(f"/runs/{newest(shop, 'chain')}?step=third")
    expect(page.get_by_label("Step third").locator(".turn")).to_have_count(1)
    expect(page.get_by_text("it broke")).to_have_count(1)
    console.page.set_viewport_size({"width": 390, "height": 844})
    expect(page.get_by_label("Step third")).to_contain_text("it broke")  # it covers the top of the page
    console.context.close()
    assert console.watch.wrong == []


def test_the_commit_of_a_delivery_is_shown_as_a_diff(browser: Browser, shop: Server) -> None:
    console = Console(browser, shop)
    page = console.go(f"/runs/{newest(shop, 'ship')}")
    question = page.get_by_role("region", name="Question of branch")
    expect(question.locator(".line.plus").first).to_have_text(re.compile(re.escape("+- DIGITS = 2")))
    expect(question).to_contain_text("not pushed")
    expect(question.locator("li")).to_have_count(0)
    console.context.close()
    assert console.watch.wrong == []


def test_the_panel_of_a_step_can_be_made_wide_enough_for_a_diff_of_120_columns(
    browser: Browser, shop: Server
) -> None:
    console = Console(browser, shop)
    address = f"/runs/{newest(shop, 'ship')}?step=fix"
    page = console.go(address)
    panel = page.get_by_role("complementary", name="Step fix")
    panel.get_by_role("tab", name="Files").click()
    divider = page.get_by_role("separator", name="Width of the panes")
    for _ in range(10):
        divider.press("ArrowLeft")
    lines = panel.locator(".diff-file .scroll")
    expect(lines).to_contain_text(WIDE)
    assert lines.evaluate("box => box.scrollWidth <= box.clientWidth")
    page = console.go(address)
    expect(divider).to_have_attribute("aria-valuenow", "14")
    console.context.close()
    assert console.watch.wrong == []


def test_a_replay_shows_the_times_of_its_moment(browser: Browser, shop: Server) -> None:
    console = Console(browser, shop)
    console.page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=3))
    run = newest(shop, "chain")
    started = next(
        event["tree_seq"]
        for event in shop.get(f"/api/runs/{run}/events", limit=100)["items"]
        if event["data"].get("status") == "started" and event["data"].get("step") == "first"
    )
    page = console.go(f"/runs/{run}?at={started}&step=first&view=table")
    panel = page.get_by_role("complementary", name="Step first")
    expect(panel.locator(".status").first).to_have_text("running")
    expect(panel.locator(".run-facts b").first).not_to_contain_text("days")
    expect(page.locator(".run-head .run-facts")).to_contain_text("started 3 days ago")
    expect(page.locator("tbody tr", has_text="first")).not_to_contain_text("days")
    page = console.go(f"/runs/{run}/steps/first?at={started}")
    expect(page.locator(".run-facts b").first).to_have_text(re.compile("ms$|s$"))
    console.context.close()
    assert console.watch.wrong == []


def test_the_inputs_of_a_run_start_the_next_one(browser: Browser, shop: Server, tmp_path: Path) -> None:
    console = Console(browser, shop)
    run = shop.get("/api/runs", recipe="nightly-review")["items"][-1]["run_id"]
    page = console.go(f"/runs/{run}")
    page.get_by_role("button", name="Run again …").click()
    expect(page.get_by_label("area")).to_have_value("shop")
    page = console.go("/runs?q=shop&since=24h")
    expect(page.locator("tbody tr", has_text="nightly-review").first).to_contain_text("area=shop")
    expect(page.locator("tbody")).not_to_contain_text("release")
    expect(page.locator("tbody .chip", has_text="scripted").first).to_be_visible()
    console.context.close()
    assert console.watch.wrong == []
