"""Keys of agent steps: `agents`, `prompt_file`, `continue`, and human gates."""

import json

import pytest


def write(project, text, name="a.yaml"):
    (project / name).write_text(text)
    return name


PICKS = """\
name: picks
inputs: {who: {default: explorer}}
steps:
  - {id: a, agent: "{{inputs.who}}", agents: [explorer, critic], prompt: look}
output: "{{steps.a.output}}"
"""


def test_a_role_is_picked_at_run_time_and_the_log_says_which(project, fanfold):
    write(project, "default: ok\n", "s.yaml")
    assert fanfold("run", write(project, PICKS), "--script", "s.yaml", "-i", "who=critic").status == 0
    log = [json.loads(line)["data"] for line in fanfold("logs", "last", "--json").out.splitlines()]
    assert [data["role"] for data in log if data.get("status") == "started" and "role" in data] == ["critic"]


def test_a_role_that_is_not_listed_is_refused_for_lack_of_permission(project, fanfold):
    write(project, "default: ok\n", "s.yaml")
    done = fanfold("run", write(project, PICKS), "--script", "s.yaml", "-i", "who=worker", "--json").json()
    error = done["steps"]["a"]["error"]
    assert (error["class"], error["code"]) == ("permission", "agent.not_listed")
    assert "explorer, critic" in error["hint"]


def test_claims_are_those_of_the_widest_role_that_may_come(project, fanfold):
    recipe = PICKS.replace("[explorer, critic]", "[explorer, worker]")
    told = fanfold("run", write(project, recipe), "--dry-run").out
    assert "one of explorer, worker" in told
    plan = fanfold("show", "a.yaml", "--json").json()
    assert '"writer"' in json.dumps(plan)


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        ('agent: "{{inputs.who}}", prompt: x', "recipe.missing_key", "the roles that it may give"),
        ('agent: "{{inputs.who}}", agents: [nobody], prompt: x', "recipe.unknown_role", "nobody"),
        ('agent: "{{inputs.who}}", agents: [], prompt: x', "recipe.bad_value", "must not be empty"),
        ("agent: explorer, agents: [critic], prompt: x", "recipe.conflicting_keys", "needs a template"),
        ('agent: "{{steps.z.output}}", agents: [critic], prompt: x', "recipe.unknown_step", '"z"'),
        ("prompt_file: missing.md", "recipe.bad_value", "cannot be read"),
        ("prompt_file: ../../secret.md", "recipe.bad_value", "cannot be read"),
        ("prompt_file: bad.md", "recipe.unknown_input", "nope"),
        ("prompt_file: empty.md", "recipe.bad_value", "is empty"),
        ("prompt: x, prompt_file: good.md", "recipe.conflicting_keys", "not both"),
        ("prompt: x, continue: z", "recipe.unknown_step", '"z"'),
        ("prompt: x, continue: v", "recipe.conflicting_keys", "not an agent step"),
        ("prompt: x, agent: critic, continue: first", "recipe.conflicting_keys", "another role"),
        ("prompt: x, continue: looked", "recipe.conflicting_keys", "write agent: explorer"),
        ("prompt: x, continue: first, for_each: '[1]'", "recipe.conflicting_keys", "not from or into a map"),
    ],
)
def test_a_meaningless_key_is_refused_at_its_place(project, fanfold, step, code, words):
    (project / "bad.md").write_text("see {{inputs.nope}}")
    (project / "good.md").write_text("see {{inputs.who}}")
    (project / "empty.md").write_text("\n")
    (project.parent / "secret.md").write_text("secret")
    recipe = (
        "name: x\ninputs: {who: {}}\nsteps:\n  - {id: first, prompt: x}\n  - {id: v, set: {a: 1}}\n"
        "  - {id: looked, agent: explorer, prompt: x}\n  - {id: a, " + step + "}\n"
    )
    told = fanfold("check", write(project, recipe), "--json")
    found = [one for one in told.json()["diagnostics"] if one["code"] == code]
    assert found, told.out
    assert found[0]["range"]["start"]["line"] == 7
    assert words in f"{found[0]['message']} {found[0]['help']}"


@pytest.mark.full
def test_a_prompt_from_a_file_is_frozen_with_the_run(project, fanfold):
    (project / "prompts").mkdir()
    (project / "prompts/look.md").write_text("Look for {{inputs.topic}}.")
    write(project, "default: ok\n", "s.yaml")
    recipe = """\
name: x
inputs: {topic: {default: owls}}
steps:
  - {id: wait, approve: Go?}
  - {id: a, agent: explorer, prompt_file: ./prompts/look.md, depends_on: wait}
"""
    fanfold("run", write(project, recipe), "--script", "s.yaml")
    (project / "prompts/look.md").write_text("Something else.")
    fanfold("approve", "last", "wait")
    fanfold("watch", "last")
    assert "Look for owls." in fanfold("transcript", "last", "a").out


def test_a_step_continues_in_a_copy_of_another_step_s_conversation(project, fanfold):
    write(project, "steps: {a: first words, b: more words, c: other words}\n", "s.yaml")
    recipe = """\
name: x
steps:
  - {id: a, agent: explorer, prompt: Remember seven.}
  - {id: b, agent: explorer, prompt: What was it?, continue: a}
  - {id: c, agent: explorer, prompt: And now?, continue: a}
output: {b: steps.b.output, c: steps.c.output}
"""
    checked = fanfold("check", write(project, recipe), "--json").json()
    assert checked["diagnostics"] == []
    done = fanfold("run", "a.yaml", "--script", "s.yaml", "--json").json()
    assert done["output"] == {"b": "more words", "c": "other words"}
    for step in ("b", "c"):
        told = fanfold("transcript", "last", step).out
        assert "Remember seven." in told, told


