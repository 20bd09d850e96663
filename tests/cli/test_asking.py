"""Steps without agents: `set`, `ask`, `wait` and `end`, and `fanfold answer`."""

import json
import os
import re
import signal

import pytest

from fanfold.cli.output import clock


def write(project, text, name="a.yaml"):
    (project / name).write_text(text)
    return name


ASKS = """\
name: asks
steps:
  - {id: names, set: {all: "['red', 'green', 'blue']"}}
  - {id: colour, ask: "Which of {{steps.names.output.all}}?", choices: steps.names.output.all}
  - {id: size, ask: How large?, output_schema: {type: integer, minimum: 1}}
  - {id: words, ask: Say something.}
output: {colour: steps.colour.output, size: steps.size.output, words: steps.words.output}
"""


# set


def test_a_set_step_works_values_out_once_and_keeps_their_types(project, fanfold):
    recipe = """\
name: counts
inputs: {n: {type: integer, default: 3}}
steps:
  - {id: a, set: {twice: inputs.n * 2, many: "[1, 2, 3].filter(x, x > 1)", yes: true, seven: 7}}
  - {id: b, depends_on: [a], set: {sum: "steps.a.output.twice + steps.a.output.many[0]"}}
output: {a: steps.a.output, sum: steps.b.output.sum}
"""
    done = fanfold("run", write(project, recipe), "--json").json()
    assert done["output"] == {"a": {"twice": 6, "many": [2, 3], "yes": True, "seven": 7}, "sum": 8}
    assert done["usage"]["agents"] == 0


def test_a_set_step_that_cannot_be_worked_out_fails_with_the_reason(project, fanfold):
    recipe = """name: x\nsteps:\n  - {id: a, set: {q: "1 / size('')"}}\n"""
    step = fanfold("run", write(project, recipe), "--json").json()["steps"]["a"]
    assert step["status"] == "failed"
    assert step["error"]["code"] == "expression.failed"
    assert "divide by zero" in step["error"]["message"]


@pytest.mark.parametrize(
    ("step", "code", "words"),
    [
        ("set: {}", "recipe.bad_value", "must not be empty"),
        ("set: [a]", "recipe.bad_type", "a map of names to expressions"),
        ("set: {a: steps.nobody.output}", "recipe.unknown_step", "nobody"),
        ("set: {9a: '1'}", "recipe.bad_value", "cannot be the name"),
        ("{set: {a: 1}, retry: 3}", "recipe.conflicting_keys", "retry"),
        ("wait: soon", "recipe.bad_expression", "soon"),
        ("wait: '[1]'", "recipe.bad_expression", "a list, where a time is needed"),
        ("wait: 9000h", "recipe.limit", "must be from 0s to"),
        ("wait: -1", "recipe.limit", "must be from 0s to"),
        ("{wait: 1s, timeout: 2s}", "recipe.conflicting_keys", "exactly the time that it waits"),
        ("end: done", "recipe.bad_value", "completed"),
        ("end: success", "recipe.bad_value", "write completed"),
        ("{ask: q, choices: []}", "recipe.bad_value", "at least one"),
        ("{ask: q, choices: [a, a]}", "recipe.bad_value", "different"),
        ("{ask: q, choices: [a], default: b}", "recipe.bad_value", "is not one of the choices"),
        ("{ask: q, choices: [a], output_schema: {}}", "recipe.conflicting_keys", "not both"),
        ("{ask: q, output_schema: {type: integer}, default: x}", "recipe.bad_value", "does not match"),
        ("{ask: q, default: 3}", "recipe.bad_type", "must be text"),
        ("{ask: q, choices: inputs.nothing}", "recipe.unknown_input", "nothing"),
        ("{approve: q, choices: lines('a')}", "recipe.bad_type", "an `ask` step takes an expression"),
        ("{approve: q, default: 3}", "recipe.bad_value", "is not one of the choices"),
    ],
)
def test_keys_that_such_a_step_cannot_have_are_refused_at_their_place(project, fanfold, step, code, words):
    inner = step if step.startswith("{") else "{" + step + "}"
    recipe = "name: x\nsteps:\n  - {id: a, " + inner[1:] + "\n"
    told = fanfold("check", write(project, recipe), "--json")
    assert told.status == 2
    found = [one for one in told.json()["diagnostics"] if one["code"] == code]
    assert found
    assert found[0]["range"]["start"]["line"] == 3
    assert words in f"{found[0]['message']} {found[0]['help']}"


