"""What agents write may be anything: it is shown whole, as what it is, and no page stands still for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from playwright.sync_api import expect

from fanfold.language.terminal import visible
from tests.browser.conftest import Console

SAYS = "name: says\nsteps: [{id: say, agent: explorer, prompt: x}]\n"
DECIDES = """\
name: decides
inputs: [{name: start, type: integer, required: true}]
steps:
  - {id: find, agent: explorer, prompt: "{{inputs.start}}", output_schema: {type: object}}
  - {id: ok, approve: "Use it?", show: "{{steps.find.output}}", depends_on: [find]}
"""
LONG = 1_234_567_890_123_456_789
"""More digits than a number of the browser's has."""
MUCH_S = 30
"""A page that takes as long as the square of its text takes minutes; one that does not, a second or two."""

SIGNED = """
async file => {
  const { visible } = await import(file);
  const isHalf = code => code >= 0xd800 && code < 0xe000;
  const begins = char => visible(char + "x").startsWith(char);
  const shown = code => isHalf(code) || begins(String.fromCodePoint(code));
  return Array.from({ length: 0x110000 }, (_, code) => code).filter(code => !shown(code));
}
"""


def said(console: Console, folder: Path, output: Any) -> str:
    (folder / ".fanfold" / "workflows" / "says.yaml").write_text(SAYS)
    run = console.start("says", {"default": {"output": output}})
    while console.status_of(run) != "completed":
        pass
    return run


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(">" * 150_000, id="quotes in quotes"),
        pytest.param(">\n\n" * 60_000, id="many quotes"),
        pytest.param("# " + "#" * 190_000 + "x", id="a heading of signs"),
        pytest.param("[" * 190_000, id="links that never end"),
        pytest.param("a|b\n-" + " " * 190_000 + "x", id="a table that is none"),
        pytest.param("\n".join(" " * depth + "- x" for depth in range(600)), id="lists in lists"),
        pytest.param("```\nx\n```\n\n" * 15_000, id="many blocks of code"),
    ],
)
def test_no_text_keeps_a_page_from_being_used(console: Console, folder: Path, text: str) -> None:
    run = said(console, folder, text)
    began = time.monotonic()
    page = console.go(f"/runs/{run}?view=table&step=say")
    page.get_by_label("Step say").get_by_role("button", name="As text").click()
    shown = page.locator(".drawer .output pre.block")
    expect(shown).to_be_visible()
    assert len(shown.text_content() or "") == len(text)
    assert time.monotonic() - began < MUCH_S


@pytest.mark.full
def test_a_long_text_is_shown_to_its_end(console: Console, folder: Path) -> None:
    run = said(console, folder, "word " * 210_000 + "the very end")
    page = console.go(f"/runs/{run}?view=table&step=say")
    shown = page.locator(".drawer .output pre.block")
    expect(shown).to_be_visible()
    assert (shown.text_content() or "").endswith("word the very end")


@pytest.mark.full
def test_invisible_characters_are_shown_by_a_sign(console: Console, folder: Path) -> None:
    family = "\U0001f469\u200d\U0001f467"
    text = f"\x1b[31mred \x00 \u202etxt.exe\u202c \U000e0041 \r\nnext \u0645\u06cc\u200c\u062e {family}"
    run = said(console, folder, text)
    page = console.go(f"/runs/{run}?view=table&step=say")
    seen = f"␛[31mred ␀ <U+202E>txt.exe<U+202C> <U+E0041> next \u0645\u06cc\u200c\u062e {family}"
    expect(page.locator(".drawer .output .prose p")).to_have_text(seen)
    page.locator(".drawer").get_by_role("button", name="As text").click()
    expect(page.locator(".drawer .output pre.block")).to_contain_text("␛[31mred ␀ <U+202E>txt.exe")


