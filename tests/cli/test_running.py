"""`fanfold run` and `fanfold resume` for real, with scripted agents: results, statuses, limits."""

import re

import pytest

BRIEF = """\
name: brief
inputs:
  - {name: topic, default: tea}
steps:
  - {id: gather, agent: explorer, prompt: "Research {{inputs.topic}}"}
  - {id: write, agent: explorer, prompt: "Write about {{steps.gather.output}}"}
"""
SCRIPT = """\
default: OK from {{step}}
steps:
  gather: {output: three sources, usage: {input_tokens: 70, output_tokens: 30, cost_usd: 0.25}}
"""
RESULT_KEYS = {
    "run_id", "recipe", "version", "status", "output", "error", "steps", "usage", "changes", "children",
    "report", "waits",
}  # fmt: skip
STEP_KEYS = {"status", "type", "output", "error", "attempts", "started_at", "ended_at", "usage"}


@pytest.fixture
def brief(project):
    (project / "brief.yaml").write_text(BRIEF)
    (project / "script.yaml").write_text(SCRIPT)
    return ["run", "brief.yaml", "--script", "script.yaml"]


def write(project, recipe, script="default: OK from {{step}}"):
    (project / "recipe.yaml").write_text(recipe)
    (project / "script.yaml").write_text(script)
    return ["run", "recipe.yaml", "--script", "script.yaml"]


def test_the_answer_alone_goes_to_stdout_and_progress_to_stderr(fanfold, brief):
    status, out, err = fanfold(*brief)
    assert (status, out) == (0, "OK from write\n")
    lines = err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d gather started \(explorer\)", lines[1])
    assert re.fullmatch(r"\d\d:\d\d:\d\d gather completed [\d.]+ m?s", lines[2])
    assert lines[-1].startswith("completed  run ")
    assert "100 tokens · $0.2500" in lines[-1]


def test_the_result_in_json_has_the_documented_shape(fanfold, brief):
    document = fanfold(*brief, "--json").json()
    assert set(document) == RESULT_KEYS
    assert (document["recipe"], document["version"], document["status"]) == ("brief", 1, "completed")
    assert (document["output"], document["error"]) == ("OK from write", None)
    assert set(document["steps"]) == {"gather", "write"}
    assert all(set(step) == STEP_KEYS for step in document["steps"].values())
    gather = document["steps"]["gather"]
    assert (gather["status"], gather["type"], gather["attempts"]) == ("completed", "agent", 1)
    assert gather["usage"] == {"input_tokens": 70, "output_tokens": 30, "cost_usd": 0.25}
    assert document["usage"] == {"input_tokens": 70, "output_tokens": 30, "cost_usd": 0.25, "agents": 2}
    assert (document["changes"], document["children"]) == ([], [])


def test_structured_output_is_printed_as_json(fanfold, project):
    recipe = 'name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\noutput: {said: "{{steps.a.output}}"}\n'
    assert fanfold(*write(project, recipe)).out == '{\n  "said": "OK from a"\n}\n'


@pytest.mark.parametrize(
    ("more", "script", "status", "exit_status"),
    [
        ("", "default: ok", "completed", 0),
        ("", "{default: ok, steps: {a: {fail: {class: agent}}}}", "partial", 1),
        ("", "default: {fail: {class: agent, message: no}}", "failed", 1),
        ("on_failure: stop", "{default: ok, steps: {a: {fail: {class: agent}}}}", "failed", 1),
        ("limits: {timeout: 200ms}", "default: {output: late, delay_ms: 20000}", "timed_out", 1),
        ("limits: {max_agents: 1}", "default: ok", "paused", 5),
        (
            "limits: {max_concurrency: 1, budget: {tokens: 10}}",
            "default: {output: ok, usage: {input_tokens: 9}}",
            "paused",
            5,
        ),
    ],
)
def test_the_exit_status_says_how_the_run_ended(fanfold, project, more, script, status, exit_status):
    steps = "".join(f"  - {{id: {name}, agent: explorer, prompt: x}}\n" for name in "ab")
    recipe = f"name: r\n{more}\nsteps:\n{steps}"
    result = fanfold(*write(project, recipe, script), "--json")
    assert (result.json()["status"], result.status) == (status, exit_status)
    assert fanfold("resume", "last", "--json").status == exit_status