def test_a_dry_run_continues_with_the_values_of_a_set_step(project, fanfold):
    recipe = """\
name: x
inputs: {n: {type: integer, default: 3}}
steps:
  - {id: a, set: {items: "lists.range(inputs.n)"}}
  - {id: each, depends_on: [a], for_each: steps.a.output.items, agent: explorer, prompt: "{{item}}"}
"""
    told = fanfold("run", write(project, recipe), "--dry-run", "--json").json()
    assert told["waves"] == [["a", "each[0]", "each[1]", "each[2]"]]  # what is worked out takes no time
    assert told["warnings"] == []


# ask


@pytest.mark.parametrize(("given", "shown"), [("src", "src/**"), ("*", "[*]/**"), ("a, b", "a[,] b/**")])
def test_permission_is_asked_for_what_the_inputs_mean(project, fanfold, given, shown):
    recipe = "name: x\ninputs: {folder: {}}\nsteps:\n"
    recipe += """  - {id: a, agent: worker, prompt: x, write_set: ["{{inputs.folder}}/**"]}\n"""
    write(project, "default: ok\n", "s.yaml")
    refused = fanfold("run", write(project, recipe), "-i", f"folder={given}", "--script", "s.yaml")
    assert f"x needs permission: a writes {shown}\n" in refused.err


def test_permission_is_asked_for_what_is_carried_out_where_a_template_is_text(project, fanfold):
    recipe = "name: x\ninputs: {folder: {default: src}}\nsteps:\n"
    recipe += """  - {id: a, run: [echo, '\\{{inputs.folder}}', "{{inputs.folder}}"]}\n"""
    refused = fanfold("run", write(project, recipe))
    assert "x needs permission: a runs: echo '{{inputs.folder}}' src\n" in refused.err


