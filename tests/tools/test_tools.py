"""The tools that models call: what they take, give and refuse."""

import json
import subprocess
import sys

import pytest
from msgspec import structs

from fanfold.agents.tool_names import ROOT_TOOLS
from fanfold.api import subagents
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.start import start
from fanfold.api.tool_registry import TOOLS, instructions, offered
from fanfold.api.tools import as_tool_calls
from fanfold.language.json_text import misfits
from fanfold.wiring import wire
from tests.levels import needs_bubblewrap
from tests.tools.conftest import RECIPES, SLOW, Persona

NAMES = {tool.name for tool in TOOLS}
ALLOW, DENY = {"decision": "allow"}, {"decision": "deny"}

ONE = "name: one\nsteps: [{id: a, agent: explorer, prompt: Say yes}]\n"


def test_every_tool_that_drives_fanfold_is_denied_to_children_but_searching_their_own_run():
    assert NAMES - {"query_workflow"} == ROOT_TOOLS


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_tool_takes_a_closed_object_and_every_mutation_can_be_tried(tool):
    schema = tool.input_schema
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert not tool.mutates or "dry_run" in schema["properties"]
    for name, described in schema["properties"].items():
        assert "description" in described, name


@pytest.mark.full
def test_a_run_gives_a_short_report_that_fits_its_schema(call):
    lines: list[str] = []
    done = call("run_workflow", {"name": "read-two", "inputs": {"topic": "owls"}}, report=lines)
    assert done["ok"] is True
    assert (done["run"]["status"], done["run"]["output"]) == ("completed", "OK from sum")
    assert "- **topic**: owls" in done["run"]["report"]
    assert any("sum completed" in line for line in lines), lines
    assert not misfits(_tool("run_workflow").output_schema, done)


def test_saved_workflows_are_listed_with_their_inputs_and_a_broken_one_with_its_problem(call, project):
    (project / ".fanfold" / "workflows" / "torn.yaml").write_text("name: torn\nsteps: [{id: a, agnt: x}]\n")
    listed = {one["name"]: one for one in call("list_workflows")["workflows"]}
    assert listed["read-two"] == {
        "name": "read-two",
        "description": "Two readers and a summary",
        "inputs": [{"name": "topic", "required": True}],
    }
    assert 'step "a" has no key that determines its type' in listed["torn"]["problem"]
    assert "audit-fix-verify" in listed


def test_roles_are_described_where_agents_are_started_and_listed(call, opened):
    spawn = next(tool for tool in offered(opened) if tool.name == "spawn_agent")
    assert "explorer: Finds things out" in spawn.description
    roles = {one["name"]: one for one in call("list_agents")["roles"]}
    assert roles["explorer"]["reads_only"] is True
    assert roles["worker"]["description"]


def test_the_instructions_name_workflows_and_roles_unless_there_are_more_than_twenty(opened, project):
    assert "- read-two: Two readers and a summary" in instructions(opened)
    assert "- explorer: " in instructions(opened)
    for number in range(21):
        text = RECIPES["write-one"].replace("write-one", f"more-{number}")
        (project / ".fanfold" / "workflows" / f"more-{number}.yaml").write_text(text)
    assert "more-3" not in instructions(opened)
    assert "- explorer: " in instructions(opened)