@pytest.mark.full
def test_console_and_command_line_show_the_same_signs(console: Console) -> None:
    """Whatever is assigned, but for marks that scripts need and spaces, which have a width."""
    page = console.go("/")
    (edition,) = page.locator("script[type=module]").evaluate_all("all => all.map(one => one.src)")
    signed = page.evaluate(SIGNED, edition.replace("console.js", "text/visible.js"))
    kept = {*range(0x600, 0x606), *map(ord, "\u061c\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")}
    kept |= {*range(0x200C, 0x2010), 0xFE0E, 0xFE0F}
    known = {code for code in range(0x110000) if category(chr(code)) not in ("Cn", "Co", "Cs", "Zs")}
    on_the_command_line = {code for code in known if visible(chr(code), keep="\t\n\r") != chr(code)}
    assert on_the_command_line - kept - set(signed) == set()
    assert known & set(signed) - on_the_command_line - {ord("\r")} == set()


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ok\U000e0148\U000e0155", "ok<U+E0148><U+E0155>"),
        ("\u2764\ufe0f\ufe0e\ufe0f", "\u2764\ufe0f<U+FE0E><U+FE0F>"),
        ("a\u200c\u200d\u200cb", "a\u200c<U+200D><U+200C>b"),
        ("\u845b\U000e0100\U000e0101", "\u845b\U000e0100<U+E0101>"),
        ("\u2764\ufe0f\u200d\U0001f525", "\u2764\ufe0f\u200d\U0001f525"),
    ],
)
def test_marks_that_pile_up_are_shown_and_one_that_is_needed_stays(
    console: Console, folder: Path, text: str, shown: str
) -> None:
    page = console.go(f"/runs/{said(console, folder, text)}?view=table&step=say")
    expect(page.locator(".drawer .output .prose p")).to_have_text(shown)


@pytest.mark.full
def test_a_page_that_cannot_be_drawn_shows_and_logs_an_error_and_others_work(
    console: Console,
) -> None:
    console.watch.expected = ("undefined",)
    page = console.page
    page.route("**/api/agents", lambda route: route.fulfill(json={"sessions": [], "roles": {}}))
    with page.expect_event("pageerror"):
        console.go("/agents")
    expect(page.locator("main").get_by_role("alert")).to_contain_text("This page cannot be shown: ")
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.unroute("**/api/agents")
    page.get_by_role("link", name="Agents").click()
    expect(page.get_by_role("heading", name="Roles")).to_be_visible()
    console.watch.expected = ()


@pytest.mark.full
def test_a_recipe_with_line_ends_of_windows_is_shown_without_signs(console: Console, folder: Path) -> None:
    file = folder / ".fanfold" / "workflows" / "windows.yaml"
    file.write_bytes(SAYS.replace("says", "windows").replace("\n", "\r\n").encode())
    page = console.go("/recipes/windows?view=source")
    expect(page.locator(".editor pre")).to_contain_text("name: windows")
    expect(page.locator(".editor pre")).not_to_contain_text("␍")


@pytest.mark.full
def test_no_digit_of_a_long_number_is_lost(console: Console, folder: Path) -> None:
    (folder / ".fanfold" / "workflows" / "decides.yaml").write_text(DECIDES)
    page = console.go("/recipes/decides?view=run")
    page.get_by_label("start").fill(str(LONG))
    with page.expect_request("**/dry-run") as asked:
        pass
    assert asked.value.post_data_json == {"inputs": {"start": LONG}, "options": {}, "scripted": False}

    script = {"default": {"output": {"id": LONG, "name": "x"}}}
    run = console.start("decides", script, start=LONG)
    page = console.go(f"/runs/{run}")
    expect(page.get_by_label("Question of ok").locator(".shown")).to_contain_text(str(LONG))
    page = console.go(f"/runs/{run}?view=table&step=find")
    expect(page.locator(".drawer .output .json")).to_contain_text(str(LONG))
    page = console.go(f"/compare/{run}/{run}")
    page.get_by_label("Show equal steps").check()
    expect(page.locator("code", has_text=str(LONG))).to_have_count(2)
    console.server.post(f"/api/runs/{run}/cancel", {})
