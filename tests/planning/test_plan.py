"""`fanfold plan`: drafts that the compiler checks, templates where there is no model, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanfold.agents.local.weights import RELEASE, models_folder
from fanfold.api.planning import kind_of
from fanfold.cli.main import main
from tests.e2e.world import Provider
from tests.provider import Call, RecordedRequest, Reply, answer_with

pytestmark = pytest.mark.full

SONNET = "anthropic:claude-sonnet-4-6"

GOOD = """\
name: tidy-up
inputs: [{name: packages, type: array, required: true}]
phases:
  - id: look
    kind: understand
    for_each: inputs.packages
    tasks: [{id: scan, agent: explorer, prompt: "Scan {{item}}"}]
  - id: mend
    kind: execute
    tasks: [{id: apply, agent: worker, write_set: ["src/**"], prompt: "Fix it. {{feedback}}"}]
    verify: {gate: critic}
"""
BAD = GOOD.replace("explorer", "explorre")
TASKS = (
    "Audit every package for swallowed errors and fix them",
    "Migrate all 500 test files from unittest to pytest",
    "Research solid-state batteries from several angles and write a cited brief",
    "Review all open changes for security with three critics",
    "Build twelve React components in parallel",
    "Tidy the whole monorepo",
    "Prüfe alle Pakete auf verschluckte Ausnahmen und behebe sie",
    "Traduis chaque page de la documentation en anglais",
    "Investiga el tema desde varios ángulos y redacta un informe con fuentes",
    "审计所有软件包中的未处理异常并运行测试",
)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Place:
    """A project that nobody else's settings reach, and the command line in it, in this process."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self._patch = patch
        self._captured = captured
        patch.setenv("HOME", str(folder / "home"))
        patch.chdir(self.folder)

    def cli(self, *words: str, **environment: str) -> Done:
        with self._patch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            status = main(list(words))
        return Done(status, *self._captured.readouterr())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, monkeypatch, capsys)