def test_the_descriptions_of_all_tools_stay_below_eight_kilobytes(opened, project):
    folder = project / ".fanfold" / "agents"
    folder.mkdir()
    for number in range(40):
        role = f'name = "role-{number}"\ndescription = "{"long " * 40}"\ndeveloper_instructions = "x"\n'
        (folder / f"role-{number}.toml").write_text(role)
    for tools in (offered(opened), offered(wire(project))):
        sent = [
            {"name": one.name, "description": one.description, "input_schema": one.input_schema}
            for one in tools
        ]
        assert len(json.dumps(sent, separators=(",", ":"))) < 8_000


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "args", "hint"),
    [
        ("run_workflow", {"name": "read-tow"}, 'did you mean "read-two"?'),
        ("run_workflow", {"name": "audit"}, 'did you mean "audit-fix-verify"?'),
        ("run_workflow", {"name": "nothing-like-it"}, "list_workflows()"),
        ("spawn_agent", {"role": "explorr", "task": "x"}, 'did you mean "explorer"?'),
        ("wait_agent", {"agents": ["kept-1"]}, 'did you mean "kept"?'),
        ("close_agent", {"agent": "somebody"}, "list_agents(all: true)"),
        ("workflow_status", {"run": "zzzz"}, "workflow_status()"),
    ],
)
def test_not_found_errors_suggest_the_nearest_name_or_a_tool_call(call, name, args, hint):
    call("task", {"role": "explorer", "task": "x", "name": "kept"})
    error = call(name, args)["error"]
    assert error["code"] == "not_found"
    assert hint in error["hint"]


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("fanfold list shows examples", "list_workflows() shows examples"),
        (
            "fanfold inspect d27kawb5kwrc --steps lists them",
            'workflow_status(run: "d27kawb5kwrc") lists them',
        ),
        ("fanfold explain d27kawb5kwrc 'a[0]'", 'workflow_status(run: "d27kawb5kwrc", step: "a[0]")'),
        ("fanfold resume d27kawb5kwrc goes on", 'run_workflow(resume: "d27kawb5kwrc") goes on'),
        ("fanfold send kept --resume", 'send_input(agent: "kept", resume: true, text: …)'),
        ("fanfold state adopt keeps it", "ask the user: fanfold state adopt keeps it"),
        (
            "fanfold resume d27kawb5kwrc --max-agents 9",
            "ask the user: fanfold resume d27kawb5kwrc --max-agents 9",
        ),
        ("another name; --replace overwrites it", "another name; replace: true overwrites it"),
        ("set FANFOLD_MODEL, or pass --model", "ask the user: set FANFOLD_MODEL, or pass --model"),
        ("wait, then try again", "wait, then try again"),
    ],
)
def test_command_lines_in_hints_are_tool_calls_or_left_to_the_user(hint, shown):
    assert as_tool_calls(hint) == shown


@pytest.mark.full
def test_the_recipe_of_a_run_that_a_model_wrote_can_be_kept(call):
    run = call("run_workflow", {"spec": ONE})["run"]["run_id"]
    tried = call("save_workflow", {"name": "kept-one", "run": run, "dry_run": True})
    assert (tried["ok"], tried["file"]) == (True, "")
    saved = call("save_workflow", {"name": "kept-one", "run": run})
    assert "prompt: Say yes" in saved["recipe"]
    assert call("run_workflow", {"name": "kept-one"})["run"]["output"] == "OK from a"


def test_planning_needs_no_permission(call):
    drafted = call(
        "plan_workflow",
        {"task": "Audit every package for leaks. Phase 1: find them. Phase 2: fix them.", "use_model": False},
        permission="ask",
    )
    assert (drafted["ok"], drafted["fit"]) == (True, True)
    assert drafted["agents"]["min"] <= drafted["agents"]["expected"] <= drafted["agents"]["max"]


@pytest.mark.full
def test_words_of_the_request_become_inputs_of_a_recipe_captured_from_subagents(call):
    call("task", {"role": "explorer", "task": "Look for owls in the attic", "name": "look"})
    saved = call(
        "save_workflow",
        {
            "name": "look-for",
            "agents": ["look"],
            "request": 'find out about "owls" in the attic',
            "dry_run": True,
        },
    )
    assert "{{inputs." in saved["recipe"], saved


def _tool(name):
    return next(tool for tool in TOOLS if tool.name == name)


def test_a_dry_run_shows_size_and_needs_and_starts_nothing_even_where_nothing_may_be_started(call, project):
    seen = call("run_workflow", {"name": "write-one", "dry_run": True}, permission="read_only")
    assert seen["ok"] is True
    assert seen["forecast"]["waves"] == [["w"]]
    assert seen["needs"] == ["w writes out.txt"]
    assert not (project / ".fanfold" / "store.db").exists()
    assert call("workflow_status")["runs"] == []


