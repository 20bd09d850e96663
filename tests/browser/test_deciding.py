"""Before something begins or goes on: what would happen is said, and what is shown can be changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console

pytestmark = pytest.mark.full

BREAKS = """\
name: breaks
steps:
  - {id: fine, agent: explorer, prompt: x}
  - {id: writes, agent: worker, write_set: [b.txt], prompt: x, depends_on: [fine]}
"""
EDITS = """\
name: edits
steps:
  - {id: draft, agent: explorer, prompt: x}
  - {id: ok, approve: "Send it?", show: "{{steps.draft.output}}", depends_on: [draft]}
  - {id: send, agent: explorer, prompt: "Send {{steps.ok.output.edited}}", depends_on: [ok]}
"""
ASKS = """\
name: asks
steps:
  - {id: colour, ask: "Which colour?", choices: [red, green]}
  - id: words
    ask: "How many words?"
    output_schema: {type: integer, minimum: 50}
    timeout: 24h
    default: 400
  - {id: ok, approve: "Go on?", timeout: 24h}
"""
SENDS = """\
name: sends
steps:
  - {id: write, agent: worker, write_set: [sent.txt], prompt: x}
  - {id: send, deliver: {branch: sent, message: Sent, push: false}, depends_on: [write]}
"""


def test_a_retry_says_what_it_would_do_before_it_begins(console: Console, folder: Path) -> None:
    (folder / ".fanfold" / "workflows" / "breaks.yaml").write_text(BREAKS)
    fails = {"fail": {"class": "agent", "message": "it broke"}}
    run = console.start("breaks", {"default": "ok", "steps": {"writes": fails}})
    page = console.go(f"/runs/{run}")
    expect(page.get_by_role("region", name="Failure")).to_contain_text("it broke")
    expect(page.get_by_role("complementary", name="Step writes")).to_be_visible()
    page.get_by_role("button", name="Retry what failed …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".figures")).to_contain_text("Reused1")
    assert [one["run_id"] for one in console.server.get("/api/runs", recipe="breaks")["items"]] == [run]
    dialog.get_by_role("button", name="Retry", exact=True).click()
    expect(page).not_to_have_url(re.compile(run))
    expect(page.locator(".run-facts")).to_contain_text(f"fork of {run}")


def test_the_subject_of_an_approval_can_be_edited_with_it(console: Console, folder: Path) -> None:
    (folder / ".fanfold" / "workflows" / "edits.yaml").write_text(EDITS)
    run = console.start("edits", {"default": "a draft"})
    page = console.go(f"/runs/{run}")
    question = page.get_by_label("Question of ok")
    question.get_by_role("button", name="Edit first").click()
    field = question.get_by_label("Text for the next steps")
    expect(field).to_have_value("a draft")
    field.fill("a better one")
    question.get_by_role("button", name="Approve").click()
    expect(page.locator(".run-head .status")).to_have_text("completed")
    page = console.go(f"/runs/{run}/steps/send")
    page.get_by_role("tab", name="Prompt").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("Send a better one")


def test_a_question_states_valid_answers_and_the_default_after_its_time(
    console: Console, folder: Path
) -> None:
    (folder / ".fanfold" / "workflows" / "asks.yaml").write_text(ASKS)
    run = console.start("asks", {"default": "ok"})
    page = console.go("/approvals")
    colour, words, ok = (
        page.get_by_role("article", name=f"asks: {name}") for name in ("colour", "words", "ok")
    )
    expect(colour.get_by_role("button", name="green")).to_be_visible()
    expect(colour.get_by_role("textbox")).to_have_count(0)  # nothing but a choice fits
    expect(words).to_contain_text('JSON that fits {"type":"integer","minimum":50}')
    expect(words).to_contain_text("the default applies: 400")
    expect(ok).to_contain_text("It fails if it is not answered by")
    expect(colour).not_to_contain_text("answered by")
    words.get_by_role("textbox").fill("300")
    words.get_by_role("button", name="Answer", exact=True).click()
    expect(words).to_have_count(0)
    assert console.server.get(f"/api/runs/{run}")["steps"]["words"]["output"] == 300
    console.server.post(f"/api/runs/{run}/cancel", {})


def test_a_paused_run_accepts_answers_and_no_other_request(console: Console, folder: Path) -> None:
    (folder / ".fanfold" / "workflows" / "asks.yaml").write_text(ASKS)
    run = console.start("asks", {"default": "ok"})
    while console.status_of(run) != "waiting":
        pass
    console.server.post(f"/api/runs/{run}/pause", {})
    page = console.go(f"/runs/{run}")
    expect(page.locator(".run-head .status")).to_have_text("paused")
    expect(page.locator('.node[data-path="ok"]')).to_have_attribute("aria-label", re.compile("waiting"))
    page.get_by_label("Question of colour").get_by_role("button", name="red").click()
    expect(page.locator('.node[data-path="colour"]')).to_have_attribute("aria-label", re.compile("completed"))
    assert console.server.get(f"/api/runs/{run}")["steps"]["colour"]["output"] == "red"
    console.server.post(f"/api/runs/{run}/cancel", {})


def test_a_delivery_that_cannot_be_done_is_no_question(console: Console, folder: Path) -> None:
    (folder / ".fanfold" / "workflows" / "sends.yaml").write_text(SENDS)
    run = console.start("sends", {"default": {"output": "ok", "writes": {"sent.txt": "x"}}})
    while console.status_of(run) != "paused":  # it is no repository
        pass
    page = console.go(f"/runs/{run}")
    expect(page.locator('.node[data-path="send"]')).to_have_attribute("aria-label", re.compile("interrupted"))
    expect(page.get_by_role("complementary", name="Step send")).to_be_visible()
    expect(page.get_by_label("Question of send")).to_have_count(0)
    console.server.post(f"/api/runs/{run}/cancel", {})