CONTINUES = """\
name: x
steps:
  - {{id: c, agent: worker, prompt: c, continue: b{}}}
  - {{id: b, agent: worker, prompt: b, continue: a}}
  - {{id: a, agent: worker, prompt: a, {}}}
"""


@pytest.mark.parametrize("narrowed", ["posture: read_only", "write_set: []"])
def test_a_step_that_continues_a_reader_s_conversation_is_a_reader(project, fanfold, narrowed):
    write(project, "default: ok\nsteps: {c: {output: ok, writes: {f.txt: hi}}}\n", "s.yaml")
    recipe = write(project, CONTINUES.format("", narrowed))
    done = fanfold("run", recipe, "--script", "s.yaml", "--yes", "--json").json()
    assert done["steps"]["c"]["error"]["class"] == "permission"
    assert not (project / "f.txt").exists()
    assert not done["changes"]


@pytest.mark.parametrize("widens", ["write_set: [f.txt]", "posture: writer"])
def test_settings_that_widen_a_conversation_are_refused(project, fanfold, widens):
    told = fanfold("check", write(project, CONTINUES.format(f", {widens}", "posture: read_only")), "--json")
    (found,) = told.json()["diagnostics"]
    assert found["code"] == "recipe.conflicting_keys"
    assert 'continues "a", which only reads' in found["message"]
    writes = fanfold(
        "check", write(project, CONTINUES.format(f", {widens}", "description: a writer")), "--json"
    )
    assert writes.json()["diagnostics"] == []


def test_a_conversation_continues_under_any_name_of_its_role(project, fanfold):
    recipe = """\
name: x
steps:
  - {id: a, agent: explorer, prompt: x}
  - {id: b, agent: researcher, prompt: x, continue: a}
"""
    write(project, "default: ok\n", "s.yaml")
    assert fanfold("check", write(project, recipe), "--json").json()["diagnostics"] == []
    assert fanfold("run", "a.yaml", "--script", "s.yaml").status == 0


@pytest.mark.parametrize(
    "step",
    [
        '{id: build, prompt: "{{steps.biuld.output}}"}',
        "{id: build, prompt: x, depends_on: biuld}",
        "{id: build, prompt: x, continue: biuld}",
        '{id: build, steps: [{id: i, prompt: "{{steps.biuld.output}}"}]}',
    ],
)
def test_no_step_waits_for_itself(project, fanfold, step):
    known = "name: x\nsteps:\n  - {id: other, prompt: x}\n"
    told = fanfold("check", write(project, f"{known}  - {step}\n"), "--json").json()["diagnostics"]
    assert [(one["code"], one["help"]) for one in told if one["severity"] == "error"] == [
        ("recipe.unknown_step", "")
    ]
    told = fanfold("check", write(project, f"{known}  - {step.replace('biuld', 'ohter')}\n"), "--json").json()
    assert [one["help"] for one in told["diagnostics"] if one["severity"] == "error"] == [
        'did you mean "other"?'
    ]


def test_a_human_gate_is_an_approval_whose_question_is_its_prompt(project, fanfold):
    recipe = """\
name: x
steps:
  - {id: a, gate: human, prompt: "Shall we?"}
  - {id: b, gate: human, description: Is it good?, depends_on: a}
"""
    assert fanfold("run", write(project, recipe)).status == 3
    steps = fanfold("inspect", "last", "--json").json()["steps"]
    assert steps["a"]["approval"]["question"] == "Shall we?"
    assert steps["a"]["type"] == "approval"


def test_an_edge_that_exists_through_other_steps_is_not_warned_about(project, fanfold):
    recipe = """\
name: x
steps:
  - {id: a, agent: explorer, prompt: x}
  - {id: b, agent: explorer, prompt: "{{steps.a.output}}", depends_on: a}
  - {id: c, agent: explorer, prompt: "{{steps.a.output}} {{steps.b.output}}", depends_on: b}
  - {id: d, agent: explorer, prompt: "{{steps.a.output}} {{steps.c.output}}"}
"""
    told = fanfold("check", write(project, recipe), "--json").json()["diagnostics"]
    assert [(one["code"], one["range"]["start"]["line"]) for one in told] == [("recipe.implied_edge", 6)]


def test_feedback_and_its_fields_are_null_in_the_first_round(project, fanfold):
    write(
        project,
        "steps: {'loop#1': {said: no}, 'loop#2': {said: yes}}\n".replace(
            "{said: no}", '{output: {said: "no"}}'
        ).replace("{said: yes}", '{output: {said: "yes"}}'),
        "s.yaml",
    )
    recipe = """\
name: x
steps:
  - id: loop
    agent: explorer
    prompt: "before: {{feedback.said}} {{feedback}}"
    outputs: [said]
    repeat: {until: output.said == "yes", max_iterations: 3}
output: "{{steps.loop.output.said}}"
"""
    done = fanfold("run", write(project, recipe), "--script", "s.yaml")
    assert (done.status, done.out) == (0, "yes\n")
