"""Before something begins or goes on: what would happen is said, and what is shown can be changed."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import Console

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


def test_a_retry_says_what_it_would_do_before_it_begins(console: Console, folder: Path) -> None:
    (folder / ".fanfold" / "workflows" / "breaks.yaml").write_text(BREAKS)
    fails = {"fail": {"class": "agent", "message": "it broke"}}
    run = console.start("breaks", {"default": "ok", "steps": {"writes": fails}})
    page = console.go(f"/runs/{run}")
    page.get_by_role("button", name="Look at writes").click()
    expect(page.get_by_label("Step writes")).to_contain_text("it broke")
    page.get_by_role("button", name="Retry what failed …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".figures")).to_contain_text("Kept1")
    assert [one["run_id"] for one in console.server.get("/api/runs", recipe="breaks")["items"]] == [run]
    dialog.get_by_role("button", name="Retry", exact=True).click()
    expect(page).not_to_have_url(re.compile(run))
    expect(page.locator(".run-facts")).to_contain_text(f"fork of {run}")


def test_what_an_approval_shows_can_be_changed_with_it(console: Console, folder: Path) -> None:
    (folder / ".fanfold" / "workflows" / "edits.yaml").write_text(EDITS)
    run = console.start("edits", {"default": "a draft"})
    page = console.go(f"/runs/{run}")
    page.get_by_role("button", name="Answer ok").click()
    drawer = page.get_by_label("Step ok")
    drawer.get_by_role("button", name="Edit it first").click()
    field = drawer.get_by_label("What follows goes on with")
    expect(field).to_have_value("a draft")
    field.fill("a better one")
    drawer.get_by_role("button", name="Approve").click()
    expect(page.locator(".run-head .status")).to_have_text("completed")
    page = console.go(f"/runs/{run}/steps/send")
    page.get_by_role("tab", name="Prompt").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("Send a better one")
