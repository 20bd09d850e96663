"""What agents write may be anything: it is shown whole, as what it is, and no page stands still for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

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


def said(console: Console, folder: Path, output: Any) -> str:
    (folder / ".fanfold" / "workflows" / "says.yaml").write_text(SAYS)
    run = console.start("says", {"default": {"output": output}})
    while console.status_of(run) != "completed":
        pass
    return run


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
    shown = page.locator(".output pre.block")
    expect(shown).to_be_visible()
    assert len(shown.text_content() or "") == len(text)
    assert time.monotonic() - began < MUCH_S


def test_a_long_text_is_shown_to_its_end(console: Console, folder: Path) -> None:
    run = said(console, folder, "word " * 210_000 + "the very end")
    page = console.go(f"/runs/{run}?view=table&step=say")
    shown = page.locator(".output pre.block")
    expect(shown).to_be_visible()
    assert (shown.text_content() or "").endswith("word the very end")


def test_what_has_no_shape_is_shown_by_a_sign(console: Console, folder: Path) -> None:
    family = "\U0001f469\u200d\U0001f467"
    text = f"\x1b[31mred \x00 \u202etxt.exe\u202c \U000e0041 \r\nnext \u0645\u06cc\u200c\u062e {family}"
    run = said(console, folder, text)
    page = console.go(f"/runs/{run}?view=table&step=say")
    seen = f"␛[31mred ␀ <U+202E>txt.exe<U+202C> <U+E0041> next \u0645\u06cc\u200c\u062e {family}"
    expect(page.locator(".output .prose p")).to_have_text(seen)
    page.get_by_role("button", name="As text").click()
    expect(page.locator(".output pre.block")).to_contain_text("␛[31mred ␀ <U+202E>txt.exe")


def test_a_recipe_with_line_ends_of_windows_is_shown_without_signs(console: Console, folder: Path) -> None:
    file = folder / ".fanfold" / "workflows" / "windows.yaml"
    file.write_bytes(SAYS.replace("says", "windows").replace("\n", "\r\n").encode())
    page = console.go("/recipes/windows?view=source")
    expect(page.locator(".editor pre")).to_contain_text("name: windows")
    expect(page.locator(".editor pre")).not_to_contain_text("␍")


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
    page.get_by_role("button", name="Answer ok").click()
    drawer = page.get_by_label("Step ok")
    expect(drawer.locator(".shown")).to_contain_text(str(LONG))
    page = console.go(f"/runs/{run}?view=table&step=find")
    expect(page.locator(".output pre.block")).to_contain_text(f'"id": {LONG}')
    page = console.go(f"/compare/{run}/{run}")
    page.get_by_label("Show what is the same").check()
    expect(page.locator("code", has_text=str(LONG))).to_have_count(2)
    console.server.post(f"/api/runs/{run}/cancel", {})