def test_a_failure_is_named_with_what_can_be_done(fanfold, project):
    retry = "retry: {attempts: 2, backoff: 1ms, on: [agent]}"
    recipe = f"name: r\nsteps: [{{id: a, agent: explorer, prompt: x, {retry}}}]\n"
    script = "default: {fail: {class: agent, code: x.y, message: it broke, hint: mend it}}"
    status, out, err = fanfold(*write(project, recipe, script))
    assert (status, out) == (1, "")
    assert "a failed after 2 attempts: it broke [x.y]" in err
    assert "mend it" in err


def test_a_run_that_only_waits_says_how_to_answer(fanfold, project):
    recipe = (
        "name: r\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"
        '  - {id: ok, approve: "Ship {{steps.a.output}}?", depends_on: [a]}\n'
    )
    status, out, err = fanfold(*write(project, recipe))
    assert (status, out) == (3, "")
    assert "ok: Ship OK from a?" in err
    assert re.search(r"fanfold approve \w{12} ok", err)


# Permission

WRITER = """\
name: careful
steps:
  - {id: fix, agent: worker, write_set: ["src/**"], prompt: fix}
  - {id: test, run: [echo, fine], depends_on: [fix]}
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        ([], False),
        (["--permission", "ask"], False),
        (["--permission", "read_only"], False),
        (["--permission", "read_only", "--yes"], False),
        (["--yes"], True),
        (["--permission", "ask", "--yes"], True),
        (["--permission", "auto"], True),
    ],
)
def test_effects_that_a_recipe_declares_need_permission(fanfold, project, flags, allowed):
    result = fanfold(*write(project, WRITER), *flags, "--json")
    if allowed:
        assert (result.status, result.json()["output"]) == (0, "fine")
    else:
        assert result.status == 4
        error = result.json()["error"]
        assert error["code"] == "permission_denied"
        assert error["details"]["needs"] == ["fix writes src/**", "test runs: echo fine"]
        assert ("--yes" in error["hint"]) == ("read_only" not in flags)  # advice that would not help is none
        assert fanfold("runs", "--json").json() == []


def test_a_recipe_that_only_reads_needs_no_permission(fanfold, brief):
    assert fanfold(*brief, "--permission", "read_only").status == 0


# Refusals


def test_switched_off_workflows_do_not_run_but_old_runs_can_be_read(fanfold, brief, monkeypatch):
    assert fanfold(*brief).status == 0
    monkeypatch.setenv("FANFOLD_WORKFLOWS", "off")
    result = fanfold(*brief, "--json")
    assert (result.status, result.json()["error"]["code"]) == (4, "workflows.off")
    assert fanfold("inspect", "last", "--json").json()["status"] == "completed"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "usage.bad_script"),
        ("steps: [", "script.syntax"),
        ("stepz: {}", "script.unknown_key"),
        ("steps: {gather: {outputt: x, delay_ms: 1}}", "script.unknown_key"),
        ("default: {fail: {class: nonsense}}", "script.bad_value"),
    ],
)
def test_a_script_with_a_mistake_is_refused_before_anything_runs(fanfold, brief, project, text, code):
    (project / "script.yaml").unlink()
    if text is not None:
        (project / "script.yaml").write_text(text)
    result = fanfold(*brief, "--json")
    assert (result.status, result.json()["error"]["code"]) == (2, code)
    assert "script.yaml" in result.json()["error"]["message"]
    assert fanfold("runs", "--json").json() == []


@pytest.mark.full
def test_a_recipe_without_agents_needs_no_model(fanfold, project):
    (project / "recipe.yaml").write_text("name: r\nsteps: [{id: a, run: [echo, hello]}]\n")
    assert fanfold("run", "recipe.yaml", "--yes").out == "hello\n"


def test_missing_inputs_do_not_run_but_are_predicted(fanfold, project):
    (project / "pytest.ini").write_text("[pytest]\n")  # what its gate finds
    refused = fanfold("run", "audit-fix-verify", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (2, "recipe.missing_input")
    predicted = fanfold("run", "audit-fix-verify", "--dry-run", "--json")
    assert predicted.status == 0
    document = predicted.json()
    assert document["would_run"] is False
    assert 'input "packages" is required and was not given' in document["warnings"]
    assert document["waves"][0] == ["audit#1/scan[*]"]
    assert fanfold("run", "audit-fix-verify", "--dry-run", "-i", "packages=[]", "--json").json()["would_run"]


# Limits, and going on


def test_a_used_up_budget_pauses_and_raising_it_resumes(fanfold, brief):
    stopped = fanfold(*brief, "--budget-tokens", "150", "--json")
    assert (stopped.status, stopped.json()["status"]) == (5, "paused")
    assert stopped.json()["steps"]["gather"]["status"] == "completed"
    again = fanfold("resume", "last")
    assert again.status == 5
    assert re.search(r"fanfold resume \w+ --budget-tokens 300", again.err)
    done = fanfold("resume", "last", "--budget-tokens", "2000", "--json")
    assert (done.status, done.json()["output"]) == (0, "OK from write")
    assert done.json()["steps"]["gather"]["attempts"] == 1


def test_limits_that_raise_nothing_are_refused(fanfold, project):
    step = "{id: a, agent: explorer, for_each: '[1, 2, 3]', prompt: x}"
    recipe = f"name: r\nlimits: {{max_agents: 2}}\nsteps: [{step}]\n"
    assert fanfold(*write(project, recipe)).status == 5
    for agents in ("0", "2", "2001"):
        refused = fanfold("resume", "last", "--max-agents", agents, "--json")
        assert (refused.status, refused.json()["error"]["code"]) == (2, "usage.out_of_range")
    assert fanfold("resume", "last", "--max-agents", "3").status == 0


def test_a_run_at_its_limit_of_steps_reports_it_and_continues_when_raised(fanfold, project):
    step = "{id: a, agent: explorer, for_each: '[1, 2, 3]', prompt: x}"
    recipe = f"name: r\nlimits: {{max_steps: 2}}\nsteps: [{step}]\n"
    held = fanfold(*write(project, recipe))
    assert held.status == 5
    assert re.search(r"fanfold resume \w+ --max-steps 4\n", held.err)
    for steps in ("0", "2", "100001"):
        refused = fanfold("resume", "last", "--max-steps", steps, "--json")
        assert (refused.status, refused.json()["error"]["code"]) == (2, "usage.out_of_range")
    assert fanfold("resume", "last", "--max-steps", "4").status == 0


def test_the_advice_names_the_limit_that_holds_also_beside_a_budget(fanfold, project):
    step = "{id: a, agent: explorer, for_each: '[1, 2, 3]', prompt: x}"
    recipe = f"name: r\nlimits: {{max_agents: 2, budget: {{tokens: 90000000}}}}\nsteps: [{step}]\n"
    held = fanfold(*write(project, recipe))
    assert re.search(r"fanfold resume \w+ --max-agents 4\n", held.err)


@pytest.mark.full
def test_more_steps_can_be_allowed_in_the_background(fanfold, shell, project, until):
    step = "{id: a, agent: explorer, for_each: '[1, 2, 3]', prompt: x}"
    recipe = f"name: r\nlimits: {{max_steps: 2}}\nsteps: [{step}]\n"
    assert fanfold(*write(project, recipe)).status == 5
    assert shell("resume", "last", "--max-steps", "9", "--detach").status == 0
    until(lambda run: run["status"] == "completed")


def test_every_error_has_all_its_fields_and_names_the_attempt_wherever_it_is_seen(fanfold, project):
    (project / "child.yaml").write_text(
        "name: child\nsteps:\n"
        "  - {id: good, agent: explorer, prompt: x}\n  - {id: bad, agent: explorer, prompt: x}\n"
    )
    recipe = (
        "name: r\non_failure: inline\nsteps:\n"
        "  - {id: shaped, agent: explorer, prompt: x, outputs: [title]}\n"
        "  - {id: kid, workflow: ./child.yaml}\n"
        "  - {id: items, agent: explorer, prompt: x, for_each: '[1]', outputs: [title]}\n"
        'output: {shaped: "{{steps.shaped.error}}", kid: "{{steps.kid.error}}", '
        'item: "{{steps.items.output[0].error}}"}\n'
    )
    script = "{default: ok, steps: {kid/bad: {fail: {class: agent, message: no}}}}"
    document = fanfold(*write(project, recipe, script), "--json").json()
    fields = {"class", "code", "message", "hint", "retryable", "step", "attempt"}
    seen = [step["error"] for step in document["steps"].values() if step["error"]]
    assert document["error"] is None  # every failure was taken as a value
    seen += document["output"].values()
    assert {error["code"] for error in seen} >= {"output.invalid", "run.partial"}
    for error in seen:
        assert error.keys() == fields
        assert error["attempt"] == 1
        assert error["step"]


def test_editing_recipe_and_script_changes_nothing_for_a_run_that_was_started(fanfold, brief, project):
    assert fanfold(*brief, "--budget-tokens", "150").status == 5
    (project / "brief.yaml").write_text("name: brief\nsteps: [{id: other, agent: explorer, prompt: x}]\n")
    (project / "script.yaml").write_text("default: something else\n")
    document = fanfold("resume", "last", "--budget-tokens", "2000", "--json").json()
    assert (document["status"], document["output"]) == ("completed", "OK from write")
    assert set(document["steps"]) == {"gather", "write"}


def test_resuming_what_has_ended_prints_the_same_and_runs_nothing(fanfold, brief, project, monkeypatch):
    calls = project / "calls"
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(calls))
    first = fanfold(*brief, "--json")
    again = fanfold("resume", first.json()["run_id"][:6], "--json")
    assert (again.status, again.out) == (first.status, first.out)
    assert calls.read_text().splitlines() == ["gather 1 1", "write 1 1"]


def test_child_runs_are_named_and_have_their_own_steps(fanfold, project):
    (project / "child.yaml").write_text(
        "name: child\ninputs: [{name: n, required: true}]\nsteps: [{id: up, agent: explorer, prompt: x}]\n"
    )
    step = "{id: kids, workflow: ./child.yaml, for_each: '[1, 2]', inputs: {n: item}}"
    recipe = f"name: parent\nsteps: [{step}]\n"
    document = fanfold(*write(project, recipe), "--json").json()
    assert set(document["steps"]) == {"kids", "kids[0]", "kids[1]"}
    assert document["steps"]["kids"]["output"] == ["OK from kids[0]/up", "OK from kids[1]/up"]
    assert len(document["children"]) == 2
    child = fanfold("inspect", document["children"][0], "--json").json()
    assert (child["execution_path"], child["nesting_depth"]) == ("kids[0]", 1)
    assert child["parent_run_id"] == document["run_id"]
    assert set(child["steps"]) == {"up"}


@pytest.mark.parametrize(
    "output",
    [
        "'{{steps.a.output}} and {{steps.b.output}}'",
        "'{{steps.a.output}} and {{steps.c.title}}'",
        "{one: '{{steps.a.output}}', two: '{{steps.c.output}}'}",
        "steps.b.output",
    ],
)
def test_an_output_of_which_a_part_is_missing_is_not_printed(fanfold, project, output):
    (project / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n  - {id: b, agent: explorer, prompt: x}\n"
        "  - {id: c, agent: explorer, prompt: x, depends_on: [b], outputs: [title]}\n"
        f"output: {output}\n"
    )
    (project / "s.yaml").write_text("{default: ok, steps: {b: {fail: {class: agent}}}}")
    result = fanfold("run", "r.yaml", "--script", "s.yaml")
    assert (result.status, result.out) == (1, "")
    assert fanfold("inspect", "last", "--json").json()["output"] is None
    told = "output: 'b is {{steps.b.status}}'\n"
    (project / "r.yaml").write_text((project / "r.yaml").read_text().replace(f"output: {output}\n", told))
    assert fanfold("run", "r.yaml", "--script", "s.yaml").out == "b is failed\n"