@pytest.fixture
def small(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Everything that counts as the local model being here; nothing of it could answer."""
    (tmp_path / "installed/xllamacpp").mkdir(parents=True)
    (tmp_path / "installed/xllamacpp/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    home = tmp_path / "home/.fanfold"
    monkeypatch.setenv("FANFOLD_HOME", str(home))
    models_folder(home).mkdir(parents=True)
    with (models_folder(home) / RELEASE.file_name).open("wb") as weights:
        weights.truncate(RELEASE.bytes)
    return place


def plan(place: Place, *words: str, **environment: str) -> tuple[int, Any, str]:
    done = place.cli("plan", *words, "--json", **environment)
    return done.returncode, json.loads(done.stdout), done.stderr


def drafts(*texts: str) -> Any:
    """A planner that gives one draft after the other."""
    left = list(texts)

    def answer(asked: RecordedRequest) -> Reply:
        return answer_with({"fit": True, "reason": "two packages", "recipe": left.pop(0)}, asked)

    return answer


def given(provider: Provider) -> dict[str, str]:
    return {**provider.environment, "FANFOLD_MODEL": SONNET}


def test_an_invalid_draft_is_corrected_from_the_compiler_s_words(place: Place):
    (place.folder / "pyproject.toml").write_text("[tool.pytest]\n")
    with Provider(drafts(BAD, GOOD)) as provider:
        status, drafted, _ = plan(place, "Tidy all packages", "--save", "tidy", **given(provider))
        first, second = (str(asked.body["messages"]) for asked in provider.asked)
    assert (status, drafted["fit"], drafted["source"], drafted["rounds"]) == (0, True, "model", 2)
    assert "recipe.unknown_role" in second
    assert "explorre" in second
    assert "unknown_role" not in first
    assert "python3 -m pytest -q" in first, "the planner is told what the project is like"
    assert "two packages" in drafted["reason"]
    assert drafted["agents"]["max"] >= drafted["agents"]["min"] >= 3
    assert [step["id"] for step in drafted["document"]["steps"]] == ["look", "mend"]
    assert drafted["recipe"].startswith("name: tidy\n")
    assert place.cli("check", "tidy").returncode == 0
    assert place.cli("verify", "--all").returncode == 0


def test_the_activity_of_the_planner_is_shown_with_the_command_that_runs_its_draft(place: Place):
    (place.folder / "README.md").write_text("Packages: a, b\n")
    reads = Reply(calls=(Call("read_file", {"path": "README.md"}),))
    answers = iter([reads, None, None])
    draft = drafts(BAD, GOOD)
    with Provider(lambda asked: next(answers) or draft(asked)) as provider:
        done = place.cli("plan", "Tidy all packages", "--save", "tidy", **given(provider))
    run = json.loads(place.cli("runs", "--json").stdout)[-1]["run_id"]
    told = done.stderr.splitlines()
    assert f"fanfold transcript {run} draft --follow" in told[0]
    assert "read_file README.md" in told[1]
    assert "asking again, round 2 of 3" in told[2]
    assert "Run it: fanfold run tidy -i packages=…" in told
    assert place.cli("plan", "Tidy", "--json", "--no-model").stderr == ""


def test_a_name_that_is_taken_is_refused_before_a_model_is_paid(place: Place):
    assert place.cli("plan", TASKS[0], "--no-model", "--save", "tidy").returncode == 0
    with Provider(drafts(GOOD)) as provider:
        for name, code in (("tidy", "recipe.exists"), ("A b", "recipe.bad_value")):
            refused = plan(place, "Tidy all packages", "--save", name, **given(provider))
            assert (refused[0], refused[1]["error"]["code"]) == (2, code)
        assert provider.asked == []


def test_a_draft_that_stays_invalid_is_refused_after_three_rounds(place: Place):
    with Provider(drafts(BAD, BAD, BAD, GOOD)) as provider:
        status, said, _ = plan(place, "Tidy all packages", "--save", "tidy", **given(provider))
        assert len(provider.asked) == 3
    assert (status, said["ok"], said["error"]["code"]) == (1, False, "plan.invalid")
    assert "explorre" in said["error"]["message"]
    assert not (place.folder / ".fanfold/workflows/tidy.yaml").exists()


@pytest.mark.parametrize(
    "wrong", ["steps: [{id: a, prompt: x}]\nname: plain\n", "", "no: recipe\n", "x" * 70_000]
)
def test_a_draft_without_phases_is_sent_back_too(place: Place, wrong: str):
    with Provider(drafts(wrong, f"```yaml\n{GOOD}```")) as provider:
        status, drafted, _ = plan(place, "Tidy all packages", **given(provider))
    assert (status, drafted["rounds"], drafted["name"]) == (0, 2, "tidy-up")


def test_a_request_unfit_for_a_workflow_goes_to_one_agent(place: Place):
    answer = {"fit": False, "reason": "it is one line", "recipe": ""}
    with Provider(lambda asked: answer_with(answer, asked)) as provider:
        done = place.cli("plan", "Fix the typo's place", "--save", "x", **given(provider))
    assert done.returncode == 0
    assert "it is one line" in done.stderr
    assert """fanfold spawn worker 'Fix the typo'"'"'s place'""" in done.stderr
    assert done.stdout == ""
    assert not (place.folder / ".fanfold/workflows/x.yaml").exists()


def test_a_failed_planner_is_reported_with_its_run(place: Place):
    with Provider(lambda _: Reply(text="I cannot")) as provider:
        status, said, _ = plan(place, "Tidy all packages", **given(provider))
    assert (status, said["error"]["code"]) == (1, "plan.failed")
    assert place.cli("inspect", said["error"]["details"]["run_id"]).returncode == 0


def test_a_refinement_shows_the_difference_and_can_be_saved(place: Place):
    (place.folder / "tidy.yaml").write_text(GOOD)
    with Provider(drafts(GOOD.replace("Scan {{item}}", "Scan {{item}} twice"))) as provider:
        done = place.cli(
            "plan", "Scan twice", "--refine", "tidy.yaml", "--save", "tidy-up", **given(provider)
        )
        assert "Scan {{item}}" in str(provider.asked[0].body["messages"])
    assert done.returncode == 0, done.stderr
    changed = [
        line for line in done.stdout.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert len(changed) == 2
    assert "twice" in (place.folder / ".fanfold/workflows/tidy-up.yaml").read_text()
    assert (place.folder / "tidy.yaml").read_text() == GOOD


def test_no_recipe_is_overwritten_unless_requested(place: Place):
    for words, status in (((), 0), ((), 2), (("--replace",), 0)):
        done = place.cli("plan", TASKS[0], "--no-model", "--save", "tidy", *words)
        assert done.returncode == status, done.stderr
    assert "recipe.exists" in place.cli("plan", TASKS[0], "--no-model", "--save", "tidy").stderr


@pytest.mark.parametrize("name", ["../x", "A b", "x@0"])
def test_a_name_that_cannot_be_one_saves_nothing(place: Place, name: str):
    done = place.cli("plan", TASKS[0], "--no-model", "--save", name)
    assert done.returncode == 2
    assert not (place.folder / ".fanfold/workflows").exists()


@pytest.mark.parametrize("tests", [True, False], ids=["with tests", "without tests"])
def test_without_a_model_ten_tasks_get_templates_that_pass_check(place: Place, tests: bool):
    if tests:
        (place.folder / "pytest.ini").write_text("[pytest]\n")
    names = [f"t{number}" for number in range(len(TASKS))]
    for name, task in zip(names, TASKS, strict=True):
        status, drafted, _ = plan(place, task, "--save", name)
        assert (status, drafted["fit"], drafted["source"], drafted["runs"]) == (0, True, "template", [])
        assert "template" in drafted["recipe"].splitlines()[0]
        assert task in drafted["recipe"]
        assert not [one for one in drafted["warnings"] if "max_agents" in one], (
            "it has room for all it may need"
        )
    done = place.cli("check", *names, "--json")
    assert done.returncode == 0, done.stdout
    assert {kind_of(task) for task in TASKS} >= {"audit", "migrate", "research", "review", "build"}


def test_without_a_model_what_is_for_one_agent_gets_no_template_unless_wanted(place: Place):
    assert not plan(place, "Audit this function")[1]["fit"]
    assert plan(place, "Audit this function", "--anyway")[1]["fit"]


def test_a_refinement_without_a_model_is_refused(place: Place):
    (place.folder / "tidy.yaml").write_text(GOOD)
    assert plan(place, "Scan twice", "--refine", "tidy.yaml")[1]["error"]["code"] == "provider.none"
    said = plan(place, "Scan twice", "--refine", "tidy.yaml", "--no-model")[1]
    assert said["error"]["code"] == "plan.no_model"


def test_a_task_full_of_templates_and_controls_stays_text(place: Place):
    task = "Audit all {{inputs.x}} \\{{ \x1b[31m files: #\n- &a *b !!python/object"
    done = place.cli("plan", task, "--save", "odd")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert place.cli("check", "odd").returncode == 0


def test_the_small_local_model_plans_only_if_it_is_named(small: Place) -> None:
    assert "local:smollm2" in small.cli("models").stdout
    done = small.cli("plan", TASKS[0])
    assert done.returncode == 0
    assert "the local model is too small to plan: a template is filled in" in done.stderr
    assert "Filled in from a template" in done.stdout
    assert small.cli("runs").stdout == "nothing has run here yet\n"
    (small.folder / "r.yaml").write_text(GOOD)
    status, said, _ = plan(small, "--refine", "r.yaml", "Add a review")
    assert (status, said["error"]["code"]) == (2, "plan.no_model")
    assert "too small to plan" in said["error"]["message"]
    _, said, _ = plan(small, TASKS[0], "--model", "local:smollm2")
    assert said["error"]["code"] == "plan.failed"  # it was asked


def test_doctor_names_the_working_model_if_none_is_configured(small: Place) -> None:
    def told(**environment: str) -> tuple[str, str]:
        found = json.loads(small.cli("doctor", "--json", **environment).stdout)["checks"]
        (one,) = [row for row in found if row["name"] == "model"]
        return one["level"], one["message"]

    assert told() == ("ok", "local:smollm2 (no provider is configured, and the local model is here)")
    assert told(ANTHROPIC_API_KEY="x") == ("ok", f"{SONNET} (ANTHROPIC_API_KEY is set)")
    assert told(FANFOLD_MODEL="openai:gpt-5.2")[0] == "warning"