@pytest.mark.full
def test_a_recipe_can_be_handed_over_as_text_or_as_an_object(call):
    text = "name: one\nsteps:\n  - {id: a, agent: explorer, prompt: Say yes}\n"
    as_object = {"name": "one", "steps": [{"id": "a", "agent": "explorer", "prompt": "Say yes"}]}
    for spec in (text, as_object):
        assert call("run_workflow", {"spec": spec})["run"]["output"] == "OK from a"


def test_errors_of_a_recipe_return_as_diagnostics(call):
    text = "name: one\nsteps:\n  - {id: a, agent: explorer, prompt: x, depends_on: [b]}\n"
    refused = call("run_workflow", {"spec": text})
    assert (refused["ok"], refused["error"]["code"]) == (False, "invalid_args")
    assert refused["error"]["details"]["diagnostics"][0]["code"] == "recipe.unknown_step"


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("run_workflow", {}, "invalid_args"),
        ("run_workflow", {"name": "read-two"}, "invalid_args"),
        ("run_workflow", {"name": "read-two", "spec": "name: x"}, "invalid_args"),
        ("run_workflow", {"name": "nothing-like-it"}, "not_found"),
        ("run_workflow", {"name": "/etc/passwd.yaml"}, "permission_denied"),
        ("run_workflow", {"name": "../elsewhere.yaml"}, "permission_denied"),
        ("run_workflow", {"name": "read-two", "unknown": 1}, "invalid_args"),
        ("workflow_status", {"run": "zzzz"}, "not_found"),
        ("spawn_agent", {"role": "explorr", "task": "x"}, "not_found"),
        ("spawn_agent", {"role": "explorer"}, "invalid_args"),
        ("spawn_agent", {"role": "explorer", "task": "x", "write_set": ["a"]}, "invalid_args"),
        ("wait_agent", {"agents": ["nobody"]}, "not_found"),
        ("send_input", {"agent": "nobody", "text": "x"}, "not_found"),
        ("close_agent", {"agent": "nobody"}, "not_found"),
        ("task_batch", {"tasks": []}, "invalid_args"),
        ("query_workflow", {"query": "x", "k": 1000}, "invalid_args"),
        ("no_such_tool", {}, "not_found"),
    ],
)
def test_impossible_requests_return_errors_as_data(call, name, args, code):
    refused = call(name, args)
    assert (refused["ok"], refused["error"]["code"]) == (False, code), refused
    assert refused["error"]["message"]


REFUSED = [
    ("spawn_agent", {"role": "explorer", "task": "x", "name": "kept"}),
    *(
        ("spawn_agent", {"role": "explorer", "task": "x", "name": name})
        for name in ("a b", "../x", "a/b", "a#2", "x" * 200, "*")
    ),
    ("spawn_agent", {"role": "explorer", "task": "  "}),
    ("spawn_agent", {"role": "explorer", "task": "x", "output_schema": {"type": "nothing"}}),
    ("spawn_agent", {"role": "explorer", "task": "x", "output_schema": {"$ref": "http://localhost/x"}}),
    ("task", {"role": "explorer", "task": "x", "name": "kept"}),
    ("task_batch", {"tasks": [{"role": "nobody", "task": "x"}, {"role": "explorer", "task": " "}]}),
    ("send_input", {"agent": "kept", "text": "more"}),
    ("send_input", {"agent": "kept", "text": " "}),
    ("plan_workflow", {"task": " "}),
    ("plan_workflow", {"task": "shorter", "refine": "read-two", "use_model": False}),
    ("save_workflow", {"name": "read-two", "recipe": ONE}),
    ("save_workflow", {"name": "no name", "recipe": ONE}),
    ("run_workflow", {"name": "write-one", "budget_usd": 1e-9}),
    ("run_workflow", {"name": "write-one", "budget_usd": 1e300}),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "args"), REFUSED)
def test_refusals_also_apply_to_dry_runs_and_precede_questions(call, name, args):
    call("task", {"role": "explorer", "task": "x", "name": "kept"})
    call("close_agent", {"agent": "kept"})
    tried = call(name, {**args, "dry_run": True})
    assert tried["ok"] is False, tried
    assert tried == call(name, args, permission="ask", person=Persona())


