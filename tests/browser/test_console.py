"""The console as a person uses it: by looking, pressing and typing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import COMPLETE, SLOW_SCRIPT, SWEEP_SCRIPT, Console, spent
from tests.server.conftest import Server, ended, serving

pytestmark = pytest.mark.full


def test_a_first_visit_teaches_and_runs_something_without_a_key(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with serving(tmp_path / "project", tmp_path / "home") as serve:
        console = Console(browser, serve())
        page = console.page
        expect(page.get_by_role("heading", name="Welcome to Fanfold")).to_be_visible()
        expect(page.get_by_text("scripted", exact=True)).to_be_visible()
        page.get_by_role("button", name="Run Research a topic, scripted").click()
        expect(page).to_have_url(re.compile(r"/runs/\w+"))
        expect(page.locator(".run-head .status")).to_have_text("completed")
        expect(page.get_by_label("Answer").get_by_role("heading").first).to_have_text("Solid-state batteries")
        page.goto(console.base)
        expect(page.get_by_role("heading", name="Needs you")).to_be_visible()
        console.context.close()
        assert console.watch.wrong == []


@pytest.mark.skipif(not COMPLETE, reason="takes long: make browser")
@pytest.mark.parametrize("name", ["Debate a question", "Build side by side"])
def test_the_other_first_runs_end_well_too(browser: Browser, tmp_path: Path, name: str) -> None:
    (tmp_path / "project").mkdir()
    with serving(tmp_path / "project", tmp_path / "home") as serve:
        console = Console(browser, serve())
        console.page.get_by_role("button", name=f"Run {name}, scripted").click()
        expect(console.page.locator(".run-head .status")).to_have_text("completed")
        console.context.close()
        assert console.watch.wrong == []


def test_questions_are_listed_before_newer_failures(browser: Browser, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    ask = "name: ask\nsteps: [{id: release, approve: 'Publish?'}]\n"
    (project / "ask.yaml").write_text(ask)
    (project / "fail.yaml").write_text("name: fail\nsteps: [{id: work, run: ['false']}]\n")
    for recipe in ("ask.yaml", *["fail.yaml"] * 6):
        ended(project, tmp_path / "home", "run", recipe, "--yes")
    with serving(project, tmp_path / "home") as serve:
        console = Console(browser, serve())
        needs = console.page.get_by_role("region", name="Needs you")
        expect(needs.locator("li")).to_have_count(5)
        expect(needs.locator("li").first).to_contain_text("Publish?")
        console.context.close()
        assert console.watch.wrong == []


@pytest.mark.proof("console page")
def test_a_recipe_is_run_from_its_form_and_seen_to_end(console: Console) -> None:
    page = console.go("/recipes/research-and-brief?view=run")
    run = page.get_by_role("button", name="Run", exact=True)
    expect(run).to_be_disabled()
    page.get_by_label("Scripted agents").check()
    expect(page.get_by_label("topic")).to_have_value("solid-state batteries")
    page.get_by_label("Scripted agents").uncheck()
    page.get_by_label("topic").fill("sea ice")
    page.get_by_label("Scripted agents").check()
    expect(page.get_by_label("topic")).to_have_value("sea ice")  # what was typed stays
    expect(page.get_by_text("What it would do")).to_be_visible()
    expect(page.locator(".figures").get_by_text("Agents")).to_be_visible()
    run.click()
    expect(page).to_have_url(re.compile(r"/runs/\w+$"))
    expect(page.locator(".run-head .status")).to_have_text("completed")
    head = console.server.get(f"/api/runs/{page.url.rpartition('/')[2]}")
    assert (head["recipe"], head["inputs"]["topic"]) == ("research-and-brief", "sea ice")


def test_a_run_is_watched_approved_asked_about_and_undone(console: Console, folder: Path) -> None:
    run = console.start("sweep", SWEEP_SCRIPT, reason="the form")
    page = console.go(f"/runs/{run}")
    expect(page.locator(".run-head .status")).to_have_text("waiting")
    question = page.get_by_label("Question of release")
    expect(question.get_by_text("What runs next")).to_be_visible()
    expect(question.get_by_text("CHANGES.md")).to_be_visible()
    question.get_by_role("button", name="Approve").click()
    expect(page.locator(".run-head .status")).to_have_text("completed")
    page = console.go(f"/runs/{run}/steps/publish")
    page.get_by_role("tab", name="Files").click()
    expect(page.locator(".diff")).to_contain_text("+- three fixes")
    page.get_by_role("tab", name="Artifacts").click()
    expect(page.locator(".changes")).to_contain_text("why.md")
    page = console.go(f"/runs/{run}")
    page.get_by_role("button", name="More").click()
    page.get_by_role("button", name="What if …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Steps at once").fill("1")
    expect(dialog.get_by_text("It would take")).to_be_visible()
    expect(dialog.locator(".figures")).to_contain_text("1 slot")
    page.keyboard.press("Escape")
    assert (folder / "CHANGES.md").exists()
    page.get_by_role("button", name="More").click()
    page.get_by_role("button", name="Undo its changes …").click()
    expect(dialog).to_contain_text("CHANGES.md")
    dialog.get_by_role("button", name="Undo", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("put back")
    assert not (folder / "CHANGES.md").exists()


def test_a_form_says_what_needs_permission_and_refuses_what_does_not_fit(console: Console) -> None:
    page = console.go("/recipes/sweep?view=run")
    run = page.get_by_role("button", name="Run", exact=True)
    expect(run).to_be_disabled()
    page.get_by_label("reason").fill("because")
    expect(page.get_by_text("It needs your permission")).to_be_visible()
    expect(run).to_be_disabled()
    page.get_by_label("Allow this").check()
    expect(run).to_be_enabled()


def test_a_fan_out_of_three_hundred_is_one_box_and_opens(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}")
    box = page.locator('.node[data-path="each"]')
    expect(box).to_be_visible()
    expect(box).to_have_attribute("aria-label", re.compile("299 completed|1 failed"))
    assert page.locator(".graph .node").count() < 20
    page.get_by_role("button", name="Open each").click()
    expect(page).to_have_url(re.compile("open=each"))
    expect(page.locator('.node[data-path="each[0]"]')).to_be_visible()
    expect(page.locator('.node[data-path="each[0]"]')).to_contain_text("src/module_000")


def test_a_nested_run_opens_in_place_and_has_the_way_back(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}")
    page.get_by_role("button", name="Open notes").click()
    expect(page.locator('.node[data-path="notes/left"]')).to_be_visible()
    page.locator('.node[data-path="notes/left"]').click()
    expect(page.get_by_label("Step notes/left")).to_be_visible()
    page = console.go(f"/runs/{swept}?step=notes")
    page.get_by_role("link", name="child run").click()
    expect(page.get_by_role("navigation", name="Runs above")).to_contain_text("sweep")
    page.locator('.node[data-path="notes/right"]').click()
    expect(page.get_by_label("Step notes/right")).to_contain_text("quokka")
    page.get_by_role("button", name="Fork …").click()
    expect(page.get_by_role("dialog").get_by_label("Run again from")).to_have_value("notes/right")
    expect(page.get_by_role("dialog").get_by_text("Cost last time")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("navigation", name="Runs above").get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"/runs/{swept}"))


def test_the_graph_the_table_and_the_timeline_agree_on_every_status(console: Console, swept: str) -> None:
    table = {row["path"]: row["status"] for row in console.server.get(f"/api/runs/{swept}/table")["rows"]}
    line = {row["path"]: row["status"] for row in console.server.get(f"/api/runs/{swept}/timeline")["rows"]}
    nodes = console.server.get(f"/api/runs/{swept}/graph")["nodes"]
    assert line == table
    assert {node["path"]: node["status"] for node in nodes}.items() <= table.items()
    assert table["mend#1"] == "completed"  # a round that did not pass is no failure


def test_an_address_that_leads_nowhere_says_so_and_has_the_way_back(console: Console) -> None:
    console.watch.expected = ("404",)
    page = console.go("/nowhere")
    expect(page.get_by_role("heading", name="No such page")).to_be_visible()
    page = console.go("/runs/nobody")
    expect(page.get_by_role("heading", name="There is no run nobody in this project")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    "address",
    [
        "/runs/%ff",
        "/runs/last/steps/%E0%A4%A",
        "/compare/%ff/%fe",
        "/recipes/%",
        "/recipes/No%20Such",
        "/runs/last?at=1.5",
        "/runs/last?at=-1&view=nothing",
        "/agents/nobody",
        "/compare/nobody/nobody",
        "/runs/last/steps/nothing",
    ],
)
def test_an_address_that_means_nothing_has_a_heading_and_says_so(
    console: Console, swept: str, address: str
) -> None:
    console.watch.expected = ("404", "400")
    page = console.go(address)
    expect(page.locator("main h1").first).to_be_attached()
    expect(page.locator("main").get_by_role("alert").or_(page.locator("main .empty")).first).to_be_visible()
    assert page.locator("main").inner_text().strip()


def test_text_of_a_model_is_never_markup(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}?step=notes%2Fleft")
    drawer = page.get_by_label("Step notes/left")
    expect(drawer).to_contain_text("<script>")
    expect(drawer.locator("strong", has_text="bold")).to_be_visible()
    assert drawer.locator("img, script").count() == 0
    assert drawer.locator('a[href^="javascript"]').count() == 0
    assert page.title() != "owned"


def test_a_run_can_be_seen_as_it_was(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}?at=6")
    expect(page.get_by_text(re.compile("^6 of "))).to_be_visible()
    expect(page.locator(".run-head .status")).to_have_text("running")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator(".run-head .status")).to_have_text("waiting")
    assert "at=" not in page.url
    page.locator("#scrub").fill("9")
    expect(page).to_have_url(re.compile(r"at=9\b"))


def test_the_timeline_folds_away_what_went_well_and_the_table_has_it_all(
    console: Console, swept: str
) -> None:
    page = console.go(f"/runs/{swept}?view=timeline")
    expect(page.get_by_role("button", name=re.compile(r"^each\[17\]"))).to_be_visible()
    assert page.locator(".span-row").count() < 40
    page = console.go(f"/runs/{swept}?view=table")
    table = page.get_by_role("table")
    expect(table).to_have_attribute("aria-rowcount", re.compile(r"31\d"))
    assert page.locator("tbody tr").count() < 120


def test_events_come_in_windows(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}?view=events")
    expect(page.get_by_role("button", name="150 older events")).to_be_visible()
    before = page.locator("tbody tr").count()
    page.get_by_role("button", name="150 older events").click()
    expect(page.locator("tbody tr")).to_have_count(before + 150)


def test_keys_move_through_steps_and_views_and_say_so(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}?view=table")
    expect(page.get_by_role("button", name="list", exact=True)).to_be_visible()
    page.keyboard.press("j")
    expect(page).to_have_url(re.compile("step=list"))
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile("step=each%5B17%5D"))
    expect(page.locator("#announcements")).to_contain_text("failed")
    page.keyboard.press("t")
    expect(page).to_have_url(re.compile("view=timeline"))
    page.keyboard.press("g")
    expect(page.locator(".graph")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".drawer")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Next failure")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_label("Words")).to_be_focused()
    page.keyboard.type("quokka")
    expect(page.locator(".excerpt").first).to_contain_text("quokka")


def test_several_runs_are_cancelled_at_once_after_a_question(console: Console) -> None:
    runs = [console.start("slow", SLOW_SCRIPT) for _ in range(2)]
    page = console.go("/runs?recipe=slow")
    for run in runs:
        page.get_by_label(f"Pick slow {run}").check()
    page.get_by_role("button", name="Cancel 2", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Their processes are stopped")
    dialog.get_by_role("button", name="Cancel 2").click()
    expect(page.locator(".status", has_text="cancelled")).to_have_count(2)
    assert {console.status_of(run) for run in runs} == {"cancelled"}
    page.get_by_label("Status").select_option("completed")
    expect(page).to_have_url(re.compile("status=completed"))
    expect(page.get_by_text("No run matches")).to_be_visible()


def test_a_fork_says_what_is_kept_and_can_be_compared(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}?step=mend")
    page.get_by_role("button", name="Fork …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Run again from")).to_have_value("mend")
    expect(dialog.get_by_text("Cost last time")).to_be_visible()
    expect(dialog.locator(".figures")).to_contain_text(re.compile(r"Reused30\d"))
    dialog.get_by_role("button", name="Fork", exact=True).click()
    expect(page).not_to_have_url(re.compile(swept))
    expect(page.locator(".run-head .status")).to_have_text("waiting")
    page.get_by_role("link", name="compare").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    expect(page.get_by_text("differ")).to_be_visible()


def test_a_recipe_is_changed_with_its_mistakes_shown_in_place(console: Console) -> None:
    page = console.go("/recipes/new?view=source")
    field = page.get_by_label("Text of the recipe")
    field.fill("name: mine\nsteps:\n  - {id: a, agent: nobody, prompt: x}\n")
    expect(page.get_by_label("Problems")).to_contain_text("nobody")
    expect(page.locator(".editor .wrong")).to_have_text("nobody")
    expect(page.get_by_role("button", name="Save as mine")).to_be_disabled()
    field.fill("name: mine\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n")
    expect(page.get_by_text("No problems found.")).to_be_visible()
    page.get_by_role("button", name="Save as mine").click()
    expect(page).to_have_url(re.compile("/recipes/mine"))
    expect(page.get_by_text("this project")).to_be_visible()


def test_every_action_can_be_copied_for_elsewhere(console: Console, swept: str) -> None:
    page = console.go(f"/runs/{swept}")
    page.get_by_role("button", name="More").click()
    page.locator(".menu-list").get_by_role("button", name="Copy as …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Action").select_option("cancel")
    expect(dialog).to_contain_text(f"fanfold cancel {swept}")
    expect(dialog).to_contain_text("/api/runs/")


def test_the_end_of_a_run_is_shown_without_a_request(console: Console) -> None:
    run = console.start("two-sides", SLOW_SCRIPT, topic="now")
    page = console.go(f"/runs/{run}")
    expect(page.locator(".run-head .status")).to_have_text("running")
    expect(page.locator(".run-head .heartbeat")).to_contain_text(re.compile("heartbeat (now|.* ago)"))
    console.server.post(f"/api/runs/{run}/cancel", {})
    expect(page.locator(".run-head .status")).to_have_text("cancelled")
    expect(page.locator(".run-head .heartbeat")).to_have_count(0)
    expect(page.locator("#announcements")).to_contain_text("cancelled")


def test_running_steps_show_their_heartbeat_in_every_list(console: Console) -> None:
    run = console.start("two-sides", SLOW_SCRIPT, topic="heart")
    beats = re.compile("heartbeat (now|.* ago)")
    for path, kind in (
        ("/", "li"),
        ("/runs", "tr"),
        ("/recipes/two-sides?view=history", "li"),
        ("/agents", "li"),
    ):
        page = console.go(path)
        one = page.locator(kind, has=page.locator(f'a[href*="{run}"], a[href^="/agents/"]')).first
        expect(one.locator(".heartbeat")).to_contain_text(beats)
    page = console.go(f"/runs/{run}/steps/left")
    expect(page.locator(".drawer-head .heartbeat")).to_contain_text(beats)
    console.server.post(f"/api/runs/{run}/pause", {})
    page.clock.install()
    page = console.go("/runs")
    row = page.locator("tr", has=page.locator(f'a[href="/runs/{run}"]'))
    expect(row.locator(".status")).to_have_text("paused")
    expect(row.locator(".heartbeat")).to_have_count(0)
    took = row.locator("td.number").first
    shown = took.inner_text()
    page.clock.fast_forward("01:00:00")
    expect(row.locator("time").first).to_have_text("1 h ago")
    assert took.inner_text() == shown  # the clock of a run that rests stands still
    console.server.post(f"/api/runs/{run}/cancel", {})


def test_artifacts_are_kept_as_files_and_never_shown(console: Console, folder: Path) -> None:
    hostile = "<script>document.title='owned'</script>"
    recipe = "name: leaves\nsteps: [{id: both, agent: worker, write_set: [x.txt], prompt: Leave it}]\n"
    (folder / ".fanfold" / "workflows" / "leaves.yaml").write_text(recipe)
    wrote = {**spent("done"), "writes": {"artifacts/notes/page.html": hostile}}
    run = console.start("leaves", {"steps": {"both": wrote}})
    page = console.go(f"/runs/{run}?view=output")
    link = page.get_by_role("link", name="notes/page.html")
    expect(link).to_be_visible()
    with page.expect_download() as found:
        link.click()
    assert found.value.suggested_filename == "page.html"
    assert Path(found.value.path()).read_text() == hostile
    page = console.go(f"/runs/{run}/steps/both")
    page.get_by_role("tab", name="Artifacts").click()
    with page.expect_download() as found:
        page.get_by_role("link", name="notes/page.html").click()
    assert Path(found.value.path()).read_text() == hostile
    assert page.title() != "owned"


def test_a_run_that_was_exported_is_imported_from_its_file(
    browser: Browser, server: Server, swept: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    file.write_text(server.client.get(f"/api/runs/{swept}/export").text)
    (tmp_path / "project").mkdir()
    with serving(tmp_path / "project", tmp_path / "home") as serve:
        console = Console(browser, serve())
        page = console.go("/runs")
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Import …").click()
        chooser.value.set_files(file)
        expect(page).to_have_url(re.compile(f"/runs/{swept}$"))
        expect(page.locator('.node[data-path="each"]')).to_be_visible()
        console.watch.expected = ("409",)
        page = console.go("/runs")
        page.get_by_label("File of an exported run").set_input_files(file)
        expect(page.locator(".toast")).to_contain_text("is in this project already")
        console.context.close()
        assert console.watch.wrong == []