def test_a_default_that_answers_on_another_day_is_shown_with_its_date(project, fanfold):
    asks = "name: x\nsteps: [{id: ok, approve: Go?, timeout: %s, default: approve}]\n"
    (line,) = [
        line
        for line in fanfold("run", write(project, asks % "50h")).err.splitlines()
        if "its default answers" in line
    ]
    assert re.match(r" +from \d{4}-\d\d-\d\d \d\d:\d\d:\d\d on its", line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", clock("2020-02-03T04:05:06.000Z"))


def test_a_free_text_answer_to_an_approval_gets_an_error_with_its_choices(project, fanfold):
    fanfold("run", write(project, "name: x\nsteps: [{id: ok, approve: Go?, choices: [ship it, drop]}]\n"))
    refused = fanfold("answer", "last", "ok", "ship it")
    assert refused.status == 2
    assert "choose one of ship it, drop: fanfold approve " in refused.err
    assert refused.err.endswith(" ok --choice 'ship it'\n")


@pytest.mark.parametrize(
    ("variable", "secret"),
    [("DEPLOY_TOKEN", "hunter2-hunter2-hunter2"), ("UNNAMED", "ghp_abcdefghijklmnopqrstuvwxyz012345")],
)
def test_no_question_shows_a_secret_that_is_an_input(project, fanfold, monkeypatch, variable, secret):
    monkeypatch.setenv(variable, secret)
    recipe = "name: x\ninputs: {key: {}, folder: {required: true}}\nsteps:\n"
    recipe += """  - {id: a, run: [push, "{{inputs.key}}", "{{inputs.folder}}"]}\n"""
    given = ("run", write(project, recipe), "-i", f"key={secret}")
    for words, told in (((), "the recipe takes key, folder"), (("-i", "folder=src"), "run it with --yes")):
        for form in ((), ("--json",)):
            refused = fanfold(*given, *words, *form)
            assert secret not in refused.out + refused.err
            assert told in refused.out + refused.err
    assert "a runs: push '{{inputs.key}}' src" in fanfold(*given, "-i", "folder=src").err


@pytest.mark.full
def test_a_person_answers_in_words_by_choice_and_with_data(project, fanfold, until):
    asked = fanfold("run", write(project, ASKS))
    assert asked.status == 3
    assert "fanfold answer" in asked.err
    assert " colour red" in asked.err
    assert 'answer: JSON that fits {"type":"integer","minimum":1}\n' in asked.err
    for step, text, problem in (
        ("colour", "pink", "choose one of: red, green, blue"),
        ("size", "many", "is not of type"),
        ("size", "many", 'fits {"type":"integer","minimum":1}'),
        ("size", "0", "less than the minimum"),
        ("words", " ", "is empty"),
        ("names", "x", "asks no question"),
    ):
        refused = fanfold("answer", "last", step, text)
        assert (refused.status, problem in refused.err) == (2, True), (step, refused.err)
    decided = fanfold("approve", "last", "words")
    assert decided.status == 2
    assert re.search(r"fanfold answer \w+ words$", decided.err, re.MULTILINE), decided.err
    (project / "words.txt").write_text("two\nlines\n")
    assert fanfold("answer", "last", "colour", "green").status == 0
    assert fanfold("answer", "last", "size", "12").status == 0
    assert fanfold("answer", "last", "words", "--file", "words.txt").status == 0
    run = until(lambda run: run["status"] == "completed")
    assert run["output"] == {"colour": "green", "size": 12, "words": "two\nlines"}
    again = fanfold("answer", "last", "size", "13")
    assert again.status == 2
    assert "completed already" in again.err
    assert fanfold("verify", "last").status == 0


def test_an_answer_is_given_once_as_text_or_from_a_file(project, fanfold):
    fanfold("run", write(project, ASKS))
    assert fanfold("answer", "last", "words").status == 2
    assert fanfold("answer", "last", "words", "x", "--file", "y").status == 2
    assert fanfold("answer", "last", "words", "--file", "missing.txt").status == 2


def test_a_question_says_what_it_is_to_those_who_show_it(project, fanfold):
    fanfold("run", write(project, ASKS))
    steps = fanfold("inspect", "last", "--json").json()["steps"]
    assert steps["colour"]["approval"] == {
        "question": 'Which of ["red","green","blue"]?',
        "show": "",
        "choices": ["red", "green", "blue"],
        "kind": "question",
    }
    assert steps["size"]["approval"]["schema"] == {"type": "integer", "minimum": 1}


def test_the_default_of_a_question_is_an_answer_like_a_persons(project, fanfold):
    recipe = """\
name: x
steps:
  - {id: a, ask: How many?, output_schema: {type: integer}, default: 4, timeout: 10ms}
  - {id: b, ask: Who?, timeout: 10ms, on_failure: inline}
output: {a: steps.a.output, b: steps.b.status}
"""
    fanfold("run", write(project, recipe))  # nobody is at the terminal, so it leaves the questions alone
    done = fanfold("resume", "last", "--json").json()
    while done["status"] == "waiting":  # it was resumed before the time-outs were due
        done = fanfold("resume", "last", "--json").json()
    assert done["output"] == {"a": 4, "b": "timed_out"}


def test_a_default_that_is_none_of_the_choices_is_no_answer(project, fanfold):
    recipe = """\
name: x
inputs: [{name: offered, default: [a, b]}]
steps: [{id: q, ask: Which?, choices: inputs.offered, default: c, timeout: 1h}]
"""
    failed = fanfold("run", write(project, recipe), "--json").json()["steps"]["q"]
    assert failed["status"] == "failed"
    assert failed["error"]["message"] == "q cannot start: the default 'c' is not one of the choices"


@pytest.mark.full
def test_a_choice_is_chosen_whatever_space_is_around_it(project, fanfold):
    recipe = """\
name: x
inputs: [{name: offered, default: [" a ", "b\\n"]}]
steps: [{id: q, ask: Which?, choices: inputs.offered}]
output: {chosen: steps.q.output}
"""
    fanfold("run", write(project, recipe))
    assert fanfold("answer", "last", "q", "b").status == 0
    assert fanfold("resume", "last", "--json").json()["output"] == {"chosen": "b\n"}


def test_yes_answers_no_question(project, fanfold):
    assert fanfold("run", write(project, ASKS), "--yes").status == 3


# wait


def test_a_wait_has_no_output_and_takes_durations_of_expressions(project, fanfold):
    recipe = """\
name: x
inputs: [{name: n, type: integer, default: 1}]
steps:
  - {id: a, wait: 10ms}
  - {id: b, wait: 'duration(string(inputs.n) + "ms")'}
  - {id: c, wait: 'timestamp("2001-01-01T00:00:00Z")'}
output: {a: steps.a.output, b: steps.b.output, c: "{{steps.c.output}}"}
"""
    done = fanfold("run", write(project, recipe), "--json").json()
    assert (done["status"], done["output"]) == ("completed", {"a": None, "b": None, "c": None})


@pytest.mark.full
def test_a_wait_ends_at_an_instant_that_is_recorded_once(project, fanfold, shell, background, until):
    recipe = """\
name: x
limits: {timeout: 5s}
steps:
  - {id: a, wait: 6s}
  - {id: b, depends_on: [a], set: {over: true}}
output: "{{steps.b.output.over}}"
"""
    process = background("run", write(project, recipe))
    run = until(lambda run: run["steps"].get("a", {}).get("status") == "waiting")
    assert run["status"] == "waiting"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    log = [json.loads(line) for line in fanfold("logs", "last", "--json").out.splitlines()]
    due = [line["data"]["due_at"] for line in log if line["data"].get("due_at")]
    done = shell("resume", "last", "--json")
    assert done.status == 0
    assert done.json()["output"] is True
    log = [json.loads(line) for line in fanfold("logs", "last", "--json").out.splitlines()]
    ended = next(line for line in log if line["data"].get("step") == "a" and "output" in line["data"])
    assert ended["at"] >= due[0]
    assert [line["data"]["due_at"] for line in log if line["data"].get("due_at")] == due


@pytest.mark.parametrize(
    "moment",
    [
        "timestamp('2020-01-01T00:00:00Z')",
        "timestamp(0)",
        "duration('10ms')",
        "steps.when.output.text",
        "'5ms'",
        "0.01",
        "{{steps.when.output.text}}",
    ],
)
def test_a_wait_takes_every_way_to_say_a_moment(project, fanfold, moment):
    recipe = f"""\
name: x
steps:
  - {{id: when, set: {{text: "'2020-01-01T00:00:00+01:00'"}}}}
  - {{id: a, depends_on: [when], wait: "{moment}"}}
"""
    assert fanfold("run", write(project, recipe)).status == 0


@pytest.mark.parametrize(("moment", "words"), [("'tomorrow'", "neither"), ("'99999999s'", "hours away")])
def test_a_moment_that_is_none_fails_the_step(project, fanfold, moment, words):
    done = fanfold("run", write(project, f'name: x\nsteps:\n  - {{id: a, wait: "{moment}"}}\n'), "--json")
    assert done.status == 1
    assert words in done.json()["steps"]["a"]["error"]["message"]


# end

ENDS = """\
name: ends
inputs: {bad: {type: boolean, default: false}}
steps:
  - {id: look, agent: explorer, prompt: look}
  - {id: enough, depends_on: [look], end: completed, message: "enough: {{steps.look.output}}", output: early}
  - {id: slow, agent: explorer, prompt: slow}
  - {id: never, depends_on: [slow], agent: explorer, prompt: never}
  - {id: person, approve: Go on?}
  - {id: group, depends_on: [slow], steps: [{id: inner, agent: explorer, prompt: x}]}
  - {id: later, wait: 9h}
output: "{{steps.never.output}}"
"""
SCRIPT = "default: ok\nsteps: {slow: {output: x, delay_ms: 3600000}}\n"


def test_an_end_step_cancels_what_runs_and_skips_what_waits(project, fanfold):
    write(project, SCRIPT, "script.yaml")
    done = fanfold("run", write(project, ENDS), "--script", "script.yaml", "--json")
    assert done.status == 0
    run = done.json()
    assert run["status"] == "completed"
    assert run["output"] == "early"
    assert {path: step["status"] for path, step in run["steps"].items()} == {
        "look": "completed",
        "enough": "completed",
        "slow": "cancelled",
        "never": "skipped",
        "person": "skipped",
        "group": "skipped",
        "later": "skipped",
    }
    told = fanfold("explain", "last", "never", "--json").json()
    assert told["reason"] == "ended"
    assert fanfold("verify", "last").status == 0
    assert "never skipped (the run was ended)" in fanfold("logs", "last").out


def test_an_end_step_may_fail_its_run_and_says_why(project, fanfold):
    write(project, SCRIPT, "script.yaml")
    recipe = ENDS.replace("end: completed", "end: failed").replace(", output: early", "")
    done = fanfold("run", write(project, recipe), "--script", "script.yaml", "--json")
    assert done.status == 1
    run = done.json()
    assert run["status"] == "failed"
    assert run["output"] is None
    assert (run["error"]["code"], run["error"]["message"]) == ("run.ended", "enough: ok")
    assert run["steps"]["enough"]["status"] == "completed"


def test_an_end_step_of_a_sub_workflow_ends_that_one_alone(project, fanfold):
    write(project, SCRIPT, "script.yaml")
    write(project, ENDS)
    recipe = """\
name: outer
steps:
  - {id: call, workflow: ./a.yaml}
  - {id: after, depends_on: [call], agent: explorer, prompt: "{{steps.call.output}}"}
output: {call: steps.call.output, after: steps.after.output}
"""
    script = "default: ok\nsteps: {call/slow: {output: x, delay_ms: 3600000}}\n"
    write(project, script, "script.yaml")
    done = fanfold("run", write(project, recipe, "outer.yaml"), "--script", "script.yaml", "--json")
    assert done.json()["output"] == {"call": "early", "after": "ok"}


def test_an_end_step_whose_condition_is_false_ends_nothing(project, fanfold):
    recipe = """\
name: x
inputs: {stop: {type: boolean, default: false}}
steps:
  - {id: a, when: inputs.stop, end: failed, message: stopped}
  - {id: b, depends_on: [a], set: {v: 1}}
output: "{{steps.b.output.v}}"
"""
    name = write(project, recipe)
    assert fanfold("run", name).out == "1\n"
    assert fanfold("run", name, "-i", "stop=true").status == 1
    told = fanfold("run", name, "--dry-run", "--json").json()
    assert told["waves"] == [["b"]]


def test_a_dry_run_shows_what_comes_after_an_end_that_may_not_be_reached(project, fanfold):
    recipe = """\
name: x
steps:
  - {id: look, agent: explorer, prompt: x}
  - {id: a, depends_on: [look], when: steps.look.output == 'no', end: failed}
  - {id: b, depends_on: [a], agent: explorer, prompt: y}
"""
    told = fanfold("run", write(project, recipe), "--dry-run", "--json").json()
    assert told["waves"] == [["look"], ["b"]]
    assert told["warnings"] == ["steps that end the run under a condition are taken not to be reached: a"]


@pytest.mark.parametrize("step", ["names", "colour"])
def test_ask_and_set_steps_are_not_shown_as_running_code(project, fanfold, step):
    fanfold("run", write(project, ASKS))
    assert "used" not in fanfold("explain", "last", step, "--json").json()