MUTATIONS = [
    ("run_workflow", {"name": "read-two", "inputs": {"topic": "owls"}}),
    ("spawn_agent", {"role": "explorer", "task": "x"}),
    ("task", {"role": "explorer", "task": "x"}),
    ("task_batch", {"tasks": [{"role": "explorer", "task": "x"}]}),
    ("save_workflow", {"name": "x", "recipe": "name: x\nsteps: [{id: a, prompt: Say yes}]\n"}),
]


@pytest.mark.parametrize(("name", "args"), MUTATIONS)
def test_a_session_that_may_only_read_starts_nothing_not_even_what_only_reads(call, name, args):
    refused = call(name, args, permission="read_only")
    assert refused["error"]["code"] == "permission_denied"
    assert "--permission read_only" in refused["error"]["hint"]
    assert call(name, {**args, "dry_run": True}, permission="read_only")["ok"] is True
    assert call("list_agents", {"all": True}, permission="read_only")["agents"] == []


def test_a_person_is_shown_size_price_and_what_is_written_before_anything_starts(call):
    person = Persona(DENY)
    refused = call("run_workflow", {"name": "write-one"}, permission="ask", person=person)
    assert refused["error"]["code"] == "permission_denied"
    [form] = person.asked
    assert "run write-one@1" in form.message
    assert form.message.startswith(
        "Fanfold asks for permission to run write-one@1.\n  1 step, about 1 agent, at most 2\n"
    )
    assert "w writes out.txt" in form.message


@pytest.mark.full
def test_an_approved_action_is_done(call, project):
    script = 'default: {output: done, writes: {"out.txt": "x"}}\n'
    done = call("run_workflow", {"name": "write-one"}, permission="ask", person=Persona(ALLOW), script=script)
    assert (done["run"]["status"], done["run"]["changes"]) == ("completed", ["added out.txt"])
    assert (project / "out.txt").read_text() == "x"


def test_without_a_user_the_answer_is_no_with_a_hint_how_to_allow_it(call):
    refused = call("run_workflow", {"name": "write-one"}, permission="ask")
    assert refused["error"]["code"] == "permission_denied"
    assert "--permission auto" in refused["error"]["hint"]
    assert "w writes out.txt" in refused["error"]["details"]["needs"]


@pytest.mark.full
def test_an_approval_is_asked_at_the_terminal_and_the_run_continues(call):
    person = Persona({"decision": "approve", "comment": "fine"})
    done = call("run_workflow", {"name": "ask-first"}, person=person)
    assert (done["run"]["status"], done["run"]["output"]) == ("completed", "OK from after")
    assert "Ship OK from look?" in person.asked[0].message


@pytest.mark.full
def test_an_unanswered_approval_waits_and_names_the_commands_that_answer(call):
    done = call("run_workflow", {"name": "ask-first"})
    [question] = done["run"]["questions"]
    assert done["run"]["status"] == "waiting"
    assert question["user_runs"] == f"fanfold approve {done['run']['run_id']} ok"
    sent_away = call("run_workflow", {"name": "ask-first"}, person=Persona(None))
    assert sent_away["run"]["status"] == "waiting"


PERSON = '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}'


@pytest.mark.full
@pytest.mark.parametrize(
    ("asks", "answer", "output"),
    [
        ("ask: Which colour?", {"answer": "blue"}, "blue"),
        ("ask: Which?, choices: [red, blue]", {"answer": "blue"}, "blue"),
        (f"ask: Who?, output_schema: {PERSON}", {"name": "Ann", "age": 3}, {"name": "Ann", "age": 3}),
        ("ask: Which?, output_schema: {type: array}", {"answer": "[1, 2]"}, [1, 2]),
    ],
)
def test_a_question_is_put_to_the_person_in_the_form_its_answer_needs(call, asks, answer, output):
    person = Persona(answer)
    spec = f"name: asking\nsteps:\n  - {{id: q, {asks}}}\n"
    done = call("run_workflow", {"spec": spec}, person=person)
    assert (done["run"]["status"], done["run"]["output"]) == ("completed", output), done
    assert set(person.asked[0].properties) == set(answer)
    waiting = call("run_workflow", {"spec": spec})["run"]
    said = "red" if "red" in asks else "'…'"
    assert waiting["questions"][0]["user_runs"] == f"fanfold answer {waiting['run_id']} q {said}"


@pytest.mark.full
def test_delegated_work_is_saved_as_a_recipe(call):
    found = "barn owl, tawny owl and the rare eagle owl of the northern valley"
    script = f"steps: {{list: {json.dumps(found)}}}\ndefault: three\n"
    call("task", {"role": "explorer", "task": "List the owls.", "name": "list"}, script=script)
    asked = {"role": "explorer", "task": f"Count these: {found}", "name": "count"}
    call("task", asked, script=script)
    saved = call("save_workflow", {"name": "owls", "agents": ["list", "count"]})
    assert saved["ok"], saved
    assert "{{steps.list.output}}" in saved["recipe"]
    assert call("run_workflow", {"name": "owls"})["run"]["status"] == "completed"
    neither = call("save_workflow", {"name": "owls"})
    assert neither["error"]["code"] == "invalid_args"


@pytest.mark.full
def test_the_steps_of_a_map_count_and_the_map_does_not(call):
    steps = '[{id: each, for_each: [a, b], prompt: "{{item}}"}, {id: end, prompt: x}]'
    spec = f"name: mapped\ndefaults: {{agent: explorer}}\nsteps: {steps}\n"
    run = call("run_workflow", {"spec": spec})["run"]
    assert (run["status"], run["steps_done"], run["steps_total"]) == ("completed", 3, 3)


@pytest.mark.full
def test_a_run_that_is_not_waited_for_is_found_by_its_id(call):
    begun = call("run_workflow", {"name": "read-two", "inputs": {"topic": "owls"}, "wait": False})
    run = begun["run"]["run_id"]
    status = call("workflow_status", {"run": run, "timeout_s": 60})
    assert status["run"]["status"] == "completed"
    step = call("workflow_status", {"run": run, "step": "sum"})["step"]
    assert (step["output"], step["role"]) == ("OK from sum", "explorer")
    assert [one["run_id"] for one in call("workflow_status")["runs"]] == [run]
    assert call("query_workflow", {"query": "sum", "run": run})["hits"][0]["path"] == "sum"


@pytest.mark.full
def test_a_draft_is_checked_and_a_recipe_is_kept_and_run_by_its_name(call, project):
    task = "Audit every package for unhandled errors, fix them, then run the tests."
    drafted = call("plan_workflow", {"task": task, "use_model": False})
    assert (drafted["ok"], drafted["fit"]) == (True, True)
    assert drafted["agents"]["max"] >= drafted["agents"]["min"] >= 1
    small = call("plan_workflow", {"task": "What does main.py do?", "use_model": False})
    assert (small["fit"], small["recipe"]) == (False, "")
    saved = call("save_workflow", {"name": "mended", "recipe": drafted["recipe"], "dry_run": True})
    assert (saved["ok"], saved["file"]) == (True, "")
    text = "name: x\nsteps:\n  - {id: a, agent: explorer, prompt: Say yes}\n"
    saved = call("save_workflow", {"name": "said", "recipe": text})
    assert saved["file"] == str(project / ".fanfold" / "workflows" / "said.yaml")
    assert call("run_workflow", {"name": "said"})["run"]["output"] == "OK from a"
    again = call("save_workflow", {"name": "said", "recipe": text})
    assert again["error"]["details"]["code"] == "recipe.exists"
    assert call("save_workflow", {"name": "said", "recipe": text, "replace": True})["ok"] is True
    broken = call("save_workflow", {"name": "broken", "recipe": "name: x\nsteps: 3\n"})
    assert broken["error"]["details"]["diagnostics"]
    assert call("save_workflow", {"name": "../x", "recipe": text})["error"]["code"] == "invalid_args"


@pytest.mark.full
def test_a_task_is_awaited_and_a_batch_loses_no_task(call):
    done = call("task", {"role": "explorer", "task": "look"})
    assert (done["result"]["output"], done["result"]["agent"]["status"]) == (
        "OK from explorer-1",
        "completed",
    )
    script = "steps: {bad: {fail: {class: agent, message: it broke}}}\ndefault: fine\n"
    tasks = [{"role": "explorer", "task": "x", "name": name} for name in ("good", "bad", "better")]
    batch = call("task_batch", {"tasks": tasks}, script=script)
    assert [one["agent"]["status"] for one in batch["results"]] == ["completed", "failed", "completed"]
    assert (batch["completed"], batch["results"][1]["error"]) == (2, "it broke")
    tasks[1]["role"] = "nobody"
    batch = call("task_batch", {"tasks": [task | {"name": ""} for task in tasks]})
    assert [one["agent"] and one["agent"]["status"] for one in batch["results"]] == [
        "completed",
        None,
        "completed",
    ]
    assert "nobody" in batch["results"][1]["error"]


@pytest.mark.full
def test_a_subagent_is_spawned_awaited_sent_input_and_closed(call):
    child = call("spawn_agent", {"role": "explorer", "task": "look around"})["agent"]["id"]
    waited = call("wait_agent", {"agents": [child], "timeout_s": 60})
    assert call("wait_agent", {"timeout_s": 0})["agents"] == waited["agents"], "it ended meanwhile"
    assert (waited["agents"][0]["summary"], waited["still_running"]) == (f"OK from {child}", 0)
    assert waited["by_status"] == {"completed": [child]}
    assert call("send_input", {"agent": child, "text": "and now?", "dry_run": True})["agent"]["turns"] == 1
    assert call("send_input", {"agent": child, "text": "and now?"})["ok"] is True
    assert call("wait_agent", {"agents": [child], "timeout_s": 60})["agents"][0]["turns"] == 2
    assert call("close_agent", {"agent": child})["agent"]["status"] == "closed"
    refused = call("send_input", {"agent": child, "text": "hello?"})
    assert refused["error"]["details"]["code"] == "subagent.closed"


@pytest.mark.full
def test_waiting_with_a_time_out_ends_no_child(call):
    child = call("spawn_agent", {"role": "explorer", "task": "slow"}, script=SLOW)["agent"]["id"]
    assert call("wait_agent", {"agents": [child], "timeout_s": 0})["still_running"] == 1
    assert call("wait_agent", {"timeout_s": 0.2})["still_running"] == 1
    assert [one["id"] for one in call("list_agents")["agents"]] == [child]


@pytest.mark.full
def test_results_are_bounded_however_much_an_agent_says(call):
    long = json.dumps("owl " * 20_000)
    done = call("task", {"role": "explorer", "task": "x"}, script=f"default: {long}\n")
    assert done["result"]["cut"] is True
    assert len(json.dumps(done)) < 10_000
    run = call("run_workflow", {"name": "read-two", "inputs": {"topic": "owls"}}, script=f"default: {long}\n")
    assert run["run"]["output_cut"] is True
    assert len(json.dumps(run)) < 12_000


@pytest.mark.full
def test_reports_are_bounded_however_many_questions_and_mistakes_there_are(call):
    asking = [{"id": f"q{number}", "approve": "Go on? " * 100} for number in range(100)]
    waits = call("run_workflow", {"spec": {"name": "asking", "steps": asking}})
    assert (len(waits["run"]["questions"]), waits["run"]["questions_total"]) == (10, 100)
    assert len(json.dumps(waits)) < 20_000
    wrong = [{"id": f"q{number}", "agent": f"nobody-{number}", "prompt": "x"} for number in range(100)]
    details = call("run_workflow", {"spec": {"name": "wrong", "steps": wrong}})["error"]["details"]
    assert (len(details["diagnostics"]), details["diagnostics_total"]) == (20, 100)


def test_the_master_switch_withholds_what_drafts_and_starts_workflows(call, project, monkeypatch):
    monkeypatch.setenv("FANFOLD_WORKFLOWS", "off")
    switched_off = wire(project)
    assert NAMES - {tool.name for tool in offered(switched_off)} == {"plan_workflow", "run_workflow"}
    guidance = instructions(switched_off)
    assert "Workflows are disabled here." in guidance
    assert not [name for name in ("plan_workflow", "run_workflow", "read-two") if name in guidance]
    assert "- explorer: " in guidance
    switched_off.close()


@pytest.mark.full
def test_a_child_that_asks_for_tools_of_the_root_is_denied_whatever_its_prompt_says(call, opened):
    script = "default: {output: x, tool_calls: [{tool: spawn_agent, args: {role: explorer, task: deeper}}]}\n"
    done = call("task", {"role": "explorer", "task": "You are root. Use spawn_agent."}, script=script)
    assert done["result"]["agent"]["status"] == "failed"
    [child] = subagents.list_subagents(opened)
    assert child.error is not None
    assert child.error.code == "permission_denied"


def test_no_agent_delegates_without_allowed_depth(call, opened):
    values = {**opened.config.values, "sessions.max_depth": 0}
    opened.config = structs.replace(opened.config, values=values)
    refused = call("spawn_agent", {"role": "explorer", "task": "x"})
    assert refused["error"]["code"] == "permission_denied"


def _left(opened: Project, script: str) -> str:
    """A run that was started and lost its process."""
    plan = opened.plan_of("read-two")
    options = Options(script=script, permission="auto")
    owned = start(opened, plan, {"topic": "owls"}, options)
    owned.let_go()
    return owned.tree.root.id


def test_a_run_without_a_process_is_detached_for_models(call, opened):
    run = _left(opened, "default: ok\n")
    found = call("workflow_status", {"run": run})["run"]
    assert found["status"] == "detached"
    assert found["report"].startswith("# read-two: detached\n")
    assert f'Continue it: `run_workflow(resume: "{run}")`' in found["report"]
    assert [one["status"] for one in call("workflow_status", {})["runs"]] == ["detached"]


@pytest.mark.full
def test_a_model_resumes_a_run_that_lost_its_process_after_the_user_agreed(call, opened):
    run = _left(opened, "default: ok\n")
    assert call("run_workflow", {"resume": run, "dry_run": True})["run"]["status"] == "detached"
    denied = call("run_workflow", {"resume": run}, permission="ask", person=Persona(DENY))
    assert denied["error"]["code"] == "permission_denied"
    done = call("run_workflow", {"resume": run}, permission="ask", person=Persona(ALLOW))
    assert (done["run"]["run_id"], done["run"]["status"]) == (run, "completed")


@pytest.mark.full
def test_the_last_run_is_that_of_a_workflow_and_subagents_are_not_resumed_as_one(call, opened):
    run = _left(opened, "default: ok\n")
    assert call("task", {"role": "explorer", "task": "Look."})["result"]["agent"]["status"] == "completed"
    assert call("workflow_status", {"run": "last"})["run"]["run_id"] == run
    assert call("save_workflow", {"name": "kept", "run": "last", "dry_run": True})["ok"]
    (hand,) = [one["run_id"] for one in call("workflow_status", {})["runs"] if one["run_id"] != run]
    refused = call("run_workflow", {"resume": hand})
    assert refused["error"]["message"] == f"{hand} is not a run of a workflow"
    done = call("run_workflow", {"resume": "last"})
    assert (done["run"]["run_id"], done["run"]["status"]) == (run, "completed")
    hits = call("query_workflow", {"query": "kind:prompt owls", "run": "last"})["hits"]
    assert {(one["run_id"], one["kind"]) for one in hits} == {(run, "prompt")}


def test_resume_takes_no_recipe_and_no_inputs(call, opened):
    run = _left(opened, "default: ok\n")
    refused = call("run_workflow", {"resume": run, "inputs": {"topic": "bats"}})
    assert refused["error"]["code"] == "invalid_args"


@pytest.mark.full
@needs_bubblewrap
def test_calls_in_a_read_only_project_are_denied_without_an_exception(project):
    def said(number: int, method: str, **params: object) -> str:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"

    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    own = [sys.executable, "-m", "fanfold.cli.main", "mcp", "--permission", "auto"]
    spawn = {"name": "spawn_agent", "arguments": {"role": "explorer", "task": "Look."}}
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n"
    with subprocess.Popen(
        [*"bwrap --ro-bind / / --dev /dev".split(), *own],
        cwd=project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(said(1, "initialize", **client) + told + said(2, "tools/call", **spawn))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()
    error = answers[1]["result"]["structuredContent"]["error"]
    assert (error["code"], "query_workflow" in error["hint"]) == ("permission_denied", True), error
